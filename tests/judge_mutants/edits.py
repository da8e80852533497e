"""Edits of several tables that keep the evidence consistent: what else a run would have recorded with the defect."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from aftershock.tests.judge_mutants.anatomy import Anatomy, S
from aftershock.tests.judge_mutants.draft import Draft, Row, recount, renumber


def at(rows: pd.DataFrame, topic: str, partition: int, offsets: Sequence[int]) -> Any:
    """Return the mask of rows with these offsets of a partition; rows of commits are never selected."""
    mask = (rows["topic"] == topic) & (rows["partition"] == partition) & rows["offset"].isin([*offsets])
    if "op" in rows.columns:
        mask &= rows["op"] != "commit"
    return mask.to_numpy(bool, na_value=False)


def change_replicas(draft: Draft, dice: Random, topic: str, partition: int, records: int) -> None:
    """Change the number of records in the last stretch of every replica of a partition, and the fingerprint alike."""
    if "replicas" not in draft.tables:
        return
    rows = draft.table("replicas")
    mine = ((rows["topic"] == topic) & (rows["partition"] == partition) & rows["records"].notna()).to_numpy(
        bool, na_value=False
    )
    if not mine.any():
        return
    mine &= (rows["start_offset"] == rows.loc[mine, "start_offset"].max()).to_numpy(bool, na_value=False)
    rows.loc[mine, "records"] += records
    salt = dice.getrandbits(62)
    rows.loc[mine, "fingerprint"] = rows.loc[mine, "fingerprint"].to_numpy("int64") ^ salt


def end_replicas(draft: Draft, topic: str, partition: int, change: int) -> None:
    """Move the end of every replica of a partition."""
    if "replicas" in draft.tables:
        rows = draft.table("replicas")
        mine = ((rows["topic"] == topic) & (rows["partition"] == partition)).to_numpy(bool, na_value=False)
        mine &= (rows["end_offset"] == rows.loc[mine, "end_offset"].max()).to_numpy(bool, na_value=False)
        rows.loc[mine, "end_offset"] += change


def remove_records(
    draft: Draft, dice: Random, topic: str, partition: int, offsets: Sequence[int], *, delivered: bool, close: bool
) -> None:
    """Remove records from the log and all replicas. ``delivered`` keeps the rows of readers that had them before.

    ``close`` lets later records move up, as after a truncation that other records have overwritten; the producers'
    rows keep the offsets that were acknowledged.
    """
    draft.drop("log", at(draft.tables["log"], topic, partition, offsets))
    change_replicas(draft, dice, topic, partition, -len(offsets))
    rows = draft.tables["outcomes"]
    if not delivered:
        draft.drop(
            "outcomes", at(rows, topic, partition, offsets) & (rows["op"] == "consume").to_numpy(bool, na_value=False)
        )
    if close:
        rows = draft.tables["outcomes"]
        removed = np.sort(np.array(offsets, dtype="int64"))
        kept = at(rows, topic, partition, offsets)
        acknowledged = rows.loc[kept, "offset"].copy()
        renumber(draft, topic, partition, lambda old: old - np.searchsorted(removed, old))
        draft.table("outcomes").loc[kept, "offset"] = acknowledged
    recount(draft)


def insert_copy(
    draft: Draft, dice: Random, entry: int, after: int, *, delivered: bool = True, changes: Row | None = None
) -> int:
    """Insert a copy of the log's row ``entry`` after offset ``after`` of its partition; return the copy's offset.

    Later records move down by one. Each reader that had the record at ``after`` gets the copy with it.
    """
    copy = draft.tables["log"].loc[entry].to_dict()
    topic, partition = str(copy["topic"]), int(copy["partition"])
    renumber(draft, topic, partition, lambda old: old + (old > after))
    change_replicas(draft, dice, topic, partition, 1)
    copy |= {"offset": after + 1} | (changes or {})
    neighbour = draft.tables["log"][at(draft.tables["log"], topic, partition, [after])]
    if "leader_epoch" in copy:
        copy["leader_epoch"] = neighbour["leader_epoch"].iloc[0]
    draft.append("log", [copy])
    if delivered:
        rows = draft.tables["outcomes"]
        beside = rows[at(rows, topic, partition, [after]) & (rows["op"] == "consume").to_numpy(bool, na_value=False)]
        sent = rows[
            (rows["op"] == "produce") & (rows["producer_id"] == copy["producer_id"]) & (rows["seq"] == copy["seq"])
        ]
        mark = {name: copy[name] for name in ("producer_id", "seq")}
        mark["intended_us"] = sent["intended_us"].iloc[0] if len(sent) else beside["intended_us"].min()
        again = [row | mark | {"offset": after + 1} for row in beside.to_dict("records")]
        for row in again:
            if not pd.isna(row["high_watermark"]):
                row["high_watermark"] = max(int(row["high_watermark"]), after + 2)
        draft.append("outcomes", again)
    recount(draft)
    return after + 1


def mark_undecided(draft: Draft, rows: Sequence[int], error: str = "_TIMED_OUT", status: str = "in_doubt") -> None:
    """Let clients report rows of ``outcomes`` as in doubt, or as failed; a record has no offset then."""
    outcomes = draft.table("outcomes")
    records = [row for row in rows if outcomes.loc[row, "op"] == "produce"]
    outcomes.loc[records, ["offset", "leader_epoch"]] = pd.NA
    outcomes.loc[[*rows], "status"] = status
    outcomes.loc[[*rows], "error"] = error
    recount(draft)


def write_event(draft: Draft, event: Row) -> None:
    """Insert an event in the order of time."""
    events = draft.document("events.jsonl")
    place = next((number for number, row in enumerate(events) if row["t_us"] > event["t_us"]), len(events))
    events.insert(place, event)


def hold(
    draft: Draft,
    run: Anatomy,
    arm: str,
    op: str,
    start_us: int,
    end_us: int,
    *,
    topic: str | None = None,
    partition: int = 0,
) -> int:
    """Let nothing of a client succeed between two times: what ended in it ends right after it, in the same order.

    A reader commits nothing meanwhile. With ``topic`` only one partition stands still. Returns the number of rows.
    """
    rows = run.outcomes
    mine = rows[(rows["arm"] == arm) & (rows["op"] == op) & rows["done_us"].ge(start_us) & rows["done_us"].lt(end_us)]
    if topic is not None:
        mine = mine[(mine["topic"] == topic) & (mine["partition"] == partition)]
    mine = mine.sort_values("done_us")
    draft.table("outcomes").loc[mine.index, "done_us"] = [end_us + 20 * number for number in range(len(mine))]
    if op == "consume":
        events = draft.document("events.jsonl")
        events[:] = [
            event
            for event in events
            if event["event"] != "committed" or event.get("arm") != arm or not start_us <= event["t_us"] < end_us + S
        ]
    return len(mine)
