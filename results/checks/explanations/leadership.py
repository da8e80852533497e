"""Losses and rewritten offsets that changes of a partition's leader explain (KIP-101 truncation, KIP-966).

A leader that is elected with less than the former leader's log truncates every log to the start offset of its epoch. So
a record is gone because of a leader change only if it was acknowledged before that leader was elected, at or above the
start offset of its epoch:

========================================  ==========================================================================
change of leader                          may take
========================================  ==========================================================================
any                                       records of producers with ``acks`` below ``all``
unclean (the leader was not in the ISR)   records of every producer; readers may skip offsets and read them again
========================================  ==========================================================================

``min.insync.replicas`` permits nothing: with acks=all a record is acknowledged by all replicas in sync, however few.
With acks=0 a record has no offset, so only its place and time count.

The final log shows such a truncation: at the record's offset it holds another record, or it ends before that offset. A
gap is none, because leaders write without gaps.

A former leader acknowledges until it learns of the election. A broker that is not cut off hears from the controller
within ``broker.session.timeout.ms``, or is fenced. One that is cut off or frozen acknowledges until that fault ends.

After an unclean election readers meet other records at offsets that they have read or are about to read. They do so
until the new leader has written as much as was lost, at the same rate for as long as the elected replica had been away:
from the start of the earliest fault in force at the election.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from aftershock.results.checks.explanations.model import Explanation, for_rules
from aftershock.results.checks.obligations.reach import Harm, harms_of, settings_of
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.leadership import Leadership
from aftershock.results.evidence.manifest import LEADERS

TRUNCATED = (("lost", "produce"), ("misplaced", "produce"))
"""Rules (rule, side) that a truncated record of a producer breaks."""
REWRITTEN = (("duplicate", "produce"), ("order", "produce"))
"""Rules that records written again break, because the new leader does not know the truncated batches."""
READ_AGAIN = tuple((rule, "consume") for rule in ("lost", "duplicate", "order", "collision", "skipped", "backward"))
CLOSED_US = 2_000_000
"""Time after an election in which a producer with acks=0 may still send to the former leader: it learns of the change
when that broker closes the connection, and needs a metadata request (KafkaApis.handleProduceRequest)."""
UNCLEAN = "unclean.leader.election.enable"
_SESSION_MS = 9_000
"""Kafka's default of broker.session.timeout.ms."""


