"""Rules of the wire proxy in force, and their application to the requests and responses of one client connection.

A broker answers the requests of a connection in their order, and clients rely on that.

After the wire proxy drops a message, no later message of the connection may arrive, because TCP loses no message out of
the middle of a stream. Therefore the wire proxy closes the connection at once, or keeps the connection silent until the
rule is removed.

A FrameSplitter splits the client's requests, which rules drop, delay, duplicate or refuse, before the DelayQueue
``to_broker`` sends them. Another FrameSplitter splits the broker's responses, which rules change, delay, drop or
truncate, before the DelayQueue ``to_client`` sends them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.fetches import FETCH, Asked, FetchObserver
from aftershock.faults.wire_proxy.holds import Hold, Holds, Watched
from aftershock.faults.wire_proxy.messages import (
    CORRELATION,
    RequestHead,
    decoded_request,
    decoded_response,
    read_head,
    response_frame,
)
from aftershock.faults.wire_proxy.responses import READ_ONLY, BrokerView, altered_response, refusal
from aftershock.faults.wire_proxy.rules import ANY, API_KEYS, PROBE, Answered, Rule, RuleSubject, is_about, probe_id
from aftershock.faults.wire_proxy.streams import DelayQueue, FrameSplitter, Piece

PENDING_MAX = 100_000  # far above a client's requests in flight; with more unanswered it doesn't read responses


class ActiveRule(NamedTuple):
    """A rule of the wire proxy in force, with the counters of its requests."""

    rule: Rule
    counts: Counter[str]


class Hit(NamedTuple):
    """A rule that applies to a request; ``is_probe`` is True if the request is a probe sent by the harness."""

    rule: Rule
    counts: Counter[str]
    is_probe: bool

    @property
    def subject(self) -> RuleSubject:
        """Topic and partition whose items in the response are changed; in a probe's response, all items are changed."""
        return ANY if self.is_probe else self.rule.subject

    def count_request(self) -> None:
        self.counts["probed" if self.is_probe else "hit"] += 1


class ActiveRules:
    """Rules of the wire proxy in force, in the order in which they were added."""

    def __init__(self) -> None:
        self._rules: dict[str, ActiveRule] = {}
        self.holds = Holds()
        """Requests that rules hold, on all connections."""

    def add(self, rule: Rule) -> None:
        """Put a rule in force; raise ValueError if another rule has its name."""
        if rule.name in self._rules:
            raise ValueError(f"a rule {rule.name!r} is already in force; remove it first, or use another name")
        counts = Counter(matched=0, hit=0, untouched=0, probed=0)
        if rule.do == "hold_request":
            counts["exposed"] = 0
        self._rules[rule.name] = ActiveRule(rule, counts)

    def remove(self, name: str) -> Rule | None:
        """Remove a rule and return it; None if no rule has this name."""
        active = self._rules.pop(name, None)
        return active.rule if active else None

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counters of each rule in force, by the rule's name."""
        return {name: dict(counts) for name, (_, counts) in self._rules.items()}

    def candidates(self, head: RequestHead) -> tuple[ActiveRule, ...]:
        """Return the rules that may apply to a request, judged by the request's header."""
        if not self._rules:
            return ()
        client_id = head.client_id
        is_probe = client_id is not None and client_id.startswith(PROBE)
        return tuple(
            active
            for name, active in self._rules.items()
            if (active.rule.api is None or API_KEYS[active.rule.api] == head.key)
            and (client_id == probe_id(name) if is_probe else active.rule.names(client_id))
        )

    def hits(self, candidates: Iterable[ActiveRule], head: RequestHead, request: Any) -> tuple[Hit, ...]:
        """Return the rules that apply to a request, and count the request in the counters of the candidate rules.

        ``request`` is the request's body, None if no rule needs the body, or if the body can't be decoded.
        """
        hits = []
        for rule, counts in candidates:
            if head.client_id == probe_id(rule.name):
                hits.append(Hit(rule, counts, is_probe=True))
            elif request is None and (rule.topic is not None or rule.do == "hold_request"):
                counts["untouched"] += 1
            elif rule.do == "hold_request" and not self.holds.may_hold(rule, request):
                continue
            elif request is None or is_about(request, rule.subject):
                counts["matched"] += 1
                bit = rule.chances[(counts["matched"] - 1) % len(rule.chances)] if rule.chances else "1"
                if counts["matched"] == rule.nth or (rule.nth is None and bit == "1"):
                    hits.append(Hit(rule, counts, is_probe=False))
        return tuple(hits)


