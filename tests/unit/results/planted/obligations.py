"""Defects of progress: clients that stand still although brokers could serve them, and stalls that are explained."""

from functools import cache

import pandas as pd

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run, good_run
from aftershock.tests.unit.results.planted.worlds import without_fault

ARM = "patient"
OF_READERS = ("backward", "beyond", "collision", "corrupt", "duplicate", "lost", "order", "phantom", "skipped")
"""Rules of integrity that have nothing to hold for a reader without deliveries."""


def _librdkafka(run: Run) -> Run:
    """Let both arms be librdkafka with its own settings, which let a client wait longest."""
    for arm in run.documents["timeline"]["workloads"][0]["arms"].values():
        arm["client"] = "confluent"
    run.slos()
    return run


@cache
def delayed_run() -> Run:
    """Return a run with 50 ms of latency from 16 to 24 s as its only fault."""
    run = _librdkafka(good_run().copy("delayed"))
    for fault in ("kill-1", "reassign-1"):
        without_fault(run, fault)
    return run


@cache
def killed_run() -> Run:
    """Return a run in which broker 1 is killed at 26 s and back at 34 s."""
    run = _librdkafka(good_run().copy("killed"))
    for fault in ("latency-1", "reassign-1"):
        without_fault(run, fault)
    return run


