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
"""

from collections.abc import Mapping
from enum import Enum
from typing import Literal, NamedTuple

from aftershock.workloads.rules.values import UNKNOWN, Leader

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
