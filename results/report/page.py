"""Report ``report.html``, a self-contained page that works offline and states the verdict first.

The report is rendered from ``verdict.json``, ``analysis.json`` and the run's other documents, so no Spark is needed.
The only script of the page adds buttons that copy text; the content security policy allows no other script.

For each check that did not pass, the page has Markdown to paste into an issue, whose reader needs no access to the run:
the check's line of the plan, the observed value and the threshold, the events in the two seconds before and after the
check's moment, and the command that repeats the run. The moment of a check is the start of the longest stall (for
stalls and gaps), the slowest record (for latencies), the first sample that is among the slowest (for lost or duplicate
records), else the start of the check's window.
"""

import base64
import hashlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.redaction import redact
from aftershock.results.checks.obligations.lanes import lanes
from aftershock.results.checks.obligations.spans import Span
from aftershock.results.compare.runs import arms_of
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.phases import RUN, Interval
from aftershock.results.evidence.stored import analysis_of, older_version_note, trusted_in, verdict_of
from aftershock.results.explain.events import Event, Moment, event, forces, witness_text
from aftershock.results.explain.output import build_story
from aftershock.results.model import text
from aftershock.results.model.check import Check
from aftershock.results.model.text import cell, details, printable
from aftershock.results.report import plots, reading, tables
from aftershock.results.report.reading import band_of, confidences
from aftershock.results.report.svg import colours

AROUND_US = 2_000_000
EVENTS_MAX = 12
PASTED_MAX = 100


def pasted_by_check(checks: Iterable[Check], evidence: Evidence, analysis: Mapping[str, Any]) -> dict[Check, str]:
    """Return the Markdown about the first ``PASTED_MAX`` of ``checks``."""
    windows, plan = evidence.windows, evidence.home / "plan.yaml"
    lines = plan.read_text(encoding="utf-8", errors="replace").splitlines() if plan.is_file() else []
    timed = [(line["t_us"], _of_fault, line) for line in evidence.journal]
    timed += [
        (line["t_us"], _of_client, line)
        for line in evidence.events
        if line.get("event") not in ("counters", "phase") and isinstance(line.get("t_us"), int | float)
    ]
    timed.sort(key=lambda row: row[0])
    first = islice(checks, PASTED_MAX)
    return {check: _pasted(check, evidence, analysis, windows, lines, timed) for check in first}


_Windows = Mapping[str, tuple[Interval, ...]]
_Timed = Sequence[tuple[float, Callable[[Event], Moment], Event]]


def _pasted(
    check: Check,
    evidence: Evidence,
    analysis: Mapping[str, Any],
    windows: _Windows,
    plan: Sequence[str],
    timed: _Timed,
) -> str:
    text = f"**{check.status}: {cell(check.id)}** ({cell(check.subject)}): {cell(check.why)}\n\n"
    text += "".join(f"- {name}: {cell(value)}\n" for name, value in details(check))
    text += f"- run: {cell(str(evidence.run['run_id']))}\n"
    _, line, column = (check.at or "").rsplit(":", 2) if (check.at or "").count(":") > 1 else ("", "", "")
    if line.isdecimal() and column.isdecimal() and 0 < int(line) <= len(plan):
        text += f"\n{cell(check.at or '')}\n\n{_fenced(plan[int(line) - 1])}"
    at_us = moment_of(check, evidence, analysis, windows)
    if at_us is not None:
        text += f"\nTwo seconds around {at_us / 1e6:.3f} s:\n\n{_fenced(*_around(timed, at_us))}"
    if command := redact(str(evidence.run.get("command") or "")):  # an earlier version stored it as typed
        text += f"\nTo repeat the run:\n\n{_fenced(str(command))}"
    return text


