"""A member of a consumer group: the client's half of KIP-848, whose assignments the broker makes.

Rules (Kafka 4.3: ``ConsumerMembershipManager``, ``AbstractMembershipManager``, ``ConsumerHeartbeatRequestManager``):

1. The client makes its member id and keeps it for life. Epoch 0 joins, a positive one belongs, -1 leaves.
2. A joining heartbeat says everything and owns nothing. Later ones carry only what changed since the last that went
   out; after a failed one nothing counts as said.
3. An answer may carry a target assignment. It is reconciled one step at a time: what is taken away is given up, then
   the new is taken, then a heartbeat acknowledges at once. Topics whose names aren't known yet wait, the rest doesn't.
   A target that changes meanwhile is reconciled afterwards.
4. FENCED_MEMBER_EPOCH (110) or UNKNOWN_MEMBER_ID (25): all partitions are lost, nothing may be committed; as soon as
   they have been released the member joins again, with its old id and epoch 0, without back-off.
5. NOT_COORDINATOR (16), COORDINATOR_NOT_AVAILABLE (15): find the coordinator, then ask again at once.
   COORDINATOR_LOAD_IN_PROGRESS (14), a disconnect or a time-out: back off. A topic that may not be read (29) is told
   and backed off, for the rest of the subscription may go on. Every other error ends the membership.

::

    UNSUBSCRIBED ──subscribe──▶ JOINING ──answer──▶ STABLE ◀──────────sent──────────┐
         ▲                         ▲  └──answer with a target──▶ RECONCILING ──▶ ACKNOWLEDGING
         │                     released        STABLE ──same──▶      ▲ └── a newer target, once sent
        sent                       │                                 └───────────────────┘
      LEAVING ◀──leave── any       FENCED ◀──fenced── any              FATAL ◀──other errors── any

The KIP and Kafka differ: the KIP let the broker make member ids (version 0 of the API), Kafka 4 has the client make
them (version 1, KIP-1082). We leave out static members, regular expressions, and leaving when ``max.poll.interval.ms``
has passed without a poll: a workload always polls, or its process is dead.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from aftershock.workloads.kafka.rules.values import Backoff

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
FENCED_CODES = frozenset({25, 110})
LOST_COORDINATOR_CODES = frozenset({15, 16})
BACKED_OFF_CODES = frozenset({14, 29})


class MemberState(Enum):
    """Where a member stands; the arrows between are drawn in the module's docstring."""

    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    FENCED = "fenced"
    LEAVING = "leaving"
    FATAL = "fatal"


URGENT = frozenset({MemberState.JOINING, MemberState.ACKNOWLEDGING, MemberState.LEAVING})
"""A heartbeat is due at once, whatever the interval."""
SILENT = frozenset({MemberState.UNSUBSCRIBED, MemberState.FENCED, MemberState.FATAL})
"""No heartbeat is due at all."""


class AssignedPartition(NamedTuple):
    """A partition as the group protocol names it."""

    topic_id: UUID
    partition: int


Assignment = frozenset[AssignedPartition]
NOTHING: Assignment = frozenset()


class Heartbeat(NamedTuple):
    """What one ConsumerGroupHeartbeat says. None: unchanged since the last one."""

    member_id: str
    member_epoch: int
    rack: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: tuple[str, ...] | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None


class HeartbeatAnswer(NamedTuple):
    """What the coordinator answered. ``assignment`` is None where it is unchanged."""

    error: int = 0
    member_epoch: int = 0
    interval_ms: float = 5000
    assignment: Assignment | None = None


class Verdict(Enum):
    """What an answer asks of the shell."""

    GO_ON = "go on"
    RELEASE = "the partitions are lost: give them up without committing, then tell `released`"
    FIND_COORDINATOR = "this broker isn't the coordinator"
    TELL = "worth telling, and mends itself perhaps"
    FAIL = "the membership has ended"


class Step(NamedTuple):
    """One reconciliation: first give up ``revoke``, then take ``take``, then tell ``reconciled``."""

    revoke: Assignment
    take: Assignment


