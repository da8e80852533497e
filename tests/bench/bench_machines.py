"""Sick machines, asked against observed; exits 1 where a limit is missed: ``python tests/bench/bench_machines.py``.

Two clusters run side by side, one plain and one with all layers. Printed are the p99 of produce latency with idle
layers over that without (at most 1.2, median of rounds in turns); the share of packets that were dropped when 5 %
were asked for (within 0.5 points); the delay of a response (within 2 ms or 5 %), and for how long after its removal
it was felt (100 ms); the clock of a broker that is an hour ahead (within 20 ms); and the time from the start of a
node whose power was cut until it is back in all its ISRs (12 s).
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from aftershock.faults.kinds.fault import InjectionContext
from aftershock.faults.kinds.process.base import wait_until_in_service
from aftershock.faults.sections.cluster import BlockDevice
from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.faults.targets.values import BrokerId, ClockShift, Link, PacketChange, Stream
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership
from aftershock.harness.safety.rundir import RunClock
from aftershock.harness.world.world import ClusterWorld
from aftershock.tests.contract.load import Load, new_topic
from aftershock.workloads.load.fleet import Fleet

SECONDS, ROUNDS = 15, 5
LINK = Link("client_a-k2", "client", "a", BrokerId(2))
LINKS = ("client_a-k1", "client_a-k2", "client_a-k3")
STREAMS: tuple[Stream, ...] = ("upstream", "downstream")
FAULT, NODE = "bench", BrokerId(2)
LAYERED = ClusterPlan(block_device=BlockDevice(layer=True), packets=True, clocks=True, hosts=True, gc_pauses=True)
LIMIT_MS = 5_000
_IN_A_ROW = 3  # late responses that count as delayed


def produce(cluster: Cluster, home: Path, rate_per_s: int, during: Callable[[Fleet], Awaitable[None]]) -> float:
    """Return the p99 of produce latency in ms, of the second half of the time that ``during`` takes."""
    load = Load(cluster, home, new_topic(cluster, home.name, 3))
    load.run([load.produce("sends", "confluent", rate_per_s=rate_per_s)], SECONDS, during=during)
    late = sorted(load.of("sends"), key=lambda row: row["intended_us"])[len(load.of("sends")) // 2 :]
    return float(np.percentile([(row["done_us"] - row["intended_us"]) / 1e3 for row in late], 99))


def idle_layers(plain: Cluster, layered: Cluster, home: Path) -> float:
    async def wait(_fleet: Fleet) -> None:
        await asyncio.sleep(SECONDS)

    ratios = []
    for number in range(ROUNDS):
        before_ms, after_ms = (
            produce(cluster, home / f"{name}-{number}", 100, wait)
            for name, cluster in (("plain", plain), ("layered", layered))
        )
        print(f"  p99 {before_ms:.1f} ms without layers, {after_ms:.1f} ms with idle layers")
        ratios.append(after_ms / before_ms)
    return statistics.median(ratios[1:])  # the first round warms the JVMs


def dropped_share(layered: Cluster, world: ClusterWorld, home: Path) -> float:
    share = 0.0

    async def lose(_fleet: Fleet) -> None:
        nonlocal share
        streams = [(proxy, stream) for proxy in LINKS for stream in STREAMS]
        await world.change_packets(FAULT, streams, PacketChange("drop", 0.05))
        await asyncio.sleep(3 * SECONDS)
        counts = await world.packet_counts(FAULT)
        await world.remove_packet_rules(FAULT)
        share = counts.changed / counts.seen
        print(f"  {counts.changed} of {counts.seen} packets dropped")

    produce(layered, home / "lossy", 300, lose)
    return share


async def delay(world: ClusterWorld, asked_ms: int) -> tuple[float, float]:
    """Return by how much responses are later in ms, and for how long after its removal the delay is felt."""
    probe = await world.dial(LINK)
    samples: list[tuple[float, float]] = []

    async def sample(seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            begun_s = time.monotonic()
            samples.append((begun_s, (await probe.ask(0, LIMIT_MS)).ms))

    await sample(1)
    before_ms = statistics.median(ms for _, ms in samples)
    await world.change_packets(FAULT, [(LINK.proxy, "downstream")], PacketChange("delay", 1.0, asked_ms))
    samples.clear()
    await sample(4)
    observed_ms = statistics.median(ms for _, ms in samples) - before_ms
    sampling = asyncio.create_task(sample(2))
    removed_s = time.monotonic()
    await world.remove_packet_rules(FAULT)
    await sampling
    await probe.hang_up()
    late = [ms > before_ms + asked_ms / 2 for _, ms in samples]
    # a single late response may be the host's
    last = max(number for number in range(len(late) - _IN_A_ROW) if all(late[number : number + _IN_A_ROW]))
    begun_s, ms = samples[last + _IN_A_ROW - 1]
    return observed_ms, max(0.0, (begun_s + ms / 1000 - removed_s) * 1000)


async def clock_error_ms(world: ClusterWorld, asked_ms: int) -> float:
    await world.set_clock(NODE, ClockShift(offset_ms=asked_ms))
    try:
        return statistics.median([await world.clock_error_ms(NODE) for _ in range(9)]) - asked_ms
    finally:
        await world.set_clock(NODE, ClockShift())


async def until_ready_s(world: ClusterWorld) -> float:
    await world.cut_power([NODE])
    await asyncio.sleep(2)
    begun_s = time.monotonic()
    await world.restore_power([NODE])
    await wait_until_in_service(NODE, InjectionContext(world, RunClock.starting_now(), FAULT))
    return time.monotonic() - begun_s


def main() -> int:
    client, missed = engine.connect(), False

    def judge(what: str, observed: float, limit: float, unit: str) -> None:
        nonlocal missed
        missed = missed or observed > limit
        print(f"{'MISS' if observed > limit else 'ok  '} {what}: {observed:.2f} {unit}, at most {limit:g}", flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-") as home, ExitStack() as stack:
        clusters = {}
        for name, plan in (("plain", ClusterPlan()), ("layered", LAYERED)):
            spec, run_id = ClusterSpec.of(plan), f"{Path(home).name.lower()}-{name}"
            folder = Path(home) / f"cluster-{name}"
            folder.mkdir()
            stack.callback(ownership.remove_run, client, run_id)
            images = images_for(client, spec, print)
            clusters[name] = stack.enter_context(closing(launch(spec, run_id, folder, images, print)))
        world = ClusterWorld(clusters["layered"])
        judge("p99 with idle layers over p99 without", idle_layers(**clusters, home=Path(home)), 1.2, "times")
        points = abs(dropped_share(clusters["layered"], world, Path(home)) - 0.05) * 100
        judge("dropped packets, difference from 5 %", points, 0.5, "points")
        for asked_ms in (20, 200):
            observed_ms, felt_ms = asyncio.run(delay(world, asked_ms))
            judge(f"delay, difference from {asked_ms} ms", abs(observed_ms - asked_ms), max(2.0, 0.05 * asked_ms), "ms")
            judge(f"delay of {asked_ms} ms, felt after its removal", felt_ms, 100.0, "ms")
        judge("clock, difference from an hour", abs(asyncio.run(clock_error_ms(world, 3_600_000))), 20.0, "ms")
        judge("start of a node after a power cut, until it is in service", asyncio.run(until_ready_s(world)), 12.0, "s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
