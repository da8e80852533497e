"""Reduction of runs to the evidence of the headline claims: same words, few bytes, and nothing of this machine."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.campaigns import kip as output
from aftershock.harness.campaigns import publish, store
from aftershock.harness.campaigns.kip import BYTES_MAX, home_of, kept_claims, record_of, reduce_trial
from aftershock.harness.campaigns.kip_trials import KIP_848, KIP_951, KIP_966, KIP_1224, TRIALS, Trial
from aftershock.harness.campaigns.publish import block_of
from aftershock.harness.campaigns.store import Record
from aftershock.results.compare import statistics
from aftershock.results.evidence.manifest import digest_of, manifest_of
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import Estimate
from aftershock.results.studies.trials import kip848, kip951_benchmark
from aftershock.results.studies.trials.claim import Parts
from aftershock.results.studies.trials.kip951_benchmark import FAULTS
from aftershock.results.studies.trials.promises import read_promises
from aftershock.tests.unit.harness.cli.test_search_kip import kept
from aftershock.tests.unit.results.studies.trials import groups
from aftershock.tests.unit.results.studies.trials.test_kip951_benchmark import launch
from aftershock.tests.unit.results.studies.trials.test_kip1224 import square

EVIDENCE = Path(output.__file__).parents[2] / "docs" / "evidence"
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
        run = {
            **part.run.run,
            **places,
            "started_at": "2026-11-30T01:02:03",
            "brokers": [{"id": 1, "rack": "a", "container": "c"}],
        }
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


def test_the_commands_of_the_makefile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reduces the runs of a KIP by number; one writes charts and tables, of trials that have run."""
    append_linger(tmp_path)
    publish.evidence(str(tmp_path), str(tmp_path / "evidence"), "1224")
    assert f"{tmp_path / 'evidence' / 'kip1224'}: " in capsys.readouterr().out
    pages, readme = tmp_path / "pages", tmp_path / "README.md"
    pages.mkdir()
    blocks = [
        f"<!-- {name}: written by `make kips` from stored evidence -->\nas it was\n<!-- {name} end -->"
        for name in ("answer", "results", "recount")
    ]
    for name in (*(f"kip{kip}" for kip in TRIALS), "promises"):
        (pages / f"{name}.md").write_text("\n".join(blocks))
        (pages / f"{name}.sql").write_text("select '<idle-1>'")
    readme.write_text(blocks[1])
    monkeypatch.setattr(publish, "TRIALS", {1224: TRIALS[1224], 227: TRIALS[227]})
    monkeypatch.setattr(publish, "read_promises", lambda: {1224: read_promises()[1224]})
    shutil.copytree(EVIDENCE / "kip227", tmp_path / "evidence" / "kip227")
    publish.kips(str(tmp_path), str(tmp_path / "evidence"), str(pages), str(readme))
    assert "as it was" in block_of((pages / "kip227.md").read_text(), "results", "kips")[1]
    shown = (pages / "kip1224.md").read_text()
    assert "**Confirmed**: " in block_of(shown, "answer", "kips")[1]
    assert f"select '{tmp_path / 'evidence' / 'kip1224' / 'idle-1'}'" in shown
    assert "[idle-saved](kip1224.md#idle-saved) confirmed" in (pages / "promises.md").read_text()
    assert "![Commit latency and batch size over load](kip1224-1.svg)" in shown
    charts = {path.name for path in pages.glob("*.svg")}
    assert {"kip1224-1.svg", "kip1224-2.svg", "kip1224.svg", "kip227.svg"} == charts
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


STORED = sorted(EVIDENCE.glob("kip*"))


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_the_repositorys_evidence_gives_the_words_that_are_recorded_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # p-values of all sign flips
    trial = TRIALS[int(folder.name.removeprefix("kip").removesuffix("-benchmark"))]
    claims = record_of(trial, folder).claims
    assert claims
    entries = {entry.id: entry for entry in output.read_result(trial, folder).statements}
    assert claims == {claim: output.as_text(entries[claim]) for claim in claims}
    assert BYTES_MAX >= sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_stored_evidence_is_adopted_and_stored_again(tmp_path: Path) -> None:
    """A trial with a new part continues from the repository: the runs that it has give the same words once more."""
    trial, home = leader_discovery(tmp_path / "a")
    stored, again, adopted = tmp_path / "stored", tmp_path / "again", home_of(trial, tmp_path / "b")
    reduce_trial(trial, home, stored)
    output.adopt(trial, stored, adopted)
    reduce_trial(trial, adopted, again)
    first, second = (output.read_result(trial, folder).statements for folder in (stored, again))
    assert [*map(output.as_text, first)] == [*map(output.as_text, second)]
    assert {"confirmed"} <= {entry.word for entry in second}


def launched(out: Path, name: str) -> tuple[Path, Record]:
    """Return a home whose runs have names of their own, as those of another launch."""
    trial, home = append_linger(out / name)
    record = record_of(trial, home)
    for planned, run in record.runs.items():
        (home / run.run).rename(home / f"{run.run}-{name}")
        record = replace(record, runs={**record.runs, planned: replace(run, run=f"{run.run}-{name}")})
    store.write(home, record)
    return home, record


