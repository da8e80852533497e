"""Healing after a death: undos come from the journal and run once, faults of live processes stay, and manual
commands name the parts that could not be healed.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.errors import FaultError
from aftershock.faults.runtime.record import Entry, Targets, Undo, all_of
from aftershock.harness.cluster import ownership
from aftershock.harness.run import client_processes
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety import heal
from aftershock.harness.safety.heal import manual_commands, undo_open
from aftershock.harness.safety.journal import Journal, open_faults, read_journal
from aftershock.tests.unit.faults.fake_world import FakeWorld, JumpingClock

DEAD = "1:1"
NO_CLUSTER: Any = SimpleNamespace(run_id="x")  # the world is replaced
START = Undo("start", {"broker": 2})


def journal_of(path: Path, *lines: tuple[str, str, str, Undo]) -> Path:
    """A journal with lines of (owner, fault, state, undo)."""
    with path.open("a") as file:
        for owner, fault, state, undo in lines:
            told = {"t_us": 1, "fault": fault, "kind": "k", "state": state, "targets": {}, "undo": undo.as_json()}
            file.write(json.dumps({**told, "owner": owner}) + "\n")
    return path


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    world = FakeWorld(JumpingClock())
    monkeypatch.setattr(heal, "world_of", lambda _: world)
    return world


async def undone(path: Path, *, everybodys: bool = False) -> Sequence[str]:
    said: list[str] = []
    return await undo_open(RunDir(path.parent, {}), NO_CLUSTER, said.append, orphaned_only=not everybodys)


async def test_orphaned_faults_are_undone_and_written_down(tmp_path: Path, world: FakeWorld) -> None:
    """Of three faults the healed one and the living owner's stay; the orphan is undone by the undo of its last line."""
    await world.kill(2)  # type: ignore[arg-type]
    path = journal_of(
        tmp_path / "journal.jsonl",
        (DEAD, "over", "intended", START),
        (DEAD, "over", "healed", START),
        (ownership.owner(), "held", "intended", Undo("resume", {"broker": 1})),
        (DEAD, "dead", "intended", Undo("nothing")),
        (DEAD, "dead", "injected", START),
    )
    assert ["dead"] == await undone(path)
    assert "running" == await world.state(2)  # type: ignore[arg-type]
    states = [(line["fault"], line["state"]) for line in read_journal(path)[5:]]
    assert [("dead", "healing"), ("dead", "healed")] == states
    assert [] == await undone(path)


async def test_a_failed_undo_is_reported_after_all_were_tried(tmp_path: Path, world: FakeWorld) -> None:
    """One unknown verb: the other fault is healed, the failed one stays open and is named."""
    await world.kill(2)  # type: ignore[arg-type]
    unknown = Undo("unheard_of")  # type: ignore[arg-type]
    path = journal_of(tmp_path / "journal.jsonl", (DEAD, "odd", "intended", unknown), (DEAD, "dead", "intended", START))
    with pytest.raises(FaultError, match="odd could not be healed: the undo `unheard_of` is unknown"):
        await undone(path)
    assert "running" == await world.state(2)  # type: ignore[arg-type]
    assert ["odd"] == [line["fault"] for line in open_faults(read_journal(path))]


def test_a_fault_id_may_be_used_again(tmp_path: Path) -> None:
    """Healed and injected again under the same id: open, and with its latest undo."""
    again = Undo("resume", {"broker": 3})
    path = journal_of(
        tmp_path / "journal.jsonl",
        (DEAD, "a", "intended", START),
        (DEAD, "a", "healed", START),
        (DEAD, "a", "intended", again),
    )
    assert [again.as_json()] == [line["undo"] for line in open_faults(read_journal(path))]


