"""Reduction of runs to the evidence of the headline claims: same words, few bytes, and nothing of this machine."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.campaigns import kip as output
from aftershock.harness.campaigns import publish, store
from aftershock.harness.campaigns.kip import BYTES_MAX, home_of, kept_claims, record_of, reduce_trial
from aftershock.harness.campaigns.kip_trials import KIP_848, KIP_951, KIP_1224, TRIALS, Trial
from aftershock.harness.campaigns.store import Record
from aftershock.results.compare import statistics
from aftershock.results.evidence.manifest import digest_of, manifest_of
from aftershock.results.studies.part import Part
from aftershock.results.studies.trials import kip848
from aftershock.results.studies.trials.claim import Parts
from aftershock.tests.unit.harness.cli.test_search_kip import kept
from aftershock.tests.unit.results.studies.trials import groups
from aftershock.tests.unit.results.studies.trials.test_kip1224 import square

DOCUMENTED = {"distributions": [], "gaps": [], "recoveries": []}
BINS = [
    {"metric": "produce.latency", "client": "a/b", "rack": "a", "start_us": 0, "n": 1, "censored": 0}
    | {"p50_us": 1, "p99_us": 1, "slowest_us": 1}
]


@pytest.fixture(autouse=True)
def _few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sign-flip test short: no word depends on its p-value."""
    monkeypatch.setattr(statistics, "FLIPS", 1_000)


def leader_discovery(out: Path) -> tuple[Trial, Path]:
    return KIP_951, kept(out, 100.0)


def append_linger(out: Path) -> tuple[Trial, Path]:
    home = home_of(KIP_1224, out)
    parts = square(home)
    for part in parts.values():
        line = {"t_us": 1, "fault": "f", "state": "intended", "owner": "/proc/1"}
        (part.home / "journal.jsonl").write_text(json.dumps(line))
    return finished(KIP_1224, home, parts)


def rebalances(out: Path) -> tuple[Trial, Path]:
    """Write the run of the headline claim, in which members that died return before others get their partitions.

    Only the journal tells that these partitions have moved.
    """
    home = home_of(KIP_848, out)
    faults = [
        replace(fault, healing_s=fault.start_s + 1.9) if fault.entry == "died" else fault for fault in groups.changes()
    ]
    return finished(KIP_848, home, {kip848.JAVA: groups.run(home / kip848.JAVA, {}, faults)})


def finished(trial: Trial, home: Path, parts: Parts) -> tuple[Trial, Path]:
    """Write the documents and manifest of runs that lie on the disk with fields that must not be published."""
    record = Record(trial.name, trial.registration.version)
    for name, part in parts.items():
        places = {"command": "aftershock kip --out /home/user/runs", "host": {"hostname": "h1", "cores": 2}}
        run = {**part.run.run, **places, "brokers": [{"id": 1, "rack": "a", "container": "c"}]}
        documents = {"run": run, "timeline": part.run.timeline, "analysis": {**DOCUMENTED, "bins": BINS}}
        for document, content in {**documents, "verdict": part.run.verdict.to_json()}.items():
            (part.home / f"{document}.json").write_text(json.dumps(content))
        (part.home / "plan.yaml").write_text("")
        (part.home / "manifest.json").write_text(json.dumps(manifest_of(part.home)))
        (planned,) = [planned for planned in trial.parts if planned.name == name]
        record = record.with_run(planned, part.home.name)
    store.write(home, record)
    return trial, home


Made = Callable[[Path], tuple[Trial, Path]]


