"""Verification of an undo: check in the cluster that everything that the undo restores is as before.

Every heal ends here. The executor calls ``verify_undo`` after each undo, of any verb, and ``heal`` calls it for the
faults of a dead injector, which are known only from the journal. An injection may confirm more in ``confirm_healed``
(links answer, a node is back in every ISR).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aftershock.faults.runtime.record import Clock, Undo, Verb
from aftershock.faults.runtime.undo import NO_SETTING, assignment_from_json, pending_reassignment, values_equal
from aftershock.faults.runtime.waiting import wait_until
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.values import BrokerId, Limits

Args = Mapping[str, Any]
VERIFY_DEADLINE_MS = 60_000


async def verify_undo(undo: Undo, world: World, clock: Clock) -> None:
    """Return once the undo has taken hold; FaultError with the remaining effect after ``VERIFY_DEADLINE_MS``."""
    await wait_until(lambda: remaining_effect(undo, world), clock, VERIFY_DEADLINE_MS)


async def remaining_effect(undo: Undo, world: World) -> str | None:
    """Return what the undo has not restored yet, as a sentence; None if everything is as before."""
    return await _CHECKS[undo.verb](undo.args, world)


async def _node(args: Args, world: World) -> str | None:
    return await _running([args["broker"]], world)


async def _nodes(args: Args, world: World) -> str | None:
    return await _running([node for node, _ in args["nodes"]], world)


async def _running(nodes: Sequence[int], world: World) -> str | None:
    states = {node: await world.state(BrokerId(node)) for node in nodes}
    return next((f"node {node} is {state}" for node, state in states.items() if state != "running"), None)


async def _toxics(args: Args, world: World) -> str | None:
    toxics = await world.toxics()
    present = {(proxy, toxic.name) for proxy, on_proxy in toxics.items() for toxic in on_proxy}
    return _first({f"{proxy} has {name}" for proxy, name in args["toxics"] if (proxy, name) in present}, "{}")


async def _proxies_enabled(args: Args, world: World) -> str | None:
    return _first(set(args["proxies"]) & await world.disabled(), "{} is disabled")


async def _upstreams(args: Args, world: World) -> str | None:
    current = await world.upstreams()
    changed = {proxy for proxy, upstream in args["upstreams"] if current.get(proxy) != upstream}
    return _first(changed, "{} leads elsewhere")


async def _assignment(args: Args, world: World) -> str | None:
    return await pending_reassignment(assignment_from_json(args["assignment"]), world)


async def _settings(args: Args, world: World) -> str | None:
    current = await world.config(args["of"], args["name"])
    changed = {
        key for key, value in args["settings"].items() if not values_equal(current.get(key, NO_SETTING).dynamic, value)
    }
    return _first(changed, f"{{}} of {args['of']} {args['name']} is not as before")


async def _topic(args: Args, world: World) -> str | None:
    return _first({args["topic"]} - (await world.topic_ids()).keys(), "there is no topic {}")


async def _limits(args: Args, world: World) -> str | None:
    current, before = await world.limits(BrokerId(args["broker"])), Limits(args["cpus"], args["memory_bytes"])
    return None if current == before else f"node {args['broker']} has {current} and should have {before}"


async def _log_dir(args: Args, world: World) -> str | None:
    if (not_running := await _node(args, world)) is not None:
        return not_running
    offline = await world.offline_log_dirs(BrokerId(args["broker"]))
    return _first({args["log_dir"]} & offline, f"{{}} of node {args['broker']} is offline")


async def _clients(args: Args, world: World) -> str | None:
    """Return the effects on clients. Clients of a run that has ended no longer exist and need no restoring."""
    clients = await world.clients()
    down = {client.name for client in clients if client.name in args["clients"] and client.state != "running"}
    return _first(down, "{} does not run")


async def _rules(args: Args, world: World) -> str | None:
    return _first(set(args["rules"]) & (await world.rules()).keys(), "the rule {} is in force")


async def _all_of(args: Args, world: World) -> str | None:
    effects = [await remaining_effect(Undo(undo["verb"], undo["args"]), world) for undo in args["undos"]]
    return next(filter(None, effects), None)


async def _nothing(_args: Args, _world: World) -> None:
    return


def _first(names: set[str], sentence: str) -> str | None:
    return sentence.format(min(names)) if names else None


_CHECKS: Mapping[Verb, Callable[[Args, World], Awaitable[str | None]]] = {
    "start": _node,
    "resume": _node,
    "remove_toxics": _toxics,
    "enable_proxies": _proxies_enabled,
    "redirect_proxies": _upstreams,
    "restore_assignment": _assignment,
    "restore_settings": _settings,
    "create_topic": _topic,
    "restore_limits": _limits,
    "reopen_log_dir": _log_dir,
    "roll_back": _nodes,
    "start_clients": _clients,
    "resume_clients": _clients,
    "remove_rules": _rules,
    "all_of": _all_of,
    "nothing": _nothing,
}
