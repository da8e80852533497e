"""Defects of replicas: shorter than the log or than each other, different, or not read."""

from random import Random

import pandas as pd

from aftershock.tests.judge_mutants.anatomy import Anatomy
from aftershock.tests.judge_mutants.draft import Draft
from aftershock.tests.judge_mutants.kinds import Plant, kind

REPLICA = ("integrity/replica",)


def _partition(run: Anatomy, draft: Draft, dice: Random, least: int) -> pd.DataFrame | None:
    """Return the last stretch of each replica of a random partition with at least ``least`` replicas."""
    if "replicas" not in draft.tables:
        return None
    rows = draft.tables["replicas"]
    rows = rows[rows["records"].notna() & rows["records"].gt(0).fillna(False)]
    rows = rows[rows["topic"].isin({*run.records["topic"]})]
    last = rows.sort_values("start_offset").drop_duplicates(["topic", "partition", "broker_id"], keep="last")
    groups = [part for _, part in last.groupby(["topic", "partition"]) if len(part) >= least]
    return dice.choice(groups) if groups else None


def _where(part: pd.DataFrame) -> str:
    return f"{part['topic'].iloc[0]}/{part['partition'].iloc[0]}"


def _shorten(draft: Draft, dice: Random, rows: pd.DataFrame) -> str:
    """Cut some records off the end of replicas, by as many on each."""
    cut = dice.randint(1, min(20, int(rows["records"].min())))
    table = draft.table("replicas")
    table.loc[rows.index, "end_offset"] -= cut
    table.loc[rows.index, "records"] -= cut
    table.loc[rows.index, "fingerprint"] = table.loc[rows.index, "fingerprint"].to_numpy("int64") ^ dice.getrandbits(62)
    return f"{_where(rows)}: {cut} records of brokers {', '.join(map(str, rows['broker_id']))}"


@kind("replicas", "one replica is shorter than the others")
def one_replica_shorter(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    part = _partition(run, draft, dice, 2)
    if part is None:
        return None
    return Plant(_shorten(draft, dice, part.iloc[[dice.randrange(len(part))]]), REPLICA, touched=frozenset())


@kind("replicas", "all but one replica are shorter")
def all_but_one_replica_shorter(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    part = _partition(run, draft, dice, 3)
    return None if part is None else Plant(_shorten(draft, dice, part.iloc[1:]), REPLICA, touched=frozenset())


@kind("replicas", "all replicas are alike, and shorter than the log")
def all_replicas_shorter_than_the_log(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    part = _partition(run, draft, dice, 1)
    return None if part is None else Plant(_shorten(draft, dice, part), REPLICA, touched=frozenset())


@kind("replicas", "one replica has other content")
def one_replica_differs(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    part = _partition(run, draft, dice, 2)
    if part is None:
        return None
    row = part.index[dice.randrange(len(part))]
    table = draft.table("replicas")
    table.loc[row, "fingerprint"] = int(table.loc[row, "fingerprint"]) ^ (1 + dice.getrandbits(60))
    return Plant(f"{_where(part)} of broker {table.loc[row, 'broker_id']}", REPLICA, touched=frozenset())


@kind("replicas", "one replica has a record less between the same offsets")
def one_replica_has_a_hole(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    part = _partition(run, draft, dice, 2)
    if part is None:
        return None
    row = part.index[dice.randrange(len(part))]
    table = draft.table("replicas")
    table.loc[row, "records"] -= 1
    table.loc[row, "fingerprint"] = int(table.loc[row, "fingerprint"]) ^ (1 + dice.getrandbits(60))
    return Plant(f"{_where(part)} of broker {table.loc[row, 'broker_id']}", REPLICA, touched=frozenset())


@kind("replicas", "all replicas are alike, and have a record less than the log")
def all_replicas_have_a_hole(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    part = _partition(run, draft, dice, 1)
    if part is None:
        return None
    table = draft.table("replicas")
    table.loc[part.index, "records"] -= 1
    table.loc[part.index, "fingerprint"] = table.loc[part.index, "fingerprint"].to_numpy("int64") ^ (
        1 + dice.getrandbits(60)
    )
    return Plant(_where(part), REPLICA, touched=frozenset())


@kind("replicas", "one replica was not read")
def one_replica_not_read(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove the replica's rows, or let them say that the broker did not answer."""
    part = _partition(run, draft, dice, 2)
    if part is None:
        return None
    one = part.iloc[dice.randrange(len(part))]
    rows = draft.table("replicas")
    mine = (
        (rows["topic"] == one["topic"])
        & (rows["partition"] == one["partition"])
        & (rows["broker_id"] == one["broker_id"])
    ).to_numpy(bool, na_value=False)
    if dice.random() < 0.5:
        draft.drop("replicas", mine)
    else:
        rows.loc[mine, ["records", "fingerprint"]] = pd.NA
        rows.loc[mine, "error"] = "broker did not answer"
    return Plant(f"{_where(part)} of broker {one['broker_id']}", REPLICA, status="INCONCLUSIVE", touched=frozenset())
