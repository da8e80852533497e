"""Defects of the load: records that no process sent, or whose rows contradict the schedule."""

import pandas as pd

from aftershock.tests.unit.results.evidence_factory import LOAD_END_S, PARTITIONS, S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run
from aftershock.tests.unit.results.planted.worlds import commits_run, producers_run

TABLES = ("produce", "consume", "log")
RATE = 30
"""Records a second of each arm of the good run."""


def _never_sent(run: Run, producer_id: int, seqs: pd.Series | range, tables: tuple[str, ...] = TABLES) -> None:
    """Remove records from tables."""
    for table in tables:
        rows = run.frames[table]
        gone = (rows["producer_id"] == producer_id) & rows["seq"].isin(seqs)
        run.frames[table] = rows[~gone].reset_index(drop=True)


@defect(
    "a producer whose rows end four seconds before the load does, though nothing failed",
    unsure=("harness/load",),
    says="orders-patient-produce: 120 of 1500 records have no row (120 to orders from 45.97 to 50.00 s)",
)
def rows_end_early(run: Run) -> None:
    _never_sent(run, 1, range(46 * RATE, LOAD_END_S * RATE))


@defect(
    "three seconds in which no producer has a row",
    unsure=("harness/load",),
    says="orders-baseline-produce: 90 of 1500 records have no row (90 to orders from 41.97 to 45.00 s)",
)
def seconds_without_rows(run: Run) -> None:
    for producer_id in (0, 1):
        _never_sent(run, producer_id, range(42 * RATE, 45 * RATE))


@defect("one record that has no row", unsure=("harness/load",), says="1 of 1500 records have no row")
def one_never_sent(run: Run) -> None:
    _never_sent(run, 1, range(700, 701))


@defect(
    "the first two seconds of a producer without rows, before the steady phase",
    unsure=("harness/load",),
    says="60 to orders from 0.00 to 2.00 s",
)
def late_start(run: Run) -> None:
    _never_sent(run, 0, range(2 * RATE))


@defect(
    "a producer that sent none of its records to one of two topics",
    unsure=("harness/load",),
    says="orders-baseline-produce-2: 500 of 1000 records have no row (500 to returns from 0.00 to 50.00 s)",
    base=producers_run,
)
def topic_never_sent(run: Run) -> None:
    _never_sent(run, 1, range(1, 1000, 2))


@defect(
    "one of two producers without any row",
    unsure=("harness/load",),
    says="orders-baseline-produce-2: 1000 of 1000 records have no row (500 to orders from 0.00 to 50.00 s, 500 to",
    base=producers_run,
)
def producer_never_sent(run: Run) -> None:
    _never_sent(run, 1, range(1000))


@defect(
    "every third commit without a row: those of one group",
    unsure=("harness/load-commit",),
    says="orders-baseline-commit: 333 of 1000 commits have no row",
    base=commits_run,
)
def commits_never_sent(run: Run) -> None:
    _never_sent(run, 0, range(1, 1000, 3), ("produce",))


@defect(
    "a generator that waited for Kafka: its records are intended 100 ms later than the schedule has them",
    contradicts=("harness/load",),
    says="the evidence contradicts itself: orders-patient-produce: the intended times of its records 0 and 1499 are",
)
def schedule_slipped(run: Run) -> None:
    rows = run.frames["produce"]
    late = rows.index[(rows["producer_id"] == 1) & (rows["seq"] >= 42 * RATE)]
    times = {name: rows.loc[late, name] + 100_000 for name in ("intended_us", "sent_us", "done_us", "deadline_us")}
    run.set("produce", late, **times)
    read = run.frames["consume"]
    again = read.index[(read["producer_id"] == 1) & (read["seq"] >= 42 * RATE)]
    run.set("consume", again, done_us=read.loc[again, "done_us"] + 100_000)
    run.read_in_order()


