"""The verdict in three text formats (terminal summary, JUnit XML, and GitHub workflow commands).

The terminal summary has the verdict's sentence and the answers (a line per client and fault) first, then the
obligations that were judged for too little of the time, the problems, how much evidence the verdict rests on, a short
table, and at the end the findings, which are violated SLOs that are only reported, and what checks that passed found.
The summary has at most 80 columns and no colours, so that the text can be piped.

In JUnit XML (``junit.xml``) each check of a run is a test case. In JUnit XML, FAIL is a ``failure``; INCONCLUSIVE and
ERROR are an ``error`` of that type, because an unproven check has not passed. A check with ``gate=report`` is never a
failure in JUnit XML; the check's result is in ``<system-out>``. Characters that XML 1.0 can't hold are replaced. Test
cases have no duration, because checks are judged together; the suite's duration is that of the run.

GitHub workflow commands write an annotation for each check that did not pass, at the check's line of the plan. FAIL and
ERROR become GitHub errors, INCONCLUSIVE a warning, a check with ``gate=report`` a notice. The worst results come first,
because GitHub shows ten annotations of each level per step. Values in workflow commands are escaped as in
`actions/toolkit`, so that a name in a plan can't end a command and begin another.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from aftershock.results.checks.progress import SHARE_MIN
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.model.answer import answer_lines
from aftershock.results.model.check import Check, Status, Verdict, percent
from aftershock.results.model.text import (
    certainty,
    details,
    observed,
    printable,
    problems,
    run_s,
    sentence,
    status,
    threshold,
    xml_text,
)
from aftershock.results.slo.metrics import moment

WIDTH = 80
NO_BREAK = "\u00a0"
_ATTENTION_MAX = 6
_COLUMNS = (12, 11, 11, 43)


def summary(verdict: Verdict) -> str:
    watched = [check for check in verdict.checks if _is_finding(check)]
    troubled = [check for check in problems(verdict) if not _is_finding(check) and not _is_judged_too_little(check)]
    blocks = [
        fill(sentence(verdict), WIDTH),
        _provisional(verdict),
        "\n".join(answer_rows(verdict)),
        *map(_indented, verdict.unplanned),
        *(_indented(f"judged with --trust: {difference}") for difference in verdict.trusted),
        _judged_share(verdict),
        *map(_attention, troubled[:_ATTENTION_MAX]),
    ]
    if len(troubled) > _ATTENTION_MAX:
        blocks.append(
            f"{len(troubled) - _ATTENTION_MAX} more checks did not pass; verdict.json in the run directory lists them"
        )
    blocks.append(_indented(certainty(verdict)))
    blocks += map(_indented, verdict.figures)
    if objectives := [check for check in verdict.checks if check.kind in ("slo", "compare")]:
        rows = [("", "observed", "threshold", "check")]
        for check in objectives:
            # The check is its id without the kind, then its subject; the id is cut if both don't fit.
            subject = check.subject.replace("arm=", "") + ("" if check.gate else " (report only)")
            name = _cut(check.id.split("/", 1)[1], max(_COLUMNS[-1] - len(subject) - 1, 8))
            rows.append((check.status.value, observed(check), threshold(check), printable(f"{name} {subject}")))
        cells = (map(str.ljust, map(_cut, row, _COLUMNS), _COLUMNS) for row in rows)
        blocks.append("\n".join(" ".join(row).rstrip() for row in cells))
    # One line for each kind that the table leaves out.
    statuses: dict[str, list[Status]] = {}
    for check in verdict.checks:
        if check.kind not in ("slo", "compare"):
            statuses.setdefault(check.kind, []).append(check.status)
    blocks.append(
        "\n".join(
            f"{kind:<12} {of_kind.count(Status.PASS)} of {len(of_kind)} passed" for kind, of_kind in statuses.items()
        )
    )
    blocks += map(_finding, watched)
    noted = [check for check in verdict.checks if check.finding and check.status is Status.PASS]
    blocks += [_finding(replace(check, why=check.finding, next=None)) for check in noted]
    return "\n\n".join(block for block in blocks if block) + "\n"


def answer_rows(verdict: Verdict) -> list[str]:
    """Return the answers in columns; a line of more than ``WIDTH`` columns goes on below its words."""
    lines, omitted = answer_lines(verdict.answers)
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)] if lines else []
    rows = []
    for *names, words in lines:
        begin = "".join(f"{printable(name).ljust(width)}  " for name, width in zip(names, widths, strict=True))
        indent = " " * min(len(begin), WIDTH // 2)
        parts = " · ".join(re.sub(r" (?!\()", NO_BREAK, printable(part)) for part in words.split(" · "))
        rows.append(fill(begin + parts, WIDTH, subsequent_indent=indent).replace(NO_BREAK, " "))
    return rows + ([f"and {omitted} more; the report has all"] if omitted else [])


def _provisional(verdict: Verdict) -> str:
    if not verdict.provisional:
        return ""
    facts = verdict.provisional
    words = f"PROVISIONAL: {facts['state']}. Records were judged up to {moment(facts['until_us'])} of the run."
    if facts["not_judged"]:
        words += f" Not judged yet: {', '.join(facts['not_judged'])}."
    return fill(printable(words), WIDTH)


def _judged_share(verdict: Verdict) -> str:
    """Return a line for each share of the time for which obligations were judged, if that was too little to pass."""
    by_share: dict[str, list[Check]] = {}
    for check in verdict.checks:
        if _is_judged_too_little(check):
            by_share.setdefault(percent(check.share or 0.0), []).append(check)
    lines = []
    for share, checks in by_share.items():
        names = ", ".join(f"{check.id} of {check.subject.replace('arm=', '')}" for check in checks)
        words = f"judged for {share} of the time after warm-up: {names}. To judge more: {checks[0].next}"
        lines.append(_indented(words))
    return "\n".join(lines)


def _indented(words: str) -> str:
    """Return a paragraph whose lines after the first are indented."""
    return fill(printable(words), WIDTH, subsequent_indent="  ")


def _attention(check: Check) -> str:
    head = _indented(f"{status(check)} {check.id} ({check.subject})")
    samples = ", ".join(f"{producer_id}:{seq}" for producer_id, seq in check.samples[:5])  # as many as fit a line
    more = ", ..." if len(check.samples) > 5 else ""  # noqa: PLR2004
    texts = [check.why, f"records: {samples}{more}" if samples else "", f"next: {check.next}" if check.next else ""]
    indented = [fill(printable(text), WIDTH, initial_indent="  ", subsequent_indent="  ") for text in texts if text]
    return "\n".join([head, *indented])


def _is_judged_too_little(check: Check) -> bool:
    is_undecided = check.kind == "obligation" and check.status is Status.INCONCLUSIVE
    return is_undecided and check.share is not None and check.share < SHARE_MIN


def _is_finding(check: Check) -> bool:
    return not check.gate and check.status is Status.FAIL


def _finding(check: Check) -> str:
    name = check.id.split("/", 1)[1]
    head = fill(printable(f"Finding: {check.subject.replace('arm=', '')} {name}: {check.why}"), WIDTH)
    return head + (f"\n{fill(printable(check.next), WIDTH)}" if check.next else "")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


_TAGS = {Status.FAIL: "failure", Status.INCONCLUSIVE: "error", Status.ERROR: "error"}


def write(run_dir: Path, verdict: Verdict) -> Path:
    """Write ``junit.xml`` into the run directory and return its path."""
    run = read_object(run_dir / "run.json")
    return write_whole(run_dir / "junit.xml", document(verdict, run_s(run), run.get("started_at")))


def document(verdict: Verdict, took_s: float | None = None, started_at: str | None = None) -> bytes:
    """Return the JUnit XML document of a run. ``took_s`` is the run's duration; ``started_at`` is in ISO 8601."""
    tests = cases(verdict, f"aftershock.{verdict.plan}")
    attributes = {"name": verdict.plan, "tests": str(len(tests))}
    attributes |= {f"{tag}s": str(sum(case.find(tag) is not None for case in tests)) for tag in ("failure", "error")}
    attributes |= {} if took_s is None else {"time": f"{took_s:.3f}"}
    root = _element("testsuites", attributes)
    root.append(suite := _element("testsuite", attributes | ({"timestamp": started_at} if started_at else {})))
    lines, omitted = answer_lines(verdict.answers)
    values = [("trusted", text) for text in verdict.trusted]
    values += [(f"{client} {fault}", words) for client, fault, words in lines]
    values += [("further answers", str(omitted))] if omitted else []
    if values:
        suite.append(properties := ET.Element("properties"))
        properties.extend(_element("property", {"name": name, "value": value}) for name, value in values)
    suite.extend(tests)
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def cases(verdict: Verdict, classname: str) -> list[ET.Element]:
    """Return a JUnit ``<testcase>`` for each check, in the verdict's order, named ``<check id> (<subject>)``."""
    tests = []
    for check in verdict.checks:
        case = _element("testcase", {"classname": classname, "name": f"{check.id} ({check.subject})"})
        if check.status in _TAGS:
            facts = details(check)
            if check.gate:
                attributes = {"type": check.status.value, "message": check.why}
                result = _element(_TAGS[check.status], attributes)
            else:
                facts = [("status", status(check)), ("why", check.why), *facts]
                result = _element("system-out", {})
            result.text = xml_text("\n".join(f"{name}: {value}" for name, value in facts))
            case.append(result)
        tests.append(case)
    return tests


