"""Defects of consumers and of the metadata that brokers send to consumers."""

from aftershock.tests.unit.results.evidence_factory import PARTITIONS, S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import MARGIN, Run


@defect("two deliveries of one partition that changed places in time", fails=("integrity/order",))
def deliveries_swapped(run: Run) -> None:
    one, other = (run.at("consume", 0, seq, "patient") for seq in (60, 66))
    first, second = (run.get("consume", index)["done_us"] for index in (one, other))
    run.set("consume", one, done_us=second)
    run.set("consume", other, done_us=first, intended_us=first - 1)


def _with_high_watermark(run: Run, high_watermark: int) -> None:
    """Give every delivery of one partition this high watermark."""
    rows = run.frames["consume"]
    run.set(
        "consume", rows.index[(rows["arm"] == "baseline") & (rows["partition"] == 0)], high_watermark=high_watermark
    )


@defect("a broker that hands out what lies beyond its high watermark, for many seconds", fails=("integrity/beyond",))
def beyond_the_high_watermark(run: Run) -> None:
    _with_high_watermark(run, run.get("consume", run.at("consume", 0, 300, "baseline"))["offset"])


@defect("the same for six seconds in the middle of the run", fails=("integrity/beyond",))
def beyond_the_high_watermark_for_a_while(run: Run) -> None:
    rows, first = run.frames["consume"], run.get("consume", run.at("consume", 0, 300, "baseline"))
    at_us = rows["done_us"] - first["done_us"]
    held = (rows["arm"] == "baseline") & (rows["partition"] == 0) & at_us.between(0, 6 * S)
    run.set("consume", rows.index[held], high_watermark=first["offset"])


@defect("a high watermark that was noted just before the records were read: permitted")
def read_after_the_high_watermark(run: Run) -> None:
    index = run.at("consume", 0, 300, "baseline")
    run.set("consume", index, high_watermark=run.get("consume", index)["offset"])


@defect("a delivery of an older leader epoch than the one before it", fails=("integrity/backward",))
def older_epoch_delivered(run: Run) -> None:
    run.set("consume", run.at("consume", 0, 1200, "baseline"), leader_epoch=2)


@defect("a high watermark that goes back within one leader epoch", fails=("integrity/backward",))
def high_watermark_back(run: Run) -> None:
    index = run.at("consume", 1, 1350, "patient")
    run.set("consume", index, high_watermark=run.get("consume", index)["offset"] + MARGIN - 2)


@defect("a high watermark that goes back when the leader changes: permitted")
def high_watermark_back_with_a_new_leader(run: Run) -> None:
    rows = run.frames["consume"]
    new = (rows["leader_epoch"] == 4) & (rows["partition"] == 1) & (rows["intended_us"] < 37 * S)
    run.set("consume", rows.index[new], high_watermark=rows.loc[new, "offset"] + 1)


LOST = ("integrity/lost", "slo/lost")
EARLY = 65
"""A record of the warm-up, which a reader from the end need not get."""


@defect(
    "a reader that reports no high watermarks, as librdkafka: what it can't tell is listed, and no alarm",
    says="not judged: beyond (needs a delivery with the high watermark of its response)",
)
def no_high_watermarks(run: Run) -> None:
    run.frames["consume"] = run.frames["consume"].assign(high_watermark=None)


@defect(
    "readers that compare no values: what they can't tell is listed, and no alarm",
    says="corrupt (needs a comparison of values (values_compared))",
)
def no_values_compared(run: Run) -> None:
    run.documents["run"]["values_compared"] = ["log"]


@defect(
    "the same, and an SLO on what they can't tell",
    unsure=("slo/corrupt",),
    says="arm=patient consume was not judged: it needs a comparison of values (values_compared)",
)
def limit_on_values_not_compared(run: Run) -> None:
    run.slos("corrupt == 0 for patient")
    no_values_compared(run)


@defect("a reader that passed over a record that it was not owed (of the warm-up)", fails=("integrity/skipped",))
def skipped_one(run: Run) -> None:
    run.documents["timeline"]["workloads"][0]["consume"]["from"] = "latest"
    run.lose(0, EARLY, read_by="baseline")


@defect("a reader that passed over a record in the log, of which the producer is in doubt", fails=LOST)
def skipped_in_doubt(run: Run) -> None:
    run.lose(0, 500, status="in_doubt", read_by="baseline")


@defect("the first again, after a reset that the reader told of: permitted")
def skipped_after_a_reset(run: Run) -> None:
    run.documents["timeline"]["workloads"][0]["consume"]["from"] = "latest"
    row = run.get("consume", run.at("consume", 0, EARLY, "patient"))
    run.lose(0, EARLY, read_by="baseline")
    line = {"event": "position_reset", "arm": "patient", "workload": "orders", "op": "consume", "offset": 1}
    line |= {"topic": "orders", "partition": int(row["partition"]), "t_us": int(row["done_us"])}
    run.documents["events"].append(line)


