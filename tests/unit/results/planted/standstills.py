"""Clients that stand still for good, or that end by themselves, and clients that only look like it."""

from functools import cache
from typing import Any

import pandas as pd

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.obligations import ARM, delayed_run, killed_run
from aftershock.tests.unit.results.planted.stable_offsets import hanging_transaction_holds_readers_back, stable_run
from aftershock.tests.unit.results.planted.trust import starved_host
from aftershock.tests.unit.results.planted.world import Run

END_S, GAVE_UP_S = 50, 120
PARTITIONS = (3, 4, 5)


def _stop_reading(run: Run, from_s: float, *, idle_s: float = 40, partitions: tuple[int, ...] = PARTITIONS) -> None:
    """Let the reader get nothing more of some partitions, and give up at the end of the drain."""
    rows = run.frames["consume"]
    own = rows["arm"] == ARM
    ends = rows[own].groupby("partition")["offset"].max() + 1
    run.drop("consume", rows.index[own & rows["partition"].isin(partitions) & (rows["done_us"] >= from_s * S)])
    _give_up(run, {int(number): int(end) for number, end in ends.items()}, idle_s)


def _give_up(run: Run, ends: dict[int, int], idle_s: float) -> None:
    rows = run.frames["consume"]
    reached = rows[rows["arm"] == ARM].groupby("partition")["offset"].max() + 1
    positions = [["orders", number, int(reached.get(number, 0)), end] for number, end in ends.items()]
    line = {"event": "drain_incomplete", "arm": ARM, "workload": "orders", "op": "consume", "t_us": GAVE_UP_S * S}
    run.documents["events"].append(line | {"positions": positions, "read": 0, "idle_us": int(idle_s * S)})


@defect(
    "a consumer that never reads three of its six partitions to the end, beside one that reads all",
    fails=("obligation/stuck", "obligation/consume", "integrity/lost"),
    says="nothing more was delivered of orders/3, orders/4, orders/5",
    base=delayed_run,
)
def stops_reading_three_partitions(run: Run) -> None:
    _stop_reading(run, 40)


@defect(
    "the same on a starved host, which excuses a stall and no standstill for good",
    fails=("obligation/stuck", "integrity/lost"),
    unsure=("harness/host", "obligation/consume"),
    base=delayed_run,
)
def stops_reading_on_a_starved_host(run: Run) -> None:
    starved_host(run)
    _stop_reading(run, 40)


@defect(
    "a consumer that is slow, but reads on in the drain until its time is over: no verdict on what it did not reach",
    unsure=("integrity/lost",),
    base=delayed_run,
)
def reads_on_slowly(run: Run) -> None:
    rows = run.frames["consume"]
    own = rows["arm"] == ARM
    ends = rows[own].groupby("partition")["offset"].max() + 1
    late = rows.index[own & (rows["done_us"] >= 40 * S)]
    # a twelfth of the load is read, each record later than the one before
    since_us = rows.loc[late, "done_us"] - 40 * S
    run.set("consume", late, done_us=40 * S + since_us * 12)
    rows = run.frames["consume"]
    run.drop("consume", rows.index[(rows["arm"] == ARM) & (rows["done_us"] >= GAVE_UP_S * S)])
    run.read_in_order()
    _give_up(run, {int(number): int(end) for number, end in ends.items()}, 0.2)


@defect(
    "a consumer that is frozen by a fault that was never healed: the fault's witness tells it",
    unsure=("exposure/latency-1", "witness/latency-1", "integrity/lost", "obligation/consume"),
    base=delayed_run,
)
def frozen_to_the_end(run: Run) -> None:
    for step in run.documents["timeline"]["steps"]:
        step |= {"kind": "pause_client", "takes": "members"}
    worker = f"orders-{ARM}-consume"
    journal = run.documents["journal"]
    journal[:] = [line for line in journal if line["state"] not in ("healing", "healed")]
    for line in journal:
        line["targets"] = {"clients": [worker]}
        line["undo"] = {"verb": "resume_clients", "args": {}}
    _stop_reading(run, 16, partitions=tuple(range(6)))
    run.documents["events"][-1]["t_us"] = 90 * S  # a minute after the fault, and no more than that


@defect(
    "a reader that a hanging transaction of another client holds back is not stuck",
    fails=("obligation/stable_offset", "slo/stable_offset.lag-p50"),
    unsure=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
    base=stable_run,
)
def held_back_by_another(run: Run) -> None:
    hanging_transaction_holds_readers_back(run)
    (line,) = [line for line in run.documents["events"] if line["event"] == "open_transactions"]
    line |= {"t_us": (END_S + 1) * S}
    for arm in ("baseline", "patient"):
        given_up = {"event": "drain_incomplete", "arm": arm, "workload": "orders", "op": "consume", "read": 0}
        run.documents["events"].append(
            given_up | {"t_us": (END_S + 60) * S, "positions": line["positions"], "idle_us": 40 * S}
        )


