"""Anomalies of consumer groups that faults, elections of coordinators, deleted offsets and lost connections explain.

=========================  =============================================================================================
anomaly                    explained only by
=========================  =============================================================================================
two owners at once         a fault that keeps the earlier owner from its coordinator: its process is frozen or does not
                           poll, until it joins again; its links to the coordinator, or the coordinator's node, are
                           down; requests of the group's APIs are refused or lost. From the fault's start until the
                           session time-out and one heartbeat after its end, in which the member learns what it has
                           lost. A delay shorter than the session time-out keeps no member from its coordinator
delivered again            a reset of this reader's position that was out of range of the log, if ``auto.offset.reset``
                           allows it; otherwise as for a resumption before the commit
resumed before the commit  a truncation of the coordinator's partition of ``__consumer_offsets`` between the commit and
                           the assignment (an unclean election or a power cut), or ``delete_group_offsets`` between them
commit lost                such a truncation after the commit, or ``delete_group_offsets`` of its group and partition
commit moved back in the   a commit that was in flight on a connection that ended, or timed out, before the later commit
coordinator's log          was sent; faults that break connections count for clients that do not tell this themselves
=========================  =============================================================================================

A group's coordinator is the leader of the group's partition of ``__consumer_offsets``. If the run has no history of
leaders, faults of any broker explain, but not with certainty.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aftershock.names import OFFSETS_TOPIC, key_partition
from aftershock.results.checks.explanations.leadership import changes, in_office, may_elect_unclean
from aftershock.results.checks.explanations.model import Explanation, for_rules
from aftershock.results.checks.explanations.retries import breaks_connections, connection_ends
from aftershock.results.checks.explanations.written import logged_offsets
from aftershock.results.checks.obligations.reach import Harm, harms_of, settings_of
from aftershock.results.evidence.evidence import Client, Evidence, workload_of
from aftershock.results.evidence.groups import committers, committing_readers, group_of, reader_events
from aftershock.results.evidence.manifest import LEADERS
from aftershock.results.evidence.outages import FROZEN, POLLING_STOPPED, worker_outages

_OFFSETS_PARTITIONS = 50
"""Kafka's offsets.topic.num.partitions."""
_SESSION_MS, _BEAT_MS, _BEAT_848_MS = 45_000, 3_000, 5_000
"""Kafka's session time-out, and heartbeat interval of the classic and the consumer protocol (KIP-848)."""
_GROUP_APIS = ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat")
"""Requests by which a member learns what it has lost."""
_LOSING = ("drop_request", "drop_response", "answer_error", "hide_error", "close_mid_frame", "cap_versions")
_DELAYING = ("latency", "slow_rack", "packet_delay", "packet_reorder", "slice", "delay_request", "delay_response")
_HARMLESS = ("slow_close", "packet_duplicate", "disconnect_client", "close_session", "config", "reassign", "elect")
"""Kinds that keep no member from its coordinator for longer than a reconnection or a look-up takes."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")
_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0, "m": 60_000.0, "h": 3_600_000.0}
_RESUMED = (("commit_behind", "consume"), ("duplicate", "consume"))


def of_groups(evidence: Evidence, truncations: Sequence[Explanation]) -> Iterator[Explanation]:
    """Yield what explains anomalies of groups; ``truncations`` are explanations of records that were truncated."""
    harms = _injected(evidence)
    for client in evidence.clients:
        if client.consumes_from:
            yield from _of_reader(evidence, client, truncations)
            yield from _of_members(evidence, client, harms)
    yield from _of_coordinators(evidence, truncations)
    yield from _of_deletions(evidence)
    for client in committers(evidence):
        yield from _of_lost_commits(evidence, client, "commit", harms)
    for client in committing_readers(evidence):
        yield from _of_lost_commits(evidence, client, "consume", harms)


def lease_us(evidence: Evidence, client: Client) -> int:
    """Return the session time-out of a client's group members and one heartbeat, by the protocol of its group."""
    workload = workload_of(evidence, client)
    kind = (workload["arms"][client.arm] or {}).get("client")
    own = {str(name).replace("_", "."): value for name, value in evidence.arm_settings(client).items()}
    default = "consumer" if kind == "reference" else "classic"
    protocol = (workload.get("consume") or {}).get("protocol") or own.get("group.protocol", default)
    prefix, settings, beat_ms = "", own, _BEAT_MS
    if str(protocol).lower() == "consumer":
        prefix, settings, beat_ms = "group.consumer.", dict(settings_of(evidence)), _BEAT_848_MS

    def milliseconds(name: str, usual: int) -> int:
        value = str(settings.get(prefix + name))
        return int(value) if value.isdecimal() else usual

    return 1_000 * (milliseconds("session.timeout.ms", _SESSION_MS) + milliseconds("heartbeat.interval.ms", beat_ms))


