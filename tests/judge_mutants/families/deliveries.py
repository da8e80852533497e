"""Defects of deliveries: skipped, beyond the high watermark, repeated, or to a member without partitions."""

from random import Random

import pandas as pd

from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, Lane, S, Tenure
from aftershock.tests.judge_mutants.draft import Draft, recount
from aftershock.tests.judge_mutants.kinds import Plant, kind

AGAIN = ("integrity/duplicate", "integrity/commit_behind")
STRANGER = ("integrity/stale_assignment", "integrity/co_owned", "integrity/duplicate")


def deliver_again(draft: Draft, rows: pd.DataFrame, start_us: int, end_us: int, worker: str | None = None) -> None:
    """Deliver rows of ``outcomes`` again, in their order, between two times; to ``worker``, or to the same member."""
    base = draft.tables["outcomes"].loc[rows.index].to_dict("records")
    step = max(1, (end_us - start_us) // (len(base) + 1))
    for number, row in enumerate(base, 1):
        row["done_us"] = start_us + number * step
        if worker is not None:
            row["member"] = None
            if "worker" in row:
                row["worker"] = worker
    draft.append("outcomes", base)
    recount(draft)


@kind("deliveries", "a reader passes over a record that is in the log and in doubt at its producer")
def skipped_in_doubt(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        got = run.records[
            (run.records["topic"] == lane.topic)
            & (run.records["partition"] == lane.partition)
            & run.records["offset"].isin(lane.rows["offset"].iloc[5:-5])
            & (run.records["intended_us"] >= run.steady_us)
        ]
        if got.empty:
            continue
        record = got.iloc[dice.randrange(len(got))]
        offset, arm = int(record["offset"]), lane.client.arm
        edits.mark_undecided(draft, [int(record["row"])])
        rows = draft.tables["outcomes"]
        mine = ((rows["arm"] == arm) & (rows["op"] == "consume")).to_numpy(bool, na_value=False)
        draft.drop("outcomes", mine & edits.at(rows, lane.topic, lane.partition, [offset]))
        recount(draft)
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{offset}"
        checks = ("integrity/skipped", "integrity/lost")
        return Plant(place, checks, arm, "consume", touched=frozenset({arm, str(record["arm"])}))
    return None


@kind("deliveries", "a broker hands out records beyond its high watermark for six seconds")
def beyond_the_high_watermark(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        rows = lane.rows
        if not run.own_watermarks(lane.client) or rows["high_watermark"].isna().any() or len(rows) < 50:
            continue
        start = int(rows["done_us"].iloc[dice.randrange(len(rows) // 2)])
        span = rows[(rows["done_us"] >= start) & (rows["done_us"] < start + 6 * S)]
        if len(span) < 10:
            continue
        draft.table("outcomes").loc[span.index, "high_watermark"] = int(span["offset"].iloc[0])
        arm = lane.client.arm
        place = f"{lane.worker}: {lane.topic}/{lane.partition} from {start / S:.1f} s"
        return Plant(place, ("integrity/beyond",), arm, "consume", touched=frozenset({arm}))
    return None


@kind("deliveries", "a reader goes back and reads records again, without an assignment or a reset")
def read_again_without_assignment(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        rows = lane.rows
        count = dice.randint(1, 20)
        if len(rows) < 2 * count + 10:
            continue
        last = dice.randrange(count, len(rows) - 5)
        again = rows.iloc[last - count : last]
        at_us, next_us = int(again["done_us"].max()), int(rows["done_us"].iloc[last:].min())
        tenure = run.tenure_at(lane, int(again["done_us"].min()))
        resets = [e for e in run.events if e["event"] in ("position_reset", "position_found") and lane.client.wrote(e)]
        near = [e for e in resets if int(again["done_us"].min()) - S < e["t_us"] < next_us + S]
        if tenure is None or tenure.end_us <= next_us or near or next_us - at_us < count:
            continue
        deliver_again(draft, again, at_us, next_us)
        arm = lane.client.arm
        place = f"{lane.worker}: {count} of {lane.topic}/{lane.partition} at {at_us / S:.2f} s"
        return Plant(place, ("integrity/duplicate",), arm, "consume", touched=frozenset({arm}))
    return None


@kind("deliveries", "one offset is delivered twice in a row to one member")
def delivered_twice_in_a_row(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        if len(lane.rows) < 20:
            continue
        row = lane.rows.iloc[[dice.randrange(10, len(lane.rows))]]
        at_us = int(row["done_us"].iloc[0])
        if run.tenure_at(lane, at_us + 2) is None or run.tenure_at(lane, at_us - S) is None:
            continue
        deliver_again(draft, row, at_us, at_us + 2)
        arm = lane.client.arm
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{row['offset'].iloc[0]}"
        return Plant(place, ("integrity/duplicate",), arm, "consume", touched=frozenset({arm}))
    return None


def _last_commit(run: Anatomy, lane: Lane, before_us: int) -> int | None:
    """Return the highest position of the lane's partition that its group had committed before a time."""
    found = [
        entry[2]
        for event in run.events
        if event["event"] == "committed" and event["t_us"] < before_us and lane.client.wrote(event)
        for entry in event["offsets"]
        if entry[0] == lane.topic and entry[1] == lane.partition
    ]
    return max(found, default=None)


@kind("deliveries", "after an assignment a reader begins below the last commit of its group")
def resumed_below_the_commit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Deliver records below the last commit again, right after a partition came to a member that has a predecessor."""
    for lane in run.some_lanes(dice):
        starts = [
            each.start_us
            for each in run.tenures
            if (each.arm, each.workload, each.worker, each.topic, each.partition)
            == (lane.client.arm, lane.client.workload, lane.worker, lane.topic, lane.partition)
            and each.start_us > run.load_start_us
        ]
        for start in dice.sample(starts, len(starts)):
            committed = _last_commit(run, lane, start - S)
            first = lane.rows[lane.rows["done_us"] > start]
            if committed is None or first.empty or int(first["offset"].iloc[0]) < committed:
                continue
            everyone = pd.concat(
                [
                    each.rows
                    for each in run.lanes
                    if each.client == lane.client and (each.topic, each.partition) == (lane.topic, lane.partition)
                ]
            )
            count = dice.randint(1, 30)
            again = everyone[
                (everyone["offset"] >= committed - count)
                & (everyone["offset"] < committed)
                & (everyone["done_us"] < start)
            ]
            again = again.drop_duplicates("offset").sort_values("offset")
            until = int(first["done_us"].iloc[0])
            if again.empty or until - start < 2 * len(again):
                continue
            deliver_again(draft, again, start, until, lane.worker)
            arm = lane.client.arm
            where = f"{lane.topic}/{lane.partition} below commit {committed}"
            place = f"{lane.worker}: {len(again)} of {where} at {start / S:.2f} s"
            return Plant(place, AGAIN, arm, "consume", touched=frozenset({arm}))
    return None


def _ended(run: Anatomy, dice: Random) -> list[tuple[Tenure, Lane]]:
    """Return tenures that ended during the load, with the lane of their deliveries, in random order."""
    pairs = [
        (tenure, lane)
        for tenure in run.tenures
        if tenure.ended and tenure.end_us > run.load_start_us
        for lane in run.lanes
        if (lane.client.arm, lane.client.workload, lane.worker, lane.topic, lane.partition)
        == (tenure.arm, tenure.workload, tenure.worker, tenure.topic, tenure.partition)
    ]
    return dice.sample(pairs, len(pairs))


@kind("deliveries", "a member delivers records of a partition that it has given up")
def delivered_after_giving_up(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for tenure, lane in _ended(run, dice):
        again_owner = [
            e
            for e in run.tenures
            if (e.worker, e.topic, e.partition) == (tenure.worker, tenure.topic, tenure.partition)
            and e.start_us >= tenure.end_us
        ]
        free_us = min((each.start_us for each in again_owner), default=tenure.end_us + 10 * S)
        rows = lane.rows[lane.rows["done_us"] < tenure.end_us]
        if len(rows) < 10 or free_us - tenure.end_us < 2 * S:
            continue
        moved = rows.iloc[-dice.randint(1, 10) :]
        start_us = tenure.end_us + S
        if dice.random() < 0.5:
            outcomes = draft.table("outcomes")
            outcomes.loc[moved.index, "done_us"] = [start_us + 1000 * number for number in range(len(moved))]
        else:
            deliver_again(draft, moved, start_us, start_us + 500_000)
        arm = lane.client.arm
        place = f"{lane.worker}: {len(moved)} of {lane.topic}/{lane.partition} after {tenure.end_us / S:.2f} s"
        return Plant(place, STRANGER, arm, "consume", touched=frozenset({arm}))
    return None


@kind("deliveries", "a member delivers records of a partition that was never assigned to it")
def delivered_without_assignment(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    owned = {(each.worker, each.topic, each.partition) for each in run.tenures}
    for lane in run.some_lanes(dice):
        workers = [name for name in lane.client.workers("consume") if (name, lane.topic, lane.partition) not in owned]
        known = {each.worker for each in run.lanes if each.client == lane.client}
        workers = [name for name in workers if name in known]
        if not workers or len(lane.rows) < 20:
            continue
        first = dice.randrange(len(lane.rows) - 10)
        rows = lane.rows.iloc[first : first + dice.randint(1, 10)]
        at_us, arm = int(rows["done_us"].max()), lane.client.arm
        worker = dice.choice(workers)
        deliver_again(draft, rows, at_us, at_us + 200_000, worker)
        place = f"{worker}: {len(rows)} of {lane.topic}/{lane.partition} at {at_us / S:.2f} s"
        return Plant(place, STRANGER, arm, "consume", touched=frozenset({arm}))
    return None


@kind("deliveries", "records are delivered again at the end, to a member that no longer owns anything")
def delivered_again_after_the_end(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        last = [each for each in run.tenures if each.worker == lane.worker and each.ended]
        still = [each for each in run.tenures if each.worker == lane.worker and not each.ended]
        if not last or still or len(lane.rows) < 10:
            continue
        rows = lane.rows.iloc[-dice.randint(1, 10) :]
        start_us = max(each.end_us for each in last) + S
        deliver_again(draft, rows, start_us, start_us + 100_000)
        arm = lane.client.arm
        place = f"{lane.worker}: the last {len(rows)} of {lane.topic}/{lane.partition}"
        return Plant(place, STRANGER, arm, "consume", touched=frozenset({arm}))
    return None


@kind("deliveries", "a reader delivers a record that nobody sent")
def delivered_and_never_sent(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        if len(lane.rows) < 10:
            continue
        row = lane.rows.iloc[dice.randrange(5, len(lane.rows))]
        outcomes = draft.table("outcomes")
        outcomes.loc[row.name, "seq"] = int(run.run.tables["outcomes"]["seq"].max()) + dice.randint(1, 1000)
        arm = lane.client.arm
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{row['offset']}"
        checks = ("integrity/phantom", "integrity/collision", "integrity/lost")
        return Plant(place, checks, arm, "consume", touched=frozenset({arm}))
    return None


@kind("deliveries", "a reader gets two neighbouring records with each other's marks")
def delivered_with_anothers_mark(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for lane in run.some_lanes(dice):
        if len(lane.rows) < 10:
            continue
        number = dice.randrange(1, len(lane.rows))
        one, two = lane.rows.index[number - 1], lane.rows.index[number]
        marks = ["producer_id", "seq", "intended_us"]
        if lane.rows.loc[one, marks].tolist() == lane.rows.loc[two, marks].tolist():
            continue
        outcomes = draft.table("outcomes")
        first, second = outcomes.loc[one, marks].tolist(), outcomes.loc[two, marks].tolist()
        outcomes.loc[one, marks], outcomes.loc[two, marks] = second, first
        arm = lane.client.arm
        place = f"{lane.worker}: {lane.topic}/{lane.partition}@{lane.rows.loc[one, 'offset']} and the next"
        checks = ("integrity/collision", "integrity/order", "integrity/corrupt", "integrity/misplaced")
        return Plant(place, checks, arm, "consume", touched=frozenset({arm}))
    return None
