"""Positions of a consumer in its assigned partitions, and their reset and validation (KIP-320).

Rules for one partition's position (``Position``):

1. A partition has a position in the states FETCHING and AWAIT_VALIDATION (not validated yet), and none in the other
   states. ``MAY_BECOME`` lists the allowed transitions; any other requested transition is ignored.
2. A partition is fetched only in the state FETCHING, and not while the partition is about to be revoked.
3. If the leader or the leader epoch of a partition changes, the consumer validates its position by
   OffsetsForLeaderEpoch to the new leader, provided that the epochs of the position and of the leader are known.
4. OffsetsForLeaderEpoch returns the end offset of the position's leader epoch in the leader's log. A position up to
   this end offset is valid. If the position is after the end offset of its leader epoch, the log was truncated, and the
   position moves back to the end offset. If the leader's log doesn't have the position's leader epoch, the position is
   reset by ``auto.offset.reset``. With ``auto.offset.reset=none`` a truncated log is an error.
5. A position from ListOffsets has no leader epoch and is never validated.

Rules for all assigned partitions together (``SubscriptionState``):

1. Partitions are fetched in the order of assignment; after an error a partition moves to the end of that order.
2. After a ListOffsets or OffsetsForLeaderEpoch request for a partition, the next request for the partition waits for
   the deadline of the first or, after a failure, for the end of the back-off (``hold``), unless the position changes.
3. The result of ListOffsets is used only while a reset by the same policy is pending, the result of
   OffsetsForLeaderEpoch only for an unchanged position.
4. ListOffsets and OffsetsForLeaderEpoch are retried with fresh metadata after any error but TOPIC_AUTHORIZATION_FAILED.

Modelled on ``SubscriptionState``, ``OffsetFetcherUtils`` and ``OffsetsForLeaderEpochUtils`` of Kafka 4.3.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Literal, NamedTuple

from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition

ResetPolicy = Literal["earliest", "latest", "none"]
"""``auto.offset.reset``."""


class State(Enum):
    INITIALIZING = "the partition has no position yet"
    FETCHING = "the consumer fetches from the position"
    AWAIT_RESET = "the consumer looks up the offset that auto.offset.reset names"
    AWAIT_VALIDATION = "the consumer asks the leader if the position is in its log"


MAY_BECOME: Mapping[State, frozenset[State]] = {
    State.INITIALIZING: frozenset({State.FETCHING, State.AWAIT_RESET, State.AWAIT_VALIDATION}),
    State.FETCHING: frozenset({State.FETCHING, State.AWAIT_RESET, State.AWAIT_VALIDATION}),
    State.AWAIT_RESET: frozenset({State.FETCHING, State.AWAIT_RESET}),
    State.AWAIT_VALIDATION: frozenset({State.FETCHING, State.AWAIT_RESET, State.AWAIT_VALIDATION}),
}


class FetchPosition(NamedTuple):
    """Next offset to fetch, with the leader epoch of the preceding record, and the leader that validated both."""

    offset: int
    offset_epoch: int = UNKNOWN
    leader: Leader = Leader()


class EndOffset(NamedTuple):
    """Result of OffsetsForLeaderEpoch, the largest leader epoch up to the requested epoch, with its end offset."""

    epoch: int
    offset: int

    @property
    def undefined(self) -> bool:
        """True if all leader epochs in the leader's log are newer than the requested epoch."""
        return UNKNOWN in self


class Truncation(NamedTuple):
    """Log that ends before a consumer's ``position``, at ``end`` if known; an error unless ``repaired``."""

    position: FetchPosition
    end: EndOffset | None
    repaired: bool


