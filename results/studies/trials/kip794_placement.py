"""Distribution of a producer's records and draws over three brokers that lead one partition each, for KIP-794's claims.

A record belongs to the slice of time that contains its intended time. A broker's share is its percentage of the
acknowledged bytes; the latency of a failed record is infinite. If the plan has a slow broker, that broker leads
partition 0. The first slice of time of a fault, in which the queues fill, is excluded from all means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.studies.part import Floats, Part, Slice, slices

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
        mask = (self.intended_us >= span.start_us) & (self.intended_us < span.end_us)
        return Placed(*(getattr(self, field.name)[mask] for field in fields(self)))

    def share(self, partition: int) -> float:
        """Return a partition's percentage of a producer's acknowledged bytes, NaN without acknowledged bytes."""
        total = float(self.size_bytes[self.ok].sum())
        return 100 * float(self.size_bytes[self.ok & (self.partition == partition)].sum()) / total if total else np.nan


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
SLICE_US = 20_000_000


def spans(part: Part, fault: str) -> tuple[Slice, ...]:
    windows = [slices(row["start_us"], row["end_us"], SLICE_US) for row in part.phases(fault)]
    return tuple(span for window in windows for span in window)


def settled(part: Part, fault: str) -> tuple[Slice, ...]:
    return spans(part, fault)[1:]


def draws_by_partition(part: Part, worker: str, within: Sequence[Slice]) -> Floats:
    """Return a partitioner's draws as an array by partition and slice of time, from samples once a second."""
    ends = np.array(within, float).reshape(-1, 2)
    drawn = np.zeros((len(PARTITIONS), len(ends)))
    for partition in PARTITIONS:
        samples = part.samples(f"client.partition_draws_{partition}/{worker}")
        if samples.num_rows:
            times_us, counts = (samples[name].to_numpy() for name in ("t_us", "value"))
            drawn[partition] = np.diff(np.interp(ends, times_us, counts))[:, 0]
    return drawn
