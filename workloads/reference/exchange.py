"""One Produce request and its answer.

A batch is built when it is sent, each time: its numbers may have changed since the last attempt.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import UnsupportedError
from aftershock.workloads.reference.deliveries import Deliveries
from aftershock.workloads.reference.messages import PRODUCE, produce_request
from aftershock.workloads.reference.producer_rules import ProducerRules
from aftershock.workloads.reference.settings import ProducerSettings
from aftershock.workloads.reference.tell import Tell
from aftershock.workloads.reference.translate import endpoints, leader_hint
from aftershock.workloads.rules.batch import Batch
from aftershock.workloads.rules.idempotence import ProducerId
from aftershock.workloads.rules.values import Leader, Node, TopicPartition
from aftershock.workloads.wire import codes
from aftershock.workloads.wire.channel import Channel, Reply
from aftershock.workloads.wire.records import build
from aftershock.workloads.wire.versions import Api

InFlight = Mapping[TopicPartition, Batch]
"""The batches of one request."""

_MILLISECOND = timedelta(milliseconds=1)
_NOT_IDEMPOTENT = ProducerId()


class Exchange:
    """Sends the batches of one producer and makes of the answers what the rules say."""

    def __init__(self, settings: ProducerSettings, rules: ProducerRules, deliveries: Deliveries, tell: Tell) -> None:
        self._settings = settings
        self._rules = rules
        self._deliveries = deliveries
        self._tell = tell
        self._timeout = settings.request_timeout_ms * _MILLISECOND
        self._version_cap = rules.discovery.version_cap(Api.PRODUCE)

    def send(self, channel: Channel, batches: InFlight, now_ms: float) -> "asyncio.Future[Reply] | None":
        """Write a request. None: no answer is to come, and what there is to know of the batches has been seen to."""
        try:
            messages = PRODUCE.messages(channel.versions, self._version_cap)
            request = produce_request(messages, self._settings.acks, self._timeout, self._built(batches.values()))
            if self._settings.acks:
                return channel.request(request, timeout_ms=self._settings.request_timeout_ms)
            channel.send_only(request)
        except UnsupportedError:
            self._fail(batches, ErrorCode.unsupported_version, now_ms, sent=False)
        except ConnectionError:
            self._fail(batches, ErrorCode.network_exception, now_ms, sent=False)
        else:
            for batch in batches.values():
                self._deliveries.sent_without_answer(batch)
        return None

    def _built(self, batches: "Sequence[Batch] | Any") -> Mapping[str, Sequence[tuple[int, bytes]]]:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for batch in batches:
            if batch.attempts.attempts:
                self._tell(
                    "batch_retried",
                    partition=str(batch.tp),
                    error=codes.name(batch.error),
                    attempts=batch.attempts.attempts,
                    immediate=batch.immediate,
                )
            topics.setdefault(batch.tp.topic, []).append((batch.tp.partition, self._bytes(batch)))
        return topics

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

    def answered(self, batches: InFlight, reply: "asyncio.Future[Reply]", now_ms: float) -> float:
        """The answer is there, or there is none. How long the broker wants to be left alone, in milliseconds."""
        error = reply.exception()
        if error is not None:
            timed_out = isinstance(error, TimeoutError)
            self._fail(
                batches, ErrorCode.request_timed_out if timed_out else ErrorCode.network_exception, now_ms, sent=True
            )
            return 0
        response = reply.result().response
        parts = {
            TopicPartition(topic.name, part.index): part
            for topic in response.responses
            for part in topic.partition_responses
        }
        failed = {tp: part for tp, part in parts.items() if part.error_code and tp in batches}
        if failed:
            self._take_hints(batches, failed, endpoints(response))
        for tp, batch in batches.items():
            self._answer(batch, parts.get(tp), now_ms)
        return response.throttle_time / _MILLISECOND if response.throttle_time else 0

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
            leader = {"partition": str(tp), "leader": hints[tp].node_id, "epoch": hints[tp].epoch}
            if refusal is None:
                self._tell("hint_accepted", **leader)
            else:
                self._tell("hint_refused", reason=refusal.value, **leader)

    def _fail(self, batches: InFlight, error: ErrorCode, now_ms: float, *, sent: bool) -> None:
        """No answer to any of them. Whichever reason: the leader may be another by now."""
        none = Leader()
        routed = {tp: batch.leader_epoch for tp, batch in batches.items()}
        self._rules.discovery.offered({tp: (int(ErrorCode.network_exception), none) for tp in batches}, (), routed)
        for batch in batches.values():
            self._deliveries.unanswered(batch, error, now_ms, sent=sent)
