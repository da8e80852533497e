"""Warnings about valid plans that hardly mean what they say: no quorum, no writes, hours of waiting, no retry.

A warning is also given for transactions that are aborted without a consumer that reads committed records only.
"""

from collections.abc import Iterator

from aftershock.faults.plan.expand import end_ms, length_ms
from aftershock.faults.plan.outages import Down, client_outages, down_nodes, in_sync_min, session_timeout_ms
from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.document import Location, Problem
from aftershock.faults.sections.units import format_duration, format_length
from aftershock.faults.sections.workloads import Topic, Workload

IDLE_MS_MAX = 3_600_000
"""Longest time without a fault, or of one fault, that no warning asks about: sixty times that of the shipped plans."""
ROUND_TRIP_MS = 50
"""Allowance for a round trip on a busy host: the harness can't attribute shorter delays to a client."""
_RETRY_BACKOFF_MS = 100  # default of retry.backoff.ms in Kafka's client and in librdkafka
_SILENT = ("kill", "pause", "lose_rack", "power_loss")
_ENDING = ("kill", "stop", "restart")
_KUBELET_MS = 600_000
"""Time without an end of a container after which the kubelet forgets the earlier ones."""


def plausibility_warnings(draft: Draft) -> Iterator[Problem]:
    """Yield the warnings about quorum, replicas, times, deadlines and topics without a producer."""
    yield from _nodes_down(draft)
    yield from _long_times(draft)
    for index, workload in draft.workloads.items():
        yield from _deadlines(draft, workload, ("workloads", index))
        yield from _timeouts(draft, workload, ("workloads", index))
    yield from _silent_topics(draft)
    yield from _services_without_address(draft)
    yield from _unread_aborts(draft)
    yield from _late_containers(draft)


