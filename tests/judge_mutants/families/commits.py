"""Defects of commits: ahead of what was read, backward, lost at the coordinator, or accepted from a former owner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pandas as pd

from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, S
from aftershock.tests.judge_mutants.draft import Draft
from aftershock.tests.judge_mutants.kinds import Plant, kind


@dataclass(frozen=True)
class Commit:
    """One partition's entry in a ``committed`` event: ``event`` and ``entry`` are its places in the lists."""

    event: int
    entry: int
    arm: str
    worker: str
    topic: str
    partition: int
    offset: int
    sent_us: int
    done_us: int
    timed: bool


def commits_of(run: Anatomy, dice: Random) -> list[list[Commit]]:
    """Return the commits of each member and partition in the order of their responses, the groups in random order."""
    found: dict[tuple[str, str, str, int], list[Commit]] = {}
    for number, event in enumerate(run.events):
        client = run.client_of(event.get("workload", ""), event.get("arm", ""))
        if event["event"] != "committed" or client is None or event.get("op") != "consume":
            continue
        for place, (topic, partition, offset) in enumerate(event["offsets"]):
            done = int(event["t_us"])
            took = event.get("took_us")
            who = str(event.get("worker", client.key))
            commit = Commit(
                number, place, client.arm, who, topic, partition, offset, done - (took or 0), done, took is not None
            )
            found.setdefault((client.key, who, topic, partition), []).append(commit)
    return dice.sample(list(found.values()), len(found))


def _assigned_between(run: Anatomy, commit: Commit, start_us: int, end_us: int) -> bool:
    return any(
        start_us - S < change < end_us + S
        for each in run.tenures
        if (each.arm, each.topic, each.partition) == (commit.arm, commit.topic, commit.partition)
        for change in (each.start_us, each.end_us)
    )


def _delivered(run: Anatomy, commit: Commit) -> pd.DataFrame:
    """Return the deliveries of the commit's partition to its group, by time."""
    rows = run.delivered
    mine = (rows["arm"] == commit.arm) & (rows["topic"] == commit.topic) & (rows["partition"] == commit.partition)
    return rows[mine.to_numpy(bool, na_value=False)].sort_values("done_us")


