"""What of a plan can't be done to an attached cluster: refused here, with the reason, before anything is dialled.

Workloads run; Kafka's own faults do, on the topics that the plan names; faults on links do, on the proxies that it
names; faults on clients do, since those are ours. Whatever needs a container, a network or a proxy of our own does not.
What only the cluster itself can tell (who leads, say) is refused when the fault is injected:
``harness/world/attached.py``.
"""

from collections.abc import Iterator

from aftershock.faults import links, roles
from aftershock.faults.attach import Attach
from aftershock.faults.draft import Draft
from aftershock.faults.fault import Fault
from aftershock.faults.problem import Loc, Problem, did_you_mean

FAMILIES = ("link", "Kafka", "client")
_BROKER = ("broker",)  # where a fault of Kafka's says whose settings or sessions it touches
_OURS = "we did not start its processes, disks and networks"
_SECURITY = ("sasl.", "ssl.", "security.")
_NEEDS = {
    "move_controller": "it restarts, pauses or kills a node, and we did not start those",
    "kill_controller": "it kills a node, and we did not start those",
    "fence_broker": "it cuts the link between a broker and the controllers, and that is not ours",
    "recreate_topic": "it deletes a topic; it may where `attach.create` names that",
    "delete_records": "it deletes records; it may where `attach.create` names their topic",
}


def attached(draft: Draft) -> Iterator[Problem]:
    """Everything that asks for more of an attached cluster than its plan may; nothing for a cluster of our own."""
    attach = draft.attach
    if attach is None:
        return
    yield from _created(draft, attach)
    yield from _standing(draft, attach)
    yield from _settings(draft)
    for said in draft.faults.said:
        yield from _fault(said.fault, said.loc, attach)


def _created(draft: Draft, attach: Attach) -> Iterator[Problem]:
    known = {topic.name for topic in draft.topics.values()} | draft.unreadable_topics
    for index, name in enumerate(attach.create):
        if name not in known:
            sentence = f"the topic `{name}` is not among the plan's `topics`; {did_you_mean(name, known)}"
            yield Problem(("cluster", "attach", "create", index), sentence)


def _standing(draft: Draft, attach: Attach) -> Iterator[Problem]:
    for index, workload in draft.workloads.items():
        for part in ("produce", "consume", "commit"):
            rack = getattr(getattr(workload, part), "rack", None)
            if rack not in (None, attach.rack):
                sentence = f"the clients of an attached cluster stand in one place, its `rack`, here {attach.rack}"
                yield Problem(("workloads", index, part, "rack"), f"{sentence}: take this away")


def _settings(draft: Draft) -> Iterator[Problem]:
    """Those of a program, which may be any; of the other clients' nothing of the kind is allowed anyway."""
    for index, workload in draft.workloads.items():
        for name, arm in workload.arms.items():
            for setting in arm.settings:
                if arm.client == "exec" and setting.startswith(_SECURITY):
                    sentence = f"`{setting}` is given to the program by `attach.security`: take it away"
                    yield Problem(("workloads", index, "arms", name, "settings", setting), sentence, on_key=True)


def _fault(fault: Fault, loc: Loc, attach: Attach) -> Iterator[Problem]:
    if why := _refusal(fault, attach):
        sentence = f"a {fault.kind} is refused on an attached cluster: {why}"
        yield Problem((*loc, "kind"), f"{sentence}; take it away, or have us launch the cluster")
        return
    for place, topic in fault.topics().items():
        yield from _topic(topic, (*loc, *place))
    for place, link in fault.links().items():
        yield from _link(links.parse(link), (*loc, *place), attach)
    if fault.family == "Kafka" and (broker := fault.roles().get(_BROKER)):
        yield from _broker(broker, (*loc, *_BROKER), attach)


def _refusal(fault: Fault, attach: Attach) -> str | None:
    if fault.family not in FAMILIES:
        return _OURS
    spared = {*fault.topics().values()} - {*attach.create}
    if fault.kind in ("recreate_topic", "delete_records") and not spared:
        return None
    return _NEEDS.get(fault.kind)


def _topic(topic: str, loc: Loc) -> Iterator[Problem]:
    if topic.startswith("__"):
        yield Problem(loc, f"`{topic}` belongs to everybody on an attached cluster: name a topic of the plan's")


def _link(link: links.Selector, loc: Loc, attach: Attach) -> Iterator[Problem]:
    if not isinstance(link, links.ToBroker) or link.channel != "client":
        yield Problem(loc, "an attached cluster has links from clients only: say `client(…) -> broker(…)`")
    elif not attach.proxies:
        yield Problem(loc, "no link can be touched: name your `toxiproxy` and its `proxies` under `attach`")
    elif link.source not in ("*", attach.rack):
        yield Problem(loc, f"the clients stand in rack {attach.rack}, so no link leaves {link.source}: say that")
    elif link.role and isinstance(role := roles.parse(link.role), roles.Node):
        reached = sorted(attach.proxies.values())
        if role.broker not in reached:
            there = ", ".join(map(str, reached))
            yield Problem(loc, f"none of the `proxies` leads to broker {role.broker}; they lead to {there}")


def _broker(text: str, loc: Loc, attach: Attach) -> Iterator[Problem]:
    role = roles.parse(text)
    if not attach.brokers or (isinstance(role, roles.Node) and role.broker not in attach.brokers):
        who = f"broker {text}" if isinstance(role, roles.Node) else "a broker"
        yield Problem(loc, f"it touches {who}, which `attach.brokers` doesn't name: name it there")
