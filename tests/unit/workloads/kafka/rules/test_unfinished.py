from math import inf

from aftershock.workloads.kafka.rules.accumulator import Unfinished
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.values import TopicPartition


def opened(unfinished: Unfinished, created_ms: float) -> ProducerBatch:
    batch = ProducerBatch(TopicPartition("t", 0), created_ms, limit=100, reserved=100)
    unfinished.add(batch)
    return batch


def test_memory_is_taken_and_given_back() -> None:
    """A batch holds its reservation from its opening to its end."""
    unfinished = Unfinished(250, 1000)
    first, second = opened(unfinished, 0), opened(unfinished, 1)
    assert 50 == unfinished.free_bytes
    unfinished.finish(second)
    unfinished.finish(first)
    assert (250, 0) == (unfinished.free_bytes, len(unfinished))
    assert first.done


def test_batches_expire_in_order_of_age() -> None:
    """At creation + delivery.timeout.ms and not before; they stay until somebody finishes them."""
    unfinished = Unfinished(1000, 1000)
    first, second, _ = (opened(unfinished, at_ms) for at_ms in (0, 5, 9))
    assert 1000 == unfinished.next_expiry_ms
    assert [] == unfinished.expired(999.9)
    assert [first] == unfinished.expired(1000)
    assert [first, second] == unfinished.expired(1008)
    unfinished.finish(first)
    assert 1005 == unfinished.next_expiry_ms


def test_nothing_expires_when_there_is_nothing() -> None:
    """The next expiry of an empty buffer is never."""
    assert inf == Unfinished(1000, 1000).next_expiry_ms


def test_parts_are_as_old_as_the_whole() -> None:
    """Parts that come in late are not hidden behind younger batches: they expire when the whole would have."""
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
