"""Container of a Kafka node, with operations on its process, and replacement by a container of another image.

The network namespace of a node ends with its container, and the node's address with it. In a cluster with ``hosts``,
the namespace belongs to a further container, ``<node>-host``, which outlives the node's process.

A node's replacement container has the old container's name, disk, addresses, labels, environment and limits, and the
new image's command and default environment. The replaced container is stopped, renamed to ``<name>-was-<n>``, and stays
until the cluster is removed, because its output is evidence.
"""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError
from aftershock.faults.targets.values import BrokerState, Outcome
from aftershock.harness.cluster.engine import docker_errors, version_in
from aftershock.harness.cluster.topology import JMX_PORT, Node
from aftershock.harness.kafka.admin import still_lacking

SHUT_DOWN_S = 30
FREEZE_ATTEMPTS = 8
_UNPLUGGED_S = 2  # until the engine has removed the network of a killed host
WAS = "-was-"  # <name>-was-<n>: a container that was replaced
_REQUEST_THREADS = "data-plane-kafk"  # the kernel's 15 characters of the names of network and request handler threads
_KILLED = 128 + 9  # the exit code that SIGKILL leaves

METRICS = (
    "kafka.server:type=FetchSessionCache,*",
    "kafka.server:type=FetchSessionCacheShard,*",
    "kafka.server:type=group-coordinator-metrics,*",
)
"""MBeans that are read of a cluster with ``jmx``: those of KIP-227 and of KIP-1224."""

METRICS_SCRIPT = (
    f"url=service:jmx:rmi:///jndi/rmi://$(hostname -i | cut -d' ' -f1):{JMX_PORT}/jmxrmi; "
    "KAFKA_HEAP_OPTS=-Xmx64m /opt/kafka/bin/kafka-jmx.sh --one-time --report-format properties "
    f'--jmx-url "$url" {" ".join(f"--object-name {name!r}" for name in METRICS)}'
)
"""Shell script for a node's container that prints the numbers of its MBeans, for `parse_metrics`."""


def parse_metrics(output: str) -> dict[str, float]:
    """Parse what Kafka's JmxTool prints in the format ``properties``; values other than finite numbers are left out."""
    found = {}
    for line in output.splitlines():
        name, _, value = line.rpartition("=")
        with suppress(ValueError):
            if ":type=" in name and math.isfinite(number := float(value)):
                found[name] = number
    return found


class ContainerUsage(NamedTuple):
    """CPU time, as the kernel counts it (cgroups), and bytes sent of a container since its start."""

    cpu_us: int
    sent_bytes: int


