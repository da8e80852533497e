"""Runs and results of minimisation: the performer with fakes for runs and the judge, and the written files."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aftershock.errors import ClusterError, EngineError, EvidenceError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.harness.cluster import engine
from aftershock.harness.run.job import Job
from aftershock.harness.run.session import Suite
from aftershock.harness.safety.rundir import RunDir
from aftershock.harness.search import minimise_runs as execution
from aftershock.harness.search.minimise import CandidateRun, Performer
from aftershock.harness.search.minimise_runs import text, to_json, warm_clusters, write
from aftershock.results import judge as judge_module
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.tests.unit.faults.search.following import ids
from aftershock.tests.unit.harness.search.pretend import CHECK, Pretend, culprit, search, source


class Stage:
    """Replaces the module `run` and runs nothing. ``broken`` is the error to raise; ``kinds`` lists the requested
    leases.
    """

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.kinds: list[str] = []
        self.swept = 0

    def drive_leased(
        self, _job: Job, kind: str, _suite: Suite, _test: str, begin: Callable[[], RunDir], _console: Console
    ) -> RunDir:
        home = begin()
        self.kinds.append(kind)
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

    monkeypatch.setattr(execution, "running", stage)
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


def clusters(folder: Path) -> AbstractContextManager[Performer]:
    return warm_clusters(source(), folder, None, allow_exec=False)


def test_a_run_is_driven_and_judged(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's folder is under `runs` and names its purpose; remains of dead processes are removed once, before the
    first run.
    """
    judge(monkeypatch, verdict(Status.FAIL))
    with clusters(tmp_path) as perform:
        ran = [perform(source().document) for _ in range(2)]
    assert [("fails", "3 are missing")] * 2 == [(each.word, each.why) for each in ran]
    facts: list[dict[str, Any]] = [json.loads((tmp_path / "runs" / each.run / "run.json").read_text()) for each in ran]
    assert ["run-0", "run-0"] == [each["minimises"] for each in facts]
    assert (["integrity"] * 2, 1) == (stage.kinds, stage.swept)


def test_a_broken_run_does_not_end_the_search(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a cluster that did not come up nor a run with bad evidence ends the search."""
    judge(monkeypatch, EvidenceError("part-0.parquet: truncated"))
    with clusters(tmp_path) as perform:
        assert ("broke", "part-0.parquet: truncated") == _said(perform(source().document))
        stage.broken = ClusterError("k2 did not come up\nits log: …")
        assert ("broke", "k2 did not come up") == _said(perform(source().document))


def test_a_missing_engine_ends_the_search(stage: Stage, tmp_path: Path) -> None:
    """No other candidate could run either."""
    stage.broken = EngineError("no engine")
    with clusters(tmp_path) as perform, pytest.raises(EngineError):
        perform(source().document)


def _said(ran: CandidateRun) -> tuple[str, str]:
    return ran.word, ran.why


def test_the_small_plan_names_its_evidence(tmp_path: Path) -> None:
    """The plan is valid, and says how to run it, where it came from, how often it failed and where the evidence is."""
    found, _, _ = search(tmp_path, Pretend(culprit("f7")))
    write(found, tmp_path)
    checked = load_plan(tmp_path / "plan.yaml")
    assert "# aftershock run plan.yaml --seed 7" == checked.text.splitlines()[0]
    assert ("big-small", ["f7"]) == (checked.plan.name, [*ids(dump(checked.plan))])
    for told in ("from run-0, with 1 of 12 faults", CHECK, "2 of 2", found.last_failing):
        assert told in checked.plan.why
    rows = (tmp_path / "tried.md").read_text().splitlines()
    assert len(found.tried) == len([row for row in rows if row.startswith("|")]) - 2
    told = json.loads((tmp_path / "result.json").read_text())
    assert to_json(found, tmp_path) == told
    assert ("minimal", {"before": 12, "after": 1}, str(tmp_path / "plan.yaml")) == (
        told["ending"],
        told["faults"],
        told["plan"],
    )
    assert "faults: 12 -> 1\n" in text(found, tmp_path)


def test_a_flake_leaves_no_plan(tmp_path: Path) -> None:
    """Only the log, and a message with the number of failures."""
    found, _, _ = search(tmp_path, Pretend(lambda _: "passes"))
    write(found, tmp_path)
    assert not (tmp_path / "plan.yaml").exists()
    assert "a flake" in text(found, tmp_path)
    assert "failed again: 0 of 2 (95 % interval 0.00 to 0.84)" in text(found, tmp_path)
    assert to_json(found, tmp_path)["plan"] is None


def test_a_plan_that_fails_without_faults_says_so(tmp_path: Path) -> None:
    found, _, _ = search(tmp_path, Pretend(lambda _: "fails"))
    assert "faults: 12 -> 0; the plan fails without faults, so the faults are not the cause" in text(found, tmp_path)
