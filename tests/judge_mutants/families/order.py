"""Defects of order: records that changed places in the log or at a reader, and epochs and watermarks that go back."""

from random import Random

import pandas as pd

from aftershock.results.evidence.evidence import Client
from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, Lane
from aftershock.tests.judge_mutants.draft import Draft
from aftershock.tests.judge_mutants.kinds import Plant, kind

_IN_FLIGHT = ("max.in.flight.requests.per.connection", "max.in.flight")


def _swap(run: Anatomy, draft: Draft, dice: Random, rows: pd.DataFrame, status: str) -> Plant | None:
    """Let two records of one producer change places in the log; acknowledgements and deliveries agree with the log.

    The records were sent at least 20 ms apart, so that one batch can't have held them.
    """
    if rows.empty:
        return None
    one = rows.iloc[dice.randrange(len(rows))]
    near = rows[
        (
            (rows["topic"] == one["topic"])
            & (rows["partition"] == one["partition"])
            & (rows["producer_id"] == one["producer_id"])
            & (rows["worker"] == one["worker"])
            & (rows["seq"] > one["seq"])
            & (rows["sent_us"] > one["sent_us"] + 20_000)
        ).to_numpy(bool, na_value=False)
    ].nsmallest(5, "seq")
    if near.empty:
        return None
    two = near.iloc[dice.randrange(len(near))]
    topic, partition = str(one["topic"]), int(one["partition"])
    log, outcomes = draft.table("log"), draft.table("outcomes")
    marks = ["producer_id", "seq"]
    first, second = log.loc[one["entry"], marks].tolist(), log.loc[two["entry"], marks].tolist()
    log.loc[one["entry"], marks], log.loc[two["entry"], marks] = second, first
    for here, there in ((one, two), (two, one)):
        if not pd.isna(outcomes.loc[here["row"], "offset"]):
            outcomes.loc[here["row"], "offset"] = int(there["offset"])
        got = edits.at(run.run.tables["outcomes"], topic, partition, [int(here["offset"])])
        got &= (outcomes["op"] == "consume").to_numpy(bool, na_value=False)
        outcomes.loc[got, "seq"] = int(there["seq"])
        outcomes.loc[got, "intended_us"] = int(there["intended_us"])
    place = f"{topic}/{partition}: records {one['seq']} and {two['seq']} of producer {one['producer_id']}"
    return Plant(place, ("integrity/order",), str(one["arm"]), "produce", status, touched=run.touched(topic))


def _place(run: Anatomy, lane: Lane, dice: Random, wanted: "pd.Series[bool]") -> int | None:
    """Return the number of a wanted delivery whose predecessor has the same tenure and a lower offset."""
    numbers = [int(number) for number in wanted.to_numpy(bool, na_value=False).nonzero()[0] if number]
    return next((each for each in dice.sample(numbers, len(numbers)) if run.neighbours(lane, each)), None)


def _records(run: Anatomy, dice: Random, clients: list[Client]) -> pd.DataFrame:
    """Return the records of a random client; none if there is no client."""
    return run.records_of(dice.choice(clients)) if clients else run.records.iloc[:0]


def _one_in_flight(run: Anatomy, client: Client) -> bool:
    return any(str(run.settings(client).get(name)) == "1" for name in _IN_FLIGHT)


