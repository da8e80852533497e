"""The measurement of power cuts: what runs again, what it prints, and evidence that gives the same figures."""

import json
from pathlib import Path

import pytest

from aftershock.errors import AftershockError, ClusterError, EvidenceError
from aftershock.harness.campaigns import durability as lab
from aftershock.harness.campaigns import publish, store
from aftershock.harness.campaigns.store import Perform, Planned
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.model.check import Check, Status
from aftershock.tests.unit.results.studies.test_durability import run

DOCUMENTED = {"schema_version": 2, "distributions": [], "gaps": [], "recoveries": []}


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests short: a node, a rack and all nodes, with eligible leader replicas and the default mount."""
    monkeypatch.setattr(lab, "RUNS", lab.RUNS[:3])


def perform(out: Path, planned: Planned, lost: tuple[int, ...] = ()) -> Path:
    """Write a judged run of the plan with these changes."""
    text = " ".join(planned.changes)
    fault = {"broker": "1"} if "broker" in text else {"rack": "a"} if "rack: a" in text else {"everywhere": True}
    home = out / f"run-{len(list(out.glob('run-*')))}"
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


def measure(home: Path, perform: Perform, said: list[str], seed: int = 1, budget_s: float | None = None) -> lab.Result:
    record = store.read(home, lab.NAME, seed=seed)
    record = store.run_missing(record, home, lab.RUNS, perform, said.append, budget_s)
    return lab.read_result(record, home, current=True)


def losing(home: Path, *lost: int) -> Perform:
    return lambda planned: perform(home, planned, lost)


def test_only_what_is_missing_runs(tmp_path: Path) -> None:
    """A run is repeated if it failed, can't be trusted, or the seed is another one."""
    performed, said = list[Planned](), list[str]()

    def fails_once(planned: Planned) -> Path:
        performed.append(planned)
        if len(performed) == 2:
            raise ClusterError("node 1 exited")
        return perform(tmp_path, planned)

    result = measure(tmp_path, fails_once, said)
    assert len(lab.RUNS) == len(performed)
    assert f"{lab.RUNS[1].name} is left out: it failed: node 1 exited" in said
    assert {lab.RUNS[1].name: "it failed: node 1 exited"} == result.doubts
    assert {} == measure(tmp_path, fails_once, said).doubts
    assert len(lab.RUNS) + 1 == len(performed)
    verdict = tmp_path / "run-0" / "verdict.json"
    late = Check("harness/generator", "harness", "run", Status.INCONCLUSIVE, 0, 1, "", "late").to_json()
    verdict.write_text(json.dumps(json.loads(verdict.read_text()) | {"checks": [late]}))
    measure(tmp_path, fails_once, said)
    assert len(lab.RUNS) + 2 == len(performed)
    measure(tmp_path, fails_once, said, seed=2)
    assert 2 * len(lab.RUNS) + 2 == len(performed)


@pytest.mark.parametrize(
    ("lost", "code", "sentence"), [((), 0, "No record was lost"), ((9,), 1, "Records were lost that")]
)
def test_a_broken_promise_fails_the_command(tmp_path: Path, lost: tuple[int, ...], code: int, sentence: str) -> None:
    result = measure(tmp_path, losing(tmp_path, *lost), [])
    assert code == result.exit_code
    assert sentence in lab.write_page(result, tmp_path).read_text()
    assert all(len(line) <= 80 for line in lab.text(result).splitlines())
    assert len(result.cells) == len(lab.document(result)["cells"])  # type: ignore[arg-type]


def test_a_budget_takes_the_first_runs_that_fit(tmp_path: Path) -> None:
    said = list[str]()
    result = measure(tmp_path, losing(tmp_path), said, budget_s=2.5 * lab.RUNS[0].takes_s)
    assert [lab.RUNS[2].name] == [*result.doubts]
    assert f"2 of them fit into the budget; left for later: {lab.RUNS[2].name}" in said


def test_missing_runs_decide_nothing(tmp_path: Path) -> None:
    assert 2 == lab.read_result(store.read(tmp_path, lab.NAME), tmp_path).exit_code


def test_reduced_evidence_gives_the_same_figures(tmp_path: Path) -> None:
    home, target = tmp_path / lab.NAME, tmp_path / "evidence"
    result = measure(home, losing(home, 9), [])
    assert 0 < lab.reduce(home, target) < lab.BYTES_MAX
    assert lab.text(result) == lab.text(lab.read_result(store.read(target, lab.NAME), target))
    page = tmp_path / "page.md"
    begin = "<!-- results: written by `make durability` from stored evidence -->"
    page.write_text(f"above\n{begin}\noutdated\n<!-- results end -->\nbelow\n")
    publish.power_cuts(str(tmp_path), str(target), str(page))
    assert "**1** of 33 (3.0%)" in page.read_text()
    assert "outdated" not in page.read_text()
    assert "/home" not in "".join(path.read_text() for path in target.rglob("*.json"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"runs": 3}, "field 'runs'"),
        ({"runs": {"a": {"digest": "d", "blocks": 6, "run": "../../etc"}}}, r"field 'runs.a.run'"),
        ({"claims": [1]}, "field 'claims'"),
        ({"campaign": "audit"}, "evidence of version 1 of audit"),
        ({"schema_version": 9}, "schema version 9 is unknown"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    store.write(tmp_path, store.Record(lab.NAME))
    path = tmp_path / store.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(EvidenceError, match=rf"campaign\.json: .*{problem}"):
        store.read(tmp_path, lab.NAME)


def test_evidence_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / lab.NAME
    measure(home, losing(home), [])
    monkeypatch.setattr(lab, "BYTES_MAX", 100)
    with pytest.raises(AftershockError, match="more than 100"):
        lab.reduce(home, tmp_path / "evidence")
    assert not (tmp_path / "evidence").exists()
