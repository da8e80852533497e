"""The verdict in three text formats: terminal summary, JUnit XML, and GitHub workflow commands.

Terminal summary: the sentence first, then the problems, then a short table. No line is wider than 80 columns, and there
are no colours, so that it can be piped.

JUnit XML (``junit.xml``): each check of a run is a test case. FAIL is a failure; INCONCLUSIVE and ERROR are errors of
that type, because what was not proven has not passed. A check with ``gate: report`` fails nothing: its result is in
``<system-out>``. Characters that XML 1.0 can't hold are replaced. Checks are judged together and have no duration of
their own; the suite's duration is that of the run.

GitHub workflow commands: each check that did not pass, at its line of the plan. FAIL and ERROR are errors, INCONCLUSIVE
is a warning, a check with ``gate: report`` a notice. The worst come first, because GitHub shows ten of each kind per
step. Values are escaped as in `actions/toolkit`, so that a name in a plan can't end a command and begin another.
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
_SAMPLES_MAX = 5  # samples that fit a line
_COLUMNS = (12, 11, 11, 43)


def summary(verdict: Verdict) -> str:
    """Return the terminal summary, with a newline at its end."""
    unsettled = problems(verdict)
    blocks = [fill(sentence(verdict), WIDTH), *map(_attention, unsettled[:_ATTENTION_MAX])]
    if len(unsettled) > _ATTENTION_MAX:
        blocks.append(f"and {len(unsettled) - _ATTENTION_MAX} more, in verdict.json")
    blocks.append(_table([check for check in verdict.checks if check.kind in ("slo", "compare")]))
    # one line for each kind that the table leaves out
    kinds = dict.fromkeys(check.kind for check in verdict.checks if check.kind not in ("slo", "compare"))
    lines = []
    for kind in kinds:
        statuses = [check.status for check in verdict.checks if check.kind == kind]
        lines.append(f"{kind:<12} {statuses.count(Status.PASS)} of {len(statuses)} passed")
    blocks.append("\n".join(lines))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _attention(check: Check) -> str:
    head = fill(printable(f"{status(check)} {check.id} ({check.subject})"), WIDTH, subsequent_indent="  ")
    samples = ", ".join(f"{producer_id}:{seq}" for producer_id, seq in check.samples[:_SAMPLES_MAX])
    more = ", ..." if len(check.samples) > _SAMPLES_MAX else ""
    texts = [check.why, f"records: {samples}{more}" if samples else "", f"next: {check.next}" if check.next else ""]
    indented = [fill(printable(text), WIDTH, initial_indent="  ", subsequent_indent="  ") for text in texts if text]
    return "\n".join([head, *indented])


def _table(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    rows = [("", "observed", "threshold", "check")]
    rows += [(check.status.value, observed(check), threshold(check), _label(check)) for check in checks]
    return "\n".join(" ".join(map(_cell, row, _COLUMNS)).rstrip() for row in rows)


def _label(check: Check) -> str:
    """Return the id without its kind, then the subject; the id is cut if both don't fit."""
    subject = check.subject.replace("arm=", "") + ("" if check.gate else " (watched)")
    name = check.id.split("/", 1)[1]
    room = max(_COLUMNS[-1] - len(subject) - 1, 8)
    return printable(f"{name if len(name) <= room else name[: room - 1] + '~'} {subject}")


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "~"


_TAGS = {Status.FAIL: "failure", Status.INCONCLUSIVE: "error", Status.ERROR: "error"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(run_dir: Path, verdict: Verdict) -> Path:
    """Write ``junit.xml`` into the run directory and return its path."""
    run = read_object(run_dir / "run.json")
    return write_whole(run_dir / "junit.xml", document(verdict, run_s(run), run.get("started_at")))


def document(verdict: Verdict, took_s: float | None = None, started_at: str | None = None) -> bytes:
    """Return the file: one suite, named after the plan. ``took_s``: the run's duration; ``started_at``: ISO 8601."""
    tests = cases(verdict, f"aftershock.{verdict.plan}")
    attributes = {"name": verdict.plan, "tests": str(len(tests))}
    attributes |= {f"{tag}s": str(sum(case.find(tag) is not None for case in tests)) for tag in ("failure", "error")}
    attributes |= {} if took_s is None else {"time": f"{took_s:.3f}"}
    root = _element("testsuites", attributes)
    root.append(suite := _element("testsuite", attributes | ({"timestamp": started_at} if started_at else {})))
    suite.extend(tests)
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def cases(verdict: Verdict, classname: str) -> list[ET.Element]:
    """Return a ``<testcase>`` for each check, in the verdict's order, named ``<check id> (<subject>)``."""
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
            result.text = _xml_text("\n".join(f"{name}: {value}" for name, value in facts))
            case.append(result)
        tests.append(case)
    return tests


def _element(tag: str, attributes: dict[str, str]) -> ET.Element:
    return ET.Element(tag, {name: _xml_text(value) for name, value in attributes.items()})


def _xml_text(text: str) -> str:
    """Replace the characters that XML 1.0 can't hold, not even escaped."""
    return _NOT_XML.sub("?", text)


# `demo.yaml:21:5` is a position in the plan, `tests/test_x.py:12` one in a test, which is a path already
_POSITION = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")


def annotations(verdict: Verdict, plan_path: str | None) -> list[str]:
    """Return a workflow command for each problem; ``plan_path``: the plan, relative to the repository's root.

    Without a path (for a shipped plan) the commands name no file, and GitHub shows them with the step.
    """
    return [_command(check, plan_path) for check in problems(verdict)]


def _command(check: Check, plan_path: str | None) -> str:
    level = "warning" if check.status is Status.INCONCLUSIVE else "error"
    # checks without a position (integrity, witnesses) belong to the plan as a whole
    position = _POSITION.fullmatch(check.at or "")
    properties = {} if plan_path is None else {"file": plan_path}
    if position and position["column"] is None:
        properties = {"file": position["file"], "line": position["line"]}
    elif position and plan_path is not None:
        properties |= {"line": position["line"], "col": position["column"]}
    properties |= {"title": f"{status(check)} {check.id} ({check.subject})"}
    escaped = ",".join(f"{name}={_property(printable(value))}" for name, value in properties.items())
    message = "\n".join([printable(check.why), *(f"{name}: {printable(value)}" for name, value in details(check))])
    return f"::{level if check.gate else 'notice'} {escaped}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
