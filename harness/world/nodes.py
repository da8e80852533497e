"""Operations for faults on the processes, limits, log directories and Kafka versions of a launched cluster's nodes."""

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.sections.cluster import BlockDevice
from aftershock.faults.targets.values import (
    BrokerId,
    ClockShift,
    DiskCounts,
    DiskDefects,
    GcPauses,
    Limits,
    LogDamage,
    LogDir,
    Throttling,
)
from aftershock.harness.cluster import engine, preloads
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.disks import (
    block_device_of,
    cut_power,
    damage_script,
    disk_counts,
    restore_power,
    run_in_node,
    run_on_volume,
    set_defects,
)
from aftershock.harness.cluster.node import KafkaNode, output, replace
from aftershock.harness.cluster.topology import LOG_DIR
from aftershock.harness.kafka import settings
from aftershock.harness.world.threads import delegate, in_thread

_PERIOD_US = 100_000  # the kernel's default period of a CPU quota
_FILLER, _PROBE = "aftershock.fill", "aftershock.probe"
_DD_TIME = re.compile(r"copied, ([\d.e-]+) s")
_NOBODY_UID = 65534
_VERSION_LINE = re.compile(r"Kafka version: (\d+\.\d+\.\d+)")  # logged by AppInfoParser when a server starts

R = TypeVar("R")


def _on_node(operation: Callable[[KafkaNode], R]) -> Callable[[Any, BrokerId], Coroutine[Any, Any, R]]:
    """Return a coroutine method that calls the method of this name of a node, in a thread."""

    async def run(self: Any, broker: BrokerId) -> R:
        result: R = await asyncio.to_thread(getattr(self._cluster.nodes[broker], operation.__name__))
        return result

    return run


def log_dir_script(path: str) -> str:
    """Return a shell script that prints the size and writability of a log directory, for `log_dir_in`."""
    return f'stat -f -c "%S %b %a" {path}; test -w {path} && echo yes || echo no'


def log_dir_in(output: str, path: str) -> LogDir:
    block, blocks, free, writable = output.split()
    size, left = int(block) * int(blocks), int(block) * int(free)
    return LogDir(path, size, left, bounded=path != LOG_DIR, writable=writable == "yes")


class NodesWorld:
    """Operations of faults on node processes, by the protocol `faults.runtime.world.NodeControl`."""

    _cluster: Cluster

    kill = _on_node(KafkaNode.kill)
    crash = _on_node(KafkaNode.crash)
    vanish = _on_node(KafkaNode.vanish)
    dial_node = _on_node(KafkaNode.dial)
    stop = _on_node(KafkaNode.shut_down)
    start = _on_node(KafkaNode.restart)
    pause = _on_node(KafkaNode.pause)
    resume = _on_node(KafkaNode.resume)
    state = _on_node(KafkaNode.state)

    def has_hosts(self) -> bool:
        return self._cluster.spec.hosts

    def has_pods(self) -> bool:
        return False

    def pods_return(self) -> bool:
        return False

    async def delete_pod(self, broker: BrokerId, grace_ms: int | None, *, evict: bool = False) -> int:  # noqa: ARG002
        raise FaultError(f"node {broker} is a container of the Docker engine, and no pod")

    async def machines(self) -> Mapping[BrokerId, str]:
        return {}

    async def cordon(self, machine: str, fault: str) -> None:  # noqa: ARG002
        raise FaultError(f"there is no Kubernetes node {machine}: the nodes are containers of the Docker engine")

    uncordon = cordon

    async def cordoned(self, machine: str, fault: str) -> bool:  # noqa: ARG002
        return False

    def racks(self) -> Mapping[BrokerId, str]:
        return {BrokerId(node.id): node.rack for node in self._cluster.spec.topology.nodes}


