"""A node in a pod: its state by the kubelet and the kernel, signals, and a start on the same volume."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from aftershock.errors import ClusterError
from aftershock.harness.cluster.kubernetes import manifests
from aftershock.harness.cluster.kubernetes import node as module
from aftershock.harness.cluster.kubernetes.api import Api, Executed, RefusedError
from aftershock.harness.cluster.kubernetes.manifests import Place
from aftershock.harness.cluster.kubernetes.node import PodNode, hindrance
from aftershock.harness.cluster.topology import Node
from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.unit.harness.cluster.kubernetes.fake_api import RUNNING, FakeApi, ended, pod, waiting

PLACE = Place("run-1", "kind", "aftershock-run-1", own_namespace=True)
GONE = RefusedError("the container is gone", 0)


def node(*pods: dict[str, Any], answers: Sequence[Executed | RefusedError] = ()) -> tuple[PodNode, FakeApi]:
    api = FakeApi(pods, answers)
    api.root = {"k1": json.dumps({"kind": "Pod", "metadata": {"name": "k1"}, "spec": {}})}
    return PodNode(Node(1, "a", broker=True, controller=True), PLACE, cast("Api", api)), api


@pytest.mark.parametrize(
    ("pods", "answers", "expected"),
    [
        ([], [], "exited"),
        ([pod("k1", None, "Pending")], [], "exited"),
        ([pod("k1", waiting("ContainerCreating"), "Pending")], [], "exited"),
        ([pod("k1", ended(137), "Failed")], [], "exited"),
        ([pod("k1", RUNNING)], [Executed(0, "S\n")], "running"),
        ([pod("k1", RUNNING)], [Executed(0, "exited 137\n")], "exited"),
        ([pod("k1", RUNNING)], [Executed(0, "T\n")], "paused"),
        ([pod("k1", RUNNING)], [Executed(3, "")], "running"),  # the image's script has yet to start the JVM
        ([pod("k1", ended(137), "Failed"), pod("k1-2", RUNNING)], [Executed(0, "S\n")], "running"),
    ],
)
def test_the_state_of_a_node(pods: list[dict[str, Any]], answers: list[Executed], expected: str) -> None:
    assert expected == node(*pods, answers=answers)[0].state()


def test_a_node_that_ends_while_it_is_asked_has_exited() -> None:
    one, api = node(pod("k1", RUNNING), answers=[GONE])
    api.on_execute = lambda: api.pods.__setitem__(0, pod("k1", ended(137), "Failed"))
    assert "exited" == one.state()


def test_a_node_that_runs_and_can_not_be_asked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not "running": a kubelet that does not answer proves nothing."""
    monkeypatch.setattr(module, "_REPORTED_S", 0.0)
    with pytest.raises(RefusedError):
        node(pod("k1", RUNNING), answers=[GONE])[0].state()


def test_a_kill_is_a_signal_to_the_jvm() -> None:
    one, api = node(pod("k1", RUNNING), answers=[Executed(0, "")])
    one.kill()
    assert "KILL" == api.commands[0][-1]


@pytest.mark.parametrize("signal", ["pause", "kill"])
def test_a_container_without_a_jvm_can_not_be_signalled(signal: str) -> None:
    with pytest.raises(ClusterError, match="its container has no JVM"):
        getattr(node(pod("k1", RUNNING), answers=[Executed(3, "")])[0], signal)()


def test_a_node_that_does_not_run_can_not_be_signalled() -> None:
    with pytest.raises(ClusterError, match=r"can't send SIGSTOP to the node k1: .* exited with code 137"):
        node(pod("k1", ended(137), "Failed"))[0].pause()


def test_a_node_that_was_killed_in_its_shutdown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUT_DOWN_S", 0)
    running, sent, killed = Executed(0, "S\n"), Executed(0, ""), Executed(0, "exited 137\n")
    with pytest.raises(ClusterError, match="was killed while it shut down"):
        node(pod("k1", RUNNING), answers=[running, sent, killed, killed])[0].shut_down()
    with pytest.raises(ClusterError, match="did not shut down within"):
        node(pod("k1", RUNNING), answers=[running, sent, running])[0].shut_down()


def test_a_start_lets_the_supervisor_start_the_node() -> None:
    """In the same pod, so the address stays."""
    one, api = node(pod("k1", RUNNING), answers=[Executed(0, "")])
    one.restart()
    assert [] == api.created
    assert api.commands[0][-1].startswith("rm -f")


def test_a_start_makes_a_further_pod_on_the_same_volume_if_the_last_one_has_ended() -> None:
    one, api = node(pod("k1", ended(137), "Failed"))
    one.restart()
    assert ["k1-2"] == [item["metadata"]["name"] for item in api.created]


