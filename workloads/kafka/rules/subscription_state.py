"""Where a consumer stands in one partition, and whether it may fetch there (KIP-320, on which KIP-392 and 951 build).

1. States, and what each may become; anything else that is asked for is ignored:

   ================  ========  ===========  ================  ==============
   from              FETCHING  AWAIT_RESET  AWAIT_VALIDATION  has a position
   ================  ========  ===========  ================  ==============
   INITIALIZING      yes       yes          yes               no
   FETCHING          yes       yes          yes               yes
   AWAIT_RESET       yes       yes          no                no
   AWAIT_VALIDATION  yes       yes          yes               yes, unproven
   ================  ========  ===========  ================  ==============

2. Only FETCHING fetches, and not what is about to be revoked.
3. A position is an offset, the leader epoch of the record before it, and the leader it was last checked against. When
   that leader or its epoch changes and both epochs are known, the position is unproven until OffsetsForLeaderEpoch to
   the new leader has answered; with an epoch unknown there is nothing to compare and fetching goes on.
4. The answer, the end of the position's epoch in the leader's log, decides, if the position hasn't moved meanwhile:
   at or after the position, it holds; before it, the log was truncated, and we go back to that end; undefined, the log
   shares nothing with us, and the reset policy decides. Without a policy both are the application's to hear of.
5. An offset from ListOffsets comes without an epoch, so it is never validated.

Source: ``SubscriptionState`` of Kafka 4.3. KIP-392 would validate after every OFFSET_OUT_OF_RANGE of a follower; Kafka
validates only when leader or epoch changed.

All positions of one consumer: what to fetch, to look up and to validate, in the order of its assignment.

1. Partitions are served in assignment order. One that had an error goes to the end, so that the others stay together.
2. A lookup or a validation under way holds its partition until the request's deadline, a failed one until the back-off
   has passed; ``hold`` is for both. Whatever moves the position meanwhile ends the hold.
3. An answer counts only for what was asked: a lookup while the same reset is still awaited, a validation of the same
   position.
4. Any error of a lookup or a validation is tried again with fresh metadata, known or not (OFFSET_NOT_AVAILABLE of a
   fresh leader is one); only TOPIC_AUTHORIZATION_FAILED is raised.

Source: ``SubscriptionState``, ``OffsetFetcherUtils``, ``OffsetsForLeaderEpochUtils`` of Kafka 4.3. The state machine of
one partition is ``position.py``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from math import inf
from typing import Literal, NamedTuple

from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition

ResetPolicy = Literal["earliest", "latest", "none"]
"""``auto.offset.reset``."""


class State(Enum):
    """What a partition's position is good for."""

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
    """The next offset to fetch, the epoch of the record before it, and the leader that it was last checked against."""

    offset: int
    offset_epoch: int = UNKNOWN
    leader: Leader = Leader()


class EndOffset(NamedTuple):
    """OffsetsForLeaderEpoch's answer: the largest epoch not above the one asked for, and where it ends."""

    epoch: int
    offset: int

    @property
    def undefined(self) -> bool:
        """Whether the leader knows no epoch so low."""
        return UNKNOWN in self


class Truncation(NamedTuple):
    """The log no longer holds what we read. ``end`` is None where it diverged is unknown; if not ``mended``, raise."""

    position: FetchPosition
    end: EndOffset | None
    mended: bool


