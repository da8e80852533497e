"""Defects of consumer groups with several members."""

from functools import partial
from typing import Any

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted import catalogue
from aftershock.tests.unit.results.planted.world import Run
from aftershock.tests.unit.results.planted.worlds import (
    LEFT_US,
    TAKEN_US,
    consumer,
    group_event,
    members_run,
    shared_run,
    topics_run,
)

defect = partial(catalogue.defect, base=members_run)
BEFORE_US = LEFT_US - S


@defect("a member that leaves, whose partitions the others take over: no alarm")
def taken_over(run: Run) -> None:
    run.documents["events"].append(_commit(2, BEFORE_US))


def _commit(number: int, sent_us: int) -> dict[str, object]:
    """Return a commit of what the patient's group has read of partition 1 before its second member leaves."""
    rows = members_run().frames["consume"]
    read = rows[(rows["arm"] == "patient") & (rows["partition"] == 1) & (rows["done_us"] < BEFORE_US)]
    line = group_event(sent_us + 1_000, "committed", "patient", number) | {"took_us": 1_000}
    return line | {"offsets": [["orders", 1, int(read["offset"].max()) + 1]]}


def _delivered_again(run: Run, from_us: int, number: int) -> None:
    """Let a member deliver the next record of partition 1 again that another member delivers."""
    rows = run.frames["consume"]
    some = rows[(rows["arm"] == "patient") & (rows["partition"] == 1) & (rows["done_us"] > from_us)].head(1)
    run.add("consume", *some.assign(worker=consumer("patient", number)).to_dict("records"))


@defect(
    "a member that delivers from a partition that it has given up",
    fails=("integrity/stale_assignment", "integrity/co_owned", "integrity/skipped"),
)
def delivered_what_was_given_up(run: Run) -> None:
    _delivered_again(run, TAKEN_US + S, 2)


def _told(run: Run, at_us: int, number: int) -> None:
    """Let a coordinator tell a member that it does not know it."""
    line = group_event(at_us, "member_fenced", "patient", number)
    run.documents["events"].append(line | {"error": "UNKNOWN_MEMBER_ID", "took_us": 1_000})


@defect(
    "a member that reads on after its coordinator has told it that it is no member",
    fails=("integrity/stale_assignment",),
)
def read_on_as_no_member(run: Run) -> None:
    _told(run, 20 * S, 1)


@defect("a member that gives its partitions up a second after it was told that it is no member: no alarm")
def left_as_no_member(run: Run) -> None:
    _told(run, BEFORE_US, 2)


@defect(
    "a partition assigned to a second member while the first has it",
    fails=("integrity/co_owned", "slo/rebalance.duration"),
)
def assigned_twice(run: Run) -> None:
    run.documents["events"].append(group_event(BEFORE_US, "assigned", "patient", 3, 0))


@defect("a commit that Kafka accepts from a member after another member got the partition", fails=("integrity/fenced",))
def committed_after_the_takeover(run: Run) -> None:
    run.documents["events"].append(_commit(2, TAKEN_US + S))


@defect("a commit sent before the takeover and answered after it: no alarm")
def answered_after_the_takeover(run: Run) -> None:
    run.documents["events"].append(_commit(2, BEFORE_US) | {"t_us": TAKEN_US + S, "took_us": TAKEN_US + S - BEFORE_US})


@defect(
    "a new owner that starts before the last commit of the former owner",
    fails=("integrity/commit_behind", "integrity/duplicate"),
)
def taken_over_too_early(run: Run) -> None:
    run.documents["events"].append(_commit(2, BEFORE_US))
    rows = run.frames["consume"]
    read = rows[(rows["arm"] == "patient") & (rows["partition"] == 1) & (rows["done_us"] < LEFT_US)]
    old = read[read["done_us"] > BEFORE_US - S]
    at_us = {"done_us": [TAKEN_US + number for number in range(len(old))]}
    run.add("consume", *old.assign(worker=consumer("patient", 1), **at_us).to_dict("records"))


@defect(
    "a new owner that delivers nothing for two seconds",
    fails=("slo/rebalance.duration", "slo/consume.unowned-each-partition"),
)
def taken_over_slowly(run: Run) -> None:
    rows = run.frames["consume"]
    late = (rows["arm"] == "patient") & (rows["partition"] == 1) & rows["done_us"].between(LEFT_US, TAKEN_US + 2 * S)
    run.set("consume", rows.index[late], done_us=TAKEN_US + 2 * S + rows.loc[late, "offset"])
    run.read_in_order()


@defect("a partition that kept its owner and stood still during the rebalance", fails=("slo/consume.stopped",))
def kept_and_stopped(run: Run) -> None:
    rows = run.frames["consume"]
    still = (rows["arm"] == "patient") & (rows["partition"] == 0) & rows["done_us"].between(LEFT_US, LEFT_US + 2 * S)
    run.set("consume", rows.index[still], done_us=LEFT_US + 2 * S + rows.loc[still, "offset"])
    run.read_in_order()


