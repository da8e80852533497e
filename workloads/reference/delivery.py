"""What a producer reports: one value a batch."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aftershock.workloads.rules.batch import Batch
from aftershock.workloads.rules.values import UNKNOWN


class Delivery(NamedTuple):
    """What became of one batch. ``tokens`` are its records', in their order; record i has offset ``base_offset + i``.

    ``error`` is Kafka's code, 0 for success; ``base_offset`` is -1 where Kafka doesn't say. ``in_doubt``: some attempt
    was sent and not definitively refused, so the records may be in the log, or come there yet. ``broker_id`` and
    ``leader_epoch`` are those of the last attempt; -1, and 0 ``attempts``, when nothing was sent.
    """

    topic: str
    partition: int
    tokens: Sequence[int]
    base_offset: int
    error: int
    in_doubt: bool
    broker_id: int
    leader_epoch: int
    attempts: int


Report = Callable[[Delivery], None]


def delivered(batch: Batch, base_offset: int) -> Delivery:
    """A batch is in the log."""
    return _ended(batch, base_offset, 0, in_doubt=False)


def undelivered(batch: Batch, error: int) -> Delivery:
    """A batch won't be tried again."""
    return _ended(batch, UNKNOWN, error, in_doubt=batch.in_doubt)


def refused(topic: str, partition: int | None, token: int, error: int) -> Delivery:
    """A record was never taken."""
    number = UNKNOWN if partition is None else partition
    return Delivery(topic, number, (token,), UNKNOWN, error, False, UNKNOWN, UNKNOWN, 0)


def _ended(batch: Batch, base_offset: int, error: int, *, in_doubt: bool) -> Delivery:
    topic, partition = batch.tp
    return Delivery(
        topic, partition, batch.tokens, base_offset, error, in_doubt, batch.node_id, batch.leader_epoch, batch.sends
    )
