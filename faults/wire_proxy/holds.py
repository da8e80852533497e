"""Requests of transactional producers that the wire proxy holds back until a later transaction is open.

A held request stands for a request that a slow network or broker delivers late: the producer has given it up, and has
repeated it on another connection. With version 1 of the transactions all transactions of a producer have the same
epoch, so the coordinator can't tell a late request from one of the transaction that is open by then (KAFKA-17754).

1. A producer is known by its transactional id. While a request of a producer is held, its other requests pass.
2. The transaction of a held request has ended when a broker answers a later EndTxn, or InitProducerId, of the producer
   without an error.
3. Records of requests after that end belong to the next transaction. They count when a broker acknowledges them. The
   next transaction ends as the first one does, and the records of the one after it are counted from 0.
4. The request is released to the broker when as many records are acknowledged as the rule wants; with 0, at the end of
   its own transaction. The broker's connection stays open although the producer's connection may have ended.
5. The broker's answer says what the request did, and in which state it met the producer (``MetState``). The state is in
   doubt if the producer has asked for another end since the release: nobody knows which request was handled first.
6. A request that is not released before its rule is removed is lost, as is one whose connection the broker closes.

``exposed`` counts the requests that were answered in the wanted state: a later transaction was open, or, if the rule
wants no records of it, the own transaction had ended.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.faults.wire_proxy.messages import RequestHead
from aftershock.faults.wire_proxy.responses import error_codes_in
from aftershock.faults.wire_proxy.rules import API_KEYS, API_NAMES, Rule, RuleOutcome
from aftershock.workloads.kafka.wire.batch import AFTER_CRC, BATCH_OVERHEAD, UNTIL_CRC, UNTIL_LENGTH_BYTES

END_TXN, INIT_PRODUCER_ID, PRODUCE = (API_KEYS[name] for name in ("EndTxn", "InitProducerId", "Produce"))
_JOINING = frozenset(API_KEYS[name] for name in ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit"))
"""APIs whose requests open a transaction, or belong to an open one."""
WATCHED = _JOINING | {END_TXN, INIT_PRODUCER_ID}
EVENTS_MAX = 5_000
"""Events that wait for the run, which takes them every second; when there are more, the oldest are discarded."""

ERROR_NAMES: dict[int, str] = {code.value: code.name.upper() for code in ErrorCode}

MetState = Literal["open", "between", "in_doubt"]
"""State of a producer in which a late request met it: a later transaction was open, none was, or it is not known."""


class Sender(NamedTuple):
    """Transactional id, producer id and epoch of a request; the epoch of a Produce request is that of its batch."""

    transactional_id: str
    producer_id: int
    epoch: int


def sender_of(request: Any) -> Sender | None:
    """Return the transactional producer that sent a request; None for a request of no transaction."""
    old = "v3_and_below_" if hasattr(request, "v3_and_below_transactional_id") else ""  # AddPartitionsToTxn
    name = getattr(request, f"{old}transactional_id", None)
    if not name:
        return None
    batches = [batch for _, batch in _batches(request)]
    if batches:
        return Sender(name, *batches[0][:2])
    ids = (getattr(request, f"{old}producer_{part}", -1) for part in ("id", "epoch"))
    return Sender(name, *map(int, ids))


def outcome_of(request: Any) -> RuleOutcome | None:
    """Return how an EndTxn request ends a transaction; None for another request."""
    return ("commit" if request.committed else "abort") if request.__api_key__ == END_TXN else None


class _Batch(NamedTuple):
    producer_id: int
    epoch: int
    records: int


def _batches(request: Any) -> list[tuple[tuple[Any, int], _Batch]]:
    """Return the batches of a Produce request, each with its topic (name or id) and partition."""
    found = []
    for topic in request.topic_data if request.__api_key__ == PRODUCE else ():
        for partition in topic.partition_data:
            data, at = partition.records or b"", 0
            while len(data) - at >= BATCH_OVERHEAD:
                _, length, *_ = UNTIL_CRC.unpack_from(data, at)
                *_, producer_id, epoch, _, count = AFTER_CRC.unpack_from(data, at + UNTIL_CRC.size)
                found.append(((_topic_of(topic), int(partition.index)), _Batch(producer_id, epoch, count)))
                at += max(BATCH_OVERHEAD, UNTIL_LENGTH_BYTES + length)
    return found


def _topic_of(item: Any) -> Any:
    return getattr(item, "name", None) or getattr(item, "topic_id", None)


@dataclass(eq=False)
class Hold:
    """One held request; ``release`` sends it to the broker.

    ``ends`` is the number of its producer's transactions that have ended since. ``end_asked`` is True while the end of
    the current transaction is asked for, ``joined`` if a request of the next transaction was sent, and ``records`` the
    number of its acknowledged records. Times are those of ``time.monotonic_ns``.
    """

    rule: Rule
    counts: dict[str, int]
    api: str
    client_id: str
    broker: int
    sender: Sender
    outcome: RuleOutcome | None
    held_ns: int
    release: Callable[[], None]
    ends: int = 0
    end_asked: bool = False
    joined: bool = False
    records: int = 0
    ends_at_release: int | None = None
    released_ns: int = 0
    epoch_of_records: int | None = None
    over: bool = False

    @property
    def is_released(self) -> bool:
        return self.ends_at_release is not None

    def met(self) -> MetState:
        """Return in which state of the producer the broker has handled the request, if it answers now."""
        if self.end_asked or self.ends != self.ends_at_release:
            return "in_doubt"
        if self.records:
            return "open"
        return "in_doubt" if self.joined else "between"


class Watched(NamedTuple):
    """Request of a producer of which another request is held; ``ends`` are the transactions that had ended before."""

    hold: Hold
    ends: int
    records: Mapping[tuple[Any, int], int]
    epoch: int


@dataclass
class Holds:
    """Held requests of all connections, and the events of those that are over."""

    clock_ns: Callable[[], int] = time.monotonic_ns
    _held: list[Hold] = field(default_factory=list)
    _events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))

    def may_hold(self, rule: Rule, request: Any) -> bool:
        """Return True if a request is one of a transaction that the rule may hold."""
        return sender_of(request) is not None and rule.outcome in (None, outcome_of(request))

    def has_held(self, request: Any) -> bool:
        """Return True if another request of the request's producer is held."""
        sender = sender_of(request)
        return any(hold.sender.transactional_id == sender.transactional_id for hold in self._held if sender)

    def hold(
        self,
        rule: Rule,
        counts: dict[str, int],
        head: RequestHead,
        request: Any,
        broker: int,
        release: Callable[[], None],
    ) -> Hold:
        """Begin to hold a request, for which ``may_hold`` is True."""
        sender = sender_of(request)
        assert sender is not None  # noqa: S101  # by ``may_hold``
        api, client_id = API_NAMES[head.key], head.client_id or ""
        hold = Hold(rule, counts, api, client_id, broker, sender, outcome_of(request), self.clock_ns(), release)
        self._held.append(hold)
        return hold

    def watches(self, head: RequestHead) -> bool:
        """Return True if a request must be decoded, because a request of the same client is held."""
        return head.key in WATCHED and any(hold.client_id == (head.client_id or "") for hold in self._held)

    def saw_request(self, head: RequestHead, request: Any) -> tuple[Watched, ...]:
        """Take note of a request that is passed on; ``saw_response`` needs the result."""
        sender = sender_of(request)
        if sender is None:
            return ()
        watched = []
        for hold in self._held:
            if hold.sender.transactional_id != sender.transactional_id:
                continue
            records: dict[tuple[Any, int], int] = {}
            for place, batch in _batches(request):
                records[place] = records.get(place, 0) + batch.records
            watched.append(Watched(hold, hold.ends, records, sender.epoch))
            if head.key not in _JOINING:
                hold.end_asked = True
            elif hold.ends:
                hold.joined = True
        return tuple(watched)

    def saw_response(self, watched: tuple[Watched, ...], head: RequestHead, response: Any) -> None:
        """Take note of a broker's answer to a watched request, and release what is due."""
        for hold, ends, records, epoch in watched:
            if hold.over:
                continue
            if head.key in (END_TXN, INIT_PRODUCER_ID):
                if not response.error_code:
                    hold.ends, hold.end_asked, hold.joined, hold.records = hold.ends + 1, False, False, 0
            elif head.key == PRODUCE and ends and ends == hold.ends:
                for topic in response.responses:
                    for partition in topic.partition_responses:
                        if not partition.error_code:
                            hold.records += records.get((_topic_of(topic), int(partition.index)), 0)
                            hold.epoch_of_records = epoch
            if not hold.is_released and hold.ends and not hold.end_asked and hold.records >= hold.rule.sent:
                hold.ends_at_release, hold.released_ns = hold.ends, self.clock_ns()
                hold.release()

    def answered(self, hold: Hold, response: Any) -> None:
        """Take note of the broker's answer to the held request itself; None for an answer that can't be decoded."""
        met = hold.met()
        errors = None if response is None else sorted(error_codes_in(response))
        wanted = ("open",) if hold.rule.sent else ("open", "between", "in_doubt")
        if errors is not None and met in wanted:
            hold.counts["exposed"] += 1
        now_ns = self.clock_ns()
        answer = None if errors is None else "+".join(ERROR_NAMES.get(code, str(code)) for code in errors) or "NONE"
        self._end(
            hold,
            "held_request_delivered",
            now_ns,
            met=met,
            answer=answer,
            answered_ms=_ms(now_ns - hold.released_ns),
            records=hold.records,
            epoch_of_records=hold.epoch_of_records,
        )

    def lost(self, hold: Hold, why: str) -> None:
        """Take note that a held request will have no answer."""
        if not hold.over:
            self._end(hold, "held_request_lost", self.clock_ns(), why=why, released=hold.is_released)

    def take(self) -> list[dict[str, Any]]:
        """Return the events since the last call, with times by ``time.monotonic_ns()``."""
        events = list(self._events)
        self._events.clear()
        return events

    def _end(self, hold: Hold, event: str, now_ns: int, **details: object) -> None:
        hold.over = True
        self._held.remove(hold)
        same = {"fault": hold.rule.name, "worker": hold.client_id, "node_id": hold.broker, "api": hold.api}
        same |= {"outcome": hold.outcome, **hold.sender._asdict()}
        held_ms = _ms((hold.released_ns if hold.is_released else now_ns) - hold.held_ns)
        self._events.append({"event": event, "at_ns": now_ns, **same, "held_ms": held_ms, **details})


def _ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, 3)