class GroupMember:
    """The state machine of one member. ``counts``: heartbeats, assignments_received, rebalances, fenced."""

    def __init__(
        self, member_id: str, *, backoff: Backoff, rebalance_timeout_ms: int, rack: str | None, assignor: str | None
    ) -> None:
        self.member_id, self.epoch, self.state = member_id, JOIN_EPOCH, MemberState.UNSUBSCRIBED
        self.counts: Counter[str] = Counter()
        self.owned = NOTHING
        self._target = NOTHING
        self._step: Step | None = None
        self._topics: tuple[str, ...] = ()
        self._always: dict[str, Any] = {
            "rack": rack,
            "rebalance_timeout_ms": rebalance_timeout_ms,
            "server_assignor": assignor,
        }
        self._said: Mapping[str, object] = MappingProxyType({})
        self._backoff, self._failures = backoff, 0
        self._in_flight = False
        self._interval_ms = self._sent_ms = self._not_before_ms = 0.0

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Want these topics; the next heartbeat joins the group, or tells the change."""
        self._topics = topics
        if self.state is MemberState.UNSUBSCRIBED:
            self._join()
        self._sent_ms = -math.inf

    def _join(self) -> None:
        self.epoch, self.state, self.owned, self._target = JOIN_EPOCH, MemberState.JOINING, NOTHING, NOTHING
        self._said = MappingProxyType({})

    def wait_ms(self, now_ms: float) -> float:
        """How long until the next heartbeat is due: 0 now, infinite while one is in flight or none is wanted."""
        if self._in_flight or self.state in SILENT:
            return math.inf
        due_ms = now_ms if self.state in URGENT else self._sent_ms + self._interval_ms
        return max(0.0, due_ms - now_ms, self._not_before_ms - now_ms)

    def heartbeat(self, now_ms: float) -> Heartbeat:
        """The heartbeat to send now; until ``answered`` or ``failed`` there is no other."""
        self.counts["heartbeats"] += 1
        self._sent_ms, self._in_flight = now_ms, True
        if self.state is MemberState.LEAVING:
            self.state = MemberState.UNSUBSCRIBED
            return Heartbeat(self.member_id, LEAVE_EPOCH)
        if self.state is MemberState.ACKNOWLEDGING:
            self.state = MemberState.STABLE if self.owned == self._target else MemberState.RECONCILING
        facts = self._always | {"topics": self._topics, "owned": self.owned}
        news = {name: fact for name, fact in facts.items() if self._said.get(name) != fact}
        self._said = facts
        return Heartbeat(self.member_id, self.epoch, **news)

    def answered(self, answer: HeartbeatAnswer, now_ms: float) -> Verdict:
        """Take the coordinator's answer. What comes after ``leave`` concerns nobody."""
        self._in_flight = False
        if self.state in SILENT or self.state is MemberState.LEAVING:
            return Verdict.GO_ON
        if answer.error:
            return self._refused(answer.error, now_ms)
        self._failures, self._not_before_ms = 0, now_ms
        self.epoch, self._interval_ms = answer.member_epoch, answer.interval_ms
        if answer.assignment is not None:
            self._target = answer.assignment
            self.counts["assignments_received"] += 1
        if self._step is None and self.state is not MemberState.ACKNOWLEDGING:
            self.state = MemberState.STABLE if self.owned == self._target else MemberState.RECONCILING
        return Verdict.GO_ON

    def _refused(self, error: int, now_ms: float) -> Verdict:
        if error in FENCED_CODES:
            self.counts["fenced"] += 1
            self.state, self._step = MemberState.FENCED, None
            return Verdict.RELEASE
        if error in LOST_COORDINATOR_CODES:
            self._unsay()
            return Verdict.FIND_COORDINATOR
        if error in BACKED_OFF_CODES:
            self.failed(now_ms)
            return Verdict.TELL
        self.state = MemberState.FATAL
        return Verdict.FAIL

    def failed(self, now_ms: float) -> None:
        """The heartbeat got no answer: the connection was lost, or it took too long."""
        self._in_flight = False
        self._not_before_ms = now_ms + self._backoff.ms(self._failures)
        self._failures += 1
        self._unsay()

    def _unsay(self) -> None:
        """Whether the last heartbeat was heard is unknown: say everything again, and soon."""
        self._said, self._sent_ms = MappingProxyType({}), -math.inf

    def reconcile(self, known: Container[UUID]) -> Step | None:
        """The next step towards the target, of those topics whose names are ``known``; None when there is none to do.

        Until ``reconciled``, or until the member is fenced or leaves, there is no other.
        """
        if self.state is not MemberState.RECONCILING or self._step is not None:
            return None
        take = frozenset(partition for partition in self._target - self.owned if partition.topic_id in known)
        step = Step(self.owned - self._target, take)
        if not step.revoke and not step.take:
            return None
        self._step = step
        self.counts["rebalances"] += 1
        return step

    def reconciled(self) -> None:
        """The step has been carried out: acknowledge it. Of no effect when the member was fenced meanwhile."""
        if self._step is None:
            return
        self.owned = (self.owned - self._step.revoke) | self._step.take
        self._step, self.state = None, MemberState.ACKNOWLEDGING

    @property
    def unresolved(self) -> frozenset[UUID]:
        """Ids of the topics of which the target has partitions that aren't owned: ask for their names if unknown."""
        return frozenset(partition.topic_id for partition in self._target - self.owned)

    def released(self) -> None:
        """What was lost has been given up: join again."""
        if self.state is MemberState.FENCED:
            self._join()

    def leave(self) -> bool:
        """Want to leave. True when a last heartbeat is due for that, now: joining may have worked unheard, too."""
        belongs = self.state not in SILENT
        self.state = MemberState.LEAVING if belongs else MemberState.UNSUBSCRIBED
        self._step, self._in_flight = None, False
        return belongs
