"""Dynamic settings of brokers, topics and clients: put in force, read back, and put back as they were.

What a fault restores is the dynamic value of the very resource, or that it had none (KIP-226): the values below it, of
the server's file or Kafka's own, are then in force again by themselves.

Versions of nodes and what an upgrade may still be taken back of: the rules that its fault and its undo share.

Rules. A node of any version serves a cluster as long as it knows the finalised ``metadata.version`` (KIP-778): so
until that is raised each node can go back to its old image on the same disk. Once it is raised, no node of the old
version would start again, and 4.3's level can't be lowered either (MetadataVersion.java: IBP_4_3_IV0 changed the
metadata's format). Then the way that is left is forward: every node runs, of its new version.

Performing an undo: the closed set of verbs that heals every fault, also from another process.

Each verb is idempotent: undoing what is undone already changes nothing and raises nothing. Raises FaultError (or
whatever AftershockError the cluster answers with) when it could not be done.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.runtime.record import Clock, Undo
from aftershock.faults.runtime.waiting import patiently, until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.roles import brokers_of
from aftershock.faults.targets.values import BrokerId, Limits, Resource, Setting, TopicPartition

Values = Mapping[str, str | None]
NONE = Setting(None, None)


def agree(one: str | None, other: str | None) -> bool:
    """Whether two values are the same to Kafka, which writes numbers in its own way."""
    return one == other or _number(one) == _number(other) is not None


async def lacking(of: Resource, name: str, wanted: Values, world: World) -> list[str]:
    """The settings that are not in force as wanted, by what the resource itself says."""
    now = await world.config(of, name)
    return sorted(key for key, value in wanted.items() if not agree(now.get(key, NONE).value, value))


async def restored(of: Resource, name: str, before: Values, world: World) -> str | None:
    """Ask for the dynamic values of before where they differ; None once none does, else what is missing."""
    now = await world.config(of, name)
    others = {key: value for key, value in before.items() if not agree(now.get(key, NONE).dynamic, value)}
    if not others:
        return None
    await world.alter_config(of, name, others)
    return f"{', '.join(sorted(others))} of {of} {name} should be as before and not {_shown(others, now)}"


def _shown(others: Values, now: Mapping[str, Setting]) -> str:
    return ", ".join(str(now.get(key, NONE).dynamic) for key in sorted(others))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


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


RESTORE_DEADLINE_MS = 30_000
Assignment = Mapping[TopicPartition, tuple[BrokerId, ...]]


async def perform(undo: Undo, world: World, clock: Clock) -> None:  # noqa: C901, PLR0912 -- a case for each verb
    """Undo one fault."""
    args = undo.args
    match undo.verb:
        case "start":
            await world.start(BrokerId(args["broker"]))
        case "resume":
            await world.resume(BrokerId(args["broker"]))
        case "remove_toxics":
            await _all(world.remove_toxic(proxy, name) for proxy, name in args["toxics"])
        case "enable_proxies":
            await _all(world.enable(proxy) for proxy in args["proxies"])
        case "redirect_proxies":
            await _all(world.redirect(proxy, upstream) for proxy, upstream in args["upstreams"])
        case "restore_assignment":
            await _restore(assignment_from(args["assignment"]), args["elect"], world, clock)
        case "restore_settings":
            wanted = (args["of"], args["name"], args["settings"])
            await until(lambda: restored(*wanted, world), clock, RESTORE_DEADLINE_MS)
        case "create_topic":
            await _create(args, world)
        case "restore_limits":
            await world.limit(BrokerId(args["broker"]), Limits(args["cpus"], args["memory_bytes"]))
        case "reopen_log_dir":
            await _reopen(BrokerId(args["broker"]), args["log_dir"], world)
        case "roll_back":
            await roll_back(args, world, clock)
        case "start_clients":
            await _all(world.start_client(worker) for worker in args["clients"])
        case "resume_clients":
            await _all(world.resume_client(worker) for worker in args["clients"])
        case "remove_rules":
            await _all(world.remove_rule(name) for name in args["rules"])
        case "all_of":
            await _all(perform(Undo(each["verb"], each["args"]), world, clock) for each in args["undos"])
        case "nothing":
            return
        case _:
            raise FaultError(f"the undo `{undo.verb}` is unknown here; heal with the version that wrote the journal")


def assignment_as_json(assignment: Assignment) -> list[list[Any]]:
    """``[[topic, partition, [replicas]], ...]`` in order."""
    return [[topic, partition, list(replicas)] for (topic, partition), replicas in sorted(assignment.items())]


def assignment_from(rows: list[list[Any]]) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The reverse of ``assignment_as_json``."""
    return {(topic, partition): tuple(map(BrokerId, replicas)) for topic, partition, replicas in rows}


async def reassigned(assignment: Assignment, world: World) -> str | None:
    """None once every partition has these replicas and no move is under way, else what is missing."""
    moving = await world.reassigning() & assignment.keys()
    states = await world.partitions(topics_of(assignment))
    now = {(state.topic, state.partition): state.replicas for state in states}
    behind = [where for where, replicas in assignment.items() if now.get(where) != replicas or where in moving]
    return f"{len(behind)} of {len(assignment)} partitions are not yet reassigned" if behind else None


async def led_by_preferred(partitions: frozenset[TopicPartition], world: World) -> str | None:
    """Ask for a preferred election where it is needed; None once ``replicas[0]`` leads all of them."""
    states = await world.partitions(sorted({topic for topic, _ in partitions}))
    others = [
        (s.topic, s.partition) for s in states if (s.topic, s.partition) in partitions if s.leader != s.replicas[0]
    ]
    if not others:
        return None
    await world.elect_preferred(others)
    return f"{len(others)} of {len(partitions)} partitions are not led by their preferred replica"


def topics_of(assignment: Assignment) -> list[str]:
    """The topics an assignment names, sorted."""
    return sorted({topic for topic, _ in assignment})


async def _all(heals: Iterable[Awaitable[None]]) -> None:
    """One after the other; one that fails keeps none of the others from being tried."""
    failures = []
    for heal in heals:
        try:
            await heal
        except AftershockError as error:
            failures.append(str(error))
    if failures:
        raise FaultError("; ".join(failures))


async def _reopen(broker: BrokerId, log_dir: str, world: World) -> None:
    """Make a log directory usable; a broker that has given it up takes it back when it is started again."""
    await world.empty(broker, log_dir)
    await world.unseal(broker, log_dir)
    if await world.state(broker) == "running" and log_dir in await world.given_up(broker):
        await world.stop(broker)
    await world.start(broker)


async def _create(args: Mapping[str, Any], world: World) -> None:
    """Unless it is there."""
    if args["topic"] not in await world.topic_ids():
        replicas = {partition: tuple(map(BrokerId, ids)) for partition, ids in args["replicas"]}
        await world.create_topic(args["topic"], replicas, args["config"])


async def _restore(assignment: Assignment, elect: list[list[Any]], world: World, clock: Clock) -> None:
    under_way = await world.reassigning() & assignment.keys()
    if under_way:
        await world.cancel_reassign(sorted(under_way))
    if await reassigned(assignment, world) is not None:
        await world.reassign(assignment)
    await until(lambda: reassigned(assignment, world), clock, RESTORE_DEADLINE_MS)
    wanted = frozenset((topic, partition) for topic, partition in elect)
    if wanted:
        await until(lambda: led_by_preferred(wanted, world), clock, RESTORE_DEADLINE_MS)
