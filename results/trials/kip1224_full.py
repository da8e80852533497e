"""Batches of commits that were full before they were due: whether anything was left without a flush.

Rules. A batch is full when the metadata of one more commit would not have fitted in. A write that nobody flushes is
given up by the coordinator after ``offsets.commit.timeout.ms``, 5 s: what was answered in half of that was flushed, and
what took longer is not told from what was left behind. Where no batch was full nothing is said.
"""

import numpy as np
import pyarrow.compute as pc

from aftershock.results.trials import commits
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import seen

FULL = "full"
LATE_MS = 2_500
_METADATA, _BATCH = "commit.metadata.bytes", "message.max.bytes"


def flushed(part: Part) -> Judged:
    """Whether every commit was answered in time while batches were full."""
    sizes = _sizes(part)
    full = sum(size >= _fill(part) for size in sizes)
    rows = part.outcomes(commits.COLUMNS, pc.field("op") == "commit")
    took = commits.took_ms(rows)
    slowest = float(took.max()) if len(took) else np.inf
    late = int((took > LATE_MS).sum())
    why = f"{full} of {len(sizes)} batches were full; of {len(took)} commits {late} were not answered in {LATE_MS} ms"
    of = Estimate(slowest if np.isfinite(slowest) else None, None, None, full, "ms")
    return seen(not late if full else None, of, why)


def _fill(part: Part) -> int:
    """How many commits leave no room for one more."""
    timeline = part.run.timeline
    (arm,) = timeline["workloads"][0]["arms"].values()
    return int(timeline["cluster"]["config"][_BATCH]) // int(arm["settings"][_METADATA])


def _sizes(part: Part) -> list[int]:
    """Commits a batch."""
    table = commits.written(part)
    if table is None:
        return []
    counted = table.group_by(["partition", "batch"]).aggregate([("offset", "count")])
    return [int(count) for count in counted["offset_count"].to_pylist()]