@cache
def grouped_run() -> Run:
    """Return a run whose readers are members of groups."""
    run = delayed_run().copy("grouped")
    run.documents["timeline"]["workloads"][0]["consume"]["group"] = "readers"
    return run


def _moved(run: Run, event: str, at_s: float) -> None:
    places = [["orders", number] for number in PARTITIONS]
    names = {"workload": "orders", "arm": ARM, "op": "consume", "worker": f"orders-{ARM}-consume"}
    run.documents["events"].append({"t_us": int(at_s * S), "event": event, **names, "partitions": places})


@defect(
    "a group that gave up three partitions 76 s before the end, and nobody got them",
    fails=("obligation/stuck", "obligation/consume", "integrity/lost"),
    base=grouped_run,
)
def nobody_owns_them(run: Run) -> None:
    _stop_reading(run, 44)
    _moved(run, "revoked", 44)


@defect(
    "a group whose member got three partitions again 10 s before it was given up: a rebalance, not a standstill",
    fails=("obligation/consume", "integrity/lost"),
    base=grouped_run,
)
def got_them_again_at_last(run: Run) -> None:
    _stop_reading(run, 44)
    _moved(run, "revoked", 44)
    _moved(run, "assigned", GAVE_UP_S - 10)


def _unanswered(run: Run, from_s: float, to_s: float = 60) -> None:
    """Let the program give no result for what it sends in a time, and send none of it."""
    rows = run.frames["produce"]
    hit = (rows["arm"] == ARM) & rows["intended_us"].between(int(from_s * S), int(to_s * S))
    nothing = {"offset": None, "partition": None, "done_us": None, "error": None}
    run.set("produce", rows.index[hit], status="in_doubt", **nothing)
    gone = pd.MultiIndex.from_frame(rows.loc[hit, ["producer_id", "seq"]])
    for name in ("log", "consume"):
        kept = run.frames[name]
        run.frames[name] = kept[~pd.MultiIndex.from_frame(kept[["producer_id", "seq"]]).isin(gone)]


@defect(
    "a producer that gives no result any more, on a starved host, while another one is served",
    fails=("obligation/stuck",),
    unsure=("harness/host", "obligation/produce"),
    says="while orders-baseline-produce had successes",
    base=delayed_run,
)
def stops_answering(run: Run) -> None:
    starved_host(run)
    _unanswered(run, 40)


@defect("a producer that gives no result for some records, and goes on: not stuck", base=delayed_run)
def forgets_some_results(run: Run) -> None:
    _unanswered(run, 40, 42)


@defect(
    "the same producer, whose process a fault had killed: what was in flight has no result",
    unsure=("exposure/latency-1",),
    base=delayed_run,
)
def killed_with_records_in_flight(run: Run) -> None:
    for step in run.documents["timeline"]["steps"]:
        step |= {"kind": "kill_client", "takes": "members"}
    for line in run.documents["journal"]:
        line["targets"] = {"clients": [f"orders-{ARM}-produce"]}
        line["undo"] = {"verb": "start_clients", "args": {}}
    _unanswered(run, 15.8, 16.1)


def _die(run: Run, from_s: float, **event: object) -> None:
    """Let the producer's program end by itself, so that what is due afterwards is not sent."""
    _unanswered(run, from_s)
    rows = run.frames["produce"]
    after = rows.index[(rows["arm"] == ARM) & (rows["intended_us"] >= from_s * S)]
    done_us = rows.loc[after, "intended_us"] + 20_000
    run.set("produce", after, status="failed", error="CLIENT_DOWN", sent_us=None, attempts=None, done_us=done_us)
    worker = {"workload": "orders", "arm": ARM, "op": "produce", "worker": f"orders-{ARM}-produce"}
    line = {"t_us": int(from_s * S), "event": "client_died", **worker, "lines": ["Segmentation fault"]}
    run.documents["events"].append(line | event)


@defect(
    "a producer's program that crashes: it fails, and its neighbour passes",
    fails=("client/died", "obligation/produce"),
    says='was killed by signal 11: "Segmentation fault"',
    base=delayed_run,
)
def crashes(run: Run) -> None:
    _die(run, 40, status=-11, why="the client was killed by signal 11")


@defect(
    "a program that another process killed",
    fails=("obligation/produce",),
    unsure=("client/died",),
    says="that signal comes from another process",
    base=delayed_run,
)
def killed_by_a_stranger(run: Run) -> None:
    _die(run, 40, status=-9, why="the client was killed by signal 9")


