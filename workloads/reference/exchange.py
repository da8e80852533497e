"""One Produce request and its answer.

A batch is built when it is sent, each time: its numbers may have changed since the last attempt.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import UnsupportedError
from aftershock.workloads.reference.deliveries import Deliveries
from aftershock.workloads.reference.messages import PRODUCE, ProduceWriter
from aftershock.workloads.reference.producer_rules import ProducerRules
from aftershock.workloads.reference.settings import ProducerSettings
from aftershock.workloads.reference.tell import Tell
from aftershock.workloads.reference.translate import endpoints, leader_hint
from aftershock.workloads.rules.batch import Batch
from aftershock.workloads.rules.idempotence import ProducerId
from aftershock.workloads.rules.values import Leader, Node, TopicPartition
from aftershock.workloads.wire import codes
from aftershock.workloads.wire.channel import Channel
from aftershock.workloads.wire.codec import prepare
from aftershock.workloads.wire.primitives import MILLISECOND
from aftershock.workloads.wire.records import build
from aftershock.workloads.wire.versions import Api, Versions

InFlight = Mapping[TopicPartition, Batch]
"""The batches of one request."""
Answered = Callable[[Any], None]
"""Gets the response to a request, or the exception in its place."""

_NOT_IDEMPOTENT = ProducerId()


class Exchange:
    """Sends the batches of one producer and makes of the answers what the rules say."""

    def __init__(self, settings: ProducerSettings, rules: ProducerRules, deliveries: Deliveries, tell: Tell) -> None:
        self._settings = settings
        self._rules = rules
        self._deliveries = deliveries
        self._tell = tell
        self._version_cap = rules.discovery.version_cap(Api.PRODUCE)
        self._writers: dict[int, tuple[Versions, ProduceWriter]] = {}

    def send(self, node_id: int, channel: Channel, batches: InFlight, now_ms: float, answered: Answered) -> None:
        """Send a request with the channel's next flush; ``answered`` is called later, if it went and has an answer."""
        try:
            writer = self._writer(node_id, channel.versions)
            body = writer.body(self._built(batches.values()))
            if self._settings.acks:
                channel.ask(writer.kind, body, answered, timeout_ms=self._settings.request_timeout_ms)
            else:
                channel.send_only(writer.kind, body)
                for batch in batches.values():
                    self._deliveries.sent_without_answer(batch)
        except UnsupportedError:
            self._fail(batches, ErrorCode.unsupported_version, now_ms, sent=False)
        except ConnectionError:
            self._fail(batches, ErrorCode.network_exception, now_ms, sent=False)

    def prepare(self) -> None:
        """Spare the first record the making of the codec, if its broker speaks the highest version that we do."""
        prepare(PRODUCE.messages(Versions({PRODUCE.api: (0, PRODUCE.most)}), self._version_cap).ProduceRequest)

    def _writer(self, node_id: int, offered: Versions) -> ProduceWriter:
        """Kept for as long as a node's connection: whoever takes its place may be of another version."""
        known = self._writers.get(node_id)
        if known is None or known[0] is not offered:
            kind = PRODUCE.messages(offered, self._version_cap).ProduceRequest
            writer = ProduceWriter(kind, self._settings.acks, self._settings.request_timeout_ms)
            known = self._writers[node_id] = (offered, writer)
        return known[1]

    def _built(self, batches: Iterable[Batch]) -> Mapping[str, Sequence[tuple[int, bytes]]]:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for batch in batches:
            if batch.attempts.attempts:
                self._tell_retry(batch)
            topic, partition = batch.tp
            topics.setdefault(topic, []).append((partition, self._bytes(batch)))
        return topics

    def _tell_retry(self, batch: Batch) -> None:
        """A batch is known by its first record and its number of records: the parts of one that is split begin anew."""
        self._tell(
            "batch_retried",
            topic=batch.tp.topic,
            partition=batch.tp.partition,
            node_id=batch.node_id,
            epoch=batch.leader_epoch,
            reason=codes.name(batch.error),
            attempts=batch.attempts.attempts,
            immediate=batch.immediate,
            token=batch.tokens[0],
            records=batch.count,
        )

    def _bytes(self, batch: Batch) -> bytes:
        numbers = batch.numbers
        producer = _NOT_IDEMPOTENT if numbers is None else numbers.producer
        data = build(
            batch.values,
            timestamps_ms=batch.timestamps_ms,
            keys=batch.keys,
            headers=batch.headers,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=-1 if numbers is None else numbers.base_sequence,
            compression=self._settings.compression_type,
        )
        self._rules.accumulator.built(batch, len(data))
        return data

    def answered(self, batches: InFlight, response: Any, now_ms: float) -> float:
        """The response is there, or the exception in its place.

        How long the broker wants to be left alone, in milliseconds.
        """
        if isinstance(response, Exception):
            timed_out = isinstance(response, TimeoutError)
            self._fail(
                batches, ErrorCode.request_timed_out if timed_out else ErrorCode.network_exception, now_ms, sent=True
            )
            return 0
        parts: dict[tuple[str, int], Any] = {
            (topic.name, part.index): part for topic in response.responses for part in topic.partition_responses
        }
        failed = {tp: part for tp in batches if (part := parts.get(tp)) is not None and part.error_code}
        if failed:
            self._take_hints(batches, failed, endpoints(response))
        for tp, batch in batches.items():
            self._answer(batch, parts.get(tp), now_ms)
        return response.throttle_time / MILLISECOND if response.throttle_time else 0

    def _answer(self, batch: Batch, part: Any, now_ms: float) -> None:
        if part is None:
            self._deliveries.unanswered(batch, ErrorCode.network_exception, now_ms, sent=True)
        else:
            self._deliveries.answered(
                batch, part.error_code, now_ms, base_offset=part.base_offset, log_start_offset=part.log_start_offset
            )

    def _take_hints(self, batches: InFlight, failed: Mapping[TopicPartition, Any], nodes: Sequence[Node]) -> None:
        hints = {tp: leader_hint(part) for tp, part in failed.items()}
        errors = {tp: (int(part.error_code), hints[tp]) for tp, part in failed.items()}
        routed = {tp: batches[tp].leader_epoch for tp in failed}
        for tp, refusal in self._rules.discovery.offered(errors, nodes, routed).items():
            hint = hints[tp]
            told = {"topic": tp.topic, "partition": tp.partition, "node_id": hint.node_id, "epoch": hint.epoch}
            if refusal is None:
                self._tell("hint_accepted", **told)
            else:
                self._tell("hint_refused", reason=refusal.value, **told)

    def _fail(self, batches: InFlight, error: ErrorCode, now_ms: float, *, sent: bool) -> None:
        """No answer to any of them. Whichever reason: the leader may be another by now."""
        none = Leader()
        routed = {tp: batch.leader_epoch for tp, batch in batches.items()}
        self._rules.discovery.offered({tp: (int(ErrorCode.network_exception), none) for tp in batches}, (), routed)
        for batch in batches.values():
            self._deliveries.unanswered(batch, error, now_ms, sent=sent)