@dataclass(slots=True, eq=False)
class Position:
    """State of one assigned partition; ``fetch`` is its position, None in states without a position."""

    state: State = State.INITIALIZING
    fetch: FetchPosition | None = None
    policy: ResetPolicy = "none"
    revoking: bool = False
    not_before_ms: float = 0.0

    @property
    def fetchable(self) -> bool:
        return self.state is State.FETCHING and not self.revoking

    def seek(self, position: FetchPosition) -> None:
        """Set the partition's position, which awaits validation if its leader epochs are known."""
        self._become(State.FETCHING, position)
        self._check(position)

    def reset(self, policy: ResetPolicy) -> None:
        """Clear the partition's position, so that the consumer must look up an offset by ListOffsets."""
        self.policy = policy
        self._become(State.AWAIT_RESET, None)

    def follow(self, leader: Leader) -> bool:
        """Process the partition's current leader; return True if the position has another leader."""
        if self.fetch is None or leader.node_id == UNKNOWN or leader == self.fetch.leader:
            return False
        self._check(self.fetch._replace(leader=leader))
        return True

    def advance(self, offset: int, offset_epoch: int) -> None:
        """Set the position after delivered records, the last of which has leader epoch ``offset_epoch``."""
        if self.fetch is not None and self.state is State.FETCHING:
            self.fetch = FetchPosition(offset, offset_epoch, self.fetch.leader)

    def apply_validation(self, position: FetchPosition, end: EndOffset, policy: ResetPolicy) -> Truncation | None:
        """Apply a validation of ``position``; return None for a valid or outdated position, else the truncation."""
        if self.state is not State.AWAIT_VALIDATION or self.fetch != position:
            return None
        if not end.undefined and end.offset >= position.offset:
            self.skip_validation()
            return None
        if policy != "none" and end.undefined:
            self.reset(policy)
        elif policy != "none":
            self._become(State.FETCHING, FetchPosition(end.offset, end.epoch, position.leader))
        return Truncation(position, None if end.undefined else end, repaired=policy != "none")

    def skip_validation(self) -> None:
        if self.state is State.AWAIT_VALIDATION:
            self._become(State.FETCHING, self.fetch)

    def _check(self, position: FetchPosition) -> None:
        provable = UNKNOWN not in {position.offset_epoch, position.leader.epoch}
        self._become(State.AWAIT_VALIDATION if provable else State.FETCHING, position)

    def _become(self, state: State, position: FetchPosition | None) -> None:
        if state in MAY_BECOME[self.state]:
            self.state, self.fetch, self.not_before_ms = state, position, 0.0


TOPIC_AUTHORIZATION_FAILED = 29


def is_retried(error: int) -> bool:
    """Return True if ListOffsets or OffsetsForLeaderEpoch is retried after this error."""
    return error != TOPIC_AUTHORIZATION_FAILED