class MachineWorld:
    """Operations of faults on nodes' resources and disks, by the protocol `faults.runtime.world.MachineControl`."""

    _cluster: Cluster

    @in_thread
    def limits(self, broker: BrokerId) -> Limits:
        container = self._cluster.nodes[broker].container
        container.reload()
        config = container.attrs["HostConfig"]
        quota_us, period_us = config["CpuQuota"], config["CpuPeriod"] or _PERIOD_US
        return Limits(quota_us / period_us if quota_us > 0 else None, config["Memory"] or None)

    @in_thread
    def limit(self, broker: BrokerId, limits: Limits) -> None:
        container = self._cluster.nodes[broker].container
        container.reload()
        changes: dict[str, Any] = {"cpu_period": _PERIOD_US}
        changes["cpu_quota"] = -1 if limits.cpus is None else round(limits.cpus * _PERIOD_US)
        if limits.memory_bytes is not None:
            if not container.attrs["HostConfig"]["Memory"]:
                raise FaultError(
                    f"the container {container.name} has no memory limit, and Docker can't take one away again: start "
                    "it with one (docker run --memory)"
                )
            changes |= dict.fromkeys(("mem_limit", "memswap_limit"), limits.memory_bytes)
        with engine.docker_errors(ClusterError, f"limit the resources of {container.name}"):
            container.update(**changes)

    @in_thread
    def throttled(self, broker: BrokerId) -> Throttling:
        data = self._stats(broker).get("cpu_stats", {}).get("throttling_data", {})
        return Throttling(data.get("periods", 0), data.get("throttled_periods", 0), data.get("throttled_time", 0) / 1e9)

    @in_thread
    def memory_used(self, broker: BrokerId) -> int:
        """Return the bytes of memory that the broker's container uses."""
        return int(self._stats(broker).get("memory_stats", {}).get("usage", 0))

    @in_thread
    def log_dirs(self, broker: BrokerId) -> Sequence[LogDir]:
        """Return the size and writability of a broker's log directories, as the broker's user sees them."""
        node = self._cluster.nodes[broker]
        paths = self._cluster.spec.log_dirs(node.node)
        return [log_dir_in(run_in_node(node, log_dir_script(path), path), path) for path in paths]

    @in_thread
    def offline_log_dirs(self, broker: BrokerId) -> frozenset[str]:
        results = self._cluster.admin.ask(DescribeLogDirsRequest(topics=None), only=broker).results
        return frozenset(item.log_dir for item in results if item.error_code is ErrorCode.kafka_storage_error)

    @in_thread
    def fill(self, broker: BrokerId, log_dir: str) -> None:
        if log_dir == LOG_DIR:
            raise FaultError(
                f"the log directory {log_dir} is on the Docker engine's own disk, which must not be filled; "
                "set `cluster.disks` in the plan"
            )
        self._beside(broker, log_dir, f"dd if=/dev/zero of={log_dir}/{_FILLER} bs=64k 2>/dev/null || true")

    @in_thread
    def empty(self, broker: BrokerId, log_dir: str) -> None:
        self._beside(broker, log_dir, f"rm -f {log_dir}/{_FILLER}")

    @in_thread
    def seal(self, broker: BrokerId, log_dir: str) -> None:
        self._beside(broker, log_dir, f"chown -R {_NOBODY_UID} {log_dir} && chmod -R a-w {log_dir}")

    @in_thread
    def unseal(self, broker: BrokerId, log_dir: str) -> None:
        user = self._beside(broker, log_dir, "id -u", root=False).strip()
        self._beside(broker, log_dir, f"chown -R {user} {log_dir} && chmod -R u+w {log_dir}")

    @in_thread
    def block_device(self, broker: BrokerId) -> BlockDevice | None:
        return block_device_of(self._cluster.nodes[broker].container)

    @in_thread
    def set_disk_defects(self, broker: BrokerId, defects: DiskDefects) -> None:
        set_defects(self._cluster.nodes[broker].container, defects)

    @in_thread
    def disk_counts(self, broker: BrokerId) -> DiskCounts:
        counts = disk_counts(self._cluster.nodes[broker].container).values()
        return DiskCounts(*(sum(count[name] for count in counts) for name in ("delayed", "errors")))

    @in_thread
    def write_ms(self, broker: BrokerId) -> float | None:
        write = f"dd if=/dev/zero of={LOG_DIR}/{_PROBE} bs=4096 count=1 conv=notrunc,fsync 2>&1 || echo failed"
        match = _DD_TIME.search(run_in_node(self._cluster.nodes[broker], write, LOG_DIR))
        return float(match[1]) * 1000 if match else None

    @in_thread
    def settle_disk(self, broker: BrokerId) -> None:
        flush = f"find {LOG_DIR} -type f -exec sync {{}} + 2>/dev/null"
        self._beside(broker, LOG_DIR, f"for attempt in 1 2 3 4 5; do {flush} && break; done")

    @in_thread
    def damage_log(self, broker: BrokerId, damage: LogDamage) -> tuple[str, str]:
        before, after = self._beside(broker, LOG_DIR, damage_script(LOG_DIR, damage)).splitlines()
        return before, after

    @in_thread
    def cut_power(self, brokers: Collection[BrokerId]) -> frozenset[BrokerId]:
        shut_down = cut_power([self._cluster.nodes[broker] for broker in brokers])
        return frozenset(BrokerId(node.node.id) for node in shut_down)

    @in_thread
    def restore_power(self, brokers: Collection[BrokerId]) -> None:
        restore_power([self._cluster.nodes[broker] for broker in brokers])

    def _beside(self, broker: BrokerId, log_dir: str, script: str, *, root: bool = True) -> str:
        return run_on_volume(self._cluster.nodes[broker].container, log_dir, script, root=root)

    def _stats(self, broker: BrokerId) -> Mapping[str, Any]:
        stats: Mapping[str, Any] = self._cluster.nodes[broker].container.stats(stream=False, one_shot=True)
        return stats


