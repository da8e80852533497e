"""Where a producer's records went and how long they took, by slices of time: what KIP-794's statements are made of.

Rules. A record belongs to the slice of its intended time. A share is of the bytes that were acknowledged; a latency is
infinite where the record failed. A *turn* is a run of records, in the order they were sent, that went to one partition:
what one draw was worth, but for a draw that finds the same partition again and is not seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import Floats, Slice

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
