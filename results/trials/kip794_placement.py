"""Distribution of a producer's records over three brokers that lead one partition each, for KIP-794's claims.

A record belongs to the slice of time that contains its intended time. A broker's share is its percentage of the
acknowledged bytes; the latency of a failed record is infinite. A *turn* is a sequence of records, in the order they
were sent, that went to one partition before the partitioner chose another; choosing the same partition again is not
visible. If the choice is uniform, both other partitions are equally likely after a turn. If the plan has a slow broker,
that broker leads partition 0. The first slice of time of a fault, in which the queues fill, is excluded from all means.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import chdtrc

from aftershock.results.trials.part import Floats, Part, Slice, mean, slices
from aftershock.results.trials.statement import Estimate, Measured

NOWHERE = -1
"""Partition number of a record for which no partition was chosen."""


@dataclass(frozen=True)
class Placed:
    """Records of one producer in send order; ``partition`` is ``NOWHERE`` if no partition was chosen."""

    seq: NDArray[np.int64]
    partition: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    latency_us: Floats
    size_bytes: Floats
    ok: NDArray[np.bool_]

    def within(self, span: Slice) -> "Placed":
        return self._between(self.intended_us, span)

    def done_within(self, span: Slice) -> "Placed":
        return self._between(self.intended_us + self.latency_us, span)

    def share(self, partition: int) -> float:
        """Return a partition's percentage of a producer's acknowledged bytes, NaN without acknowledged bytes."""
        total = float(self.size_bytes[self.ok].sum())
        return 100 * float(self.size_bytes[self.ok & (self.partition == partition)].sum()) / total if total else np.nan

    def turns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return partition and length of each series of records to one partition, without the first and the last."""
        partitions = self.partition[self.partition != NOWHERE]
        ends = np.flatnonzero(np.diff(partitions)) + 1
        return partitions[ends[:-1]], np.diff(ends)

    def _between(self, times_us: NDArray[np.int64] | Floats, span: Slice) -> "Placed":
        mask = (times_us >= span.start_us) & (times_us < span.end_us)
        return Placed(*(getattr(self, field.name)[mask] for field in fields(self)))


def placed(part: Part, client: str) -> Placed:
    columns = ("seq", "partition", "intended_us", "done_us", "bytes")
    rows = part.outcomes("produce", (*columns, "status"), client).sort_by("seq")
    seq, partition, intended, done, size = (
        pc.fill_null(rows[name], NOWHERE).to_numpy().astype(np.int64) for name in columns
    )
    ok = pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False).astype(bool)
    latency = np.where(ok, done - intended, np.inf).astype(float)
    return Placed(seq, partition, intended, latency, np.maximum(size, 0).astype(float), ok)


def shares(records: Placed, spans: Sequence[Slice], partition: int) -> list[float]:
    return [share for span in spans if not np.isnan(share := records.within(span).share(partition))]


SLOW, PARTITIONS = 0, range(3)
THIRD = 100 / len(PARTITIONS)
DRAWS_MIN = 200
"""With 200 choices of a partition, a share that is off by ten points is detected in nine of ten runs."""


def spans(part: Part, fault: str) -> tuple[Slice, ...]:
    windows = [slices(row["start_us"], row["end_us"]) for row in part.phases(fault)]
    return tuple(span for window in windows for span in window)


def settled(part: Part, fault: str) -> tuple[Slice, ...]:
    return spans(part, fault)[1:]


def farthest(records: Placed, within: Sequence[Slice], confidence: float) -> Estimate:
    """Return, of three brokers' mean shares of the bytes, the share that deviates most from a third."""
    means = [mean(shares(records, within, partition), "%", confidence) for partition in PARTITIONS]
    return max(means, key=lambda share: abs((share.value or 0.0) - THIRD))


def whole(within: Sequence[Slice]) -> Slice:
    return Slice(within[0].start_us, within[-1].end_us) if within else Slice(0, 0)


def fair(records: Placed, within: Sequence[Slice]) -> Measured:
    """Test whether after records to one partition both others are chosen equally often (chi-square test)."""
    where, _ = records.within(whole(within)).turns()
    counts = Counter(pairwise(where.tolist()))
    squared, freedom = 0.0, 0
    for source in PARTITIONS:
        targets = [counts[source, target] for target in PARTITIONS if target != source]
        expected = sum(targets) / len(targets)
        if expected:
            squared += sum((count - expected) ** 2 / expected for count in targets)
            freedom += len(targets) - 1
    total = sum(counts.values())
    p = float(chdtrc(freedom, squared)) if freedom else None
    ours = Estimate(p, None, None, total, "p", p=p)
    if total < DRAWS_MIN or p is None:
        return Measured(ours, f"the partitioner chose a partition {total} times; at least {DRAWS_MIN} are needed")
    shown = " / ".join(f"{100 * float((where == partition).mean()):.1f}" for partition in PARTITIONS)
    return Measured(ours, f"{total} choices, {shown} % for each broker: chi-square {squared:.1f}, p = {p:.2g}")
