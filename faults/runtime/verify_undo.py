"""Verification in the cluster that everything that an undo restores is as before the fault.

The executor of faults verifies each undo, and ``aftershock heal`` verifies the undos of a dead executor's faults. The
``confirm_healed`` of an injection checks further effects of the heal (links answer, a node is back in every ISR).
"""

from collections.abc import Sequence

from aftershock.faults.runtime.record import Clock, Undo
from aftershock.faults.runtime.undo import NO_SETTING, assignment_from_json, pending_reassignment, values_equal
from aftershock.faults.runtime.waiting import wait_until
from aftershock.faults.targets.values import BrokerId, Limits
from aftershock.faults.targets.world import World

VERIFY_DEADLINE_MS = 60_000
CLOCK_ERROR_MS_MAX = 100.0
"""Largest error of a clock that counts as restored; a request on a busy host takes as long."""


async def verify_undo(undo: Undo, world: World, clock: Clock) -> None:
    """Wait until the undo has taken effect; after ``VERIFY_DEADLINE_MS``, raise FaultError with what is not undone."""
    await wait_until(lambda: remaining_effect(undo, world), clock, VERIFY_DEADLINE_MS)


async def remaining_effect(undo: Undo, world: World) -> str | None:  # noqa: C901, PLR0912 -- a case for each verb
    """Return a sentence about something that an undo has not restored yet; None if all is as before the fault."""
    args = undo.args
    remaining: set[str] = set()  # names of the parts that are not as before, and a sentence about one of them
    sentence = "{}"
    match undo.verb:
        case "start" | "resume" | "restore_power" | "restore_disk":
            return await _not_running(args.get("brokers") or [args["broker"]], world)
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
        case "create_topic":
            remaining, sentence = {args["topic"]} - (await world.topic_ids()).keys(), "there is no topic {}"
        case "restore_limits":
            limits, before = await world.limits(BrokerId(args["broker"])), Limits(args["cpus"], args["memory_bytes"])
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
