"""`aftershock kip`: streams, exit codes, and errors. No run starts: all parts have their runs already."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aftershock.harness.campaigns import store
from aftershock.harness.campaigns.kip import home_of
from aftershock.harness.campaigns.kip_trials import KIP_951, MOVES
from aftershock.harness.campaigns.store import Record
from aftershock.harness.cli import __main__
from aftershock.results.compare import statistics
from aftershock.results.model.check import Check
from aftershock.results.studies.trials.kip951 import UNDELAYED
from aftershock.tests.unit.results.studies.trials.made import doubted, part, written
from aftershock.tests.unit.results.studies.trials.rows import produced
from aftershock.workloads.load.outcomes import SCHEMA

WINDOWS = {"kill": "fault/dead"}
WAVES = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0]
CONFIRMED, CONTRADICTED, UNDECIDED = 0, 1, 2


@pytest.fixture(autouse=True)
def _few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sign-flip test short: no word depends on its p-value."""
    monkeypatch.setattr(statistics, "FLIPS", 1_000)


def aftershock(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["aftershock", *words])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    return int(ended.value.code or 0)


def kept(out: Path, both_ms: float, checks: tuple[Check, ...] = ()) -> Path:
    """Write runs for busy-300, shared-300 and delay-0; clients without the KIP take 500 ms, after a kill 3 s."""
    found = Record(KIP_951.name, KIP_951.registration.version)
    for planned in KIP_951.parts:
        if planned.name not in ("busy-300", "shared", "delay-300", "kill", *UNDELAYED):
            continue
        ms = {"both": both_ms, "hints": both_ms, "retry": 500.0, "neither": 500.0}
        values = {
            f"moves/{arm}": [
                (3000.0 if planned.name == "kill" else one) * WAVES[n % 8] for n in range(planned.blocks or 0)
            ]
            for arm, one in ms.items()
        }
        window = "fault" if planned.name in UNDELAYED else WINDOWS.get(planned.name, "fault/move")
        made = part(planned.name, values, window=window, checks=checks)
        home = written(made, home_of(KIP_951, out))
        (home / "phases.json").write_text("[]")
        (home / "events.jsonl").touch()
        if planned.name == "busy-300":
            write_moves(home, both_ms)
        found = found.with_run(planned, home.name)
    store.write(home_of(KIP_951, out), found)
    return home_of(KIP_951, out)


def write_moves(home: Path, both_ms: float) -> None:
    """Write the records of 24 moves of partition 0, 10 s apart; one is due while the partition moves."""
    journal, rows = [], []
    for block in range(1, MOVES + 1):
        for state, at_ms in (("intended", 0), ("witnessed", 300)):
            journal.append({"t_us": (10_000 * block + at_ms) * 1000, "fault": f"move-{block}", "state": state})
        for arm, ms in (("both", both_ms), ("neither", 500.0)):
            slow_ms = round(ms * WAVES[block % 8])
            rows += produced(arm, [0], workload="moves", from_s=10 * block + 0.1, latency_ms=slow_ms)
    filled = [dict.fromkeys(SCHEMA.names) | dict(row) for row in rows]
    (home / "outcomes").mkdir()
    pq.write_table(pa.Table.from_pylist(filled, SCHEMA), home / "outcomes" / "part-0.parquet")
    (home / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in journal))


def words_of(said: str) -> dict[str, str]:
    (told,) = json.loads(said)["trials"]
    return {entry["id"]: entry["word"] for entry in told["statements"]}


@pytest.mark.parametrize(
    ("both_ms", "code", "headline"),
    [(100.0, UNDECIDED, "confirmed"), (900.0, CONTRADICTED, "contradicted"), (500.0, UNDECIDED, "excluded")],
)
def test_stored_evidence_is_judged_without_an_engine(
    both_ms: float,
    code: int,
    headline: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same words, byte for byte, from another folder; nothing is written, and no engine or client is loaded."""
    home = kept(tmp_path / "runs", both_ms)
    moved = home.rename(tmp_path / "kip951")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setitem(sys.modules, "aftershock.harness.run.run", None)
    said = []
    for _ in range(2):
        assert code == aftershock("kip", "951", "--json", "--from", str(moved), monkeypatch=monkeypatch)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    words = words_of(said[0])
    assert [headline, headline, "undecided"] == [words[claim] for claim in ("busy-300", "shared-300", "consume")]
    assert before == sorted(tmp_path.rglob("*"))


def test_a_run_uses_stored_runs_and_refuses_to_run_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the headline's runs stored, a tiny budget runs nothing more; the report has the headline marked."""
    kept(tmp_path, 100.0)
    words = ("kip", "951", "--budget", "10s", "--out", str(tmp_path))
    assert UNDECIDED == aftershock(*words, monkeypatch=monkeypatch)
    said = capsys.readouterr()
    assert "can decide KIP-951: busy-300, " in said.err
    assert "consume (5.08 min)" in said.err
    assert "busy-300 (headline)" in said.out
    assert "kip-951.html" in said.err


def test_a_starved_host_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with the reason, whatever the figures are."""
    home = kept(tmp_path, 100, (doubted("harness/host", "harness"),))
    assert UNDECIDED == aftershock("kip", "951", "--json", "--from", str(home), monkeypatch=monkeypatch)
    (told,) = json.loads(capsys.readouterr().out)["trials"]
    assert ("undecided", {"undecided"}) == (told["verdict"], {each["word"] for each in told["statements"]})
    assert "the host was starved" in told["why"]


def test_a_budget_without_a_decidable_claim_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2; every claim is named with the time that it needs, and no file is created."""
    words = ("kip", "951", "--budget", "2m", "--out", str(tmp_path))
    assert UNDECIDED == aftershock(*words, monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert "--budget 2m decides no claim, so nothing is run" in said
    assert "not in this budget: KIP-951: busy-300 (7.83 min), " in said
    assert [] == list(tmp_path.iterdir())


def test_evidence_of_another_version_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = kept(tmp_path, 100)
    document = json.loads((home / store.NAME).read_text())
    (home / store.NAME).write_text(json.dumps({**document, "version": 1}))
    for words in (("--from", str(home)), ("--budget", "30m", "--out", str(tmp_path))):
        assert 3 == aftershock("kip", "951", *words, monkeypatch=monkeypatch)
        assert "evidence of version 1 of kip-951" in capsys.readouterr().err


@pytest.mark.parametrize(("both_ms", "code"), [(500.0, 0), (100.0, 1)])
def test_sabotage_fails_if_a_claim_is_confirmed(
    both_ms: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0 if a client without the KIP confirms nothing, 1 if it does: then the trial measures something else."""
    sabotaged = KIP_951.sabotage()
    home = kept(tmp_path, both_ms).rename(home_of(sabotaged, tmp_path))
    record = Record(sabotaged.name, sabotaged.registration.version)
    for planned in sabotaged.parts:
        if (home / f"run-{planned.name}").exists():
            record = record.with_run(planned, f"run-{planned.name}")
    store.write(home, record)
    words = ("kip", "951", "--sabotage", "--budget", "10s", "--out", str(tmp_path))
    assert code == aftershock(*words, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("952",), "there is no trial of `952`: use one of"),
        (("951", "--budget", "soon"), "--budget soon is not a duration"),
        (("all", "--from", "."), "--from judges the evidence of one KIP"),
        (("951", "--from", "nowhere"), "the folder has no campaign.json"),
    ],
)
def test_an_impossible_request_is_refused(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 3, and no file is created."""
    assert 3 == aftershock("kip", *words, "--out", str(tmp_path), monkeypatch=monkeypatch)
    assert says in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