def coordinator_partition(evidence: Evidence, group: str) -> int | None:
    """Return the partition of ``__consumer_offsets`` that stores a group's commits; None if their number is unknown."""
    known = [one.partition for one in evidence.leaders or () if one.topic == OFFSETS_TOPIC]
    if "attach" not in (evidence.timeline.get("cluster") or {}):
        count = int(settings_of(evidence).get("offsets.topic.num.partitions", _OFFSETS_PARTITIONS))
    elif known:
        count = max(known) + 1
    else:
        return None
    return key_partition(group, count)


def coordinators(evidence: Evidence, group: str, from_us: int, until_us: int) -> frozenset[int] | None:
    """Return the brokers that may have coordinated a group in an interval; None if the run has no such history."""
    number = coordinator_partition(evidence, group)
    history = sorted(
        (one for one in evidence.leaders or () if (one.topic, one.partition) == (OFFSETS_TOPIC, number)),
        key=lambda one: one.epoch,
    )
    nodes = frozenset(one.leader for one in in_office(history, from_us, until_us) if one.leader is not None)
    return nodes or None


def _injected(evidence: Evidence) -> list[Harm]:
    injected = {line["fault"] for line in evidence.journal if line["state"] == "injected"}
    until_us = max((phase.end_us for phase in evidence.phases), default=0)
    return [harm for harm in harms_of(evidence, until_us) if harm.fault in injected]


def _of_reader(evidence: Evidence, client: Client, truncations: Sequence[Explanation]) -> Iterator[Explanation]:
    """Yield what explains records that a reader delivers again after a reset of its position."""
    own = Explanation("duplicate", "consume", "", "events.jsonl", client=client.key)
    if not any(reader == client for reader, _ in reader_events(evidence, "assigned")):
        cause = "an assignment of which the client does not tell"
        yield replace(own, cause=cause, evidence="events.jsonl has no `assigned` of the client", certain=False)
    usual = "latest" if client.from_latest else "earliest"
    policy = str(evidence.arm_settings(client).get("auto.offset.reset", usual)).lower()
    for reader, line in reader_events(evidence, "position_reset"):
        if reader != client or policy not in ("earliest", "smallest", "beginning"):
            continue
        topic, number, position, at_us = line["topic"], line["partition"], int(line.get("offset", 0)), int(line["t_us"])
        logged = logged_offsets(evidence, topic)
        # the position may also have been beyond a log that was truncated, and has grown again
        truncated = any(
            one.client is None and one.topic == topic and one.partition in (None, number) and one.certain
            for one in truncations
        )
        first, last = (logged or {}).get(number, (0, -1))
        if logged is None or truncated or not first <= position <= last + 1:
            cause = f"a reset of the position {position} in {topic}/{number}, which was out of range"
            place = replace(own, cause=cause, topic=topic, partition=number, worker=client.reader_of(line))
            missing = {"evidence": "the log is not on this host", "certain": False} if logged is None else {}
            yield replace(place, from_us=at_us, until_us=at_us, **missing)  # type: ignore[arg-type]


