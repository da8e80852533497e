"""Effect of a Produce response on a batch, without a network: each row of the table in produce_request.py."""

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from aftershock.tests.unit.workloads.kafka.rules.known_cluster import T0, answer, learn
from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.producer.produce_request import BatchCompleter, Delivery, ProducerRules
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.values import Leader


class Bench:
    """One batch of three records, drained at 0 ms, and its reported outcomes."""

    def __init__(self, *, idempotent: bool = True, records: int = 3, **changes: object) -> None:
        given = {"bootstrap.servers": "h:1", "linger.ms": 0, "enable.idempotence": idempotent} | changes
        settings = parse(ProducerSettings, given)
        self.rules = ProducerRules.of(settings, Random(7))  # noqa: S311  # no secret
        self.rules.metadata.want(["t"])
        learn(self.rules.metadata, answer({T0: Leader(0, 0)}))
        if self.rules.idempotence:
            self.rules.idempotence.set_producer(1000, 0)
        self.reported: list[Delivery] = []
        self.deliveries = BatchCompleter(settings, self.rules, self.reported.append)
        for token in range(records):
            self.rules.accumulator.append("t", b"v", None, (), 0, token, 0, 0)
        self.batch = self.drain()

    def drain(self, now_ms: float = 0) -> ProducerBatch:
        (batch,) = self.rules.accumulator.drain(0, now_ms)
        return batch

    @property
    def ends(self) -> list[tuple[int, bool]]:
        return [(each.error, each.in_doubt) for each in self.reported]


RETRY = None


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ErrorCode.none, (0, False)),
        (ErrorCode.duplicate_sequence_number, (0, False)),
        (ErrorCode.not_leader_or_follower, RETRY),
        (ErrorCode.not_enough_replicas, RETRY),
        (ErrorCode.not_enough_replicas_after_append, RETRY),
        (ErrorCode.kafka_storage_error, RETRY),
        (ErrorCode.corrupt_message, RETRY),
        (ErrorCode.unknown_topic_or_partition, RETRY),
        (ErrorCode.topic_authorization_failed, (29, False)),
        (ErrorCode.invalid_record, (87, False)),
        (ErrorCode.invalid_topic_exception, (17, False)),
        (ErrorCode.unknown_server_error, (-1, True)),
    ],
)
def test_first_attempt_by_error(error: ErrorCode, end: tuple[int, bool] | None, idempotent: bool) -> None:
    """Delivered, failed (in doubt or not), or retried."""
    bench = Bench(idempotent=idempotent)
    bench.deliveries.on_response(bench.batch, error, 1, base_offset=-1)
    assert ([] if end is RETRY else [end]) == bench.ends
    assert (1 if end is RETRY else 0) == len(bench.rules.accumulator.unfinished)


@pytest.mark.parametrize(
    ("error", "idempotent"),
    [(45, RETRY), (59, RETRY), (47, (47, False))],
)
def test_sequence_errors_are_retried_only_with_idempotence(error: int, idempotent: tuple[int, bool] | None) -> None:
    for switched_on, end in ((True, idempotent), (False, (error, False))):
        bench = Bench(idempotent=switched_on)
        bench.deliveries.on_response(bench.batch, error, 1)
        assert ([] if end is RETRY else [end]) == bench.ends


def test_a_delivery_has_offset_broker_epoch_and_attempts() -> None:
    """Tokens are in order."""
    bench = Bench()
    bench.deliveries.on_response(bench.batch, ErrorCode.not_enough_replicas, 1)
    bench.deliveries.on_response(bench.drain(1000), 0, 1001, base_offset=40)
    assert [Delivery("t", 0, [0, 1, 2], 40, 0, False, 0, 0, 2)] == bench.reported


def test_a_base_offset_beside_an_error_is_doubt() -> None:
    """The batch was appended, then refused: the leader changed while it waited for replicas. The records may
    survive.
    """
    bench = Bench(retries=1)
    bench.deliveries.on_response(bench.batch, ErrorCode.not_leader_or_follower, 1, base_offset=40)
    bench.deliveries.on_response(bench.drain(1000), ErrorCode.not_leader_or_follower, 1001, base_offset=-1)
    assert [(ErrorCode.not_leader_or_follower, True)] == bench.ends


@pytest.mark.parametrize("error", [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id])
def test_an_unknown_topic_is_no_doubt(error: ErrorCode) -> None:
    """By its name, or in Produce 13 by its id: brokers check both before they append."""
    bench = Bench(retries=1)
    bench.deliveries.on_response(bench.batch, error, 1)
    bench.deliveries.on_response(bench.drain(1000), error, 1001)
    assert [(error, False)] == bench.ends


