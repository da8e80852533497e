"""One container of a cluster that runs, seen through the engine: what can be asked of it, and done to its process.

A node's container replaced by one of another image: same name, disk, addresses, labels, environment and limits.

::

    k2 runs ─▶ k2 stopped ─▶ k2 renamed k2-was-1 ─▶ new k2 created ─▶ started
                                  └──────────── between these, k2-was-1 stands for the node

Rules. What the image itself brings (its own environment, its command) is the new image's; all else is copied from the
engine's account of the old container, so whatever else was done to it stays done. The old one stays, stopped, until
the cluster is removed: its output is evidence, and a replacement that is broken off leaves the node in one of them.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import BrokerState
from aftershock.harness.cluster.topology import Node

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


_COPIED = ("Hostname", "Labels", "User", "WorkingDir", "StopSignal", "ExposedPorts")


def replace(node: KafkaNode, image: str) -> None:
    """Stop the node and start one of that image in its place; ``node`` is the new one then.

    Raises:
        ClusterError: the engine refused; the node is the old container, or the new one, but it may not run.
    """
    try:
        _end(node)
    except APIError as error:
        raise ClusterError(f"can't stop {node.container.name}: {error.explanation or error}") from error
    old = node.container
    name = name_of(old)
    try:
        if old.name == name:
            old.rename(_free_name(old, name))
        node.container = _created(old, name, image)
        node.container.start()
    except APIError as error:
        raise ClusterError(f"can't replace {old.name} by {image}: {error.explanation or error}") from error


def in_place(found: Mapping[str, Container], name: str) -> Container | None:
    """The container that stands for a node, of these by their names: its own, else the last that was replaced."""
    replaced = {int(each.rpartition(WAS)[2]): each for each in found if each.startswith(f"{name}{WAS}")}
    return found.get(name) or found.get(replaced.get(max(replaced, default=0), ""))


def _end(node: KafkaNode) -> None:
    if node.state() == "paused":
        node.resume()
    node.container.stop(timeout=SHUT_DOWN_S)


def _free_name(old: Container, name: str) -> str:
    """No name of a container is used twice, of those that stand for one node."""
    taken = {each.name for each in old.client.containers.list(all=True, filters={"name": f"{name}{WAS}"})}
    return next(free for n in range(1, len(taken) + 2) if (free := f"{name}{WAS}{n}") not in taken)


def _created(old: Container, name: str, image: str) -> Container:
    old.reload()
    config, brought = old.attrs["Config"], old.image.attrs["Config"]
    own = {key: config[key] for key in _COPIED if config.get(key) and config[key] != brought.get(key)}
    environment = [pair for pair in config["Env"] or () if pair not in (brought.get("Env") or ())]
    networks = {net: _endpoint(old, told) for net, told in old.attrs["NetworkSettings"]["Networks"].items()}
    whole = {
        **own,
        "Image": image,
        "Env": environment,
        "HostConfig": old.attrs["HostConfig"],
        "NetworkingConfig": {"EndpointsConfig": networks},
    }
    created = old.client.api.create_container_from_config(whole, name)
    return old.client.containers.get(created["Id"])


def _endpoint(old: Container, told: Mapping[str, Any]) -> dict[str, Any]:
    """Its names there, but for the one that the engine made of the old container's id."""
    aliases = [alias for alias in told.get("Aliases") or () if not str(old.id).startswith(alias)]
    return {"Aliases": aliases}