class KafkaNode:
    """A Kafka node of a launched cluster; ``container`` is the Docker SDK's object for the node's container."""

    def __init__(self, node: Node, container: Container) -> None:
        self.node = node
        self.container = container
        self._name = node_name(container)

    def state(self) -> BrokerState:
        """Return the state of the node's process; raise ClusterError if the node's container was removed."""
        try:
            self._refresh()
        except NotFound as error:
            raise ClusterError(f"the container {self._name} of a Kafka node was removed") from error
        return self.container.status if self.container.status in ("running", "paused") else "exited"

    @property
    def name(self) -> str:
        """Name of the node's container."""
        return str(self.container.name)

    def exited(self) -> bool:
        """Return True if the node's process has ended."""
        return self.state() == "exited"

    def last_log_lines(self) -> str:
        return last_log_lines(self.container)

    def exit_of(self) -> str:
        """Return how the node's process ended, as a sentence."""
        state, host = self.container.attrs["State"], self.container.attrs["HostConfig"]
        memory = (
            f"; it needed more memory than its container's {host['Memory'] >> 20} MiB" if state["OOMKilled"] else ""
        )
        return f"the Kafka node {self.node.name} (rack {self.node.rack}) exited with code {state['ExitCode']}{memory}"

    def version(self) -> str:
        """Return the Kafka version in the tag of the node's image, or the image's name for a tag without version."""
        return version_in(str(self.container.attrs["Config"]["Image"]))

    def usage(self) -> ContainerUsage | None:
        """Return the CPU time and sent bytes of the node's container; None if Docker does not measure them."""
        try:
            stats = self.container.stats(stream=False, one_shot=True)
        except APIError:
            return None
        used_ns = stats.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage")
        sent_bytes = sum(interface["tx_bytes"] for interface in stats.get("networks", {}).values())
        return ContainerUsage(used_ns // 1000, sent_bytes) if used_ns else None

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the node's MBeans in METRICS, by ``name:attribute``; empty if the node is not running.

        Kafka's own tool reads them, in a JVM of its own within the container.
        """
        try:
            code, output = self.container.exec_run(["sh", "-c", METRICS_SCRIPT])
        except APIError:
            return {}
        return {} if code else parse_metrics(output.decode(errors="replace"))

    def request_cpu_us(self) -> int | None:
        """Return the CPU time of the threads that read, handle and answer requests; None if not measurable here.

        The kernel counts it (``schedstat``). The process must run on this host, as with a local Docker engine.
        """
        used_ns = 0
        with suppress(OSError):  # the process ends
            for task in Path(f"/proc/{self.container.attrs['State']['Pid']}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # the thread ends
                    if (task / "comm").read_text().startswith(_REQUEST_THREADS):
                        used_ns += int((task / "schedstat").read_text().split()[0])
        return used_ns // 1000 or None

    def kill(self) -> None:
        """Kill the node with SIGKILL; unflushed writes are not lost, because the host's page cache survives."""
        self.crash()
        self._kill_host()

    def crash(self) -> None:
        """Kill the node's process with SIGKILL, and not its host, if the cluster has such."""
        self._act("kill")

    def vanish(self) -> None:
        """Kill the node's host, and then, once no packet can leave the node, its process, so no connection is closed.

        Raises ClusterError if the process keeps its network, as in a cluster without ``hosts``.
        """
        self._kill_host()
        with docker_errors(ClusterError, f"read the network devices of {self._name}"):
            if missing := still_lacking(self._devices_left, _UNPLUGGED_S):
                raise ClusterError(f"the node {self._name} {missing} {_UNPLUGGED_S} s after the death of its host")
        self.crash()

    def shut_down(self) -> None:
        """Send SIGTERM and wait for the process to end; raise ClusterError if SIGKILL ended the process."""
        self._act("stop", timeout=SHUT_DOWN_S)
        self.container.reload()
        if self.container.attrs["State"]["ExitCode"] == _KILLED:
            raise ClusterError(
                f"the node {self._name} did not shut down within {SHUT_DOWN_S} s, so Docker ended the node by SIGKILL"
            )

    def dial(self) -> Outcome:
        """Open a connection to the node's port, inside the network namespace of the node's host.

        Returns ``closed`` if the host refused, ``silent`` without a running host, or after a second.
        """
        host = self._host()
        with suppress(APIError):  # the host does not run
            connect = f": < /dev/tcp/{self.node.name}/{self.node.inner_port}"
            code, output = host.exec_run(["timeout", "1", "bash", "-c", connect]) if host else (1, b"")
            return "answered" if code == 0 else "closed" if b"refused" in output else "silent"
        return "silent"

    def restart(self) -> None:
        """Start the node's process again, and its host; raise ClusterError if the node's block device is gone.

        The kernel gives the number of a loop device to the next program that asks for one. The container
        ``<node>-device`` holds the device open, so as long as it runs, the device is the node's own.
        """
        with docker_errors(ClusterError, f"find the block device of the node {self._name}"):
            holders = self.container.client.containers.list(all=True, filters={"name": f"^/{self._name}-device$"})
        if any(holder.status != "running" for holder in holders):
            raise ClusterError(
                f"the block device of the node {self._name} is gone, because the container {self._name}-device ended; "
                "its records are lost, so remove the cluster and launch another one"
            )
        if host := self._host():
            with docker_errors(ClusterError, f"start the host of the node {self._name}"):
                host.start()
        self._act("start")

    def pause(self) -> None:
        """Pause all processes of the node at once, within ``FREEZE_ATTEMPTS`` attempts.

        With cgroup v1, the container runtime freezes no container while one of its threads waits in the kernel, for a
        disk for example. The runtime gives up in milliseconds and leaves the container running.
        """
        for attempt in count(1):
            try:
                self._act("pause")
            except ClusterError as error:
                if attempt == FREEZE_ATTEMPTS or "unable to freeze" not in str(error):
                    raise
                time.sleep(attempt * 0.05)
            else:
                return

    def resume(self) -> None:
        if self.state() == "paused":
            self._act("unpause")

    def _kill_host(self) -> None:
        if host := self._host():
            with docker_errors(ClusterError, f"kill the host of the node {self._name}"):
                host.kill()

    def _devices_left(self) -> str:
        devices = self.container.exec_run(["ls", "/sys/class/net"]).output.decode().split()
        return "" if devices == ["lo"] else f"has the network devices {', '.join(devices)}"

    def _host(self) -> Container | None:
        mode, _, host = self.container.attrs["HostConfig"]["NetworkMode"].partition(":")
        return self.container.client.containers.get(host) if mode == "container" else None

    def _refresh(self) -> None:
        """Reload the container's state; use the new container if another process replaced the node's container."""
        self.container.reload()
        if self.container.name != self._name:
            with suppress(NotFound):  # interrupted replacement: the old container represents the node
                self.container = self.container.client.containers.get(self._name)

    def _act(self, verb: str, **how: Any) -> None:
        with docker_errors(ClusterError, f"{verb} the node {self._name}"):
            self._refresh()
            getattr(self.container, verb)(**how)


def node_name(container: Container) -> str:
    """Return the name of a node's container, without the suffix ``-was-<n>`` of a replaced container."""
    return str(container.name).partition(WAS)[0]


def output(container: Container, since: datetime | None = None) -> str:
    """Return a container's output from ``since`` on, also of earlier starts; "" if the container was removed."""
    try:
        return str(container.logs(since=since).decode(errors="replace"))
    except NotFound:
        return ""


def last_log_lines(container: Container) -> str:
    """Return the last 15 lines of a node's output without Java stack frames, which follow the error message."""
    lines = [line for line in output(container).splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines[-15:])


def host_ports(container: Container) -> dict[int, int]:
    """Map each published port of a container to its port on the host; empty while the container does not run."""
    container.reload()
    bindings = container.attrs["NetworkSettings"]["Ports"] or {}
    return {int(port.partition("/")[0]): int(b[0]["HostPort"]) for port, b in bindings.items() if b}


_COPIED = ("Hostname", "Labels", "User", "WorkingDir", "StopSignal", "ExposedPorts")


def replace(node: KafkaNode, image: str) -> None:
    """Stop the node's container and start a container of ``image`` in its place.

    Raises ClusterError if the Docker engine refused; the old or the new container may then be stopped.
    """
    name = node_name(node.container)
    with docker_errors(ClusterError, f"stop the node {name}"):
        node.resume()
        node.container.stop(timeout=SHUT_DOWN_S)
    old, client = node.container, node.container.client
    with docker_errors(ClusterError, f"replace the container {name} by a container of {image}"):
        if old.name == name:
            used_names = {c.name for c in client.containers.list(all=True, filters={"name": f"{name}{WAS}"})}
            old.rename(next(new for n in count(1) if (new := f"{name}{WAS}{n}") not in used_names))
        old.reload()
        config, image_config = old.attrs["Config"], old.image.attrs["Config"]
        # a container in another's network namespace has its host name too
        shared = old.attrs["HostConfig"]["NetworkMode"].startswith("container:")
        copied = [key for key in _COPIED if not (shared and key == "Hostname")]
        # without the alias that the engine derived from the old container's id
        endpoints = {
            network: {
                "Aliases": [alias for alias in endpoint.get("Aliases") or () if not str(old.id).startswith(alias)]
            }
            for network, endpoint in old.attrs["NetworkSettings"]["Networks"].items()
        }
        container_config = {
            **{key: config[key] for key in copied if config.get(key) and config[key] != image_config.get(key)},
            "Image": image,
            "Env": [pair for pair in config["Env"] or () if pair not in (image_config.get("Env") or ())],
            "HostConfig": old.attrs["HostConfig"],
            "NetworkingConfig": {"EndpointsConfig": endpoints},
        }
        node.container = client.containers.get(client.api.create_container_from_config(container_config, name)["Id"])
        node.container.start()


def current_container(containers: Mapping[str, Container], name: str) -> Container | None:
    """Return the container called ``name``, else the node's last replaced container; None if both are missing."""
    replaced = {int(old.rpartition(WAS)[2]): old for old in containers if old.startswith(f"{name}{WAS}")}
    return containers.get(name) or containers.get(replaced.get(max(replaced, default=0), ""))