@defect(
    "one row whose intended time was moved by 20 ms",
    contradicts=("harness/load",),
    says="differ from the schedule of 30/s, by -0.020000 s in total",
)
def intended_time_moved(run: Run) -> None:
    index = run.at("produce", 0, 700)
    run.set("produce", index, intended_us=run.get("produce", index)["intended_us"] - 20_000)


@defect(
    "a record with two rows of its producer",
    contradicts=("harness/load",),
    says="1 rows repeat a record to orders that has a row already",
)
def row_repeated(run: Run) -> None:
    run.add("produce", run.get("produce", run.at("produce", 0, 700)))


@defect(
    "records in the log of which their producer has no row",
    fails=("integrity/phantom",),
    contradicts=("harness/load",),
    says="30 records to orders are in the log, and have no row",
)
def rows_gone_records_there(run: Run) -> None:
    _never_sent(run, 1, range(42 * RATE, 43 * RATE), ("produce",))


@defect(
    "rows of an arm that the plan does not have",
    contradicts=("harness/load",),
    says="30 rows are those of clients that the plan does not have",
)
def arm_unknown(run: Run) -> None:
    row = run.get("produce", run.at("produce", 0, 700))
    run.add("produce", *[row | {"arm": "other", "producer_id": 7, "seq": seq, "status": "failed"} for seq in range(30)])


@defect("records that a producer sent before it got the late order to stop: no alarm")
def stopped_late(run: Run) -> None:
    step_us = S // RATE
    for number in range(3):
        for table in TABLES:
            of_arm = ("baseline", "patient") if table == "consume" else (None,)
            for arm in of_arm:
                row = run.get(table, run.at(table, 0, LOAD_END_S * RATE - PARTITIONS + number, arm))
                row |= {"seq": LOAD_END_S * RATE + number, "offset": row["offset"] + 2}
                if table != "log":
                    later = PARTITIONS * step_us
                    row |= {"intended_us": (LOAD_END_S * RATE + number) * S // RATE, "done_us": row["done_us"] + later}
                if table == "produce":
                    row |= {"sent_us": row["sent_us"] + PARTITIONS * step_us}
                if table == "consume":
                    row |= {"high_watermark": row["high_watermark"] + 2}
                run.add(table, row)


@defect("a producer that was down for two seconds, with a row for each record that was due: no alarm")
def down_for_two_seconds(run: Run) -> None:
    run.slos()
    seqs = range(42 * RATE, 44 * RATE)
    _never_sent(run, 1, seqs, ("consume", "log"))
    rows = run.frames["produce"]
    down = rows.index[(rows["producer_id"] == 1) & rows["seq"].isin(seqs)]
    never = {"sent_us": None, "offset": None, "attempts": None, "leader_epoch": None, "broker_id": None}
    run.set("produce", down, status="failed", error="CLIENT_DOWN", done_us=44 * S, **never)
    line = {"fault": "by-hand", "kind": "kill_client", "targets": {"clients": ["orders-patient-produce"]}}
    line |= {"undo": {"verb": "start_clients", "args": {}}}
    moments = {"injected": 42 * S, "healed": 44 * S}
    run.documents["journal"] += [line | {"state": state, "t_us": at_us} for state, at_us in moments.items()]


def _closed_loop(run: Run) -> None:
    section = run.documents["timeline"]["workloads"][0]["commit"]
    del section["rate_per_s"]
    section["in_flight"] = 4


@defect("a committer in a closed loop, which has no schedule: no alarm", base=commits_run)
def closed_loop(run: Run) -> None:
    _closed_loop(run)


@defect(
    "a committer in a closed loop that began its last commit 42 s before the end",
    unsure=("harness/load-commit",),
    says="1 of 161 commits have no row (1 to orders from 7.95 to 50.00 s)",
    base=commits_run,
)
def closed_loop_ended(run: Run) -> None:
    _closed_loop(run)
    rows = run.frames["produce"]
    run.drop("offsets", rows.index[rows["seq"] >= 160])
    _never_sent(run, 0, range(160, 1000), ("produce",))
