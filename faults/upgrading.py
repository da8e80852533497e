"""Versions of nodes and what an upgrade may still be taken back of: the rules that its fault and its undo share.

Rules. A node of any version serves a cluster as long as it knows the finalised ``metadata.version`` (KIP-778): so
until that is raised each node can go back to its old image on the same disk. Once it is raised, no node of the old
version would start again, and 4.3's level can't be lowered either (MetadataVersion.java: IBP_4_3_IV0 changed the
metadata's format). Then the way that is left is forward: every node runs, of its new version.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aftershock.errors import FaultError
from aftershock.faults.record import Clock
from aftershock.faults.roles import brokers_of
from aftershock.faults.values import BrokerId
from aftershock.faults.waiting import patiently, until
from aftershock.faults.world import World

METADATA_VERSION = "metadata.version"
BACK_DEADLINE_MS = 45_000


def minor(version: str) -> tuple[int, ...]:
    """``4.1.2`` -> (4, 1): the part of a version that has a metadata level of its own."""
    return tuple(int(part) for part in version.split(".")[:2])


async def roll_back(args: Mapping[str, Any], world: World, clock: Clock) -> None:
    """Every node runs, of the version it had: ``{"nodes": [[node, version], ...], "level": metadata.version then}``.

    One after the other, as far as the cluster lets that be. FaultError if a node could not be put back.
    """
    await _start_all(args["nodes"], world)
    finalised = await patiently(world.features, clock, BACK_DEADLINE_MS)
    if finalised.get(METADATA_VERSION, 0) > args["level"]:
        return
    for node, version in args["nodes"]:
        if await world.version(BrokerId(node)) != version:
            await _whole_again(world, clock)
            await world.replace(BrokerId(node), version)


async def missing(world: World) -> str | None:
    """None once every broker is registered and every ISR is full."""
    if away := sorted(brokers_of(world) - await world.registered()):
        return f"node {away[0]} is not registered"
    behind = [state for state in await world.partitions() if set(state.isr) != set(state.replicas)]
    return f"{len(behind)} partitions lack a replica, {behind[0].topic}/{behind[0].partition} first" if behind else None


async def _start_all(nodes: Sequence[tuple[int, str]], world: World) -> None:
    for node, _ in nodes:
        if await world.state(BrokerId(node)) == "exited":
            await world.start(BrokerId(node))


async def _whole_again(world: World, clock: Clock) -> None:
    """Wait, but not for ever: another fault may keep it from being whole, and going back is owed all the same."""
    with suppress(FaultError):
        await until(lambda: missing(world), clock, BACK_DEADLINE_MS)
