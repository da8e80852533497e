"""How a producer's records are spread over three brokers that lead a partition each: shares of bytes, and draws.

Rules. Partition 0 is the slow one where one is. The first slice of a fault, in which the queues fill, belongs to no
mean. Draws are seen as turns (``placed.py``): where one ends, the next goes to another partition, to either alike.
"""

from collections.abc import Sequence

from scipy.special import chdtrc

from aftershock.results.trials.part import Part
from aftershock.results.trials.placed import Placed, moves, shares
from aftershock.results.trials.slices import Slice, mean, slices
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import seen

SLOW, PARTITIONS = 0, range(3)
THIRD = 100 / len(PARTITIONS)
CHANCE = 0.01
DRAWS_MIN = 200
"""A share that is off by ten points is then seen in nine of ten runs."""


def spans(part: Part, fault: str) -> tuple[Slice, ...]:
    """The slices of a fault's window."""
    windows = [slices(row["start_us"], row["end_us"]) for row in part.phases(fault)]
    return tuple(span for window in windows for span in window)


def settled(part: Part, fault: str) -> tuple[Slice, ...]:
    """All but the first."""
    return spans(part, fault)[1:]


def farthest(records: Placed, within: Sequence[Slice], confidence: float) -> Estimate:
    """The mean share that is farthest from a third."""
    found = [mean(shares(records, within, one), "%", confidence) for one in PARTITIONS]
    return max(found, key=lambda each: abs((each.value or 0.0) - THIRD))


def whole(within: Sequence[Slice]) -> Slice:
    """From the first to the last."""
    return Slice(within[0].start_us, within[-1].end_us) if within else Slice(0, 0)


def fair(records: Placed, within: Sequence[Slice]) -> Judged:
    """Whether each turn was followed by either of the other partitions alike: chi-square over all of them."""
    where, _ = records.within(whole(within)).turns()
    counts = moves(where)
    squared, freedom = 0.0, 0
    for source in PARTITIONS:
        targets = [counts.get((source, target), 0) for target in PARTITIONS if target != source]
        expected = sum(targets) / len(targets)
        if expected:
            squared += sum((count - expected) ** 2 / expected for count in targets)
            freedom += len(targets) - 1
    total = sum(counts.values())
    p = float(chdtrc(freedom, squared)) if freedom else None
    ours = Estimate(p, None, None, total, "p", p=p)
    if total < DRAWS_MIN or p is None:
        return seen(None, ours, f"too few draws: {total} of {DRAWS_MIN}")
    shown = " / ".join(f"{100 * float((where == one).mean()):.1f}" for one in PARTITIONS)
    return seen(p >= CHANCE, ours, f"{total} draws, {shown} % to each broker: chi-square {squared:.1f}, p = {p:.2g}")
