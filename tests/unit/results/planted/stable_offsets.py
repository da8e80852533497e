"""Last stable offsets that keep up, stand still, or were not seen."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from aftershock.tests.unit.results.evidence_factory import LOAD_END_S, PARTITIONS, S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.transactions import committed_run
from aftershock.tests.unit.results.planted.world import Run, typed

PERIOD_US = S // 2
WAIT_S = 70
"""Time after the load until which a run samples: it waits until each transaction must have ended."""
PARTITION = 2
SLO = "stable_offset.lag p50 < 3s"
Offsets = np.ndarray[Any, np.dtype[np.int64]]


@cache
def stable_run() -> Run:
    """Return a run with transactions whose last stable offsets are sampled twice a second."""
    run = committed_run().copy("stable")
    run.documents["run"]["stable_offsets"] = ["orders"]
    times_us = np.arange(0, (LOAD_END_S + WAIT_S) * S, PERIOD_US)
    sent, own = run.frames["produce"], run.frames["transactions"]
    number = sent["seq"] // 10
    parts = sent.assign(number=number).groupby(["partition", "producer_id", "number"], as_index=False)
    spans = parts.agg(begin_us=("done_us", "min"), first=("offset", "min"), last=("offset", "max"))
    ends = own[["producer_id", "number", "done_us"]].rename(columns={"done_us": "end_us"})
    spans = spans.merge(ends, on=["producer_id", "number"])
    for partition in range(PARTITIONS):
        rows = spans[spans["partition"] == partition]
        begin, end = (rows[name].to_numpy(np.int64)[:, None] for name in ("begin_us", "end_us"))
        first, last = (rows[name].to_numpy(np.int64)[:, None] for name in ("first", "last"))
        marker = np.where(end <= times_us, last + 2, 0).max(axis=0)
        high = np.maximum(np.where(begin <= times_us, first + 1, 0).max(axis=0), marker)
        is_open = (begin <= times_us) & (times_us < end)
        oldest = np.where(is_open, first, high).min(axis=0)
        _sample(run, partition, times_us, np.minimum(oldest, high), high)
    run.slos(*(objective["text"] for objective in run.documents["timeline"]["slo"]), SLO)
    return run


def _sample(run: Run, partition: int, times_us: Offsets, stable: Offsets, end: Offsets) -> None:
    """Add the samples of a partition."""
    named = (("stable_offset.stable", stable), ("stable_offset.end", end))
    rows = [
        pd.DataFrame({"t_us": times_us, "broker_id": 1 + partition % 3, "name": f"{name}/orders/{partition}"}).assign(
            value=values.astype(float)
        )
        for name, values in named
    ]
    run.frames["metrics"] = typed("metrics", pd.concat([run.frames["metrics"], *rows], ignore_index=True))


def _rows(run: Run, name: str, from_s: float = 0, to_s: float = 1e6) -> "pd.Index[int]":
    """Return the samples of a partition's offsets between two times."""
    rows = run.frames["metrics"]
    own = (rows["name"] == f"stable_offset.{name}/orders/{PARTITION}") & rows["t_us"].between(from_s * S, to_s * S)
    return rows.index[own]


def _stand(run: Run, from_s: float, to_s: float = 1e6) -> int:
    """Let the last stable offset of the partition stand between two times; return where."""
    rows = _rows(run, "stable", from_s, to_s)
    offset = int(run.frames["metrics"].loc[rows[0], "value"])
    run.set("metrics", rows, value=float(offset))
    return offset


def _unread(run: Run, from_offset: int) -> None:
    """Remove the deliveries of the partition from an offset on."""
    rows = run.frames["consume"]
    run.drop("consume", rows.index[(rows["partition"] == PARTITION) & (rows["offset"] >= from_offset)])


@defect(
    "a last stable offset that stands still to the end, 25 s and more after the last fault",
    fails=("obligation/stable_offset",),
    says="a transaction hangs",
    base=stable_run,
)
def hanging_transaction(run: Run) -> None:
    _stand(run, LOAD_END_S - 1)


