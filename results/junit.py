"""The verdict as JUnit XML, so that CI shows every check of a run as a test case.

Rules: FAIL is a failure; INCONCLUSIVE and ERROR are errors, of that type: what was not proven has not passed. What is
only watched (``gate: report``) fails nothing: it is told in ``<system-out>``. What XML 1.0 can't hold is replaced.
Checks are judged together and take no time of their own; the suite's is the run's.
"""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from aftershock.results.check import Check, Status
from aftershock.results.files import read_object, write_whole
from aftershock.results.shown import details, run_s, status
from aftershock.results.verdict import Verdict

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