def _stopped(run: Run, unread: int) -> int:
    """Let the patient's reader stop ``unread`` records before the end of partition 0; return its position."""
    rows = run.frames["consume"]
    of_partition = rows[(rows["arm"] == "patient") & (rows["partition"] == 0)].sort_values("offset")
    run.drop("consume", of_partition.index[-unread:])
    position = int(of_partition["offset"].iloc[-unread])
    _gave_up(run, [["orders", 0, position, position + unread]])
    return position


def _gave_up(run: Run, positions: list[list[str | int]], gave_up_s: int = 55) -> None:
    """Let the patient's reader report what it had not reached: topic, partition, position and end of the log.

    The run gave it as long as it made progress, and no more than a moment after the load.
    """
    line = {"event": "drain_incomplete", "arm": "patient", "workload": "orders", "op": "consume", "t_us": gave_up_s * S}
    run.documents["events"].append(line | {"positions": positions})


def _stood_still(run: Run, t_us: int, idle_us: int) -> None:
    """Let the patient's reader give up at ``t_us``, after it read nothing for ``idle_us`` (last fault: 39 s)."""
    _stopped(run, 3)
    run.documents["events"][-1] |= {"t_us": t_us, "idle_us": idle_us, "read": 0}


@defect(
    "a reader that read nothing for 30 s, a minute after the last fault: it stands still, and owes the rest",
    fails=("integrity/lost", "slo/lost", "obligation/consume", "obligation/stuck"),
)
def stands_still(run: Run) -> None:
    _stood_still(run, 130 * S, 40 * S)


@defect(
    "the same while the last fault may still have an effect: it stands still, and what it had not reached is unknown",
    fails=("obligation/consume", "obligation/stuck"),
    unsure=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
    says="3 further records were not judged",
)
def stands_still_after_a_fault(run: Run) -> None:
    _stood_still(run, 128 * S, 40 * S)


@defect(
    "a reader that was too slow, and read until it had to stop",
    unsure=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
    says="3 further records were not judged",
)
def slow_to_the_end(run: Run) -> None:
    _stood_still(run, 52 * S, 1 * S)


@defect(
    "a slow reader that the run did not let read to the end: what it had not reached is not lost",
    unsure=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
    says="3 further records were not judged",
)
def not_read_to_the_end(run: Run) -> None:
    _stopped(run, 3)


@defect(
    "the same, and a record before the position that the reader had reached",
    fails=("integrity/lost", "slo/lost"),
    unsure=("slo/consume.latency-p99",),
    says="3 further records were not judged",
)
def lost_before_the_position(run: Run) -> None:
    position = _stopped(run, 3)
    rows = run.frames["consume"]
    last = (rows["arm"] == "patient") & (rows["partition"] == 0) & (rows["offset"] == position - 1)
    run.drop("consume", rows.index[last])


@defect(
    "a slow reader that had not reached more than 1 % of the records: its p99 is unknown, not over the limit",
    unsure=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
    says="40 further records were not judged, because the consumer stopped reading before them",
)
def many_not_reached(run: Run) -> None:
    _stopped(run, 40)


def _never_read(run: Run, *, logged: bool) -> None:
    """Let nobody get 40 acknowledged records of the steady phase, more than 1 % of those that a reader gets."""
    for seq in range(300, 340):
        run.lose(0, seq, logged=logged)


@defect(
    "40 acknowledged records in no log: their producer's loss, and no latency of the readers",
    fails=("integrity/lost", "slo/lost"),
    says="40 acknowledged records are in no log and not counted here",
)
def latency_of_the_lost(run: Run) -> None:
    _never_read(run, logged=False)


@defect(
    "40 records in the log that no reader got: slower than any limit",
    fails=("integrity/lost", "slo/lost", "slo/consume.latency-p99"),
)
def latency_of_the_unread(run: Run) -> None:
    _never_read(run, logged=True)


@defect(
    "a reader that stopped for good: its gap is over the limit, though none of the records that wait for it is judged",
    fails=("slo/consume.gap-recovery", "slo/consume.unavailable-recovery", "obligation/consume"),
    unsure=("integrity/lost",),
)
def stopped_for_good(run: Run) -> None:
    run.slos("consume.gap < 9s in recovery for patient", "consume.unavailable < 9s in recovery for patient")
    rows = run.frames["consume"]
    unread = rows[(rows["arm"] == "patient") & (rows["done_us"] >= 38 * S)]
    positions = unread.groupby("partition")["offset"].agg(["min", "max"])
    run.drop("consume", unread.index)
    ends: list[list[str | int]] = [
        ["orders", int(n), int(row["min"]), int(row["max"]) + 1] for n, row in positions.iterrows()
    ]
    _gave_up(run, ends, gave_up_s=90)


