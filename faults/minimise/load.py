"""Less load: one workload, one arm, one side of it, half the rate. What can't feed an SLO, the check refuses."""

from collections.abc import Iterator

from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at, without
from aftershock.faults.problem import Loc
from aftershock.faults.units import format_rate, parse_rate_per_s

RATE_PER_S_MIN = 5
_SIDES = ("commit", "consume", "produce")


def load(document: Document) -> Iterator[Candidate]:
    """Whole workloads first, the rate last."""
    places: list[Loc] = [("workloads", index) for index in range(len(document["workloads"]))]
    for loc in places if len(places) > 1 else ():
        yield Candidate(f"without workload {value_at(document, (*loc, 'name'))}", without(document, loc))
    for loc in places:
        yield from _arms(document, loc)
    for loc in places:
        yield from _sides(document, loc)
    for loc in places:
        yield from _rates(document, loc)


def _arms(document: Document, loc: Loc) -> Iterator[Candidate]:
    arms = value_at(document, (*loc, "arms")) or {}
    for arm in arms if len(arms) > 1 else ():
        yield Candidate(f"only arm {arm}", changed(document, {(*loc, "arms"): {arm: arms[arm]}}))
    for arm in arms if len(arms) > 2 else ():  # noqa: PLR2004 -- of two, one without the other was tried
        yield Candidate(f"without arm {arm}", without(document, (*loc, "arms", arm)))


def _sides(document: Document, loc: Loc) -> Iterator[Candidate]:
    sides = [side for side in _SIDES if value_at(document, (*loc, side))]
    for side in sides if len(sides) > 1 else ():
        said = f"workload {value_at(document, (*loc, 'name'))} without {side}"
        yield Candidate(said, without(document, (*loc, side)))


def _rates(document: Document, loc: Loc) -> Iterator[Candidate]:
    for side in ("produce", "commit"):
        rate = value_at(document, (*loc, side, "rate"))
        if rate and (half := parse_rate_per_s(rate) / 2) >= RATE_PER_S_MIN:
            said = f"workload {value_at(document, (*loc, 'name'))}: {side} at {format_rate(half)}, not {rate}"
            yield Candidate(said, changed(document, {(*loc, side, "rate"): format_rate(half)}))
