"""Which settings of a client a plan may set.

A plan may come from a stranger, and some settings load code (``plugin.library.paths``, ``ssl.providers``), run
commands (``sasl.kerberos.kinit.cmd``), read or write files (``*.location``, ``*.keytab``, ``offset.store.path``) or
dial elsewhere (``sasl.oauthbearer.*``). So the rule is a list of what is *allowed*, taken from librdkafka 2.16's
CONFIGURATION and, for the reference and the Java client, from Kafka 4.3's: what is not on it is refused, whatever a
later version makes of it. Settings that the plan has words of its own for are refused by naming the word, so that there
is one way to say each thing. The program of an ``exec`` client is the user's own: it is given what the plan says.

What the parts of a plan say of each other: names that must be declared, numbers that must fit the cluster.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import combinations
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.document import Location, Problem, did_you_mean, within
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.plan.units import DAY_MS
from aftershock.faults.plan.workloads import Arm, Commit, Consume, Produce, Topic, Workload
from aftershock.faults.targets import clients, links, roles
from aftershock.faults.timeline.expand import end_ms

_ALLOWED = """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.interval.ms batch.num.messages batch.size broker.address.family broker.address.ttl
    broker.version.fallback check.crcs client.dns.lookup compression.codec compression.level compression.type
    connections.max.idle.ms coordinator.query.interval.ms enable.auto.commit enable.gapless.guarantee
    enable.metrics.push enable.random.seed enable.sparse.connections fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.protocol
    group.protocol.type group.remote.assignor heartbeat.interval.ms isolation.level log.connection.close
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
    message.copy.max.bytes message.max.bytes message.send.max.retries metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metadata.request.timeout.ms
    partition.assignment.strategy partitioner queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queued.max.messages.kbytes queued.min.messages queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms session.timeout.ms
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms statistics.interval.ms
    sticky.partitioning.linger.ms topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
ALLOWED = frozenset(_ALLOWED.split())

_OF_REFERENCE = """
    auto.commit.interval.ms batch.size buffer.memory check.crcs compression.type connections.max.idle.ms
    default.api.timeout.ms fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.remote.assignor max.block.ms
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    max.request.size metadata.max.age.ms partitioner.availability.timeout.ms partitioner.ignore.keys
    partitioner.rack.aware reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms socket.connection.setup.timeout.ms transaction.timeout.ms
"""
_OF_JAVA = """
    enable.auto.commit enable.metrics.push group.protocol heartbeat.interval.ms isolation.level metadata.max.idle.ms
    metadata.recovery.strategy partitioner.adaptive.partitioning.enable receive.buffer.bytes send.buffer.bytes
    session.timeout.ms socket.connection.setup.timeout.max.ms
"""
_OURS = {"commit.metadata.bytes", "connections.per.broker", "transactional", "metadata.own.connection"}
OF_REFERENCE = frozenset(_OF_REFERENCE.split()) | _OURS
OF_JAVA = frozenset(_OF_REFERENCE.split()) | frozenset(_OF_JAVA.split()) | {"share"}  # its committer's own
_MAY = {"confluent": ALLOWED, "reference": OF_REFERENCE, "java": OF_JAVA}
_WHOSE = {"confluent": "librdkafka", "reference": "reference client", "java": "Kafka"}

OWN_WORDS = {
    "acks": "`acks` under `produce`",
    "request.required.acks": "`acks` under `produce`",
    "enable.idempotence": "`idempotence` under `produce`",
    "linger.ms": "`linger` under `produce`",
    "queue.buffering.max.ms": "`linger` under `produce`",
    "delivery.timeout.ms": "`deadline` under `produce`",
    "message.timeout.ms": "`deadline` under `produce`",
    "auto.offset.reset": "`from` under `consume`",
    "group.id": "`group` under `consume`",
    "client.rack": "`client_rack` of the arm",
}

_HARNESS = (
    "bootstrap.servers",
    "metadata.broker.list",
    "client.",
    "group.instance.id",
    "enable.partition.eof",
    "enable.auto.offset.store",
    "security.protocol",
    "transactional.id",
    "transaction.timeout.ms",
    "delivery.report.only.error",
    "enabled_events",
    "produce.offset.report",
)
_DANGEROUS = (
    ("plugin.", "loads code"),
    ("sasl.kerberos.kinit.cmd", "runs a command"),
    ("ssl.", "may read files or load code; how to connect is said once, under `cluster.attach.security`"),
    ("sasl.", "may read files, run commands or dial elsewhere; `cluster.attach.security` says how to connect"),
    ("https.", "may read files"),
    ("offset.store.", "may write files"),
    ("debug", "floods the log the evidence is read from"),
    ("log", "redirects the log the evidence is read from"),
)