@pytest.mark.parametrize("made", [leader_discovery, append_linger, rebalances])
def test_reduced_evidence_gives_the_same_words(made: Made, tmp_path: Path) -> None:
    """All that the headline depends on is judged alike, byte for byte; every other claim says why it is not."""
    trial, home = made(tmp_path / "runs")
    target = tmp_path / "evidence" / "kip"
    size = reduce_trial(trial, home, target)
    assert size == sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) <= BYTES_MAX
    whole, reduced = output.read_result(trial, home), output.read_result(trial, target)
    before = {entry.id: entry for entry in whole.statements}
    kept_ids = {claim.id for claim in kept_claims(trial.claims, whole.parts)}
    headline = next(claim.id for claim in trial.claims if claim.headline)
    assert "confirmed" == before[headline].word
    for entry in reduced.statements:
        if entry.id in kept_ids:
            assert before[entry.id] == entry
        else:
            assert ("undecided", "its evidence is not stored; run the trial") == (entry.word, entry.why)
    assert {"not stored"} == set(reduced.left_out.values())
    assert "confirmed" == reduced.verdict.word
    assert f"; {len(before) - len(kept_ids)} other claims are not stored" in reduced.verdict.why
    # once more, from the same folder
    assert size == reduce_trial(trial, home, target)


def test_only_what_the_claims_read_is_kept(tmp_path: Path) -> None:
    """Columns, fields and files that no claim reads are gone; the manifest has the new digests and the run's own."""
    trial, home = append_linger(tmp_path)
    reduce_trial(trial, home, tmp_path / "kip1224")
    folder = tmp_path / "kip1224" / "idle-1"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    documents = {"run.json", "timeline.json", "verdict.json", "analysis.json", "phases.json", "manifest.json"}
    assert {*documents, "journal.jsonl", "events.jsonl", "outcomes/part-0.parquet", "offsets/part-0.parquet"} == names
    run = json.loads((folder / "run.json").read_text())
    assert ({"cores": 2}, [{"id": 1, "rack": "a"}]) == (run["host"], run["brokers"])
    assert "command" not in run
    assert "bins" not in json.loads((folder / "analysis.json").read_text())
    assert {"t_us": 1, "fault": "f", "state": "intended"} == json.loads((folder / "journal.jsonl").read_text())
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = digest_of(folder / "run.json")
    assert digest
    assert digest.sha256 == manifest["digests"]["run.json"]["sha256"]
    own = digest_of(home / "idle-1" / "run.json")
    assert own
    assert own.sha256 == manifest["reduced_from"]["run.json"]["sha256"]