def moment_of(check: Check, evidence: Evidence, analysis: Mapping[str, Any], windows: _Windows) -> int | None:
    """Return the moment that a failed check is about, in us of the run; None if the check is about the whole run."""
    window = check.phase or RUN
    spans = windows.get(window, ())
    keys = {client.key for client in evidence.clients if check.arm in (None, client.arm)}
    if check.kind == "obligation" or ".gap" in check.id or ".unavailable" in check.id:
        stalls = [
            stall
            for stall in analysis.get("stalls", ())
            if stall["client"] in keys
            and any(stall["start_us"] < end and start < stall["end_us"] for start, end in spans)
        ]
        if stalls:
            return int(max(stalls, key=lambda stall: stall["end_us"] - stall["start_us"])["start_us"])
    if check.kind in ("slo", "compare", "integrity"):
        # The check's own samples if they are among the slowest records, else, without samples, any slow record.
        groups = [group for group in analysis.get("slowest", ()) if group["client"] in keys]
        rows = [row for group in groups for row in group["records"]]
        if check.samples:
            records = [row for row in rows if (row["producer_id"], row["seq"]) in check.samples]
        else:
            records = [row for row in rows if any(start <= row["intended_us"] < end for start, end in spans)]
        if records:
            return int(records[0]["intended_us"])
    return spans[0][0] if spans and window != RUN else None


def _around(timed: _Timed, at_us: int) -> Iterator[str]:
    """Yield up to ``EVENTS_MAX`` lines of the journal and client events closest to a moment, in order of time."""
    low = bisect_left(timed, at_us - AROUND_US, key=itemgetter(0))
    high = bisect_right(timed, at_us + AROUND_US, key=itemgetter(0))
    # only the nearest events are formatted: there may be a hundred thousand in these seconds
    closest = nsmallest(EVENTS_MAX, timed[low:high], key=lambda row: abs(row[0] - at_us))
    near = [to_moment(line) for _, to_moment, line in closest]
    for moment in sorted(near, key=lambda moment: (moment.at_us, moment.text)):
        yield f"{moment.at_us / 1e6:9.3f} s  {moment}"[:160]
    if high - low > len(closest):
        yield f"and {high - low - len(closest)} more events, in journal.jsonl and events.jsonl"
    if low == high:
        yield "no event of the harness or a client was recorded in these seconds"


def _of_fault(line: Event) -> Moment:
    witness = f": {witness_text(line['witness'])}" if line.get("witness") else ""
    return Moment(line["t_us"], f"{line['fault']} {line['state']}{witness}")


def _of_client(line: Event) -> Moment:
    who = " ".join(str(line[name]) for name in ("arm", "op") if line.get(name))
    return Moment(line["t_us"], event(line), who or None)


def _fenced(*lines: str) -> str:
    """Return text in a Markdown code block whose fence is longer than any run of backticks in the text."""
    shown = [printable(line) for line in lines]
    ticks = "```"
    while any(ticks in line for line in shown):
        ticks += "`"
    return "\n".join([ticks, *shown, ticks, ""])


