"""Cross-checks of a plan's references between parts, its use of the cluster, and its client settings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.client_settings import refusal
from aftershock.faults.plan.expand import end_ms
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.plan.transactions import duplicate_transactional_ids, timeout_problems, unknown_id
from aftershock.faults.sections.broker_settings import Owner, setting_refusal, value_refusal
from aftershock.faults.sections.document import Location, Problem, did_you_mean, prefix_problems
from aftershock.faults.sections.services import Pipe
from aftershock.faults.sections.transactions import Transaction
from aftershock.faults.sections.units import DAY_MS
from aftershock.faults.sections.workloads import Commit, Consume, Produce, Workload, group_protocol, json_fields
from aftershock.faults.targets import clients, links, roles
from aftershock.names import LIBRARIES, ON_LIBRDKAFKA

BROKER_SIDE = ("session.timeout.ms", "heartbeat.interval.ms")
OFFSETS_PARTITIONS = "offsets.topic.num.partitions"
REPLICAS_MAX = 10_000  # of a launched cluster, on one host
_MIN_ISR = "min.insync.replicas"
TRANSACTIONAL_CLIENTS = ("reference", "confluent", "java", "exec", *LIBRARIES)
"""Clients whose adapters produce in transactions."""


def reference_problems(draft: Draft) -> Iterator[Problem]:
    """Yield every reference to a missing part of the plan, repeated name, and number that doesn't fit the cluster."""
    for part, entries in (("topic", draft.topics), ("workload", draft.workloads)):
        names: set[str] = set()
        for index, entry in entries.items():
            if entry.name in names:
                sentence = f"the {part} `{entry.name}` is defined twice: rename one of the two"
                yield Problem((f"{part}s", index, "name"), sentence)
            names.add(entry.name)
    yield from duplicate_ids(draft)
    ranges = False
    if draft.cluster is not None:
        version = draft.cluster.kafka
        ranges = draft.cluster.image is None and (version == "default" or version.startswith("4."))
        yield from setting_problems("node", draft.cluster.config, ("cluster", "config"), ranges=ranges)
        for broker, config in (draft.cluster.brokers or {}).items():
            yield from setting_problems("node", config, ("cluster", "brokers", broker), ranges=ranges)
    for index, topic in draft.topics.items():
        foreign = draft.attach is not None
        yield from setting_problems("topic", topic.config, ("topics", index, "config"), foreign=foreign, ranges=ranges)
    replicas = 0
    for index, topic in draft.topics.items():
        if draft.cluster is None:
            break
        loc: Location = ("topics", index)
        brokers = len(draft.cluster.broker_racks)
        replicas += topic.partitions * topic.replication
        if replicas > REPLICAS_MAX:
            sentence = f"with this topic the plan has {replicas} replicas of partitions, more than {REPLICAS_MAX}"
            yield Problem((*loc, "partitions"), f"{sentence}: lower `partitions` or `replication`")
            break
        if topic.replication > brokers:
            sentence = f"replication {topic.replication} exceeds the {brokers} brokers; lower it or add brokers"
            yield Problem((*loc, "replication"), sentence)
        min_isr = topic.config.get(_MIN_ISR, draft.cluster.config.get(_MIN_ISR, "1"))
        if min_isr.isdecimal() and int(min_isr) > topic.replication:
            sentence = f"{_MIN_ISR} {min_isr} exceeds the topic's replication {topic.replication}; lower it"
            yield Problem((*loc, "config", _MIN_ISR), sentence)
    yield from _workloads(draft)
    yield from duplicate_transactional_ids(draft)
    for located in draft.faults.readable:
        yield from _fault(draft, located.fault, located.loc)
    yield from overlong_faults(draft)


def setting_problems(
    owner: Owner, settings: Mapping[str, str], loc: Location, *, foreign: bool = False, ranges: bool = True
) -> Iterator[Problem]:
    """Yield a problem for each setting of a node or topic that a plan may not use, or with a value that Kafka refuses.

    ``foreign`` and ``ranges`` are explained in ``sections/broker_settings.py``.
    """
    for name, value in settings.items():
        if refusal := setting_refusal(owner, name, value, foreign=foreign):
            yield Problem((*loc, name), refusal, on_key=True)
        elif refusal := value_refusal(owner, name, value, ranges=ranges):
            yield Problem((*loc, name), refusal)