@defect(
    "a consumer's program that exits: nobody knows what it would have read",
    fails=("client/died", "obligation/consume"),
    unsure=("integrity/lost",),
    says="ended with exit status 3",
    base=killed_run,
)
def a_reader_exits(run: Run) -> None:
    _stop_reading(run, 44, partitions=tuple(range(6)))
    del run.documents["events"][-1]["idle_us"]
    worker = {"workload": "orders", "arm": ARM, "op": "consume", "worker": f"orders-{ARM}-consume"}
    line = {"t_us": 44 * S, "event": "client_died", **worker, "lines": [], "status": 3}
    run.documents["events"].append(line | {"why": "the client ended with exit status 3"})


@defect(
    "a program that ends before the warm-up is over: its success is judged, and its generator had nothing to send",
    fails=("client/died", "obligation/produce", "slo/produce.success"),
    base=delayed_run,
)
def crashes_in_the_warm_up(run: Run) -> None:
    run.slos("produce.success >= 99%")
    _die(run, 3, status=3, why="the client ended with exit status 3")


@defect(
    "a program that crashes while it closes: only that fails",
    fails=("client/died",),
    says="was killed by signal 11 while it closed",
    base=delayed_run,
)
def crashes_while_it_closes(run: Run) -> None:
    worker = {"workload": "orders", "arm": ARM, "op": "produce", "worker": f"orders-{ARM}-produce"}
    line = {"t_us": 75 * S, "event": "client_died", **worker, "lines": [], "status": -11, "closing": True}
    run.documents["events"].append(line | {"why": "the client was killed by signal 11 while it closed"})


@cache
def told_run() -> Run:
    """Return a run of groups with SLOs on what happened to its clients, and the identities of its producers."""
    run = delayed_run().copy("told")
    run.documents["timeline"]["workloads"][0]["consume"]["group"] = "readers"
    for number in (0, 1):
        _identity(run, 1, number, epoch=0)
    run.slos("assignment.lost <= 0", "sequence.restarts <= 0", "produce.fatal <= 0", "consume.fatal <= 0")
    return run


def _identity(run: Run, at_s: float, number: int, *, epoch: int) -> None:
    place = {"topic": "orders", "partition": 0, "offset": 7}
    ids = {"producer_id": number, "kafka_producer_id": 4000 + number, "kafka_epoch": epoch}
    line = {"t_us": int(at_s * S), "event": "producer_identity", "arm": None}
    run.documents["events"].append(line | ids | place)


def _told(run: Run, op: str, event: str, at_s: float, **details: Any) -> None:
    names = {"workload": "orders", "arm": ARM, "op": op, "worker": f"orders-{ARM}-{op}"}
    run.documents["events"].append({"t_us": int(at_s * S), "event": event, **names, **details})


@defect(
    "a producer whose sequence numbers begin anew in the steady phase, under another epoch",
    fails=("slo/sequence.restarts",),
    base=told_run,
)
def begins_anew(run: Run) -> None:
    _identity(run, 12, 1, epoch=1)


@defect("the same in the warm-up: no SLO is about that time", base=told_run)
def begins_anew_in_the_warm_up(run: Run) -> None:
    _identity(run, 4, 1, epoch=1)


@defect(
    "a producer whose process a fault had killed: no restart",
    unsure=(
        *("exposure/latency-1", "slo/assignment.lost", "slo/consume.fatal"),
        *("slo/produce.fatal", "slo/sequence.restarts"),
    ),
    base=told_run,
)
def begins_anew_after_a_kill(run: Run) -> None:
    for step in run.documents["timeline"]["steps"]:
        step |= {"kind": "kill_client", "takes": "members"}
    for line in run.documents["journal"]:
        line["targets"] = {"clients": [f"orders-{ARM}-produce"]}
        line["undo"] = {"verb": "start_clients", "args": {}}
    _identity(run, 24.5, 1, epoch=1)


@defect("a log in which no identity of a producer was read", unsure=("slo/sequence.restarts",), base=told_run)
def identities_unknown(run: Run) -> None:
    events = run.documents["events"]
    events[:] = [line for line in events if line["event"] != "producer_identity"]


@defect("a consumer that loses two partitions, and gets them back", fails=("slo/assignment.lost",), base=told_run)
def loses_partitions(run: Run) -> None:
    places = [["orders", 0], ["orders", 1]]
    _told(run, "consume", "lost", 30, partitions=places)
    _told(run, "consume", "assigned", 30.1, partitions=places)


@defect("a producer that reports a fatal error", fails=("slo/produce.fatal",), base=told_run)
def reports_a_fatal_error(run: Run) -> None:
    _told(run, "produce", "client_error", 30, error="_FATAL", detail="out of order", fatal=True)


@defect("a producer that reports errors that are not fatal: no alarm", base=told_run)
def reports_errors(run: Run) -> None:
    _told(run, "produce", "client_error", 30, error="_TRANSPORT", detail="gone", fatal=False)
