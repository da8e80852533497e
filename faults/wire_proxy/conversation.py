"""Application of the wire proxy's rules in force to the requests and responses of one client connection.

A broker answers the requests of a connection in their order, and clients rely on that.

After the wire proxy drops a message, no later message of the connection may arrive, because TCP loses no message out of
the middle of a stream. Therefore the wire proxy closes the connection at once, or keeps the connection silent until the
rule is removed.

A FrameSplitter splits the client's requests, which rules drop, delay, duplicate or refuse, before the DelayQueue
``to_broker`` sends them. Another FrameSplitter splits the broker's responses, which rules change, delay, drop or
truncate, before the DelayQueue ``to_client`` sends them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.active_rules import ActiveRule, ActiveRules, Hit
from aftershock.faults.wire_proxy.fetches import FETCH, Asked, FetchObserver
from aftershock.faults.wire_proxy.holds import Hold, Watched
from aftershock.faults.wire_proxy.messages import (
    CORRELATION,
    RequestHead,
    decoded_request,
    decoded_response,
    frame_with_body,
    read_head,
    response_frame,
)
from aftershock.faults.wire_proxy.responses import (
    READ_ONLY,
    BrokerView,
    altered_response,
    answered_response,
    divided_request,
    joined_response,
    refusal,
    throttled_response,
    without_epoch,
)
from aftershock.faults.wire_proxy.rules import Answered, Ending, ScriptedAnswer, names
from aftershock.faults.wire_proxy.streams import DelayQueue, FrameSplitter, Piece

PENDING_MAX = 100_000  # far above a client's requests in flight; with more unanswered it doesn't read responses


@dataclass
class Pending:
    """A request that a client sent and that has no response yet.

    ``built`` is the response that the wire proxy built, for a request that the broker does not get. ``is_copy`` is True
    for the duplicate of a request, whose response the wire proxy discards. An observed Fetch request has ``asked``.
    ``held`` is set for a request that a rule holds, ``watched`` for requests of a producer of which another is held.
    ``refused`` are responses about partitions of the request that the broker did not get.
    """

    head: RequestHead
    hits: tuple[Hit, ...] = ()
    built: bytes | None = None
    built_after_ms: int = 0
    refused: list[Any] = field(default_factory=list)
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
            for rule, *_ in candidates
        )
        body = decoded_request(frame, head) if needs_body else None
        hits = self._active_rules.hits(candidates, head, body)
        watched = self._active_rules.holds.saw_request(head, body) if body is not None else ()
        delay_ms, copies, refused = 0, list[Answered](), list[Any]()
        for hit in hits:
            match hit.rule.do:
                case "drop_request":
                    self._drop(hit, head, self._to_broker, hit.rule.connection)
                    return
                case "answer_error" if hit.answer and hit.answer.lost == "request":
                    self._drop(hit, head, self._to_broker, hit.answer.connection)
                    return
                case "close_mid_frame" if hit.rule.message == "request":
                    self._close_mid_frame(hit, frame, self._to_broker)
                    return
                case "answer_error" if hit.answer and self._refuses(hit.answer, head) and body is not None:
                    rest = self._refuse(hit, hit.answer, frame, Pending(head, refused=refused), body)
                    if rest is None:
                        return
                    frame, body = rest
                case "hold_request" if not self._active_rules.holds.has_held(body):
                    self._hold(hit, frame, Pending(head, hits), body)
                    return
                case "falsify_epochs" if body is not None:
                    unfenced = without_epoch(body, hit.subject)
                    if unfenced is not body and (changed := frame_with_body(frame, head, body, unfenced)):
                        body, frame = unfenced, changed
                case "delay_request":
                    hit.count_request()
                    delay_ms += hit.rule.delay_ms
                case "duplicate_request":
                    hit.count_request()
                    copies.append(hit.rule.answer)
        requests = [Pending(head, hits, asked=asked, watched=watched, refused=refused)]
        for passed_on in copies:  # the client gets the response to the request that is no copy
            requests.insert(0 if passed_on == "second" else len(requests), Pending(head, is_copy=True))
        for pending in requests:
            self._await_response(pending)
            self._to_broker.send(frame, delay_ms)

    def _refuse(
        self, hit: Hit, answer: ScriptedAnswer, frame: Piece, pending: Pending, body: Any
    ) -> tuple[Piece, Any] | None:
        """Refuse the rule's part of a request; return what the broker gets, None if that is nothing.

        The response about the refused part joins the ``refused`` ones of ``pending``, or is sent with these.
        """
        head = pending.head
        rest, named = divided_request(body, hit.subject)
        if named is None:
            return frame, body  # another rule has refused the partition
        self._count(hit, head)
        if not head.answered:
            self._end()  # a broker also has no other way to report an error (``KafkaApis.handleProduceRequest``)
            return None
        shortened = None if rest is None else frame_with_body(frame, head, body, rest)
        named = body if shortened is None else named
        response = throttled_response(refusal(named, answer.error), answer.throttle_ms)
        if shortened is not None:
            pending.refused.append(response)
            return shortened, rest
        for earlier in pending.refused:
            response = joined_response(response, earlier)
        built = response_frame(response, head.correlation_id)
        self._await_response(Pending(head, built=built, built_after_ms=answer.after_ms))
        self._send_built()
        return None

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
            if hit.is_open:
                hit = self._closed(hit, frame, pending.head)  # noqa: PLW2901 -- the answer is known only now
            match hit.rule.do:
                case "drop_response":
                    self._drop(hit, pending.head, self._to_client, hit.rule.connection)
                    return
                case "answer_error" if hit.answer and hit.answer.lost:
                    self._drop(hit, pending.head, self._to_client, hit.answer.connection)
                    return
                case "answer_error" | "throttle_response" if hit.answer:
                    delay_ms += hit.answer.after_ms
                    frame = self._answered(hit, hit.answer, frame, pending)
                case "close_mid_frame" if hit.rule.message == "response":
                    self._close_mid_frame(hit, frame, self._to_client)
                    return
                case "delay_response":
                    hit.count_request()
                    delay_ms += hit.rule.delay_ms
                    serial |= hit.rule.serial
                case "hide_error" | "cap_versions" | "strip_hints" | "falsify_hints" | "falsify_epochs":
                    frame = self._altered(hit, frame, pending.head)
        if pending.refused:
            response = decoded_response(frame, pending.head)
            if response is None:  # a client can't tell what became of the partitions that the broker did not get
                self._end()
                return
            for refused in pending.refused:
                response = joined_response(response, refused)
            frame = response_frame(response, pending.head.correlation_id)
        if not pending.is_copy:
            if self._observer and pending.asked:
                self._observer.saw_response(pending.head, pending.asked, frame, self._broker_view.broker)
            self._to_client.send(frame, delay_ms, serial=serial)
        self._send_built()

    def _altered(self, hit: Hit, frame: Piece, head: RequestHead) -> Piece:
        response = decoded_response(frame, head)
        if response is None:
            hit.counts["untouched"] += 1
            return frame
        altered = altered_response(response, hit.rule, hit.subject, self._broker_view)
        if altered is response:
            return frame
        self._count(hit, head)
        return response_frame(altered, head.correlation_id)

    def _closed(self, hit: Hit, frame: Piece, head: RequestHead) -> Hit:
        """Return a hit with the answer that its script has, if the response is about the rule's partition."""
        response = decoded_response(frame, head)
        if response is None or not names(response, hit.subject):
            return hit._replace(is_open=False)
        number, answer = hit.active.next_answer(head.client_id)
        return hit._replace(is_open=False, answer=answer, number=number)

    def _answered(self, hit: Hit, answer: ScriptedAnswer, frame: Piece, pending: Pending) -> Piece:
        """Return the response with what the answer puts into it; count the request if the client sees the answer."""
        if pending.refused and self._refuses(answer, pending.head):
            return frame  # counted when the request was divided
        if answer.error or answer.throttle_ms:
            response = decoded_response(frame, pending.head)
            altered = response if response is None else answered_response(response, answer, hit.subject)
            if altered is response:
                # no items about the rule's partition, or in this version no such field
                hit.counts["untouched"] += response is None or answer.throttle_ms > 0
                return frame
            frame = response_frame(altered, pending.head.correlation_id)
        if not answer.is_plain:
            self._count(hit, pending.head)
        return frame

    def _count(self, hit: Hit, head: RequestHead) -> None:
        self._active_rules.record(hit, head, self._broker_view.broker)

    def _refuses(self, answer: ScriptedAnswer, head: RequestHead) -> bool:
        return answer.refuses(read_only=head.key in READ_ONLY)

    def _notice(self, pending: Pending, response: Any | None) -> None:
        """Tell the holds of the response to a held request, or to another request of a producer with a held one."""
        if pending.held:
            self.held.remove(pending.held)
            self._active_rules.holds.answered(pending.held, response)
        elif response is not None:
            self._active_rules.holds.saw_response(pending.watched, pending.head, response)

    def _send_built(self) -> None:
        while self._pending and (answer := self._pending[0].built) is not None:
            self._to_client.send(answer, self._pending.popleft().built_after_ms)

    def _drop(self, hit: Hit, head: RequestHead, queue: DelayQueue, connection: Ending) -> None:
        self._count(hit, head)
        if connection == "closed":
            self._end()
            return
        queue.muted = True
        self.silenced_by.add(hit.rule.name)

    def _close_mid_frame(self, hit: Hit, frame: Piece, queue: DelayQueue) -> None:
        """Send the start of a message, never all of it, and close the connection."""
        hit.count_request()
        after_bytes = len(frame) // 2 if hit.rule.after_bytes is None else hit.rule.after_bytes
        if kept := min(after_bytes, len(frame) - 1):
            queue.send(frame[:kept])
        queue.finish()
