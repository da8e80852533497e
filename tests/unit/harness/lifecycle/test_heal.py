"""Healing after a death: undos come from the journal and run once, faults of live processes stay, and manual
commands name the parts that could not be healed.
"""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError
from pyarrow import parquet
from requests.exceptions import ConnectionError as NoConnection

from aftershock.errors import AftershockError, ClusterError, EngineError, EvidenceError, FaultError
from aftershock.faults.runtime.record import Entry, Targets, Undo, all_of
from aftershock.harness.cli import adhoc
from aftershock.harness.cluster import engine
from aftershock.harness.lifecycle import heal
from aftershock.harness.lifecycle.heal import manual_commands, undo_open
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import Journal, open_faults, read_journal
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.harness.world import client_processes
from aftershock.tests.unit.faults.fake_world import FakeWorld, JumpingClock
from aftershock.workloads.load.assignment import ProduceAssignment
from aftershock.workloads.load.spool import ProduceSpool

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
    return list(await undo_open(RunDir(path.parent, {}), NO_CLUSTER, said.append, orphaned_only=not everybodys))


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


def full_disk(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_faults_are_undone_when_nothing_can_be_written(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk under the journal and under the log: both nodes run, and the journal still lists their faults."""
    await world.kill(2)  # type: ignore[arg-type]
    await world.pause(1)  # type: ignore[arg-type]
    lines = [(DEAD, "a", "intended", Undo("resume", {"broker": 1})), (DEAD, "b", "intended", START)]
    path = journal_of(tmp_path / "journal.jsonl", *lines)
    said = list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        outcomes = await undo_open(RunDir(tmp_path, {}), NO_CLUSTER, said.append)
    assert {"a": "healed", "b": "healed"} == outcomes
    assert "can't be written (No space left on device), so the healed faults stay listed as in force" in said[-1]
    assert ["running", "running"] == [await world.state(node) for node in (1, 2)]  # type: ignore[arg-type]
    assert ["a", "b"] == [line["fault"] for line in open_faults(read_journal(path))]
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        assert outcomes == await undo_open(RunDir(tmp_path, {}), NO_CLUSTER, full_disk)


async def test_faults_are_undone_when_the_journal_cannot_be_opened(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that became read-only."""
    await world.kill(2)  # type: ignore[arg-type]
    journal_of(tmp_path / "journal.jsonl", (DEAD, "dead", "intended", START))

    def read_only(*_: Any) -> Journal:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(heal, "Journal", read_only)
    assert ["dead"] == await undone(tmp_path / "journal.jsonl")
    assert "running" == await world.state(2)  # type: ignore[arg-type]


async def test_an_engine_without_answer_stops_no_other_undo(
    tmp_path: Path, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of the Docker SDK counts as a failed undo, like an error of ours."""
    await world.kill(2)  # type: ignore[arg-type]

    async def silent(_: int) -> None:
        raise NoConnection("connection refused")

    monkeypatch.setattr(world, "resume", silent)
    lines = [(DEAD, "a", "intended", Undo("resume", {"broker": 1})), (DEAD, "b", "intended", START)]
    path = journal_of(tmp_path / "journal.jsonl", *lines)
    with pytest.raises(FaultError, match="a could not be healed: the Docker engine stopped answering"):
        await undone(path)
    assert "running" == await world.state(2)  # type: ignore[arg-type]
    assert ["a"] == [line["fault"] for line in open_faults(read_journal(path))]


@pytest.mark.usefixtures("world")
async def test_the_outcome_says_what_was_not_restored(tmp_path: Path) -> None:
    """A fault without undo is not "healed", and a topic that exists again has lost its records."""
    lines = [
        (DEAD, "elect-1", "intended", Undo("nothing")),
        (
            DEAD,
            "recreate-1",
            "intended",
            Undo("create_topic", {"topic": "fresh", "replicas": [[0, [1]]], "config": {}}),
        ),
    ]
    journal_of(tmp_path / "journal.jsonl", *lines)
    outcomes = await undo_open(RunDir(tmp_path, {}), NO_CLUSTER, print)
    assert "the fault has no undo, so nothing was changed" in outcomes["elect-1"]
    assert "the topic fresh exists; if the fault deleted it, the records from before are lost" == outcomes["recreate-1"]
    assert [] == open_faults(read_journal(tmp_path / "journal.jsonl"))


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
        "from aftershock.harness.safety.rundir import RunClock;"
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
        "import sys; from pathlib import Path; from aftershock.harness.world import client_processes as spools;"
        "import aftershock.workloads.load.spool as s; s.TMPFS = spools.TMPFS = Path(sys.argv[2]);"
        "from aftershock.harness.safety.rundir import RunDir; home = RunDir.create(Path(sys.argv[1]), 'p', 0, 'c');"
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


def test_links_in_shared_memory_are_left_alone(tmp_path: Path, shm: Path) -> None:
    """A dangling link, and links with the name of a live run: no client ends, nothing is written, each is logged."""
    live = client_processes.spool_for("live", tmp_path)
    foreign = tmp_path / "foreign"
    (foreign / "home" / "outcomes").mkdir(parents=True)
    (shm / "aftershock-dangling.1:1").symlink_to(tmp_path / "missing")
    (shm / "aftershock-live.1:1").symlink_to(foreign)
    (shm / "aftershock-other.1:1").symlink_to(foreign)
    (shm / "aftershock-live.2:1").mkdir()  # of this user, and with a dead owner
    word = "aftershock.workloads.load.worker"
    command = [sys.executable, "-c", "import time; time.sleep(60)", word, "live", "orders-x-produce"]
    with subprocess.Popen(command, start_new_session=True) as client:
        try:
            said = list[str]()
            assert heal.Healing([], []) == heal.heal(None, None, said.append)
            assert client.poll() is None
        finally:
            client.kill()
    assert ["dangling", "live", "other"] == sorted(
        line.split()[0].rpartition("aftershock-")[2].partition(".")[0] for line in said
    )
    assert all("is not a folder, so Aftershock did not create it" in line for line in said)
    assert ["home"] == [path.name for path in foreign.iterdir()]
    live.discard()


def test_a_spool_that_vanishes_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run ends between the listing and the look at the folder."""
    listing = SimpleNamespace(glob=lambda _: [tmp_path / "aftershock-gone.1:1"])
    monkeypatch.setattr(client_processes, "TMPFS", listing)
    assert [] == client_processes.orphaned_spools()


@pytest.mark.usefixtures("shm")
def test_a_full_disk_keeps_the_spool_of_a_dead_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are the only evidence of the requests: they are converted when there is space again."""
    home, spool = dead_runs_spool(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(client_processes, "convert", full_disk)
        actions, problems = heal.heal(None, None, print)
        assert ([], 1) == (actions, len(problems))
        assert f"in {spool}, can't be saved as evidence in {home.path}: [Errno 28] No space left" in problems[0]
        with pytest.raises(EvidenceError, match=f"aftershock heal --run {home.run_id}"):
            heal.heal(None, home.run_id, print)
    assert spool.is_dir()
    assert [f"{home.run_id}: cleared {spool}"] == heal.heal(None, None, print).actions
    assert not spool.exists()


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


def test_a_spool_in_the_folder_of_a_dead_run_is_saved(tmp_path: Path, shm: Path) -> None:
    """Without shared memory: the rows become evidence, a full disk loses none, and the spool is removed."""
    shm.rmdir()
    home, spool = dead_runs_spool(tmp_path)
    assert home.path / "spool" == spool
    told = {"run_id": home.run_id, "origin_ns": 0, "worker": "p0", "workload": "w", "arm": "a", "topic": "t"}
    told |= {"topic_id": "0", "partitions": 1, "bootstrap": "b", "rack": "a", "spool": spool, "events": home.path}
    sizes = {"record_size_min": 9, "record_size_max": 9, "rate_per_s": 1, "producer_id": 0, "seed": 0}
    rows = ProduceSpool(spool, ProduceAssignment.model_validate(told | sizes))
    rows.begin(0, intended_us=1, deadline_us=2, sent_us=1, size_bytes=9)
    assert heal.has_remains(None, home.run_id, home.path)
    (home.path / "outcomes").rmdir()
    (home.path / "outcomes").write_text("no folder")
    with pytest.raises(EvidenceError, match=f"in {spool}, can't be saved as evidence"):
        heal.heal(None, home.run_id, print, home=home.path)
    (home.path / "outcomes").unlink()
    (home.path / "outcomes").mkdir()
    assert [f"{home.run_id}: cleared {spool}"] == heal.heal(None, home.run_id, print, home=home.path).actions
    assert not spool.exists()
    assert 1 == sum(parquet.read_metadata(path).num_rows for path in (home.path / "outcomes").glob("*.parquet"))
    assert "failed" == RunDir.open(home.path).facts["status"]
    assert not heal.has_remains(None, home.run_id, home.path)


def test_a_spool_in_a_folder_is_not_a_strangers_link(tmp_path: Path, shm: Path) -> None:
    """A run directory may come from a stranger: a spool that leads elsewhere, or has a live owner, is left alone."""
    shm.rmdir()
    home, spool = dead_runs_spool(tmp_path)
    assert client_processes.spool_in(home.path)
    (spool / "home").unlink()
    (spool / "home").symlink_to(tmp_path)
    assert client_processes.spool_in(home.path) is None
    (spool / "home").unlink()
    spool.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "home").symlink_to(home.path)
    spool.symlink_to(tmp_path / "elsewhere")
    assert client_processes.spool_in(home.path) is None
    mine = RunDir.create(tmp_path, "mine", 0, "c")
    client_processes.spool_for(mine.run_id, mine.path)
    assert client_processes.spool_in(mine.path) is None


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


class Engine:
    """An engine with a container for each cluster, given by its labels; ``stuck`` containers can't be removed."""

    def __init__(self, *clusters: dict[str, str], stuck: str = "") -> None:
        self._listed = [
            SimpleNamespace(name=f"k-{labels[ownership.RUN]}", labels=labels, remove=partial(self._remove, labels))
            for labels in clusters
        ]
        self._stuck = stuck
        empty = SimpleNamespace(list=lambda **_: [])
        self.containers, self.networks, self.volumes = SimpleNamespace(list=self._list), empty, empty

    def _list(self, *, filters: dict[str, str], **_: Any) -> list[Any]:
        key, _, value = filters["label"].partition("=")
        return [item for item in self._listed if item.labels[key] == value or not value]

    def _remove(self, labels: dict[str, str], **_: Any) -> None:
        if labels[ownership.RUN] == self._stuck:
            raise APIError("500 Server Error", explanation="device is busy")
        self._listed = [item for item in self._listed if item.labels is not labels]


def labels(run_id: str, home: Path, owner: str = "", *, keep: bool = False) -> dict[str, str]:
    """Labels of a cluster, by default of a dead process of this host."""
    owner = owner or f"999999999:1:{ownership.owner().split(':', 2)[2]}"
    return ownership.labels_of(run_id, home, keep=keep, owned_by=owner)


@pytest.mark.usefixtures("shm")
def test_a_run_begins_although_remains_can_not_be_removed(tmp_path: Path) -> None:
    """One line for a container that stays, an owner of another host and one of 0.1.0; none for a live owner."""
    client: Any = Engine(
        labels("a-stuck", tmp_path),
        labels("b-far", tmp_path, "1:1:0:other:other:7"),
        labels("c-old", tmp_path, "999999999:1"),
        labels("d-live", tmp_path, ownership.owner()),
        labels("e-dead", tmp_path),
        stuck="a-stuck",
    )
    said = list[str]()
    heal.sweep(client, said.append)
    assert 4 == len(said)
    assert "a-stuck: 1 Docker objects of the run a-stuck can't be removed: k-a-stuck: device is busy" in said[0]
    assert "the cluster b-far is left alone, because its owner, process 1 of user 0, can't be checked" in said[1]
    assert "the cluster c-old is left alone" in said[2]
    assert "cleaned up after a dead run: e-dead: removed k-e-dead" == said[3]
    assert {"a-stuck", "b-far", "c-old", "d-live"} == {found.run_id for found in ownership.list_clusters(client)}
    with pytest.raises(ClusterError, match="b-far is left alone"):
        heal.heal(client, "b-far", print)
    with pytest.raises(ClusterError, match="d-live belongs to the running process"):
        heal.heal(client, "d-live", print)


def test_an_engine_that_can_not_list_its_containers() -> None:
    """The start of a run needs an engine, so this is an error."""

    def silent(**_: Any) -> None:
        raise NoConnection("connection refused")

    client: Any = SimpleNamespace(containers=SimpleNamespace(list=silent))
    with pytest.raises(EngineError, match="the Docker engine stopped answering"):
        heal.sweep(client, print)


@pytest.mark.usefixtures("shm")
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_kept_cluster_without_readable_journal_is_not_nothing_to_heal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """The command fails, names the journal, and the watchdog goes on."""
    home = RunDir.create(tmp_path, "kept", 0, "c")
    (home.path / "cluster.json").write_text("{}")
    journal = journal_of(home.path / "journal.jsonl", (DEAD, "a", "intended", START))
    if damage == "flipped":
        journal.write_bytes(journal.read_bytes().replace(b'"intended"', b'"intenfed"'))
    else:
        journal.unlink()
    client: Any = Engine(labels(home.run_id, home.path, keep=True))
    monkeypatch.setattr(engine, "connect", lambda: client)
    with pytest.raises(AftershockError, match="1 runs are not wholly healed"):
        adhoc.heal(None, tmp_path)
    shown = capsys.readouterr()
    assert "" == shown.out
    assert f"{journal}:" in "".join(shown.err.split("\n"))
    with pytest.raises(EvidenceError, match="journal"):
        heal.has_remains(client, home.run_id, home.path)


@pytest.mark.usefixtures("shm")
def test_a_healer_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the lock of the run's folder for longer than any heal takes."""
    monkeypatch.setattr(heal, "LOCK_DEADLINE_S", 0.0)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        client: Any = Engine(labels("run", tmp_path))
        assert "another process has been healing the run" in heal.heal(client, None, print).problems[0]
    finally:
        os.close(folder)


def test_an_attached_run_of_another_host_is_healed_only_by_name(tmp_path: Path) -> None:
    """Its owner can't be checked: the sweep refuses and says what to type; a user who names the run may know better."""
    home = RunDir.create(tmp_path, "attached", 0, "c")
    home.update(owner="1:1:0:other:other:7")
    attach = {"bootstrap": "127.0.0.1:1"}
    facts = {"run_id": home.run_id, "attach": attach, "topics": [], "clients": [], "groups": [], "created": {}}
    (home.path / "attached.json").write_text(json.dumps({**facts, "over": True}))
    (home.path / "journal.jsonl").touch()
    _, (problem,) = heal.heal(None, None, print, explicit=False, home=home.path)
    assert "process 1 of user 0, can't be checked from this host or container; if it has ended, type: " in problem
    assert problem.endswith(f"aftershock heal --run {home.run_id}")
    said = list[str]()
    assert heal.Healing([], []) == heal.heal(None, home.run_id, said.append, home=home.path)
    assert "the run is healed, because you named it" in said[0]
    home.update(owner=ownership.owner())
    with pytest.raises(ClusterError, match="belongs to the running process"):
        heal.heal(None, home.run_id, print, home=home.path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_clean_up_takes_effect_after_it(
    number: signal.Signals,
) -> None:
    """Once, if nothing else has ended the command; otherwise the earlier end stands."""
    steps = list[str]()

    def fail() -> None:
        try:
            raise ClusterError("node 1 exited")
        finally:
            with heal.defer_interrupts(lambda _: None):
                signal.raise_signal(number)

    earlier = signal.signal(number, lambda *_: steps.append("ended"))
    try:
        with heal.defer_interrupts(steps.append):
            signal.raise_signal(number)
            signal.raise_signal(number)
            steps.append("cleaned up")
        with pytest.raises(ClusterError):
            fail()
    finally:
        signal.signal(number, earlier)
    assert ["cleaned up", "ended"] == [step for step in steps if "more seconds" not in step]
    assert 2 == sum("then the signal takes effect" in step for step in steps)
