"""Owners of clusters: a process is identified by its id and its start time, so that a reused id is not mistaken for
the owner.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from aftershock.errors import ClusterError
from aftershock.harness.safety import ownership


def test_this_process_lives() -> None:
    """The owner label of a running process names it."""
    assert ownership.is_alive(ownership.owner())


def test_a_reused_process_id_is_not_the_owner() -> None:
    """The same id with another start time belongs to another process."""
    assert not ownership.is_alive(f"{os.getpid()}:1")


def test_an_ended_process_is_dead() -> None:
    """Its id may be reused later."""
    code = "from aftershock.harness.safety.ownership import owner; print(owner())"
    label = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert not ownership.is_alive(label)


def test_a_broken_label_has_no_owner() -> None:
    """Labels are untrusted strings: a malformed label means a dead owner, never an error."""
    assert not any(
        map(
            ownership.is_alive,
            ("", "x", ":", "12", "-1:2", "1:", "9" * 40 + ":1", "0:1", "²:1", "1:1:0", "1:1:0:m:b:n:x"),
        )
    )


def test_labels_name_run_owner_home_and_keep(tmp_path: Path) -> None:
    """All labels of the contract are set, and the host name, since a process id is valid on one host only."""
    made = ownership.labels_of("r1", tmp_path, keep=True)
    expected = {
        ownership.RUN: "r1",
        ownership.OWNER: ownership.owner(),
        ownership.HOME: str(tmp_path),
        ownership.KEEP: "true",
    }
    assert expected == {name: made[name] for name in expected}
    assert {ownership.HOST} == made.keys() - expected.keys()


HERE = ("machine", "boot", "4026531836")


@pytest.mark.parametrize(
    ("machine", "boot", "namespace", "expected"),
    [
        ("machine", "boot", "4026531836", "dead"),  # checked here: no such process
        ("machine", "boot", "4026532999", "unknown"),  # another container on this host
        ("machine", "earlier", "4026531836", "dead"),  # before a restart of this host
        ("machine", "earlier", "4026532999", "unknown"),  # a container whose image has a machine id
        ("other", "elsewhere", "4026531836", "unknown"),  # another host over a shared engine
        ("", "elsewhere", "4026531836", "unknown"),  # another host without a machine id
    ],
)
def test_only_an_owner_of_this_host_can_be_dead(
    monkeypatch: pytest.MonkeyPatch, machine: str, boot: str, namespace: str, expected: str
) -> None:
    """The owner's machine, boot and namespace of process ids decide whether its process id means anything here."""
    monkeypatch.setattr(ownership, "_machine_boot_namespace", lambda: HERE)
    label = f"999999999:1:0:{machine}:{boot}:{namespace}"
    assert expected == ownership.liveness(label)
    assert (expected != "dead") == ownership.is_alive(label)


def test_a_process_that_proc_hides_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With hidepid another user's process has no folder in /proc, and signals still find it."""
    mine = ownership.owner()
    monkeypatch.setattr(ownership, "PROC", tmp_path)
    assert "unknown" == ownership.liveness(mine)
    assert "dead" == ownership.liveness(mine.replace(str(os.getpid()), "999999999", 1))


def test_a_cluster_of_version_0_1_0_is_left_alone(tmp_path: Path) -> None:
    """Its label does not say on which host the process is, although no such process runs here."""
    assert "unknown" == ownership.LabelledCluster("old", "999999999:1", tmp_path, keep=False).liveness


def engine_with(*items: Any) -> Any:
    """An engine with these containers, and no networks or volumes."""
    empty = SimpleNamespace(list=lambda **_: [])
    return SimpleNamespace(containers=SimpleNamespace(list=lambda **_: list(items)), networks=empty, volumes=empty)


def container(name: str, remove: Callable[..., None]) -> Any:
    return SimpleNamespace(name=name, remove=remove)


def test_one_object_that_stays_does_not_keep_the_others() -> None:
    """Each object is tried, and the error names the one that the engine does not remove."""
    removed = list[str]()

    def refuse(**_: Any) -> None:
        raise APIError("500 Server Error", explanation="device is busy")

    def missing(**_: Any) -> None:
        raise NotFound("gone")

    items = (container("k1", refuse), container("k2", missing), container("k3", lambda **_: removed.append("k3")))
    with pytest.raises(ClusterError, match=r"1 Docker objects of the run r1 .*: k1: device is busy; .*heal --run r1"):
        ownership.remove_run(engine_with(*items), "r1")
    assert ["k3"] == removed


def test_a_removal_without_end_names_what_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that appear again and again: an error after the deadline, not a loop for ever."""
    monkeypatch.setattr(ownership, "REMOVAL_DEADLINE_S", 0.0)
    client = engine_with(container("k1", lambda **_: None))
    with pytest.raises(ClusterError, match=r"still appearing after 0 s: k1; .*heal --run r1"):
        ownership.remove_run_completely(client, "r1")