@kind("commits", "a commit was sent ahead of what was read, and acknowledged when it had been read")
def ahead_when_it_was_sent(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Move a commit's sending back by two to five seconds, to a time at which its records had not been delivered."""
    for commits in commits_of(run, dice):
        for number in dice.sample(range(1, len(commits)), len(commits) - 1):
            commit, before = commits[number], commits[number - 1]
            sent = commit.sent_us - dice.randint(2 * S, 5 * S)
            got = _delivered(run, commit)
            later = got[(got["done_us"] > sent + 100_000) & (got["offset"] < commit.offset)]
            if (
                not commit.timed
                or len(later) < 5
                or sent < before.done_us
                or _assigned_between(run, commit, sent, commit.done_us)
            ):
                continue
            draft.document("events.jsonl")[commit.event]["took_us"] = commit.done_us - sent
            place = f"{commit.worker}: {commit.topic}/{commit.partition} to {commit.offset}, sent at {sent / S:.3f} s"
            return Plant(place, ("integrity/commit_ahead",), commit.arm, "consume", touched=frozenset({commit.arm}))
    return None


@kind("commits", "a commit is ahead of what was read when it is acknowledged")
def ahead_when_it_was_acknowledged(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Raise a commit beyond the next delivery, but not beyond the next commit."""
    for commits in commits_of(run, dice):
        for number in dice.sample(range(len(commits)), len(commits)):
            commit = commits[number]
            got = _delivered(run, commit)
            later = got[(got["done_us"] > commit.done_us + 100_000) & (got["offset"] >= commit.offset)]
            ahead = int(later["offset"].min()) + dice.randint(2, 20) if len(later) else 0
            limit = commits[number + 1].offset if number + 1 < len(commits) else ahead
            if not commit.offset < ahead <= limit or _assigned_between(run, commit, commit.sent_us, commit.done_us):
                continue
            draft.document("events.jsonl")[commit.event]["offsets"][commit.entry][2] = ahead
            place = f"{commit.worker}: {commit.topic}/{commit.partition} to {ahead} and not {commit.offset}"
            return Plant(place, ("integrity/commit_ahead",), commit.arm, "consume", touched=frozenset({commit.arm}))
    return None


@kind("commits", "a member commits a position below one that it committed before")
def backward_commit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for commits in commits_of(run, dice):
        for number in dice.sample(range(1, len(commits)), len(commits) - 1):
            commit, before = commits[number], commits[number - 1]
            if (
                before.offset < 2
                or commit.sent_us < before.done_us
                or _assigned_between(run, commit, before.sent_us, commit.done_us)
            ):
                continue
            back = before.offset - dice.randint(1, min(20, before.offset))
            draft.document("events.jsonl")[commit.event]["offsets"][commit.entry][2] = back
            place = f"{commit.worker}: {commit.topic}/{commit.partition} to {back} after {before.offset}"
            checks, status = ("integrity/backward",), "FAIL" if commit.timed else "INCONCLUSIVE"
            return Plant(place, checks, commit.arm, "consume", status, touched=frozenset({commit.arm}))
    return None


def _handovers(run: Anatomy, dice: Random) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of tenures of one partition by two members of a group, the second after the first."""
    pairs = [
        (one, two)
        for one in run.tenures
        for two in run.tenures
        if (one.arm, one.workload, one.topic, one.partition) == (two.arm, two.workload, two.topic, two.partition)
        and one.worker != two.worker
        and one.ended
        and one.end_us <= two.start_us < run.load_end_us
        and two.end_us > two.start_us + 3 * S
    ]
    yield from dice.sample(pairs, len(pairs))


@kind("commits", "Kafka accepts a commit from a member after another member got the partition")
def accepted_from_a_former_owner(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for former, owner in _handovers(run, dice):
        back = [
            e
            for e in run.tenures
            if (e.worker, e.topic, e.partition) == (former.worker, former.topic, former.partition)
            and e.start_us > former.end_us
        ]
        known = [
            (event, entry[2])
            for event in run.events
            if event["event"] == "committed" and event.get("worker") == former.worker and event["t_us"] < former.end_us
            for entry in event["offsets"]
            if entry[:2] == [former.topic, former.partition]
        ]
        at_us = owner.start_us + 2 * S
        if not known or any(each.start_us < at_us + S for each in back):
            continue
        event, offset = known[-1]
        copy = {**event, "t_us": at_us, "offsets": [[former.topic, former.partition, offset]]}
        if "took_us" in event:
            copy["took_us"] = 20_000
        edits.write_event(draft, copy)
        place = (
            f"{former.worker}: {former.topic}/{former.partition} at {at_us / S:.2f} s, until {former.end_us / S:.2f}"
        )
        checks = ("integrity/fenced", "integrity/backward")
        return Plant(place, checks, former.arm, "consume", touched=frozenset({former.arm}))
    return None


def _acknowledged(run: Anatomy) -> pd.DataFrame:
    """Return the last acknowledged commit of each group and partition of commit workloads."""
    rows = run.commits[(run.commits["status"] == "ok") & run.commits["offset"].notna()]
    return rows.sort_values("done_us").drop_duplicates(["group", "topic", "partition"], keep="last")


def _entries(draft: Draft, row: Mapping[Any, Any]) -> "pd.Series[bool]":
    log = draft.tables["offsets"]
    mine = (
        (log["group"] == row["group"]) & (log["topic"] == row["topic"]) & (log["topic_partition"] == row["partition"])
    )
    return mine.fillna(False).astype(bool)


def _some_acknowledged(run: Anatomy, draft: Draft, dice: Random) -> Mapping[Any, Any] | None:
    if "offsets" not in draft.tables:
        return None
    rows = _acknowledged(run)
    rows = rows[rows["offset"] >= 2]
    return rows.iloc[dice.randrange(len(rows))].to_dict() if len(rows) else None


@kind("commits", "the last acknowledged commits of a group are not in its coordinator's log")
def lost_at_the_coordinator(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    row = _some_acknowledged(run, draft, dice)
    if row is None:
        return None
    lowest = int(row["offset"]) - dice.randrange(min(200, int(row["offset"])))
    gone = _entries(draft, row) & draft.tables["offsets"]["committed"].ge(lowest).fillna(False).astype(bool)
    if not gone.any():
        return None
    draft.drop("offsets", gone)
    status = "FAIL" if "leaders.jsonl" in run.run.documents or not run.faults else "INCONCLUSIVE"
    place = f"{row['group']} on {row['topic']}/{row['partition']} from {lowest} to {row['offset']}"
    return Plant(place, ("integrity/lost",), row["arm"], "commit", status, touched=frozenset({row["arm"]}))


@kind("commits", "a coordinator's log ends with a position below the last acknowledged commit of the group")
def coordinator_ends_lower(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Append an older position at the end of the coordinator's log: a consumer would resume there."""
    row = _some_acknowledged(run, draft, dice)
    if row is None:
        return None
    log = draft.tables["offsets"]
    mine = log[_entries(draft, row)]
    if mine.empty:
        return None
    last = mine.sort_values("offset").iloc[-1].to_dict()
    end = (
        int(log.loc[(log["partition"] == last["partition"]) & (log["broker_id"] == last["broker_id"]), "offset"].max())
        + 1
    )
    lower = max(0, int(row["offset"]) - dice.randint(1, 200))
    draft.append("offsets", [last | {"offset": end, "batch": end, "committed": lower}])
    place = f"{row['group']} on {row['topic']}/{row['partition']}: {lower} after {row['offset']}"
    checks = ("integrity/lost", "integrity/backward", "integrity/commit_behind")
    status = "FAIL" if "leaders.jsonl" in run.run.documents or not run.faults else "INCONCLUSIVE"
    return Plant(place, checks, row["arm"], "commit", status, touched=frozenset({row["arm"]}))
