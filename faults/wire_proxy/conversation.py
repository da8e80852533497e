"""Requests and responses of one client connection, with the rules applied to them.

::

    client ──▶ requests (FrameSplitter) ──▶ drop, delay, duplicate, refuse ──▶ to_broker (DelayQueue) ──▶ broker
           ◀── to_client (DelayQueue) ◀── change, delay, drop, truncate ◀── responses (FrameSplitter) ◀──

A broker answers a connection's requests in their order, and clients rely on it. So every request that will be answered
is in ``_pending`` until then, with the rules that apply to its response. A response to any other request (which no
broker sends) passes unchanged.

After a dropped message, no later message may arrive as if nothing had been lost: TCP loses no message out of the middle
of a stream. So the connection is closed, either at once or after a silence until the rule is removed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.messages import (
    CORRELATION,
    RequestHead,
    decoded_request,
    decoded_response,
    read_head,
    response_frame,
)
from aftershock.faults.wire_proxy.responses import READ_ONLY, BrokerView, altered_response, refusal
from aftershock.faults.wire_proxy.rules import ActiveRule, ActiveRules, Hit
from aftershock.faults.wire_proxy.streams import DelayQueue, FrameSplitter, Piece

PENDING_MAX = 100_000  # far above a client's requests in flight; with more unanswered it doesn't read responses


@dataclass
class Request:
    """A request that must be decoded completely: its header, and the rules that may apply to it."""

    head: RequestHead
    candidates: tuple[ActiveRule, ...]


@dataclass
class Pending:
    """A request without a response yet.

    ``built``: the response that the proxy sends instead of the broker; ``is_copy``: the response to a duplicate is
    discarded.
    """

    head: RequestHead
    hits: tuple[Hit, ...] = ()
    built: bytes | None = None
    is_copy: bool = False


class Conversation:
    """Both directions of one client connection. ``end`` closes both connections at once."""

    def __init__(
        self,
        book: ActiveRules,
        broker_view: BrokerView,
        to_broker: DelayQueue,
        to_client: DelayQueue,
        end: Callable[[], None],
    ) -> None:
        self._book = book
        self._broker_view = broker_view
        self._to_broker = to_broker
        self._to_client = to_client
        self._end = end
        self._requests = FrameSplitter(self._judge_request, self._take_request, to_broker.send)
        self._responses = FrameSplitter(self._judge_response, self._take_response, to_client.send)
        self._pending: deque[Pending] = deque()
        self.client_id: str | None = None
        self.silenced_by: set[str] = set()
        """Names of the rules that keep it silent."""

    def from_client(self, data: bytes) -> None:
        """Handle bytes from the client. ProtocolError: the connection must be closed."""
        if not self._to_broker.muted:
            self._requests.feed(data)

    def from_broker(self, data: bytes) -> None:
        """Handle bytes from the broker. Raises ProtocolError as ``from_client``."""
        if not self._to_client.muted:
            self._responses.feed(data)

    def _judge_request(self, data: Piece, at: int) -> Request | None:
        head = read_head(data, at)
        self.client_id = head.client_id
        candidates = self._book.candidates(head)
        if candidates:
            return Request(head, candidates)
        self._await_answer(Pending(head))
        return None

    def _take_request(self, frame: Piece, request: Request) -> None:
        head = request.head
        body = decoded_request(frame, head) if any(_reads(live, head) for live in request.candidates) else None
        hits = self._book.hits(request.candidates, head, body)
        delay_ms, copies = 0, 1
        for hit in hits:
            match hit.rule.do:
                case "drop_request":
                    return self._lose(hit, self._to_broker)
                case "close_mid_frame" if hit.rule.message == "request":
                    return self._break_off(hit, frame, self._to_broker)
                case "answer_error" if head.key not in READ_ONLY and body is not None:
                    return self._refuse(hit, head, response_frame(refusal(body, hit.rule.error), head.correlation_id))
                case "delay_request":
                    hit.done()
                    delay_ms += hit.rule.delay_ms
                case "duplicate_request":
                    hit.done()
                    copies += 1
        self._await_answer(Pending(head, hits))
        for copy in range(copies):
            if copy:
                self._await_answer(Pending(head, is_copy=True))
            self._to_broker.send(frame, delay_ms)
        return None

    def _refuse(self, hit: Hit, head: RequestHead, answer: bytes) -> None:
        hit.done()
        if not head.answered:
            self._end()  # like a broker, which has no other way to report an error (``KafkaApis.handleProduceRequest``)
            return
        self._await_answer(Pending(head, built=answer))
        self._send_built()

    def _await_answer(self, pending: Pending) -> None:
        if pending.head.answered and not self._to_client.muted:
            self._pending.append(pending)
            if len(self._pending) > PENDING_MAX:
                raise ProtocolError(f"more than {PENDING_MAX} requests are unanswered")

    def _judge_response(self, data: Piece, at: int) -> Pending | None:
        (correlation_id,) = CORRELATION.unpack_from(data, at)
        if not self._pending or self._pending[0].head.correlation_id != correlation_id:
            return None
        pending = self._pending.popleft()
        one_behind_is_built = bool(self._pending) and self._pending[0].built is not None
        return pending if pending.hits or pending.is_copy or one_behind_is_built else None

    def _take_response(self, frame: Piece, pending: Pending) -> None:
        if not pending.is_copy:
            self._answer(frame, pending)
        self._send_built()

    def _answer(self, frame: Piece, pending: Pending) -> None:
        delay_ms, serial_ms = 0, 0
        for hit in pending.hits:
            match hit.rule.do:
                case "drop_response":
                    return self._lose(hit, self._to_client)
                case "close_mid_frame" if hit.rule.message == "response":
                    return self._break_off(hit, frame, self._to_client)
                case "delay_response":
                    hit.done()
                    serial_ms += hit.rule.delay_ms if hit.rule.serial else 0
                    delay_ms += 0 if hit.rule.serial else hit.rule.delay_ms
                case "answer_error" | "cap_versions" | "strip_hints" | "falsify_hints":
                    frame = self._changed(frame, hit, pending.head)
        if serial_ms:
            self._to_client.send_serially(frame, serial_ms + delay_ms)
        else:
            self._to_client.send(frame, delay_ms)
        return None

    def _changed(self, frame: Piece, hit: Hit, head: RequestHead) -> Piece:
        response = decoded_response(frame, head)
        if response is None:
            hit.untouched()
            return frame
        changed = altered_response(response, hit.rule, hit.named, self._broker_view)
        if changed is response:
            return frame
        hit.done()
        return response_frame(changed, head.correlation_id)

    def _send_built(self) -> None:
        while self._pending and (answer := self._pending[0].built) is not None:
            self._pending.popleft()
            self._to_client.send(answer)

    def _lose(self, hit: Hit, queue: DelayQueue) -> None:
        hit.done()
        if hit.rule.connection == "closed":
            self._end()
            return
        queue.muted = True
        self.silenced_by.add(hit.rule.name)

    def _break_off(self, hit: Hit, frame: Piece, queue: DelayQueue) -> None:
        hit.done()
        queue.send(frame[: len(frame) // 2])
        queue.finish()


def _reads(live: ActiveRule, head: RequestHead) -> bool:
    """Return True if the rule needs the decoded request."""
    return live.named.topic is not None or (live.rule.do == "answer_error" and head.key not in READ_ONLY)