@kind("order", "two records of an idempotent producer changed places in the log")
def order_of_an_idempotent_producer(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    clients = [client for client in run.producers if client.idempotent]
    return _swap(run, draft, dice, _records(run, dice, clients), "FAIL")


@kind("order", "two records of a producer with one request in flight changed places in the log")
def order_with_one_request_in_flight(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    clients = [client for client in run.producers if not client.idempotent and _one_in_flight(run, client)]
    return _swap(run, draft, dice, _records(run, dice, clients), "FAIL")


@kind("order", "two records of a producer without idempotence changed places, and no second attempt was possible")
def order_without_a_second_attempt(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    clients = [client for client in run.producers if not client.idempotent]
    rows = run.undisturbed(_records(run, dice, clients))
    return _swap(run, draft, dice, rows, "FAIL" if run.traceable else "INCONCLUSIVE")


@kind("order", "two deliveries of a partition changed places in time")
def deliveries_out_of_order(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        rows = lane.rows
        later = rows["done_us"].diff().gt(1000) & rows["offset"].diff().gt(0)
        number = _place(run, lane, dice, later)
        if number is None:
            continue
        one, two = rows.index[number - 1], rows.index[number]
        outcomes = draft.table("outcomes")
        outcomes.loc[[one, two], "done_us"] = [int(rows.loc[two, "done_us"]), int(rows.loc[one, "done_us"])]
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{rows.loc[one, 'offset']} after the next"
        arm = lane.client.arm
        checks = ("integrity/order", "integrity/duplicate")
        return Plant(place, checks, arm, "consume", touched=frozenset({arm}))
    return None


@kind("order", "a delivery has an older leader epoch than the delivery before it")
def epoch_of_deliveries_goes_back(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        rows = lane.rows
        number = _place(run, lane, dice, rows["leader_epoch"].shift(1).gt(0))
        if number is None:
            continue
        row, before = rows.index[number], int(rows["leader_epoch"].iloc[number - 1])
        draft.table("outcomes").loc[row, "leader_epoch"] = before - dice.randint(1, before)
        arm = lane.client.arm
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{rows.loc[row, 'offset']} after epoch {before}"
        return Plant(place, ("integrity/backward",), arm, "consume", touched=frozenset({arm}))
    return None


@kind("order", "an acknowledgement at a later offset has an older leader epoch")
def epoch_of_acknowledgements_goes_back(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    outcomes = run.run.tables["outcomes"]
    rows = run.records
    rows = rows.assign(acknowledged=outcomes.loc[rows["row"], "leader_epoch"].to_numpy())
    before = rows.groupby(["arm", "workload", "topic", "partition"])["acknowledged"].shift(1)
    candidates = rows[
        before.gt(0).to_numpy(bool, na_value=False) & rows["acknowledged"].notna().to_numpy(bool, na_value=False)
    ]
    if candidates.empty:
        return None
    record = candidates.iloc[dice.randrange(len(candidates))]
    draft.table("outcomes").loc[record["row"], "leader_epoch"] = int(before.loc[record.name]) - 1
    place = f"{record['topic']}/{record['partition']}@{record['offset']}"
    return Plant(place, ("integrity/backward",), str(record["arm"]), "produce", touched=frozenset({str(record["arm"])}))


@kind("order", "a record of the log was written in an older leader epoch than the record before it")
def epoch_of_the_log_goes_back(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = run.records
    before = rows.groupby(["topic", "partition"])["epoch"].shift(1)
    candidates = rows[before.gt(0).to_numpy(bool, na_value=False)]
    if candidates.empty:
        return None
    record = candidates.iloc[dice.randrange(len(candidates))]
    draft.table("log").loc[record["entry"], "leader_epoch"] = int(before.loc[record.name]) - 1
    topic = str(record["topic"])
    return Plant(
        f"{topic}/{record['partition']}@{record['offset']}",
        ("integrity/backward", "integrity/order", "harness/"),
        status="INCONCLUSIVE",
        touched=run.touched(topic),
    )


@kind("order", "a high watermark goes back within one leader epoch")
def high_watermark_goes_back(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Lower the high watermark of one delivery, which stays above the delivered offset. Followers are never read.

    The record is of the partition's newest epoch: a record of an older one may come from a later leader, which learns
    the high watermark late.
    """
    if "replica.selector.class" in str(run.timeline["cluster"]):
        return None
    for lane in run.some_lanes(dice):
        rows = lane.rows
        unknown = rows["high_watermark"].isna().any() or rows["leader_epoch"].isna().any()
        if unknown or not run.own_watermarks(lane.client):
            continue
        mark = rows["high_watermark"].shift(1)
        newest = rows["leader_epoch"].eq(run.newest_epoch(lane)) & rows["leader_epoch"].diff().eq(0)
        number = _place(run, lane, dice, mark.ge(rows["offset"] + 2) & newest)
        if number is None:
            continue
        row = rows.index[number]
        draft.table("outcomes").loc[row, "high_watermark"] = int(mark.loc[row]) - 1
        arm = lane.client.arm
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{rows.loc[row, 'offset']}"
        return Plant(place, ("integrity/backward",), arm, "consume", touched=frozenset({arm}))
    return None