def test_success_ends_all_doubt() -> None:
    """An unanswered attempt, then an acknowledged one: the record was written, once."""
    bench = Bench()
    bench.deliveries.on_no_response(bench.batch, ErrorCode.network_exception, 1, sent=True)
    assert bench.batch.in_doubt
    bench.deliveries.on_response(bench.drain(1000), 0, 1001, base_offset=7)
    assert [(0, False)] == bench.ends


@pytest.mark.parametrize("sent", [True, False])
def test_an_unsent_batch_is_not_in_doubt(sent: bool) -> None:
    """The connection was closed before the request could be written."""
    bench = Bench(retries=1)
    bench.deliveries.on_no_response(bench.batch, ErrorCode.network_exception, 1, sent=sent)
    bench.deliveries.on_no_response(bench.drain(1000), ErrorCode.network_exception, 1001, sent=False)
    assert [(ErrorCode.network_exception, sent)] == bench.ends


def test_a_batch_expires_by_its_age() -> None:
    """A queued batch that was refused has failed; an error after the deadline isn't retried."""
    bench = Bench()
    bench.deliveries.on_response(bench.batch, ErrorCode.not_enough_replicas, 119_999)
    bench.deliveries.expire(119_999)
    assert [] == bench.ends
    bench.deliveries.expire(120_000)
    assert [(ErrorCode.request_timed_out, False)] == bench.ends
    late = Bench()
    late.deliveries.on_response(late.batch, ErrorCode.not_enough_replicas, 120_000)
    assert [(ErrorCode.not_enough_replicas, False)] == late.ends


def test_a_batch_in_flight_expires_in_doubt_and_only_once() -> None:
    """Its late responses are not reported."""
    bench = Bench()
    bench.deliveries.expire(120_000)
    bench.deliveries.on_response(bench.batch, 0, 120_001, base_offset=3)
    bench.deliveries.on_response(bench.batch, ErrorCode.not_leader_or_follower, 120_002)
    assert [(ErrorCode.request_timed_out, True)] == bench.ends


@pytest.mark.parametrize("answered", [True, False])
def test_memory_of_a_batch_that_expires_in_flight_is_kept_until_the_answer(answered: bool) -> None:
    """Also until the connection is lost; a queued batch releases its memory when it expires."""
    bench = Bench()
    bench.rules.accumulator.append("t", b"v", None, (), 0, 9, 0, 0)
    unfinished, whole = bench.rules.accumulator.unfinished, 32 * 1024 * 1024
    batch_bytes = bench.batch.reserved
    bench.deliveries.expire(120_000)
    assert whole - batch_bytes == unfinished.free_bytes < whole
    if answered:
        bench.deliveries.on_response(bench.batch, 0, 120_001, base_offset=3)
    else:
        bench.deliveries.on_no_response(bench.batch, ErrorCode.network_exception, 120_001, sent=True)
    assert whole == unfinished.free_bytes


def test_a_late_success_unblocks_the_partition() -> None:
    """A batch that expired after a retry blocks its partition until its fate is known: an acknowledgement frees it."""
    bench = Bench()
    idempotence = bench.rules.idempotence
    assert idempotence
    bench.deliveries.on_no_response(bench.batch, ErrorCode.request_timed_out, 1, sent=True)
    again = bench.drain(1000)
    bench.deliveries.expire(120_000)
    bench.rules.accumulator.append("t", b"v", None, (), 0, 9, 0, 120_000)
    assert [] == bench.rules.accumulator.drain(0, 120_000)
    bench.deliveries.on_response(again, 0, 120_001)
    idempotence.settle()
    following = bench.drain(120_001)
    assert following.numbers
    assert (3, 0) == (following.numbers.base_sequence, idempotence.counts["epoch_bumps"])


def test_a_batch_too_large_is_split() -> None:
    """Its parts are retried; a single record that is too large fails with the broker's error."""
    bench = Bench(records=2)
    bench.deliveries.on_response(bench.batch, ErrorCode.message_too_large, 1)
    bench.deliveries.on_response(bench.drain(1), ErrorCode.message_too_large, 1)
    assert [] == bench.ends
    bench.deliveries.on_response(bench.drain(1), ErrorCode.message_too_large, 2)
    bench.deliveries.on_response(bench.drain(2), 0, 3, base_offset=0)
    assert [(ErrorCode.message_too_large, False), (0, False)] == bench.ends
    assert [[0], [1]] == [each.tokens for each in bench.reported]


def test_abandoning_reports_every_batch() -> None:
    """A batch in flight is in doubt, a waiting batch has failed unless an earlier attempt leaves doubt."""
    bench = Bench()
    for token in (3, 4):
        bench.rules.accumulator.append("t", b"v", None, (), 0, token, 0, 0)
    bench.deliveries.abandon(ErrorCode.request_timed_out)
    assert [([0, 1, 2], True), ([3, 4], False)] == [(each.tokens, each.in_doubt) for each in bench.reported]
    assert 0 == len(bench.rules.accumulator.unfinished)