def _nodes_down(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each fault that leaves no quorum of controllers, or too few replicas for a producer."""
    cluster = draft.cluster
    if cluster is None:
        return
    brokers = len(cluster.broker_racks)
    voters = cluster.controllers or brokers
    written = {
        name
        for workload in draft.workloads.values()
        if workload.produce and workload.produce.acks == "all"
        for name in workload.produce.topic_names(())
    }
    warned: set[frozenset[Location]] = set()
    for down in down_nodes(draft):
        loc = down.fault.loc
        together = frozenset(scheduled.loc for scheduled in down.in_force)
        if down.all_nodes or down.brokers == brokers or together in warned:
            continue  # an outage of the whole cluster is meant
        if down.voters and 2 * (voters - down.voters) <= voters:
            remedy = "let the faults follow one another" if down.voters > 1 else "use three controllers or more"
            sentence = (
                f"{down.voters} of {voters} controllers are down during {down.names}, so the metadata quorum is "
                f"lost and no leader moves: {remedy}, or expect that no client makes progress"
            )
            yield Problem(loc, sentence)
            warned.add(together)
            continue
        topics = (topic for topic in draft.topics.values() if topic.name in written)
        if lacking := next(filter(None, (_too_few(draft, down, topic, brokers) for topic in topics)), None):
            yield Problem(loc, lacking)
            warned.add(together)


def _too_few(draft: Draft, down: Down, topic: Topic, brokers: int) -> str | None:
    """Return why a topic has too few replicas for a producer with acks=all; None if it has enough."""
    left, needed = topic.replication - min(down.brokers, topic.replication), in_sync_min(draft, topic)
    if not down.brokers or left >= needed or topic.replication == 1:  # who gives one replica knows that it is alone
        return None
    which = "the partitions" if topic.replication == brokers else "partitions with replicas there"
    return (
        f"during {down.names}, {which} of `{topic.name}` keep {left} of {topic.replication} replicas, fewer than "
        f"min.insync.replicas {needed}, so no record with acks=all is accepted: lower min.insync.replicas, or expect "
        "that producers wait"
    )


def _long_times(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each stretch of more than an hour in which nothing happens, or one fault lasts."""
    timing, schedule = draft.timing, draft.faults.expansion.schedule
    if timing is None or not draft.faults.expansion.certain or draft.is_soak:
        return
    total_ms = timing.warmup.max + timing.steady + length_ms((scheduled.fault for scheduled in schedule), timing)
    total = f"the plan lasts {format_length(total_ms)}: if that is meant, say `soak` in its name or in `why`"
    for key, lasts_ms in (("warmup", timing.warmup.min), ("steady", timing.steady), ("recovery", timing.recovery)):
        if lasts_ms > IDLE_MS_MAX:
            yield Problem(("timing", key), f"`{key}` takes {format_length(lasts_ms)}, and {total}")
    free_ms, seen = 0, set()
    for scheduled in sorted(schedule, key=lambda scheduled: scheduled.fault.at):
        fault, waits_ms = scheduled.fault, scheduled.fault.at - free_ms
        if scheduled.loc not in seen and waits_ms > IDLE_MS_MAX:
            sentence = f"nothing happens for {format_length(waits_ms)} before `{scheduled.id}`, and {total}"
            yield Problem((*scheduled.loc, "at"), sentence)
        if scheduled.loc not in seen and (fault.for_ or 0) > IDLE_MS_MAX:
            yield Problem(
                (*scheduled.loc, "for"), f"`{scheduled.id}` lasts {format_length(fault.for_ or 0)}, and {total}"
            )
        seen.add(scheduled.loc)
        free_ms = max(free_ms, end_ms(fault))


def _deadlines(draft: Draft, workload: Workload, loc: Location) -> Iterator[Problem]:
    """Yield a warning for a deadline that leaves no time for a retry, or for the election of another leader."""
    for op in ("produce", "commit"):
        section = getattr(workload, op)
        if section is None or getattr(section, "acks", "all") == "0":
            continue
        linger_ms = getattr(section, "linger", 0)
        backoffs = [arm.settings.get("retry.backoff.ms", _RETRY_BACKOFF_MS) for arm in workload.arms.values()]
        backoff_ms = max((int(ms) for ms in backoffs if str(ms).isdecimal()), default=_RETRY_BACKOFF_MS)
        needed_ms = linger_ms + backoff_ms + 2 * ROUND_TRIP_MS
        deadline, what = format_duration(section.deadline), "record" if op == "produce" else "commit"
        if section.deadline < needed_ms:
            sentence = (
                f"a deadline of {deadline} leaves no time for a retry: linger, retry.backoff.ms and two round trips "
                f"take {format_duration(needed_ms)}, so each {what} whose first attempt fails is given up; lengthen it"
            )
            yield Problem((*loc, op, "deadline"), sentence)
            continue
        timeout_ms = session_timeout_ms(draft)
        silent = [
            scheduled.id
            for scheduled in draft.faults.expansion.schedule
            if scheduled.fault.kind in _SILENT and (scheduled.fault.for_ or 0) >= timeout_ms
        ]
        if silent and section.deadline < timeout_ms:
            sentence = (
                f"a deadline of {deadline} ends before the controller moves the leaders of a silent broker "
                f"({format_duration(timeout_ms)}), so {what}s to such a broker are given up during `{silent[0]}`: "
                "lengthen it, or expect failures"
            )
            yield Problem((*loc, op, "deadline"), sentence)


def _timeouts(draft: Draft, workload: Workload, loc: Location) -> Iterator[Problem]:
    """Yield a warning for a request timeout of an arm below the delay that a fault adds to each request."""
    racks = {section.rack for section in (workload.produce, workload.commit) if section}
    default = next(iter(draft.cluster.racks)) if draft.cluster else ""
    outages = [outage for rack in racks for outage in client_outages(draft, rack or default)]
    delay_ms, fault = max(((outage.delay_ms or 0, outage.fault) for outage in outages), default=(0, ""))
    for name, arm in workload.arms.items() if delay_ms else ():
        for setting in ("request.timeout.ms", "socket.timeout.ms"):
            value = arm.settings.get(setting)
            if isinstance(value, int) and 0 < value <= delay_ms:
                sentence = (
                    f"`{fault}` adds {delay_ms} ms to each request, so with {setting} {value} each request times out "
                    "while it lasts: raise the timeout, or lower the delay"
                )
                yield Problem((*loc, "arms", name, "settings", setting), sentence)


def _silent_topics(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each consumed topic of the plan to which no workload produces."""
    if draft.unreadable_workloads or draft.attach is not None:
        return
    declared = [topic.name for topic in draft.topics.values()]
    produces = [workload.produce for workload in draft.workloads.values() if workload.produce]
    produced = {name for produce in produces for name in produce.topic_names(declared)}
    for index, workload in draft.workloads.items():
        consume = workload.consume
        names = [name for name in consume.topic_names(declared) if name not in produced] if consume else []
        if consume and names and consume.pattern is None:
            key = "topic" if consume.topic else "topics"
            sentence = (
                f"no workload produces to `{names[0]}`, so no record is due there, and records of other programs count "
                "as corrupt: add a `produce`, or name another topic"
            )
            yield Problem(("workloads", index, "consume", key), sentence)


def _services_without_address(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each service that is not given the brokers' addresses, which differ from run to run."""
    if draft.attach is not None:
        return
    for index, workload in draft.workloads.items():
        for name, arm in workload.arms.items():
            texts = (*arm.command, *arm.env.values(), arm.file or "")
            if arm.client == "service" and not any("{bootstrap}" in text for text in texts):
                sentence = (
                    f"the service `{name}` is not given Kafka's address, which differs from run to run: write "
                    "{bootstrap} in its `env`, `command` or `file`"
                )
                yield Problem(("workloads", index, "arms", name), sentence)


def _unread_aborts(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for transactions that are aborted although no consumer with read_committed reads their topic.

    A service that promises exactly once is such a consumer.
    """
    if draft.unreadable_workloads or draft.attach is not None:
        return
    declared = [topic.name for topic in draft.topics.values()]
    consumes = [workload.consume for workload in draft.workloads.values() if workload.consume]
    read = {
        name for consume in consumes if consume.isolation == "read_committed" for name in consume.topic_names(declared)
    }
    read |= {load.pipe.from_ for load in draft.workloads.values() if load.pipe and load.pipe.transactional}
    for index, workload in draft.workloads.items():
        produce = workload.produce
        if produce and produce.transaction and produce.transaction.abort and read.isdisjoint(produce.topic_names(())):
            sentence = (
                "no consumer reads these topics with `isolation: read_committed`, so nobody checks that the records of "
                "aborted transactions stay hidden: add such a `consume`"
            )
            yield Problem(("workloads", index, "produce", "transaction", "abort"), sentence)


def _late_containers(draft: Draft) -> Iterator[Problem]:
    """Yield a warning for each fault that ends the container of a pod again, which the kubelet starts late then."""
    if draft.attach is None or draft.attach.kubernetes is None:
        return
    ended_ms: dict[str, int] = {}
    warned: set[Location] = set()
    for scheduled in sorted(draft.faults.expansion.schedule, key=lambda scheduled: scheduled.fault.at or 0):
        role, at_ms = str(getattr(scheduled.fault, "broker", "")), scheduled.fault.at or 0
        if scheduled.fault.kind not in _ENDING or not role.isdecimal():  # a role may be another broker each time
            continue
        if at_ms - ended_ms.get(role, -_KUBELET_MS) < _KUBELET_MS and scheduled.loc not in warned:
            warned.add(scheduled.loc)
            sentence = (
                f"`{scheduled.id}` ends the container of broker {role} again within ten minutes, so the kubelet starts "
                "it later each time (10 s, 20 s, … five minutes: CrashLoopBackOff), and the heal waits for that: use "
                "another broker, `pause`, or `delete_pod`"
            )
            yield Problem((*scheduled.loc, "kind"), sentence)
        ended_ms[role] = at_ms