@defect(
    "a member far behind, while the group's average is within its limit",
    fails=("slo/consume.lag-max-each-member", "slo/consume.freshness-max-each-member"),
    says="worst member=1: max in the time after warm-up is",
)
def one_member_far_behind(run: Run) -> None:
    rows = run.frames["consume"]
    late = (rows["arm"] == "patient") & (rows["partition"] == 0) & rows["done_us"].between(40 * S, 44 * S)
    run.set("consume", rows.index[late], done_us=44 * S + rows.loc[late, "offset"])
    run.read_in_order()


@defect(
    "a group that rebalances twice and leaves a member without partitions",
    fails=("slo/rebalance.count", "slo/assignment.skew"),
)
def rebalanced_again(run: Run) -> None:
    rows = run.frames["consume"]
    moved = (rows["arm"] == "patient") & (rows["partition"].isin([2, 5])) & (rows["done_us"] > TAKEN_US + 2 * S)
    run.set("consume", rows.index[moved], worker=consumer("patient", 1))
    at_us = TAKEN_US + 2 * S
    run.documents["events"] += [
        group_event(at_us, "revoked", "patient", 3, 2, 5),
        group_event(at_us + 1, "assigned", "patient", 1, 2, 5),
    ]


def _read(run: Run, topic: str, arm: str) -> Any:
    """Return the deliveries of a topic to an arm."""
    rows = run.frames["consume"]
    return rows[(rows["arm"] == arm) & (rows["topic"] == topic)]


@defect("two topics: a record of the second that is not delivered", fails=("integrity/lost",), base=topics_run)
def second_topic_not_delivered(run: Run) -> None:
    run.drop("consume", _read(run, "returns", "baseline").index[100])


@defect(
    "two topics: an acknowledged record of the second that is not in the log",
    fails=("integrity/lost",),
    base=topics_run,
)
def second_topic_not_logged(run: Run) -> None:
    row = run.get("consume", _read(run, "returns", "baseline").index[100])
    run.lose(row["producer_id"], row["seq"], logged=False)


@defect(
    "two topics: a partition of the second assigned to a second member while the first has it",
    fails=("integrity/co_owned", "slo/rebalance.duration"),
    base=topics_run,
)
def second_topic_assigned_twice(run: Run) -> None:
    run.documents["events"].append(group_event(BEFORE_US, "assigned", "patient", 1, 0, topic="returns"))


@defect(
    "two topics: a member that delivers from a partition of the second that it has given up",
    fails=("integrity/stale_assignment", "integrity/co_owned", "integrity/skipped"),
    base=topics_run,
)
def second_topic_delivered_what_was_given_up(run: Run) -> None:
    read = _read(run, "returns", "patient")
    some = read[(read["partition"] == 0) & (read["done_us"] > TAKEN_US + S)].head(1)
    run.add("consume", *some.assign(worker=consumer("patient", 2)).to_dict("records"))


@defect(
    "two topics: commits of partitions with the same number by their owners: no alarm",
    base=topics_run,
)
def commits_of_the_same_number(run: Run) -> None:
    for topic, member in (("orders", 1), ("returns", 2)):
        run.documents["events"].append(_commit_of(run, topic, member))


@defect(
    "two topics: a commit of a partition by the member that has the same number of the other topic",
    fails=("integrity/fenced",),
    base=topics_run,
)
def commits_of_the_other_topic(run: Run) -> None:
    run.documents["events"].append(_commit_of(run, "returns", 1))


def _commit_of(run: Run, topic: str, number: int) -> dict[str, object]:
    """Return a member's commit of what the patient's group has read of partition 0 before its second member leaves."""
    read = _read(run, topic, "patient")
    offset = int(read[(read["partition"] == 0) & (read["done_us"] < BEFORE_US)]["offset"].max()) + 1
    line = group_event(BEFORE_US + 1_000, "committed", "patient", number) | {"took_us": 1_000}
    return line | {"offsets": [[topic, 0, offset]]}


@defect(
    "two workloads in one group: a record that its reader does not get",
    fails=("integrity/lost",),
    base=shared_run,
)
def lost_in_a_shared_group(run: Run) -> None:
    run.drop("consume", _read(run, "returns", "baseline").index[100])


@defect(
    "two workloads in one group: a partition assigned to members of both",
    fails=("integrity/co_owned",),
    base=shared_run,
)
def assigned_to_both_workloads(run: Run) -> None:
    run.documents["events"].append(group_event(BEFORE_US, "assigned", "patient", 3, 0, workload="returns"))


@defect(
    "a member that reads two partitions and reports no assignment: who owned them is unknown",
    unsure=("integrity/co_owned", "integrity/stale_assignment"),
    says="2 times a member read a partition of which it had reported no assignment",
    base=members_run,
)
def never_assigned(run: Run) -> None:
    events, worker = run.documents["events"], consumer("baseline", 3)
    run.documents["events"] = [
        line for line in events if not (line["worker"] == worker and line["event"] == "assigned")
    ]
