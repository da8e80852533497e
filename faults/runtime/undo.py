"""Undo verbs, a closed set of actions that can heal every fault from any process, not only the injecting process.

Each undo verb is idempotent, so a repeated undo changes nothing and raises nothing. An undo that can't be performed
raises FaultError, or the AftershockError of the failed operation.

The undo of a changed setting restores the resource's dynamic value of the setting, or removes the dynamic value
(KIP-226), so that the value from the server's file or Kafka's default applies again.

The undo of an upgrade goes back to the old Kafka version only until ``metadata.version`` is raised. After that, nodes
of the old version don't start, and the level of Kafka 4.3 can't be lowered (MetadataVersion.java, IBP_4_3_IV0), so the
undo leaves every node in the new version.

``verify_undo`` verifies in the cluster that everything that an undo restores is as before the fault. The executor of
faults verifies each undo, and ``aftershock heal`` verifies the undos of a dead executor's faults. The
``confirm_healed`` of an injection checks further effects of the heal (links answer, a node is back in every ISR).
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aftershock.errors import AftershockError, FaultError
from aftershock.faults.runtime.record import Clock, Undo
from aftershock.faults.runtime.waiting import retry_refused, wait_until
from aftershock.faults.targets.roles import brokers_of
from aftershock.faults.targets.values import (
    BrokerId,
    ClockShift,
    DiskDefects,
    GcPauses,
    Resource,
    Setting,
    TopicPartition,
)
from aftershock.faults.targets.world import World

Values = Mapping[str, str | None]
Assignment = Mapping[TopicPartition, tuple[BrokerId, ...]]

NO_SETTING = Setting(None, None)
METADATA_VERSION = "metadata.version"
RESTORE_DEADLINE_MS = 30_000
ROLL_BACK_DEADLINE_MS = 45_000


async def perform(undo: Undo, world: World, clock: Clock) -> None:  # noqa: C901, PLR0912, PLR0915 -- a case for each verb
    """Undo one fault."""
    args = undo.args
    match undo.verb:
        case "start":
            await world.start(BrokerId(args["broker"]))
        case "resume":
            await world.resume(BrokerId(args["broker"]))
        case "uncordon":
            await world.uncordon(args["machine"], args["fault"])
        case "remove_toxics":
            await _await_all(world.remove_toxic(proxy, name) for proxy, name in args["toxics"])
        case "enable_proxies":
            await _await_all(world.enable(proxy) for proxy in args["proxies"])
        case "redirect_proxies":
            await _await_all(world.redirect(proxy, upstream) for proxy, upstream in args["upstreams"])
        case "restore_assignment":
            assignment = assignment_from_json(args["assignment"])
            if in_progress := await world.reassigning() & assignment.keys():
                await world.cancel_reassign(sorted(in_progress))
            if await pending_reassignment(assignment, world) is not None:
                await world.reassign(assignment)
            await wait_until(lambda: pending_reassignment(assignment, world), clock, RESTORE_DEADLINE_MS)
            if partitions := frozenset((topic, partition) for topic, partition in args["elect"]):
                await wait_until(lambda: elect_preferred_leaders(partitions, world), clock, RESTORE_DEADLINE_MS)
        case "restore_settings":
            resource = (args["of"], args["name"], args["settings"])
            await wait_until(lambda: restore_settings(*resource, world), clock, RESTORE_DEADLINE_MS)
        case "create_topic":
            if args["topic"] not in await world.topic_ids():
                replicas = {partition: tuple(map(BrokerId, ids)) for partition, ids in args["replicas"]}
                await world.create_topic(args["topic"], replicas, args["config"])
        case "end_flood":
            await world.end_flood(args["fault"])
            if args["topic"] in await world.topic_ids():
                await world.delete_topic(args["topic"])
            # a broker that is overloaded deletes the topic late
            await wait_until(lambda: _still_listed(args["topic"], world), clock, RESTORE_DEADLINE_MS)
        case "restore_limits":
            await set_limits(world, BrokerId(args["broker"]), _limits_in(args))
        case "reopen_log_dir":
            broker, log_dir = BrokerId(args["broker"]), args["log_dir"]
            await world.empty(broker, log_dir)
            await world.unseal(broker, log_dir)
            # a broker that marked the directory offline uses it again after a restart
            if await world.state(broker) == "running" and log_dir in await world.offline_log_dirs(broker):
                await world.stop(broker)
            await world.start(broker)
        case "restore_disk":
            broker = BrokerId(args["broker"])
            await world.set_disk_defects(broker, DiskDefects())
            if await world.state(broker) == "exited":  # it starts once the kernel has reported all earlier write errors
                await world.settle_disk(broker)
            await world.start(broker)
        case "restore_power":
            await world.restore_power([BrokerId(node) for node in args["brokers"]])
        case "restore_clock":
            await world.set_clock(BrokerId(args["broker"]), ClockShift())
        case "stop_gc_pauses":
            await world.set_gc_pauses(BrokerId(args["broker"]), GcPauses())
        case "remove_packet_rules":
            await world.remove_packet_rules(args["fault"])
        case "roll_back":
            await _roll_back(args, world, clock)
        case "start_clients":
            await _await_all(world.start_client(worker) for worker in args["clients"])
        case "leave_clients":
            running = [client.name for client in await world.clients() if client.state != "exited"]
            await _await_all(world.leave_client(worker) for worker in args["clients"] if worker in running)
        case "resume_clients":
            await _await_all(world.resume_client(worker) for worker in args["clients"])
        case "resume_polling":
            await _await_all(world.resume_polling(worker) for worker in args["clients"])
        case "remove_rules":
            await _await_all(world.remove_rule(name) for name in args["rules"])
        case "all_of":
            await _await_all(perform(Undo(part["verb"], part["args"]), world, clock) for part in args["undos"])
        case "nothing":
            return
        case _:
            raise FaultError(f"the undo `{undo.verb}` is unknown; heal with the version that wrote the journal")


async def _await_all(heals: Iterable[Awaitable[None]]) -> None:
    """Await each heal, even after another heal has failed; raise FaultError with the failures of all heals."""
    failures = []
    for heal in heals:
        try:
            await heal
        except AftershockError as error:
            failures.append(str(error))
    if failures:
        raise FaultError("; ".join(failures))


def values_equal(left: str | None, right: str | None) -> bool:
    """Return True if Kafka treats two setting values as equal, although it may format the same number differently."""

    def number(text: str | None) -> float | None:
        try:
            return None if text is None else float(text)
        except ValueError:
            return None

    return left == right or number(left) == number(right) is not None


async def set_limits(world: World, broker: BrokerId, changes: Mapping[str, Any]) -> None:
    """Set some limits of a node, fields of ``Limits``; the others stay, because another fault may have lowered them."""
    await world.limit(broker, replace(await world.limits(broker), **changes))


def _limits_in(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that an undo restores; that of an older version names both."""
    return {name: args[name] for name in ("cpus", "memory_bytes") if name in args}


