"""What the parts of a plan say of each other: names that must be declared, numbers that must fit the cluster."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from aftershock.faults import crew, links, roles
from aftershock.faults.draft import Draft
from aftershock.faults.fault import Fault
from aftershock.faults.lasting import end_ms
from aftershock.faults.plan import Arm, Cluster, Commit, Consume, Produce, Topic, Workload
from aftershock.faults.problem import Loc, Problem, did_you_mean, within
from aftershock.faults.settings import refusal
from aftershock.faults.units import DAY_MS

OFFSETS_PARTITIONS = "offsets.topic.num.partitions"
_MIN_ISR = "min.insync.replicas"
_TWICE = "the {what} `{name}` is here twice: give one of them another name"


def crosscheck(draft: Draft) -> Iterator[Problem]:
    """Every name and number that doesn't fit."""
    yield from _twice(draft)
    for index, topic in draft.topics.items():
        yield from _topic(draft, topic, ("topics", index))
    for index, workload in draft.workloads.items():
        yield from _workload(draft, workload, ("workloads", index))
    yield from _shared_groups(draft)
    for said in draft.faults.said:
        yield from _fault(draft, said.fault, said.loc)
    yield from too_long(draft)


def _twice(draft: Draft) -> Iterator[Problem]:
    named: list[tuple[str, Loc, Any]] = [
        *(("topic", ("topics", i, "name"), topic.name) for i, topic in draft.topics.items()),
        *(("workload", ("workloads", i, "name"), workload.name) for i, workload in draft.workloads.items()),
    ]
    seen: set[tuple[str, Any]] = set()
    for what, loc, name in named:
        if (what, name) in seen:
            yield Problem(loc, _TWICE.format(what=what, name=name))
        seen.add((what, name))
    yield from ids_twice(draft)


def ids_twice(draft: Draft) -> Iterator[Problem]:
    """Faults that would share an id; two alternatives of one choice may."""
    order = {loc: place for place, loc in enumerate(draft.faults.ids)}
    bearers: dict[str, set[Loc]] = {}
    for loc, fault_id in (*draft.faults.ids.items(), *((each.loc, each.id) for each in draft.faults.expansion.placed)):
        bearers.setdefault(fault_id, set()).add(loc)
    for fault_id, locs in bearers.items():
        for earlier, later in combinations(sorted(locs, key=order.__getitem__), 2):
            if not _exclusive(earlier, later):
                yield Problem((*later, "id"), _TWICE.format(what="fault id", name=fault_id))


def too_long(draft: Draft) -> Iterator[Problem]:
    """Faults that would end more than a day after steady."""
    for each in draft.faults.expansion.placed:
        if end_ms(each.fault) > DAY_MS:
            yield Problem(
                each.loc, "this ends more than a day after steady, and a plan lasts a day at most: shorten it"
            )


def _exclusive(one: Loc, other: Loc) -> bool:
    """Whether these are in two alternatives of one choice."""
    parted = next(place for place, (here, there) in enumerate(zip(one, other, strict=False)) if here != there)
    return one[parted - 1] == "choose"


def _topic(draft: Draft, topic: Topic, loc: Loc) -> Iterator[Problem]:
    cluster = draft.cluster
    if cluster is None:
        return
    brokers = len(cluster.broker_racks)
    if topic.replication > brokers:
        sentence = f"replication {topic.replication} needs {topic.replication} brokers and the cluster has {brokers}: "
        yield Problem((*loc, "replication"), sentence + f"say {brokers} at most, or add brokers")
    min_isr = topic.config.get(_MIN_ISR, cluster.config.get(_MIN_ISR, "1"))
    if not min_isr.isdecimal() or int(min_isr) < 1:
        yield Problem((*loc, "config", _MIN_ISR), f"{_MIN_ISR} must be a whole number from 1, and `{min_isr}` is none")
    elif int(min_isr) > topic.replication:
        sentence = (
            f"{_MIN_ISR} {min_isr} is more than replication {topic.replication}: nothing could be produced; lower it"
        )
        yield Problem((*loc, "config", _MIN_ISR), sentence)