@defect(
    "the same from early on, of which the readers of committed records get nothing more in that partition",
    fails=("obligation/stable_offset", "slo/stable_offset.lag-p50"),
    unsure=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
    base=stable_run,
)
def hanging_transaction_holds_readers_back(run: Run) -> None:
    stable = _stand(run, 12)
    end = int(run.frames["metrics"].loc[_rows(run, "end"), "value"].max())
    _unread(run, stable)
    at_us = (LOAD_END_S + WAIT_S - 1) * S
    positions = [["orders", PARTITION, stable, end]]
    run.documents["events"].append({"t_us": at_us, "event": "open_transactions", "positions": positions})


@defect(
    "readers that get nothing more in a partition whose last stable offset keeps up",
    fails=("integrity/lost", "slo/lost", "slo/consume.latency-p99", "obligation/consume"),
    base=stable_run,
)
def readers_stop_without_a_hanging_transaction(run: Run) -> None:
    _unread(run, int(run.frames["metrics"].loc[_rows(run, "stable", 12)[0], "value"]))


@defect(
    "a last stable offset that stands for 25 s, until a transaction's time-out and the coordinator's scan: no alarm",
    base=stable_run,
)
def a_transaction_that_times_out(run: Run) -> None:
    run.documents["timeline"]["workloads"][0]["produce"]["transaction"]["timeout_ms"] = 15_000
    _stand(run, LOAD_END_S - 20, LOAD_END_S + 5)


@defect("a last stable offset that stands for 25 s while a broker is away: no alarm", base=stable_run)
def a_standstill_during_a_fault(run: Run) -> None:
    _stand(run, 25, LOAD_END_S + 1)


@defect(
    "a last stable offset below the end of the log in the last sample, soon after a fault",
    unsure=("obligation/stable_offset",),
    says="still has an open transaction",
    base=stable_run,
)
def open_at_the_end(run: Run) -> None:
    _stand(run, LOAD_END_S - 1)
    rows = run.frames["metrics"]
    late = rows["name"].str.startswith("stable_offset.") & (rows["t_us"] > (LOAD_END_S + 2) * S)
    run.drop("metrics", rows.index[late])


@defect(
    "a partition without a sample of its last stable offset after the load",
    unsure=("obligation/stable_offset",),
    says="orders/2 is not known after the load",
    base=stable_run,
)
def unsampled_after_the_load(run: Run) -> None:
    for name in ("stable", "end"):
        run.drop("metrics", _rows(run, name, LOAD_END_S - 1))


@defect(
    "no sample of any last stable offset",
    unsure=("obligation/stable_offset", "slo/stable_offset.lag-p50"),
    says="never moved",
    base=stable_run,
)
def never_sampled(run: Run) -> None:
    rows = run.frames["metrics"]
    run.drop("metrics", rows.index[rows["name"].str.startswith("stable_offset.")])


@defect("a new leader whose high watermark is behind for two seconds: no alarm", base=stable_run)
def a_new_leaders_high_watermark(run: Run) -> None:
    for name in ("stable", "end"):
        rows = _rows(run, name, 36, 38)
        before = float(run.frames["metrics"].loc[_rows(run, name, 30)[0], "value"])
        run.set("metrics", rows, value=before)


@defect("last stable offsets that are ten seconds behind", fails=("slo/stable_offset.lag-p50",), base=stable_run)
def behind_by_ten_seconds(run: Run) -> None:
    rows = run.frames["metrics"]
    own = rows["name"].str.startswith("stable_offset.stable/")
    late = rows[own].assign(t_us=rows.loc[own, "t_us"] + 10 * S)
    first = rows[own & (rows["t_us"] < 10 * S)].assign(value=0.0)
    run.frames["metrics"] = typed("metrics", pd.concat([rows[~own], first, late], ignore_index=True))


@defect(
    "a last stable offset that stands for ten seconds, and a tenth of the transactions in doubt: only the second fails",
    fails=("slo/transaction.success",),
    base=stable_run,
)
def in_doubt_and_standing(run: Run) -> None:
    _stand(run, 7, 17)
    rows = run.frames["transactions"]
    run.set("transactions", rows.index[rows["number"] % 10 == 0], outcome="in_doubt", done_us=None)
