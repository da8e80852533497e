"""The ad-hoc command line on a real kept cluster; the last test destroys that cluster."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import Toxic
from aftershock.harness.adhoc.kept import clock_of
from aftershock.harness.cluster.cluster import attach
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import read_journal
from aftershock.tests.left import left_of

pytestmark = pytest.mark.engine

SPEC = "cluster: {racks: {a: 1, b: 1, c: 1}}\ntopics: [{name: t, partitions: 3, replication: 3}]\n"
DEADLINE_S = 120


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "aftershock.harness.cli", *arguments]


class Kept:
    """A kept cluster, and the command line that works on it."""

    def __init__(self, run_id: str, out: Path) -> None:
        self.run_id = run_id
        self.out = out
        self.home = out / run_id

    def do(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        ended = subprocess.run(
            command(*arguments, "--run", self.run_id), capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        print(arguments, ended.returncode, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr
        return ended

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start an injection."""
        return subprocess.Popen(
            command("inject", *arguments, "--run", self.run_id),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.do("cluster", "status", "--json").stdout)
        return told

    def lines(self, fault: str, state: str) -> list[dict[str, Any]]:
        journal = read_journal(self.home / "journal.jsonl")
        return [line for line in journal if (line["fault"], line["state"]) == (fault, state)]

    def begun(self) -> set[str]:
        return {line["fault"] for line in read_journal(self.home / "journal.jsonl")}

    def await_state(self, fault: str, state: str, for_us: int = 0) -> None:
        """Wait until the fault has been in this state for the given time."""
        clock = clock_of(self.home)

        def lacking() -> str:
            since_us = [line["t_us"] for line in self.lines(fault, state)]
            return "" if since_us and clock.now_us() - since_us[0] >= for_us else f"{fault} is not yet {state}"

        assert "" == still_lacking(lacking, DEADLINE_S)

    def healthy(self) -> bool:
        with closing(attach(docker.from_env(), self.home)) as cluster:
            toxics = [toxic for there in cluster.toxiproxy.toxics().values() for toxic in there]
            running = all(node.state() == "running" for node in cluster.nodes.values())
            return running and not toxics and not cluster.toxiproxy.disabled()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("adhoc")
    (folder / "spec.yaml").write_text(SPEC)
    up = subprocess.run(
        command("cluster", "up", str(folder / "spec.yaml"), "--out", str(folder)),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    print(up.stdout, up.stderr)
    (home,) = (path for path in folder.iterdir() if path.is_dir())
    try:
        assert 0 == up.returncode
        assert home.name in up.stdout
        yield Kept(home.name, folder)
    finally:
        ownership.remove_run(docker.from_env(), home.name)


def test_status_keeps_its_contract(kept: Kept) -> None:
    """The documented JSON: run id, bootstrap by rack, Toxiproxy, brokers, no faults; and the topic exists."""
    told = kept.status()
    assert kept.run_id == told["run_id"]
    assert {"admin", "a", "b", "c"} == told["bootstrap"].keys()
    assert told["toxiproxy"].startswith("http://127.0.0.1:")
    assert [(1, "a"), (2, "b"), (3, "c")] == [(broker["id"], broker["rack"]) for broker in told["brokers"]]
    assert {"running"} == {broker["state"] for broker in told["brokers"]}
    assert ([], []) == (told["faults"], told["not_ours"])
    with closing(attach(docker.from_env(), kept.home)) as cluster:
        assert 3 == len(cluster.admin.partitions(["t"]))
    facts = json.loads((kept.home / "run.json").read_text())
    assert ("kept", told["bootstrap"]) == (facts["status"], facts["bootstrap"])


def test_a_dry_run_changes_nothing(kept: Kept) -> None:
    """Targets, undo and witness on stdout; the journal is unchanged, and no id is used up."""
    before = (kept.home / "journal.jsonl").read_bytes(), (kept.home / "events.jsonl").read_bytes()
    ended = kept.do("inject", "pause", "broker=leader of t/0", "--for", "5s", "--dry-run")
    assert 0 == ended.returncode
    assert re.search(r"targets  node [123]\n", ended.stdout)
    assert re.search(r'undo     resume \{"broker": [123]\}', ended.stdout)
    assert before == ((kept.home / "journal.jsonl").read_bytes(), (kept.home / "events.jsonl").read_bytes())


def test_an_injection_interrupted_at_two_seconds(kept: Kept) -> None:
    """SIGINT at 2 s of 5: exit 130, the node runs; `plan from` gives a valid plan in which the fault lasts 2 s."""
    injection = kept.begin("pause", "broker=leader of t/0", "--for", "5s")
    kept.await_state("pause-1", "injected", for_us=2_000_000)
    injection.send_signal(signal.SIGINT)
    stdout, _ = injection.communicate(timeout=DEADLINE_S)
    assert 130 == injection.returncode, stdout
    assert kept.lines("pause-1", "healed")
    assert kept.healthy()
    written = subprocess.run(
        command("plan", "from", str(kept.home)), capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    (kept.out / "by-hand.yaml").write_text(written.stdout)
    checked = subprocess.run(command("plan", "check", str(kept.out / "by-hand.yaml")), check=False, timeout=DEADLINE_S)
    assert 0 == checked.returncode
    (step,) = load_plan(kept.out / "by-hand.yaml").plan.faults
    assert ("pause", {"broker": "leader of t/0"}) == (step.kind, step.parameters())
    assert 2_000 <= (step.for_ or 0) < 5_000


def test_two_faults_at_once_and_a_conflicting_third(kept: Kept) -> None:
    """Two faults side by side under distinct ids, listed with their holders; a third on the same link is refused.

    So is the removal of the cluster. Both faults end witnessed and healed.
    """
    before = kept.begun()
    slow = kept.begin("latency", "link=client(a) <-> broker", "delay=50ms", "jitter=10ms", "--for", "25s")
    shut = kept.begin("refuse", "link=client(b) -> broker", "--for", "25s")
    assert "" == still_lacking(lambda: "" if len(kept.begun() - before) == 2 else "not both have begun", DEADLINE_S)
    shown = {fault["id"]: fault for fault in kept.status()["faults"]}
    assert {"latency-1": slow.pid, "refuse-1": shut.pid} == {
        name: told["held_by"]["pid"] for name, told in shown.items()
    }
    assert all(0 < told["left_ms"] <= 25_000 for told in shown.values())
    assert "aftershock heal --run" in shown["refuse-1"]["heal"]
    third = kept.do("inject", "cut", "link=client(b) -> broker(1)", "--for", "3s")
    assert (3, "") == (third.returncode, third.stdout)
    assert (
        f"client_b-k1 is taken by refuse-1: refuse on client_b-k1, client_b-k2, client_b-k3; held by process {shut.pid}"
        in (third.stderr)
    )
    assert 3 == kept.do("cluster", "down").returncode
    for injection in (slow, shut):
        stdout, stderr = injection.communicate(timeout=DEADLINE_S)
        assert 0 == injection.returncode, stderr
        assert "witnessed, healed" in stdout
    assert kept.healthy()


def test_the_watchdog_heals_for_a_killed_injector(kept: Kept) -> None:
    """SIGKILL of an injector while its fault is in force: the watchdog heals, and `heal` has nothing to do."""
    before = kept.begun()
    injection = kept.begin("pause", "broker=2", "--for", "10m")
    assert "" == still_lacking(lambda: "" if kept.begun() - before else "no fault has begun", DEADLINE_S)
    (fault,) = kept.begun() - before  # its number depends on the tests before
    kept.await_state(fault, "injected")
    injection.kill()
    injection.communicate(timeout=DEADLINE_S)
    kept.await_state(fault, "healed")
    assert kept.healthy()
    again = kept.do("heal")
    assert (0, "nothing to heal\n") == (again.returncode, again.stdout)


def test_foreign_toxics_and_disabled_proxies_are_listed(kept: Kept) -> None:
    """A toxic that no journal has, and a proxy that was disabled by hand, are named and not changed."""
    with closing(attach(docker.from_env(), kept.home)) as cluster:
        cluster.toxiproxy.add_toxic("client_c-k1", Toxic("mine", "latency", "upstream", {"latency": 1}))
        cluster.toxiproxy.enable("client_c-k2", enabled=False)
        try:
            told = kept.status()["not_ours"]
            assert "not by Aftershock: toxic mine" in kept.do("cluster", "status").stdout
        finally:
            cluster.toxiproxy.reset()
    assert ["toxic mine (latency, upstream) on proxy client_c-k1", "proxy client_c-k2 is disabled"] == [
        sentence.removeprefix("not by Aftershock: ") for sentence in told
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pause", "broker=leader of tt/0", "--for", "5s"], "the topic `tt` is not on the cluster; did you mean `t`?"),
        (["pause", "brokr=1", "--for", "5s"], "unknown key `brokr`; did you mean `broker`?"),
        (["pause", "broker=1"], "a pause needs `for`"),
    ],
)
def test_invalid_arguments_change_nothing(kept: Kept, arguments: list[str], expected: str) -> None:
    """An error, exit 3, and no fault."""
    before = kept.begun()
    ended = kept.do("inject", *arguments)
    assert (3, "") == (ended.returncode, ended.stdout)
    assert expected in ended.stderr
    assert before == kept.begun()


def test_an_unknown_run_is_a_clear_error(kept: Kept) -> None:
    """`heal`, `status`, `down` and `inject` of an unknown run: exit 3, and the existing cluster is not changed."""
    unknown = Kept("20200101-000000-nobody-0000", kept.out)
    for arguments in (["heal"], ["cluster", "status"], ["cluster", "down"], ["inject", "pause", "broker=1"]):
        ended = unknown.do(*arguments)
        assert (3, "") == (ended.returncode, ended.stdout)
        assert unknown.run_id in ended.stderr
    assert kept.healthy()


def test_an_interrupted_up_leaves_nothing(kept: Kept, tmp_path: Path) -> None:
    """SIGINT during a launch: exit 130, no container, network or volume, and its folder records the interrupt.

    The other kept cluster is announced, and not changed.
    """
    (tmp_path / "spec.yaml").write_text("cluster: {racks: {a: 1}}\n")
    launching = subprocess.Popen(
        command("cluster", "up", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "runs")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def lacking() -> str:
        homes = list((tmp_path / "runs").glob("*"))
        return "" if homes and left_of(homes[0].name) else "nothing has begun"

    try:
        assert "" == still_lacking(lacking, DEADLINE_S)
        launching.send_signal(signal.SIGINT)
        stdout, stderr = launching.communicate(timeout=DEADLINE_S)
    except BaseException:  # No cluster may stay, even if the interrupt did not end the launch.
        launching.kill()
        launching.communicate()
        for home in (tmp_path / "runs").glob("*"):
            ownership.remove_run(docker.from_env(), home.name)
        raise
    (home,) = (tmp_path / "runs").iterdir()
    assert (130, "") == (launching.returncode, stdout), stderr
    assert [] == left_of(home.name)
    assert "interrupted" == json.loads((home / "run.json").read_text())["status"]
    assert re.search(f"other kept clusters are running: .*{kept.run_id}", stderr)
    assert kept.healthy()


def test_a_cluster_without_toxiproxy_is_an_error_and_can_be_removed(kept: Kept) -> None:
    """`status` and `inject` name the missing part and the remedy, and `down` removes the rest."""
    docker.from_env().containers.get(f"aftershock-{kept.run_id}-toxiproxy").remove(force=True)
    for arguments in (["cluster", "status", "--json"], ["inject", "pause", "broker=1", "--for", "5s"]):
        ended = kept.do(*arguments)
        assert (3, "") == (ended.returncode, ended.stdout)
        assert "toxiproxy" in ended.stderr
        assert f"aftershock cluster down --run {kept.run_id}" in ended.stderr
    shown = kept.do("cluster", "status")
    assert 3 == shown.returncode
    assert "toxiproxy" in shown.stdout
    assert 0 == kept.do("cluster", "down").returncode
    assert [] == left_of(kept.run_id)
    assert "down" == json.loads((kept.home / "run.json").read_text())["status"]
    assert 3 == kept.do("cluster", "down").returncode
