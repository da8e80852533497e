"""One reading held against its limit: a value, or a multiple of another reading. Exact, in whole numbers and fractions.

=================  ==============================================================================================
too few            either reading has fewer values than it needs: nothing is said of it
nothing to         the other reading is censored or zero: no multiple of it is known
compare with
with confidence    PASS if the whole band is within the limit (of a multiple: the lower end of its band), FAIL if all
                   of it is outside (the upper end), else open
else               PASS or FAIL by the value; one that is censored is over any limit
=================  ==============================================================================================
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from aftershock.results.check import Status, holds
from aftershock.results.objectives.readings import Reading
from aftershock.results.slo import Measure, Multiple


@dataclass(frozen=True)
class Pair:
    """A reading and the other one, if the limit is a multiple; ``limit``: what it comes to, None if nothing is known.

    ``status`` None: too few to say anything.
    """

    ours: Reading
    other: Reading | None
    limit: Fraction | None
    status: Status | None

    @property
    def excess(self) -> Fraction | None:
        """How much of its limit the reading is; None for what is over any."""
        if self.ours.value is None or not self.limit:
            return self.ours.value
        return self.ours.value / self.limit


def pairs(slo: Measure, ours: Sequence[Reading], others: Sequence[Reading]) -> Iterator[Pair]:
    """Each reading with its limit. Of a multiple, the other reading is the one of the same subject."""
    by_subject = {one.subject: one for one in others}
    for reading in ours:
        if isinstance(slo.limit, Multiple):
            yield _against(slo, slo.limit, reading, by_subject.get(reading.subject, Reading(0, None)))
        else:
            limit = Fraction(slo.limit)
            fed = reading.n >= slo.needs_of(slo.of)
            yield Pair(reading, None, limit, _status(slo, reading, limit, limit, limit) if fed else None)


def _against(slo: Measure, multiple: Multiple, ours: Reading, other: Reading) -> Pair:
    limit = Fraction(multiple.factor) * other.value if other.value else None
    if ours.n < slo.needs_of(slo.of) or other.n < slo.needs_of(multiple.of):
        return Pair(ours, other, limit, None)
    if limit is None:
        return Pair(ours, other, None, Status.INCONCLUSIVE)
    low, high = (None if end is None else Fraction(multiple.factor) * end for end in other.band or (None, None))
    return Pair(ours, other, limit, _status(slo, ours, limit, low, high))


def _status(slo: Measure, ours: Reading, limit: Fraction, low: Fraction | None, high: Fraction | None) -> Status:
    """``low`` and ``high``: the ends of the limit's own band, which is the limit itself where that is a value."""
    if slo.confidence is None:
        within = ours.value is not None and holds(ours.value, slo.op, limit)
        return Status.PASS if within else Status.FAIL
    bottom, top = ours.band or (None, None)
    if low is not None and top is not None and holds(top, slo.op, low):
        return Status.PASS
    over = ours.value is None if bottom is None else high is not None and not holds(bottom, slo.op, high)
    return Status.FAIL if over else Status.INCONCLUSIVE


def worst(found: Sequence[Pair], op: str) -> Pair:
    """Which one decides: a failure, else the least fed, else an open one, else the one nearest to its limit."""
    for status in (Status.FAIL, None, Status.INCONCLUSIVE, Status.PASS):
        those = [one for one in found if one.status is status]
        if those and status is None:
            return min(those, key=_fed)
        if those:
            return max(those, key=lambda one: _badness(one, op))
    raise ValueError("there is always a reading, be it an empty one")


def _fed(one: Pair) -> int:
    return one.ours.n if one.other is None else min(one.ours.n, one.other.n)


def _badness(one: Pair, op: str) -> tuple[bool, Fraction]:
    excess = one.excess
    if excess is None:
        return (True, Fraction(0))
    return (False, excess if op in ("<", "<=") else -excess)
