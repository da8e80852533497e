"""Records between fetch and poll: positions move exactly with the returned records."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import ProtocolError
from aftershock.workloads.kafka.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from aftershock.workloads.kafka.rules.subscription_state import FetchPosition, SubscriptionState
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import AFTER_CRC, CONTROL, UNTIL_CRC
from aftershock.workloads.kafka.wire.batch_builder import build, seal

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base_offset: int, count: int = 3) -> bytes:
    return build([b"value"] * count, timestamps_ms=[0] * count, base_offset=base_offset)


def altered(sound: bytes, *, attributes: int | None = None, count: int | None = None) -> bytes:
    """Return the batch with other header fields and a valid CRC; ``count=0`` removes the records, too."""
    header = list(AFTER_CRC.unpack_from(sound, UNTIL_CRC.size))
    header[0] = header[0] if attributes is None else attributes
    header[-1] = header[-1] if count is None else count
    records = b"" if count == 0 else sound[UNTIL_CRC.size + AFTER_CRC.size :]
    return seal(UNTIL_CRC.unpack_from(sound)[0], AFTER_CRC.pack(*header), records, leader_epoch=4)


def buffered(*records: bytes, offset: int = 0) -> tuple[SubscriptionState, FetchBuffer]:
    positions = SubscriptionState("latest")
    positions.assign([A, B])
    buffer = FetchBuffer(positions)
    positions.seek(A, FetchPosition(offset))
    buffer.add(CompletedFetch(A, offset, b"".join(records), high_watermark=99, broker_id=7))
    return positions, buffer


def position(positions: SubscriptionState) -> int:
    at = positions.position(A)
    assert at is not None
    return at.offset


def test_the_position_is_behind_the_returned_batch() -> None:
    """Returned records are consumed, other records aren't: a commit after any poll is correct."""
    positions, buffer = buffered(batch(0), batch(3))
    (first,) = buffer.take(1)
    assert (0, 99, 7, 3) == (first.first_offset, first.high_watermark, first.broker_id, len(first.batch.records))
    assert 3 == position(positions)
    (second,) = buffer.take(1)
    assert (3, 6) == (second.first_offset, position(positions))
    assert [] == buffer.take(1)
    assert A not in buffer


def test_whole_batches_up_to_max_poll_records() -> None:
    """The batch that reaches ``max.poll.records`` is the last."""
    positions, buffer = buffered(batch(0), batch(3), batch(6))
    assert [0, 3] == [each.first_offset for each in buffer.take(4)]
    assert 6 == position(positions)


def test_a_fetch_from_the_middle_of_a_batch() -> None:
    """Brokers return the whole batch: records before the position were delivered before and are dropped."""
    positions, buffer = buffered(batch(0), batch(3), offset=4)
    (only,) = buffer.take(100)
    assert (4, 3, 6) == (only.first_offset, only.batch.base_offset, position(positions))


def test_the_batchs_epoch_becomes_the_positions() -> None:
    """Without it no truncation could be detected."""
    positions, buffer = buffered(altered(batch(0)))
    buffer.take(1)
    at = positions.position(A)
    assert at is not None
    assert 4 == at.offset_epoch


@pytest.mark.parametrize(
    "unseen", [altered(batch(3), attributes=CONTROL), altered(batch(3), count=0)], ids=["control", "emptied"]
)
def test_control_and_emptied_batches_are_skipped(unseen: bytes) -> None:
    """The application sees none of them, and the position is behind them: else the consumer would hang there."""
    positions, buffer = buffered(batch(0), unseen, batch(6))
    assert [0, 6] == [each.first_offset for each in buffer.take(100)]
    assert 9 == position(positions)


def test_skipped_batches_move_the_position() -> None:
    """A poll that returns no record still advances: the next fetch starts behind the markers."""
    positions, buffer = buffered(altered(batch(0), attributes=CONTROL))
    assert [] == buffer.take(100)
    assert 3 == position(positions)


def test_records_of_revoked_or_sought_partitions_are_dropped() -> None:
    positions, buffer = buffered(batch(0))
    positions.seek(A, FetchPosition(2))
    assert [] == buffer.take(100)
    positions, buffer = buffered(batch(0))
    positions.assign([B])
    assert [] == buffer.take(100)
    assert A not in buffer


def test_a_corrupt_batch_is_reported_once_and_fetched_again() -> None:
    """Records before it are returned; the position stays before it; the message names the offset and the next step."""
    broken = bytearray(batch(3))
    broken[-1] ^= 1
    positions, buffer = buffered(batch(0), bytes(broken))
    assert [0] == [each.first_offset for each in buffer.take(100)]
    assert A in buffer
    problem = buffer.problem()
    assert isinstance(problem, ProtocolError)
    assert "t/0 at offset 3" in str(problem)
    assert "fetches the records again" in str(problem)
    assert (3, False, None) == (position(positions), A in buffer, buffer.problem())


def test_a_response_without_a_whole_batch_is_an_error() -> None:
    """Otherwise the client would fetch the same bytes for ever."""
    _, buffer = buffered(batch(0)[:40])
    assert [] == buffer.take(1)
    assert "contain no complete record batch" in str(buffer.problem())


def test_a_partition_that_was_served_goes_to_the_end() -> None:
    """The next fetch lists the other partitions first."""
    positions, buffer = buffered(batch(0))
    buffer.take(100)
    buffer.take(100)
    assert [B, A] == list(positions)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["seen", "control", "emptied"]), max_size=8),
    st.integers(0, 24),
    st.integers(1, 10),
)
def test_every_record_from_the_position_on_is_returned_once(kinds: list[str], start: int, most: int) -> None:
    """Compared with a list: the offsets of visible records, from the start on, once, in order, for any poll limit."""
    makers = {
        "seen": batch,
        "control": lambda at: altered(batch(at), attributes=CONTROL),
        "emptied": lambda at: altered(batch(at), count=0),
    }
    log = [(kind, 3 * number) for number, kind in enumerate(kinds)]
    there = b"".join(makers[kind](at) for kind, at in log if at + 2 >= start)
    if not there:
        return
    positions, buffer = buffered(there, offset=start)
    taken: list[int] = []
    while A in buffer:
        for each in buffer.take(most):
            taken += [record.offset for record in each.batch.records if record.offset >= each.first_offset]
    assert [at + i for kind, at in log for i in range(3) if kind == "seen" and at + i >= start] == taken
    assert 3 * len(kinds) == position(positions)