def _element(tag: str, attributes: dict[str, str]) -> ET.Element:
    return ET.Element(tag, {name: xml_text(value) for name, value in attributes.items()})


# `demo.yaml:21:5` is a position in the plan, `tests/test_x.py:12` one in a test, which is a path already
_POSITION = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")


def annotations(verdict: Verdict, plan_path: str | None) -> list[str]:
    """Return a GitHub workflow command for each problem; ``plan_path`` is relative to the repository's root.

    Without ``plan_path`` (for a shipped plan) commands name no file, and GitHub shows them with the workflow step.
    """
    commands = [
        f"::warning title=judged with --trust::{_escaped(printable(difference))}" for difference in verdict.trusted
    ]
    for check in problems(verdict):
        level = "warning" if check.status is Status.INCONCLUSIVE else "error"
        # Checks without a position (integrity, witnesses) belong to the plan as a whole.
        position = _POSITION.fullmatch(check.at or "")
        properties = {} if plan_path is None else {"file": plan_path}
        if position and position["column"] is None:
            properties = {"file": position["file"], "line": position["line"]}
        elif position and plan_path is not None:
            properties |= {"line": position["line"], "col": position["column"]}
        properties |= {"title": f"{status(check)} {check.id} ({check.subject})"}
        values = {name: _escaped(printable(value)) for name, value in properties.items()}
        escaped = ",".join(f"{name}={v.replace(':', '%3A').replace(',', '%2C')}" for name, v in values.items())
        lines = [printable(check.why), *(f"{name}: {printable(value)}" for name, value in details(check))]
        commands.append(f"::{level if check.gate else 'notice'} {escaped}::{_escaped(chr(10).join(lines))}")
    return commands


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
