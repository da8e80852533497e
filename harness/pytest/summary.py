"""Grafts the checks of judged runs into the JUnit file that pytest wrote, beneath the test that they belong to.

Rules: a test's own ``<testcase>`` stays where and what it is, once; its checks follow it under a class name made of its
own; the suite's counts go up by what was added. The testcases are found by the property that the plugin gave them.

What a session leaves to read: ``session.json``, ``index.html``, and a section of pytest's terminal summary.

On GitHub also annotations on the plans' lines, and the summary of the job's step.
"""

import json
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.cluster.pool import Pool
from aftershock.harness.pytest.leased_run import pool_of
from aftershock.harness.pytest.reports import Outcome
from aftershock.harness.pytest.session import PROPERTY, Entry, Suite
from aftershock.harness.pytest.verdicts import Judged, unjudged
from aftershock.harness.run.progress import annotate_github
from aftershock.results.checks.check import Verdict
from aftershock.results.evidence.files import write_whole
from aftershock.results.report.several import write_index
from aftershock.results.report.verdict_formats import cases

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


_NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Kept:
    """The cluster of a failed test's run: its own run id, if it could be kept, else why not."""

    entry: Entry
    cluster: str = ""
    bootstrap: str = ""
    why: str = ""


def finish(suite: Suite, judged: Mapping[str, Judged], failed: Collection[str], start: Path) -> list[str]:
    """Keep or remove the clusters, tell GitHub, write ``session.json`` and the index; gives the terminal's lines.

    ``failed``: the tests that did not pass. Paths are shown as seen from ``start``.
    """
    runs = {entry.run_id: judged.get(entry.run_id) or unjudged(suite.out / entry.run_id) for entry in suite.entries()}
    told = [_line(entry, runs[entry.run_id], start) for entry in suite.entries()]
    kept: list[Kept] = []
    try:
        kept = _put_away(suite, failed)
    except AftershockError as error:
        told.append(f"the clusters could not be put away: {error}; `aftershock heal` removes what is left")
    if runs:
        told += _annotations(runs.values())
        told.append(f"index: {_shown(_written(suite, runs, kept), start)}")
    return [*told, *[line for one in kept for line in _about(one)]]


def _annotations(runs: Iterable[Judged]) -> list[str]:
    """GitHub's workflow commands, none elsewhere: in a terminal that pytest writes to, each needs a line of its own."""
    commands = StringIO()
    annotate_github(dict.fromkeys(run.counts.home for run in runs if run.counts.verdict), out=commands)
    return commands.getvalue().splitlines()


def _put_away(suite: Suite, failed: Collection[str]) -> list[Kept]:
    """Keep the clusters of failed tests' runs if that was asked for, and remove all others."""
    pool = pool_of(suite)
    asked = [_kept(pool, suite, entry) for entry in suite.entries() if suite.keep_failed and entry.test in failed]
    pool.close(_silent)
    kept = {one.entry.test for one in asked if one.cluster}
    # a test's earlier run on the same cluster needs no excuse
    return [one for one in asked if one.cluster or one.entry.test not in kept]


def _kept(pool: Pool, suite: Suite, entry: Entry) -> Kept:
    try:
        cluster = pool.keep(suite.out / entry.run_id)
    except AftershockError as error:
        return Kept(entry, why=str(error))
    if cluster is None:
        return Kept(entry, why="it served a later test; run this one alone to keep it")
    with closing(cluster):
        return Kept(entry, cluster.run_id, cluster.bootstrap(None))


def _written(suite: Suite, runs: Mapping[str, Judged], kept: Sequence[Kept]) -> Path:
    document = {
        "schema_version": 1,
        "session": suite.folder.name,
        "runs": [_row(entry, runs[entry.run_id]) for entry in suite.entries()],
        "kept": [one.cluster for one in kept if one.cluster],
    }
    (suite.folder / "session.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return write_index([run.home for run in runs.values()], suite.folder, suite.folder.name)


def _row(entry: Entry, run: Judged) -> dict[str, str | None]:
    return {
        "run": entry.run_id,
        "test": entry.test,
        "status": run.status.value if run.verdict else None,
        "why": run.why or None,
        "repeated_as": run.again.home.name if run.again else None,
    }


def _line(entry: Entry, run: Judged, start: Path) -> str:
    if not run.verdict:
        return f"{_NOT_JUDGED:<12} {entry.test}  {_shown(run.home, start)}: {run.why.splitlines()[0]}"
    again = f"  (the host was starved; {run.again.home.name} counts)" if run.again else ""
    return f"{run.status:<12} {entry.test}  {_shown(run.home / 'report.html', start)}{again}"


def _about(kept: Kept) -> Iterator[str]:
    if not kept.cluster:
        yield f"not kept: the cluster of {kept.entry.test}: {kept.why}"
        return
    yield f"kept: the cluster of {kept.entry.test}, bootstrap {kept.bootstrap}"
    yield f"  look at it:  aftershock cluster status --run {kept.cluster}"
    yield f"  clean it up: aftershock cluster down --run {kept.cluster}"


def _shown(path: Path, start: Path) -> Path:
    return path.relative_to(start) if path.is_relative_to(start) else path


def _silent(_: str) -> None:
    """What was put away as it should be needs no word."""