class GcWorld:
    """Operations of faults on the garbage collections of nodes, by the protocol `faults.runtime.world.GcControl`."""

    _cluster: Cluster

    def has_gc_pauses(self) -> bool:
        return self._cluster.spec.gc_pauses

    @in_thread
    def set_gc_pauses(self, broker: BrokerId, pauses: GcPauses) -> None:
        run_in_node(self._cluster.nodes[broker], preloads.gc_script(pauses), preloads.GC_DIR)

    @in_thread
    def gc_pauses_set(self, broker: BrokerId) -> bool:
        return int(run_in_node(self._cluster.nodes[broker], preloads.READ_EVERY, preloads.GC_DIR)) != 0

    @in_thread
    def gc_stops_ms(self, broker: BrokerId) -> Sequence[float]:
        return preloads.stops_ms(run_in_node(self._cluster.nodes[broker], preloads.READ_STOPS, preloads.GC_DIR))


class ClocksWorld:
    """Operations of faults on the wall clocks of nodes, by the protocol `faults.runtime.world.ClockControl`."""

    _cluster: Cluster

    def has_clocks(self) -> bool:
        return self._cluster.spec.clocks

    @in_thread
    def set_clock(self, broker: BrokerId, shift: ClockShift) -> None:
        run_in_node(self._cluster.nodes[broker], preloads.clock_script(shift), preloads.CLOCK_DIR)

    @in_thread
    def clock_error_ms(self, broker: BrokerId) -> float:
        return preloads.clock_error_ms(self._cluster.admin, self._cluster.spec.topology.broker_ids, broker)


class UpgradesWorld:
    """Upgrades of nodes to other Kafka versions, by the protocol `faults.runtime.world.Upgradable`."""

    _cluster: Cluster

    version = _on_node(KafkaNode.version)
    supported_features = delegate("_cluster.admin", settings.supported)
    features = delegate("_cluster.admin", settings.finalised)
    raise_feature = delegate("_cluster.admin", settings.set_level)

    @in_thread
    def reported_version(self, broker: BrokerId) -> str:
        container = self._cluster.nodes[broker].container
        container.reload()
        started = datetime.fromisoformat(container.attrs["State"]["StartedAt"][:19] + "+00:00")
        return next(iter(_VERSION_LINE.findall(output(container, started))[-1:]), "")

    async def fetch(self, version: str) -> None:
        await asyncio.to_thread(self._image, version)

    @in_thread
    def replace(self, broker: BrokerId, version: str) -> None:
        replace(self._cluster.nodes[broker], self._image(version))

    def _image(self, version: str) -> str:
        client = next(iter(self._cluster.nodes.values())).container.client
        return engine.kafka_image(client, version, lambda _: None).name