def _frozen(run: Run) -> None:
    """Turn the kill into a pause, of which the client's connections tell nothing, with a session of 3 s."""
    for step in run.documents["timeline"]["steps"]:
        step |= {"kind": "pause", "told": False, "takes": "nodes"}
    for line in run.documents["journal"]:
        line["targets"]["roles"] = {"controller": False}
    run.documents["run"]["profile"] |= {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


def _hang(run: Run, from_s: float, to_s: float) -> None:
    """Let the producer get no acknowledgement between two moments; its records are written and read in time."""
    rows = run.frames["produce"]
    hit = (rows["arm"] == ARM) & rows["done_us"].between(int(from_s * S), int(to_s * S))
    run.set("produce", rows.index[hit], done_us=int(to_s * S) + rows.loc[hit, "seq"])


def _fail(run: Run, from_s: float, to_s: float, error: str = "_ALL_BROKERS_DOWN", after_us: int = 100_000) -> None:
    """Let each record of the producer that is due between two moments fail, by default at once."""
    rows = run.frames["produce"]
    hit = (rows["arm"] == ARM) & rows["intended_us"].between(int(from_s * S), int(to_s * S) - 1)
    done_us = rows.loc[hit, "intended_us"] + after_us
    run.set("produce", rows.index[hit], status="failed", error=error, offset=None, done_us=done_us)
    gone = pd.MultiIndex.from_frame(rows.loc[hit, ["producer_id", "seq"]])
    for name in ("log", "consume"):
        kept = run.frames[name]
        run.frames[name] = kept[~pd.MultiIndex.from_frame(kept[["producer_id", "seq"]]).isin(gone)]


@defect(
    "a hang of 20 s after 50 ms of latency, which loses no request",
    fails=("obligation/produce",),
    base=delayed_run,
)
def hangs_after_latency(run: Run) -> None:
    _hang(run, 24.2, 44.2)


@defect("a hang of 4 s while traffic is late: no alarm", base=delayed_run)
def hangs_shortly(run: Run) -> None:
    _hang(run, 18, 22)


@defect(
    "every record fails at once from 2 s after the return of a killed broker to the end",
    fails=("obligation/produce", "obligation/deadline"),
    says="that excuses waiting, and here no record waited for more than 0.1 s",
    base=killed_run,
)
def fails_after_the_return(run: Run) -> None:
    _fail(run, 36, 50)


@defect(
    "every record fails at once while too few brokers run: no progress is owed, but patience",
    fails=("obligation/deadline",),
    base=killed_run,
)
def fails_without_quorum(run: Run) -> None:
    for line in run.documents["journal"]:
        line["targets"]["brokers"] = [1, 2]
    _fail(run, 26.2, 33.8)


@defect("a hang that a frozen broker explains, until it runs again: no alarm", base=killed_run)
def hangs_at_a_frozen_broker(run: Run) -> None:
    _frozen(run)
    _hang(run, 26.1, 34.5)


@defect(
    "the same hang and ten seconds more, of a client that waits for an answer for one second only",
    fails=("obligation/produce",),
    base=killed_run,
)
def hangs_longer_than_its_timeout(run: Run) -> None:
    _frozen(run)
    run.arms["arms"][ARM]["settings"] = {"socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 1000}
    _hang(run, 26.1, 44.5)


def _refused(run: Run) -> None:
    """Turn the latency into a rule that refuses each Produce request, of a program with settings of its own."""
    rule = {"do": "answer_error", "api": "Produce", "error": 19}
    for line in run.documents["journal"]:
        line["targets"]["roles"] = {"rule": rule}
    run.arms["arms"][ARM] |= {"client": "exec", "settings": {}}


@defect(
    "a program whose records all fail at once after a protocol fault, on healthy brokers",
    fails=("obligation/produce", "obligation/deadline"),
    base=delayed_run,
)
def fails_after_a_protocol_fault(run: Run) -> None:
    _refused(run)
    _fail(run, 24, 50)


@defect(
    "librdkafka with a fatal error after its requests were answered `timed out`: no back-off lasts to the end",
    fails=("obligation/produce", "obligation/deadline"),
    base=delayed_run,
)
def fails_for_good_after_time_outs(run: Run) -> None:
    for line in run.documents["journal"]:
        line["targets"]["roles"] = {"rule": {"do": "answer_error", "api": "Produce", "error": 7}}
    _fail(run, 20, 50)


@defect(
    "a program whose records all fail at once while each of its requests is refused: no progress is owed, but patience",
    fails=("obligation/deadline",),
    base=delayed_run,
)
def fails_while_refused(run: Run) -> None:
    _refused(run)
    _fail(run, 16.2, 23.9)


@defect(
    "a consumer that never reads anything, which also keeps the warm-up from settling",
    fails=("obligation/consume",),
    unsure=("harness/warmup", "integrity/coverage", *(f"integrity/{rule}" for rule in OF_READERS)),
    base=delayed_run,
)
def never_reads(run: Run) -> None:
    rows = run.frames["consume"]
    unread = rows[rows["arm"] == ARM]
    positions = unread.groupby("partition")["offset"].max()
    run.drop("consume", unread.index)
    line = {"event": "drain_incomplete", "arm": ARM, "workload": "orders", "op": "consume", "t_us": 90 * S}
    run.documents["events"].append(
        line | {"positions": [["orders", int(n), 0, int(end) + 1] for n, end in positions.items()]}
    )
    run.documents["run"]["warmup"] |= {"settled": False, "why": "orders-patient-consume has no latency"}


def _given_up(run: Run, error: str = "KAFKA_STORAGE_ERROR", after_us: int = 400_000) -> None:
    """Let the records of one second fail under a latency of 50 ms."""
    _fail(run, 20, 21, error, after_us)


@defect(
    "records are given up after 0.4 s of 30 with an error that can be repeated",
    fails=("obligation/deadline",),
    says="the first after 0.40 s, with errors that can be repeated",
    base=delayed_run,
)
def given_up_early(run: Run) -> None:
    _given_up(run)


@defect("records are given up in the second half of their deadline: no alarm", base=delayed_run)
def given_up_late(run: Run) -> None:
    _given_up(run, after_us=15 * S + 1_000)


@defect("records fail at once with an error that no repetition mends: no alarm", base=delayed_run)
def refused_for_good(run: Run) -> None:
    _given_up(run, "MESSAGE_TOO_LARGE")


@defect("records fail at once because their topic is unknown, which a client may believe: no alarm", base=delayed_run)
def given_up_as_unknown(run: Run) -> None:
    _given_up(run, "UNKNOWN_TOPIC_OR_PARTITION")


@defect("records are given up at once by a producer whose user set its repetitions: no alarm", base=delayed_run)
def given_up_as_asked(run: Run) -> None:
    for arm in run.documents["timeline"]["workloads"][0]["arms"].values():
        arm["settings"] = {**(arm.get("settings") or {}), "message.send.max.retries": "0"}
    _given_up(run)


def _connects(run: Run, connections: int, *seconds: int) -> None:
    """Let a consumer open connections to broker 1, as the wire proxy counts them."""
    line = {"event": "connections_opened", "worker": "orders-patient-consume", "node_id": 1}
    run.documents["events"] += [line | {"t_us": second * S, "connections": connections} for second in seconds]


@defect(
    "a consumer that connects to a broker 300 times a second for three seconds",
    fails=("obligation/backoff",),
    says="opened 900 connections to broker 1 from 20 to 23 s; with its back-off between them, there are no more than",
    base=delayed_run,
)
def connects_without_a_pause(run: Run) -> None:
    _connects(run, 300, 20, 21, 22)


@defect("a consumer that connects to a broker often for two seconds, and again later: no alarm", base=delayed_run)
def connects_in_bursts(run: Run) -> None:
    _connects(run, 300, 20, 21, 23, 24)


@defect("a consumer that connects to a broker fifty times a second: no alarm", base=delayed_run)
def connects_with_several_purposes(run: Run) -> None:
    _connects(run, 50, *range(18, 24))
