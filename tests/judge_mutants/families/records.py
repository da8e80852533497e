"""Defects of records: lost, written twice, foreign, given up and written, misplaced, corrupt, or never delivered."""

from itertools import pairwise
from random import Random

import pandas as pd

from aftershock.results.evidence.evidence import ACKS_ALL
from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, Lane, S
from aftershock.tests.judge_mutants.draft import Draft, recount
from aftershock.tests.judge_mutants.kinds import Plant, kind

LOST = ("integrity/lost",)
_TAIL_MAX = 20


def _followed(rows: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the same epoch's next record follows: no leader can have cut the log at such a record."""
    after = records[["topic", "partition", "offset", "epoch"]].copy()
    after["offset"] -= 1
    found = rows.reset_index().merge(after, on=["topic", "partition", "offset"], suffixes=("", "_after"))
    same = found["epoch"].isna() | (found["epoch"] == found["epoch_after"])
    return rows.loc[found.loc[same.fillna(True).to_numpy(bool, na_value=False), "index"]]


def _lost(run: Anatomy, draft: Draft, dice: Random, rows: pd.DataFrame, close: bool) -> Plant | None:
    candidates = _followed(rows, run.records)
    if candidates.empty:
        return None
    record = candidates.iloc[dice.randrange(len(candidates))]
    topic, partition, offset = str(record["topic"]), int(record["partition"]), int(record["offset"])
    delivered = not close and dice.random() < 0.5
    edits.remove_records(draft, dice, topic, partition, [offset], delivered=delivered, close=close)
    client = run.client_of(record["workload"], record["arm"])
    assert client is not None
    place = (
        f"{topic}/{partition}@{offset}, acknowledged at {record['done_us'] / S:.3f} s" + " and delivered" * delivered
    )
    return Plant(place, LOST, client.arm, "produce", run.loss_status(client), touched=run.touched(topic))


def _of(run: Anatomy, dice: Random, *, acks_all: bool | None = None, idempotent: bool | None = None) -> pd.DataFrame:
    """Return the records of a random producer with these settings."""
    clients = [
        client
        for client in run.producers
        if acks_all in (None, client.acks_all) and idempotent in (None, client.idempotent) and client.acks != "0"
    ]
    return run.records_of(dice.choice(clients)) if clients else run.records.iloc[:0]


@kind("records", "a record acknowledged with acks=all is not in the log")
def lost_with_acks_all(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _lost(run, draft, dice, _of(run, dice, acks_all=True), dice.random() < 0.5)


@kind("records", "a record acknowledged with acks=1 is not in the log, and no later epoch begins at or below it")
def lost_with_acks_one(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _lost(run, draft, dice, _of(run, dice, acks_all=False), dice.random() < 0.5)


@kind("records", "a record of acks=1 is not in the log, just below the start of the next epoch")
def lost_below_the_next_epoch(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = _of(run, dice, acks_all=False)
    starts = [
        (topic, partition, line["start_offset"])
        for topic, partition in {*zip(rows["topic"], rows["partition"], strict=True)}
        for line in run.epochs(topic, int(partition))
        if line["start_offset"]
    ]
    near = pd.DataFrame(False, index=rows.index, columns=["near"])["near"]
    for topic, partition, start in sorted(starts):
        near |= (
            (rows["topic"] == topic) & (rows["partition"] == partition) & rows["offset"].between(start - 30, start - 2)
        )
    return _lost(run, draft, dice, rows[near.to_numpy(bool, na_value=False)], close=False)


@kind("records", "the last records of a partition, acknowledged, are not in the log, and no later epoch exists")
def lost_tail(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = _of(run, dice)
    if rows.empty:
        return None
    pick = rows.iloc[dice.randrange(len(rows))]
    topic, partition = str(pick["topic"]), int(pick["partition"])
    log = draft.tables["log"]
    mine = log[(log["topic"] == topic) & (log["partition"] == partition)]
    last = mine["offset"].nlargest(dice.randint(1, _TAIL_MAX))
    ours = rows[(rows["topic"] == topic) & (rows["partition"] == partition) & rows["offset"].isin(last)]
    same = "leader_epoch" not in mine.columns or len({*mine.loc[last.index, "leader_epoch"]}) == 1
    if ours.empty or len(mine) < 2 * _TAIL_MAX or not same:
        return None
    offsets = [int(offset) for offset in last]
    edits.remove_records(draft, dice, topic, partition, offsets, delivered=dice.random() < 0.5, close=False)
    edits.end_replicas(draft, topic, partition, -len(offsets))
    client = run.client_of(pick["workload"], pick["arm"])
    assert client is not None
    place = f"the last {len(offsets)} of {topic}/{partition}"
    return Plant(place, LOST, client.arm, "produce", run.loss_status(client), touched=run.touched(topic))


def cut_at_an_election(
    run: Anatomy, draft: Draft, dice: Random, acks: tuple[str, ...]
) -> tuple[str, pd.DataFrame] | None:
    """Remove the last records of an epoch, all sent with these ``acks`` and acknowledged before the next election.

    The next epoch, whose election was clean, then begins at the first of them. Returns a place and the lost records.
    """
    choices = [
        (topic, int(partition), before["epoch"], line)
        for topic, partition in sorted({*zip(run.records["topic"], run.records["partition"], strict=True)})
        for before, line in pairwise(run.epochs(topic, int(partition)))
        if run.traceable and line["start_offset"] and line["after_us"] is not None and line["unclean"] is False
    ]
    for topic, partition, epoch, line in dice.sample(choices, len(choices)):
        rows = run.records[(run.records["topic"] == topic) & (run.records["partition"] == partition)]
        start, found = int(line["start_offset"]), list[int]()
        last = rows["offset"].between(start - dice.randint(1, 10), start - 1).to_numpy(bool, na_value=False)
        for record in reversed(rows[last].to_dict("records")):
            client = run.client_of(record["workload"], record["arm"])
            early = record["epoch"] == epoch and record["done_us"] < line["after_us"]
            if client is None or client.acks not in acks or not early or record["offset"] != start - len(found) - 1:
                break
            found.append(int(record["offset"]))
        if not found:
            continue
        offsets, tail = sorted(found), rows[rows["offset"].isin(found)]
        edits.remove_records(draft, dice, topic, partition, offsets, delivered=False, close=True)
        return f"{len(offsets)} of {topic}/{partition} from {offsets[0]}, epoch {line['epoch']} begins there", tail
    return None


@kind("records", "records of acks=all are lost at a change of leader whose election was clean")
def lost_at_a_clean_election(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = None if run.destructive else cut_at_an_election(run, draft, dice, ACKS_ALL)
    if found is None:
        return None
    place, lost = found
    return Plant(place, LOST, str(lost["arm"].iloc[0]), "produce", touched=run.touched(str(lost["topic"].iloc[0])))


@kind("records", "20 to 200 records in a row of one producer are acknowledged and were never written")
def acknowledged_without_sending(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = _of(run, dice).sort_values("sent_us")
    count = dice.randint(20, 200)
    if len(rows) < 2 * count:
        return None
    first = dice.randrange(len(rows) - count)
    gone = rows.iloc[first : first + count]
    for (topic, partition), part in gone.groupby(["topic", "partition"]):
        offsets = [int(offset) for offset in part["offset"]]
        edits.remove_records(draft, dice, topic, int(partition), offsets, delivered=False, close=True)
    client = run.client_of(gone["workload"].iloc[0], gone["arm"].iloc[0])
    assert client is not None
    place = f"{count} records from {gone['sent_us'].min() / S:.1f} s to {gone['sent_us'].max() / S:.1f} s"
    return Plant(
        place, LOST, client.arm, "produce", run.loss_status(client), touched=run.touched(str(gone["topic"].iloc[0]))
    )


def _twice(run: Anatomy, draft: Draft, dice: Random, rows: pd.DataFrame, far: int, status: str) -> Plant | None:
    """Write a record a second time, at most ``far`` records later."""
    if len(rows) < 2:
        return None
    record = rows.iloc[dice.randrange(len(rows))]
    topic, partition, offset = str(record["topic"]), int(record["partition"]), int(record["offset"])
    log = draft.tables["log"]
    later = log[(log["topic"] == topic) & (log["partition"] == partition) & (log["offset"] >= offset)]
    after = int(dice.choice([*later.nsmallest(far, "offset")["offset"]]))
    again = edits.insert_copy(draft, dice, int(record["entry"]), after)
    place = f"{topic}/{partition}@{offset} and @{again}"
    return Plant(place, ("integrity/duplicate",), record["arm"], "produce", status, touched=run.touched(topic))


@kind("records", "a record of an idempotent producer is in the log twice")
def written_twice_by_an_idempotent_producer(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _twice(run, draft, dice, _of(run, dice, idempotent=True), 200, "FAIL")


@kind("records", "a record of a producer without idempotence is in the log twice, and no second attempt was possible")
def written_twice_without_a_second_attempt(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Plant before the first fault, where no connection ended, no response was late, and no leader changed."""
    rows = run.undisturbed(_of(run, dice, idempotent=False))
    return _twice(run, draft, dice, rows, 5, "FAIL" if run.traceable else "INCONCLUSIVE")


@kind("records", "a record in the log that no producer of the run sent")
def foreign_record(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Plant a record without a mark, or with the mark of a sequence number that its producer never reached."""
    if run.records.empty:
        return None
    record = run.records.iloc[dice.randrange(len(run.records))]
    beyond = {"producer_id": record["producer_id"], "seq": int(run.produced["seq"].max()) + dice.randint(1, 5000)}
    marks = dice.choice([{"producer_id": pd.NA, "seq": pd.NA}, beyond])
    topic = str(record["topic"])
    offset = edits.insert_copy(
        draft,
        dice,
        int(record["entry"]),
        int(record["offset"]),
        delivered="seq" in marks and marks["seq"] is not pd.NA,
        changes=marks,
    )
    return Plant(f"{topic}/{record['partition']}@{offset}", ("integrity/phantom",), touched=run.touched(topic))


@kind("records", "a record that its producer reported as failed for good is in the log")
def failed_record_in_the_log(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = _of(run, dice)
    if rows.empty:
        return None
    record = rows.iloc[dice.randrange(len(rows))]
    edits.mark_undecided(draft, [int(record["row"])], "INVALID_RECORD", "failed")
    place = f"producer {record['producer_id']} record {record['seq']}"
    topic = str(record["topic"])
    return Plant(place, ("integrity/phantom",), record["arm"], "produce", touched=run.touched(topic))


@kind("records", "an acknowledgement names an offset at which the log has another record")
def misplaced_acknowledgement(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Without idempotence, plant where no second attempt was possible: the first copy may lie at another offset.

    A truncation moves records, too, so without the epoch history the evidence leaves the cause open as for a loss.
    """
    outcomes = draft.tables["outcomes"]
    rows = _of(run, dice)
    client = None if rows.empty else run.client_of(rows["workload"].iloc[0], rows["arm"].iloc[0])
    if client is None:
        return None
    rows = rows if client.idempotent else run.undisturbed(rows)
    rows = rows[outcomes.loc[rows["row"], "offset"].notna().to_numpy(bool, na_value=False)]
    if len(rows) < 50:
        return None
    record = rows.iloc[dice.randrange(len(rows))]
    wrong = max(0, int(record["offset"]) + dice.choice([-3, -2, -1, 1, 2, 3]))
    if wrong == record["offset"]:
        return None
    draft.table("outcomes").loc[int(record["row"]), "offset"] = wrong
    place = f"producer {record['producer_id']} record {record['seq']}: @{wrong} and not @{record['offset']}"
    touched = frozenset({client.arm})
    return Plant(place, ("integrity/misplaced",), client.arm, "produce", run.loss_status(client), touched=touched)


@kind("records", "two records are at one offset of the log")
def two_records_at_one_offset(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = run.records
    if len(rows) < 2:
        return None
    number = dice.randrange(1, len(rows))
    here, before = rows.iloc[number], rows.iloc[number - 1]
    if (here["topic"], here["partition"]) != (before["topic"], before["partition"]):
        return None
    draft.table("log").loc[int(here["entry"]), "offset"] = int(before["offset"])
    topic = str(here["topic"])
    place = f"{topic}/{here['partition']}@{before['offset']}"
    return Plant(place, ("integrity/collision",), touched=run.touched(topic))


@kind("records", "a value in the log differs from the value that was sent")
def corrupt_value_in_the_log(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    log = draft.tables["log"]
    if run.records.empty or "error" not in log.columns:
        return None
    record = run.records.iloc[dice.randrange(len(run.records))]
    draft.table("log").loc[int(record["entry"]), "error"] = "VALUE_CORRUPT"
    topic = str(record["topic"])
    place = f"{topic}/{record['partition']}@{record['offset']}"
    return Plant(place, ("integrity/corrupt",), touched=run.touched(topic))


@kind("records", "a value that was delivered differs from the value that was sent")
def corrupt_value_delivered(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    rows = run.delivered
    if rows.empty:
        return None
    row = rows.iloc[dice.randrange(len(rows))]
    draft.table("outcomes").loc[row.name, "error"] = "VALUE_CORRUPT"
    place = f"{row['worker']}: {row['topic']}/{row['partition']}@{row['offset']}"
    return Plant(place, ("integrity/corrupt",), row["arm"], "consume", touched=frozenset({row["arm"]}))


def _reader(run: Anatomy, dice: Random) -> Lane | None:
    """Return a lane whose reader was given every record of its partition, to the end."""
    for lane in run.some_lanes(dice):
        if not run.position_unknown(lane) and len(lane.rows) > 2 * _TAIL_MAX and not lane.client.from_latest:
            return lane
    return None


def _undelivered(run: Anatomy, draft: Draft, lane: Lane, offsets: list[int]) -> None:
    """Remove the deliveries of some offsets to all members of a client."""
    rows = draft.tables["outcomes"]
    mine = (
        (rows["arm"] == lane.client.arm) & (rows["workload"] == lane.client.workload) & (rows["op"] == "consume")
    ).to_numpy(bool, na_value=False)
    draft.drop("outcomes", mine & edits.at(rows, lane.topic, lane.partition, offsets))
    recount(draft)
    del run


def _due(run: Anatomy, lane: Lane) -> pd.DataFrame:
    """Return the records of a lane's partition that producers sent after the warm-up, by offset."""
    rows = run.records
    return rows[
        (rows["topic"] == lane.topic) & (rows["partition"] == lane.partition) & (rows["intended_us"] >= run.steady_us)
    ]


@kind("records", "a record that is in the log is never delivered to one reader")
def never_delivered(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    lane = _reader(run, dice)
    due = _due(run, lane) if lane else None
    if lane is None or due is None or due.empty:
        return None
    offset = int(dice.choice([*due["offset"]]))
    _undelivered(run, draft, lane, [offset])
    arm = lane.client.arm
    return Plant(f"{lane.topic}/{lane.partition}@{offset}", LOST, arm, "consume", touched=frozenset({arm}))


@kind("records", "the last records of a partition are never delivered to one reader")
def tail_never_delivered(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    lane = _reader(run, dice)
    due = _due(run, lane) if lane else None
    if lane is None or due is None or len(due) < _TAIL_MAX:
        return None
    log = draft.tables["log"]
    mine = log.loc[(log["topic"] == lane.topic) & (log["partition"] == lane.partition), "offset"]
    offsets = [int(offset) for offset in mine.nlargest(dice.randint(1, _TAIL_MAX))]
    _undelivered(run, draft, lane, offsets)
    arm = lane.client.arm
    return Plant(
        f"the last {len(offsets)} of {lane.topic}/{lane.partition}", LOST, arm, "consume", touched=frozenset({arm})
    )


@kind("records", "the tail of a partition, in doubt at its producer and in the log, is never delivered to one reader")
def tail_in_doubt_never_delivered(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    lane = _reader(run, dice)
    due = _due(run, lane) if lane else None
    if lane is None or due is None or len(due) < _TAIL_MAX:
        return None
    last = due.iloc[-dice.randint(1, 5) :]
    log = draft.tables["log"]
    end = log.loc[(log["topic"] == lane.topic) & (log["partition"] == lane.partition), "offset"].max()
    if int(last["offset"].iloc[-1]) != end or len(last) != end + 1 - last["offset"].iloc[0]:
        return None
    edits.mark_undecided(draft, [int(row) for row in last["row"]])
    _undelivered(run, draft, lane, [int(offset) for offset in last["offset"]])
    arm = lane.client.arm
    place = f"the last {len(last)} of {lane.topic}/{lane.partition}"
    return Plant(place, LOST, arm, "consume", touched=frozenset({arm, *last["arm"]}))
