"""Grafts the checks of judged runs into the JUnit file that pytest wrote, beneath the test that they belong to.

Rules: a test's own ``<testcase>`` stays where and what it is, once; its checks follow it under a class name made of its
own; the suite's counts go up by what was added. The testcases are found by the property that the plugin gave them.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aftershock.errors import EvidenceError
from aftershock.harness.suite.deferred import Outcome
from aftershock.harness.suite.session import PROPERTY, Entry
from aftershock.harness.suite.verdicts import Judged
from aftershock.results.files import write_whole
from aftershock.results.junit import cases
from aftershock.results.verdict import Verdict

_NOT_SETUP = 'failed on setup with "'  # pytest's words for an error of any phase but teardown


@dataclass(frozen=True)
class Scion:
    """What belongs beneath one test: its runs in order with their verdicts, None where there is none.

    ``outcome``: what the verdicts made of the test, None for one that was told before them.
    """

    verdicts: Mapping[str, Verdict | None]
    outcome: Outcome | None


def scions(entries: Sequence[Entry], judged: Mapping[str, Judged], held: Mapping[str, Outcome]) -> list[Scion]:
    """What belongs beneath each test of the ledger: the verdicts that count, under the ids that its report names."""
    repeats = {one.again.home.name for one in judged.values() if one.again}
    found: dict[str, dict[str, Verdict | None]] = {}
    for entry in entries:
        if entry.run_id not in repeats:
            one = judged.get(entry.run_id)
            found.setdefault(entry.test, {})[entry.run_id] = one.counts.verdict if one else None
    return [Scion(verdicts, held.get(test)) for test, verdicts in found.items()]


def graft(path: Path, scions: Sequence[Scion]) -> None:
    """Add the checks to the file at ``path``. Raises EvidenceError where it is not there, or no JUnit file."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - pytest wrote it a moment ago
        _graft(root, scions)
        text = ET.tostring(root, encoding="unicode")
        write_whole(path, f'<?xml version="1.0" encoding="utf-8"?>{text}')
    except (OSError, ET.ParseError) as error:
        raise EvidenceError(f"{path}: the checks could not be added to pytest's JUnit file: {error}") from error


def _graft(root: ET.Element, scions: Sequence[Scion]) -> None:
    left = {run_id: scion for scion in scions for run_id in scion.verdicts}
    for suite in root.iter("testsuite"):
        for case in list(suite.iter("testcase")):
            mine = [left.pop(run_id) for run_id in _runs(case) if run_id in left]
            if mine:
                _beneath(suite, case, mine[0])


def _runs(case: ET.Element) -> list[str]:
    found = case.iterfind(f"properties/property[@name='{PROPERTY}']")
    return [value for one in found if (value := one.get("value"))]


def _beneath(suite: ET.Element, case: ET.Element, scion: Scion) -> None:
    if case.find("skipped") is not None:
        return  # expected to fail, say: its checks must not be failures that nobody expected
    if scion.outcome:
        _tell_truly(case, scion.outcome)
    name = f"{case.get('classname')}.{case.get('name')}"
    several = len(scion.verdicts) > 1
    added = [
        check
        for run_id, verdict in scion.verdicts.items()
        if verdict
        for check in cases(verdict, f"{name}.{run_id}" if several else name)
    ]
    after = list(suite).index(case) + 1
    suite[after:after] = added
    _count(suite, "tests", len(added))
    for tag in ("failure", "error"):
        _count(suite, f"{tag}s", sum(check.find(tag) is not None for check in added))


def _tell_truly(case: ET.Element, outcome: Outcome) -> None:
    """An error of our phase did not fail on setup."""
    for error in case.iterfind("error"):
        if error.get("message", "").startswith(_NOT_SETUP):
            error.set("message", error.get("message", "").removeprefix(_NOT_SETUP).removesuffix('"'))
            error.set("type", outcome.status)


def _count(suite: ET.Element, what: str, more: int) -> None:
    suite.set(what, str(int(suite.get(what, "0")) + more))
