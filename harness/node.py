"""One container of a cluster that runs, seen through the engine: what can be asked of it, and done to its process."""

import re
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError
from aftershock.faults.values import BrokerState
from aftershock.harness.racks import Node

SHUT_DOWN_S = 30
_VERSION = re.compile(r":(\d+\.\d+\.\d+)")
WAS = "-was-"  # <name>-was-<n>: a container that another one has replaced
_KILLED = 128 + 9  # the exit code that SIGKILL leaves


class Used(NamedTuple):
    """What a container has had since it started: CPU time, by the kernel's accounting (cgroups), and bytes sent."""

    cpu_us: int
    sent_bytes: int


class KafkaNode:
    """One Kafka node; ``container`` is the engine's handle."""

    def __init__(self, node: Node, container: Container) -> None:
        self.node = node
        self.container = container
        self._name = name_of(container)

    def state(self) -> BrokerState:
        """What the engine says of the process.

        Raises:
            ClusterError: the container is gone.
        """
        try:
            self._look()
        except NotFound as error:
            raise ClusterError(f"{self._name} is gone: somebody removed the container") from error
        if self.container.status == "paused":
            return "paused"
        return "running" if self.container.status == "running" else "exited"

    def version(self) -> str:
        """The Kafka version of its image, by the image's tag. ClusterError for an image that has none."""
        image = str(self.container.attrs["Config"]["Image"])
        match = _VERSION.search(image)
        if match is None:
            raise ClusterError(f"the image {image} of {self.container.name} does not say which Kafka it is")
        return match[1]

    def used(self) -> Used | None:
        """What its container has had; None where nobody tells."""
        try:
            told = self.container.stats(stream=False, one_shot=True)
        except APIError:
            return None
        used_ns = told.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage")
        sent_bytes = sum(card["tx_bytes"] for card in told.get("networks", {}).values())
        return Used(used_ns // 1000, sent_bytes) if used_ns else None

    def kill(self) -> None:
        """SIGKILL. The page cache survives, so this tests no durability of the disk."""
        self._act("kill")

    def shut_down(self) -> None:
        """SIGTERM, and wait for the end of the process.

        Raises:
            ClusterError: it was killed, by the engine for taking too long or by somebody else.
        """
        self._act("stop", timeout=SHUT_DOWN_S)
        self.container.reload()
        if self.container.attrs["State"]["ExitCode"] == _KILLED:
            why = f"ended by SIGKILL, not by its own shutdown ({SHUT_DOWN_S} s at most)"
            raise ClusterError(f"{self.container.name} {why}")

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

    def _look(self) -> None:
        """See the container as it is now; where it was replaced meanwhile, by whomever, the one in its place."""
        self.container.reload()
        if self.container.name != self._name:
            with suppress(NotFound):  # broken off half-way: the old one stands for the node
                self.container = self.container.client.containers.get(self._name)

    def _act(self, verb: str, **how: Any) -> None:
        try:
            self._look()
            getattr(self.container, verb)(**how)
        except APIError as error:
            raise ClusterError(f"can't {verb} {self.container.name}: {error.explanation or error}") from error


def name_of(container: Container) -> str:
    """The name of the node's container, also where this one was replaced, and so renamed (`replacing.py`)."""
    return str(container.name).partition(WAS)[0]


def output(container: Container, since: datetime | None = None) -> str:
    """What a container has printed since it was created, restarts included, or since then; empty if it is gone."""
    try:
        return str(container.logs(since=since).decode(errors="replace"))
    except NotFound:
        return ""


def last_log_lines(container: Container, count: int = 15) -> str:
    """The last lines of output, oldest first, without Java's stack frames: what went wrong is above those."""
    lines = [line for line in output(container).splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines[-count:])


def host_ports(container: Container) -> dict[int, int]:
    """Published ports: inside → on the host; none while it does not run."""
    container.reload()
    bindings = container.attrs["NetworkSettings"]["Ports"] or {}
    return {int(port.partition("/")[0]): int(b[0]["HostPort"]) for port, b in bindings.items() if b}


def addresses(container: Container) -> dict[str, str]:
    """A container's own address on each of its networks, by the network's name."""
    container.reload()
    return {name: str(net["IPAddress"]) for name, net in container.attrs["NetworkSettings"]["Networks"].items()}
