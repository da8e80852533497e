"""What the performer makes of a run, with no engine and no Spark: `leased_run` and the judge are stood in for."""

import json
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import ClusterError, EngineError, EvidenceError
from aftershock.harness.cluster import engine
from aftershock.harness.labs.minimise import execution
from aftershock.harness.labs.minimise.execution import WarmClusters
from aftershock.harness.labs.minimise.search import CandidateRun
from aftershock.harness.pytest.leased_run import LeasedJob
from aftershock.harness.run.rundir import RunDir
from aftershock.results import judge as judge_module
from aftershock.results.checks.check import Check, Status, Verdict
from aftershock.tests.unit.harness.labs.minimise.pretend import CHECK, source


class Stage:
    """In the place of `leased_run`: drives nothing. ``broken``: what it raises, ``kinds``: the leases asked for."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.kinds: list[str] = []
        self.swept = 0

    def drive(self, errand: LeasedJob) -> RunDir:
        home = errand.begin()
        self.kinds.append(errand.kind)
        if self.broken:
            raise self.broken
        return home

    def pool_of(self, _: object) -> None:
        pass


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()

    def sweep(*_: object) -> None:
        stage.swept += 1

    monkeypatch.setattr(execution, "leased_run", stage)
    monkeypatch.setattr(engine, "connect", lambda: None)
    monkeypatch.setattr(execution, "sweep", sweep)
    return stage


def judge(monkeypatch: pytest.MonkeyPatch, found: Verdict | EvidenceError) -> None:
    def judged(_: object, __: Path) -> Verdict:
        if isinstance(found, EvidenceError):
            raise found
        return found

    monkeypatch.setattr(judge_module.Judge, "__call__", judged)


def verdict(status: Status) -> Verdict:
    return Verdict(
        "run", "big", 7, ("a",), (Check(CHECK, "slo", "all arms", status, 9, 1, "records", "3 are missing"),)
    )


def clusters(folder: Path) -> WarmClusters:
    return WarmClusters(source(), folder, None, "aftershock minimise run-0", allow_exec=False)


def test_a_run_is_driven_and_judged(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is under `runs`, and says what it is for; what the dead left is removed once, before the first."""
    judge(monkeypatch, verdict(Status.FAIL))
    with clusters(tmp_path) as perform:
        ran = [perform(source().document) for _ in range(2)]
    assert [("fails", "3 are missing")] * 2 == [(each.word, each.why) for each in ran]
    facts: list[dict[str, Any]] = [json.loads((tmp_path / "runs" / each.run / "run.json").read_text()) for each in ran]
    assert ["run-0", "run-0"] == [each["minimises"] for each in facts]
    assert (["integrity"] * 2, 1) == (stage.kinds, stage.swept)


def test_a_run_that_breaks_down_is_told(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cluster that did not come up, or one run whose evidence is bad, ends no search."""
    judge(monkeypatch, EvidenceError("part-0.parquet: truncated"))
    with clusters(tmp_path) as perform:
        assert ("broke", "part-0.parquet: truncated") == _said(perform(source().document))
        stage.broken = ClusterError("k2 did not come up\nits log: …")
        assert ("broke", "k2 did not come up") == _said(perform(source().document))


def test_no_engine_ends_it(stage: Stage, tmp_path: Path) -> None:
    """No other candidate would fare better."""
    stage.broken = EngineError("no engine")
    with clusters(tmp_path) as perform, pytest.raises(EngineError):
        perform(source().document)


def _said(ran: CandidateRun) -> tuple[str, str]:
    return ran.word, ran.why