class Position:
    """One partition's state machine. ``fetch`` is the position, None in the states that have none."""

    __slots__ = ("fetch", "not_before_ms", "policy", "revoking", "state")

    def __init__(self) -> None:
        self.state = State.INITIALIZING
        self.fetch: FetchPosition | None = None
        self.policy: ResetPolicy = "none"
        self.revoking = False
        self.not_before_ms = 0.0

    @property
    def fetchable(self) -> bool:
        """Rule 2."""
        return self.state is State.FETCHING and not self.revoking

    def seek(self, position: FetchPosition) -> None:
        """Take this position, from whatever state, and prove it first if it can be."""
        self._become(State.FETCHING, position)
        self._check(position)

    def reset(self, policy: ResetPolicy) -> None:
        """Forget the position; an offset has to be looked up."""
        self.policy = policy
        self._become(State.AWAIT_RESET, None)

    def follow(self, leader: Leader) -> bool:
        """Metadata says who leads now. Whether that is news to a position that we have."""
        if self.fetch is None or leader.node_id == UNKNOWN or leader == self.fetch.leader:
            return False
        self._check(self.fetch._replace(leader=leader))
        return True

    def advance(self, offset: int, offset_epoch: int) -> None:
        """Records up to ``offset``, the last of them of ``offset_epoch``, were handed over. Only while FETCHING."""
        if self.fetch is not None and self.state is State.FETCHING:
            self.fetch = FetchPosition(offset, offset_epoch, self.fetch.leader)

    def validated(self, asked: FetchPosition, end: EndOffset, policy: ResetPolicy) -> Truncation | None:
        """Rule 4. ``asked``: the position that the request was about. None: it holds, or is no longer ours."""
        if self.state is not State.AWAIT_VALIDATION or self.fetch != asked:
            return None
        if not end.undefined and end.offset >= asked.offset:
            self.skip_validation()
            return None
        if policy != "none":
            self._go_back(end, policy)
        return Truncation(asked, None if end.undefined else end, mended=policy != "none")

    def skip_validation(self) -> None:
        """The position holds, or the broker is too old to be asked (OffsetsForLeaderEpoch before v3)."""
        if self.state is State.AWAIT_VALIDATION:
            self._become(State.FETCHING, self.fetch)

    def _go_back(self, end: EndOffset, policy: ResetPolicy) -> None:
        if end.undefined or self.fetch is None:
            self.reset(policy)
        else:
            self._become(State.FETCHING, FetchPosition(end.offset, end.epoch, self.fetch.leader))

    def _check(self, position: FetchPosition) -> None:
        provable = UNKNOWN not in {position.offset_epoch, position.leader.epoch}
        self._become(State.AWAIT_VALIDATION if provable else State.FETCHING, position)

    def _become(self, state: State, position: FetchPosition | None) -> None:
        if state in MAY_BECOME[self.state]:
            self.state, self.fetch, self.not_before_ms = state, position, 0.0


TOPIC_AUTHORIZATION_FAILED = 29


def is_retried(error: int) -> bool:
    """Rule 4, for ListOffsets and OffsetsForLeaderEpoch: retry after ``retry.backoff.ms`` and a metadata refresh."""
    return error != TOPIC_AUTHORIZATION_FAILED


