"""A check that did not pass as Markdown, to be pasted into an issue: whoever reads it there needs nothing else.

It has the plan's line, what was observed against what was asked, what happened two seconds around, and the command that
repeats the run. The moment is, of a stall or a gap, where the longest began; of a latency, its slowest record; of lost
or doubled records, the first sample that is among the slowest; else where the check's window begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aftershock.results.checks.check import Check
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval, windows_of
from aftershock.results.explain.events import Moment, event, witnessed
from aftershock.results.text import cell, details, printable

AROUND_US = 2_000_000
EVENTS_MAX = 12
_CHARS_MAX = 160
_COUNTERS = {"counters", "phase"}


def pasted(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> str:
    """The whole text."""
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
    """The text of the line that asked for it, ``demo.yaml:21:5``; None where it isn't of the plan, or not kept."""
    file, line, column = (at or "").rsplit(":", 2) if (at or "").count(":") > 1 else ("", "", "")
    plan = home / "plan.yaml"
    if not (file and line.isdigit() and column.isdigit() and plan.is_file()):
        return None
    lines = plan.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[int(line) - 1] if 0 < int(line) <= len(lines) else None


def moment_of(check: Check, evidence: Evidence, analysis: Mapping[str, Any]) -> int | None:
    """Where to look; None where the check is of no moment at all."""
    window = check.phase or RUN
    spans = windows_of(evidence.phases).get(window, ())
    stalled = check.kind == "obligation" or ".gap" in check.id or ".unavailable" in check.id
    known = [_stall_us, _slow_us] if stalled else [_slow_us]
    for look in known:
        if (found := look(check, evidence, analysis, spans)) is not None:
            return found
    return spans[0][0] if spans and window != RUN else None


def _stall_us(check: Check, evidence: Evidence, analysis: Mapping[str, Any], spans: Sequence[Interval]) -> int | None:
    mine = _keys(check, evidence)
    met = [one for one in analysis.get("stalls", ()) if one["client"] in mine and _meets(one, spans)]
    longest = max(met, key=lambda one: one["end_us"] - one["start_us"], default=None)
    return None if longest is None else int(longest["start_us"])


def _slow_us(check: Check, evidence: Evidence, analysis: Mapping[str, Any], spans: Sequence[Interval]) -> int | None:
    """Of the records that the check names if they are known, of any in its window otherwise."""
    if check.kind not in ("slo", "compare", "integrity"):
        return None
    mine = _keys(check, evidence)
    groups = [group for group in analysis.get("slowest", ()) if group["client"] in mine]
    rows = [row for group in groups for row in group["records"]]
    named = [row for row in rows if (row["producer_id"], row["seq"]) in check.samples]
    if check.samples and not named:
        return None
    within = [row for row in rows if any(start <= row["intended_us"] < end for start, end in spans)]
    chosen = next(iter(named or within), None)
    return None if chosen is None else int(chosen["intended_us"])


def _keys(check: Check, evidence: Evidence) -> set[str]:
    return {client.key for client in evidence.clients if check.arm in (None, client.arm)}


def _meets(stall: Mapping[str, Any], spans: Sequence[Interval]) -> bool:
    return any(stall["start_us"] < end and start < stall["end_us"] for start, end in spans)


def _around(evidence: Evidence, at_us: int) -> Iterator[str]:
    """What journal and events have of that time, in order; only so many lines that an issue stays readable."""
    told = [*_journal(evidence), *_events(evidence)]
    near = sorted(one for one in told if abs(one.at_us - at_us) <= AROUND_US)
    closest = sorted(near, key=lambda one: abs(one.at_us - at_us))[:EVENTS_MAX]
    for one in sorted(closest):
        yield f"{one.at_us / 1e6:9.3f} s  {one.said}"[:_CHARS_MAX]
    if len(near) > len(closest):
        yield f"and {len(near) - len(closest)} more, in journal.jsonl and events.jsonl"
    if not near:
        yield "nothing was told by the harness or a client"


def _journal(evidence: Evidence) -> Iterator[Moment]:
    for line in evidence.journal:
        witness = f": {witnessed(line['witness'])}" if line.get("witness") else ""
        yield Moment(line["t_us"], f"{line['fault']} {line['state']}{witness}")


def _events(evidence: Evidence) -> Iterator[Moment]:
    for line in evidence.events:
        if line.get("event") not in _COUNTERS and "t_us" in line:
            who = " ".join(str(line[name]) for name in ("arm", "op") if line.get(name))
            yield Moment(line["t_us"], event(line), who or None)


def _fenced(*lines: str) -> str:
    """Text as it is; a fence longer than any run of backticks in it can't be closed from within."""
    shown = [printable(line) for line in lines]
    ticks = "`" * max(3, 1 + max((len(run) for line in shown for run in line.split() if set(run) == {"`"}), default=0))
    while any(ticks in line for line in shown):
        ticks += "`"
    return "\n".join([ticks, *shown, ticks, ""])
