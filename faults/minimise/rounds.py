"""Fewer rounds: ``blocks`` and ``repeat``, whose every round costs its time again in each run. So they go first."""

from collections.abc import Iterator

from aftershock.faults.minimise.candidate import Candidate, Document, changed, value_at, without
from aftershock.faults.minimise.steps import units
from aftershock.faults.problem import Loc


def rounds(document: Document) -> Iterator[Candidate]:
    """One block, or half of them; then the same of each ``repeat``."""
    blocks = document.get("blocks", 1)
    for fewer in _fewer(blocks):
        yield Candidate(f"{fewer} of {blocks} blocks", changed(document, {("blocks",): fewer}))
    for loc in _repeats(document):
        times = value_at(document, (*loc, "repeat"))
        for fewer in _fewer(times or 1):
            yield Candidate(
                f"entry {int(loc[1]) + 1}: {fewer} of {times} rounds", changed(document, {(*loc, "repeat"): fewer})
            )
        if times is None:
            once = changed(without(document, (*loc, "until")), {(*loc, "repeat"): 1})
            yield Candidate(
                f"entry {int(loc[1]) + 1}: one round, not until {value_at(document, (*loc, 'until'))}", once
            )


def _fewer(times: int) -> list[int]:
    return sorted({1, times // 2} - {0, times})


def _repeats(document: Document) -> list[Loc]:
    """Where something is repeated, the outermost first."""
    places = {loc[:length] for loc in units(document) for length in range(2, len(loc))}
    found = [loc for loc in places if isinstance(said := value_at(document, loc), dict) and "fault" in said]
    return sorted(
        (loc for loc in found if "weight" not in value_at(document, loc)), key=lambda loc: (len(loc), str(loc))
    )
