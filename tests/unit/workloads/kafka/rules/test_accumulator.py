from math import inf

import pytest

from aftershock.tests.unit.workloads.kafka.rules.accumulating import LARGE, Bench
from aftershock.tests.unit.workloads.kafka.rules.known_cluster import T0, T1, T2, knowing
from aftershock.workloads.kafka.rules.accumulator import AppendResult, Unfinished
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition

ALL_ON_0 = {tp: Leader(0, 1) for tp in (T0, T1, T2)}


def tokens(batches: list[ProducerBatch]) -> list[list[int]]:
    return [batch.tokens for batch in batches]


# -- append


def test_records_join_the_last_batch_while_it_has_room() -> None:
    """The first record opens a batch, so the sender must wake up; the next one joins it."""
    bench = Bench()
    assert [AppendResult.READY, AppendResult.JOINED] == [bench.append(), bench.append()]
    assert [[0, 1]] == tokens(bench.drain())


def test_a_record_that_does_not_fit_closes_the_batch() -> None:
    """A later smaller record goes into the new batch, behind it: order is kept."""
    bench = Bench()
    for size in (600, 600, 10):
        bench.append(size=size)
    assert [[0], [1, 2]] == tokens(bench.drain()) + tokens(bench.drain())


def test_a_full_batch_wakes_the_sender() -> None:
    """The record that fills a batch returns READY, so that the sender doesn't wait for the linger.

    Only a batch that compresses badly becomes full this way: any other is closed by the first record that doesn't
    fit.
    """
    bench = Bench(compression_type="gzip")
    assert bench.accumulator._ratios
    bench.accumulator._ratios.observed("t", 3.0)
    assert [AppendResult.READY, AppendResult.JOINED, AppendResult.READY] == [bench.append(size=100) for _ in range(3)]
    assert [0] == bench.ready(0)


def test_a_full_buffer_refuses_records() -> None:
    """Each batch reserves batch.size; a record that doesn't fit is refused, and fits again once a batch has ended."""
    bench = Bench(buffer_memory=2000)
    bench.fill(batches=2)
    assert AppendResult.NO_MEMORY is bench.append()
    bench.ack(bench.drain_one())
    assert AppendResult.READY is bench.append()


@pytest.mark.parametrize("full", [True, False], ids=["the last batch was full", "the record fills the last batch"])
def test_a_full_batch_switches_the_partition_before_memory_is_checked(*, full: bool) -> None:
    """``RecordAccumulator.append``: the buffer is full, but the next sticky partition has a batch with room."""
    bench = Bench(buffer_memory=4000)
    for _ in range(2):
        bench.append(None, size=600)
    last = bench.accumulator.unfinished.all()[-1]
    for tp in {T0, T1, T2} - {last.tp}:
        bench.append(tp)
    assert (0, 1) == (bench.accumulator.unfinished.free_bytes, bench.partitioner.counts["partition_draws"])
    if full:
        last.close()
    assert (AppendResult.JOINED if full else AppendResult.NO_MEMORY) is bench.append(None, size=600)
    assert (2 if full else 1) == bench.partitioner.counts["partition_draws"]


def test_a_refusal_for_want_of_memory_draws_no_partition() -> None:
    """Repeated appends to a full buffer don't move the sticky partition."""
    bench = Bench(buffer_memory=1500, mode="sticky")
    bench.append(None, size=LARGE)
    draws = bench.partitioner.counts["partition_draws"]
    assert [AppendResult.NO_MEMORY] * 5 == [bench.append(None, size=LARGE) for _ in range(5)]
    assert draws == bench.partitioner.counts["partition_draws"]


def test_a_record_larger_than_batch_size_has_its_own_batch() -> None:
    """Its memory is reserved by its bound."""
    bench = Bench(buffer_memory=10_000)
    assert AppendResult.READY is bench.append(size=5000)
    assert 10_000 - (61 + 21 + 5000 + 4) == bench.accumulator.unfinished.free_bytes


@pytest.mark.parametrize("limit", ["max_request_size", "buffer_memory"])
def test_the_largest_record(limit: str) -> None:
    """The largest record that fits is accepted, one more byte isn't."""
    bench = Bench(**{limit: 5000})
    largest = 5000 - 61 - 21 - 4
    assert AppendResult.TOO_LARGE is bench.append(size=largest + 1)
    assert AppendResult.READY is bench.append(size=largest)


@pytest.mark.parametrize("partition", [-1, 3, 1000])
def test_an_unknown_partition_is_refused(partition: int) -> None:
    """The accumulator creates no partition beyond those in metadata."""
    assert AppendResult.NO_PARTITION is Bench().append(TopicPartition("t", partition))