def duplicate_ids(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for faults with the same id, except alternatives of one ``choose``."""
    order = {loc: place for place, loc in enumerate(draft.faults.ids)}
    locs_by_id: dict[str, set[Location]] = {}
    scheduled = ((fault.loc, fault.id) for fault in draft.faults.expansion.schedule)
    for loc, fault_id in (*draft.faults.ids.items(), *scheduled):
        locs_by_id.setdefault(fault_id, set()).add(loc)
    for fault_id, locs in locs_by_id.items():
        in_order = sorted(locs, key=order.__getitem__)
        for number, later in enumerate(in_order):
            for earlier in in_order[:number]:
                # faults whose locations part at alternatives of one `choose` are never both drawn
                fork = next(place for place, steps in enumerate(zip(earlier, later, strict=False)) if len({*steps}) > 1)
                if earlier[fork - 1] != "choose":
                    yield Problem((*later, "id"), f"the fault id `{fault_id}` is defined twice: rename one of the two")
                    break


def overlong_faults(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each fault that ends more than a day after the end of ``steady``."""
    for fault in draft.faults.expansion.schedule:
        if end_ms(fault.fault) > DAY_MS:
            yield Problem(
                fault.loc, "the fault ends more than a day after the end of steady: let the fault end earlier"
            )


def _workloads(draft: Draft) -> Iterator[Problem]:
    for index, workload in draft.workloads.items():
        loc: Location = ("workloads", index)
        for op, traffic in (("produce", workload.produce), ("consume", workload.consume), ("commit", workload.commit)):
            if traffic is None:
                continue
            if traffic.topic is not None:
                yield from _declared(draft, traffic.topic, (*loc, op, "topic"))
            for number, name in enumerate(() if isinstance(traffic, Commit) else traffic.topics):
                yield from _declared(draft, name, (*loc, op, "topics", number))
            yield from _rack(draft, traffic.rack, (*loc, op, "rack"))
            if getattr(traffic, "rate", None) == 0:
                yield Problem((*loc, op, "rate"), "a rate of 0/s sends nothing: give a rate above 0/s")
        yield from _sections(draft, index, workload, loc)
        for name, arm in workload.arms.items():
            yield from _rack(draft, arm.client_rack, (*loc, "arms", name, "client_rack"))
            for setting in arm.settings:
                # of the pipe's transactions
                of_pipe = workload.pipe is not None and setting == "transaction.timeout.ms"
                place = (*loc, "arms", name, "settings", setting)
                if not of_pipe and (why_not := refusal(setting, arm.client)):
                    yield Problem(place, why_not, on_key=True)
                elif of_pipe and isinstance(timeout := arm.settings[setting], int):
                    yield from timeout_problems(draft, timeout, place)
        if commit := workload.commit:
            foreign = next((name for name, arm in workload.arms.items() if arm.client != "reference"), None)
            if commit.in_flight is not None and foreign is not None:
                client = workload.arms[foreign].client
                sentence = (
                    f"`in_flight` needs `client: reference`, but the arm `{foreign}` has `client: {client}`: "
                    "give a rate, or change the client"
                )
                yield Problem((*loc, "commit", "in_flight"), sentence)
            partitions = draft.cluster.config.get(OFFSETS_PARTITIONS, "") if draft.cluster else "1"
            if commit.by_coordinator and not (partitions.isdecimal() and int(partitions)):
                sentence = (
                    f"`by_coordinator` needs {OFFSETS_PARTITIONS}, which maps groups to coordinators: set it in "
                    "cluster.config"
                )
                yield Problem((*loc, "commit", "by_coordinator"), sentence)
    for (_, owner), (index, workload) in _shared_groups(draft):
        yield from _shared_group(draft, owner, workload, ("workloads", index, "consume"))
    yield from _values(draft)


def _sections(draft: Draft, index: int, workload: Workload, loc: Location) -> Iterator[Problem]:
    if workload.consume:
        yield from _consume(draft, workload, workload.consume, loc)
    if workload.produce and workload.produce.transaction:
        yield from _transaction(draft, workload, workload.produce.transaction, loc)
    if workload.pipe:
        yield from prefix_problems(_pipe(draft, index, workload, workload.pipe), (*loc, "pipe"))


def _values(draft: Draft) -> Iterator[Problem]:
    """Yield a problem for each workload whose records have another JSON value than those of a workload before it."""
    first: dict[str, Workload] = {}
    for index, workload in draft.workloads.items():
        for topic in workload.produce.topic_names(()) if workload.produce else ():
            owner = first.setdefault(topic, workload)
            if owner.produce and workload.produce and owner.produce.value != workload.produce.value:
                sentence = (
                    f"the workload `{owner.name}` writes another `value` to {topic}: give both workloads the same"
                )
                yield Problem(("workloads", index, "produce"), sentence)


def _pipe(draft: Draft, index: int, workload: Workload, pipe: Pipe) -> Iterator[Problem]:
    """Yield the problems of a section ``pipe`` with topics, racks and the plan's other workloads."""
    for key, name in (("from", pipe.from_), ("to", pipe.to)):
        yield from _declared(draft, name, (key,))
    yield from _rack(draft, pipe.rack, ("rack",))
    if pipe.from_ == pipe.to:
        yield Problem(("to",), f"the pipe would read its own outputs: name another topic than {pipe.from_}")
    declared = {topic.name for topic in draft.topics.values()}
    own = {pipe.named(pipe.to, arm, len(workload.arms)) for arm in workload.arms}
    if taken := sorted((own - {pipe.to}) & declared):
        yield Problem(("to",), f"{taken[0]} is the name of an arm's output topic: remove it from `topics`")
    inputs = False
    for number, other in draft.workloads.items():
        produced = other.produce.topic_names(()) if other.produce else ()
        inputs |= pipe.from_ in produced
        if other.produce and pipe.from_ in produced:
            yield from _marks(pipe, other.name, other.produce)
        read = other.consume.topic_names(declared) if other.consume else ()
        if pipe.to in (*produced, *read):
            verb = "produces to" if pipe.to in produced else "consumes"
            sentence = (
                f"the workload `{other.name}` {verb} {pipe.to}, which the harness reads as the outputs of the pipe"
            )
            yield Problem(("to",), f"{sentence}: give one of them another topic")
        if other.pipe and number < index and other.pipe.to == pipe.to:
            yield Problem(("to",), f"the workload `{other.name}` writes to {pipe.to} too: give each pipe its own topic")
        groups = {*workload.consumer_groups} if number != index else set()
        if (common := sorted(groups.intersection(other.consumer_groups))) and (other.consume or number < index):
            yield Problem(
                ("group",), f"the workload `{other.name}` uses the group {common[0]} too: give the pipe its own"
            )
    for name, arm in workload.arms.items():
        wrong = next((setting for setting in BROKER_SIDE if setting in arm.settings), None)
        if wrong and arm.client != "service" and group_protocol(None, arm.client, arm.settings) == "consumer":
            sentence = (
                f"the arm `{name}` is in a group of the consumer protocol, in which brokers set `{wrong}`: set "
                f"`group.consumer.{wrong}` in `cluster.config`, or `group.protocol: classic` in the arm's settings"
            )
            yield Problem((), sentence)
    if not inputs and not draft.unreadable_workloads:
        sentence = (
            f"no workload produces to {pipe.from_}, so the pipe has no input: add `produce: {{topic: {pipe.from_}"
        )
        yield Problem(("from",), f"{sentence}, rate: 60/s}}`")


def _marks(pipe: Pipe, name: str, produce: Produce) -> Iterator[Problem]:
    """Yield why the outputs of a pipe couldn't name the records of a workload."""
    if pipe.mark == "key" and produce.keys:
        sentence = f"with `mark: key` each record has its own key, and the workload `{name}` has {produce.keys} keys"
        yield Problem(("mark",), f"{sentence}: remove its `keys`, or let the service copy the header or a JSON field")
    elif pipe.mark.startswith("$") and dict(json_fields(produce.value or {})).get(pipe.mark) != "{mark}":
        example = pipe.mark.split(".")[-1]
        sentence = f"the service copies the JSON field {pipe.mark}, which records of the workload `{name}` don't have"
        yield Problem(("mark",), f'{sentence}: add it to their `value`, like {{{example}: "{{mark}}"}}')


def _shared_groups(draft: Draft) -> Iterator[tuple[tuple[int, Workload], tuple[int, Workload]]]:
    """Yield each pair of workloads, with their indices, whose arms consume in the same group."""
    loads = draft.workloads.items()
    consuming = [(index, load) for index, load in loads if load.consume and load.consumer_groups]
    for earlier, later in combinations(consuming, 2):
        if not {*earlier[1].consumer_groups}.isdisjoint(later[1].consumer_groups):
            yield earlier, later


def _shared_group(draft: Draft, owner: Workload, workload: Workload, loc: Location) -> Iterator[Problem]:
    """Yield why two workloads can't share a group, each judged by the records of its own topics."""
    group = next(name for name in workload.consumer_groups if name in owner.consumer_groups)
    both = [consume for consume in (owner.consume, workload.consume) if consume]
    # Members of a shared group divide the records of a topic, but the checks of each workload expect all of them.
    if common := sorted(_topics(draft, owner).intersection(_topics(draft, workload))):
        sentence = (
            f"the workload `{owner.name}` also consumes {common[0]} in the group {group}: give this workload a group "
            "of its own"
        )
        yield Problem((*loc, "group"), sentence)
    if any(consume.from_ == "latest" for consume in both):
        sentence = (
            f"`from: latest` needs a group of one workload, whose start offsets are committed before its members join, "
            f"and the workload `{owner.name}` is in the group {group} too: use `from: earliest`, or another group"
        )
        yield Problem((*loc, "group"), sentence)
    for key in ("protocol", "assignor"):
        if len({getattr(consume, key) for consume in both}) > 1:
            sentence = f"the workload `{owner.name}` is in the same group and has another `{key}`: use the same one"
            yield Problem((*loc, key if getattr(workload.consume, key) else "group"), sentence)


def _topics(draft: Draft, workload: Workload) -> set[str]:
    declared = [topic.name for topic in draft.topics.values()]
    return {*workload.consume.topic_names(declared)} if workload.consume else set()


def _consume(draft: Draft, workload: Workload, consume: Consume, loc: Location) -> Iterator[Problem]:
    """Yield the problems of a section ``consume``, among them those of its group with the clients of the arms."""
    declared = {entry.name for entry in draft.topics.values()} | draft.unreadable_topics
    if consume.pattern is not None and not consume.topic_names(declared):
        sentence = f"the pattern `{consume.pattern}` matches none of the plan's topics ({', '.join(sorted(declared))})"
        yield Problem((*loc, "consume", "pattern"), f"{sentence}: correct it, or add a topic that it matches")
    for number, rack in enumerate(consume.racks):
        yield from _rack(draft, rack, (*loc, "consume", "racks", number))
    own_names = {
        "protocol": "group.protocol",
        "assignor": "partition.assignment.strategy",
        "commit": "enable.auto.commit",
    }
    for name, arm in workload.arms.items():
        if consume.assignor == "sticky" and arm.client in ON_LIBRDKAFKA:
            sentence = (
                f"librdkafka, the client of arm `{name}`, has no assignor sticky; use cooperative-sticky or range"
            )
            yield Problem((*loc, "consume", "assignor"), sentence)
        for setting in BROKER_SIDE if consume.protocol == "consumer" and arm.client != "exec" else ():
            if setting in arm.settings:
                place = (*loc, "arms", name, "settings", setting)
                sentence = (
                    f"in groups of the consumer protocol, brokers set `{setting}`: set `group.consumer.{setting}`"
                )
                yield Problem(place, f"{sentence} in `cluster.config`", on_key=True)
        for key, setting in own_names.items():
            if getattr(consume, key) is not None and setting in arm.settings:
                place = (*loc, "arms", name, "settings", setting)
                yield Problem(
                    place, f"`{key}` under `consume` sets `{setting}` already: remove one of them", on_key=True
                )


def _transaction(draft: Draft, workload: Workload, transaction: Transaction, loc: Location) -> Iterator[Problem]:
    """Yield the problems of ``produce.transaction`` with the clients of the arms, and with the brokers' limit."""
    for name, arm in workload.arms.items():
        if arm.client not in TRANSACTIONAL_CLIENTS:
            sentence = (
                f"`transaction` needs `client: {'` or `client: '.join(TRANSACTIONAL_CLIENTS)}`, but the arm `{name}` "
                f"has `client: {arm.client}`: change the client, or remove `transaction`"
            )
            yield Problem((*loc, "produce", "transaction"), sentence)
        if "transaction.timeout.ms" in arm.settings:
            place = (*loc, "arms", name, "settings", "transaction.timeout.ms")
            sentence = "`timeout` under `transaction` sets `transaction.timeout.ms` already: remove one of them"
            yield Problem(place, sentence, on_key=True)
    yield from timeout_problems(draft, transaction.timeout, (*loc, "produce", "transaction", "timeout"))


def group_warnings(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each workload with more members than partitions, and for each pair that shares a group."""
    partitions = {topic.name: topic.partitions for topic in draft.topics.values()}
    for index, workload in draft.workloads.items():
        names = _topics(draft, workload) & partitions.keys()
        members, shared = workload.consume.members if workload.consume else 0, sum(partitions[name] for name in names)
        if names and (idle := members - shared) > 0:
            sentence = (
                f"{members} members share {shared} partitions, so {idle} of them get none: "
                "lower `members`, or add partitions if no member should be idle"
            )
            yield Problem(("workloads", index, "consume", "members"), sentence)
    for (_, owner), (index, workload) in _shared_groups(draft):
        own, other = (", ".join(sorted(_topics(draft, load))) for load in (workload, owner))
        sentence = (
            f"the workloads `{owner.name}` and `{workload.name}` share a group: every record of {other} is due at "
            f"`{owner.name}`, every record of {own} at `{workload.name}`, and a rebalance concerns both"
        )
        yield Problem(("workloads", index, "consume", "group"), sentence)


def _fault(draft: Draft, fault: Fault, loc: Location) -> Iterator[Problem]:
    if fault.for_rule == "needed" and fault.for_ is None:
        yield Problem(loc, f"a {fault.kind} needs `for`: give its duration, like `for: 8s`")
    if fault.for_rule == "refused" and fault.for_ is not None:
        yield Problem((*loc, "for"), f"{fault.kind} can't have `for`, because it can't be undone: remove `for`")
    for place, topic in fault.topics().items():
        yield from _hit(draft, topic, (*loc, *place))
    for place, text in fault.transactional_ids().items():
        yield from unknown_id(draft, text, (*loc, *place))
    for place, rack in fault.racks().items():
        yield from _rack(draft, rack, (*loc, *place))
    for place, text in fault.clients().items() if not draft.unreadable_workloads else ():
        selector, workloads = clients.parse(text), draft.workloads.values()
        label = selector.label
        arms = {f"{load.name}/{arm}" if selector.workload else arm for load in workloads for arm in load.arms}
        if selector.owns is not None:
            yield from _partition(draft, *selector.owns, (*loc, *place))
        if label not in arms:
            yield Problem((*loc, *place), f"there is no arm `{label}`; {did_you_mean(label, arms)}")
        elif selector.number is not None and not clients.planned_workers(selector, workloads):
            what = "member" if selector.op == "consume" else "producer"
            count = len(clients.planned_workers(replace(selector, number=None), workloads))
            sentence = f"there is no {what} {selector.number} of the arm `{label}`, which has {count}"
            yield Problem((*loc, *place), sentence)
        elif not clients.planned_workers(selector, workloads):
            sentence = f"the arm `{label}` does not {selector.op}: name another arm, or another `op`"
            yield Problem((*loc, *place), sentence)
        elif fault.family == "client" and (away := next((w for w in _of(selector, workloads) if w.run_on), None)):
            sentence = (
                f"a {fault.kind} reaches processes of this host only, and the clients of the workload `{away.name}` "
                "run elsewhere: remove its `run_on`, or the fault"
            )
            yield Problem((*loc, *place), sentence)
    for place, text in fault.roles().items():
        yield from _role(draft, roles.parse(text), (*loc, *place))
    for place, text in fault.links().items():
        yield from _link(draft, links.parse(text), (*loc, *place))
    yield from prefix_problems(fault.problems(draft), loc)


def _of(selector: clients.Selector, workloads: Iterable[Workload]) -> Iterator[Workload]:
    """Yield the workloads whose clients a selector may include."""
    for workload in workloads:
        if selector.arm in workload.arms and selector.workload in (None, workload.name):
            yield workload


def _role(draft: Draft, role: roles.Role, loc: Location) -> Iterator[Problem]:
    cluster = draft.cluster
    if isinstance(role, roles.AnyExcept) and cluster and len(cluster.broker_racks) == 1:
        sentence = (
            "the cluster has one broker, so `any broker except` matches no broker: name the broker, or add brokers"
        )
        yield Problem(loc, sentence)
    match roles.innermost(role):
        case roles.Node(broker):
            if cluster is not None and cluster.controllers == 0 and broker not in cluster.broker_racks:
                brokers = len(cluster.broker_racks)
                yield Problem(loc, f"the cluster has no node {broker}: its brokers are 1 to {brokers}")
        case roles.Leader(topic, partition) | roles.Replica(topic, partition) as replicated:
            yield from _partition(draft, topic, partition, loc)
            if isinstance(replicated, roles.Replica):
                yield from _rack(draft, replicated.rack, loc)
        case roles.TransactionCoordinator(transactional_id):
            yield from unknown_id(draft, transactional_id, loc)
        case roles.Coordinator(group) if not draft.unreadable_workloads:
            workloads = draft.workloads.values()
            groups = {group for workload in workloads for group in workload.consumer_groups}
            # a commit workload has up to 10,000 groups for each arm, so they are not listed
            stem, _, number = group.rpartition("-")
            committers = [load for load in workloads if load.commit]
            series = {
                f"{load.name}-{arm}": load.commit.groups for load in committers for arm in load.arms if load.commit
            }
            is_in_series = number.isdecimal() and f"{int(number)}" == number and int(number) < series.get(stem, 0)
            if group not in groups and not is_in_series:
                groups |= {f"{name}-0" for name in series}
                hint = did_you_mean(group, groups)
                yield Problem(loc, f"no arm consumes in a group `{group}` (a group is named <group>-<arm>); {hint}")


def _partition(draft: Draft, topic: str, partition: int, loc: Location) -> Iterator[Problem]:
    yield from _hit(draft, topic, loc)
    known = {entry.name: entry.partitions for entry in draft.topics.values()}
    partitions = known.get(_outputs(draft).get(topic, topic))
    if partitions is not None and partition >= partitions:
        sentence = f"the topic {topic} has no partition {partition}: its partitions are 0 to {partitions - 1}"
        yield Problem(loc, sentence)


def _outputs(draft: Draft) -> dict[str, str]:
    """Return the topics that arms of pipes write, each with the topic of the plan after which it is made."""
    pipes = [(load.pipe, load.arms) for load in draft.workloads.values() if load.pipe]
    return {pipe.named(pipe.to, arm, len(arms)): pipe.to for pipe, arms in pipes for arm in arms}


def _hit(draft: Draft, topic: str, loc: Location) -> Iterator[Problem]:
    """Yield a problem if a fault names a topic that is neither declared, nor written by an arm of a pipe."""
    outputs = _outputs(draft)
    own = [name for name, made_after in outputs.items() if made_after == topic != name]
    if own:
        yield Problem(loc, f"each arm writes a topic of its own, made after `{topic}`: name {' or '.join(own)}")
    elif topic not in outputs:
        yield from _declared(draft, topic, loc)


def _declared(draft: Draft, topic: str, loc: Location) -> Iterator[Problem]:
    declared = {entry.name for entry in draft.topics.values()} | draft.unreadable_topics
    if topic not in declared and not topic.startswith("__"):
        sentence = f"the topic `{topic}` is not {draft.topics_source}; {did_you_mean(topic, declared)}"
        yield Problem(loc, sentence)


def _rack(draft: Draft, rack: str | None, loc: Location) -> Iterator[Problem]:
    if rack not in (None, "*") and draft.cluster is not None and rack not in draft.cluster.racks:
        yield Problem(loc, f"the cluster has no rack `{rack}`; {did_you_mean(rack, draft.cluster.racks)}")


def _link(draft: Draft, selector: links.Selector, loc: Location) -> Iterator[Problem]:
    racks = (selector.source, selector.target) if isinstance(selector, links.ToRack) else (selector.source,)
    for rack in racks:
        yield from _rack(draft, rack, loc)
    if draft.cluster is None or any(rack not in ("*", *draft.cluster.racks) for rack in racks):
        return
    is_between_nodes = isinstance(selector, links.ToRack) or selector.channel != "client"
    if is_between_nodes and len(draft.cluster.racks) == 1:
        yield Problem(loc, "the cluster has one rack, and nodes of one rack have no link between them: add a rack")
    elif is_between_nodes and isinstance(selector, links.ToBroker) and selector.role is not None:
        role = roles.parse(selector.role)
        if isinstance(role, roles.Node) and draft.cluster.broker_racks.get(role.broker) == selector.source:
            sentence = (
                f"broker {role.broker} is in rack {selector.source} itself, and nodes of one rack have no link between "
                "them: name another rack or broker"
            )
            yield Problem(loc, sentence)
