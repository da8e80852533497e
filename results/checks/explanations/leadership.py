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

A former leader that is cut off or frozen does not know that it was replaced, and acknowledges until the fault ends;
then its records may be acknowledged after the election.

After an unclean election readers meet other records at offsets that they have read or are about to read. They do so
until the new leader has written as much as was lost, at the same rate for as long as the elected replica had been away:
from the start of the earliest fault in force at the election.
"""

from collections.abc import Iterator, Sequence

from aftershock.results.checks.explanations.model import Explanation, for_rules
from aftershock.results.checks.obligations.reach import Harm, harms_of, settings_of
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.leaders import NAME, Leadership

TRUNCATED = (("lost", "produce"), ("misplaced", "produce"), ("backward", "produce"))
"""Rules (rule, side) that a truncated record of a producer breaks."""
REWRITTEN = (("duplicate", "produce"), ("order", "produce"))
"""Rules that records written again break, because the new leader does not know the truncated batches."""
READ_AGAIN = tuple((rule, "consume") for rule in ("lost", "duplicate", "order", "collision", "skipped", "backward"))
CLOSED_US = 2_000_000
"""Time after an election in which a producer with acks=0 may still send to the former leader: it learns of the change
when that broker closes the connection, and needs a metadata request (KafkaApis.handleProduceRequest)."""
UNCLEAN = "unclean.leader.election.enable"


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
                unknown = Explanation("", "", cause, f"{NAME} is missing", topic=topic["name"], certain=False)
                yield from for_rules(unknown, *TRUNCATED, *REWRITTEN, *READ_AGAIN)
        return
    for leadership in changes(evidence.leaders):
        if leadership.unclean or (leadership.unclean is None and may_elect_unclean(evidence, leadership.topic)):
            yield from truncation(leadership, harms, f"the unclean election{_place(leadership)}")


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


def truncation(leadership: Leadership, harms: Sequence[Harm], cause: str) -> Iterator[Explanation]:
    """Yield what the start of an epoch explains if the leader lacked records that were acknowledged by all in sync."""
    gone = _truncated(leadership, harms, cause)
    yield from for_rules(gone, *TRUNCATED)
    if leadership.after_us is None or leadership.by_us is None:
        return
    during = [harm.start_us for harm in _in_force(leadership, harms)]
    away_us = leadership.by_us - min(during, default=leadership.after_us)
    around = Explanation(
        *("", "", cause, NAME, None, None, leadership.topic, leadership.topic_id, leadership.partition),
        from_offset=leadership.start_offset,
        from_us=leadership.after_us - away_us,
        until_us=leadership.by_us + away_us,
        certain=leadership.start_offset is not None,
    )
    yield from for_rules(around, *REWRITTEN, *READ_AGAIN)


def _of_client(evidence: Evidence, client: Client, harms: Sequence[Harm]) -> Iterator[Explanation]:
    by_acks = f"with acks={client.acks} "
    if evidence.leaders is None:
        cause = f"{by_acks}a change of leader may lose acknowledged records"
        yield from for_rules(
            Explanation("", "", cause, f"{NAME} is missing", client=client.key, certain=False), *TRUNCATED
        )
        return
    for leadership in changes(evidence.leaders):
        if leadership.topic not in client.produces_to:
            continue
        cause = f"{by_acks}the change of leader{_place(leadership)}"
        if client.acks == "0":
            explanation = Explanation(
                *("lost", "produce", cause, NAME, client.key, None),
                *(leadership.topic, leadership.topic_id, leadership.partition),
                from_us=min([harm.start_us for harm in _in_force(leadership, harms)], default=leadership.after_us),
                until_us=None if leadership.by_us is None else _known_us(leadership, harms) + CLOSED_US,
                certain=None not in (leadership.after_us, leadership.by_us),
            )
            yield explanation
        else:
            gone = _truncated(leadership, harms, cause)
            for explanation in for_rules(gone, *TRUNCATED):
                yield Explanation(**vars(explanation) | {"client": client.key})


def _truncated(leadership: Leadership, harms: Sequence[Harm], cause: str) -> Explanation:
    return Explanation(
        *("", "", cause, NAME, None, None, leadership.topic, leadership.topic_id, leadership.partition),
        from_offset=leadership.start_offset,
        until_us=None if leadership.by_us is None else _known_us(leadership, harms),
        epoch=leadership.epoch,
        certain=None not in (leadership.start_offset, leadership.by_us),
    )


def _known_us(leadership: Leadership, harms: Sequence[Harm]) -> int:
    """Return the time by which the former leader has learnt of the election, or can't acknowledge any more."""
    hiding = [harm for harm in _in_force(leadership, harms) if harm.between_nodes or not harm.announced]
    return max([leadership.by_us or 0, *(harm.end_us for harm in hiding if harm.between_nodes or harm.brokers)])


def _in_force(leadership: Leadership, harms: Sequence[Harm]) -> list[Harm]:
    after_us, by_us = leadership.after_us or 0, leadership.by_us or 0
    return [harm for harm in harms if harm.start_us <= by_us and after_us <= harm.end_us]


def _place(leadership: Leadership) -> str:
    at = "" if leadership.start_offset is None else f" at offset {leadership.start_offset}"
    return f" of {leadership.topic}/{leadership.partition} to epoch {leadership.epoch}{at}"
