"""Defects of time: records that are too slow, too rare, or missing for too long."""

import pandas as pd

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run
from aftershock.tests.unit.results.planted.worlds import racks_run

MS = 1000


def _slow(run: Run, rows: pd.Series, by_us: int) -> None:
    """Delay the completion of these produce rows."""
    run.set("produce", rows.index[rows], done_us=run.frames["produce"].loc[rows, "done_us"] + by_us)


def _meant(run: Run, from_s: float, to_s: float) -> pd.Series:
    return run.frames["produce"]["intended_us"].between(int(from_s * S), int(to_s * S) - 1)


def _slowest_is(run: Run, us: int) -> None:
    run.slos("produce.latency max <= 50ms in steady for patient")
    index = run.at("produce", 1, 450)
    run.set("produce", index, done_us=run.get("produce", index)["intended_us"] + us)


@defect("a latency one microsecond over its limit", fails=("slo/produce.latency-max-steady",))
def one_microsecond_over(run: Run) -> None:
    _slowest_is(run, 50 * MS + 1)


@defect("a latency of exactly its limit: no alarm")
def exactly_the_limit(run: Run) -> None:
    _slowest_is(run, 50 * MS)


@defect(
    "6 % of one arm's records slow in steady",
    fails=("slo/produce.latency-p95-steady", "compare/produce.latency-p95-patient-baseline-steady"),
)
def slow_in_steady(run: Run) -> None:
    _slow(
        run,
        _meant(run, 6, 16) & (run.frames["produce"]["arm"] == "patient") & (run.frames["produce"]["seq"] % 16 == 0),
        60 * MS,
    )


@defect("slow in recovery alone", fails=("slo/produce.latency-p95-recovery",))
def slow_in_recovery(run: Run) -> None:
    _slow(run, _meant(run, 40, 50), 300 * MS)


@defect("slow while a fault is in force", fails=("slo/produce.latency-p95-fault/latency-1",))
def slow_in_a_fault(run: Run) -> None:
    _slow(run, _meant(run, 16, 24), 300 * MS)


@defect(
    "0.2 % of the records of one rack slow: a p99.9 of all does not show it, that of each rack does",
    fails=("slo/produce.latency-p99.9-each-rack",),
    base=racks_run,
)
def slow_in_one_rack(run: Run) -> None:
    _slow(run, (run.frames["produce"]["broker_rack"] == "c") & (run.frames["produce"]["seq"] % 1500 == 2), S)


@defect(
    "one second in which all is slow, hidden in ten good ones", fails=("slo/produce.latency-p50-every-1s-of-steady",)
)
def one_bad_second(run: Run) -> None:
    run.slos("produce.latency p50 < 50ms in steady", "produce.latency p50 < 50ms in every 1s of steady")
    _slow(run, _meant(run, 9, 10), 200 * MS)


@defect(
    "a partition that stands still for 2.5 s, hidden by a good p95",
    fails=("slo/produce.unavailable-steady-each-partition",),
)
def one_partition_stalled(run: Run) -> None:
    run.slos("produce.latency p95 < 50ms in steady", "produce.unavailable < 2s in steady for each partition")
    for table in ("produce", "consume"):
        rows = run.frames[table]
        stalled = (rows["partition"] == 5) & rows["intended_us"].between(10 * S, 12_500_000)
        run.set(table, rows.index[stalled], done_us=12_600_000 + rows.loc[stalled, "seq"] + (table == "consume") * 9000)
    run.read_in_order()


@defect(
    "2 % of the records failed at once: slower than any threshold, whatever the rest took",
    fails=("slo/produce.latency-p99",),
)
def failures_in_a_p99(run: Run) -> None:
    run.slos("produce.latency p99 < 10s")
    rows = run.frames["produce"]
    failed = (rows["seq"] % 50 == 0) & (rows["intended_us"] >= 6 * S)
    run.set("produce", rows.index[failed], status="failed", error="MSG_SIZE_TOO_LARGE", offset=None)
    gone = (run.frames[name] for name in ("log", "consume"))
    for name, kept in zip(("log", "consume"), gone, strict=True):
        late = run.frames["produce"].loc[failed, ["producer_id", "seq"]]
        merged = kept.merge(late.assign(gone=True), on=["producer_id", "seq"], how="left")
        run.frames[name] = kept[merged["gone"].isna().to_numpy()]


@defect(
    "a client that succeeds in nothing for seven seconds",
    fails=("slo/produce.gap-fault", "slo/produce.throughput-every-2s-of-fault"),
    says="the longest time without",
)
def seven_seconds_of_nothing(run: Run) -> None:
    run.slos("produce.gap < 6s in fault", "produce.throughput >= 20/s in every 2s of fault")
    for table in ("produce", "consume"):
        rows = run.frames[table]
        silent = rows["intended_us"].between(26 * S, 33_200_000) & (rows["producer_id"] == 1)
        silent &= (table == "produce") | (rows["done_us"] < 33_200_000)
        run.set(table, rows.index[silent], done_us=33_200_000 + rows.loc[silent, "seq"] + (table == "consume") * 9000)
    run.read_in_order()


@defect("recovery of a killed broker that takes longer than allowed", fails=("slo/recovery-kill-1",))
def slow_to_recover(run: Run) -> None:
    run.slos("recovery < 5s after kill-1")
    _slow(run, _meant(run, 28, 38), 100 * MS)


@defect("a record delivered late, though acknowledged in time", fails=("slo/consume.latency-p95-steady",))
def delivered_late(run: Run) -> None:
    run.slos("consume.latency p95 < 1s in steady", "produce.latency p95 < 50ms in steady")
    rows = run.frames["consume"]
    late = (rows["arm"] == "patient") & rows["intended_us"].between(15 * S, 16 * S)
    run.set("consume", rows.index[late], done_us=17 * S + rows.loc[late, "offset"])
    run.read_in_order()
