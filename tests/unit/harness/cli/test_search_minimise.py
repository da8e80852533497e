"""`aftershock minimise`: streams, exit codes, files and errors, with fake clusters."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from aftershock.faults.sections.document import dump_yaml
from aftershock.harness.cli import __main__
from aftershock.harness.search import corpus
from aftershock.harness.search import minimise_runs as execution
from aftershock.harness.search.minimise import CandidateRun, Word
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.tests.unit.faults.search.following import ids, plan, slow


class PretendClusters:
    """Replaces `warm_clusters`: plans with fault f3 fail, unless the whole plan is flaky."""

    flake = False

    def __init__(self, *_: object, **__: object) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, document: Mapping[str, Any]) -> CandidateRun:
        self.count += 1
        word: Word = "fails" if "f3" in ids(document) and not self.flake else "passes"
        return CandidateRun(word, "pretended", f"run-{self.count}")


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(execution, "warm_clusters", PretendClusters)
    run = tmp_path / "run-0"
    run.mkdir()
    (run / "plan.yaml").write_text(dump_yaml(plan(*(slow(f"f{number}", 3 * number) for number in range(12)))))
    facts = {"run_id": "run-0", "seed": 7, "rehearse": False, "status": "complete", "versions": {}}
    (run / "run.json").write_text(json.dumps(facts))
    judged(run, Status.FAIL)
    return tmp_path


def judged(run: Path, status: Status) -> None:
    check = Check("slo/lost", "slo", "all arms", status, 9, 1, "records", "3 records are missing")
    (run / "verdict.json").write_text(Verdict("run-0", "big", 7, ("a",), (check,)).text())


def minimise(out: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["aftershock", "minimise", "run-0", "--out", str(out), *words])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    return int(ended.value.code or 0)


def test_a_failing_plan_is_minimised(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0, the plan and its log in their own folder, and a readable entry in the corpus."""
    assert 0 == minimise(out, monkeypatch)
    told = capsys.readouterr()
    assert "faults: 12 -> 1\n" in told.out
    folder = out / "minimise" / "run-0"
    assert {"plan.yaml", "tried.md", "result.json", "cache.jsonl"} == {path.name for path in folder.iterdir()}
    (entry,) = corpus.read(out / corpus.NAME).entries
    assert (7, ("slo/lost",)) == (entry.origin.seed, entry.origin.failed)
    assert f"in the corpus: {entry.path}" in told.err


def test_a_repeated_search_uses_the_cache(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All results come from the cache; stdout has one JSON document; the corpus still has one entry."""
    minimise(out, monkeypatch)
    capsys.readouterr()
    assert 0 == minimise(out, monkeypatch, "--json")
    told = capsys.readouterr()
    assert {"before": 12, "after": 1} == json.loads(told.out)["faults"]
    assert "0 s  " not in told.err
    assert 1 == len(corpus.read(out / corpus.NAME).entries)


def test_a_flake_is_inconclusive(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2 with a message, no plan, and no entry in the corpus."""
    monkeypatch.setattr(PretendClusters, "flake", True)
    assert 2 == minimise(out, monkeypatch)
    assert "a flake" in capsys.readouterr().out
    assert not (out / "minimise" / "run-0" / "plan.yaml").exists()
    assert () == corpus.read(out / corpus.NAME).entries


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), Status.PASS, "run-0: the run passed, so there is nothing to minimise"),
        ((), Status.INCONCLUSIVE, "run-0: the run was INCONCLUSIVE, not FAIL"),
        (("--budget", "soon"), Status.FAIL, "--budget soon is not a duration"),
        (("--budget", "1s"), Status.FAIL, "a budget of 1 s is too small"),
        (
            ("--check", "slo/gap"),
            Status.FAIL,
            "--check slo/gap: this check did not FAIL in the run; failed checks: slo/lost",
        ),
    ],
)
def test_runs_that_can_not_be_minimised_are_refused(
    words: tuple[str, ...], status: Status, says: str,
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Exit 3 with a message on stderr, and no output on stdout."""
    judged(out / "run-0", status)
    assert 3 == minimise(out, monkeypatch, *words)
    told = capsys.readouterr()
    assert says in told.err
    assert "" == told.out


def test_a_folder_that_can_not_be_written(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 with advice, before the first run."""
    (out / "minimise").write_text("in the way")
    assert 3 == minimise(out, monkeypatch)
    assert "choose another --out" in capsys.readouterr().err