def test_a_topic_without_metadata_is_refused() -> None:
    """Records are accepted once the metadata has its partitions."""
    bench = Bench()
    bench.metadata.__dict__.update(knowing({}).__dict__)
    assert AppendResult.NO_PARTITION is bench.append(None)
    bench.lead({})
    assert AppendResult.READY is bench.append(None)


def test_records_with_one_key_share_a_partition() -> None:
    """murmur2 chooses it over all partitions."""
    bench = Bench()
    for _ in range(5):
        bench.append(None, key=b"21")
    assert [T0.partition + (-973932308 & 0x7FFFFFFF) % 3] == bench.ready(5)


# -- ready


@pytest.mark.parametrize(
    ("case", "is_ready"),
    [
        pytest.param({}, False, id="a batch that is neither full nor old lingers"),
        pytest.param({"now_ms": 4.9}, False, id="until linger.ms is over"),
        pytest.param({"now_ms": 5}, True, id="has waited linger.ms"),
        pytest.param({"full": True}, True, id="full"),
        pytest.param({"behind": True}, True, id="another one behind it"),
        pytest.param({"waiting": 1}, True, id="somebody waits for memory"),
        pytest.param({"flushing": 1}, True, id="a flush"),
        pytest.param({"closing": True}, True, id="the end"),
    ],
)
def test_ready(case: dict[str, float], is_ready: bool) -> None:
    """When a partition's first batch is ready: RecordAccumulator.batchReady, case by case."""
    bench = Bench()
    bench.append()
    if case.get("full"):
        bench.accumulator.unfinished.all()[0].close()
    if case.get("behind"):
        bench.append(size=LARGE)
    for name in ("waiting", "flushing", "closing"):
        setattr(bench.accumulator, name, case.get(name, 0))
    assert ([0] if is_ready else []) == bench.ready(case.get("now_ms", 0))


def test_the_wait_ends_when_the_oldest_batch_is_ready() -> None:
    """Without a ready batch, the next check is due at the end of the oldest batch's linger."""
    bench = Bench()
    bench.append(T0, at_ms=2)
    bench.append(T1, at_ms=1)
    assert 3 == bench.accumulator.ready(3).wait_ms


def test_a_retry_does_not_linger_but_backs_off() -> None:
    """A drained batch is full: it waits for its back-off only, 100 ms within 20 %."""
    bench = Bench(linger_ms=5000)
    bench.append()
    bench.accumulator.closing = True
    batch = bench.drain_one()
    bench.accumulator.closing = False
    bench.accumulator.retry(batch, 10)
    assert [] == bench.ready(89)
    assert 0 < bench.accumulator.ready(50).wait_ms <= 80
    assert [0] == bench.ready(131)


def test_ready_batches_can_be_drained() -> None:
    """A back-off is drawn for each check, but ready and drain agree at one moment: otherwise the loop would never
    wake.
    """
    bench = Bench()
    bench.fill()
    bench.accumulator.retry(bench.drain_one(), 0)
    for now_ms in range(60, 140):
        if bench.ready(now_ms):
            bench.accumulator.retry(bench.drain_one(now_ms=now_ms), 0)
            bench.accumulator.unfinished.all()[0].attempts.attempts = 1


def test_a_newer_epoch_lets_a_retry_go_at_once() -> None:
    """KIP-951 in the accumulator: the leader moved since the batch was sent, so the batch goes to the new leader
    now.
    """
    bench = Bench()
    bench.fill()
    bench.accumulator.retry(bench.drain_one(), 10)
    bench.lead({T0: Leader(2, 1)})
    assert [2] == bench.ready(10)
    batch = bench.drain_one(2, 10)
    assert (True, 2, 1, 2) == (batch.immediate, batch.node_id, batch.leader_epoch, batch.sends)


def test_partitions_without_a_leader_call_for_metadata() -> None:
    """Only partitions with records, and they make no node ready."""
    bench = Bench()
    bench.fill(T0)
    bench.fill(T1)
    bench.lead({T0: Leader(UNKNOWN, 1), T2: Leader(UNKNOWN, 1)})
    found = bench.accumulator.ready(5)
    assert ([1], [T0]) == (list(found.nodes), list(found.leaderless))


# -- drain


def test_a_drain_takes_one_batch_of_each_partition() -> None:
    """The first batch of each partition that the node leads."""
    bench = Bench()
    bench.lead({T1: Leader(0, 1)})
    for tp in (T0, T1, T2):
        bench.fill(tp, 2)
    assert [(T0, 0), (T1, 2)] == [(batch.tp, batch.tokens[0]) for batch in bench.drain()]
    assert {1, 3} == {batch.tokens[0] for batch in bench.drain()}