async def settings_not_in_force(of: Resource, name: str, values: Values, world: World) -> list[str]:
    """Return the names of the settings whose value in force at the resource differs from ``values``."""
    current = await world.config(of, name)
    return sorted(key for key, value in values.items() if not values_equal(current.get(key, NO_SETTING).value, value))


async def restore_settings(of: Resource, name: str, before: Values, world: World) -> str | None:
    """Restore the dynamic values of a resource's settings; return None if all were restored already, else a reason."""
    current = {key: setting.dynamic for key, setting in (await world.config(of, name)).items()}
    different = {key: value for key, value in before.items() if not values_equal(current.get(key), value)}
    if not different:
        return None
    await world.alter_config(of, name, different)
    keys = sorted(different)
    values = ", ".join(str(current.get(key)) for key in keys)
    return f"{', '.join(keys)} of {of} {name} should have the values from before the fault and not {values}"


def assignment_as_json(assignment: Assignment) -> list[list[Any]]:
    """Return a replica assignment as ``[[topic, partition, [replicas]], ...]``, sorted."""
    return [[topic, partition, list(replicas)] for (topic, partition), replicas in sorted(assignment.items())]


def assignment_from_json(rows: list[list[Any]]) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Reverse ``assignment_as_json``."""
    return {(topic, partition): tuple(map(BrokerId, replicas)) for topic, partition, replicas in rows}


async def pending_reassignment(assignment: Assignment, world: World) -> str | None:
    """Return None if every partition has its requested replicas and no reassignment is in progress, else a reason."""
    moving = await world.reassigning() & assignment.keys()
    states = await world.partitions(sorted({topic for topic, _ in assignment}))
    current = {(state.topic, state.partition): state.replicas for state in states}
    pending = [key for key, replicas in assignment.items() if current.get(key) != replicas or key in moving]
    return f"{len(pending)} of {len(assignment)} partitions are not yet reassigned" if pending else None


async def elect_preferred_leaders(partitions: frozenset[TopicPartition], world: World) -> str | None:
    """Request preferred elections; return None if ``replicas[0]`` leads every partition already, else a reason."""
    states = await world.partitions(sorted({topic for topic, _ in partitions}))
    led_by_others = [
        (state.topic, state.partition)
        for state in states
        if (state.topic, state.partition) in partitions and state.leader != state.replicas[0]
    ]
    if not led_by_others:
        return None
    await world.elect_preferred(led_by_others)
    return f"{len(led_by_others)} of {len(partitions)} partitions are not led by their preferred replica"


def minor(version: str) -> tuple[int, ...]:
    """Return the part of a Kafka version that determines its metadata level, (4, 1) for ``4.1.2``."""
    return tuple(int(part) for part in version.split(".")[:2])


async def _roll_back(args: Mapping[str, Any], world: World, clock: Clock) -> None:
    """Start nodes one after the other, in their old Kafka versions if ``metadata.version`` was not raised.

    The undo's argument ``nodes`` is a list of pairs (node, old version), ``level`` the old ``metadata.version``.
    """
    for node, _ in args["nodes"]:
        if await world.state(BrokerId(node)) == "exited":
            await world.start(BrokerId(node))
    finalised = await retry_refused(world.features, clock, ROLL_BACK_DEADLINE_MS)
    if finalised.get(METADATA_VERSION, 0) > args["level"]:
        return
    for node, version in args["nodes"]:
        if await world.version(BrokerId(node)) != version:
            with suppress(FaultError):  # another fault may keep the cluster degraded; the roll-back goes on regardless
                await wait_until(lambda: _degradation(world), clock, ROLL_BACK_DEADLINE_MS)
            await world.replace(BrokerId(node), version)


async def _degradation(world: World) -> str | None:
    """Return None if every broker is registered and every ISR is full, else a reason."""
    if away := sorted(brokers_of(world) - await world.registered()):
        return f"broker {away[0]} is not registered with the controller"
    behind = [state for state in await world.partitions() if set(state.isr) != set(state.replicas)]
    if not behind:
        return None
    first = f"{behind[0].topic}/{behind[0].partition}"
    return f"{len(behind)} partitions have a replica that is not in sync; the first is {first}"


VERIFY_DEADLINE_MS = 60_000
CLOCK_ERROR_MS_MAX = 100.0
"""Largest error of a clock that counts as restored; a request on a busy host takes as long."""


async def verify_undo(undo: Undo, world: World, clock: Clock) -> None:
    """Wait until the undo has taken effect; after ``VERIFY_DEADLINE_MS``, raise FaultError with what is not undone."""
    await wait_until(lambda: remaining_effect(undo, world), clock, VERIFY_DEADLINE_MS)


async def _still_listed(topic: str, world: World) -> str | None:
    return f"the topic {topic} still exists" if topic in await world.topic_ids() else None


async def remaining_effect(undo: Undo, world: World) -> str | None:  # noqa: C901, PLR0912 -- a case for each verb
    """Return a sentence about something that an undo has not restored yet; None if all is as before the fault."""
    args = undo.args
    remaining: set[str] = set()  # names of the parts that are not as before, and a sentence about one of them
    sentence = "{}"
    match undo.verb:
        case "start" | "resume" | "restore_power" | "restore_disk":
            return await _not_running(args.get("brokers") or [args["broker"]], world)
        case "uncordon":
            remaining = {args["machine"]} if await world.cordoned(args["machine"], args["fault"]) else set()
            sentence = "the Kubernetes node {} takes no pods"
        case "restore_clock":
            error_ms = await world.clock_error_ms(BrokerId(args["broker"]))
            remaining = set() if abs(error_ms) <= CLOCK_ERROR_MS_MAX else {str(args["broker"])}
            sentence = f"the clock of node {{}} is {error_ms:.0f} ms ahead of this host's"
        case "stop_gc_pauses":
            remaining = {str(args["broker"])} if await world.gc_pauses_set(BrokerId(args["broker"])) else set()
            sentence = "garbage collections still stop the JVM of node {} again and again"
        case "remove_packet_rules":
            remaining = {args["fault"]} if await world.has_packet_rules(args["fault"]) else set()
            sentence = "the packet rules of the fault {} are still in force"
        case "roll_back":
            return await _not_running([node for node, _ in args["nodes"]], world)
        case "remove_toxics":
            toxics = await world.toxics()
            present = {(proxy, toxic.name) for proxy, on_proxy in toxics.items() for toxic in on_proxy}
            remaining = {
                f"the proxy {proxy} still has the toxic {name}"
                for proxy, name in args["toxics"]
                if (proxy, name) in present
            }
        case "enable_proxies":
            remaining, sentence = set(args["proxies"]) & await world.disabled(), "the proxy {} is disabled"
        case "redirect_proxies":
            upstreams = await world.upstreams()
            remaining = {proxy for proxy, upstream in args["upstreams"] if upstreams.get(proxy) != upstream}
            sentence = "the proxy {} does not lead to its own broker"
        case "restore_assignment":
            return await pending_reassignment(assignment_from_json(args["assignment"]), world)
        case "restore_settings":
            settings = await world.config(args["of"], args["name"])
            dynamic = {key: settings.get(key, NO_SETTING).dynamic for key in args["settings"]}
            remaining = {key for key, value in args["settings"].items() if not values_equal(dynamic[key], value)}
            sentence = f"the setting {{}} of {args['of']} {args['name']} does not have its value from before the fault"
        case "end_flood":
            remaining, sentence = {args["topic"]} & (await world.topic_ids()).keys(), "the topic {} still exists"
        case "create_topic":
            remaining, sentence = {args["topic"]} - (await world.topic_ids()).keys(), "there is no topic {}"
        case "restore_limits":
            limits = await world.limits(BrokerId(args["broker"]))
            before = replace(limits, **_limits_in(args))
            remaining = set() if limits == before else {str(args["broker"])}
            sentence = f"node {{}} has the limits {limits} and should have {before}"
        case "reopen_log_dir":
            if (not_running := await _not_running([args["broker"]], world)) is not None:
                return not_running
            remaining = {args["log_dir"]} & await world.offline_log_dirs(BrokerId(args["broker"]))
            sentence = f"the log directory {{}} of node {args['broker']} is offline"
        case "start_clients" | "resume_clients" | "leave_clients" | "resume_polling":
            return await _clients_differ(undo, world)
        case "remove_rules":
            remaining = set(args["rules"]) & (await world.rules()).keys()
            sentence = "the rule {} is still in force in the wire proxy"
        case "all_of":
            effects = [await remaining_effect(Undo(part["verb"], part["args"]), world) for part in args["undos"]]
            return next(filter(None, effects), None)
        case "nothing":
            return None
    return sentence.format(min(remaining)) if remaining else None


async def _clients_differ(undo: Undo, world: World) -> str | None:
    # clients of a run that has ended no longer exist and need no restoring
    states = {client.name: client.state for client in await world.clients() if client.name in undo.args["clients"]}
    if undo.verb == "resume_polling":
        beats = {client: await world.last_heartbeat(client) for client in states}
        silent = (client for client, beat in beats.items() if beat and not beat.polls)
        return next((f"the client {client} does not poll" for client in silent), None)
    wanted = "exited" if undo.verb == "leave_clients" else "running"
    others = (client for client, state in states.items() if state != wanted)
    return next((f"the client {client} is not {wanted}" for client in others), None)


async def _not_running(nodes: Sequence[int], world: World) -> str | None:
    states = {node: await world.state(BrokerId(node)) for node in nodes}
    return next((f"node {node} is {state}" for node, state in states.items() if state != "running"), None)