class SubscriptionState:
    """Partitions assigned to a consumer, each with its ``Position``; calls for other partitions are ignored.

    Counters of positions: ``position_resets``, ``position_validations``, ``truncations_detected``.
    """

    def __init__(self, policy: ResetPolicy) -> None:
        self.counts: Counter[str] = Counter()
        self.policy = policy
        self._positions: dict[TopicPartition, Position] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._positions

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assigned partitions and their order; new partitions start in the state INITIALIZING."""
        self._positions = {tp: self._positions.get(tp) or Position() for tp in partitions}

    def move_to_end(self, tp: TopicPartition) -> None:
        if tp in self._positions:
            self._positions[tp] = self._positions.pop(tp)

    def revoking(self, partitions: Iterable[TopicPartition]) -> None:
        """Mark partitions as about to be revoked, so that they are no longer fetched, delivered or committed."""
        for position in self._of(partitions):
            position.revoking = True

    def fetchable(self) -> list[TopicPartition]:
        return [tp for tp, position in self._positions.items() if position.fetchable]

    def initializing(self) -> list[TopicPartition]:
        """Return the partitions that have no position since their assignment."""
        return [tp for tp, position in self._positions.items() if position.state is State.INITIALIZING]

    def to_reset(self, now_ms: float) -> dict[TopicPartition, ResetPolicy]:
        """Return the partitions that need a ListOffsets request now, with the reset policy of each partition."""
        return {tp: position.policy for tp, position in self._waiting(State.AWAIT_RESET, now_ms)}

    def to_validate(self, now_ms: float) -> dict[TopicPartition, FetchPosition]:
        """Return the positions by partition that need an OffsetsForLeaderEpoch request now."""
        waiting = self._waiting(State.AWAIT_VALIDATION, now_ms)
        return {tp: position.fetch for tp, position in waiting if position.fetch is not None}

    def hold(self, partitions: Iterable[TopicPartition], until_ms: float) -> None:
        """Exclude partitions from ListOffsets and OffsetsForLeaderEpoch requests until ``until_ms``."""
        for position in self._of(partitions):
            position.not_before_ms = until_ms

    def held_ms(self, now_ms: float) -> float:
        """Return the milliseconds to the end of the earliest exclusion by ``hold``; infinite without exclusions."""
        holds = (partition.not_before_ms for partition in self._positions.values() if partition.not_before_ms > now_ms)
        return min(holds, default=inf) - now_ms

    def state(self, tp: TopicPartition) -> State | None:
        position = self._positions.get(tp)
        return position.state if position else None

    def position(self, tp: TopicPartition) -> FetchPosition | None:
        """Return a partition's position, validated or not; None if the partition has no position."""
        position = self._positions.get(tp)
        return position.fetch if position else None

    def valid_position(self, tp: TopicPartition) -> FetchPosition | None:
        """Return a partition's position if the partition is fetchable, else None."""
        position = self._positions.get(tp)
        return position.fetch if position and position.fetchable else None

    def is_current(self, tp: TopicPartition, offset: int) -> bool:
        """Return True if ``offset`` is a partition's position; Fetch responses for other offsets must be ignored."""
        position = self.valid_position(tp)
        return position is not None and position.offset == offset

    def seek(self, tp: TopicPartition, position: FetchPosition) -> None:
        for partition in self._of((tp,)):
            partition.seek(position)
            self._count_validation(partition)

    def advance(self, tp: TopicPartition, offset: int, offset_epoch: int) -> None:
        """Set a partition's position after delivered records, the last of which has epoch ``offset_epoch``."""
        for partition in self._of((tp,)):
            partition.advance(offset, offset_epoch)

    def reset(self, tp: TopicPartition, policy: ResetPolicy | None = None) -> None:
        """Request a look-up of a partition's offset by ``policy``, by default ``auto.offset.reset``."""
        for partition in self._of((tp,)):
            partition.reset(policy or self.policy)
            self.counts["position_resets"] += 1

    def apply_lookup(self, tp: TopicPartition, policy: ResetPolicy, offset: int, leader: Leader) -> bool:
        """Set a partition's position to a ListOffsets result; return False if no reset by ``policy`` is pending."""
        partition = self._positions.get(tp)
        if partition is None or partition.state is not State.AWAIT_RESET or partition.policy != policy:
            return False
        partition.seek(FetchPosition(offset, leader=leader))
        return True

    def follow(self, leader_of: Callable[[TopicPartition], Leader]) -> list[TopicPartition]:
        """Process the leaders of all partitions; return the partitions with a new leader or leader epoch."""
        return [tp for tp in self._positions if self.follow_leader(tp, leader_of(tp))]

    def follow_leader(self, tp: TopicPartition, leader: Leader) -> bool:
        """Process the leader of one partition; return True if the leader or leader epoch is new."""
        partition = self._positions.get(tp)
        moved = partition is not None and partition.follow(leader)
        if partition is not None and moved:
            self._count_validation(partition)
        return moved

    def apply_validation(self, tp: TopicPartition, position: FetchPosition, end: EndOffset) -> Truncation | None:
        """Apply the result of OffsetsForLeaderEpoch to a partition's position."""
        partition = self._positions.get(tp)
        truncation = partition.apply_validation(position, end, self.policy) if partition else None
        if partition and truncation:
            self.counts["truncations_detected"] += 1
            if partition.state is State.AWAIT_RESET:
                self.counts["position_resets"] += 1
        return truncation

    def skip_validation(self, partitions: Iterable[TopicPartition]) -> None:
        for position in self._of(partitions):
            position.skip_validation()

    def _of(self, partitions: Iterable[TopicPartition]) -> Iterator[Position]:
        return (self._positions[tp] for tp in partitions if tp in self._positions)

    def _waiting(self, state: State, now_ms: float) -> Iterator[tuple[TopicPartition, Position]]:
        return (
            (tp, partition)
            for tp, partition in self._positions.items()
            if partition.state is state and now_ms >= partition.not_before_ms
        )

    def _count_validation(self, position: Position) -> None:
        if position.state is State.AWAIT_VALIDATION:
            self.counts["position_validations"] += 1