def test_a_drain_takes_lingering_batches() -> None:
    """A request takes the first batch of every partition, ready or not."""
    bench = Bench()
    bench.lead(ALL_ON_0)
    bench.append(T1)
    bench.fill(T0)
    assert {T0, T1} == {batch.tp for batch in bench.drain()}


def test_a_drain_ends_before_max_request_size() -> None:
    """The next drain starts at the following partition, so that no partition starves."""
    bench = Bench(max_request_size=2500)
    bench.lead(ALL_ON_0)
    for tp in (T0, T1, T2):
        bench.fill(tp, 3)
    drained = [[batch.tp for batch in bench.drain()] for _ in range(5)]
    assert [[T0, T1], [T2, T0], [T1, T2], [T0, T1], [T2]] == drained


def test_a_drain_takes_at_least_one_batch() -> None:
    """Also if its estimated size is beyond max.request.size, after an overestimated compression."""
    bench = Bench(compression_type="gzip")
    bench.fill()
    bench.accumulator._limits = bench.limits._replace(max_request_size=500)
    assert 1 == len(bench.drain())


def test_a_batch_in_back_off_is_skipped() -> None:
    """A partition whose first batch backs off delays no other partition."""
    bench = Bench()
    bench.lead(ALL_ON_0)
    bench.fill(T0)
    (failed,) = bench.drain()
    bench.accumulator.retry(failed, 10)
    bench.fill(T1)
    assert [T1] == [batch.tp for batch in bench.drain(now_ms=11)]


def test_a_blocked_retry_ends_the_drain() -> None:
    """As shipped: with two batches of T0 to retry, one is sent; while it is in flight, T0 blocks the partitions
    behind it.
    """
    bench = Bench()
    bench.lead(ALL_ON_0)
    bench.fill(T0, 2)
    first, second = bench.drain_one(), bench.drain_one()
    for batch in (first, second):
        bench.accumulator.retry(batch, 0)
    bench.lead(ALL_ON_0 | {T0: Leader(0, 2)})
    assert [first] == bench.drain(now_ms=1)
    bench.fill(T1)
    assert [] == bench.drain(now_ms=1)
    bench.ack(first)
    assert {T0, T1} == {batch.tp for batch in bench.drain(now_ms=1)}


def test_without_a_producer_id_nothing_is_drained() -> None:
    """A batch that waits for the id may still grow; its sequences cover its records at the drain."""
    bench = Bench()
    assert bench.idempotence
    bench.idempotence.producer = bench.idempotence.producer._replace(id=UNKNOWN)
    bench.append()
    assert [] == bench.drain()
    assert AppendResult.JOINED is bench.append()
    bench.idempotence.set_producer(5, 0)
    batch = bench.drain_one()
    assert batch.numbers
    assert (2, 0) == (batch.numbers.count, batch.numbers.base_sequence)


@pytest.mark.parametrize(("in_flight", "second"), [(1, 0), (2, 1)])
def test_muting(in_flight: int, second: int) -> None:
    """With at most one request in flight a partition waits for its response; with more it doesn't."""
    bench = Bench(max_in_flight_requests_per_connection=in_flight, idempotent=False)
    bench.fill(T0, 3)
    first = bench.drain_one()
    assert [0] * second == bench.ready(100)
    assert second == len(bench.drain(now_ms=100))
    bench.ack(first)
    assert 1 == len(bench.drain(now_ms=100))


# -- retries, splits, removal


def test_retries_go_back_in_the_order_of_their_sequences() -> None:
    """In whatever order their responses came, they are sent again in the order of their first sending."""
    bench = Bench()
    bench.fill(T0, 4)
    first, second, third = bench.drain_one(), bench.drain_one(), bench.drain_one()
    for batch in (second, third, first):
        bench.accumulator.retry(batch, 0)
    sent = []
    for _ in range(4):
        batch = bench.drain_one(now_ms=1000)
        sent.append(batch.tokens[0])
        bench.ack(batch)
    assert [0, 1, 2, 3] == sent


def test_without_idempotence_a_retry_goes_to_the_front() -> None:
    """Order may be lost by design: the batch that failed last goes first, and all go before unsent batches."""
    bench = Bench(idempotent=False)
    bench.fill(T0, 3)
    first, second = bench.drain_one(), bench.drain_one()
    bench.accumulator.retry(first, 0)
    bench.accumulator.retry(second, 0)
    assert [1, 0, 2] == [bench.drain_one(now_ms=1000).tokens[0] for _ in range(3)]


