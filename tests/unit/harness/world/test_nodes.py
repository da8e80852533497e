"""Scripts in a node's container, where docker-py may lose the output."""

from types import SimpleNamespace
from typing import cast

import pytest
from docker.errors import APIError

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import BrokerId, LogDir
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import LOG_DIR
from aftershock.harness.world import nodes
from aftershock.harness.world.nodes import MachineWorld


def world(*answers: tuple[int, bytes]) -> MachineWorld:
    """Access to one running node, whose engine returns these outputs in turn."""
    told = iter(answers)
    container = SimpleNamespace(name="k1", exec_run=lambda _: next(told))
    one = MachineWorld()
    node = SimpleNamespace(node=None, container=container, state=lambda: "running")
    spec = SimpleNamespace(log_dirs=lambda _: [LOG_DIR])
    one._cluster = cast("Cluster", SimpleNamespace(nodes={1: node}, spec=spec))
    return one


async def test_an_answer_that_got_lost_is_asked_for_again() -> None:
    """docker-py sometimes returns an empty text and 0 for a command that printed something."""
    one = world((0, b""), (0, b""), (0, b"4096 10 4\nyes\n"))
    assert [LogDir(LOG_DIR, 40_960, 16_384, bounded=False, writable=True)] == await one.log_dirs(BrokerId(1))


async def test_who_never_says_anything_is_an_error() -> None:
    """And so is a command that fails."""
    with pytest.raises(ClusterError, match="k1 answers 0 and `` to `stat"):
        await world(*[(0, b"")] * 9).log_dirs(BrokerId(1))
    with pytest.raises(ClusterError, match="k1 answers 1 and `no such directory` to `stat"):
        await world(*[(1, b"no such directory")] * 9).log_dirs(BrokerId(1))


async def test_who_ends_meanwhile_is_looked_at_from_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine refuses, for the container is no longer running: its volume still is there."""
    monkeypatch.setattr(nodes, "run_on_volume", lambda *_, **__: "4096 10 4\nno\n")
    one, states = world(), iter(["running", "exited"])
    node = one._cluster.nodes[BrokerId(1)]
    monkeypatch.setattr(node, "state", lambda: next(states))
    monkeypatch.setattr(node.container, "exec_run", refuse)
    (log_dir,) = await one.log_dirs(BrokerId(1))
    assert not log_dir.writable


def refuse(_: object) -> None:
    raise APIError("container is not running")
