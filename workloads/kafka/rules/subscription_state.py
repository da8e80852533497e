"""Positions of a consumer in its assigned partitions: states, resets and validation (KIP-320, base of KIP-392 and 951).

Rules for one partition's position (``Position``):

1. ``MAY_BECOME`` lists the allowed transitions between states; any other requested transition is ignored. A partition
   has a position in the states FETCHING and AWAIT_VALIDATION (not validated yet), and none in the other two states.
2. A partition is fetched only in the state FETCHING, and not while the partition is about to be revoked.
3. A position consists of an offset, the leader epoch of the record before the offset, and the leader of the last check.
   When the leader or its epoch changes and both epochs are known, the position must be validated by
   OffsetsForLeaderEpoch to the new leader; if an epoch is unknown, fetching continues without a check.
4. The response to OffsetsForLeaderEpoch is the end offset of the position's epoch in the leader's log. If the end
   offset in that response is at or after the position, the position is valid. If the end offset of the epoch is before
   the position, the log was truncated, and the position moves back to the end offset. If the leader's log has no such
   epoch, the reset policy decides. Without a reset policy, a truncated log is an error.
5. A position from ListOffsets has no epoch and is never validated.

Rules for all assigned partitions together (``SubscriptionState``):

1. Partitions are fetched in the order of assignment; after an error a partition moves to the end of that order.
2. After a look-up or validation request for a partition, no other is sent until the request's deadline or, after a
   failure, the end of the back-off (``hold``). Any change of a partition's position ends the wait for that partition.
3. The result of an offset look-up is used only while the same reset is pending, the result of a validation only for an
   unchanged position.
4. Any error of an offset look-up or validation is retried with fresh metadata, including unknown codes (for example
   OFFSET_NOT_AVAILABLE of a new leader); only TOPIC_AUTHORIZATION_FAILED is raised.

Source: ``SubscriptionState``, ``OffsetFetcherUtils``, ``OffsetsForLeaderEpochUtils`` of Kafka 4.3. KIP-392 would
validate after every OFFSET_OUT_OF_RANGE of a follower; Kafka validates only when leader or epoch changed.
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
    INITIALIZING = "no position yet"
    FETCHING = "fetch from the position"
    AWAIT_RESET = "look up an offset by the reset policy"
    AWAIT_VALIDATION = "ask the leader whether the position is in its log"


MAY_BECOME: Mapping[State, frozenset[State]] = {
    State.INITIALIZING: frozenset({State.FETCHING, State.AWAIT_RESET, State.AWAIT_VALIDATION}),
    State.FETCHING: frozenset({State.FETCHING, State.AWAIT_RESET, State.AWAIT_VALIDATION}),
    State.AWAIT_RESET: frozenset({State.FETCHING, State.AWAIT_RESET}),
    State.AWAIT_VALIDATION: frozenset({State.FETCHING, State.AWAIT_RESET, State.AWAIT_VALIDATION}),
}


class FetchPosition(NamedTuple):
    """Next offset to fetch, the epoch of the record before that offset, and the leader of the last check."""

    offset: int
    offset_epoch: int = UNKNOWN
    leader: Leader = Leader()


class EndOffset(NamedTuple):
    """Result of OffsetsForLeaderEpoch: the largest epoch not above the requested epoch, and its end offset."""

    epoch: int
    offset: int

    @property
    def undefined(self) -> bool:
        """True if the leader's log has no epoch as low as the requested epoch."""
        return UNKNOWN in self


class Truncation(NamedTuple):
    """Log that ends, at ``end`` (None if unknown), before a consumer's ``position``; an error unless ``repaired``."""

    position: FetchPosition
    end: EndOffset | None
    repaired: bool


@dataclass(slots=True, eq=False)
class Position:
    """State machine of one partition's position; ``fetch`` is the position, None in states without a position."""

    state: State = State.INITIALIZING
    fetch: FetchPosition | None = None
    policy: ResetPolicy = "none"
    revoking: bool = False
    not_before_ms: float = 0.0

    @property
    def fetchable(self) -> bool:
        return self.state is State.FETCHING and not self.revoking

    def seek(self, position: FetchPosition) -> None:
        """Set a partition's position, which awaits validation if its leader epochs are known."""
        self._become(State.FETCHING, position)
        self._check(position)

    def reset(self, policy: ResetPolicy) -> None:
        """Clear a partition's position, so that its offset must be looked up by ListOffsets."""
        self.policy = policy
        self._become(State.AWAIT_RESET, None)

    def follow(self, leader: Leader) -> bool:
        """Process a partition's current leader; return True if it differs from the leader of the position."""
        if self.fetch is None or leader.node_id == UNKNOWN or leader == self.fetch.leader:
            return False
        self._check(self.fetch._replace(leader=leader))
        return True

    def advance(self, offset: int, offset_epoch: int) -> None:
        """In state FETCHING, advance the position past delivered records, the last of leader epoch ``offset_epoch``."""
        if self.fetch is not None and self.state is State.FETCHING:
            self.fetch = FetchPosition(offset, offset_epoch, self.fetch.leader)

    def apply_validation(self, position: FetchPosition, end: EndOffset, policy: ResetPolicy) -> Truncation | None:
        """Apply a validation; return None if ``position`` is valid, or is no longer the current position."""
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
    """True if an error of ListOffsets or OffsetsForLeaderEpoch is retried after a back-off and a metadata refresh."""
    return error != TOPIC_AUTHORIZATION_FAILED