def _workload(draft: Draft, workload: Workload, loc: Loc) -> Iterator[Problem]:
    for part in ("produce", "consume", "commit"):
        told = getattr(workload, part)
        if told is not None:
            yield from _traffic(draft, told, (*loc, part))
    for name, arm in workload.arms.items():
        yield from _arm(draft, arm, (*loc, "arms", name))
    if workload.commit is not None:
        yield from _commits(draft, workload.commit, workload.arms, (*loc, "commit"))


def _shared_groups(draft: Draft) -> Iterator[Problem]:
    """Who shares a group with another workload would get a part of the records, and answer for all of them."""
    seen: dict[tuple[str, str], str] = {}
    for index, workload in draft.workloads.items():
        if workload.consume is None:
            continue
        topic = workload.consume.topic
        for group in workload.consumer_groups:
            if other := seen.get((topic, group)):
                sentence = f"`{other}` reads {topic} in the group {group} too, and each would get a part of it"
                yield Problem(("workloads", index, "consume", "group"), f"{sentence}: give it a group of its own")
                break
            seen[topic, group] = workload.name


def _traffic(draft: Draft, told: Produce | Consume | Commit, loc: Loc) -> Iterator[Problem]:
    if told.topic is not None:
        yield from _declared(draft, told.topic, (*loc, "topic"))
    yield from _rack(draft, told.rack, (*loc, "rack"))
    if not isinstance(told, Consume) and told.rate == 0:
        yield Problem((*loc, "rate"), "a rate of 0/s sends nothing: give a rate above 0/s")


def _commits(draft: Draft, commit: Commit, arms: Mapping[str, Arm], loc: Loc) -> Iterator[Problem]:
    other = next((name for name, arm in arms.items() if arm.client != "reference"), None)
    if commit.in_flight is not None and other is not None:
        sentence = f"`client: reference` alone keeps so many in flight, and `{other}` is {arms[other].client}"
        yield Problem((*loc, "in_flight"), f"{sentence}: say a rate, or another client")
    partitions = draft.cluster.config.get(OFFSETS_PARTITIONS, "") if draft.cluster else "1"
    if commit.by_coordinator and not (partitions.isdecimal() and int(partitions)):
        sentence = f"which groups share a coordinator follows from {OFFSETS_PARTITIONS}"
        yield Problem((*loc, "by_coordinator"), f"{sentence}: say it in cluster.config")


def _arm(draft: Draft, arm: Arm, loc: Loc) -> Iterator[Problem]:
    yield from _rack(draft, arm.client_rack, (*loc, "client_rack"))
    for setting in arm.settings:
        if why_not := refusal(setting, arm.client):
            yield Problem((*loc, "settings", setting), why_not, on_key=True)


def _fault(draft: Draft, fault: Fault, loc: Loc) -> Iterator[Problem]:
    if fault.for_rule == "needed" and fault.for_ is None:
        yield Problem(loc, f"a {fault.kind} needs `for`: say how long it lasts, like `for: 8s`")
    if fault.for_rule == "refused" and fault.for_ is not None:
        yield Problem((*loc, "for"), f"`for` means nothing for {fault.kind}, which has no inverse: take it away")
    for place, topic in fault.topics().items():
        yield from _declared(draft, topic, (*loc, *place))
    for place, rack in fault.racks().items():
        yield from _rack(draft, rack, (*loc, *place))
    for place, text in fault.clients().items():
        yield from _client(draft, crew.parse(text), (*loc, *place))
    for place, text in fault.roles().items():
        yield from _role(draft, roles.parse(text), (*loc, *place))
    for place, text in fault.links().items():
        yield from _link(draft, links.parse(text), (*loc, *place))
    yield from within(fault.problems(draft), loc)


def _role(draft: Draft, role: roles.Role, loc: Loc) -> Iterator[Problem]:
    if isinstance(role, roles.AnyExcept) and draft.cluster and len(draft.cluster.broker_racks) == 1:
        yield Problem(loc, "the cluster has one broker, so there is none to spare: name it, or add brokers")
    match roles.innermost(role):
        case roles.Node(broker):
            yield from _node(draft.cluster, broker, loc)
        case roles.Leader(topic, partition):
            yield from _partition(draft, topic, partition, loc)
        case roles.Replica(topic, partition, rack):
            yield from _partition(draft, topic, partition, loc)
            yield from _rack(draft, rack, loc)
        case roles.Coordinator(group):
            yield from _group(draft, group, loc)