def _of_members(evidence: Evidence, client: Client, harms: Sequence[Harm]) -> Iterator[Explanation]:
    """Yield what keeps members of a client's group from learning that others have got their partitions."""
    group = group_of(evidence, client)
    if group is None:
        return
    lease = lease_us(evidence, client)
    own = Explanation("co_owned", "consume", "", "journal.jsonl", client=client.key, throughout=True)
    outages = {
        "was frozen": worker_outages(evidence, FROZEN),
        "did not poll": worker_outages(evidence, POLLING_STOPPED),
    }
    for what, by_worker in outages.items():
        for worker in client.workers("consume"):
            for start_us, end_us in by_worker.get(worker, ()):
                cause = f"{worker} {what} from {start_us / 1e6:.1f} to {end_us / 1e6:.1f} s"
                until_us = int(min(end_us + lease, _joined_again_us(evidence, client, worker, start_us)))
                yield replace(own, cause=cause, worker=worker, from_us=start_us, until_us=until_us)
    for event in evidence.events:
        stalled_us = int(event.get("until_us") or 0) - int(event.get("since_us") or 0)
        if event.get("event") == "stalled" and stalled_us >= lease and (not event.get("worker") or client.wrote(event)):
            cause = f"a process stood still for {stalled_us / 1e6:.1f} s"
            still = replace(own, cause=cause, evidence="events.jsonl", worker=event.get("worker"))
            yield replace(still, from_us=int(event["since_us"]), until_us=int(event["until_us"]) + lease)
    for harm in harms:
        nodes = coordinators(evidence, group, harm.start_us, harm.end_us)
        cause = f"{harm.fault} ({harm.kind}), which kept members of {group} from their coordinator"
        during = replace(own, cause=cause, from_us=harm.start_us, until_us=harm.end_us + lease)
        rule = _rule(evidence, harm)
        if rule is not None:
            workers = [name for name in rule.get("clients") or () if name in client.workers("consume")]
            if _loses_heartbeats(rule, lease) and (workers or not rule.get("clients")):
                yield from (replace(during, worker=worker) for worker in workers or [None])
        elif _cuts_off(evidence, harm, client, nodes, lease):
            unknown = "is missing" if evidence.leaders is None else f"does not tell which broker coordinated {group}"
            missing = f"{LEADERS} {unknown}"
            yield during if nodes else replace(during, evidence=missing, certain=False)


def _joined_again_us(evidence: Evidence, client: Client, worker: str, since_us: int) -> float:
    """Return when a member was first assigned partitions after it had lost its own; infinity if it was not."""
    lost = False
    for event in sorted(evidence.events, key=lambda event: int(event["t_us"])):
        if int(event["t_us"]) >= since_us and client.wrote(event) and client.reader_of(event) == worker:
            lost |= event["event"] == "lost"
            if lost and event["event"] == "assigned" and event.get("partitions"):
                return int(event["t_us"])
    return math.inf


def _rule(evidence: Evidence, harm: Harm) -> Mapping[str, Any] | None:
    """Return the rule of the wire proxy that a fault added, as its journal lines have it."""
    roles = ((line.get("targets") or {}).get("roles") or {} for line in evidence.journal if line["fault"] == harm.fault)
    return next((of_line["rule"] for of_line in roles if of_line.get("rule")), None)


def _loses_heartbeats(rule: Mapping[str, Any], lease: int) -> bool:
    apis = {*(rule.get("versions") or {}), rule.get("api")} - {None}
    if apis and apis.isdisjoint(_GROUP_APIS):
        return False
    return rule.get("do") in _LOSING or 1_000 * int(rule.get("delay_ms") or rule.get("throttle_ms") or 0) >= lease


def _cuts_off(evidence: Evidence, harm: Harm, client: Client, nodes: frozenset[int] | None, lease: int) -> bool:
    """Return True if a fault separates a client from the coordinators ``nodes``, or from any broker if unknown."""
    if harm.impact in ("leaders", "members") or harm.kind in _HARMLESS:
        return False
    if harm.kind in _DELAYING or harm.impact == "moments":
        parameters = next((step.get("parameters") or {} for step in evidence.steps if step["id"] == harm.fault), {})
        # of both directions
        if 2 * _longest_ms(parameters) * 1_000 < lease:
            return False
    if harm.brokers and (nodes is None or harm.brokers & nodes):
        return True
    racks = {node["id"]: node.get("rack") for node in evidence.run.get("brokers", ())}
    for link in harm.links:
        channel, _, ends = link.partition("_")
        rack, _, node = ends.rpartition("-k")
        to_coordinator = nodes is None or node in {str(one) for one in nodes}
        if channel == "client":
            if rack == client.consume_rack and to_coordinator:
                return True
        elif to_coordinator or rack in {racks.get(one) for one in nodes or ()}:
            return True  # a coordinator that is cut off from its controller does not know that it was replaced
    return False


def _longest_ms(parameters: Mapping[str, Any]) -> float:
    """Return the longest delay that the parameters of a fault name, with its jitter; 0 if they name none."""

    def of(name: str, values: Mapping[str, Any] = parameters) -> float:
        parts = _DURATION.findall(str(values.get(name, "")))
        return sum(float(number) * _MS[unit] for number, unit in parts)

    spikes = parameters.get("spikes")
    spike_ms = of("delay", spikes) if isinstance(spikes, Mapping) else 0.0
    return max(of("delay"), of("ramp_to"), spike_ms) + of("jitter")