def refusal(setting: str, client: str = "confluent") -> str | None:
    """Why a plan may not set this setting of that client, and what to do; None if it may."""
    if client == "exec" or setting in _MAY[client]:
        return None
    if setting in OWN_WORDS:
        return f"`{setting}` has a word of its own in a plan: say {OWN_WORDS[setting]}"
    if setting.startswith(_HARNESS):
        return f"`{setting}` belongs to the harness: take it away"
    if setting.endswith(("_cb", ".callback")):
        return f"`{setting}` takes code: take it away"
    for prefix, why in _DANGEROUS:
        if setting.startswith(prefix):
            return f"`{setting}` is refused, it {why}: take it away"
    close = get_close_matches(setting, sorted(_MAY[client]), n=1)
    return f"`{setting}` is no {_WHOSE[client]} setting that plans may use" + (
        f"; did you mean `{close[0]}`?" if close else ": take it away"
    )


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
    named: list[tuple[str, Location, Any]] = [
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
    bearers: dict[str, set[Location]] = {}
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


def _exclusive(one: Location, other: Location) -> bool:
    """Whether these are in two alternatives of one choice."""
    parted = next(place for place, (here, there) in enumerate(zip(one, other, strict=False)) if here != there)
    return one[parted - 1] == "choose"


def _topic(draft: Draft, topic: Topic, loc: Location) -> Iterator[Problem]:
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


def _workload(draft: Draft, workload: Workload, loc: Location) -> Iterator[Problem]:
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


def _traffic(draft: Draft, told: Produce | Consume | Commit, loc: Location) -> Iterator[Problem]:
    if told.topic is not None:
        yield from _declared(draft, told.topic, (*loc, "topic"))
    yield from _rack(draft, told.rack, (*loc, "rack"))
    if not isinstance(told, Consume) and told.rate == 0:
        yield Problem((*loc, "rate"), "a rate of 0/s sends nothing: give a rate above 0/s")


def _commits(draft: Draft, commit: Commit, arms: Mapping[str, Arm], loc: Location) -> Iterator[Problem]:
    other = next((name for name, arm in arms.items() if arm.client != "reference"), None)
    if commit.in_flight is not None and other is not None:
        sentence = f"`client: reference` alone keeps so many in flight, and `{other}` is {arms[other].client}"
        yield Problem((*loc, "in_flight"), f"{sentence}: say a rate, or another client")
    partitions = draft.cluster.config.get(OFFSETS_PARTITIONS, "") if draft.cluster else "1"
    if commit.by_coordinator and not (partitions.isdecimal() and int(partitions)):
        sentence = f"which groups share a coordinator follows from {OFFSETS_PARTITIONS}"
        yield Problem((*loc, "by_coordinator"), f"{sentence}: say it in cluster.config")


def _arm(draft: Draft, arm: Arm, loc: Location) -> Iterator[Problem]:
    yield from _rack(draft, arm.client_rack, (*loc, "client_rack"))
    for setting in arm.settings:
        if why_not := refusal(setting, arm.client):
            yield Problem((*loc, "settings", setting), why_not, on_key=True)


def _fault(draft: Draft, fault: Fault, loc: Location) -> Iterator[Problem]:
    if fault.for_rule == "needed" and fault.for_ is None:
        yield Problem(loc, f"a {fault.kind} needs `for`: say how long it lasts, like `for: 8s`")
    if fault.for_rule == "refused" and fault.for_ is not None:
        yield Problem((*loc, "for"), f"`for` means nothing for {fault.kind}, which has no inverse: take it away")
    for place, topic in fault.topics().items():
        yield from _declared(draft, topic, (*loc, *place))
    for place, rack in fault.racks().items():
        yield from _rack(draft, rack, (*loc, *place))
    for place, text in fault.clients().items():
        yield from _client(draft, clients.parse(text), (*loc, *place))
    for place, text in fault.roles().items():
        yield from _role(draft, roles.parse(text), (*loc, *place))
    for place, text in fault.links().items():
        yield from _link(draft, links.parse(text), (*loc, *place))
    yield from within(fault.problems(draft), loc)


def _role(draft: Draft, role: roles.Role, loc: Location) -> Iterator[Problem]:
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


def _node(cluster: Cluster | None, broker: int, loc: Location) -> Iterator[Problem]:
    if cluster is not None and cluster.controllers == 0 and broker not in cluster.broker_racks:
        yield Problem(loc, f"the cluster has no node {broker}: its brokers are 1 to {len(cluster.broker_racks)}")


def _partition(draft: Draft, topic: str, partition: int, loc: Location) -> Iterator[Problem]:
    yield from _declared(draft, topic, loc)
    counts = (found.partitions for found in draft.topics.values() if found.name == topic)
    partitions = next(counts, None)
    if partitions is not None and partition >= partitions:
        sentence = f"{topic} has no partition {partition}: its partitions are 0 to {partitions - 1}"
        yield Problem(loc, sentence)


def _declared(draft: Draft, topic: str, loc: Location) -> Iterator[Problem]:
    known = {found.name for found in draft.topics.values()} | draft.unreadable_topics
    if topic not in known and not topic.startswith("__"):
        sentence = f"the topic `{topic}` is not {draft.topics_are}; {did_you_mean(topic, known)}"
        yield Problem(loc, sentence)


def _rack(draft: Draft, rack: str | None, loc: Location) -> Iterator[Problem]:
    if rack not in (None, "*") and draft.cluster is not None and rack not in draft.cluster.racks:
        yield Problem(loc, f"the cluster has no rack `{rack}`; {did_you_mean(rack, draft.cluster.racks)}")


def _client(draft: Draft, selector: clients.Selector, loc: Location) -> Iterator[Problem]:
    if draft.unreadable_workloads:
        return
    workloads = draft.workloads.values()
    known = {f"{each.name}/{arm}" if selector.workload else arm for each in workloads for arm in each.arms}
    if selector.named not in known:
        yield Problem(loc, f"no arm is called `{selector.named}`; {did_you_mean(selector.named, known)}")
    elif not clients.planned(selector, workloads):
        yield Problem(loc, f"`{selector.named}` does not {selector.op} anything: name another arm, or another `op`")


def _group(draft: Draft, group: str, loc: Location) -> Iterator[Problem]:
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


def _link(draft: Draft, selector: links.Selector, loc: Location) -> Iterator[Problem]:
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


def _across(homes: dict[int, str], selector: links.ToBroker, role: roles.Role, loc: Location) -> Iterator[Problem]:
    if isinstance(role, roles.Node) and homes.get(role.broker) == selector.source:
        sentence = f"broker {role.broker} stands in rack {selector.source} itself, and nodes of one rack have no link "
        yield Problem(loc, sentence + "between them: name another rack or broker")