def test_earlier_launches_of_the_headline_are_kept(tmp_path: Path) -> None:
    """Another launch of the same plans joins the stored one; the same launch, stored again, does not count twice."""
    trial, target = KIP_1224, tmp_path / "kip1224"
    (first, _), (second, record) = (launched(tmp_path, name) for name in ("first", "second"))
    reduce_trial(trial, first, target)
    assert 1 == len(output.launches(trial, target))
    for _ in range(2):
        reduce_trial(trial, second, target)
        assert [{f"idle-{n}": f"idle-{n}-first" for n in (1, 2, 3)}] == [*record_of(trial, target).launches]
    found = output.launches(trial, target)
    over = output.over_launches(trial, found)
    assert (2, 2, found[0].ours.value) == (len(found), over.n, over.value)
    changed = replace(record, runs={name: replace(run, digest="another plan") for name, run in record.runs.items()})
    assert () == output.earlier_launches(trial, changed, target)
    store.write(target, replace(record_of(trial, target), version=3))  # before the oldest that counts
    assert () == output.earlier_launches(trial, record, target)


def test_a_further_launch_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It must have run the plans of the stored one, once; the stored figures stay."""
    trial, target = KIP_1224, tmp_path / "evidence" / "kip1224"
    (first, _), (second, record) = (launched(tmp_path, name) for name in ("first", "second"))
    reduce_trial(trial, first, target)
    before = output.read_result(trial, target).statements
    publish.launch(str(tmp_path / "second"), str(tmp_path / "evidence"), "1224")
    assert f"{target}: " in capsys.readouterr().out
    assert (2, before) == (len(output.launches(trial, target)), output.read_result(trial, target).statements)
    for home, why in (
        (second, "this launch is stored already"),
        (tmp_path / "none", "no further launch .*: not run: "),
    ):
        with pytest.raises(AftershockError, match=why):
            output.add_launch(trial, home, target)
    (target / store.NAME).write_text((target / store.NAME).read_text().replace(record.runs["idle-1"].digest, "another"))
    with pytest.raises(AftershockError, match="kip1224: the stored runs of idle-1, idle-2, idle-3 are of other plans"):
        output.add_launch(trial, second, target)


def test_launches_are_averaged_and_violations_added() -> None:
    """Ratios by their logarithm; with one launch there is no interval."""
    figures = [Estimate(value, None, None, 24, "times") for value in (0.5, 2.0)]
    ratio = output.over_launches(KIP_951, [output.Launch("2026-11-30", ours) for ours in figures])
    assert (2, pytest.approx(1.0)) == (ratio.n, ratio.value)
    assert None is output.over_launches(KIP_951, [output.Launch("2026-11-30", figures[0])]).interval
    cuts = [Estimate(float(hits), None, None, 6, "cuts with a loss", hits=hits) for hits in (1, 0)]
    fact = output.over_launches(KIP_966, [output.Launch("2026-11-30", ours) for ours in cuts])
    assert (1, 12, 1.0) == (fact.hits, fact.n, fact.value)


def benchmarks(out: Path, units: Sequence[int]) -> Path:
    """Write launches of KIP-951's benchmark, and no run of its headline."""
    home = home_of(KIP_951, out)
    names = [kip951_benchmark.name_of(unit, arm) for unit in units for arm in kip951_benchmark.ARMS]
    parts = {name: launch(home / name, 1_600 if "whole" not in name else 346) for name in names}
    states = ("intended", "injected", *["witnessed"] * 5, "healed")
    journal = [{"t_us": n, "fault": fault, "state": state} for fault in FAULTS for n, state in enumerate(states)]
    for name in names:
        (home / name / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in journal))
    return finished(KIP_951, home, parts)[1]


def test_a_benchmark_grows_in_the_repository(tmp_path: Path) -> None:
    """A few kilobytes a launch give the same figures; later launches join those that are stored, whose runs another
    machine then need not repeat.
    """
    first, second, stored = benchmarks(tmp_path / "a", [1]), benchmarks(tmp_path / "b", [2]), tmp_path / "kip951"
    size = reduce_trial(KIP_951, first, stored, partial=True)
    assert size < 30_000
    assert not list(stored.rglob("*.parquet"))
    digests = json.loads((stored / "benchmark-1-whole" / "manifest.json").read_text())["reduced_from"]
    assert "outcomes/part-0.parquet" in digests
    journal = [json.loads(line) for line in (stored / "benchmark-1-whole" / "journal.jsonl").read_text().splitlines()]
    witnesses = [(line["fault"], line["t_us"]) for line in journal if line["state"] == "witnessed"]
    assert [(fault, t_us) for fault in FAULTS for t_us in (2, 6)] == witnesses
    assert 5 * len(FAULTS) == len(journal)

    def figure(home: Path) -> tuple[str, int, str]:
        entries = {entry.id: entry for entry in output.read_result(KIP_951, home).statements}
        assert entries["busy-300"].why.startswith("not run: ") or "not stored" in entries["busy-300"].why
        entry = entries["benchmark-capped"]
        return output.as_text(entry), entry.ours.n, entry.word

    assert (figure(first), 1, "undecided") == (figure(stored), figure(stored)[1], figure(stored)[2])
    reduce_trial(KIP_951, second, stored, partial=True)
    assert (figure(second), 2) == (figure(stored), figure(stored)[1])
    assert digests == json.loads((stored / "benchmark-1-whole" / "manifest.json").read_text())["reduced_from"]
    third = home_of(KIP_951, tmp_path / "c")
    output.adopt(KIP_951, stored, third)
    trusted = {part.name for part in output.stored_parts(KIP_951, third, 1)}
    assert {kip951_benchmark.name_of(unit, arm) for unit in (1, 2) for arm in kip951_benchmark.ARMS} == trusted
