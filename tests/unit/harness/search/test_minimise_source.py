"""Runs that can be minimised, and the errors for all other runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError
from aftershock.faults.sections.document import dump_yaml
from aftershock.harness.search.minimise import same_failure, source_of
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.tests.unit.faults.search.following import plan, slow

GAP, LOST = "slo/produce.gap", "slo/lost"
PLAN = plan(slow("f0", 0), slo=["produce.gap < 2s", "lost == 0"])


def check(name: str, status: Status, subject: str = "arm=a", *, gate: bool = True) -> Check:
    return Check(name, name.partition("/")[0], subject, status, 9, 1, "ms", f"{subject} is {status}", gate=gate)


def verdict(*checks: Check) -> Verdict:
    return Verdict("run-0", "big", 7, ("a",), checks)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "run-0"
    home.mkdir()
    (home / "plan.yaml").write_text(dump_yaml(PLAN))
    facts = {"run_id": "run-0", "seed": 7, "rehearse": False, "status": "complete", "versions": {"kafka": "4.3.1"}}
    (home / "run.json").write_text(json.dumps(facts))
    failed = check(GAP, Status.FAIL), check("harness/host", Status.INCONCLUSIVE), check(LOST, Status.FAIL, gate=False)
    judged(home, *failed)
    return home


def judged(home: Path, *checks: Check) -> None:
    (home / "verdict.json").write_text(verdict(*checks).text())


def facts(home: Path, **more: Any) -> None:
    said = json.loads((home / "run.json").read_text())
    (home / "run.json").write_text(json.dumps(said | more))


def test_the_source_has_plan_seed_and_failed_checks(home: Path) -> None:
    """A check that is only reported doesn't fail a run."""
    found = source_of(home)
    assert ("run-0", 7, (GAP,), False) == (found.run_id, found.seed, found.checks, found.rehearse)
    assert PLAN == found.document


def test_expectations_and_the_kafka_version_belong_to_the_source(home: Path) -> None:
    """So that candidates are run and judged like the original."""
    (home / "expectations.jsonl").write_text('{"text": "duplicate == 0", "at": "t.py:1", "gate": "verdict"}\n')
    facts(home, versions={"kafka": "4.1.2"})
    found = source_of(home).document
    assert {"slo": "duplicate == 0", "gate": "verdict"} == found["slo"][-1]
    assert {"kafka": "4.1.2"} == found["cluster"]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (Status.PASS, "run-0: the run passed, so there is nothing to minimise; name a failed run"),
        (
            Status.INCONCLUSIVE,
            "run-0: the run was INCONCLUSIVE, not FAIL; fix the causes that its checks name, and run its plan again",
        ),
        (Status.ERROR, "run-0: the run could not be judged; fix the causes that its checks name"),
    ],
)
def test_a_run_that_did_not_fail_is_refused(status: Status, says: str, home: Path) -> None:
    """The error has a remedy."""
    judged(home, check(GAP, status))
    with pytest.raises(AftershockError, match=says):
        source_of(home)


def test_unusable_runs_are_refused(home: Path) -> None:
    """No such check, no verdict, a plan with other times, a foreign cluster: each has its own message."""
    with pytest.raises(
        AftershockError, match=f"--check {LOST}: this check did not FAIL in the run; failed checks: {GAP}"
    ):
        source_of(home, [LOST])
    (home / "plan.yaml").write_text(dump_yaml({**PLAN, "fautls": []}))
    with pytest.raises(AftershockError, match=r"can't be run again by this version: .*fautls"):
        source_of(home)
    (home / "plan.yaml").write_text(dump_yaml({**PLAN, "cluster": {"attach": {"bootstrap": "localhost:9092"}}}))
    with pytest.raises(AftershockError, match="ran on an existing cluster"):
        source_of(home)
    (home / "verdict.json").write_text('{"status": "FAIL"}')
    with pytest.raises(AftershockError, match="not a verdict of Aftershock"):
        source_of(home)
    (home / "verdict.json").unlink()
    with pytest.raises(AftershockError, match=r"run-0 has no verdict \(status: complete"):
        source_of(home)


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([check(GAP, Status.FAIL), check(GAP, Status.PASS, "arm=b"), check(LOST, Status.FAIL)], "fails"),
        ([check(GAP, Status.FAIL), check(LOST, Status.PASS)], "passes"),
        ([check(GAP, Status.FAIL)], "passes"),
        ([check(GAP, Status.FAIL), check(LOST, Status.FAIL, gate=False)], "passes"),
        ([check(GAP, Status.FAIL), check(LOST, Status.INCONCLUSIVE)], "undecided"),
        ([check(GAP, Status.PASS), check(LOST, Status.INCONCLUSIVE)], "passes"),
        ([check(GAP, Status.INCONCLUSIVE), check(GAP, Status.PASS, "arm=b"), check(LOST, Status.FAIL)], "undecided"),
        ([check("integrity/lost", Status.FAIL)], "passes"),
    ],
)
def test_same_failure(checks: list[Check], word: str) -> None:
    """All checks at stake fail, each for any arm; a check that passed, or that isn't judged, decides."""
    assert word == same_failure(verdict(*checks), (GAP, LOST))[0]
