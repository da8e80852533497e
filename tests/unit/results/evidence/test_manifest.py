"""Evidence that was changed after the run is named with its digests, and judged only if the user says so."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.harness.safety.rundir import RunDir
from aftershock.results.evidence import manifest
from aftershock.results.evidence.evidence import read, verify
from aftershock.results.evidence.manifest import digest_of
from aftershock.results.evidence.stored import read_judged_run, trusted_in
from aftershock.results.explain.record import record_history
from aftershock.results.model.check import Verdict
from aftershock.results.model.text import sentence
from aftershock.results.report import verdict_formats
from aftershock.results.report.several import markdown
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made, unfinish


@pytest.fixture(scope="module")
def whole(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a manifest as the runner writes it, in the module's own folder."""
    home = made.write(tmp_path_factory.mktemp("whole") / "run")
    (home / "plan.yaml").write_text("name: demo\n")
    (home / "manifest.json").write_text(json.dumps(manifest.manifest_of(home)))
    return home


@pytest.fixture
def home(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def emptied(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def test_untouched_evidence_is_read(home: Path) -> None:
    """Results, logs and unfinished files beside the evidence are not evidence."""
    for name in ("verdict.json", "report.html", "silver/latency.parquet", "logs/spark.log", "log/.part.inprogress"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("{}")
    evidence = read(home, columns())
    assert (evidence.altered, evidence.unverified, evidence.complete) == ((), None, True)


@pytest.mark.parametrize("name", [*manifest.DOCUMENTS, "outcomes/produce-0.parquet", "log/part-0.parquet"])
@pytest.mark.parametrize("change", [appended, emptied, Path.unlink])
def test_a_changed_or_missing_file_is_named(home: Path, name: str, change: Callable[[Path], None]) -> None:
    """The error has the file, the expected and the actual digest, and a remedy."""
    before = digest_of(home / name)
    change(home / name)
    after = digest_of(home / name)
    with pytest.raises(EvidenceError) as refused:
        read(home, {})
    detail = (
        f"changed after the run (expected {before}; found {after})" if after else f"but missing (expected {before})"
    )
    assert str(refused.value).startswith(f"{home}: the evidence differs from its manifest: {name}: ")
    assert detail in str(refused.value)
    assert "--trust" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["outcomes/more.parquet", "offsets/part-0.parquet", "expectations.jsonl"])
def test_an_additional_file_is_named(home: Path, name: str) -> None:
    """A file that the run did not record could remove a violation, or add a check."""
    (home / name).parent.mkdir(exist_ok=True)
    shutil.copy(home / "outcomes/consume-0.parquet", home / name)
    with pytest.raises(EvidenceError) as refused:
        read(home, columns())
    assert f"{name}: not in the manifest (found {digest_of(home / name)})" in str(refused.value)


@pytest.mark.parametrize("table", ["files", "digests"])
def test_a_file_removed_from_the_manifest_is_named(home: Path, table: str) -> None:
    document = json.loads((home / "manifest.json").read_text())
    if table == "files":
        document["files"].remove("journal.jsonl")
    del document["digests"]["journal.jsonl"]
    (home / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match=r"journal\.jsonl: (not in|without digest in) the manifest"):
        read(home, {})


def test_many_changes_are_counted(home: Path) -> None:
    for name in manifest.DOCUMENTS:
        appended(home / name)
    with pytest.raises(EvidenceError, match="; and 1 more files; restore"):
        read(home, {})


def test_trusted_evidence_is_marked_everywhere(home: Path, made: Made) -> None:
    """After a verdict with --trust every reader accepts exactly the marked differences, and shows them."""
    appended(home / "events.jsonl")
    evidence = read(home, columns(), trust=None)
    (difference,) = evidence.altered
    verdict = Verdict(made.run["run_id"], "demo", 7, (), (), evidence.altered)
    (home / "verdict.json").write_text(verdict.text())
    tables: dict[str, list[object]] = {"distributions": [], "gaps": [], "recoveries": []}
    (home / "analysis.json").write_text(json.dumps({"schema_version": 2, **tables}))
    assert json.loads(verdict.text())["trusted"] == [difference]
    assert "(evidence was changed after the run)" in sentence(verdict)
    assert "judged with --trust: events.jsonl: changed" in " ".join(verdict_formats.summary(verdict).split())
    assert difference.encode() in verdict_formats.document(verdict)
    assert verdict_formats.annotations(verdict, None)[0].startswith("::warning title=judged with --trust::events.jsonl")
    assert "judged with --trust: events.jsonl" in markdown(home)
    assert read_judged_run(home).notes()[0].endswith(difference)
    assert record_history(home, 0, 0).moments
    appended(home / "journal.jsonl")
    for reader in (markdown, read_judged_run, lambda home: record_history(home, 0, 0)):
        with pytest.raises(EvidenceError, match=r"journal\.jsonl: changed after the run"):
            reader(home)
    with pytest.raises(EvidenceError, match=r"events\.jsonl: changed after the run"):
        read(home, {})  # a verdict never relies on an earlier verdict


def test_a_verdict_on_untouched_evidence_is_not_marked() -> None:
    verdict = Verdict("run", "demo", 7, (), ())
    assert "trusted" not in verdict.to_json()
    assert "changed" not in sentence(verdict)


def test_unverifiable_evidence_is_read_and_says_why(home: Path) -> None:
    """A run of 0.1.0 has no digests, a killed run no manifest."""
    document = json.loads((home / "manifest.json").read_text())
    del document["digests"]
    (home / "manifest.json").write_text(json.dumps(document))
    appended(home / "journal.jsonl")
    assert "wrote no digests" in (read(home, columns()).unverified or "")
    unfinish(home)
    evidence = read(home, columns())
    assert "did not finish" in (evidence.unverified or "")
    assert not evidence.complete


def test_a_complete_run_without_its_manifest_is_refused(home: Path) -> None:
    """Without the manifest any file may have been changed."""
    (home / "manifest.json").unlink()
    with pytest.raises(
        EvidenceError, match=r"manifest\.json: missing, although the run is complete; restore"
    ) as refused:
        read(home, columns())
    assert "--trust" in str(refused.value)
    assert ("manifest.json: missing, although the run is complete",) == read(home, columns(), trust=None).altered


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../run.json", "outcomes/../../x.parquet", "log//x", "./run.json", "", 7, {}, ["a"]]
)
def test_a_name_outside_the_run_is_refused_even_if_trusted(home: Path, name: object) -> None:
    document = json.loads((home / "manifest.json").read_text())
    document["files"].append(name)
    (home / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match="is not a path inside the run directory") as refused:
        read(home, columns(), trust=None)
    assert f"manifest.json: {name!r}" in str(refused.value)


@pytest.mark.parametrize("name", ["run.json", "outcomes/produce-0.parquet", "metrics", "silver", "logs/spark.log"])
def test_a_symlink_out_of_the_run_is_refused_even_if_trusted(home: Path, name: str, tmp_path: Path) -> None:
    """Neither evidence is read nor a result written through such a link; a link inside the run is followed."""
    path, outside = home / name, tmp_path / "outside"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(outside)
    path.symlink_to(outside)
    for trust in ((), None):
        with pytest.raises(EvidenceError, match=f"{path}: a symlink to '{outside}' leads out of the run directory"):
            read(home, columns(), trust)
        with pytest.raises(EvidenceError, match="leads out of the run directory"):
            verify(home, trust)
    path.unlink()
    if outside.exists():
        outside.rename(path)
    (home / "latest.json").symlink_to("run.json")
    read(home, columns())


def test_a_named_pipe_is_refused(home: Path) -> None:
    """Opening the pipe for reading would wait forever."""
    (home / "phases.json").unlink()
    os.mkfifo(home / "phases.json")
    with pytest.raises(EvidenceError, match=r"phases\.json: not a regular file"):
        read(home, {})
    unfinish(home)
    with pytest.raises(EvidenceError, match=r"phases\.json: not a regular file"):
        read(home, {})


def test_a_fault_injected_by_hand_keeps_the_evidence_valid(home: Path) -> None:
    """Commands on a kept cluster append to the journal of the run; other changes are still noticed."""
    appended(home / "journal.jsonl")
    RunDir.open(home).reseal("journal.jsonl", "events.jsonl")
    assert read(home, {}).altered == ()
    appended(home / "plan.yaml")
    RunDir.open(home).reseal("journal.jsonl", "events.jsonl")
    with pytest.raises(EvidenceError, match=r"plan\.yaml: changed"):
        read(home, {})
    (home / "manifest.json").unlink()
    RunDir.open(home).reseal("journal.jsonl")
    assert not (home / "manifest.json").exists()


def test_trusted_in_an_unjudged_run(home: Path) -> None:
    assert trusted_in(home) == ()
