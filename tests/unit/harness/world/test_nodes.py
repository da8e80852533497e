"""Scripts in a node's container, whose output docker-py may lose."""

from types import SimpleNamespace
from typing import cast

import pytest
from docker.errors import APIError

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import BrokerId, LogDir
from aftershock.harness.cluster import disks
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import LOG_DIR
from aftershock.harness.world.nodes import MachineWorld


def world(*answers: tuple[int, bytes]) -> MachineWorld:
    """Return access to one running node, whose engine returns these outputs in turn."""
    told = iter(answers)
    container = SimpleNamespace(name="k1", exec_run=lambda _: next(told))
    one = MachineWorld()
    node = SimpleNamespace(node=None, container=container, state=lambda: "running")
    spec = SimpleNamespace(log_dirs=lambda _: [LOG_DIR])
    one._cluster = cast("Cluster", SimpleNamespace(nodes={1: node}, spec=spec))
    return one


async def test_a_script_without_output_is_repeated() -> None:
    """docker-py sometimes returns an empty text and exit code 0 for a command that printed output."""
    one = world((0, b""), (0, b""), (0, b"4096 10 4\nyes\n"))
    assert [LogDir(LOG_DIR, 40_960, 16_384, bounded=False, writable=True)] == await one.log_dirs(BrokerId(1))


async def test_a_script_that_never_prints_is_an_error() -> None:
    """A command that fails is an error as well."""
    with pytest.raises(ClusterError, match=r"`stat.*` ended in .*k1 with status 0: $"):
        await world(*[(0, b"")] * 9).log_dirs(BrokerId(1))
    with pytest.raises(ClusterError, match=r"`stat.*` ended in .*k1 with status 1: no such directory"):
        await world(*[(1, b"no such directory")] * 9).log_dirs(BrokerId(1))


async def test_a_stopped_node_is_read_through_its_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine refuses to run a script in a stopped container, but the volume still exists."""
    monkeypatch.setattr(disks, "run_on_volume", lambda *_, **__: "4096 10 4\nno\n")
    one, states = world(), iter(["running", "exited"])
    node = one._cluster.nodes[BrokerId(1)]
    monkeypatch.setattr(node, "state", lambda: next(states))
    monkeypatch.setattr(node.container, "exec_run", refuse)
    (log_dir,) = await one.log_dirs(BrokerId(1))
    assert not log_dir.writable


def refuse(_: object) -> None:
    raise APIError("container is not running")