def _of_coordinators(evidence: Evidence, truncations: Sequence[Explanation]) -> Iterator[Explanation]:
    """Yield what truncations of the coordinators' partitions explain, by group."""
    by_place = [(one.partition, one) for one in truncations if (one.rule, one.side) == ("lost", "produce")]
    lost = [(number, one) for number, one in by_place if one.topic == OFFSETS_TOPIC]
    if evidence.leaders is None and may_elect_unclean(evidence, OFFSETS_TOPIC):
        cause = f"an unclean election of a leader of {OFFSETS_TOPIC}"
        lost.append((None, Explanation("", "", cause, f"{LEADERS} is missing", certain=False)))
    if not lost:
        return
    after = {(one.partition, one.epoch): one.after_us for one in changes(evidence.leaders or ())}
    for client, group in _groups(evidence):
        partition = coordinator_partition(evidence, group)
        for number, one in lost:
            if number not in (None, partition):
                continue
            bare = Explanation("lost", "commit", one.cause, one.evidence, certain=one.certain, until_us=one.until_us)
            yield replace(bare, group=group)
            if client is not None:
                elected_us = None if one.epoch is None or number is None else after.get((number, one.epoch))
                yield from for_rules(replace(bare, client=client.key, from_us=elected_us), *_RESUMED)


def _groups(evidence: Evidence) -> Iterator[tuple[Client | None, str]]:
    """Yield the group of each client that reads in one, and without a client the groups that only commit."""
    for client in evidence.clients:
        if client.consumes_from and (group := group_of(evidence, client)):
            yield client, group
    for client in committers(evidence):
        workload = workload_of(evidence, client)
        for number in range(int(workload["commit"].get("groups", 1))):
            yield None, f"{client.workload}-{client.arm}-{number}"


def _of_deletions(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what faults explain that deleted the committed offsets of a group."""
    until_us = max((phase.end_us for phase in evidence.phases), default=0)
    for line in evidence.journal:
        targets = line.get("targets") or {}
        roles = targets.get("roles") or {}
        if line["state"] != "injected" or "commit_behind" not in roles.get("permits", ()):
            continue
        lines = [other["t_us"] for other in evidence.journal if other["fault"] == line["fault"]]
        ended_us = max(lines) if len(lines) > 1 else until_us
        group, topic = str(roles.get("group")), next(iter(targets.get("topics", ())), None)
        for number, offset in (roles.get("offsets") or {}).items():
            cause = (
                f"{line['fault']} ({line.get('kind')}), which deleted offset {offset} of {group} in {topic}/{number}"
            )
            bare = Explanation("lost", "commit", cause, "journal.jsonl", topic=topic, partition=int(number))
            yield replace(bare, group=group, until_us=ended_us)
            for client in evidence.clients:
                if client.consumes_from and group_of(evidence, client) == group:
                    own = replace(bare, client=client.key, from_us=min(lines))
                    # the commit was acknowledged before, and the group resumed after the deletion
                    yield from for_rules(replace(own, until_us=ended_us, until_offset=int(offset)), *_RESUMED)
                    yield from for_rules(own, ("skipped", "consume"))


def _of_lost_commits(evidence: Evidence, client: Client, op: str, harms: Sequence[Harm]) -> Iterator[Explanation]:
    """Yield what lets a commit in flight reach its coordinator after a later commit."""
    own = Explanation("backward", "commit", "", "events.jsonl", client=client.key)
    ends, tells = connection_ends(evidence, client, op)
    for since_us, at_us, cause in ends:
        during = replace(own, cause=f"{cause} while the commit was in flight")
        yield replace(during, from_us=since_us, until_us=at_us)
    if tells:
        return
    workload = workload_of(evidence, client)
    rack = (workload.get(op) or {}).get("rack")
    for harm in harms:
        api = (_rule(evidence, harm) or {}).get("api")
        if api in (None, "OffsetCommit") and breaks_connections(harm, client.workers(op), rack, (OFFSETS_TOPIC,)):
            cause = f"{harm.fault} ({harm.kind}), which breaks connections or loses answers"
            during = replace(own, cause=cause, evidence="journal.jsonl")
            yield replace(during, from_us=harm.start_us, until_us=harm.end_us)
    cause = "a connection that ended while the commit was in flight, of which the client does not tell"
    yield replace(own, cause=cause, evidence="events.jsonl has no such event", from_us=0, certain=False)
