"""Defects of the load: rows that the plan's rate and the phases require, and that the evidence does not have."""

from random import Random

import numpy as np
import pandas as pd

from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, S
from aftershock.tests.judge_mutants.draft import Draft, recount, renumber
from aftershock.tests.judge_mutants.kinds import Plant, kind

MISSING = ("harness/", "integrity/", "obligation/")


def forget(draft: Draft, dice: Random, gone: pd.DataFrame) -> None:
    """Remove records as if they had never been due: producers' rows, log, deliveries; later records move up."""
    keys = pd.MultiIndex.from_frame(gone[["producer_id", "seq"]])
    outcomes, log = draft.tables["outcomes"], draft.tables["log"]
    records = (outcomes["op"] != "commit").to_numpy(bool, na_value=False)
    draft.drop("outcomes", records & pd.MultiIndex.from_frame(outcomes[["producer_id", "seq"]]).isin(keys))
    entries = pd.MultiIndex.from_frame(log[["producer_id", "seq"]]).isin(keys)
    removed = log[entries]
    draft.drop("log", entries)
    for (topic, partition), part in removed.groupby(["topic", "partition"]):
        offsets = np.sort(part["offset"].to_numpy("int64"))
        edits.change_replicas(draft, dice, topic, int(partition), -len(offsets))
        renumber(draft, topic, int(partition), lambda old, known=offsets: old - np.searchsorted(known, old))
    recount(draft)


def _of_one_producer(run: Anatomy, dice: Random) -> tuple[str, pd.DataFrame] | None:
    """Return the arm and the rows of one producer process."""
    ids = sorted({*run.produced["producer_id"].dropna()})
    if not ids:
        return None
    rows = run.produced[run.produced["producer_id"] == dice.choice(ids)]
    return str(rows["arm"].iloc[0]), rows


def _missing(draft: Draft, dice: Random, arm: str, gone: pd.DataFrame, place: str) -> Plant | None:
    if len(gone) < 20:
        return None
    forget(draft, dice, gone)
    return Plant(place, MISSING, arm, status="INCONCLUSIVE")


