"""Defects of documents: a line, an event, a phase or a figure that a rule needs is missing or contradicts the rest."""

import json
from pathlib import Path
from random import Random

from aftershock.results.evidence import manifest
from aftershock.tests.judge_mutants.anatomy import Anatomy, S
from aftershock.tests.judge_mutants.draft import Draft
from aftershock.tests.judge_mutants.kinds import Plant, kind

_STATES = ("injected", "witnessed", "healed")


@kind("documents", "the journal has no line of one state of a fault")
def journal_line_removed(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    if not run.faults:
        return None
    fault = dice.choice(run.faults).name
    state = dice.choice(
        [each for each in _STATES if any((row["fault"], row["state"]) == (fault, each) for row in run.journal)]
    )
    journal = draft.document("journal.jsonl")
    journal[:] = [line for line in journal if (line["fault"], line["state"]) != (fault, state)]
    return Plant(f"{fault}: {state}", ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "a fault of the timeline is not in the journal at all")
def fault_without_journal(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    if not run.faults:
        return None
    fault = dice.choice(run.faults).name
    journal = draft.document("journal.jsonl")
    journal[:] = [line for line in journal if line["fault"] != fault]
    return Plant(fault, ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "a line of the journal was changed, and its checksum was not")
def journal_line_changed(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    if not run.journal or "crc" not in run.journal[0]:
        return None
    number = dice.randrange(len(run.journal))

    def spoil(home: Path) -> None:
        path = home / "journal.jsonl"
        lines = path.read_bytes().split(b"\n")
        lines[number] = lines[number].replace(b'"t_us": ', b'"t_us": 1', 1)
        path.write_bytes(b"\n".join(lines))
        (home / manifest.NAME).write_text(json.dumps(manifest.manifest_of(home)))

    draft.spoilt.append(spoil)
    return Plant(f"line {number + 1}", ("",), status="INCONCLUSIVE", error=True)


def _without_event(run: Anatomy, draft: Draft, dice: Random, name: str) -> Plant | None:
    """Remove all events of a name by one member that has deliveries."""
    workers = sorted({lane.worker for lane in run.lanes})
    workers = [
        each
        for each in workers
        if any((e["event"], e.get("worker")) == (name, each) and e.get("partitions") for e in run.events)
    ]
    if not workers:
        return None
    worker = dice.choice(workers)
    arm = next(lane.client.arm for lane in run.lanes if lane.worker == worker)
    events = draft.document("events.jsonl")
    events[:] = [event for event in events if (event["event"], event.get("worker")) != (name, worker)]
    return Plant(
        f"{worker}: {name}", ("integrity/", "harness/", "obligation/", "slo/"), arm, status="INCONCLUSIVE", error=True
    )


@kind("documents", "a member has deliveries, and no event says that a partition was assigned to it")
def assignments_removed(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _without_event(run, draft, dice, "assigned")


@kind("documents", "a member gave partitions up to another member, and no event says so")
def revocations_removed(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove the ends of a tenure after which another member owned the partition."""
    ends = ("revoked", "lost", "partitions_lost")
    told = {(event.get("worker"), event["t_us"]) for event in run.events if event["event"] in ends}
    pairs = [
        one
        for one in run.tenures
        for two in run.tenures
        if one.ended
        and (one.worker, one.end_us) in told
        and (one.arm, one.workload, one.topic, one.partition) == (two.arm, two.workload, two.topic, two.partition)
        and one.worker != two.worker
        and one.end_us <= two.start_us < run.load_end_us - 5 * S
        and two.end_us > two.start_us + 3 * S
    ]
    if not pairs:
        return None
    tenure = dice.choice(pairs)
    events = draft.document("events.jsonl")
    gone = [
        event
        for event in events
        if event["event"] in ends and event.get("worker") == tenure.worker and event["t_us"] == tenure.end_us
    ]
    events[:] = [event for event in events if event not in gone]
    place = f"{tenure.worker}: {tenure.topic}/{tenure.partition} at {tenure.end_us / S:.1f} s"
    return Plant(
        place, ("integrity/", "harness/", "obligation/", "slo/"), tenure.arm, status="INCONCLUSIVE", error=True
    )


@kind("documents", "the phases are some seconds beside the times in the journal")
def phases_shifted(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    if not run.faults:
        return None
    shift = dice.choice([-1, 1]) * dice.randint(3 * S, 10 * S)
    for phase in draft.document("phases.json"):
        phase["start_us"] += shift
        phase["end_us"] += shift
    return Plant(f"by {shift / S:.1f} s", ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "the window of a fault is missing in the phases")
def phase_removed(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    names = [fault.name for fault in run.faults]
    if not names:
        return None
    name = dice.choice(names)
    phases = draft.document("phases.json")
    if not any(phase["fault"] == name for phase in phases):
        return None
    phases[:] = [phase for phase in phases if phase["fault"] != name]
    return Plant(name, ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "a file differs from its digest in the manifest")
def digest_differs(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    names = ["plan.yaml", *run.run.documents, *(f"{table}/part-0.parquet" for table in run.run.tables)]
    name = dice.choice(names)

    def spoil(home: Path) -> None:
        with (home / name).open("ab") as file:
            file.write(b"\n")

    draft.spoilt.append(spoil)
    return Plant(name, ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "a file that the manifest names is missing")
def file_missing(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    name = dice.choice([*run.run.documents, *(f"{table}/part-0.parquet" for table in run.run.tables)])
    draft.spoilt.append(lambda home: (home / name).unlink())
    return Plant(name, ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "the run says that it did not finish")
def run_not_complete(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run, dice
    draft.document("run.json").update(status="interrupted", why="SIGINT")
    return Plant("run.json", ("harness/complete",), status="INCONCLUSIVE", error=True)


@kind("documents", "a producer of the plan is not in the run's list of producers")
def producer_not_listed(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    producers = draft.document("run.json")["producers"]
    ours = [row for row in producers if run.client_of(row["workload"], row["arm"])]
    if not ours:
        return None
    row = dice.choice(ours)
    producers.remove(row)
    return Plant(f"producer {row['producer_id']} of {row['arm']}", ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "the timeline has a rate 20 to 100 % above the rows")
def rate_raised(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    del run
    workloads = [each for each in draft.document("timeline.json")["workloads"] if each.get("produce")]
    if not workloads:
        return None
    workload = dice.choice(workloads)
    factor = dice.uniform(1.2, 2.0)
    workload["produce"]["rate_per_s"] *= factor
    return Plant(f"{workload['name']}: times {factor:.2f}", ("",), status="INCONCLUSIVE", error=True)


@kind("documents", "a column of a table has no values, which every version has recorded")
def column_without_values(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Remove the offsets, partitions, times or marks of one arm's deliveries."""
    if not run.lanes:
        return None
    column = dice.choice(["offset", "partition", "done_us", "producer_id"])
    arm = dice.choice(run.lanes).client.arm
    rows = draft.table("outcomes")
    rows.loc[((rows["op"] == "consume") & (rows["arm"] == arm)).to_numpy(bool, na_value=False), column] = None
    return Plant(f"{arm}: {column}", ("",), arm, "consume", "INCONCLUSIVE", error=True)
