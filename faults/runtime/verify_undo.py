"""Whether an undo took hold: what it was to bring back, read back through the cluster.

The fault's own strike confirms more (that links answer, that the victim is in service); this is what any process can
ask that has no more than the journal's line.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aftershock.faults.runtime.record import Undo, Verb
from aftershock.faults.runtime.undo import NONE, agree, assignment_from, reassigned
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.values import BrokerId, Limits

Args = Mapping[str, Any]


async def owed(undo: Undo, world: World) -> str | None:
    """None if everything is as before, else what is not."""
    return await _OWED[undo.verb](undo.args, world)


async def _node(args: Args, world: World) -> str | None:
    return await _running([args["broker"]], world)


async def _nodes(args: Args, world: World) -> str | None:
    return await _running([node for node, _ in args["nodes"]], world)


async def _running(nodes: Sequence[int], world: World) -> str | None:
    states = {node: await world.state(BrokerId(node)) for node in nodes}
    return next((f"node {node} is {state}" for node, state in states.items() if state != "running"), None)


async def _toxics(args: Args, world: World) -> str | None:
    there = await world.toxics()
    ours = args["toxics"]
    left = {f"{proxy} has {name}" for proxy, name in ours if name in {toxic.name for toxic in there.get(proxy, ())}}
    return _first(left, "{}")


async def _shut(args: Args, world: World) -> str | None:
    return _first(set(args["proxies"]) & await world.disabled(), "{} is disabled")


async def _misled(args: Args, world: World) -> str | None:
    led = await world.upstreams()
    return _first({proxy for proxy, upstream in args["upstreams"] if led.get(proxy) != upstream}, "{} leads elsewhere")


async def _assignment(args: Args, world: World) -> str | None:
    return await reassigned(assignment_from(args["assignment"]), world)


async def _settings(args: Args, world: World) -> str | None:
    now = await world.config(args["of"], args["name"])
    others = {key for key, value in args["settings"].items() if not agree(now.get(key, NONE).dynamic, value)}
    return _first(others, f"{{}} of {args['of']} {args['name']} is not as before")


async def _topic(args: Args, world: World) -> str | None:
    return _first({args["topic"]} - (await world.topic_ids()).keys(), "there is no topic {}")


async def _limits(args: Args, world: World) -> str | None:
    now, wanted = await world.limits(BrokerId(args["broker"])), Limits(args["cpus"], args["memory_bytes"])
    return None if now == wanted else f"node {args['broker']} has {now} and should have {wanted}"


async def _log_dir(args: Args, world: World) -> str | None:
    if (missing := await _node(args, world)) is not None:
        return missing
    offline = await world.given_up(BrokerId(args["broker"]))
    return _first({args["log_dir"]} & offline, f"{{}} of node {args['broker']} is offline")


async def _clients(args: Args, world: World) -> str | None:
    """Those of a run that is over are gone, and owe nothing."""
    down = {each.name for each in await world.clients() if each.name in args["clients"] and each.state != "running"}
    return _first(down, "{} does not run")


async def _rules(args: Args, world: World) -> str | None:
    return _first(set(args["rules"]) & (await world.rules()).keys(), "the rule {} is in force")


async def _all_of(args: Args, world: World) -> str | None:
    found = [await owed(Undo(each["verb"], each["args"]), world) for each in args["undos"]]
    return next(filter(None, found), None)


async def _nothing(_args: Args, _world: World) -> None:
    return


def _first(left: set[str], sentence: str) -> str | None:
    return sentence.format(min(left)) if left else None


_OWED: Mapping[Verb, Callable[[Args, World], Awaitable[str | None]]] = {
    "start": _node,
    "resume": _node,
    "remove_toxics": _toxics,
    "enable_proxies": _shut,
    "redirect_proxies": _misled,
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
