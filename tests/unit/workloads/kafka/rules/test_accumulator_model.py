from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.tests.unit.workloads.kafka.rules.accumulating import LARGE, Bench
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.values import TopicPartition

BUFFER = 8000
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "drain", "ack", "fail", "split", "expire"]), st.integers(0, 2), st.integers(1, LARGE)
    ),
    max_size=120,
)


class Model:
    """Expected place of each record: an accepted record is waiting or in flight (``unfinished``), or it has ended."""

    def __init__(self, *, idempotent: bool) -> None:
        self.bench = Bench(idempotent=idempotent, buffer_memory=BUFFER)
        self.in_flight: list[ProducerBatch] = []
        self.ended: list[int] = []
        self.first_sent: dict[TopicPartition, list[int]] = {}
        self.now_ms = 0.0

    def append(self, number: int, size: int) -> None:
        self.bench.append(TopicPartition("t", number), size=size, at_ms=self.now_ms)

    def drain(self, number: int, _size: int) -> None:
        for batch in self.bench.drain(number, self.now_ms):
            self.in_flight.append(batch)
            if batch.sends == 1:
                self.first_sent.setdefault(batch.tp, []).extend(batch.tokens)

    def ack(self, _number: int, size: int) -> None:
        if self.in_flight:
            self.end(self.in_flight.pop(size % len(self.in_flight)))

    def fail(self, _number: int, size: int) -> None:
        if self.in_flight:
            self.bench.accumulator.retry(self.in_flight.pop(size % len(self.in_flight)), self.now_ms)

    def split(self, _number: int, _size: int) -> None:
        if self.in_flight and self.in_flight[0].count > 1:
            self.bench.accumulator.split(self.in_flight.pop(0))

    def expire(self, _number: int, _size: int) -> None:
        oldest = next(iter(self.bench.accumulator.unfinished.all()), None)
        if oldest is None:
            return
        queued = self.bench.accumulator.withdraw(oldest)
        assert queued is (oldest not in self.in_flight)
        if not queued:
            self.in_flight.remove(oldest)
        if self.bench.idempotence and oldest.numbers and oldest.numbered:
            self.bench.idempotence.expired(oldest.numbers, retried=False)
        self.bench.accumulator.unfinished.finish(oldest)
        self.ended += oldest.tokens

    def end(self, batch: ProducerBatch) -> None:
        self.bench.ack(batch)
        self.ended += batch.tokens

    def everywhere(self) -> list[int]:
        waiting = [token for batch in self.bench.accumulator.unfinished.all() for token in batch.tokens]
        return sorted(waiting + self.ended)

    def finish(self) -> None:
        """Answer and send until no record is left."""
        while self.bench.accumulator.unfinished.all():
            self.now_ms += 2000
            while self.in_flight:
                self.ack(0, 0)
            for node_id in range(3):
                self.drain(node_id, 0)


@settings(max_examples=80)
@given(STEPS, st.booleans())
def test_no_record_is_lost_doubled_or_left_over(steps: list[tuple[str, int, int]], idempotent: bool) -> None:
    """After any history, an accepted record is in exactly one place, and in the end all memory has been released.

    Each partition's records are first sent in the order in which they were accepted.
    """
    model = Model(idempotent=idempotent)
    for what, number, size in steps:
        model.now_ms += 1
        getattr(model, what)(number, size)
        assert list(range(model.bench.tokens)) == model.everywhere()
    model.finish()
    assert list(range(model.bench.tokens)) == sorted(model.ended)
    assert BUFFER == model.bench.accumulator.unfinished.free_bytes
    assert all(order == sorted(order) for order in model.first_sent.values())