@dataclass
class Pending:
    """A request that a client sent and that has no response yet.

    ``built`` is the response that the wire proxy built, for a request that the broker does not get. ``is_copy`` is True
    for the duplicate of a request, whose response the wire proxy discards. An observed Fetch request has ``asked``.
    ``held`` is set for a request that a rule holds, ``watched`` for requests of a producer of which another is held.
    """

    head: RequestHead
    hits: tuple[Hit, ...] = ()
    built: bytes | None = None
    is_copy: bool = False
    asked: Asked | None = None
    held: Hold | None = None
    watched: tuple[Watched, ...] = ()


class Conversation:
    """Both directions of one client connection.

    The callback ``end`` closes the client's and the broker's socket, ``end_client`` only the client's.
    An ``observer`` sees what the client sends, and what it gets: no request or response that a rule drops.
    """

    def __init__(
        self,
        active_rules: ActiveRules,
        broker_view: BrokerView,
        to_broker: DelayQueue,
        to_client: DelayQueue,
        end: Callable[[], None],
        end_client: Callable[[], None],
        observer: FetchObserver | None = None,
    ) -> None:
        self._observer = observer
        self._active_rules = active_rules
        self._broker_view = broker_view
        self._to_broker = to_broker
        self._to_client = to_client
        self._end = end
        self._end_client = end_client
        self._requests = FrameSplitter(self._judge_request, self._take_request, to_broker.send)
        self._responses = FrameSplitter(self._judge_response, self._take_response, to_client.send)
        # Requests that will be answered, in their order. A response to another request, which no broker sends, passes
        # unchanged.
        self._pending: deque[Pending] = deque()
        self.client_id: str | None = None
        self.silenced_by: set[str] = set()
        """Names of the rules that keep the connection silent."""
        self.held: list[Hold] = []
        """Requests that are held, or whose response has not come."""

    def from_client(self, data: bytes) -> None:
        """Handle bytes from the client; raise ProtocolError for bytes that are not Kafka requests."""
        if not self._to_broker.muted:
            self._requests.feed(data)

    def from_broker(self, data: bytes) -> None:
        """Handle bytes from the broker; raise ProtocolError for bytes that are not Kafka responses."""
        if not self._to_client.muted or self.held:
            self._responses.feed(data)

    def depends_on(self, rule: str) -> bool:
        """Return True if the rule of this name keeps the connection silent, or holds a request of it."""
        return rule in self.silenced_by or any(hold.rule.name == rule for hold in self.held)

    def ended(self, why: str) -> None:
        """Give up the requests that are held, or whose response has not come."""
        for hold in self.held:
            self._active_rules.holds.lost(hold, why)
        self.held.clear()

    def _judge_request(self, data: Piece, at: int) -> tuple[RequestHead, tuple[ActiveRule, ...]] | None:
        """Return a request's header and the rules that may apply to the request; None if there are no such rules."""
        head = read_head(data, at)
        self.client_id = head.client_id
        candidates = self._active_rules.candidates(head)
        if candidates or (self._observer and head.key == FETCH) or self._active_rules.holds.watches(head):
            return head, candidates
        self._await_response(Pending(head))
        return None

    def _take_request(self, frame: Piece, request: tuple[RequestHead, tuple[ActiveRule, ...]]) -> None:
        head, candidates = request
        asked = None
        if self._observer and head.key == FETCH:
            asked = self._observer.saw_request(head, frame, self._broker_view.broker)
        # only rules about a topic, refusals and held requests need the decoded request
        needs_body = self._active_rules.holds.watches(head) or any(
            rule.topic is not None
            or rule.do == "hold_request"
            or (rule.do == "answer_error" and head.key not in READ_ONLY)
            for rule, _ in candidates
        )
        body = decoded_request(frame, head) if needs_body else None
        hits = self._active_rules.hits(candidates, head, body)
        watched = self._active_rules.holds.saw_request(head, body) if body is not None else ()
        delay_ms, copies = 0, list[Answered]()
        for hit in hits:
            match hit.rule.do:
                case "drop_request":
                    self._drop(hit, self._to_broker)
                    return
                case "close_mid_frame" if hit.rule.message == "request":
                    self._close_mid_frame(hit, frame, self._to_broker)
                    return
                case "answer_error" if head.key not in READ_ONLY and body is not None:
                    hit.count_request()
                    if head.answered:
                        answer = response_frame(refusal(body, hit.rule.error), head.correlation_id)
                        self._await_response(Pending(head, built=answer))
                        self._send_built()
                    else:  # a broker also has no other way to report an error (``KafkaApis.handleProduceRequest``)
                        self._end()
                    return
                case "hold_request" if not self._active_rules.holds.has_held(body):
                    self._hold(hit, frame, Pending(head, hits), body)
                    return
                case "delay_request":
                    hit.count_request()
                    delay_ms += hit.rule.delay_ms
                case "duplicate_request":
                    hit.count_request()
                    copies.append(hit.rule.answer)
        requests = [Pending(head, hits, asked=asked, watched=watched)]
        for passed_on in copies:  # the client gets the response to the request that is no copy
            requests.insert(0 if passed_on == "second" else len(requests), Pending(head, is_copy=True))
        for pending in requests:
            self._await_response(pending)
            self._to_broker.send(frame, delay_ms)

    def _hold(self, hit: Hit, frame: Piece, pending: Pending, body: Any) -> None:
        """Keep a request until it is released, and end the client's connection if the rule says so."""
        hit.count_request()
        self._await_response(pending)
        release, broker = self._to_broker.hold(frame), self._broker_view.broker
        pending.held = self._active_rules.holds.hold(hit.rule, hit.counts, pending.head, body, broker, release)
        self.held.append(pending.held)
        if hit.rule.connection == "closed":
            self._to_broker.muted = True  # what the client has sent behind the request is lost with the connection
            self._end_client()

    def _await_response(self, pending: Pending) -> None:
        if pending.head.answered and not self._to_client.muted:
            self._pending.append(pending)
            if len(self._pending) > PENDING_MAX:
                raise ProtocolError(f"more than {PENDING_MAX} requests of the connection are unanswered")

    def _judge_response(self, data: Piece, at: int) -> Pending | None:
        """Return the request of a response; None if no rule applies to the response, which is then passed on."""
        (correlation_id,) = CORRELATION.unpack_from(data, at)
        if not self._pending or self._pending[0].head.correlation_id != correlation_id:
            return None
        pending = self._pending.popleft()
        next_is_built = bool(self._pending) and self._pending[0].built is not None
        is_taken = pending.hits or pending.is_copy or pending.asked or pending.held or pending.watched
        return pending if is_taken or next_is_built else None

    def _take_response(self, frame: Piece, pending: Pending) -> None:
        delay_ms, serial = 0, False
        if pending.held or pending.watched:
            self._notice(pending, decoded_response(frame, pending.head))
        for hit in pending.hits:
            match hit.rule.do:
                case "drop_response":
                    self._drop(hit, self._to_client)
                    return
                case "close_mid_frame" if hit.rule.message == "response":
                    self._close_mid_frame(hit, frame, self._to_client)
                    return
                case "delay_response":
                    hit.count_request()
                    delay_ms += hit.rule.delay_ms
                    serial |= hit.rule.serial
                case "answer_error" | "hide_error" | "cap_versions" | "strip_hints" | "falsify_hints":
                    response = decoded_response(frame, pending.head)
                    if response is None:
                        hit.counts["untouched"] += 1
                        continue
                    altered = altered_response(response, hit.rule, hit.subject, self._broker_view)
                    if altered is not response:
                        hit.count_request()
                        frame = response_frame(altered, pending.head.correlation_id)
        if not pending.is_copy:
            if self._observer and pending.asked:
                self._observer.saw_response(pending.head, pending.asked, frame, self._broker_view.broker)
            self._to_client.send(frame, delay_ms, serial=serial)
        self._send_built()

    def _notice(self, pending: Pending, response: Any | None) -> None:
        """Tell the holds of the response to a held request, or to another request of a producer with a held one."""
        if pending.held:
            self.held.remove(pending.held)
            self._active_rules.holds.answered(pending.held, response)
        elif response is not None:
            self._active_rules.holds.saw_response(pending.watched, pending.head, response)

    def _send_built(self) -> None:
        while self._pending and (answer := self._pending[0].built) is not None:
            self._pending.popleft()
            self._to_client.send(answer)

    def _drop(self, hit: Hit, queue: DelayQueue) -> None:
        hit.count_request()
        if hit.rule.connection == "closed":
            self._end()
            return
        queue.muted = True
        self.silenced_by.add(hit.rule.name)

    def _close_mid_frame(self, hit: Hit, frame: Piece, queue: DelayQueue) -> None:
        hit.count_request()
        queue.send(frame[: len(frame) // 2])
        queue.finish()
