"""One client's connection and the one to its broker: what becomes of each request and of its answer.

::

    client ──▶ requests (Cutter) ──▶ drop, delay, double, refuse ──▶ to_broker (Lane) ──▶ broker
           ◀── to_client (Lane) ◀── change, delay, drop, break ◀── responses (Cutter) ◀──

A broker answers a connection's requests in their order, and clients rely on it. So every request that will be answered
stands in ``_pending`` until it is, with the rules that its answer has met. An answer to something else (which no broker
sends) passes as it is.

When a message is dropped, none after it may arrive as if nothing had been: TCP loses no message out of the middle. So
the connection is closed, or keeps silent from there on until the rule goes, and is closed then.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aftershock.errors import ProtocolError
from aftershock.faults.wire_proxy.messages import (
    CORRELATION,
    Head,
    decoded_request,
    decoded_response,
    read_head,
    response_frame,
)
from aftershock.faults.wire_proxy.responses import READ_ONLY, Place, altered, refusal
from aftershock.faults.wire_proxy.rules import Book, Hit, Live
from aftershock.faults.wire_proxy.streams import Cutter, Lane, Piece

PENDING_MAX = 100_000  # a client has some requests in flight; who has more unanswered isn't listening


@dataclass
class Request:
    """A request that is wanted whole: its head, and the rules that may meet it."""

    head: Head
    candidates: tuple[Live, ...]


@dataclass
class Pending:
    """A request to be answered. ``made_up``: by this; ``is_double``: the answer to a copy, which nobody waits for."""

    head: Head
    hits: tuple[Hit, ...] = ()
    made_up: bytes | None = None
    is_double: bool = False


class Conversation:
    """See above. ``end`` closes both connections at once."""

    def __init__(self, book: Book, place: Place, to_broker: Lane, to_client: Lane, end: Callable[[], None]) -> None:
        self._book = book
        self._place = place
        self._to_broker = to_broker
        self._to_client = to_client
        self._end = end
        self._requests = Cutter(self._judge_request, self._take_request, to_broker.send)
        self._responses = Cutter(self._judge_response, self._take_response, to_client.send)
        self._pending: deque[Pending] = deque()
        self.client_id: str | None = None
        self.silenced_by: set[str] = set()
        """The rules that keep it silent."""

    def from_client(self, data: bytes) -> None:
        """Bytes from the client. Raises ProtocolError: give it up."""
        if not self._to_broker.muted:
            self._requests.feed(data)

    def from_broker(self, data: bytes) -> None:
        """Likewise from the broker."""
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
                self._await_answer(Pending(head, is_double=True))
            self._to_broker.send(frame, delay_ms)
        return None

    def _refuse(self, hit: Hit, head: Head, answer: bytes) -> None:
        hit.done()
        if not head.answered:
            self._end()  # as a broker does, which has no other way to tell (``KafkaApis.handleProduceRequest``)
            return
        self._await_answer(Pending(head, made_up=answer))
        self._send_made_up()

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
        one_behind_is_made_up = bool(self._pending) and self._pending[0].made_up is not None
        return pending if pending.hits or pending.is_double or one_behind_is_made_up else None

    def _take_response(self, frame: Piece, pending: Pending) -> None:
        if not pending.is_double:
            self._answer(frame, pending)
        self._send_made_up()

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

    def _changed(self, frame: Piece, hit: Hit, head: Head) -> Piece:
        response = decoded_response(frame, head)
        if response is None:
            hit.untouched()
            return frame
        changed = altered(response, hit.rule, hit.named, self._place)
        if changed is response:
            return frame
        hit.done()
        return response_frame(changed, head.correlation_id)

    def _send_made_up(self) -> None:
        while self._pending and (answer := self._pending[0].made_up) is not None:
            self._pending.popleft()
            self._to_client.send(answer)

    def _lose(self, hit: Hit, lane: Lane) -> None:
        hit.done()
        if hit.rule.connection == "closed":
            self._end()
            return
        lane.muted = True
        self.silenced_by.add(hit.rule.name)

    def _break_off(self, hit: Hit, frame: Piece, lane: Lane) -> None:
        hit.done()
        lane.send(frame[: len(frame) // 2])
        lane.finish()


def _reads(live: Live, head: Head) -> bool:
    """Whether the rule must see what the request says."""
    return live.named.topic is not None or (live.rule.do == "answer_error" and head.key not in READ_ONLY)