def filled(template: str, **values: object) -> str:
    """Render ``template`` with ``values``, the style sheet, the script, and the formatters of ``model/text.py``."""
    loader = PackageLoader("aftershock.results.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    css, script = (loader.get_source(environment, name)[0] for name in ("page.css", "copy.js"))
    environment.globals |= {
        "css": Markup(css),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "observed": text.observed,
        "threshold": text.threshold,
        "milliseconds": text.milliseconds,
        "megabytes": text.megabytes,
        "seconds": text.seconds,
        "tally": text.tally,
    }
    return text.visible(environment.get_template(template).render(values))


ATTENTION_MAX, OPEN_ROWS_MAX = 12, 30
CHECKS_MAX, ROWS_MAX, CHAPTERS_MAX = 100, 200, 100
"""Checks of a kind, rows of other tables, chapters of the story. A note gives the number of all, and where they are."""
_NEWER = {
    "spectra": "percentile spectra",
    "racks": "flows between racks",
    "lag": "lag and freshness",
    "perf": "the latency definition of kafka-producer-perf-test",
}


def _most_urgent(checks: Sequence[Check]) -> Sequence[Check]:
    """Return at most ``CHECKS_MAX`` checks; if some are left out, those that did not pass come first."""
    return checks if len(checks) <= CHECKS_MAX else text.by_urgency(checks)[:CHECKS_MAX]


def _recovery_us(row: Mapping[str, Any]) -> float:
    return math.inf if row["recovered_us"] is None else float(row["recovered_us"])


def write_report(run_dir: Path) -> Path:
    """Write the report of a judged run and return its path. Raises EvidenceError if the run was not judged."""
    evidence = read(run_dir, {}, trusted_in(run_dir))
    verdict, analysis = verdict_of(run_dir), analysis_of(run_dir)
    labels = evidence.labels
    lacking = [measurement for name, measurement in _NEWER.items() if name not in analysis]

    groups: dict[str, list[Check]] = {"objectives": []}  # SLOs first, then a group per kind, in the verdict's order
    for check in verdict.checks:
        if check.kind != "integrity":
            groups.setdefault("objectives" if check.kind in ("slo", "compare") else check.kind, []).append(check)
    obligations: dict[tuple[Span, ...], list[str]] = {}  # clients with equal obligations share a table
    for lane in lanes(evidence):
        obligations.setdefault(lane.in_load, []).append(f"{labels[lane.client.key]} {lane.side}")
    recoveries: dict[str, dict[str, Mapping[str, Any]]] = {step["id"]: {} for step in evidence.steps}
    for row in analysis["recoveries"]:
        recoveries.setdefault(row["fault"], {})[labels.get(row["client"], row["client"])] = row
    bands = confidences(analysis, labels)
    failed = text.problems(verdict)
    unproven = {check.id.partition("/")[2] for check in failed if check.kind in ("witness", "exposure")}
    steps = sorted(evidence.steps, key=lambda step: len(evidence.steps) > ROWS_MAX and step["id"] not in unproven)
    slowest = [(fault_id, rows) for fault_id, rows in recoveries.items() if rows]
    if len(slowest) > ROWS_MAX:
        slowest.sort(key=lambda pair: -max(_recovery_us(row) for row in pair[1].values()))
    story = build_story(evidence, verdict, analysis, CHAPTERS_MAX)
    integrity = [check for check in verdict.checks if check.kind == "integrity" or check.samples]
    definitions, flows = tables.latency_definitions(analysis, labels), analysis.get("racks", ())

    page = filled(
        "page.html",
        verdict=verdict,
        sentence=text.sentence(verdict),
        why=evidence.timeline.get("why"),
        answers=[(one.client, one.name, one.words) for one in verdict.answers],
        certainty=text.certainty(verdict),
        about=tables.about(evidence, verdict),
        troubled=failed,
        attention_max=ATTENTION_MAX,
        command=redact(str(evidence.run.get("command") or "")),  # of an earlier version: not redacted
        environment=tables.environment(evidence),
        older=older_version_note(evidence.home, ", ".join(lacking)) if lacking else None,
        groups=[(kind, checks, _most_urgent(checks)) for kind, checks in groups.items() if checks],
        explained=text.explained(verdict)[:ROWS_MAX],
        integrity=integrity,
        integrity_shown=_most_urgent(integrity),
        rows_max=ROWS_MAX,
        band_of=lambda check: band_of(check, bands),
        pasted=pasted_by_check(failed, evidence, analysis),
        anchors={check: f"check-{number}" for number, check in enumerate(verdict.checks, 1)},
        faults=[tables.fault(evidence, verdict, step) for step in steps[:ROWS_MAX]],
        fault_count=len(steps),
        colours=colours(evidence),
        lanes=[(", ".join(clients), spans) for spans, clients in obligations.items()],
        recoveries=slowest,
        lasting=analysis.get("recovery_definition", 1) > 1,
        not_before_heal=[
            f"{client} after {fault}"
            for fault, rows in slowest
            for client, row in rows.items()
            if row.get("before_heal") is False
        ],
        counters=tables.counters(evidence.events, labels),
        producers={number: labels.get(key, key) for number, key in sorted(evidence.producers.items())},
        story=story,
        chapter_count=len(forces(evidence)),
        metrics=plots.metrics(evidence, verdict.checks, analysis, labels),
        lag=plots.lag(evidence, analysis, labels),
        groups_of_members=plots.ownership(evidence, analysis, labels),
        forest=plots.forest(tables.ratios(verdict.checks, arms_of(evidence.home))),
        heat=tables.rack_table(flows, labels),
        heat_reading=reading.racks([row for row in flows if row["window"] == RUN], labels),
        unavailable=tables.unavailable(analysis, labels),
        unavailable_max=tables.UNAVAILABLE_MAX,
        ways=definitions,
        ways_reading=reading.perf(definitions),
        way_quantiles=tables.PERF_QUANTILES,
        quantiles=tables.QUANTILES,
        open_rows_max=OPEN_ROWS_MAX,
        spreads=tables.spreads(evidence, analysis, labels),
    )
    return write_whole(run_dir / "report.html", page)
