"""What recovery is looked for, how fast is calm, and where it may have begun. Pure; Spark's part is in ``recovery.py``.

Rules: calm is a client's own pace in steady times a factor. Where in time it may begin, and where it must, is told by
counts of slots, with certainty; between the two the records decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aftershock.results.facts import Distribution, Recovered
from aftershock.results.measuring.answers import Spread
from aftershock.results.measuring.dims import Scene
from aftershock.results.slo import quantile_needs
from aftershock.results.wanted import Calm, Wanted

SLOT_US = 100_000
Counts: TypeAlias = npt.NDArray[np.int64]


def calms_of(scene: Scene, wanted: Wanted) -> list[Calm]:
    """As is usual, for every fault that began, and as the SLOs have it."""
    begun = [step["id"] for step in scene.evidence.steps if scene.inject_us(step["id"]) is not None]
    asked = [calm for calm in wanted.recoveries if calm.fault in begun]
    return list(dict.fromkeys([*map(Calm, begun), *asked]))


def usual(calm: Calm) -> bool:
    """Whether it is as calm as is looked for where nobody says how."""
    return calm == Calm(calm.fault)


@dataclass(frozen=True)
class Pace:
    """What calm is for a client: for ``for_us`` none fails, and of n at most ``allowed`` take over ``limit_us``."""

    run: int
    client: str
    end_us: int
    limit_us: int
    q: Fraction
    for_us: int

    @property
    def row(self) -> tuple[str, int, int, int, int]:
        """``client end_us limit_us num den``, as the tables have it."""
        return self.client, self.end_us, self.limit_us, *self.q.as_integer_ratio()

    def allowed(self, n: "Counts") -> "Counts":
        """How many of n may be slow: nearest-rank quantile <= limit is the same as at least ceil(q n) within it."""
        found: Counts = n * (self.q.denominator - self.q.numerator) // self.q.denominator
        return found


@dataclass(frozen=True)
class Sought:
    """The ``number``-th calm of a run, looked for at a client's pace."""

    number: int
    calm: Calm
    pace: Pace
    at_us: int


def sought(scenes: Sequence[Scene], calms: Sequence[Sequence[Calm]], spread: Sequence[Spread]) -> list[Sought]:
    """Each calm for each client that has a pace: where steady has too little to tell, there is none."""
    found = []
    for run, scene in enumerate(scenes):
        for number, calm in enumerate(calms[run]):
            for client in scene.evidence.clients:
                limit_us = _limit_us(calm, spread[run].get(("produce.latency", client.key, "steady")))
                at_us = scene.inject_us(calm.fault)
                if limit_us is not None and at_us is not None:
                    pace = Pace(run, client.key, scene.end_us, limit_us, Fraction(repr(calm.q)), calm.for_us)
                    found.append(Sought(number, calm, pace, at_us))
    return found


def _limit_us(calm: Calm, steady: Distribution | None) -> int | None:
    """The slowest that counts as calm, in whole microseconds. Not as floats: 1.1 * 3000 is over 3300."""
    at_us = steady.at[calm.q] if steady and steady.n >= quantile_needs(calm.q) else None
    return None if at_us is None else int(Fraction(repr(calm.factor)) * at_us)


@dataclass(frozen=True)
class Look:
    """Where the records have to be looked at one by one: calm begins from ``look_us`` on, before ``until_us``."""

    look_us: int
    until_us: int


@dataclass(frozen=True, eq=False)
class Slots:
    """What was counted at a pace (``recovery.pace_slots``), a row each slot and segment, which is -1 outside of all."""

    segment: Counts
    slot: Counts
    n: Counts
    failed: Counts
    slow: Counts


def where_to_look(one: Sought, slots: Slots | None) -> list[Look]:
    """The slots in which calm may begin, up to the first in which it must; where they are near each other, as one look.

    ::

        slot             |=====|                 the stretch begins with a record of the slot
        surely in it           |---------|       records of the slots that lie wholly in any such stretch
        perhaps in it    |--------------------|  records of the slots that one may reach into

    It may if none failed of those surely in it, and the slow ones of them are few enough for all that are perhaps in
    it; it must if none failed of all, and all that are slow are few enough for those surely in it. ``slots`` are those
    of the pace, if it has any.
    """
    if slots is None:
        return []
    slot_us, pace = slot_us_of(one.pace.for_us), one.pace
    first = slots.slot.min()
    sums = {name: _running(getattr(slots, name), slots.slot - first) for name in ("n", "failed", "slow")}
    at = np.flatnonzero(np.diff(sums["n"]))
    surely = {name: _within(of, at + 1, at + pace.for_us // slot_us) for name, of in sums.items()}
    perhaps = {name: _within(of, at, at + 2 + (pace.for_us - 2) // slot_us) for name, of in sums.items()}
    start_us = (at + first) * slot_us
    after, whole = start_us + slot_us > one.at_us, start_us >= one.at_us
    may = after & (surely["failed"] == 0) & (surely["slow"] <= pace.allowed(perhaps["n"]))
    may &= start_us + pace.for_us <= pace.end_us
    must = whole & (perhaps["failed"] == 0) & (perhaps["slow"] <= pace.allowed(surely["n"]))
    must &= start_us + slot_us + pace.for_us <= pace.end_us
    begins_us = start_us[may & (start_us <= min(start_us[must], default=pace.end_us))]
    apart = np.split(begins_us, np.flatnonzero(np.diff(begins_us) > pace.for_us) + 1)
    return [Look(max(int(some[0]), one.at_us), int(some[-1]) + slot_us) for some in apart if len(some)]


def slot_us_of(for_us: int) -> int:
    """A tenth of a second, or a quarter of what is looked for."""
    return max(1, min(SLOT_US, for_us // 4))


def _running(counted: Counts, at: Counts) -> Counts:
    """How many there were before each slot, and before the end."""
    counts = np.zeros(at.max() + 2, dtype=np.int64)
    np.add.at(counts, at + 1, counted)
    return np.cumsum(counts)


def _within(running: Counts, start: Counts, end: Counts) -> Counts:
    last = len(running) - 1
    found: Counts = running[np.minimum(end, last)] - running[np.minimum(start, last)]
    return found


def recovered(
    looked: Iterable[tuple[Sought, int | None]], slots: Mapping[Pace, Slots], scene: Scene
) -> dict[tuple[Calm, str], Recovered]:
    """The answers of one run by calm and client, with how much there was to look at, and how long."""
    # an inject is the edge of a segment; what is in none was before all
    starts_us = np.array([*(start for start, _ in scene.segments.spans), -1])
    found = {}
    for one, recovered_us in looked:
        seen = slots.get(one.pace)
        begun = seen.n[starts_us[seen.segment] >= one.at_us] if seen else ()
        observed_us = max(0, scene.end_us - one.at_us - one.calm.for_us)
        if len(begun):
            found[one.calm, one.pace.client] = Recovered(int(sum(begun)), recovered_us, observed_us)
    return found
