"""A check that did not pass as Markdown, for an issue: readable without access to the run.

The text has the plan's line, the observed value and the threshold, what happened in the two seconds around, and the
command that repeats the run. The moment is the start of the longest stall for stalls and gaps, the slowest record for
latencies, the first sample that is among the slowest for lost or duplicate records, else the start of the check's
window.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aftershock.results.checks.check import Check
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval, windows_of
from aftershock.results.explain.events import Moment, event, witness_text
from aftershock.results.text import cell, details, printable

AROUND_US = 2_000_000
EVENTS_MAX = 12
_CHARS_MAX = 160
_COUNTERS = {"counters", "phase"}


def pasted(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> str:
    """Return the whole text."""
    return "".join(_lines(check, evidence, analysis))


def _lines(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> Iterator[str]:
    yield f"**{check.status}: {cell(check.id)}** ({cell(check.subject)}): {cell(check.why)}\n\n"
    yield from (f"- {name}: {cell(value)}\n" for name, value in details(check))
    yield f"- run: {cell(str(evidence.run['run_id']))}\n"
    if line := plan_line(evidence.home, check.at):
        yield f"\n{check.at}\n\n{_fenced(line)}"
    at_us = moment_of(check, evidence, analysis)
    if at_us is not None:
        yield f"\nTwo seconds around {at_us / 1e6:.3f} s:\n\n{_fenced(*_around(evidence, at_us))}"
    if command := evidence.run.get("command"):
        yield f"\nTo repeat it:\n\n{_fenced(str(command))}"


def plan_line(home: Path, at: str | None) -> str | None:
    """Return the text of the plan's line at ``demo.yaml:21:5``; None if it is no line of the plan or has no copy."""
    file, line, column = (at or "").rsplit(":", 2) if (at or "").count(":") > 1 else ("", "", "")
    plan = home / "plan.yaml"
    if not (file and line.isdigit() and column.isdigit() and plan.is_file()):
        return None
    lines = plan.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[int(line) - 1] if 0 < int(line) <= len(lines) else None


def moment_of(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> int | None:
    """Return the moment to look at in microseconds of the run, None if the check has no moment."""
    window = check.phase or RUN
    spans = windows_of(evidence.phases).get(window, ())
    stalled = check.kind == "obligation" or ".gap" in check.id or ".unavailable" in check.id
    finders = [_stall_us, _slow_us] if stalled else [_slow_us]
    for finder in finders:
        if (at_us := finder(check, evidence, analysis, spans)) is not None:
            return at_us
    return spans[0][0] if spans and window != RUN else None


def _stall_us(check: Check, evidence: Evidence, analysis: Mapping[str, Any], spans: Sequence[Interval]) -> int | None:
    keys = _keys(check, evidence)
    stalls = [
        stall
        for stall in analysis.get("stalls", ())
        if stall["client"] in keys and any(stall["start_us"] < end and start < stall["end_us"] for start, end in spans)
    ]
    longest = max(stalls, key=lambda stall: stall["end_us"] - stall["start_us"], default=None)
    return None if longest is None else int(longest["start_us"])


def _slow_us(check: Check, evidence: Evidence, analysis: Mapping[str, Any], spans: Sequence[Interval]) -> int | None:
    """Return the moment of the check's own samples if they are known, else of any slow record in its window."""
    if check.kind not in ("slo", "compare", "integrity"):
        return None
    keys = _keys(check, evidence)
    groups = [group for group in analysis.get("slowest", ()) if group["client"] in keys]
    rows = [row for group in groups for row in group["records"]]
    named = [row for row in rows if (row["producer_id"], row["seq"]) in check.samples]
    if check.samples and not named:
        return None
    within = [row for row in rows if any(start <= row["intended_us"] < end for start, end in spans)]
    chosen = next(iter(named or within), None)
    return None if chosen is None else int(chosen["intended_us"])


def _keys(check: Check, evidence: Evidence) -> set[str]:
    return {client.key for client in evidence.clients if check.arm in (None, client.arm)}


def _around(evidence: Evidence, at_us: int) -> Iterator[str]:
    """Yield the lines of journal and events around a moment, in order, at most ``EVENTS_MAX``."""
    moments = [*_journal(evidence), *_events(evidence)]
    near = sorted(moment for moment in moments if abs(moment.at_us - at_us) <= AROUND_US)
    closest = sorted(near, key=lambda moment: abs(moment.at_us - at_us))[:EVENTS_MAX]
    for moment in sorted(closest):
        yield f"{moment.at_us / 1e6:9.3f} s  {moment.said}"[:_CHARS_MAX]
    if len(near) > len(closest):
        yield f"and {len(near) - len(closest)} more, in journal.jsonl and events.jsonl"
    if not near:
        yield "no events of the harness or a client"


def _journal(evidence: Evidence) -> Iterator[Moment]:
    for line in evidence.journal:
        witness = f": {witness_text(line['witness'])}" if line.get("witness") else ""
        yield Moment(line["t_us"], f"{line['fault']} {line['state']}{witness}")


def _events(evidence: Evidence) -> Iterator[Moment]:
    for line in evidence.events:
        if line.get("event") not in _COUNTERS and "t_us" in line:
            who = " ".join(str(line[name]) for name in ("arm", "op") if line.get(name))
            yield Moment(line["t_us"], event(line), who or None)


def _fenced(*lines: str) -> str:
    """Return text in a code block whose fence is longer than any run of backticks in the text."""
    shown = [printable(line) for line in lines]
    ticks = "`" * max(3, 1 + max((len(run) for line in shown for run in line.split() if set(run) == {"`"}), default=0))
    while any(ticks in line for line in shown):
        ticks += "`"
    return "\n".join([ticks, *shown, ticks, ""])