def _node(cluster: Cluster | None, broker: int, loc: Loc) -> Iterator[Problem]:
    if cluster is not None and cluster.controllers == 0 and broker not in cluster.broker_racks:
        yield Problem(loc, f"the cluster has no node {broker}: its brokers are 1 to {len(cluster.broker_racks)}")


def _partition(draft: Draft, topic: str, partition: int, loc: Loc) -> Iterator[Problem]:
    yield from _declared(draft, topic, loc)
    counts = (found.partitions for found in draft.topics.values() if found.name == topic)
    partitions = next(counts, None)
    if partitions is not None and partition >= partitions:
        sentence = f"{topic} has no partition {partition}: its partitions are 0 to {partitions - 1}"
        yield Problem(loc, sentence)


def _declared(draft: Draft, topic: str, loc: Loc) -> Iterator[Problem]:
    known = {found.name for found in draft.topics.values()} | draft.unreadable_topics
    if topic not in known and not topic.startswith("__"):
        sentence = f"the topic `{topic}` is not {draft.topics_are}; {did_you_mean(topic, known)}"
        yield Problem(loc, sentence)


def _rack(draft: Draft, rack: str | None, loc: Loc) -> Iterator[Problem]:
    if rack not in (None, "*") and draft.cluster is not None and rack not in draft.cluster.racks:
        yield Problem(loc, f"the cluster has no rack `{rack}`; {did_you_mean(rack, draft.cluster.racks)}")


def _client(draft: Draft, selector: crew.Selector, loc: Loc) -> Iterator[Problem]:
    if draft.unreadable_workloads:
        return
    workloads = draft.workloads.values()
    known = {f"{each.name}/{arm}" if selector.workload else arm for each in workloads for arm in each.arms}
    if selector.named not in known:
        yield Problem(loc, f"no arm is called `{selector.named}`; {did_you_mean(selector.named, known)}")
    elif not crew.planned(selector, workloads):
        yield Problem(loc, f"`{selector.named}` does not {selector.op} anything: name another arm, or another `op`")


def _group(draft: Draft, group: str, loc: Loc) -> Iterator[Problem]:
    known = {group for workload in draft.workloads.values() for group in workload.consumer_groups} | {
        f"{workload.name}-{arm}-{number}"
        for workload in draft.workloads.values()
        if workload.commit
        for arm in workload.arms
        for number in range(workload.commit.groups)
    }
    if group not in known and not draft.unreadable_workloads:
        sentence = f"no arm consumes in a group `{group}` (an arm's is <group>-<arm>); {did_you_mean(group, known)}"
        yield Problem(loc, sentence)


def _link(draft: Draft, selector: links.Selector, loc: Loc) -> Iterator[Problem]:
    racks = (selector.source, selector.target) if isinstance(selector, links.ToRack) else (selector.source,)
    for rack in racks:
        yield from _rack(draft, rack, loc)
    if draft.cluster is None or any(rack not in ("*", *draft.cluster.racks) for rack in racks):
        return
    between = isinstance(selector, links.ToRack) or selector.channel != "client"
    if between and len(draft.cluster.racks) == 1:
        yield Problem(loc, "the cluster has one rack, and nodes of one rack have no link between them: add a rack")
    elif between and isinstance(selector, links.ToBroker) and selector.role is not None:
        yield from _across(draft.cluster.broker_racks, selector, roles.parse(selector.role), loc)


def _across(homes: dict[int, str], selector: links.ToBroker, role: roles.Role, loc: Loc) -> Iterator[Problem]:
    if isinstance(role, roles.Node) and homes.get(role.broker) == selector.source:
        sentence = f"broker {role.broker} stands in rack {selector.source} itself, and nodes of one rack have no link "
        yield Problem(loc, sentence + "between them: name another rack or broker")