def of_leaders(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what each change of leader explains; if the run has no leader history, what it might explain."""
    harms = harms_of(evidence, max((phase.end_us for phase in evidence.phases), default=0))
    for client in evidence.clients:
        if client.produces_to and not client.acks_all:
            yield from _of_client(evidence, client, harms)
    if evidence.leaders is None:
        for topic in evidence.timeline.get("topics", ()):
            if may_elect_unclean(evidence, topic["name"]):
                cause = f"an unclean election of a leader of {topic['name']}, which {UNCLEAN} permits"
                unknown = Explanation("", "", cause, f"{LEADERS} is missing", topic=topic["name"], certain=False)
                yield from for_rules(unknown, *TRUNCATED, *REWRITTEN, *READ_AGAIN)
        return
    for leadership in changes(evidence.leaders):
        if leadership.unclean or (leadership.unclean is None and may_elect_unclean(evidence, leadership.topic)):
            cause = f"the unclean election{_place(leadership)}"
            known = leadership.unclean is not None
            for explanation in truncation(leadership, harms, cause, unheard_us(evidence, leadership, harms)):
                yield replace(explanation, certain=explanation.certain and known)


def may_elect_unclean(evidence: Evidence, topic: str) -> bool:
    """Return True if the settings of a topic of the plan permit unclean elections."""
    config = next((row.get("config") for row in evidence.timeline.get("topics", ()) if row["name"] == topic), None)
    return str((config or {}).get(UNCLEAN, settings_of(evidence).get(UNCLEAN))).lower() == "true"


def changes(leaders: Sequence[Leadership]) -> Iterator[Leadership]:
    """Yield the leaderships that follow another one of the same partition."""
    first: dict[tuple[str, str | None, int], int] = {}
    for one in sorted(leaders, key=lambda one: one.epoch):
        if first.setdefault((one.topic, one.topic_id, one.partition), one.epoch) != one.epoch:
            yield one


def led_by(
    leaders: Sequence[Leadership], brokers: Collection[int], from_us: int, until_us: int
) -> list[tuple[str, int]]:
    """Return the partitions that one of the brokers may have led in an interval, by topic and number."""
    by_place: dict[tuple[str, int], list[Leadership]] = {}
    for one in sorted(leaders, key=lambda one: one.epoch):
        by_place.setdefault((one.topic, one.partition), []).append(one)
    return [
        place
        for place, history in by_place.items()
        if any(one.leader is None or one.leader in brokers for one in in_office(history, from_us, until_us))
    ]


def in_office(history: Sequence[Leadership], from_us: int, until_us: int) -> Iterator[Leadership]:
    """Yield those leaderships of a partition, given in order of their epochs, that an interval may overlap."""
    for at, one in enumerate(history):
        begun_us = one.after_us if at else None
        ended_us = history[at + 1].by_us if at + 1 < len(history) else None
        if (begun_us is None or begun_us <= until_us) and (ended_us is None or ended_us >= from_us):
            yield one


def session_us(evidence: Evidence) -> int:
    """Return the time after which a broker that the controller does not hear of is fenced."""
    return round(float(settings_of(evidence).get("broker.session.timeout.ms", _SESSION_MS)) * 1000)


def unheard_us(evidence: Evidence, leadership: Leadership, harms: Sequence[Harm]) -> int:
    """Return for how long the former leader may not have heard of the election; 0 if it was dead when it was held."""
    place = leadership.topic, leadership.topic_id, leadership.partition
    earlier = [
        one
        for one in evidence.leaders or ()
        if (one.topic, one.topic_id, one.partition) == place and one.epoch < leadership.epoch
    ]
    former, by_us = max(earlier, key=lambda one: one.epoch).leader if earlier else None, leadership.by_us
    dead = any(
        harm.impact == "nodes" and harm.announced and former in harm.brokers
        for harm in harms
        if by_us is not None and harm.injected_us <= by_us <= harm.healing_us
    )
    return 0 if dead else session_us(evidence)


def truncation(leadership: Leadership, harms: Sequence[Harm], cause: str, late_us: int) -> Iterator[Explanation]:
    """Yield what the start of an epoch explains if the leader lacked records that were acknowledged by all in sync.

    ``late_us`` is the time for which the former leader may not have heard of the election.
    """
    yield from _of_producers(_truncated(leadership, harms, cause, late_us))
    if leadership.after_us is None or leadership.by_us is None:
        return
    during = [harm.start_us for harm in _in_force(leadership, harms)]
    away_us = leadership.by_us - min(during, default=leadership.after_us)
    around = Explanation(
        *("", "", cause, LEADERS, None, None, leadership.topic, leadership.topic_id, leadership.partition),
        from_offset=leadership.start_offset,
        from_us=leadership.after_us - away_us,
        until_us=leadership.by_us + away_us,
        certain=leadership.start_offset is not None,
    )
    yield from for_rules(around, *REWRITTEN, *READ_AGAIN)
    # a record of which another one has the offset now may have been read long before
    yield from for_rules(replace(around, from_us=None), ("collision", "consume"))


def _of_client(evidence: Evidence, client: Client, harms: Sequence[Harm]) -> Iterator[Explanation]:
    if evidence.leaders is None:
        cause = f"a change of leader, which may lose records acknowledged with acks={client.acks}"
        yield from for_rules(
            Explanation("", "", cause, f"{LEADERS} is missing", client=client.key, certain=False), *TRUNCATED
        )
        return
    for leadership in changes(evidence.leaders):
        if leadership.topic not in client.produces_to:
            continue
        cause = f"the change of leader{_place(leadership)}, with acks={client.acks}"
        late_us = unheard_us(evidence, leadership, harms)
        if client.acks == "0":
            yield Explanation(
                *("lost", "produce", cause, LEADERS, client.key, None),
                *(leadership.topic, leadership.topic_id, leadership.partition),
                from_us=min([harm.start_us for harm in _in_force(leadership, harms)], default=leadership.after_us),
                until_us=None if leadership.by_us is None else _known_us(leadership, harms, late_us) + CLOSED_US,
                certain=None not in (leadership.after_us, leadership.by_us),
            )
        else:
            gone = _truncated(leadership, harms, cause, late_us)
            yield from _of_producers(replace(gone, client=client.key))


def _of_producers(gone: Explanation) -> Iterator[Explanation]:
    """Yield what a truncation explains of producers; acknowledgements that go backward need no trace in the log."""
    yield from for_rules(gone, *TRUNCATED)
    yield from for_rules(replace(gone, truncation=False), ("backward", "produce"))


def _truncated(leadership: Leadership, harms: Sequence[Harm], cause: str, late_us: int) -> Explanation:
    return Explanation(
        *("", "", cause, LEADERS, None, None, leadership.topic, leadership.topic_id, leadership.partition),
        from_offset=leadership.start_offset,
        until_us=None if leadership.by_us is None else _known_us(leadership, harms, late_us),
        epoch=leadership.epoch,
        truncation=True,
        certain=None not in (leadership.start_offset, leadership.by_us),
    )


def _known_us(leadership: Leadership, harms: Sequence[Harm], late_us: int) -> int:
    """Return the time by which the former leader has learnt of the election, or can't acknowledge any more."""
    hiding = [harm for harm in _in_force(leadership, harms) if harm.between_nodes or not harm.announced]
    ends_us = [harm.end_us for harm in hiding if harm.between_nodes or harm.brokers]
    return max([leadership.by_us or 0, *ends_us]) + late_us


def _in_force(leadership: Leadership, harms: Sequence[Harm]) -> list[Harm]:
    after_us, by_us = leadership.after_us or 0, leadership.by_us or 0
    return [harm for harm in harms if harm.start_us <= by_us and after_us <= harm.end_us]


def _place(leadership: Leadership) -> str:
    at = "" if leadership.start_offset is None else f" at offset {leadership.start_offset}"
    return f" of {leadership.topic}/{leadership.partition} to epoch {leadership.epoch}{at}"