class SubscriptionState:
    """The partitions assigned to a consumer, each with its ``Position``; of others nothing is known, and nothing done.

    Counts ``position_resets`` and ``position_validations`` (found necessary, not yet done), ``truncations_detected``.
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

    # ---- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these, in this order. Those we had keep their positions, new ones begin INITIALIZING."""
        self._positions = {tp: self._positions.get(tp) or Position() for tp in partitions}

    def move_to_end(self, tp: TopicPartition) -> None:
        """Rule 1."""
        if tp in self._positions:
            self._positions[tp] = self._positions.pop(tp)

    def revoking(self, partitions: Iterable[TopicPartition]) -> None:
        """These are about to be taken from us: nothing more of them is fetched, handed over or committed."""
        for position in self._of(partitions):
            position.revoking = True

    # ---- what there is to do

    def fetchable(self) -> list[TopicPartition]:
        """What may be fetched, in order."""
        return [tp for tp, position in self._positions.items() if position.fetchable]

    def initializing(self) -> list[TopicPartition]:
        """What has no position yet: look for committed offsets; without one, ``reset``."""
        return [tp for tp, position in self._positions.items() if position.state is State.INITIALIZING]

    def to_reset(self, now_ms: float) -> dict[TopicPartition, ResetPolicy]:
        """What needs a ListOffsets request now, and for which end of the log."""
        return {tp: position.policy for tp, position in self._waiting(State.AWAIT_RESET, now_ms)}

    def to_validate(self, now_ms: float) -> dict[TopicPartition, FetchPosition]:
        """What needs an OffsetsForLeaderEpoch request now, to the leader in its position."""
        waiting = self._waiting(State.AWAIT_VALIDATION, now_ms)
        return {tp: position.fetch for tp, position in waiting if position.fetch is not None}

    def hold(self, partitions: Iterable[TopicPartition], until_ms: float) -> None:
        """Rule 2: leave these out of ``to_reset`` and ``to_validate`` until then."""
        for position in self._of(partitions):
            position.not_before_ms = until_ms

    def held_ms(self, now_ms: float) -> float:
        """How long until the next hold ends; infinite when nothing is held for a time."""
        holds = (mine.not_before_ms for mine in self._positions.values() if mine.not_before_ms > now_ms)
        return min(holds, default=inf) - now_ms

    # ---- one partition

    def state(self, tp: TopicPartition) -> State | None:
        """None if it isn't assigned."""
        position = self._positions.get(tp)
        return position.state if position else None

    def position(self, tp: TopicPartition) -> FetchPosition | None:
        """The position, proven or not; None while there is none."""
        position = self._positions.get(tp)
        return position.fetch if position else None

    def valid_position(self, tp: TopicPartition) -> FetchPosition | None:
        """The position to fetch from or to commit; None in all states but FETCHING, and while about to be revoked."""
        position = self._positions.get(tp)
        return position.fetch if position and position.fetchable else None

    def is_current(self, tp: TopicPartition, offset: int) -> bool:
        """Whether a fetch answer for ``offset`` is still wanted; any other is dropped, errors included."""
        position = self.valid_position(tp)
        return position is not None and position.offset == offset

    def seek(self, tp: TopicPartition, position: FetchPosition) -> None:
        """Go there: by the application, or because the offset was committed. Validated if epochs are known."""
        for mine in self._of((tp,)):
            mine.seek(position)
            self._count_validation(mine)

    def advance(self, tp: TopicPartition, offset: int, offset_epoch: int) -> None:
        """The application has what comes before ``offset``; ``offset_epoch`` is the last batch's leader epoch."""
        for mine in self._of((tp,)):
            mine.advance(offset, offset_epoch)

    # ---- reset

    def reset(self, tp: TopicPartition, policy: ResetPolicy | None = None) -> None:
        """Look up the offset that ``policy`` names, by default the consumer's own, which is not "none"."""
        for mine in self._of((tp,)):
            mine.reset(policy or self.policy)
            self.counts["position_resets"] += 1

    def looked_up(self, tp: TopicPartition, asked: ResetPolicy, offset: int, leader: Leader) -> bool:
        """ListOffsets answered ``asked``. Whether that was still wanted: the position is ``offset`` now (rule 5)."""
        mine = self._positions.get(tp)
        if mine is None or mine.state is not State.AWAIT_RESET or mine.policy != asked:
            return False
        mine.seek(FetchPosition(offset, leader=leader))
        return True

    # ---- validation

    def follow(self, leader_of: Callable[[TopicPartition], Leader]) -> list[TopicPartition]:
        """Metadata changed. Returns the partitions whose leader or epoch did: their read replicas must be cleared."""
        return [tp for tp in self._positions if self.follow_leader(tp, leader_of(tp))]

    def follow_leader(self, tp: TopicPartition, leader: Leader) -> bool:
        """The same for one partition, as after an accepted leader hint (KIP-951)."""
        mine = self._positions.get(tp)
        moved = mine is not None and mine.follow(leader)
        if mine is not None and moved:
            self._count_validation(mine)
        return moved

    def validated(self, tp: TopicPartition, asked: FetchPosition, end: EndOffset) -> Truncation | None:
        """OffsetsForLeaderEpoch answered. A truncation that isn't ``mended`` must be raised: no policy helps."""
        mine = self._positions.get(tp)
        truncation = mine.validated(asked, end, self.policy) if mine else None
        if mine and truncation:
            self.counts["truncations_detected"] += 1
            if mine.state is State.AWAIT_RESET:
                self.counts["position_resets"] += 1
        return truncation

    def skip_validation(self, partitions: Iterable[TopicPartition]) -> None:
        """Their leader can't be asked (OffsetsForLeaderEpoch before v3): take the positions as they are."""
        for position in self._of(partitions):
            position.skip_validation()

    # ---- helpers

    def _of(self, partitions: Iterable[TopicPartition]) -> Iterator[Position]:
        return (self._positions[tp] for tp in partitions if tp in self._positions)

    def _waiting(self, state: State, now_ms: float) -> Iterator[tuple[TopicPartition, Position]]:
        return (
            (tp, mine) for tp, mine in self._positions.items() if mine.state is state and now_ms >= mine.not_before_ms
        )

    def _count_validation(self, position: Position) -> None:
        if position.state is State.AWAIT_VALIDATION:
            self.counts["position_validations"] += 1
