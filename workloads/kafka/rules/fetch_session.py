"""KIP-227 incremental fetch sessions of a client, with one ``FetchSession`` object per broker.

1. A Fetch request has a session id and an epoch. With epoch 0 (open a session) or -1 (open no session), the request is
   *full* and lists every partition; with other epochs it is *incremental* and lists the changes since the previous
   request.
2. Epochs number the requests of a fetch session with 1, 2, … 2^31-1, and then 1 again, never 0.
3. The response to a Fetch request decides the session id and epoch of the next Fetch request.

   ==================================================  =====================  =========
   answer                                              next request           response
   ==================================================  =====================  =========
   full, with a session id                             (id, 1)                accepted
   full, no id, the broker's session cache is full     (0, 0)                 accepted
   full, empty, and the broker throttles (KIP-219)     (0, 0)                 discarded
   full, partitions or topic ids missing or too many   (0, 0)                 discarded
   incremental, the same id                            (id, epoch + 1)        accepted
   incremental, id 0, the broker closed it as empty    (0, 0)                 accepted
   incremental, a partition not in the session         (id, 0)                discarded
   error FETCH_SESSION_ID_NOT_FOUND                    (0, 0)                 discarded
   any other top-level error                           (id, 0)                discarded
   none (timeout, disconnect)                          (id, 0)                none
   ==================================================  =====================  =========

   A request with (id, 0) replaces the old session by a new session. After FETCH_SESSION_TOPIC_ID_ERROR the client also
   requests new metadata.
4. In a fetch session, changed partitions keep their place, and new partitions go last. A full Fetch request lists all
   partitions in the order in which the broker shall read them, up to ``fetch.max.bytes``; an incremental request lists
   new partitions, then changed partitions.
5. A Fetch request identifies topics by id if every partition, including partitions to forget, has a topic id.

Modelled on ``FetchSessionHandler`` and ``FetchMetadata`` of Kafka 4.3.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition

NO_SESSION = 0
"""Session id of a Fetch request outside any fetch session."""
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
TOPIC_IDS_SINCE = 13
"""First version of Fetch requests that identifies topics by id."""

FETCH_SESSION_ID_NOT_FOUND = 70
FETCH_SESSION_TOPIC_ID_ERROR = 106


class FetchPartition(NamedTuple):
    """Parameters of one partition in a Fetch request, without the parameters that only follower brokers send."""

    topic_id: UUID | None
    fetch_offset: int
    max_bytes: int
    leader_epoch: int = UNKNOWN


Dropped = tuple[TopicPartition, UUID | None]
"""Partition that a Fetch request removes from the fetch session, and its topic id there."""


class FetchRequestPlan(NamedTuple):
    """Fields of a Fetch request that depend on the fetch session; ``send`` has the partitions in request order."""

    session_id: int
    epoch: int
    send: Mapping[TopicPartition, FetchPartition]
    forgotten: tuple[Dropped, ...] = ()
    replaced: tuple[Dropped, ...] = ()
    topic_ids: bool = True

    @property
    def full(self) -> bool:
        return self.epoch in {INITIAL_EPOCH, FINAL_EPOCH}

    def to_forget(self, version: int) -> tuple[Dropped, ...]:
        """Return the partitions to remove from the fetch session; a recreated topic is removed by its old topic id."""
        return self.forgotten + self.replaced if version >= TOPIC_IDS_SINCE else self.forgotten


class SessionEvent(StrEnum):
    """Event of a fetch session, counted as ``sessions_<event>``."""

    ESTABLISHED = "established"
    REFUSED = "refused"  # the broker granted no session
    LOST = "lost"  # the broker no longer has the session
    RESET = "reset"  # the client replaces the session after an error
    CLOSED = "closed"  # closed by the broker as empty, or by the client


class SessionVerdict(NamedTuple):
    """Decision to process a Fetch response's partitions, or to discard the whole response because of ``problem``."""

    accepted: bool
    event: SessionEvent | None = None
    refresh_metadata: bool = False
    problem: str = ""


def next_epoch(epoch: int) -> int:
    """Return the epoch after ``epoch`` in a fetch session, never 0, which is reserved for full requests."""
    return epoch + 1 if epoch < EPOCH_MAX else 1


