"""Provisional verdict on a run in progress (``aftershock verdict --so-far``), or on one whose runner was killed.

The run's files are only read. The evidence of a moment is linked or copied into a folder beside the run, judged there
like the evidence of any unfinished run, and removed:

1. The runner moves rows to the disk every minute, and records each move as the event ``saved``, with the time
   ``before_us``. Whatever a client did before that time is in the files. Later deliveries, events and lines of the
   journal are left out, because their counterparts may not be on the disk yet.
2. Records are judged up to ``until_us``, which is early enough that each record has its final status, and that no fault
   is in force: the longest deadline and GRACE_US before the last move, or the start of the first fault that had not
   healed by then.
3. Checks that need the final read of the topics, the run's end, or a window without enough records so far are not
   judged. An SLO whose window may still grow fails only if no later record can change that (`_is_final`).
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from aftershock.errors import AftershockError, EvidenceError, Log
from aftershock.faults.timeline.timeline import Marks, Phase, Timeline, from_json, phases
from aftershock.harness.safety import ownership
from aftershock.results.evidence import manifest
from aftershock.results.evidence.files import current_parts, read_lines, read_object
from aftershock.results.judge import judge
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.slo import Count, Measure, Slo, parse
from aftershock.workloads.adapters.sending import GRACE_US

_TRIES = 10  # of a snapshot while the runner moves rows


def judge_so_far(run_dir: Path, master: str | None, log: Log, *, exhaustive: bool = False) -> Verdict:
    """Judge what a run has saved; a run that has ended gets its final verdict.

    Raises AftershockError if the run has not saved anything yet.
    """
    facts = read_object(run_dir / "run.json")
    if facts.get("status") == "complete" or (run_dir / manifest.NAME).exists():
        log(f"{run_dir}: the run has ended, so its verdict is final")
        return judge(run_dir, master, log, exhaustive=exhaustive)
    owner = str(facts.get("owner", ""))
    state = "the run is in progress"
    if facts.get("status") != "running":
        state = f"the run is {facts.get('status')}: {facts.get('why')}"
    elif (liveness := ownership.liveness(owner)) == "dead":
        rescue = f"aftershock heal --run {run_dir.name}"
        state = f"the run's process has died, and rows since the last move may still be in memory; save them: {rescue}"
    elif liveness == "unknown":
        state = "the run's process may be alive, on another host or in another container"
    log(f"{run_dir}: {state}")
    try:
        folder = tempfile.mkdtemp(prefix=".so-far-", dir=run_dir.resolve().parent)
    except OSError:  # the folder of the runs is read-only
        folder = tempfile.mkdtemp(prefix="aftershock-so-far-")
    try:
        home = Path(folder) / run_dir.name
        until_us, timeline, windows = _snapshot(run_dir, home)
        # the judge's remark that the evidence has no digests would name the copy
        verdict = judge(home, master, lambda line: None if str(home) in line else log(line), exhaustive=exhaustive)
        return _provisional(verdict, timeline, windows, until_us, state)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _snapshot(run_dir: Path, home: Path) -> tuple[int, Timeline, Sequence[Phase]]:
    """Write the evidence to judge to the new folder ``home``; return its end, the plan's timeline, and the windows."""
    events = read_lines(run_dir / "events.jsonl")
    saved_us = max((line["before_us"] for line in events if line["event"] == "saved"), default=None)
    if saved_us is None:
        raise AftershockError(f"{run_dir}: the run has saved no rows yet, which it does every minute; try again later")
    events = [line for line in events if line["t_us"] < saved_us]
    journal = [line for line in read_lines(run_dir / "journal.jsonl") if line["t_us"] < saved_us]
    home.mkdir()
    # no check of what is judged may be doubted because the run is not over
    facts = read_object(run_dir / "run.json") | {"status": "complete"}
    (home / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    for name in ("plan.yaml", "expectations.jsonl"):
        with suppress(FileNotFoundError):
            shutil.copyfile(run_dir / name, home / name)
    for name, lines in (("events.jsonl", events), ("journal.jsonl", journal)):
        (home / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for table in ("outcomes", "metrics"):
        for attempt in range(_TRIES):
            (home / table).mkdir()
            try:
                names = current_parts([f"{table}/{path.name}" for path in (run_dir / table).glob("[!._]*.parquet")])
                for name in names:
                    _link(run_dir / name, home / name)
                break
            except FileNotFoundError as error:  # the runner replaced the file meanwhile
                shutil.rmtree(home / table)
                if attempt == _TRIES - 1:
                    raise EvidenceError(f"{run_dir / table}: files disappear while they are read; try again") from error
    for path in (home / "outcomes").iterdir():
        _drop_later_deliveries(path, saved_us)

    document = json.loads((run_dir / "timeline.json").read_bytes())
    timeline = from_json((run_dir / "timeline.json").read_bytes())
    parts = [workload.get(op) or {} for workload in timeline.workloads for op in ("produce", "commit")]
    until_us = saved_us - max((part.get("deadline_ms", 0) * 1000 for part in parts), default=0) - GRACE_US
    # the clients' schedule starts a moment after the order
    began = {line["phase"]: line.get("start_us", line["t_us"]) for line in reversed(events) if line["event"] == "phase"}
    windows: list[Phase] = []
    if "steady" in began:
        steady_us = began["steady"]
        windows = _windows(journal, timeline, (began["warmup"], steady_us, began.get("fault")), until_us)
        until_us = max(until_us if not windows else windows[-1].end_us, steady_us)
    judged = {window.fault for window in windows if window.fault}
    document["steps"] = [step for step in document["steps"] if step["id"] in judged]
    (home / "timeline.json").write_text(json.dumps(document), encoding="utf-8")
    (home / "phases.json").write_text(json.dumps([window.as_json() for window in windows]), encoding="utf-8")
    names = sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    document = {"schema_version": manifest.SCHEMA_VERSION, "files": names}
    (home / manifest.NAME).write_text(json.dumps(document), encoding="utf-8")
    return until_us, timeline, windows


def _windows(
    journal: Sequence[Mapping[str, Any]], timeline: Timeline, began_us: tuple[int, int, int | None], until_us: int
) -> list[Phase]:
    """Return the windows before ``until_us``, or before the first fault that had not healed by then."""
    warmup_us, steady_us, fault_us = began_us
    while True:
        faults_us = min(until_us, fault_us if fault_us is not None else until_us)
        found = phases(journal, Marks(warmup_us, steady_us, faults_us, until_us), timeline)
        healed = {line["fault"] for line in journal if line["state"] == "healed"}
        no_end = {step.id for step in timeline.steps if step.for_ms is None}
        open_us = [
            window.start_us
            for window in found
            if window.fault and (window.end_us > until_us or window.fault not in healed | no_end)
        ]
        earliest_us = min(open_us, default=until_us)
        if earliest_us >= until_us:
            break
        until_us = earliest_us
    found = [window for window in found if window.start_us < until_us]
    ended = [replace(window, end_us=min(window.end_us, until_us)) for window in found]
    return sorted(ended, key=lambda window: window.end_us)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another filesystem
        shutil.copyfile(source, target)


def _drop_later_deliveries(path: Path, saved_us: int) -> None:
    """Rewrite a copied file of a consumer without deliveries after ``saved_us``."""
    file = pq.ParquetFile(path)
    column = file.schema_arrow.get_field_index("done_us")
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    statistics = [group.column(column).statistics for group in groups]
    if all(found is not None and found.has_min_max and found.max < saved_us for found in statistics):
        return
    rows = file.read()
    later = pc.and_(pc.equal(rows["op"], "consume"), pc.greater_equal(rows["done_us"], saved_us))
    path.unlink()  # a link to the run's own file
    pq.write_table(rows.filter(pc.invert(pc.fill_null(later, False))), path)


def _provisional(verdict: Verdict, timeline: Timeline, windows: Sequence[Phase], until_us: int, state: str) -> Verdict:
    slos: dict[str, Slo] = {}
    for objective in timeline.slo:
        parsed = parse(objective.text)
        slos.setdefault(parsed.check_id(), parsed)
    had = {window.fault for window in windows} | {window.entry for window in windows}
    to_come = {name for step in timeline.steps if step.id not in had for name in (step.id, step.entry)}
    faults_began = any(window.fault for window in windows)
    checks: list[Check] = []
    omitted: list[str] = []
    for check in verdict.checks:
        slo = slos.get(check.id) or slos.get(re.sub(r"-\d+$", "", check.id))
        grows = check.phase is None or check.phase in ("fault", "recovery")
        grows |= check.phase == "steady" and not faults_began
        grows |= (check.phase or "").removeprefix("fault/") in to_come
        too_few = slo is not None and grows and check.n < check.minimum
        needs_the_end = check.kind == "integrity" or isinstance(slo, Count) or too_few
        needs_the_end &= check.status is Status.INCONCLUSIVE
        losses = check.id == "integrity/lost" or (isinstance(slo, Count) and slo.rule == "lost")
        unread = isinstance(slo, Measure) and slo.side == "consume" and check.censored > 0
        # before the steady phase nobody knows how many records are due in the judged time
        not_yet = check.id.startswith("harness/load") and not windows
        if needs_the_end or losses or not_yet or check.id in ("harness/complete", "harness/abort"):
            omitted.append(check.id)
        elif slo and check.status is Status.FAIL and (unread or (grows and not _is_final(slo))):
            why, advice = f"so far {check.why}, and the run is not over", "judge the run again when it is over"
            checks.append(replace(check, status=Status.INCONCLUSIVE, why=why, next=advice))
        else:
            checks.append(check)
    provisional = {"state": state, "until_us": until_us, "not_judged": sorted({*omitted})}
    return replace(verdict, checks=tuple(checks), provisional=provisional)


def _is_final(slo: Slo) -> bool:
    """Return True if an SLO that failed so far can't pass when the run is over."""
    if isinstance(slo, Measure):
        of = slo.of
        grows_only = of.every_us is not None or of.aggregate == "max" or of.about.source in ("gap", "stalls")
        return grows_only and slo.threshold_us is not None and slo.op in ("<", "<=")
    return not isinstance(slo, Count) or slo.op in ("<", "<=", "==")