class SubscriptionState:
    """Partitions assigned to a consumer, each with its ``Position``; calls for other partitions are ignored.

    Counters: ``position_resets`` and ``position_validations`` (both counted when requested), ``truncations_detected``.
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
        """Mark partitions as about to be revoked, which are no longer fetched, delivered or committed."""
        for position in self._of(partitions):
            position.revoking = True

    def fetchable(self) -> list[TopicPartition]:
        return [tp for tp, position in self._positions.items() if position.fetchable]

    def initializing(self) -> list[TopicPartition]:
        """Return the partitions without a position, for which the caller must ``seek`` or ``reset``."""
        return [tp for tp, position in self._positions.items() if position.state is State.INITIALIZING]

    def to_reset(self, now_ms: float) -> dict[TopicPartition, ResetPolicy]:
        """Return the partitions that need a ListOffsets request now, with the end of the log to look up."""
        return {tp: position.policy for tp, position in self._waiting(State.AWAIT_RESET, now_ms)}

    def to_validate(self, now_ms: float) -> dict[TopicPartition, FetchPosition]:
        """Return the positions that need an OffsetsForLeaderEpoch request now, to the leader in the position."""
        waiting = self._waiting(State.AWAIT_VALIDATION, now_ms)
        return {tp: position.fetch for tp, position in waiting if position.fetch is not None}

    def hold(self, partitions: Iterable[TopicPartition], until_ms: float) -> None:
        """Send no ListOffsets or OffsetsForLeaderEpoch for the partitions until ``until_ms``."""
        for position in self._of(partitions):
            position.not_before_ms = until_ms

    def held_ms(self, now_ms: float) -> float:
        """Return the milliseconds until a partition excluded by ``hold`` may be looked up; infinite if none is."""
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
        """Return a partition's valid position, to fetch or commit; None while the partition is about to be revoked."""
        position = self._positions.get(tp)
        return position.fetch if position and position.fetchable else None

    def is_current(self, tp: TopicPartition, offset: int) -> bool:
        """True if a fetch response for ``offset`` matches the partition's position; other responses must be ignored."""
        position = self.valid_position(tp)
        return position is not None and position.offset == offset

    def seek(self, tp: TopicPartition, position: FetchPosition) -> None:
        """Set a partition's position, as chosen by the application or from a committed offset."""
        for partition in self._of((tp,)):
            partition.seek(position)
            self._count_validation(partition)

    def advance(self, tp: TopicPartition, offset: int, offset_epoch: int) -> None:
        """Advance a partition's position after delivery; ``offset_epoch`` is the last batch's leader epoch."""
        for partition in self._of((tp,)):
            partition.advance(offset, offset_epoch)

    def reset(self, tp: TopicPartition, policy: ResetPolicy | None = None) -> None:
        """Request a look-up of a partition's start or end offset, by default as the consumer's reset policy says."""
        for partition in self._of((tp,)):
            partition.reset(policy or self.policy)
            self.counts["position_resets"] += 1

    def apply_lookup(self, tp: TopicPartition, policy: ResetPolicy, offset: int, leader: Leader) -> bool:
        """Set a partition's position to a ListOffsets result; False if no reset by ``policy`` is pending."""
        partition = self._positions.get(tp)
        if partition is None or partition.state is not State.AWAIT_RESET or partition.policy != policy:
            return False
        partition.seek(FetchPosition(offset, leader=leader))
        return True

    def follow(self, leader_of: Callable[[TopicPartition], Leader]) -> list[TopicPartition]:
        """Store leaders; return partitions with a new leader or epoch, whose read replicas the caller then clears."""
        return [tp for tp in self._positions if self.follow_leader(tp, leader_of(tp))]

    def follow_leader(self, tp: TopicPartition, leader: Leader) -> bool:
        """Process the leader of one partition, for example after an accepted leader hint (KIP-951)."""
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