def test_the_parts_of_a_split_replace_the_batch() -> None:
    """The parts are first in the queue, ready at once, numbered within the batch's range, and release its memory."""
    bench = Bench()
    for _ in range(10):
        bench.append(size=70)
    bench.append(size=LARGE)
    whole = bench.drain_one()
    bench.accumulator.unfinished.all()[-1].close()
    left = bench.accumulator.unfinished.free_bytes
    (repeated,) = bench.accumulator.split(whole)  # uncompressed, so not larger than batch.size
    assert repeated is bench.drain_one()
    parts = bench.accumulator.split(repeated)
    assert whole.done
    assert repeated.done
    assert left + 1000 == bench.accumulator.unfinished.free_bytes
    sent = []
    for _ in range(len(parts) + 1):
        assert [0] == bench.ready()
        batch = bench.drain_one()
        assert batch.numbers
        sent.append((batch.tokens, batch.numbers.base_sequence))
        bench.ack(batch)
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10]] == [each for each, _ in sent]
    assert [0, 4, 8, 10] == [sequence for _, sequence in sent]
    assert 100_000 == bench.accumulator.unfinished.free_bytes


def test_splitting_ends_at_single_records() -> None:
    """A batch that no broker accepts is split by batch.size, then halved until its parts have one record each."""
    bench = Bench(batch_size=16384)
    for _ in range(16):
        bench.append(size=500)
    ended: list[int] = []
    assert [16] == [part.count for part in bench.accumulator.split(bench.drain_one(now_ms=5))]
    while bench.ready(5):
        batch = bench.drain_one()
        if batch.count > 1:
            assert 1 < len(bench.accumulator.split(batch))
        else:
            bench.ack(batch)
            ended += batch.tokens
    assert list(range(16)) == ended


def test_a_withdrawn_batch_is_closed() -> None:
    """It is removed from its queue; a batch outside the queue is in flight."""
    bench = Bench()
    bench.append()
    bench.fill()
    first = bench.drain_one()
    (_, second) = bench.accumulator.unfinished.all()
    assert not bench.accumulator.withdraw(first)
    assert bench.accumulator.withdraw(second)
    assert [] == bench.ready(1000)
    assert AppendResult.READY is bench.append()


def test_load_counts_waiting_batches() -> None:
    """The partitioner weighs partitions by waiting batches, not by those in flight: an empty queue counts 0."""
    bench = Bench(mode="adaptive")
    for tp, batches in ((T0, 1), (T1, 4), (T2, 2)):
        bench.fill(tp, batches)
    bench.drain(0)
    bench.ready()
    sticky = bench.partitioner.topic("t")
    drawn = [sticky._draw() for _ in range(800)]  # type: ignore[attr-defined]
    assert pytest.approx(5 / 9, abs=0.06) == drawn.count(0) / 800
    assert pytest.approx(1 / 9, abs=0.06) == drawn.count(1) / 800


def opened(unfinished: Unfinished, created_ms: float) -> ProducerBatch:
    batch = ProducerBatch(TopicPartition("t", 0), created_ms, limit=100, reserved=100)
    unfinished.add(batch)
    return batch


def test_a_batch_reserves_and_releases_memory() -> None:
    """From its creation to its end."""
    unfinished = Unfinished(250, 1000)
    first, second = opened(unfinished, 0), opened(unfinished, 1)
    assert 50 == unfinished.free_bytes
    unfinished.finish(second)
    unfinished.finish(first)
    assert (250, 0) == (unfinished.free_bytes, len(unfinished))
    assert first.done


def test_batches_expire_in_order_of_age() -> None:
    """At creation + delivery.timeout.ms and not before; they stay until they are finished."""
    unfinished = Unfinished(1000, 1000)
    first, second, _ = (opened(unfinished, at_ms) for at_ms in (0, 5, 9))
    assert 1000 == unfinished.next_expiry_ms
    assert [] == unfinished.expired(999.9)
    assert [first] == unfinished.expired(1000)
    assert [first, second] == unfinished.expired(1008)
    unfinished.finish(first)
    assert 1005 == unfinished.next_expiry_ms


def test_an_empty_buffer_never_expires() -> None:
    assert inf == Unfinished(1000, 1000).next_expiry_ms


def test_parts_expire_with_the_split_batch() -> None:
    """Parts that are added late are not hidden behind younger batches."""
    unfinished = Unfinished(1000, 1000)
    whole, younger = opened(unfinished, 0), opened(unfinished, 500)
    parts = [ProducerBatch(whole.tp, whole.created_ms, limit=50) for _ in range(2)]
    unfinished.finish(whole)
    unfinished.add_parts(parts)
    assert parts == unfinished.expired(1000)
    assert [*parts, younger] == unfinished.all()
    for batch in unfinished.all():
        unfinished.finish(batch)
    assert 1000 == unfinished.free_bytes
