"""Output of a finished pytest session in ``session.json``, ``index.html``, the terminal and the JUnit file.

The JUnit file has each test once; the answers and the checks of its runs are properties of its ``<testcase>``.
"""

import json
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from aftershock.errors import AftershockError, EvidenceError
from aftershock.harness.pytest.reports import Outcome
from aftershock.harness.pytest.verdicts import RunVerdict, without_verdict
from aftershock.harness.run.progress import annotate_github
from aftershock.harness.run.run import pool_of
from aftershock.harness.run.session import PROPERTY, Entry, Suite
from aftershock.results.evidence.files import write_whole
from aftershock.results.model.answer import answer_lines
from aftershock.results.model.check import Verdict
from aftershock.results.model.text import status, xml_text
from aftershock.results.report.several import write_index

_SETUP_PREFIX = 'failed on setup with "'  # pytest's text for an error of any phase but teardown


@dataclass(frozen=True)
class ChecksOfTest:
    """Verdicts of a test's runs, by run id; None for a run without a verdict.

    ``outcome`` is the outcome of the test according to its runs; None for a test that failed before its runs were
    judged.
    """

    verdicts: Mapping[str, Verdict | None]
    outcome: Outcome | None


def checks_by_test(
    entries: Sequence[Entry], verdicts: Mapping[str, RunVerdict], held: Mapping[str, Outcome]
) -> list[ChecksOfTest]:
    """Group the final verdicts by test; the verdict of a repeated run is listed under the id of the first run."""
    repetitions = {run.repetition.home.name for run in verdicts.values() if run.repetition}
    by_test: dict[str, dict[str, Verdict | None]] = {}
    for entry in entries:
        if entry.run_id not in repetitions:
            run = verdicts.get(entry.run_id)
            by_test.setdefault(entry.test, {})[entry.run_id] = run.final.verdict if run else None
    return [ChecksOfTest(runs, held.get(test)) for test, runs in by_test.items()]


def add_checks(path: Path, tests: Sequence[ChecksOfTest]) -> None:
    """Add checks to the JUnit file at ``path``; raise EvidenceError if the file is missing or not a JUnit file."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - pytest wrote it a moment ago
        pending = {run_id: test for test in tests for run_id in test.verdicts}
        for suite in root.iter("testsuite"):
            for case in suite.iter("testcase"):
                properties = case.iterfind(f"properties/property[@name='{PROPERTY}']")
                run_ids = [run_id for item in properties if (run_id := item.get("value"))]
                matches = [pending.pop(run_id) for run_id in run_ids if run_id in pending]
                if matches:
                    _describe(case, matches[0])
        text = ET.tostring(root, encoding="unicode")
        write_whole(path, f'<?xml version="1.0" encoding="utf-8"?>{text}')
    except (OSError, ET.ParseError) as error:
        raise EvidenceError(f"{path}: the checks could not be added to pytest's JUnit file: {error}") from error


def _describe(case: ET.Element, test: ChecksOfTest) -> None:
    """Add the answers and checks of the test's runs as properties, and name the phase of its error."""
    if test.outcome:
        # pytest describes an error of the phase "verdict" as one of the setup
        for error in case.iterfind("error"):
            if error.get("message", "").startswith(_SETUP_PREFIX):
                error.set("message", error.get("message", "").removeprefix(_SETUP_PREFIX).removesuffix('"'))
                error.set("type", test.outcome.status)
    properties = next(case.iter("properties"))  # the run's id is one
    for run_id, verdict in test.verdicts.items():
        if verdict is None:
            continue
        run = f"{run_id}: " if len(test.verdicts) > 1 else ""
        values = [(f"{client} {fault}", words) for client, fault, words in answer_lines(verdict.answers)[0]]
        values += [(f"{check.id} ({check.subject})", f"{status(check)}: {check.why}") for check in verdict.checks]
        for name, value in values:
            ET.SubElement(properties, "property", {"name": xml_text(run + name), "value": xml_text(value)})


def finish(suite: Suite, verdicts: Mapping[str, RunVerdict], failed: Collection[str], start: Path) -> list[str]:
    """Remove or keep the session's clusters, annotate GitHub, write the index; return the lines for the terminal.

    ``failed`` has the node ids of the tests that did not pass; printed paths are relative to the folder ``start``.
    """
    entries = suite.entries()
    runs = {e.run_id: verdicts.get(e.run_id) or without_verdict(suite.out / e.run_id) for e in entries}
    lines, rows = [], []
    for entry in entries:
        run = runs[entry.run_id]
        status = run.status.value if run.verdict else None
        repeated_as = run.repetition.home.name if run.repetition else None
        if run.verdict:
            note = f"  (its host was starved of CPU; the repetition {repeated_as} counts)" if repeated_as else ""
            lines.append(f"{run.status:<12} {entry.test}  {_relative(run.home / 'report.html', start)}{note}")
        else:
            why = run.why.splitlines()[0]
            lines.append(f"{'not judged':<12} {entry.test}  {_relative(run.home, start)}: {why}")
        row = {"run": entry.run_id, "test": entry.test, "status": status}
        rows.append({**row, "why": run.why or None, "repeated_as": repeated_as})
    kept_ids: list[str] = []
    cluster_lines: list[str] = []
    try:
        kept_ids, cluster_lines = _keep_or_remove_clusters(suite, failed)
    except AftershockError as error:
        lines.append(f"the clusters could not be removed: {error}; `aftershock heal` removes them")
    if runs:
        # GitHub's workflow commands, empty elsewhere: in pytest's terminal, each needs a line of its own
        commands = StringIO()
        annotate_github(dict.fromkeys(run.final.home for run in runs.values() if run.final.verdict), out=commands)
        lines += commands.getvalue().splitlines()
        document = {"schema_version": 1, "session": suite.folder.name, "runs": rows, "kept": kept_ids}
        (suite.folder / "session.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        index = write_index([run.home for run in runs.values()], suite.folder, suite.folder.name)
        lines.append(f"index: {_relative(index, start)}")
    return lines + cluster_lines


def _keep_or_remove_clusters(suite: Suite, failed: Collection[str]) -> tuple[list[str], list[str]]:
    """Keep the clusters of failed tests if the session has ``keep_failed``, and remove all other clusters.

    Returns the run ids of the kept clusters, and lines about the clusters of failed tests for the terminal.
    """
    pool = pool_of(suite)
    kept_ids, lines, kept_tests, reasons = [], [], set(), []
    for entry in suite.entries():
        if not (suite.keep_failed and entry.test in failed):
            continue
        try:
            cluster = pool.keep(suite.out / entry.run_id)
        except AftershockError as error:
            reasons.append((entry.test, str(error)))
            continue
        if cluster is None:
            reasons.append((entry.test, "a later test used the cluster; run this test alone to keep its cluster"))
            continue
        with closing(cluster):
            kept_ids.append(cluster.run_id)
            kept_tests.add(entry.test)
            lines.append(f"kept: the cluster of {entry.test}, bootstrap {cluster.bootstrap(None)}")
            lines.append(f"  show it:      aftershock cluster status --run {cluster.run_id}")
            lines.append(f"  take it down: aftershock cluster down --run {cluster.run_id}")
    pool.close(lambda _: None)
    # if the cluster of one of a test's runs is kept, omit the test's other runs
    lines += [f"the cluster of {test} is not kept: {why}" for test, why in reasons if test not in kept_tests]
    return kept_ids, lines


def _relative(path: Path, start: Path) -> Path:
    return path.relative_to(start) if path.is_relative_to(start) else path
