"""Edits that a correct run can show: the judge must blame no client for them.

``unknown`` edits remove an optional field: a rule may say that it can't tell, but nothing may FAIL.
"""

from random import Random

import numpy as np
import pandas as pd

from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, S
from aftershock.tests.judge_mutants.draft import Draft, renumber
from aftershock.tests.judge_mutants.families.commits import commits_of
from aftershock.tests.judge_mutants.families.deliveries import deliver_again
from aftershock.tests.judge_mutants.families.records import cut_at_an_election
from aftershock.tests.judge_mutants.kinds import Plant, kind

_EVIDENCE_TIMES = ("intended_us", "deadline_us", "sent_us", "done_us", "t_us")


@kind("harmless", "nothing: the run as it was recorded")
def unedited(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, draft, dice
    return Plant("the whole run")


@kind("harmless", "the rows of all tables in another order")
def rows_shuffled(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for name, rows in run.run.tables.items():
        order = np.random.default_rng(dice.getrandbits(32)).permutation(len(rows))
        draft.replace(name, rows.iloc[order].reset_index(drop=True))
    return Plant("all tables")


@kind("harmless", "the rows of all tables in more files")
def rows_in_more_files(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    draft.parts = {name: dice.randint(2, 6) for name in run.run.tables}
    return Plant(", ".join(f"{name} in {parts}" for name, parts in draft.parts.items()))


@kind("harmless", "events of different processes that happened within 50 ms in another order of lines")
def event_lines_interleaved(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Keep the order of each process: lines of several writers reach the file in any order."""
    events = draft.document("events.jsonl")
    keyed: list[tuple[float, int]] = []
    last: dict[object, float] = {}
    for number, event in enumerate(events):
        who = event.get("worker")
        time = max(event["t_us"] + dice.uniform(0, 50_000), last.get(who, 0))
        last[who] = time
        keyed.append((time, number))
    events[:] = [events[number] for _, number in sorted(keyed)]
    del run
    return Plant("events.jsonl")


@kind("harmless", "two commits of a member whose responses were reported in the other order")
def commit_callbacks_out_of_order(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Let the response of the earlier commit come 5 ms after that of the next commit; it was sent when it was."""
    for commits in commits_of(run, dice):
        for number in dice.sample(range(1, len(commits)), len(commits) - 1):
            one, two = commits[number - 1], commits[number]
            following = commits[number + 1].sent_us if number + 1 < len(commits) else two.done_us + S
            if one.event == two.event or two.done_us - one.done_us > 10 * S or following < two.done_us + 10_000:
                continue
            events = draft.document("events.jsonl")
            late = events[one.event]
            moved = late | {"t_us": two.done_us + 5000}
            if "took_us" in late:
                moved["took_us"] = moved["t_us"] - one.sent_us
            events.pop(one.event)
            edits.write_event(draft, moved)
            place = f"{one.worker}: {one.offset} after {two.offset} of {one.topic}/{one.partition}"
            return Plant(place, unknown=not one.timed)
    return None


def _without(column: str, place: str, draft: Draft, table: str = "outcomes") -> Plant | None:
    rows = draft.tables.get(table)
    if rows is None or column not in rows.columns or rows[column].isna().all():
        return None
    draft.table(table)[column] = pd.Series([None] * len(rows), dtype=rows[column].dtype)
    return Plant(place, unknown=True)


@kind("harmless", "no client tells the attempts of its records")
def attempts_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    return _without("attempts", "outcomes", draft)


@kind("harmless", "no client tells leader epochs")
def epochs_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    return _without("leader_epoch", "outcomes", draft)


@kind("harmless", "no client tells which broker answered")
def brokers_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    _without("broker_rack", "outcomes", draft)
    return _without("broker_id", "outcomes", draft)


@kind("harmless", "no client tells high watermarks")
def high_watermarks_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    return _without("high_watermark", "outcomes", draft)


@kind("harmless", "no client tells offsets of acknowledgements")
def acknowledged_offsets_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del dice
    if run.produced.empty:
        return None
    rows = draft.table("outcomes")
    rows.loc[(rows["op"] == "produce").to_numpy(bool, na_value=False), "offset"] = pd.NA
    return Plant("outcomes", unknown=True)


@kind("harmless", "no client tells how long its commits took")
def commit_times_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    timed = [event for event in draft.document("events.jsonl") if event.pop("took_us", None) is not None]
    return Plant(f"{len(timed)} commits", unknown=True) if timed else None


@kind("harmless", "the log and the documents of an older version, without leader epochs")
def epoch_history_not_kept(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    if "leaders.jsonl" not in draft.documents:
        return None
    del draft.documents["leaders.jsonl"]
    if "leader_epoch" in draft.tables["log"].columns:
        draft.replace("log", draft.tables["log"].drop(columns="leader_epoch"))
    return Plant("leaders.jsonl, log", unknown=True)


@kind("harmless", "no client says what it reports")
def reports_not_told(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    told = draft.document("run.json").pop("reports", None)
    return Plant("run.json", unknown=True) if told else None


@kind("harmless", "no client compares values")
def values_not_compared(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove what is known about the comparison of values: a client need not compare them, and no check may fail."""
    document = draft.document("run.json")
    if not document.get("values_compared"):
        return None
    document.pop("values_compared")
    for names in document.get("reports", {}).values():
        if "values" in names:
            names.remove("values")
    del run, dice
    return Plant("run.json", unknown=True)


@kind("harmless", "replicas were not compared")
def replicas_not_read(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    return Plant("replicas", unknown=True) if draft.tables.pop("replicas", None) is not None else None


@kind("harmless", "events and fields that a later version writes")
def unknown_events(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    for event in draft.document("events.jsonl"):
        if dice.random() < 0.2:
            event["since_version"] = "9.9"
    for _ in range(10):
        at_us = dice.randrange(run.load_start_us, run.load_end_us)
        edits.write_event(draft, {"t_us": at_us, "event": "weather_changed", "arm": None, "to": "rain"})
    return Plant("events.jsonl")


@kind("harmless", "all times are later by the same amount, as in a run that took longer to launch")
def times_shifted(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    shift = dice.randint(S, 1000 * S)
    for name, rows in run.run.tables.items():
        for column in {*_EVIDENCE_TIMES} & {*rows.columns}:
            draft.table(name)[column] += shift
    for name in ("journal.jsonl", "events.jsonl"):
        for line in draft.document(name):
            for key in ("t_us", "since_us", "until_us", "before_us"):
                if isinstance(line.get(key), int):
                    line[key] += shift
    for phase in draft.document("phases.json"):
        phase["start_us"] += shift
        phase["end_us"] += shift
    marks = draft.document("run.json")["marks"]
    marks.update({name: value + shift for name, value in marks.items() if name.endswith("_us")})
    for line in draft.document("leaders.jsonl") if "leaders.jsonl" in draft.documents else ():
        for key in ("after_us", "by_us"):
            if line[key] is not None:
                line[key] += shift
    return Plant(f"by {shift / S:.1f} s")


@kind("harmless", "the offsets of a partition are higher by the same amount: the topic had records before the run")
def offsets_shifted(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    if run.records.empty:
        return None
    topic, partition = dice.choice(sorted({*zip(run.records["topic"], run.records["partition"], strict=True)}))
    shift = dice.randint(1, 100_000)
    renumber(draft, topic, int(partition), lambda old: old + shift)
    return Plant(f"{topic}/{partition} by {shift}")


def _one_record(run: Anatomy, draft: Draft, dice: Random, status: str, error: str, *, gone: bool) -> Plant | None:
    outcomes = draft.table("outcomes")
    ends_us = outcomes.loc[run.records["row"], "deadline_us"].to_numpy()
    rows = run.records[(run.records["intended_us"] >= run.steady_us) & (ends_us <= run.load_end_us)]
    if rows.empty:
        return None
    record = rows.iloc[dice.randrange(len(rows))]
    if status == "in_doubt":  # a producer that doubts earlier gives the record up
        outcomes.loc[record["row"], "done_us"] = outcomes.loc[record["row"], "deadline_us"]
    edits.mark_undecided(draft, [int(record["row"])], error, status)
    topic, partition, offset = str(record["topic"]), int(record["partition"]), int(record["offset"])
    if gone:
        edits.remove_records(draft, dice, topic, partition, [offset], delivered=False, close=True)
    return Plant(f"producer {record['producer_id']} record {record['seq']}", slo=False)


@kind("harmless", "a record in doubt that is nowhere")
def in_doubt_and_nowhere(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _one_record(run, draft, dice, "in_doubt", "_TIMED_OUT", gone=True)


@kind("harmless", "a record in doubt that is in the log and was delivered")
def in_doubt_and_written(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _one_record(run, draft, dice, "in_doubt", "_TIMED_OUT", gone=False)


@kind("harmless", "a record that failed for good and is nowhere")
def failed_and_nowhere(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _one_record(run, draft, dice, "failed", "MSG_SIZE_TOO_LARGE", gone=True)


@kind(
    "harmless", "records of acks=1 are lost, and a later leader, elected after their acknowledgement, begins below them"
)
def loss_with_its_cause(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    found = cut_at_an_election(run, draft, dice, ("0", "1"))
    return None if found is None else Plant(found[0], slo=False)


@kind("harmless", "a new owner reads again from the last commit of the former owner")
def read_again_from_the_last_commit(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove the last commits before a change of owner; the new owner begins at the last one that is left."""
    pairs = [
        (one, two)
        for one in run.tenures
        for two in run.tenures
        if (one.arm, one.workload, one.topic, one.partition) == (two.arm, two.workload, two.topic, two.partition)
        and one.worker != two.worker
        and one.ended
        and one.end_us <= two.start_us < run.load_end_us
    ]
    events = draft.document("events.jsonl")
    for former, owner in dice.sample(pairs, len(pairs)):
        owners = [
            e for e in run.tenures if (e.arm, e.topic, e.partition) == (former.arm, former.topic, former.partition)
        ]
        between = [
            each
            for each in owners
            if each not in (former, owner) and former.start_us < each.end_us and each.start_us < owner.end_us
        ]
        mine = [
            (event, entry)
            for event in events
            if event["event"] == "committed" and event.get("arm") == former.arm and event["t_us"] < owner.start_us
            for entry in event["offsets"]
            if entry[:2] == [former.topic, former.partition]
        ]
        lanes = [
            lane
            for lane in run.lanes
            if (lane.client.arm, lane.topic, lane.partition) == (former.arm, former.topic, former.partition)
        ]
        got = pd.concat([lane.rows for lane in lanes]) if lanes else run.delivered.iloc[:0]
        first = got[(got["worker"] == owner.worker) & (got["done_us"] > owner.start_us)].sort_values("done_us")
        if between or len(mine) < 3 or first.empty:
            continue
        resumed = int(first["offset"].iloc[0])
        drop = dice.randint(1, min(3, len(mine) - 2))
        left = max(entry[2] for _, entry in mine[:-drop])
        again = got[(got["offset"] >= left) & (got["offset"] < resumed) & (got["done_us"] < former.end_us)]
        again = again.drop_duplicates("offset").sort_values("offset")
        until = int(first["done_us"].iloc[0])
        contiguous = len(again) == resumed - left
        if (
            again.empty
            or not contiguous
            or until - owner.start_us < 2 * len(again)
            or resumed != max(e[2] for _, e in mine)
        ):
            continue
        for event, entry in mine[-drop:]:
            event["offsets"].remove(entry)
        events[:] = [event for event in events if event["event"] != "committed" or event["offsets"]]
        for event in events:
            found = event["event"] == "position_found" and event.get("worker") == owner.worker
            if found and (event["topic"], event["partition"], event["offset"]) == (
                owner.topic,
                owner.partition,
                resumed,
            ):
                event["offset"] = left
        deliver_again(draft, again, owner.start_us, until, owner.worker)
        place = (
            f"{owner.worker}: {len(again)} of {owner.topic}/{owner.partition} from {left} at {owner.start_us / S:.2f} s"
        )
        return Plant(place, slo=False)
    return None


@kind("harmless", "a record without idempotence is in the log twice, and the leader changed between the two")
def written_twice_at_a_change_of_leader(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Write a record of the old epoch again at the start of the new one; its acknowledgement is that of the second."""
    if not run.traceable:
        return None
    choices = [
        (topic, int(partition), line)
        for topic, partition in sorted({*zip(run.records["topic"], run.records["partition"], strict=True)})
        for line in run.epochs(topic, int(partition))[1:]
        if line["start_offset"] and line["by_us"] is not None
    ]
    for topic, partition, line in dice.sample(choices, len(choices)):
        rows = run.records[(run.records["topic"] == topic) & (run.records["partition"] == partition)]
        start = int(line["start_offset"])
        old = rows[rows["offset"].between(start - 3, start - 1).to_numpy(bool, na_value=False)]
        new = rows[(rows["offset"] == start).to_numpy(bool, na_value=False)]
        old = old[
            [
                not (client := run.client_of(w, a)) or not client.idempotent
                for w, a in zip(old["workload"], old["arm"], strict=True)
            ]
        ]
        if old.empty or new.empty or new["epoch"].isna().any():
            continue
        record = old.iloc[-1]
        done = int(new["done_us"].iloc[0])
        if record["done_us"] > done or line["by_us"] > done:
            continue
        again = edits.insert_copy(draft, dice, int(record["entry"]), start)
        outcomes = draft.table("outcomes")
        row = int(record["row"])
        outcomes.loc[row, "done_us"] = done + 1000
        if not pd.isna(outcomes.loc[row, "offset"]):
            outcomes.loc[row, "offset"] = again
        if "attempts" in outcomes.columns and not pd.isna(outcomes.loc[row, "attempts"]):
            outcomes.loc[row, "attempts"] = 2
        if not pd.isna(outcomes.loc[row, "leader_epoch"]):
            outcomes.loc[row, "leader_epoch"] = int(line["epoch"])
        place = f"{topic}/{partition}@{record['offset']} and @{again}, epoch {line['epoch']} begins at {start}"
        return Plant(place, slo=False)
    return None


@kind("harmless", "a slow second: acknowledgements are late by less than the limits, and nothing else")
def slightly_late(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Delay one producer's acknowledgements of half a second by 20 ms."""
    if run.produced.empty:
        return None
    at_us = dice.randrange(run.steady_us, run.load_end_us)
    arm = dice.choice(sorted({*run.produced["arm"]}))
    rows = run.produced[(run.produced["arm"] == arm) & run.produced["intended_us"].between(at_us, at_us + S // 2)]
    rows = rows[rows["status"] == "ok"]
    if rows.empty:
        return None
    draft.table("outcomes").loc[rows.index, "done_us"] = rows["done_us"] + 20_000
    return Plant(f"{arm} from {at_us / S:.1f} s", slo=False)
