"""Markdown about a check that did not pass, for an issue; the reader needs no access to the run.

The Markdown has the check's line of the plan, the observed value and the threshold, the events in the two seconds
before and after the check's moment, and the command that repeats the run. The moment of a check is the start of the
longest stall (for stalls and gaps), the slowest record (for latencies), the first sample that is among the slowest (for
lost or duplicate records), else the start of the check's window.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aftershock.redaction import redact
from aftershock.results.checks.check import Check
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, windows_of
from aftershock.results.explain.events import Moment, event, witness_text
from aftershock.results.text import cell, details, printable

AROUND_US = 2_000_000
EVENTS_MAX = 12


def pasted(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> str:
    text = f"**{check.status}: {cell(check.id)}** ({cell(check.subject)}): {cell(check.why)}\n\n"
    text += "".join(f"- {name}: {cell(value)}\n" for name, value in details(check))
    text += f"- run: {cell(str(evidence.run['run_id']))}\n"
    if line := plan_line(evidence.home, check.at):
        text += f"\n{check.at}\n\n{_fenced(line)}"
    at_us = moment_of(check, evidence, analysis)
    if at_us is not None:
        text += f"\nTwo seconds around {at_us / 1e6:.3f} s:\n\n{_fenced(*_around(evidence, at_us))}"
    if command := redact(str(evidence.run.get("command") or "")):  # an earlier version stored it as typed
        text += f"\nTo repeat the run:\n\n{_fenced(str(command))}"
    return text


def plan_line(home: Path, at: str | None) -> str | None:
    """Return the line of the plan at a place such as ``demo.yaml:21:5``; None if the plan has no such line."""
    file, line, column = (at or "").rsplit(":", 2) if (at or "").count(":") > 1 else ("", "", "")
    plan = home / "plan.yaml"
    if not (file and line.isdigit() and column.isdigit() and plan.is_file()):
        return None
    lines = plan.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[int(line) - 1] if 0 < int(line) <= len(lines) else None


def moment_of(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> int | None:
    """Return the moment that a failed check is about, in us of the run; None if the check is about the whole run."""
    window = check.phase or RUN
    spans = windows_of(evidence.phases).get(window, ())
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


def _around(evidence: Evidence, at_us: int) -> Iterator[str]:
    """Yield up to ``EVENTS_MAX`` lines of the journal and client events closest to a moment, in order of time."""
    near = []
    for line in evidence.journal:
        if abs(line["t_us"] - at_us) <= AROUND_US:
            witness = f": {witness_text(line['witness'])}" if line.get("witness") else ""
            near.append(Moment(line["t_us"], f"{line['fault']} {line['state']}{witness}"))
    for line in evidence.events:
        if line.get("event") not in ("counters", "phase") and abs(line.get("t_us", math.inf) - at_us) <= AROUND_US:
            who = " ".join(str(line[name]) for name in ("arm", "op") if line.get(name))
            near.append(Moment(line["t_us"], event(line), who or None))
    closest = sorted(sorted(near), key=lambda moment: abs(moment.at_us - at_us))[:EVENTS_MAX]
    for moment in sorted(closest):
        yield f"{moment.at_us / 1e6:9.3f} s  {moment}"[:160]
    if len(near) > len(closest):
        yield f"and {len(near) - len(closest)} more events, in journal.jsonl and events.jsonl"
    if not near:
        yield "no event of the harness or a client was recorded in these seconds"


def _fenced(*lines: str) -> str:
    """Return text in a Markdown code block whose fence is longer than any run of backticks in the text."""
    shown = [printable(line) for line in lines]
    ticks = "```"
    while any(ticks in line for line in shown):
        ticks += "`"
    return "\n".join([ticks, *shown, ticks, ""])