class FetchSession:
    """Client's state of the fetch session at one broker, with at most one Fetch request in flight.

    With ``enabled=False`` (for measurements without KIP-227) every Fetch request is full and opens no fetch session.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self.topic_names: Mapping[UUID, str] = {}
        self._all_have_ids = True
        self._enabled = enabled
        self.partitions: dict[TopicPartition, FetchPartition] = {}
        """Partitions of the fetch session, in the order in which they were added to the session."""
        self.session_id: int
        self.epoch: int
        self._begin_anew(NO_SESSION)

    @property
    def is_open(self) -> bool:
        """True if a fetch session is open, so that the next Fetch request is incremental."""
        return self.epoch > INITIAL_EPOCH

    def build(self, wanted: Mapping[TopicPartition, FetchPartition]) -> FetchRequestPlan:
        """Build the next Fetch request, so that the broker's fetch session has exactly the partitions ``wanted``."""
        self.counts["fetches_incremental" if self.is_open else "fetches_full"] += 1
        if not self.is_open:
            self.partitions = dict(wanted)
            self._index_topics()
            return FetchRequestPlan(self.session_id, self.epoch, dict(wanted), topic_ids=self._all_have_ids)
        session = self.partitions
        differ = {tp: old for tp, old in session.items() if wanted.get(tp) != old}
        changed = {tp: wanted[tp] for tp in differ if tp in wanted}
        forgotten = tuple((tp, old.topic_id) for tp, old in differ.items() if tp not in wanted)
        # A topic was recreated under its name if both ids are known and differ.
        other_ids = {tp: differ[tp].topic_id for tp, new in changed.items() if differ[tp].topic_id != new.topic_id}
        replaced = tuple((tp, old_id) for tp, old_id in other_ids.items() if old_id and changed[tp].topic_id)
        grown = len(wanted) > len(session) - len(forgotten)
        added = {tp: new for tp, new in wanted.items() if tp not in session} if grown else {}
        # Rule 4: updating a dict keeps a changed partition in its place.
        for tp, _ in forgotten:
            del session[tp]
        session.update(changed)
        session.update(added)
        if added or forgotten or other_ids:
            self._index_topics()
        by_id = self._all_have_ids and all(topic_id for _, topic_id in forgotten)
        return FetchRequestPlan(self.session_id, self.epoch, added | changed, forgotten, replaced, by_id)

    def on_response(
        self,
        *,
        error: int,
        session_id: int,
        partitions: Collection[TopicPartition],
        throttle_ms: float = 0,
        unknown_topic_ids: Collection[UUID] = (),
    ) -> SessionVerdict:
        """Process a Fetch response; ``unknown_topic_ids`` are topic ids in the response but not in ``topic_names``."""
        if error == FETCH_SESSION_ID_NOT_FOUND:
            event = self._count(SessionEvent.LOST) if self.is_open else None
            self._begin_anew(NO_SESSION)
            return SessionVerdict(False, event)
        if error:
            return SessionVerdict(False, self._give_up(), refresh_metadata=error == FETCH_SESSION_TOPIC_ID_ERROR)
        was_open = self.is_open
        problems = {
            "missing": () if was_open else self.partitions.keys() - partitions,
            "extra": [tp for tp in partitions if tp not in self.partitions],
            "unknown": unknown_topic_ids,
        }
        if not was_open:
            self._begin_anew(NO_SESSION)
            if not partitions and throttle_ms > 0:
                return SessionVerdict(False)
        if any(problems.values()):
            self.counts["fetch_responses_discarded"] += 1
            problem = ", ".join(f"{len(items)} {kind}" for kind, items in problems.items() if items)
            return SessionVerdict(False, self._give_up() if was_open else None, problem=problem)
        if was_open and session_id == NO_SESSION:
            self._begin_anew(NO_SESSION)
            return SessionVerdict(True, self._count(SessionEvent.CLOSED))
        if was_open:
            self.epoch = next_epoch(self.epoch)
            return SessionVerdict(True)
        if session_id != NO_SESSION and self._enabled:
            self.session_id, self.epoch = session_id, next_epoch(INITIAL_EPOCH)
            return SessionVerdict(True, self._count(SessionEvent.ESTABLISHED))
        return SessionVerdict(True, self._count(SessionEvent.REFUSED) if self._enabled else None)

    def on_failure(self) -> tuple[TopicPartition, ...]:
        """Process a lost Fetch response; return the partitions that the caller must fetch from their leaders again."""
        self._give_up()
        return tuple(self.partitions)

    def close(self) -> FetchRequestPlan | None:
        if self.session_id == NO_SESSION:
            return None
        plan = FetchRequestPlan(self.session_id, FINAL_EPOCH, {})
        if self.is_open:
            self._count(SessionEvent.CLOSED)
        self.partitions = {}
        self._begin_anew(NO_SESSION)
        return plan

    def _index_topics(self) -> None:
        """Store the topic names by topic id, or no names if a topic in the fetch session has no id."""
        names = {partition.topic_id: tp.topic for tp, partition in self.partitions.items()}
        self._all_have_ids = None not in names
        self.topic_names = {topic_id: name for topic_id, name in names.items() if topic_id and self._all_have_ids}

    def _give_up(self) -> SessionEvent | None:
        event = self._count(SessionEvent.RESET) if self.is_open else None
        self._begin_anew(self.session_id)
        return event

    def _begin_anew(self, session_id: int) -> None:
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH if self._enabled else FINAL_EPOCH

    def _count(self, event: SessionEvent) -> SessionEvent:
        self.counts[f"sessions_{event}"] += 1
        return event