@defect(
    "a reader of a producer with acks=0 that stood still for three seconds",
    fails=("slo/consume.lag-max-steady",),
    unsure=("obligation/produce",),
)
def lag_without_acknowledgements(run: Run) -> None:
    run.slos("consume.lag max <= 20 records in steady")
    run.arms["produce"] |= {"acks": "0", "idempotence": False}
    run.frames["produce"] = run.frames["produce"].assign(offset=None, leader_epoch=None)
    rows = run.frames["consume"]
    still = (rows["arm"] == "patient") & rows["done_us"].between(10 * S, 13 * S)
    run.set("consume", rows.index[still], done_us=13 * S + rows.loc[still, "offset"])
    run.read_in_order()


@defect("a reader that went back twenty records without reset or assignment", fails=("integrity/duplicate",))
def went_back(run: Run) -> None:
    _again(run, "patient", 50 * S)


@defect(
    "the same after a new assignment in a group: at-least-once permits it",
    says="20 records were delivered more than once",
)
def went_back_after_an_assignment(run: Run) -> None:
    _grouped(run)
    _reassigned(run, 51 * S)
    _again(run, "patient", 52 * S)


@defect("the same of a reader outside groups, which starts only once", fails=("integrity/duplicate",))
def went_back_outside_groups(run: Run) -> None:
    _reassigned(run, 51 * S)
    _again(run, "patient", 52 * S)


@defect("the same in a group, after a report that the member was assigned what it has", fails=("integrity/duplicate",))
def went_back_after_a_report(run: Run) -> None:
    _grouped(run)
    run.documents["events"].append(run.documents["events"][1] | {"t_us": 51 * S})
    _again(run, "patient", 52 * S)


def _reassigned(run: Run, at_us: int) -> None:
    """Let the patient's reader give up all partitions, and get them again."""
    assigned = run.documents["events"][1]
    run.documents["events"] += [assigned | {"event": "revoked", "t_us": at_us - 1}, assigned | {"t_us": at_us}]


def _again(run: Run, arm: str, at_us: int) -> None:
    """Repeat the last twenty deliveries of partition 0 from ``at_us`` on."""
    rows = run.frames["consume"]
    last = rows[(rows["arm"] == arm) & (rows["partition"] == 0)].tail(20).to_dict("records")
    top = max(row["high_watermark"] for row in last)
    at_us += int(rows["done_us"].max()) - 50 * S if at_us == 50 * S else 0
    run.add("consume", *[row | {"done_us": at_us + n + 1, "high_watermark": top} for n, row in enumerate(last)])


def _grouped(run: Run) -> None:
    """Let both arms consume in groups of their own, with one member each."""
    run.documents["timeline"]["workloads"][0]["consume"]["group"] = "readers"
    rows = run.frames["consume"]
    run.frames["consume"] = rows.assign(group="readers-" + rows["arm"], member="one of " + rows["arm"])


@defect("a group whose one member reads all: no alarm")
def one_owner(run: Run) -> None:
    _grouped(run)


@defect("two members of a group that read a partition in turn", fails=("integrity/co_owned", "integrity/duplicate"))
def two_owners(run: Run) -> None:
    _grouped(run)
    _read_by_another(run, 8)


def _read_by_another(run: Run, from_s: int) -> None:
    """Deliver the patient's records of partition 2 to another member for a second."""
    rows = run.frames["consume"]
    times = rows["done_us"].between(from_s * S, (from_s + 1) * S)
    some = rows[(rows["arm"] == "patient") & (rows["partition"] == 2) & times]
    run.add("consume", *some.assign(member="another").to_dict("records"))


def _committed(run: Run, at_us: int, behind: int, took_us: int | None = 1_000) -> None:
    """Let the patient's group send a commit of its position of every partition at that time, less ``behind``."""
    rows = run.frames["consume"]
    read = rows[(rows["arm"] == "patient") & (rows["done_us"] <= at_us)].groupby("partition")["offset"].max()
    offsets = [["orders", number, int(read[number]) + 1 - behind] for number in range(PARTITIONS)]
    line = {"event": "committed", "arm": "patient", "workload": "orders", "op": "consume", "offsets": offsets}
    took = {} if took_us is None else {"took_us": took_us}
    run.documents["events"].append(line | {"t_us": at_us + (took_us or 0), "group": "readers-patient"} | took)


@defect("a group that commits what it has read: no alarm")
def committed_what_was_read(run: Run) -> None:
    _grouped(run)
    _committed(run, 10 * S, 0)
    _committed(run, 15 * S, 0)


