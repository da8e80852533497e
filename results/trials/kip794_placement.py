"""Where a producer's records went and how long they took, by slices of time: what KIP-794's statements are made of.

Rules. A record belongs to the slice of its intended time. A share is of the bytes that were acknowledged; a latency is
infinite where the record failed. A *turn* is a run of records, in the order they were sent, that went to one partition:
what one draw was worth, but for a draw that finds the same partition again and is not seen.

How a producer's records are spread over three brokers that lead a partition each: shares of bytes, and draws.

Rules. Partition 0 is the slow one where one is. The first slice of a fault, in which the queues fill, belongs to no
mean. Draws are seen as turns (``placed.py``): where one ends, the next goes to another partition, to either alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import chdtrc

from aftershock.results.trials.part import Floats, Part, Slice, mean, slices
from aftershock.results.trials.statement import Estimate, Judged, seen

_COLUMNS = ("seq", "partition", "intended_us", "done_us", "bytes", "status")
NOWHERE = -1
"""The partition of a record that came to none."""


@dataclass(frozen=True)
class Placed:
    """One producer's records in the order they were sent. ``partition`` may be ``NOWHERE``."""

    seq: NDArray[np.int64]
    partition: NDArray[np.int64]
    intended_us: NDArray[np.int64]
    latency_us: Floats
    size_bytes: Floats
    ok: NDArray[np.bool_]

    def within(self, span: Slice) -> "Placed":
        """Those that were meant for this time."""
        return self._those((self.intended_us >= span.start_us) & (self.intended_us < span.end_us))

    def done_within(self, span: Slice) -> "Placed":
        """Those that were acknowledged in this time, whenever they were meant to be sent."""
        done_us = self.intended_us + self.latency_us
        return self._those((done_us >= span.start_us) & (done_us < span.end_us))

    def share(self, partition: int) -> float:
        """Per cent of the acknowledged bytes that are in this partition; not a number where there are none."""
        total = float(self.size_bytes[self.ok].sum())
        return 100 * float(self.size_bytes[self.ok & (self.partition == partition)].sum()) / total if total else np.nan

    def turns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The partition of each turn, and its records; the first and the last one, which may be cut, are left out."""
        known = self.partition[self.partition != NOWHERE]
        ends = np.flatnonzero(np.diff(known)) + 1
        starts, lengths = ends[:-1], np.diff(ends)
        return known[starts], lengths

    def _those(self, which: NDArray[np.bool_]) -> "Placed":
        return Placed(
            self.seq[which],
            self.partition[which],
            self.intended_us[which],
            self.latency_us[which],
            self.size_bytes[which],
            self.ok[which],
        )


def placed(part: Part, client: str) -> Placed:
    """What became of the records of a producer, ``workload/arm``."""
    workload, arm = client.split("/")
    whose = (pc.field("op") == "produce") & (pc.field("workload") == workload) & (pc.field("arm") == arm)
    rows = part.outcomes(_COLUMNS, whose).sort_by("seq")
    seq, partition, intended, done, size = (
        pc.fill_null(rows[name], NOWHERE).to_numpy().astype(np.int64) for name in _COLUMNS[:-1]
    )
    ok = pc.equal(rows["status"], "ok").to_numpy(zero_copy_only=False).astype(bool)
    latency = np.where(ok, done - intended, np.inf).astype(float)
    return Placed(seq, partition, intended, latency, np.maximum(size, 0).astype(float), ok)


def shares(records: Placed, spans: Sequence[Slice], partition: int) -> list[float]:
    """One share a slice, of those in which anything was acknowledged."""
    found = (records.within(span).share(partition) for span in spans)
    return [share for share in found if not np.isnan(share)]


def moves(turns: NDArray[np.int64]) -> dict[tuple[int, int], int]:
    """How often the partition on the left was followed by the one on the right."""
    counts: dict[tuple[int, int], int] = {}
    for pair in pairwise(map(int, turns)):
        counts[pair] = counts.get(pair, 0) + 1
    return counts


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
