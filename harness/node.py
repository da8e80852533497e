"""The containers of a cluster: Kafka nodes, and the one Toxiproxy between them, launched with Testcontainers.

Testcontainers' own reaper is switched off: its image can't always be pulled, it would reap kept clusters, and the sweep
by label and dead owner (`labels.py`) does its work.
"""

import os

# Testcontainers reads its settings when it is imported
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from collections.abc import Mapping
from typing import Any

from docker.errors import APIError, NotFound
from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException
from testcontainers.core.network import Network

from aftershock.errors import ClusterError, EngineError
from aftershock.faults.world import BrokerState
from aftershock.harness.racks import Node
from aftershock.harness.spec import LOG_DIR

_MEMORY = "1g"
_SHUT_DOWN_S = 30
_KILLED = 128 + 9  # the exit code that SIGKILL leaves


class RackNetwork(Network):
    """A rack's network, under a name and labels of ours."""

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        super().__init__(docker_network_kw={"driver": "bridge", "labels": dict(labels)})
        self.name = name

    def create(self) -> "RackNetwork":
        """Create it.

        Raises:
            EngineError: the engine refused, for want of free address ranges say.
        """
        try:
            super().create()
        except APIError as error:
            raise EngineError(f"can't create network {self.name}: {error.explanation or error}") from error
        return self

    def address_of(self, container_id: str) -> str:
        """A container's address on this network."""
        self._unwrap_network.reload()
        return str(self._unwrap_network.attrs["Containers"][container_id]["IPv4Address"]).partition("/")[0]


class Container(DockerContainer):
    """A container with our name and labels, whose published ports are on loopback only."""

    def __init__(self, image: str, name: str, labels: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(image, name=name, labels=dict(labels), **kwargs)

    def publish_on_loopback(self, ports: list[int]) -> None:
        """Publish ``ports``, each on a loopback port that the engine chooses."""
        self.ports |= {f"{port}/tcp": ("127.0.0.1",) for port in ports}  # type: ignore[misc]  # Docker's (address,) form

    def start(self) -> "Container":
        """Create and start it.

        Raises:
            EngineError: the engine refused.
        """
        try:
            super().start()
        except APIError as error:
            raise EngineError(f"can't start {self._name}: {error.explanation or error}") from error
        return self

    @property
    def id(self) -> str:
        """The engine's id of the container."""
        return self.get_container_id()

    def host_ports(self) -> dict[int, int]:
        """Published ports: inside → on the host."""
        container = self.get_wrapped_container()
        container.reload()
        bindings = container.attrs["NetworkSettings"]["Ports"]
        return {int(port.partition("/")[0]): int(b[0]["HostPort"]) for port, b in bindings.items() if b}

    def output(self) -> str:
        """What the container has printed since it was created, restarts included; empty if it is gone or never was."""
        try:
            return str(self.get_wrapped_container().logs().decode(errors="replace"))
        except (NotFound, ContainerStartException):
            return ""

    def last_log_lines(self, count: int = 15) -> str:
        """The last lines of output, oldest first, without Java's stack frames: what went wrong is above those."""
        lines = [line for line in self.output().splitlines() if not line.startswith("\tat ")]
        return "\n".join(lines[-count:])


class KafkaNode(Container):
    """One Kafka node, its log on a volume of its own, so that it survives a kill as a disk would."""

    def __init__(
        self, node: Node, image: str, prefix: str, labels: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self.node = node
        self.volume = f"{prefix}-{node.name}"
        super().__init__(
            image,
            self.volume,
            {**labels, "aftershock.node": str(node.id), "aftershock.rack": node.rack},
            env=dict(environment),
            hostname=node.name,
            mem_limit=_MEMORY,
        )
        self.with_volume_mapping(self.volume, LOG_DIR, "rw")

    def state(self) -> BrokerState:
        """What the engine says of the process."""
        container = self.get_wrapped_container()
        container.reload()
        if container.status == "paused":
            return "paused"
        return "running" if container.status == "running" else "exited"

    def kill(self) -> None:
        """SIGKILL. The page cache survives, so this tests no durability of the disk."""
        self._act("kill")

    def shut_down(self) -> None:
        """SIGTERM, and wait for the end of the process.

        Raises:
            ClusterError: it was killed, by the engine for taking too long or by somebody else.
        """
        self._act("stop", timeout=_SHUT_DOWN_S)
        container = self.get_wrapped_container()
        container.reload()
        if container.attrs["State"]["ExitCode"] == _KILLED:
            raise ClusterError(f"{self._name} ended by SIGKILL, not by its own shutdown ({_SHUT_DOWN_S} s at most)")

    def restart(self) -> None:
        """Start the stopped container again; a running one stays as it is."""
        self._act("start")

    def pause(self) -> None:
        """Freeze the process; its connections stay open."""
        self._act("pause")

    def resume(self) -> None:
        """Thaw the process; one that isn't frozen stays as it is."""
        if self.state() == "paused":
            self._act("unpause")

    def _act(self, verb: str, **how: Any) -> None:
        try:
            getattr(self.get_wrapped_container(), verb)(**how)
        except APIError as error:
            raise ClusterError(f"can't {verb} {self._name}: {error.explanation or error}") from error
