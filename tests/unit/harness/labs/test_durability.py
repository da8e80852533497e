"""The measurement of power cuts: what runs again, what it prints, and evidence that gives the same figures."""

import json
from pathlib import Path

import pytest

from aftershock.errors import AftershockError, ClusterError, EvidenceError
from aftershock.harness.labs import durability as lab
from aftershock.harness.run.run import Request
from aftershock.results.checks.check import Check, Status
from aftershock.results.evidence.manifest import manifest_of
from aftershock.tests.unit.results.test_durability import run

DOCUMENTED = {"schema_version": 2, "distributions": [], "gaps": [], "recoveries": []}


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests short: a node, a rack and all nodes, with eligible leader replicas and the default mount."""
    monkeypatch.setattr(lab, "RUNS", lab.RUNS[:3])


def perform(request: Request, lost: tuple[int, ...] = ()) -> Path:
    """Write a judged run of the plan with these changes."""
    text = " ".join(request.changes)
    fault = {"broker": "1"} if "broker" in text else {"rack": "a"} if "rack: a" in text else {"everywhere": True}
    home = request.out / f"run-{len(list(request.out.glob('run-*')))}"
    made = run(home, lost, fault=fault, cluster={"block_device": {"sync": "sync: true" in text}})
    versions = {"kafka": "4.3.1"}
    documents = {
        "run": {
            **made.run.run,
            "schema_version": 1,
            "versions": versions,
            "command": "aftershock --out /home/user/runs",
        },
        "timeline": {**made.run.timeline, "schema_version": 1},
        "analysis": DOCUMENTED,
        "verdict": made.run.verdict.to_json(),
    }
    for name, document in documents.items():
        (home / f"{name}.json").write_text(json.dumps(document))
    (home / "plan.yaml").write_text("")
    (home / "manifest.json").write_text(json.dumps(manifest_of(home)))
    return home


def test_only_what_is_missing_runs(tmp_path: Path) -> None:
    """A run is repeated if it failed, can't be trusted, or the seed is another one."""
    performed, said = list[Request](), list[str]()

    def fails_once(request: Request) -> Path:
        performed.append(request)
        if len(performed) == 2:
            raise ClusterError("node 1 exited")
        return perform(request)

    home = lab.run_missing(tmp_path, 1, "aftershock durability", fails_once, said.append)
    assert len(lab.RUNS) == len(performed)
    assert [line for line in said if "left out" in line] == [f"{lab.RUNS[1].name} is left out: node 1 exited"]
    assert {lab.RUNS[1].name: "it has not run"} == lab.read_result(home).doubts
    lab.run_missing(tmp_path, 1, "aftershock durability", fails_once, said.append)
    assert len(lab.RUNS) + 1 == len(performed)
    verdict = home / "run-0" / "verdict.json"
    late = Check("harness/generator", "harness", "run", Status.INCONCLUSIVE, 0, 1, "", "late").to_json()
    verdict.write_text(json.dumps(json.loads(verdict.read_text()) | {"checks": [late]}))
    lab.run_missing(tmp_path, 1, "aftershock durability", fails_once, said.append)
    assert len(lab.RUNS) + 2 == len(performed)
    lab.run_missing(tmp_path, 2, "aftershock durability", fails_once, said.append)
    assert 2 * len(lab.RUNS) + 2 == len(performed)


@pytest.mark.parametrize(
    ("lost", "code", "sentence"), [((), 0, "No record was lost"), ((9,), 1, "Records were lost that")]
)
def test_a_broken_promise_fails_the_command(tmp_path: Path, lost: tuple[int, ...], code: int, sentence: str) -> None:
    home = lab.run_missing(tmp_path, 1, "", lambda request: perform(request, lost), lambda _: None)
    result = lab.read_result(home)
    assert code == result.exit_code
    assert sentence in lab.write_page(result, home).read_text()
    assert all(len(line) <= 80 for line in lab.text(result).splitlines())
    assert len(result.cells) == len(lab.document(result)["cells"])  # type: ignore[arg-type]


def test_a_budget_takes_the_first_runs_that_fit(tmp_path: Path) -> None:
    said = list[str]()
    budget_s = 2.5 * lab.RUNS[0].takes_s
    home = lab.run_missing(tmp_path, 1, "", perform, said.append, budget_s)
    assert [lab.RUNS[2].name] == [*lab.read_result(home).doubts]
    assert f"2 of them fit into the budget; left for later: {lab.RUNS[2].name}" in said


def test_missing_runs_decide_nothing(tmp_path: Path) -> None:
    assert 2 == lab.read_result(tmp_path).exit_code


def test_reduced_evidence_gives_the_same_figures(tmp_path: Path) -> None:
    home = lab.run_missing(tmp_path, 1, "", lambda request: perform(request, (9,)), lambda _: None)
    target = tmp_path / "evidence"
    assert 0 < lab.reduce(home, target) < lab.BYTES_MAX
    assert lab.text(lab.read_result(home)) == lab.text(lab.read_result(target))
    page = tmp_path / "page.md"
    page.write_text(f"above\n{lab.BEGIN}\noutdated\n<!-- results end -->\nbelow\n")
    lab.main(str(tmp_path), str(target), str(page))
    assert "**1** of 33 (3.0%)" in page.read_text()
    assert "outdated" not in page.read_text()
    assert "/home" not in "".join(path.read_text() for path in target.rglob("*.json"))


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / lab.NAME).write_text("{}")
    with pytest.raises(EvidenceError, match="the file is damaged"):
        lab.read_result(tmp_path)


def test_evidence_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = lab.run_missing(tmp_path, 1, "", perform, lambda _: None)
    monkeypatch.setattr(lab, "BYTES_MAX", 100)
    with pytest.raises(AftershockError, match="more than 100"):
        lab.reduce(home, tmp_path / "evidence")
    assert not (tmp_path / "evidence").exists()
