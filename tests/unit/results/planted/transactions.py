"""Defects of transactions: what producers know of them, the markers in the log, and what readers got."""

from collections.abc import Callable
from functools import cache

import pandas as pd

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.obligations import delayed_run
from aftershock.tests.unit.results.planted.world import MARGIN, SLOS, Run, good_run, typed

RECORDS = 10
PID = 1_000  # producer id in Kafka of the run's producer 0
COMMITTED, ABORTED = 20, 23
"""Numbers of two transactions of each producer, the one committed and the other aborted."""


def _aborts(number: int) -> bool:
    return number % 5 == ABORTED % 5


def _transacting(name: str, isolation: str, base: Callable[[], Run] = good_run, records: int = RECORDS) -> Run:
    """Return a run in transactions of version 2, a fifth of which are aborted.

    Offsets are doubled, so that markers fit in; each record is a batch. Readers of committed records lack the aborted.
    """
    run = base().copy(name)
    workload = run.documents["timeline"]["workloads"][0]
    workload["produce"]["transaction"] = {"records": records, "abort": 0.2, "timeout_ms": 10_000}
    workload["consume"]["isolation"] = isolation
    for frame in ("produce", "consume", "log"):
        rows = run.frames[frame]
        marks = {"high_watermark": 2 * rows["offset"] + MARGIN} if frame == "consume" else {}
        run.frames[frame] = rows.assign(offset=2 * rows["offset"], **marks)
    if isolation == "read_committed":
        rows = run.frames["consume"]
        run.frames["consume"] = rows[(rows["seq"] // records % 5 != ABORTED % 5).astype(bool)]
    log = run.frames["log"].assign(number=run.frames["log"]["seq"] // records)
    place = {"topic": log["topic"], "topic_id": log["topic_id"], "partition": log["partition"], "leader_epoch": 0}
    data = pd.DataFrame(
        {
            **place,
            "first_offset": log["offset"],
            "last_offset": log["offset"],
            "kafka_producer_id": PID + log["producer_id"],
            "kafka_epoch": log["number"],
            "base_sequence": log["seq"],
            "transactional": True,
        }
    )
    by_partition = log.groupby(["topic", "topic_id", "partition", "producer_id", "number"], as_index=False)
    ends = by_partition["offset"].max()
    markers = pd.DataFrame(
        {
            "topic": ends["topic"],
            "topic_id": ends["topic_id"],
            "partition": ends["partition"],
            "leader_epoch": 0,
            "first_offset": ends["offset"] + 1,
            "last_offset": ends["offset"] + 1,
            "kafka_producer_id": PID + ends["producer_id"],
            "kafka_epoch": ends["number"] + 1,
            "transactional": True,
            "marker": ["abort" if _aborts(number) else "commit" for number in ends["number"]],
            "coordinator_epoch": 0,
        }
    )
    run.frames["batches"] = typed("batches", pd.concat([data, markers], ignore_index=True))
    sent = run.frames["produce"].assign(number=run.frames["produce"]["seq"] // records)
    own = sent.groupby(["workload", "arm", "client", "producer_id", "number"], as_index=False).agg(
        first_seq=("seq", "min"),
        last_seq=("seq", "max"),
        due_us=("intended_us", "max"),
        begin_us=("intended_us", "min"),
        sent_us=("sent_us", "min"),
        asked_us=("done_us", "max"),
    )
    intended = ["abort" if _aborts(number) else "commit" for number in own["number"]]
    own = own.assign(
        intended=intended,
        outcome=["aborted" if word == "abort" else "committed" for word in intended],
        commit_asked=[word == "commit" for word in intended],
        done_us=own["asked_us"] + 5_000,
        kafka_producer_id=PID + own["producer_id"],
        kafka_epoch=own["number"],
        version=2,
    )
    run.frames["transactions"] = typed("transactions", own)
    run.slos(*SLOS, "transaction.latency p90 < 5s", "transaction.success >= 99%")
    return run


@cache
def committed_run() -> Run:
    """Return a run whose readers read committed records only."""
    return _transacting("committed", "read_committed")


@cache
def uncommitted_run() -> Run:
    """Return a run whose readers get the records of aborted transactions too, by right."""
    return _transacting("uncommitted", "read_uncommitted")


@cache
def calm_run() -> Run:
    """Return a run in transactions of one record, whose only fault is a latency of 50 ms from 16 to 24 s."""
    run = _transacting("calm", "read_uncommitted", delayed_run, 1)
    run.slos()
    return run


def _transaction(run: Run, number: int, **changes: object) -> None:
    """Change what producer 0 knows of a transaction."""
    rows = run.frames["transactions"]
    run.set("transactions", rows.index[(rows["producer_id"] == 0) & (rows["number"] == number)], **changes)


def _markers(run: Run, number: int) -> "pd.Index[int]":
    """Return the markers of a transaction of producer 0, by partition."""
    rows = run.frames["batches"]
    found = (rows["kafka_producer_id"] == PID) & (rows["kafka_epoch"] == number + 1) & rows["marker"].notna()
    return rows.index[found]


def _seqs(run: Run, number: int, partition: object = None) -> list[int]:
    rows = run.frames["log"]
    own = (rows["producer_id"] == 0) & (rows["seq"] // RECORDS == number)
    own &= True if partition is None else rows["partition"] == partition
    return [int(seq) for seq in rows.loc[own, "seq"]]


def _hide(run: Run, seqs: list[int]) -> None:
    """Remove all deliveries of records of producer 0."""
    rows = run.frames["consume"]
    run.drop("consume", rows.index[(rows["producer_id"] == 0) & rows["seq"].isin(seqs)])


def _deliver(run: Run, seqs: list[int]) -> None:
    """Deliver records of producer 0 to both readers, as if they had been committed."""
    like = uncommitted_run().frames["consume"]
    rows = like[(like["producer_id"] == 0) & like["seq"].isin(seqs)]
    run.add("consume", *[{str(key): value for key, value in row.items()} for row in rows.to_dict("records")])


def exchange(run: Run) -> None:
    """Let the committed transactions of producers 0 and 1 be in another order in one of their partitions."""
    log, batches = run.frames["log"], run.frames["batches"]
    seq = COMMITTED * RECORDS + 4  # the only record of each in its partition
    place = log.loc[run.at("log", 0, seq), "partition"]
    offsets = [int(log.loc[run.at("log", producer, seq), "offset"]) for producer in (0, 1)]
    for frame in ("produce", "consume", "log"):
        rows = run.frames[frame]
        own = [rows.index[(rows["producer_id"] == producer) & (rows["seq"] == seq)] for producer in (0, 1)]
        for index, offset in zip(own, reversed(offsets), strict=True):
            run.set(frame, index, offset=offset)
    for shift in (0, 1):  # the record, and the marker behind it
        first, second = (
            batches.index[(batches["partition"] == place) & (batches["first_offset"] == offset + shift)][0]
            for offset in offsets
        )
        of_first, of_second = (run.get("batches", row)["kafka_producer_id"] for row in (first, second))
        run.set("batches", first, kafka_producer_id=of_second)
        run.set("batches", second, kafka_producer_id=of_first)
    run.read_in_order()


@defect(
    "a record of an aborted transaction, delivered to a reader of committed records",
    fails=("integrity/aborted_read",),
    base=committed_run,
)
def aborted_delivered(run: Run) -> None:
    _deliver(run, _seqs(run, ABORTED)[:1])


@defect(
    "a record of an aborted transaction, not delivered to a reader of uncommitted records: permitted",
    base=uncommitted_run,
)
def aborted_not_delivered(run: Run) -> None:
    _hide(run, _seqs(run, ABORTED)[:1])


@defect(
    "a committed record, not delivered to readers of committed records",
    fails=("integrity/lost", "slo/lost"),
    base=committed_run,
)
def committed_not_delivered(run: Run) -> None:
    _hide(run, _seqs(run, COMMITTED)[:1])


@defect(
    "a transaction in doubt, committed in one partition and aborted in another",
    fails=("integrity/torn",),
    base=committed_run,
)
def torn_in_doubt(run: Run) -> None:
    _transaction(run, COMMITTED, outcome="in_doubt")
    marker = _markers(run, COMMITTED)[0]
    run.set("batches", marker, marker="abort")
    _hide(run, _seqs(run, COMMITTED, run.get("batches", marker)["partition"]))


@defect(
    "an acknowledged transaction, aborted in one partition, whose records were delivered",
    fails=("integrity/torn", "integrity/lost_commit", "integrity/lost", "integrity/aborted_read", "slo/lost"),
    base=committed_run,
)
def torn_committed(run: Run) -> None:
    run.set("batches", _markers(run, COMMITTED)[0], marker="abort")


@defect("a transaction in doubt that was committed: permitted", base=committed_run)
def in_doubt_committed(run: Run) -> None:
    _transaction(run, COMMITTED, outcome="in_doubt")


@defect("a transaction in doubt that was aborted: permitted", base=committed_run)
def in_doubt_aborted(run: Run) -> None:
    _transaction(run, COMMITTED, outcome="in_doubt")
    run.set("batches", _markers(run, COMMITTED), marker="abort")
    _hide(run, _seqs(run, COMMITTED))


@defect(
    "an acknowledged commit of which the log has only ABORT markers",
    fails=("integrity/lost_commit", "integrity/lost", "slo/lost"),
    base=committed_run,
)
def commit_aborted(run: Run) -> None:
    run.set("batches", _markers(run, COMMITTED), marker="abort")
    _hide(run, _seqs(run, COMMITTED))


@defect(
    "an acknowledged commit of which one record is missing in the log",
    fails=("integrity/lost_commit", "integrity/torn", "integrity/lost", "slo/lost"),
    base=committed_run,
)
def commit_without_a_record(run: Run) -> None:
    (seq, *_) = _seqs(run, COMMITTED)
    _hide(run, [seq])
    run.drop("log", run.at("log", 0, seq))


@defect("an acknowledged abort of which the log has COMMIT markers", fails=("integrity/unaborted",), base=committed_run)
def abort_committed(run: Run) -> None:
    run.set("batches", _markers(run, ABORTED), marker="commit")
    _deliver(run, _seqs(run, ABORTED))
    run.read_in_order()


@defect(
    "a transaction whose commit was never asked for, and that is committed",
    fails=("integrity/unaborted",),
    base=committed_run,
)
def never_asked(run: Run) -> None:
    _transaction(run, COMMITTED, outcome="failed", commit_asked=False)


@defect(
    "a producer aborts after a commit without an answer, and the commit has won, with version 1: permitted",
    says="on_commit_timeout",
    base=committed_run,
)
def abort_after_a_commit(run: Run) -> None:
    _transaction(run, COMMITTED, outcome="aborted", commit_asked=True, version=1)


@defect("the same with version 2", fails=("integrity/unaborted",), base=committed_run)
def abort_after_a_commit_of_version_2(run: Run) -> None:
    _transaction(run, COMMITTED, outcome="aborted", commit_asked=True)


@defect(
    "a batch of a fenced producer behind a marker with a higher epoch",
    fails=("integrity/fenced_write",),
    base=committed_run,
)
def fenced_batch(run: Run) -> None:
    rows = run.frames["batches"]
    own = (rows["kafka_producer_id"] == PID) & (rows["kafka_epoch"] == COMMITTED) & rows["marker"].isna()
    run.set("batches", rows.index[own][0], kafka_epoch=COMMITTED - 10)


@defect("a producer with a lower epoch than another one: permitted", base=committed_run)
def other_producers_epoch(run: Run) -> None:
    rows = run.frames["batches"]
    own = rows["kafka_producer_id"] == PID
    run.set("batches", rows.index[own], kafka_epoch=rows.loc[own, "kafka_epoch"] + 900)


@defect(
    "a transaction without a marker in one partition",
    unsure=("integrity/torn", "integrity/lost_commit", "integrity/unaborted"),
    base=committed_run,
)
def never_ended(run: Run) -> None:
    last = int(run.frames["transactions"].query("producer_id == 0")["number"].max())
    last -= _aborts(last)
    for number in range(last, last + 2):
        if len(markers := _markers(run, number)):
            _transaction(run, number, outcome="in_doubt")
            seqs = _seqs(run, number, run.get("batches", markers[0])["partition"])
            run.drop("batches", markers[:1])
            _hide(run, seqs)


@defect(
    "a record of a transaction that has not ended, delivered to readers of committed records",
    fails=("integrity/aborted_read",),
    unsure=("integrity/torn", "integrity/lost_commit", "integrity/unaborted"),
    base=committed_run,
)
def open_delivered(run: Run) -> None:
    never_ended(run)
    like = committed_run().frames["consume"]
    gone = ~pd.MultiIndex.from_frame(like[["arm", "producer_id", "seq"]]).isin(
        pd.MultiIndex.from_frame(run.frames["consume"][["arm", "producer_id", "seq"]])
    )
    run.add("consume", *[{str(key): value for key, value in row.items()} for row in like[gone].to_dict("records")])
    run.read_in_order()


@defect(
    "a record of an aborted transaction, written outside of it: everybody reads it",
    fails=("integrity/unaborted", "integrity/torn"),
    base=committed_run,
)
def aborted_outside(run: Run) -> None:
    (seq, *_) = _seqs(run, ABORTED)
    _outside(run, ABORTED, [seq])
    _deliver(run, [seq])
    run.read_in_order()


@defect(
    "an aborted transaction, all of whose records were written outside of it",
    fails=("integrity/unaborted", "integrity/torn"),
    base=committed_run,
)
def all_aborted_outside(run: Run) -> None:
    seqs = _seqs(run, ABORTED)
    _outside(run, ABORTED, seqs)
    run.drop("batches", _markers(run, ABORTED))
    _deliver(run, seqs)
    run.read_in_order()


@defect(
    "a committed transaction with a record that was written outside of it, which readers get before the commit",
    fails=("integrity/torn", "integrity/lost_commit"),
    base=committed_run,
)
def committed_outside(run: Run) -> None:
    _outside(run, COMMITTED, _seqs(run, COMMITTED)[:1])


def _outside(run: Run, number: int, seqs: list[int]) -> None:
    """Let records of producer 0 be written outside of their transaction."""
    rows = run.frames["batches"]
    own = (rows["kafka_producer_id"] == PID) & (rows["kafka_epoch"] == number) & rows["base_sequence"].isin(seqs)
    run.set("batches", rows.index[own & rows["marker"].isna()], transactional=False)


@defect("commits that take twenty seconds", fails=("slo/transaction.latency-p90",), base=committed_run)
def slow_commits(run: Run) -> None:
    rows = run.frames["transactions"]
    slow = rows.index[rows["intended"] == "commit"]
    run.set("transactions", slow, done_us=rows.loc[slow, "done_us"] + 20_000_000)


@defect("a tenth of the transactions in doubt", fails=("slo/transaction.success",), base=committed_run)
def many_in_doubt(run: Run) -> None:
    rows = run.frames["transactions"]
    run.set("transactions", rows.index[rows["number"] % 10 == COMMITTED % 10], outcome="in_doubt", done_us=None)


NOTHING = (
    "backward",
    "beyond",
    "collision",
    "corrupt",
    "coverage",
    "duplicate",
    "lost",
    "misplaced",
    "order",
    "phantom",
)
"""Rules that have nothing to judge if no record was committed."""


@defect(
    "all transactions aborted by their producers: nothing was committed",
    unsure=(
        *("slo/consume.latency-p99", "slo/lost", "obligation/consume", "integrity/skipped"),
        *(f"integrity/{rule}" for rule in NOTHING),
    ),
    base=committed_run,
)
def nothing_committed(run: Run) -> None:
    own, batches = run.frames["transactions"], run.frames["batches"]
    run.set("transactions", own.index, outcome="aborted", intended="abort", commit_asked=False)
    run.set("batches", batches.index[batches["marker"].notna()], marker="abort")
    run.drop("consume", run.frames["consume"].index)


@defect(
    "all commits in doubt, though all were committed: nothing was acknowledged",
    fails=("slo/transaction.latency-p90", "slo/transaction.success"),
    unsure=(
        *("slo/consume.latency-p99", "slo/lost", "obligation/consume"),
        *(f"integrity/{rule}" for rule in ("backward", "lost", "misplaced", "phantom")),
    ),
    base=committed_run,
)
def all_in_doubt(run: Run) -> None:
    own = run.frames["transactions"]
    commits = own.index[own["intended"] == "commit"]
    run.set("transactions", commits, outcome="in_doubt", done_us=None)


WAITING, PLACE = "patient", 2
"""Arm whose transactions wait in the cases below, and the partition of their records."""
SINCE_S, UNTIL_S = 30, 44


def _wait(run: Run, *, begun: bool) -> None:
    """Let transactions in one partition end at ``UNTIL_S``; others go on. They had ``begun``, or not."""
    rows, own = run.frames["produce"], run.frames["transactions"]
    hit = (rows["arm"] == WAITING) & rows["intended_us"].between(SINCE_S * S, UNTIL_S * S)
    hit &= rows["partition"] == PLACE
    run.set("produce", rows.index[hit], done_us=UNTIL_S * S + rows.loc[hit, "seq"])
    late = own.index[(own["arm"] == WAITING) & own["number"].isin(rows.loc[hit, "seq"])]
    begin = {} if begun else {"begin_us": UNTIL_S * S}
    run.set("transactions", late, done_us=UNTIL_S * S + 5_000_000, **begin)


@defect(
    "records of open transactions that wait for one partition, on healthy brokers",
    fails=("obligation/produce",),
    says=f"of orders/{PLACE}",
    base=calm_run,
)
def waits_for_a_partition(run: Run) -> None:
    _wait(run, begun=True)


@defect("records of the same partition whose transactions wait for their turn: no alarm", base=calm_run)
def waits_for_its_turn(run: Run) -> None:
    _wait(run, begun=False)


@defect(
    "a producer whose transactions begin in time, and none of whose records is acknowledged for 14 s",
    fails=("obligation/produce",),
    says="of the client as a whole",
    base=calm_run,
)
def transacts_nothing(run: Run) -> None:
    rows, own = run.frames["produce"], run.frames["transactions"]
    hit = (rows["arm"] == WAITING) & rows["done_us"].between(SINCE_S * S, UNTIL_S * S)
    run.set("produce", rows.index[hit], done_us=UNTIL_S * S + rows.loc[hit, "seq"])
    late = own.index[(own["arm"] == WAITING) & own["done_us"].between(SINCE_S * S, UNTIL_S * S)]
    run.set("transactions", late, begin_us=UNTIL_S * S, done_us=UNTIL_S * S + 5_000_000)


def _given_up(run: Run, error: str, after_us: int, **changes: object) -> None:
    """Let producer 0 give up the commits of some transactions, which were committed nevertheless."""
    own = run.frames["transactions"]
    hit = own.index[(own["producer_id"] == 0) & (own["number"] % 50 == COMMITTED) & (own["outcome"] == "committed")]
    done_us = own.loc[hit, "asked_us"] + after_us
    run.set("transactions", hit, outcome="in_doubt", error=error, done_us=done_us, **changes)


@defect(
    "commits are given up after 0.1 s of 10 because their coordinator has moved",
    fails=("obligation/deadline",),
    says="failed transactions were given up before half of their deadline, the first after 0.10 s",
    base=calm_run,
)
def commits_given_up_early(run: Run) -> None:
    _given_up(run, "NOT_COORDINATOR", 100_000)


@defect("the same of a client that does not tell its producer id", fails=("obligation/deadline",), base=calm_run)
def commits_given_up_by_an_unknown_producer(run: Run) -> None:
    _given_up(run, "NOT_COORDINATOR", 100_000, kafka_producer_id=None, kafka_epoch=None)


@defect("commits are given up in the second half of their deadline: no alarm", base=calm_run)
def commits_given_up_late(run: Run) -> None:
    _given_up(run, "NOT_COORDINATOR", 5 * S + 1_000)


@defect("commits fail at once because another producer has taken their id: no alarm", base=calm_run)
def commits_fenced(run: Run) -> None:
    _given_up(run, "INVALID_PRODUCER_EPOCH", 100_000)
