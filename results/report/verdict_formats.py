"""The verdict as plain text for a terminal: the sentence first, then what needs attention, then a short table.

Rules: no line is wider than 80 columns; no colours, so that it can be piped.

The verdict as JUnit XML, so that CI shows every check of a run as a test case.

Rules: FAIL is a failure; INCONCLUSIVE and ERROR are errors, of that type: what was not proven has not passed. What is
only watched (``gate: report``) fails nothing: it is told in ``<system-out>``. What XML 1.0 can't hold is replaced.
Checks are judged together and take no time of their own; the suite's is the run's.

The verdict as GitHub's workflow commands: each check that did not pass, on the line of the plan that asked for it.

Rules: FAIL and ERROR are errors, INCONCLUSIVE is a warning, what is only watched a notice; the worst come first, for
GitHub shows ten of each kind a step. Values are escaped as `actions/toolkit` does, so that no name of a plan can end a
command and begin another.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from aftershock.results.checks.check import Check, Status, Verdict
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.text import details, observed, printable, problems, run_s, sentence, status, threshold

WIDTH = 80
_ATTENTION_MAX = 6
_COLUMNS = (12, 11, 11, 43)


def summary(verdict: Verdict) -> str:
    """The text, with a newline at its end."""
    unsettled = problems(verdict)
    blocks = [fill(sentence(verdict), WIDTH), *map(_attention, unsettled[:_ATTENTION_MAX])]
    if len(unsettled) > _ATTENTION_MAX:
        blocks.append(f"and {len(unsettled) - _ATTENTION_MAX} more, in verdict.json")
    blocks.append(_table([check for check in verdict.checks if check.kind in ("slo", "compare")]))
    blocks.append(_kinds(verdict))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _attention(check: Check) -> str:
    head = fill(printable(f"{status(check)} {check.id} ({check.subject})"), WIDTH, subsequent_indent="  ")
    samples = ", ".join(f"{producer}:{seq}" for producer, seq in check.samples[:5])
    more = ", ..." if len(check.samples) > 5 else ""  # noqa: PLR2004 - five samples fit a line
    said = [check.why, f"records: {samples}{more}" if samples else "", f"next: {check.next}" if check.next else ""]
    return "\n".join([head, *[_indented(printable(text)) for text in said if text]])


def _indented(text: str) -> str:
    return fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _table(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    rows = [("", "observed", "threshold", "check")]
    rows += [(check.status.value, observed(check), threshold(check), _label(check)) for check in checks]
    return "\n".join(" ".join(map(_cell, row, _COLUMNS)).rstrip() for row in rows)


def _label(check: Check) -> str:
    """The id without its kind, then the subject; the id is cut where both don't fit."""
    whose = check.subject.replace("arm=", "") + ("" if check.gate else " (watched)")
    name = check.id.split("/", 1)[1]
    room = max(_COLUMNS[-1] - len(whose) - 1, 8)
    return printable(f"{name if len(name) <= room else name[: room - 1] + '~'} {whose}")


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "~"


def _kinds(verdict: Verdict) -> str:
    """One line a kind that the table leaves out: how many passed."""
    kinds = dict.fromkeys(check.kind for check in verdict.checks if check.kind not in ("slo", "compare"))
    lines = []
    for kind in kinds:
        statuses = [check.status for check in verdict.checks if check.kind == kind]
        lines.append(f"{kind:<12} {statuses.count(Status.PASS)} of {len(statuses)} passed")
    return "\n".join(lines)


_TAGS = {Status.FAIL: "failure", Status.INCONCLUSIVE: "error", Status.ERROR: "error"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(run_dir: Path, verdict: Verdict) -> Path:
    """Writes ``junit.xml`` into the run directory and returns its path."""
    run = read_object(run_dir / "run.json")
    return write_whole(run_dir / "junit.xml", document(verdict, run_s(run), run.get("started_at")))


def document(verdict: Verdict, took_s: float | None = None, started_at: str | None = None) -> bytes:
    """The file: one suite, named for the plan. ``took_s`` is how long the run took, ``started_at`` ISO 8601."""
    found = cases(verdict, f"aftershock.{verdict.plan}")
    told = {"name": verdict.plan, "tests": str(len(found))}
    told |= {f"{tag}s": str(sum(case.find(tag) is not None for case in found)) for tag in ("failure", "error")}
    told |= {} if took_s is None else {"time": f"{took_s:.3f}"}
    root = _element("testsuites", told)
    root.append(suite := _element("testsuite", told | ({"timestamp": started_at} if started_at else {})))
    suite.extend(found)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def cases(verdict: Verdict, classname: str) -> list[ET.Element]:
    """A ``<testcase>`` for each check, in the verdict's order, named ``<check id> (<subject>)``."""
    return [_case(check, classname) for check in verdict.checks]


def _case(check: Check, classname: str) -> ET.Element:
    case = _element("testcase", {"classname": classname, "name": f"{check.id} ({check.subject})"})
    if check.status in _TAGS:
        told = _told(check)
        told.text = _holdable("\n".join(f"{name}: {value}" for name, value in _facts(check)))
        case.append(told)
    return case


def _told(check: Check) -> ET.Element:
    if not check.gate:
        return _element("system-out", {})
    return _element(_TAGS[check.status], {"type": check.status.value, "message": check.why})


def _facts(check: Check) -> list[tuple[str, str]]:
    watched = [] if check.gate else [("status", status(check)), ("why", check.why)]
    return [*watched, *details(check)]


def _element(tag: str, attributes: dict[str, str]) -> ET.Element:
    return ET.Element(tag, {name: _holdable(value) for name, value in attributes.items()})


def _holdable(text: str) -> str:
    """``text`` without the characters that XML 1.0 can't hold, not even escaped."""
    return _NOT_XML.sub("?", text)


# `demo.yaml:21:5` is a place in the plan, `tests/test_x.py:12` one in a test, whose name is a path already
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")


def annotations(verdict: Verdict, plan_path: str | None) -> list[str]:
    """One line for standard output a check; ``plan_path`` is the plan's file, relative to the repository's root.

    Without it (a plan that ships with us) the commands name no file, and GitHub shows them with the step.
    """
    return [_command(check, plan_path) for check in problems(verdict)]


def _command(check: Check, plan_path: str | None) -> str:
    properties = _place(check.at, plan_path) | {"title": f"{status(check)} {check.id} ({check.subject})"}
    told = ",".join(f"{key}={_property(printable(value))}" for key, value in properties.items())
    message = "\n".join([printable(check.why), *(f"{key}: {printable(value)}" for key, value in details(check))])
    return f"::{_level(check)} {told}::{_data(message)}"


def _level(check: Check) -> str:
    if not check.gate:
        return "notice"
    return "warning" if check.status is Status.INCONCLUSIVE else "error"


def _place(at: str | None, plan_path: str | None) -> dict[str, str]:
    """Checks that no line asked for (integrity, witnesses) belong to the plan as a whole."""
    found = _PLACE.fullmatch(at or "")
    if found and found["column"] is None:
        return {"file": found["file"], "line": found["line"]}
    if plan_path is None:
        return {}
    return {"file": plan_path} | ({"line": found["line"], "col": found["column"]} if found else {})


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