@kind("load", "the rows of a producer end early: at least a tenth of the load is missing")
def rows_end_early(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = _of_one_producer(run, dice)
    if found is None:
        return None
    arm, rows = found
    length = run.load_end_us - run.load_start_us
    end = run.load_end_us - int(length * dice.uniform(0.1, 0.5))
    return _missing(draft, dice, arm, rows[rows["intended_us"] >= end], f"{arm}: no rows from {end / S:.1f} s on")


@kind("load", "a producer has no rows for two to eight seconds")
def gap_of_one_producer(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = _of_one_producer(run, dice)
    if found is None:
        return None
    arm, rows = found
    length = dice.randint(2 * S, 8 * S)
    start = dice.randrange(run.steady_us, max(run.steady_us + 1, run.load_end_us - length))
    gone = rows[rows["intended_us"].between(start, start + length)]
    return _missing(draft, dice, arm, gone, f"{arm}: no rows from {start / S:.1f} s for {length / S:.1f} s")


@kind("load", "no client has rows of records that were due in two to eight seconds")
def gap_of_all_rows(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    length = dice.randint(2 * S, 8 * S)
    start = dice.randrange(run.steady_us, max(run.steady_us + 1, run.load_end_us - length))
    everyone = run.run.tables["outcomes"]
    sent = everyone[everyone["op"] == "produce"]
    gone = sent[sent["intended_us"].between(start, start + length)]
    if len(gone) < 20:
        return None
    rows = draft.tables["outcomes"]
    draft.drop(
        "outcomes",
        ((rows["op"] == "commit") & rows["intended_us"].between(start, start + length)).to_numpy(bool, na_value=False),
    )
    forget(draft, dice, gone)
    return Plant(f"{start / S:.1f} s to {(start + length) / S:.1f} s", MISSING, status="INCONCLUSIVE")


@kind("load", "a producer has 5 to 30 % fewer rows than its rate asks for")
def too_few_rows(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = _of_one_producer(run, dice)
    if found is None:
        return None
    arm, rows = found
    share = dice.uniform(0.05, 0.3)
    gone = rows[[dice.random() < share for _ in range(len(rows))]]
    return _missing(draft, dice, arm, gone, f"{arm}: {share:.0%} of the rows")


@kind("load", "a producer process has no rows at all")
def producer_without_rows(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = _of_one_producer(run, dice)
    if found is None:
        return None
    arm, rows = found
    return _missing(draft, dice, arm, rows, f"{arm}: producer {rows['producer_id'].iloc[0]}")


@kind("load", "a committing client has 20 % fewer rows than its rate asks for")
def too_few_commits(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    arms = sorted({*run.commits["arm"]})
    if not arms:
        return None
    arm = dice.choice(arms)
    rows = run.commits[run.commits["arm"] == arm]
    start = dice.uniform(0.2, 0.8)
    end = run.load_end_us - int((run.load_end_us - run.load_start_us) * (1 - start))
    gone = (
        rows[rows["intended_us"] >= end]
        if dice.random() < 0.5
        else rows[[dice.random() < 0.2 for _ in range(len(rows))]]
    )
    if len(gone) < 20:
        return None
    keep = np.ones(len(draft.tables["outcomes"]), bool)
    keep[gone.index] = False
    draft.drop("outcomes", ~keep)
    recount(draft)
    return Plant(f"{arm}: {len(gone)} of {len(rows)} commits", MISSING, arm, status="INCONCLUSIVE")


@kind("load", "all rows of one consumer process are missing")
def member_without_rows(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove the process's rows, and leave its events: it says that it owned and committed."""
    if not run.lanes:
        return None
    lane = dice.choice(run.lanes)
    rows = run.delivered[run.delivered["worker"] == lane.worker]
    keep = np.ones(len(draft.tables["outcomes"]), bool)
    keep[rows.index] = False
    draft.drop("outcomes", ~keep)
    recount(draft)
    arm = lane.client.arm
    return Plant(
        f"{lane.worker}: {len(rows)} deliveries", MISSING, arm, status="INCONCLUSIVE", touched=frozenset({arm})
    )


@kind("load", "a partition of a topic has no rows anywhere: producers, log, readers")
def partition_without_rows(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove every record of the partition, so that the sequence numbers of its producers have gaps."""
    if run.records.empty:
        return None
    pick = run.records.iloc[dice.randrange(len(run.records))]
    rows = run.run.tables["log"]
    gone = rows[(rows["topic"] == pick["topic"]) & (rows["partition"] == pick["partition"]) & rows["seq"].notna()]
    if len(gone) < 20:
        return None
    forget(draft, dice, gone)
    return Plant(f"{pick['topic']}/{pick['partition']}", MISSING, status="INCONCLUSIVE")


@kind("load", "a partition is missing in the log that was read at the end")
def partition_missing_in_the_log(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    if run.records.empty:
        return None
    pick = run.records.iloc[dice.randrange(len(run.records))]
    log = draft.tables["log"]
    draft.drop(
        "log",
        ((log["topic"] == pick["topic"]) & (log["partition"] == pick["partition"])).to_numpy(bool, na_value=False),
    )
    topic = str(pick["topic"])
    return Plant(f"{topic}/{pick['partition']}", MISSING, status="INCONCLUSIVE", touched=run.touched(topic))


@kind("load", "a topic is missing in the log that was read at the end")
def topic_missing_in_the_log(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    topics = sorted({*run.records["topic"]})
    if not topics:
        return None
    topic = dice.choice(topics)
    draft.drop("log", (draft.tables["log"]["topic"] == topic).to_numpy(bool, na_value=False))
    return Plant(topic, MISSING, status="INCONCLUSIVE", touched=run.touched(topic))


@kind("load", "some rows of a producer are in the evidence twice")
def rows_twice(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = _of_one_producer(run, dice)
    if found is None:
        return None
    arm, rows = found
    count = dice.randint(20, 200)
    if len(rows) < 2 * count:
        return None
    first = dice.randrange(len(rows) - count)
    again = draft.tables["outcomes"].loc[rows.index[first : first + count]]
    draft.replace("outcomes", pd.concat([draft.tables["outcomes"], again], ignore_index=True))
    recount(draft)
    return Plant(f"{arm}: {count} rows", MISSING, arm, status="INCONCLUSIVE")
