"""JUnit XML: the four statuses, correct counts, and text that any XML parser reads back."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report.verdict_formats import cases, document, write

HOSTILE = '</failure>"<b>&\x00\x1b[2J\ud800\uffff'


def check(status: Status, **changed: object) -> Check:
    told = {"id": "slo/produce.gap", "kind": "slo", "subject": "arm=a", "n": 7, "minimum": 1, "unit": "s"}
    return Check(**(told | {"why": "too slow", "status": status} | changed))  # type: ignore[arg-type]


def parsed(written: bytes) -> ET.Element:
    return ET.fromstring(written)  # noqa: S314 - our own file


def verdict(*checks: Check) -> Verdict:
    return Verdict("run-1", "demo", 7, ("a",), checks)


@pytest.mark.parametrize(
    ("status", "tag"),
    [(Status.PASS, None), (Status.FAIL, "failure"), (Status.INCONCLUSIVE, "error"), (Status.ERROR, "error")],
)
def test_each_status_has_its_element(status: Status, tag: str | None) -> None:
    """PASS has no element; INCONCLUSIVE is an error of its own type, never a pass or a skip."""
    case = cases(verdict(check(status)), "aftershock.demo")[0]
    assert {"classname": "aftershock.demo", "name": "slo/produce.gap (arm=a)"} == case.attrib
    assert ([] if tag is None else [tag]) == [child.tag for child in case]
    for child in case:
        assert {"type": status.value, "message": "too slow"} == child.attrib


def test_the_text_has_facts_and_next_step() -> None:
    """Observed value, threshold, n, records, next step and position in the plan have a line each."""
    bad = check(
        Status.FAIL, observed=8.5, threshold=6.0, censored=2, at="demo.yaml:21:5", next="look", samples=((0, 7),)
    )
    text = cases(verdict(bad), "x")[0][0].text
    assert text == (
        "observed: 8.5 s\nthreshold: 6 s\nn: 7, at least 1, 2 censored\nrecords: 0:7\nnext: look\n"
        "SLO at: demo.yaml:21:5"
    )


def test_counts_equal_those_of_the_run() -> None:
    """Tests, failures, errors and time are correct on the suite and on the root."""
    statuses = (Status.PASS, Status.FAIL, Status.FAIL, Status.INCONCLUSIVE, Status.ERROR, Status.ERROR)
    root = parsed(document(verdict(*map(check, statuses)), 63.8349, "2026-11-21T10:15:00+00:00"))
    suite = root[0]
    counts = {"name": "demo", "tests": "6", "failures": "2", "errors": "3", "time": "63.835"}
    assert counts == root.attrib
    assert counts | {"timestamp": "2026-11-21T10:15:00+00:00"} == suite.attrib
    assert (6, 2, 3) == tuple(len(list(suite.iter(tag))) for tag in ("testcase", "failure", "error"))


def test_any_text_can_be_read_back() -> None:
    """Markup is escaped; characters that XML 1.0 forbids, including lone surrogates, are replaced."""
    bad = check(Status.FAIL, why=HOSTILE, subject=HOSTILE, next=HOSTILE, at=HOSTILE)
    root = parsed(document(Verdict("r", HOSTILE, 7, (), (bad,)), None, HOSTILE))
    clean = '</failure>"<b>&??[2J??'
    failure = next(root.iter("failure"))
    assert clean == root[0].get("name") == failure.get("message")
    assert f"next: {clean}" in (failure.text or "")
    assert "time" not in root.attrib


def test_the_file_is_written_to_the_run_directory(tmp_path: Path) -> None:
    """junit.xml has the run's start and duration if run.json has them."""
    (tmp_path / "run.json").write_text(
        '{"run_id": "r", "status": "complete", "plan": "p", "started_at": "2026-11-21T10:15:00", '
        '"marks": {"load_end_us": 2500000}}'
    )
    path = write(tmp_path, verdict(check(Status.PASS)))
    assert tmp_path / "junit.xml" == path
    suite = parsed(path.read_bytes())[0]
    assert ("2.500", "2026-11-21T10:15:00") == (suite.get("time"), suite.get("timestamp"))
    with pytest.raises(EvidenceError, match=r"run\.json: missing"):
        write(tmp_path / "elsewhere", verdict())