def test_the_commands_of_the_makefile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One reduces the runs of a KIP by number; one writes charts and tables, of trials that have run."""
    append_linger(tmp_path)
    publish.evidence(str(tmp_path), str(tmp_path / "evidence"), "1224")
    assert f"{tmp_path / 'evidence' / 'kip1224'}: " in capsys.readouterr().out
    pages, readme = tmp_path / "pages", tmp_path / "README.md"
    pages.mkdir()
    for path in (pages / "kip1224.md", pages / "kip951.md", readme):
        path.write_text(
            "<!-- results: written by `make kips` from stored evidence -->\nas it was\n<!-- results end -->"
        )
    publish.kips(str(tmp_path), str(pages), str(readme))
    assert "as it was" in (pages / "kip951.md").read_text()
    shown = (pages / "kip1224.md").read_text()
    assert "**Confirmed**: " in shown
    assert "![Commit latency and batch size over load](kip1224-1.svg)" in shown
    charts = {path.name for path in pages.glob("*.svg")}
    assert {"kip1224-1.svg", "kip1224-2.svg", *(f"kip{kip}.svg" for kip in TRIALS)} == charts
    (row,) = [line for line in readme.read_text().splitlines() if line.startswith("| 1224, ")]
    assert "| confirmed: 5 ms in all n = 8, units that differ: at most 31 % (95 %, one-sided) |" in row
    assert "| undecided: no figure, n = 0 | claims: " in row


def test_changed_evidence_is_refused(tmp_path: Path) -> None:
    trial, home = append_linger(tmp_path)
    reduce_trial(trial, home, tmp_path / "kip1224")
    with (tmp_path / "kip1224" / "idle-2" / "phases.json").open("a") as file:
        file.write(" ")
    with pytest.raises(AftershockError, match=r"differs from its manifest: phases.json: changed after the run"):
        output.read_result(trial, tmp_path / "kip1224")


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("kernel", "built in /home/me/linux", r"run.json: the evidence has '/home/me/linux', a path of this machine"),
        ("kernel", "registry.example.com:5000/kafka", "the evidence has 'registry.example.com:5000/kafka'"),
    ],
)
def test_a_place_of_this_machine_is_refused(field: str, value: str, found: str, tmp_path: Path) -> None:
    """Nothing is written."""
    trial, home = append_linger(tmp_path)
    run = json.loads((home / "idle-3" / "run.json").read_text())
    (home / "idle-3" / "run.json").write_text(json.dumps({**run, "host": {field: value}}))
    (home / "idle-3" / "manifest.json").write_text(json.dumps(manifest_of(home / "idle-3")))
    with pytest.raises(AftershockError, match=found):
        reduce_trial(trial, home, tmp_path / "kip1224")
    assert not (tmp_path / "kip1224").exists()


def test_too_much_evidence_is_refused(tmp_path: Path) -> None:
    """The error names the size and the largest file; evidence from before is kept."""
    trial, home = append_linger(tmp_path)
    target = tmp_path / "kip1224"
    size = reduce_trial(trial, home, target)
    with pytest.raises(AftershockError, match=rf"has {size} bytes, more than {size - 1}; the largest file is idle-"):
        reduce_trial(trial, home, target, size - 1)
    assert (target / store.NAME).is_file()


def test_a_missing_headline_run_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    trial, home = append_linger(tmp_path)
    (tmp_path / "docs").mkdir()
    with pytest.raises(AftershockError, match="docs: the folder is not evidence of a trial"):
        reduce_trial(trial, home, tmp_path / "docs")
    (home / "idle-2" / "verdict.json").unlink()
    with pytest.raises(AftershockError, match="no run of idle-2, which the headline claim of KIP-1224 needs"):
        reduce_trial(trial, home, tmp_path / "kip1224")


def test_evidence_that_gives_other_words_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction that forgot a table must not be published."""
    trial, home = append_linger(tmp_path)
    monkeypatch.setattr(Part, "windows", lambda part: [] if part.home.parent.name.startswith(".") else _steady())
    with pytest.raises(AftershockError, match="gives other words for idle-saved, transactions"):
        reduce_trial(trial, home, tmp_path / "kip1224")


def _steady() -> list[dict[str, object]]:
    return [{"name": "steady", "start_us": 0, "end_us": 48_000_000}]


@pytest.mark.parametrize("trial", TRIALS.values(), ids=map(str, TRIALS))
def test_the_headlines_and_what_they_depend_on_are_kept(trial: Trial) -> None:
    """Also the assay of a control; without its runs, the claim under the production profile is left out."""
    names = {part.name for part in trial.parts}
    kept_ids = {claim.id for claim in kept_claims(trial.claims, names)}
    headline, beside = (claim for claim in trial.claims if claim.headline or claim.role == "production")
    assert {headline.id, beside.id, *headline.control, *headline.assay} <= kept_ids
    left = {claim.id for claim in kept_claims(trial.claims, names - {*beside.needs})}
    assert kept_ids - {beside.id} == left


STORED = sorted(Path(output.__file__).parents[2].glob("docs/evidence/kip*"))


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_the_repositorys_evidence_gives_the_words_that_are_recorded_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # p-values of all sign flips
    trial = TRIALS[int(folder.name.removeprefix("kip"))]
    claims = record_of(trial, folder).claims
    assert claims
    entries = {entry.id: entry for entry in output.read_result(trial, folder).statements}
    assert claims == {claim: output.as_text(entries[claim]) for claim in claims}
    assert BYTES_MAX >= sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