def test_a_start_waits_for_the_end_of_a_deleted_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers of one node id on one volume would fight for it."""
    monkeypatch.setattr(module, "SHUT_DOWN_S", 0)
    monkeypatch.setattr(module, "_END_S", 0)
    one, api = node(pod("k1", RUNNING, deletionTimestamp="2026-11-30T00:00:09Z"))
    with pytest.raises(ClusterError, match="its earlier pod k1 has not ended"):
        one.restart()
    assert [] == api.created


def test_how_a_node_ended() -> None:
    assert (
        "exited with code 137; it needed more memory" in node(pod("k1", ended(137, "OOMKilled"), "Failed"))[0].exit_of()
    )
    assert "has no pod, because it was deleted" in node()[0].exit_of()
    stopped = node(pod("k1", RUNNING), answers=[Executed(0, "exited 143\n")])[0]
    assert stopped.exit_of().endswith("exited with code 143")
    pending = pod("k1", waiting("ErrImagePull", "not found"), "Pending")
    assert "does not run: the pod k1 waits for its container: ErrImagePull: not found" in node(pending)[0].exit_of()


@pytest.mark.parametrize(
    ("status", "expected", "for_good"),
    [
        (RUNNING, "", False),
        (ended(1), "", False),
        (waiting("ContainerCreating"), "ContainerCreating", False),
        (waiting("ImagePullBackOff", "Back-off pulling"), "ImagePullBackOff: Back-off pulling", True),
        (waiting("ErrImageNeverPull"), "ErrImageNeverPull", True),
    ],
)
def test_why_a_pod_does_not_run(status: dict[str, Any], expected: str, for_good: bool) -> None:
    problem, ended_for_good = hindrance(pod("k1", status))
    assert expected in problem
    assert bool(expected) == bool(problem)
    assert for_good == ended_for_good


def test_the_schedulers_own_words() -> None:
    unplaced = pod("k1", None, "Pending")
    said = "0/1 nodes are available: 1 Insufficient memory."
    unplaced["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": said}]
    assert (f"no node takes the pod k1: {said}", False) == hindrance(unplaced)


def test_the_output_of_all_pods_of_a_node() -> None:
    one, _ = node(pod("k1", ended(137), "Failed"), pod("k1-2", RUNNING))
    assert ["k1 says", "\tat java", "no more", "k1-2 says", "\tat java", "no more"] == one.log().splitlines()
    assert "at java" not in one.last_log_lines()


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """Return a folder like ``/proc``, with two JVMs, of which the later one has the name that sorts first."""
    for pid, name, state in ((1, "pause", "S"), (9, "java", "T"), (10, "java", "S"), (12, "sh", "R")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {state} 0 1 1 0 -1 0 0\n")
    return tmp_path


def shell(script: str, processes: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", script.replace("/proc", str(processes)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})


def test_the_script_reads_the_state_of_the_first_jvm(processes: Path) -> None:
    assert "T\n" == shell(module._STATE, processes).stdout


def test_the_script_signals_the_first_jvm(processes: Path) -> None:
    said = shell(module._SIGNAL.replace("kill ", "echo "), processes, "STOP")
    assert "-s STOP 9\n" == said.stdout


def test_the_script_finds_no_jvm(tmp_path: Path) -> None:
    assert 3 == shell(module._STATE, tmp_path).returncode


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Return a supervisor whose node is a program of ours that counts its starts, and its folder."""
    run = tmp_path / "run"
    run.write_text(f"#!/bin/sh\necho started >>{tmp_path}/starts; exec sleep 60\n")
    run.chmod(0o755)
    script = manifests._SUPERVISOR.replace(manifests.SUPERVISOR_DIR, str(tmp_path)).replace(
        "/etc/kafka/docker/run", str(run)
    )
    with subprocess.Popen(["sh", "-c", script], text=True, start_new_session=True) as process:
        yield process, tmp_path
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def child_of(process: subprocess.Popen[str]) -> int:
    """Return the process id of the supervisor's node, once it runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def asleep() -> str:
        found = children.read_text().split()
        return "" if found and Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep" else "no node"

    assert not still_lacking(asleep, 5.0)
    return int(children.read_text().split()[0])


def test_the_supervisor_keeps_a_killed_node_down_until_it_may_start(
    supervised: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = supervised
    os.kill(child_of(process), signal.SIGKILL)
    assert not still_lacking(lambda: "" if (folder / "down").exists() else "up", 5.0)
    assert "137\n" == (folder / "down").read_text()
    assert "started\n" == (folder / "starts").read_text()
    (folder / "down").unlink()
    child_of_second = still_lacking(
        lambda: "" if (folder / "starts").read_text().count("started") == 2 else "once", 5.0
    )
    assert not child_of_second


def test_the_supervisor_ends_with_its_node_when_its_pod_is_deleted(
    supervised: tuple[subprocess.Popen[str], Path],
) -> None:
    """SIGTERM to process 1 becomes one to the node, and the pod ends with the node's status; also while it is down."""
    process, folder = supervised
    node_id = child_of(process)
    process.terminate()
    assert 143 == process.wait(5)
    assert not Path(f"/proc/{node_id}").exists()
    assert "started\n" == (folder / "starts").read_text()