def test_two_journals_on_one_file_keep_their_lines_whole(tmp_path: Path) -> None:
    """Long lines of several processes at once: none is torn, none is lost."""
    path = tmp_path / "journal.jsonl"
    script = (
        "import sys; from pathlib import Path; from aftershock.harness.safety.journal import Journal;"
        "from aftershock.harness.run.rundir import RunClock;"
        "from aftershock.faults.runtime.record import Entry, Targets, Undo;"
        "j = Journal(Path(sys.argv[1]), RunClock(0));"
        "big = Targets(topics=('x' * 30_000,));"
        "[j.record(Entry(f'{sys.argv[2]}-{n}', 'k', 'intended', big, Undo('nothing'))) for n in range(30)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), name]) for name in "ab"]
    assert [0, 0] == [writer.wait(60) for writer in writers]
    written = {line["fault"] for line in read_journal(path)}
    assert {f"{name}-{n}" for name in "ab" for n in range(30)} == written


def test_every_journal_line_names_its_owner(tmp_path: Path) -> None:
    """Process id and start time."""
    journal = Journal(tmp_path / "journal.jsonl", RunClock(0))
    journal.record(Entry("a", "k", "intended", Targets(), START))
    journal.close()
    assert [ownership.owner()] == [line["owner"] for line in read_journal(tmp_path / "journal.jsonl")]


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory file system of our own."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(client_processes, "TMPFS", folder)
    monkeypatch.setattr("aftershock.workloads.load.spool.TMPFS", folder)
    return folder


def dead_runs_spool(out: Path) -> tuple[RunDir, Path]:
    """A run directory and a spool, left by a process that has ended."""
    script = (
        "import sys; from pathlib import Path; from aftershock.harness.run import client_processes as spools;"
        "import aftershock.workloads.load.spool as s; s.TMPFS = spools.TMPFS = Path(sys.argv[2]);"
        "from aftershock.harness.run.rundir import RunDir; home = RunDir.create(Path(sys.argv[1]), 'p', 0, 'c');"
        "print(home.path); print(spools.spool_for(home.run_id, home.path).path)"
    )
    told: Any = subprocess.run(
        [sys.executable, "-c", script, str(out), str(out / "shm")], capture_output=True, text=True, check=True
    ).stdout.split()
    return RunDir.open(Path(told[0])), Path(told[1])


def test_only_the_spools_of_the_dead_are_orphaned(tmp_path: Path, shm: Path) -> None:
    """The spool of a live process stays; a dead runner's is found by its name; other folders are ignored."""
    mine = client_processes.spool_for("mine", tmp_path)
    (shm / "aftershock-odd").mkdir()
    _, theirs = dead_runs_spool(tmp_path)
    assert [theirs] == [spool.path for spool in client_processes.orphaned_spools()]
    mine.discard()
    assert not mine.path.exists()


def test_files_of_a_dead_run_are_finalised(tmp_path: Path, shm: Path) -> None:
    """Its spool and Spark's scratch folder are removed, its run.json says that it failed; the evidence stays."""
    home, spool = dead_runs_spool(tmp_path)
    scratch = home.path / "logs" / ".spark-x"
    scratch.mkdir()
    heal.heal(None, None, print)
    assert not spool.exists()
    assert not scratch.exists()
    assert "failed" == RunDir.open(home.path).facts["status"]
    assert (home.path / "journal.jsonl").exists()
    assert [] == list(shm.iterdir())


def test_frozen_clients_of_a_dead_run_are_killed() -> None:
    """A frozen client can't see its runner's death, so it is killed by its run's id; another run's client lives."""
    sleeper = "import time; time.sleep(60)"
    word = "aftershock.workloads.load.worker"
    mine, other = (
        subprocess.Popen([sys.executable, "-c", sleeper, word, run, "orders-x-produce"], start_new_session=True)
        for run in ("run-a", "run-b")
    )
    try:
        mine.send_signal(19)  # SIGSTOP
        client_processes.kill_workers("run-a")
        assert -9 == mine.wait(10)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


CONTAINERS = {1: "aftershock-x-k1", 2: "aftershock-x-k2"}
API = "http://127.0.0.1:8474"


def test_each_broken_part_has_a_manual_command() -> None:
    """Docker's for nodes, Toxiproxy's for proxies; all parts of a fault in order, without repetition."""
    undo = all_of(
        [
            Undo("start", {"broker": 1}),
            Undo("resume", {"broker": 2}),
            Undo("remove_toxics", {"toxics": [["client_a-k1", "slow:client_a-k1:upstream"]]}),
            Undo("enable_proxies", {"proxies": ["client_a-k2"]}),
            Undo("redirect_proxies", {"upstreams": [["client_a-k1", "b1:9101"]]}),
            Undo("start", {"broker": 1}),
        ]
    )
    assert manual_commands(undo, CONTAINERS, API, "x") == [
        "docker start aftershock-x-k1",
        "docker unpause aftershock-x-k2",
        f"curl -X DELETE {API}/proxies/client_a-k1/toxics/slow:client_a-k1:upstream",
        f"curl -d '{{\"enabled\": true}}' {API}/proxies/client_a-k2",
        f'curl -d \'{{"upstream": "b1:9101"}}\' {API}/proxies/client_a-k1',
    ]


def test_other_undos_are_left_to_aftershock_heal() -> None:
    """Also all undos of a cluster without Toxiproxy."""
    assert manual_commands(Undo("restore_settings", {}), {}, None, "x") == ["aftershock heal --run x"]
    assert manual_commands(Undo("start", {"broker": 1}), {}, None, "x") == ["aftershock heal --run x"]
    assert manual_commands(Undo("nothing"), CONTAINERS, API, "x") == []
