"""Markdown for an issue about a check that did not pass, and the events around a moment of the run.

The Markdown is for a reader without access to the run: the check's line of the plan, the observed value and the
threshold, the events in the two seconds before and after the check's moment, and the command that repeats the run. The
moment of a check is the start of the longest stall (for stalls and gaps), the slowest record (for latencies), the first
sample that is among the slowest (for lost or duplicate records), else the start of the check's window.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import Any

from aftershock.redaction import redact
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval
from aftershock.results.explain.events import Event, Moment, event, witness_text
from aftershock.results.model.check import Check
from aftershock.results.model.text import cell, details, printable

AROUND_US = 2_000_000
EVENTS_MAX = 12
PASTED_MAX = 100


def pasted_by_check(checks: Iterable[Check], evidence: Evidence, analysis: Mapping[str, Any]) -> dict[Check, str]:
    """Return the Markdown about the first ``PASTED_MAX`` of ``checks``."""
    windows, plan = evidence.windows, evidence.home / "plan.yaml"
    lines = plan.read_text(encoding="utf-8", errors="replace").splitlines() if plan.is_file() else []
    timed, first = timed_events(evidence), islice(checks, PASTED_MAX)
    return {check: _pasted(check, evidence, analysis, windows, lines, timed) for check in first}


_Windows = Mapping[str, tuple[Interval, ...]]
Timed = Sequence[tuple[float, Callable[[Event], Moment], Event]]


def timed_events(evidence: Evidence) -> Timed:
    """Return the lines of the journal and the clients' events in order of time, each with what describes it."""
    timed: list[tuple[float, Callable[[Event], Moment], Event]]
    timed = [(line["t_us"], _of_fault, line) for line in evidence.journal]
    timed += [
        (line["t_us"], _of_client, line)
        for line in evidence.events
        if line.get("event") not in ("counters", "phase") and isinstance(line.get("t_us"), int | float)
    ]
    return sorted(timed, key=lambda row: row[0])


def _pasted(
    check: Check,
    evidence: Evidence,
    analysis: Mapping[str, Any],
    windows: _Windows,
    plan: Sequence[str],
    timed: Timed,
) -> str:
    text = f"**{check.status}: {cell(check.id)}** ({cell(check.subject)}): {cell(check.why)}\n\n"
    text += "".join(f"- {name}: {cell(value)}\n" for name, value in details(check))
    text += f"- run: {cell(str(evidence.run['run_id']))}\n"
    _, line, column = (check.at or "").rsplit(":", 2) if (check.at or "").count(":") > 1 else ("", "", "")
    if line.isdecimal() and column.isdecimal() and 0 < int(line) <= len(plan):
        text += f"\n{cell(check.at or '')}\n\n{_fenced(plan[int(line) - 1])}"
    at_us = moment_of(check, evidence, analysis, windows)
    if at_us is not None:
        text += f"\nTwo seconds around {at_us / 1e6:.3f} s:\n\n{_fenced(*around(timed, at_us))}"
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


def around(timed: Timed, at_us: int) -> Iterator[str]:
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