@defect("a group that commits a position beyond the end of the log", fails=("integrity/commit_ahead",))
def committed_beyond_the_end(run: Run) -> None:
    _grouped(run)
    _committed(run, 59 * S, -3)


@defect("a group that commits three records that it has not read yet", fails=("integrity/commit_ahead",))
def committed_ahead(run: Run) -> None:
    _grouped(run)
    _committed(run, 10 * S, -3)


@defect(
    "a group that sends a commit twenty records ahead of what it has read, and gets the answer after it has read them",
    fails=("integrity/commit_ahead",),
)
def committed_ahead_and_answered_late(run: Run) -> None:
    _grouped(run)
    _committed(run, 10 * S, -20, took_us=4 * S)


@defect("a group that commits what it has read, and gets the answer four seconds later: no alarm")
def answered_late(run: Run) -> None:
    _grouped(run)
    _committed(run, 10 * S, 0, took_us=4 * S)


@defect(
    "a group of whose commits nobody knows when they were sent: the rule is listed, and no alarm",
    says="commit_ahead (needs a commit with the time of its sending (took_us))",
)
def committed_undated(run: Run) -> None:
    _grouped(run)
    _committed(run, 10 * S, 0, took_us=None)


@defect("the same, and it commits what it has not even read at the answer", fails=("integrity/commit_ahead",))
def committed_undated_ahead(run: Run) -> None:
    _grouped(run)
    _committed(run, 10 * S, -3, took_us=None)


@defect("a group that commits five records before it has read any", fails=("integrity/commit_ahead",))
def committed_before_the_first(run: Run) -> None:
    _grouped(run)
    line = {
        "event": "committed",
        "arm": "patient",
        "workload": "orders",
        "op": "consume",
        "t_us": 1_000,
        "took_us": 500,
    }
    run.documents["events"].append(line | {"offsets": [["orders", 0, 5]]})


@defect(
    "after an assignment a group goes on from before its last commit",
    fails=("integrity/commit_behind", "integrity/duplicate"),
)
def went_on_behind_its_commit(run: Run) -> None:
    _grouped(run)
    _committed(run, 50_900_000, 0)
    _reassigned(run, 51 * S)
    _again(run, "patient", 52 * S)


def _took_hints(run: Run, *epochs: int, op: str = "produce") -> None:
    """Let the baseline's client take hints with these epochs for partition 0, in order."""
    line = {"event": "hint_accepted", "arm": "baseline", "workload": "orders", "op": op, "worker": f"orders-{op}"}
    line |= {"topic": "orders", "partition": 0, "node_id": 2}
    run.documents["events"] += [line | {"epoch": epoch, "t_us": 20 * S + n} for n, epoch in enumerate(epochs)]


@defect("a client that takes hints of ever newer epochs: no alarm")
def new_hints_taken(run: Run) -> None:
    _took_hints(run, 4, 5)
    _took_hints(run, 5, op="consume")


@defect(
    "a producer that takes a hint of an epoch that it was told of before",
    fails=("integrity/backward",),
    says="1 of them are leader hints",
)
def old_hint_taken(run: Run) -> None:
    _took_hints(run, 5, 5)


@defect(
    "a commit of a position below one that was acknowledged before it",
    fails=("integrity/backward",),
    says="6 of them are committed positions",
)
def commits_overtaken(run: Run) -> None:
    _grouped(run)
    _committed(run, 15 * S, 0)
    _committed(run, 15_100_000, 5)


@defect(
    "the same of a client that does not tell when it sent them: the judge can't tell",
    unsure=("integrity/backward",),
    says="perhaps explained by the client does not tell when the commit was sent",
)
def commits_overtaken_undated(run: Run) -> None:
    _grouped(run)
    _committed(run, 15 * S, 0, took_us=None)
    _committed(run, 15_100_000, 5, took_us=None)


@defect("the same if the lower position was sent first and its response was reported late: permitted")
def commit_reported_late(run: Run) -> None:
    _grouped(run)
    _committed(run, 14_900_000, 0, took_us=300_000)
    _committed(run, 15 * S, 0)


@defect("a commit below the one before it, after an assignment: permitted")
def commits_behind_an_assignment(run: Run) -> None:
    _grouped(run)
    _committed(run, 15 * S, 0)
    run.documents["events"].append(run.documents["events"][1] | {"t_us": 16 * S})
    _committed(run, 16_100_000, 20)


@defect("the same after an assignment of another partition only", fails=("integrity/backward",))
def commits_behind_anothers_assignment(run: Run) -> None:
    _grouped(run)
    _committed(run, 15 * S, 0)
    run.documents["events"].append(run.documents["events"][1] | {"t_us": 16 * S, "partitions": [["orders", 5]]})
    _committed(run, 16_100_000, 20)
