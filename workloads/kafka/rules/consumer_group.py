"""Member of a consumer group on the client side of KIP-848, in which the coordinator assigns the partitions.

Rules of group members (``ConsumerMembershipManager``, ``ConsumerHeartbeatRequestManager`` of Kafka 4.3):

1. The client generates its member id, which never changes. A heartbeat with epoch 0 joins the group, a heartbeat with a
   positive epoch renews the membership, and one with epoch -1 leaves the group. A static member (with a
   ``group.instance.id``) leaves with epoch -2, so that the coordinator keeps its partitions for its return.
2. The heartbeat that joins contains every field and no owned partitions. A later heartbeat contains only fields that
   changed since the previous heartbeat; after a failed heartbeat, all fields are sent again. The instance id is in
   every heartbeat. A member subscribes to topics, or to a regular expression that the coordinator evaluates.
3. The response to a heartbeat may contain a target assignment. A target assignment is reconciled in steps that revoke
   partitions, take over new partitions, and acknowledge by a heartbeat at once. Partitions of topics whose names the
   client doesn't know wait for a later step. Where the others are those that the member owns already, there is no step,
   and the member acknowledges what it owns (``AbstractMembershipManager.maybeReconcile``), also if the target changed
   and changed back. A target assignment that arrives during a step waits for the end of the step.
4. After FENCED_MEMBER_EPOCH (110) or UNKNOWN_MEMBER_ID (25) the member has lost all partitions and must not commit.
   After the release of lost partitions the member joins the group again with the same id and epoch 0, without back-off.
5. After NOT_COORDINATOR (16) or COORDINATOR_NOT_AVAILABLE (15) the client finds the coordinator and retries at once.
   After COORDINATOR_LOAD_IN_PROGRESS (14), a disconnect or a timeout the client backs off before the next heartbeat,
   except before one that joins, acknowledges or leaves (``AbstractMembershipManager.shouldHeartbeatNow``).
   After TOPIC_AUTHORIZATION_FAILED (29) the client reports the error and backs off, because the rest of the
   subscription may still work. Any other error in a heartbeat's response ends the membership, for example
   UNRELEASED_INSTANCE_ID (111, another member has the instance id) and FENCED_INSTANCE_ID (82).
6. A member whose application has not polled for ``max.poll.interval.ms`` leaves the group and has lost all partitions.
   It releases them and joins again when the application polls.

::

    UNSUBSCRIBED ─subscribe─▶ JOINING ─response─▶ STABLE ◀─────────────sent───────────────┐
         ▲                       ▲  └─response with a target─▶ RECONCILING ─step─▶ ACKNOWLEDGING
         │                    released                            ▲  └── newer target, when sent
        sent                     │                                └────────────────────┘
      LEAVING ◀─leave─ any     FENCED ◀─fenced─ any                 FATAL ◀─other errors─ any
                               STALE  ◀─no poll─ any

In KIP-848 the broker generates member ids (version 0 of the API); in Kafka 4 the client does (version 1, KIP-1082).
Kafka sends the heartbeat that leaves after ``max.poll.interval.ms`` even while another heartbeat is in flight; this
client waits for the response. While names of topics are unknown, Kafka acknowledges the same partitions after each
response; this client acknowledges them once per target assignment.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
FENCED_CODES = frozenset({25, 110})
LOST_COORDINATOR_CODES = frozenset({15, 16})
BACKED_OFF_CODES = frozenset({14, 29})


class MemberState(Enum):
    """State of a member of a consumer group; the module docstring has a diagram of the state transitions."""

    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    FENCED = "fenced"
    STALE = "stale"
    LEAVING = "leaving"
    FATAL = "fatal"


URGENT = frozenset({MemberState.JOINING, MemberState.ACKNOWLEDGING, MemberState.LEAVING})
"""States of a group member in which a heartbeat is due at once, without back-off (``shouldHeartbeatNow``)."""
LOST = frozenset({MemberState.FENCED, MemberState.STALE, MemberState.FATAL})
"""States of a group member in which the member has lost its partitions."""
SILENT = LOST | {MemberState.UNSUBSCRIBED}
"""States of a group member in which the member sends no heartbeats."""


class AssignedPartition(NamedTuple):
    """Partition assigned to a group member, identified by the id of its topic."""

    topic_id: UUID
    partition: int


Assignment = frozenset[AssignedPartition]
NOTHING: Assignment = frozenset()


class LocalAssignment(NamedTuple):
    """Assignment and its number on this client, which rises with each different target (Kafka: ``localEpoch``)."""

    number: int = UNKNOWN
    partitions: Assignment = NOTHING


class Heartbeat(NamedTuple):
    """Content of a ConsumerGroupHeartbeat request; None stands for a field unchanged since the previous heartbeat."""

    member_id: str
    member_epoch: int
    rack: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: tuple[str, ...] | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    pattern: str | None = None


class HeartbeatAnswer(NamedTuple):
    """Content of a ConsumerGroupHeartbeat response; None stands for an unchanged ``assignment``."""

    error: int = 0
    member_epoch: int = 0
    interval_ms: float = 5000
    assignment: Assignment | None = None


class Verdict(Enum):
    CONTINUE = "continue"
    RELEASE = "release the lost partitions without a commit, then join the group again"
    FIND_COORDINATOR = "find the coordinator of the group again"
    REPORT = "report the error to the application; the group member sends another heartbeat after a back-off"
    FAIL = "raise the error, because the group membership has ended"


class Step(NamedTuple):
    """Step towards the target assignment, which gives up the partitions in ``revoke``, then adds those in ``take``."""

    revoke: Assignment
    take: Assignment


class GroupMember:
    """State machine of a group member; ``rebalance_timeout_ms`` is ``max.poll.interval.ms``.

    Counters of a group member: heartbeats, assignments_received, rebalances, fenced, poll_timeouts.
    """

    def __init__(
        self,
        member_id: str,
        *,
        backoff: Backoff,
        rebalance_timeout_ms: int,
        rack: str | None,
        assignor: str | None,
        is_static: bool = False,
    ) -> None:
        self.member_id, self.epoch, self.state = member_id, JOIN_EPOCH, MemberState.UNSUBSCRIBED
        self.counts: Counter[str] = Counter()
        self._current = self._target = self._after_step = LocalAssignment()
        self._step: Step | None = None
        self._topics: tuple[str, ...] = ()
        self._pattern: str | None = None
        self._leave_epoch = STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH
        self._poll_interval_ms, self._poll_deadline_ms = rebalance_timeout_ms, math.inf
        self._constant_fields: dict[str, Any] = {
            "rack": rack,
            "rebalance_timeout_ms": rebalance_timeout_ms,
            "server_assignor": assignor,
        }
        self._sent_fields: Mapping[str, object] = {}
        self._backoff, self._failures = backoff, 0
        self._in_flight = self._is_leaving = False
        self._interval_ms = self._sent_ms = self._not_before_ms = 0.0

    @property
    def owned(self) -> Assignment:
        return self._current.partitions

    @property
    def membership_epoch(self) -> int:
        """Member epoch as a member of the group; UNKNOWN before the member has joined and after it has left."""
        return self.epoch if self.epoch > JOIN_EPOCH and self.state not in SILENT else UNKNOWN

    def subscribe(self, topics: tuple[str, ...], pattern: str | None = None) -> None:
        """Set the subscription, with which the next heartbeat joins the group or updates the subscription."""
        self._topics, self._pattern = topics, pattern
        if self.state is MemberState.UNSUBSCRIBED:
            self._join()
        self._sent_ms = -math.inf

    def _join(self) -> None:
        self.epoch, self.state = JOIN_EPOCH, MemberState.JOINING
        self._current = self._target = LocalAssignment()
        self._sent_fields = {}

    def polled(self, now_ms: float) -> None:
        """Record that the application polls, from which time ``max.poll.interval.ms`` counts."""
        self._poll_deadline_ms = now_ms + self._poll_interval_ms

    def wait_ms(self, now_ms: float) -> float:
        """Return the milliseconds until a heartbeat is due; infinite while one is in flight or without membership."""
        if self._in_flight or self.state in SILENT:
            return math.inf
        if self.state in URGENT:
            return 0.0
        due_ms = max(self._sent_ms + self._interval_ms, self._not_before_ms)
        return max(0.0, min(due_ms, self._poll_deadline_ms) - now_ms)

    def heartbeat(self, now_ms: float) -> Heartbeat:
        """Return the heartbeat to send now; the caller then calls ``on_response`` or ``on_failure``."""
        self.counts["heartbeats"] += 1
        self._sent_ms, self._in_flight = now_ms, True
        self._is_leaving = self.state is MemberState.LEAVING or now_ms >= self._poll_deadline_ms
        if self.state is MemberState.LEAVING:
            self.state = MemberState.UNSUBSCRIBED
        elif self._is_leaving:
            self.counts["poll_timeouts"] += 1
            self.state, self._step = MemberState.STALE, None
        if self._is_leaving:
            return Heartbeat(self.member_id, self._leave_epoch)
        if self.state is MemberState.ACKNOWLEDGING:
            self._end_exchange()
        fields = self._constant_fields | {"topics": self._topics, "pattern": self._pattern, "owned": self._current}
        changed = {name: value for name, value in fields.items() if self._sent_fields.get(name) != value}
        if "owned" in changed:
            changed["owned"] = self.owned
        self._sent_fields = fields
        return Heartbeat(self.member_id, self.epoch, **changed)

    def on_response(self, answer: HeartbeatAnswer, now_ms: float) -> Verdict:
        """Process the coordinator's response, which is ignored after ``leave`` and for a heartbeat that leaves."""
        self._in_flight = False
        if self._is_leaving or self.state in SILENT or self.state is MemberState.LEAVING:
            return Verdict.CONTINUE
        if answer.error in FENCED_CODES:
            self.counts["fenced"] += 1
            self.state, self._step = MemberState.FENCED, None
            return Verdict.RELEASE
        if answer.error in LOST_COORDINATOR_CODES:
            self._repeat_all_fields()
            return Verdict.FIND_COORDINATOR
        if answer.error in BACKED_OFF_CODES:
            self.on_failure(now_ms)
            return Verdict.REPORT
        if answer.error:
            self.state = MemberState.FATAL
            return Verdict.FAIL
        self._failures, self._not_before_ms = 0, now_ms
        self.epoch, self._interval_ms = answer.member_epoch, answer.interval_ms
        if answer.assignment is not None:
            number, known = self._target
            if number == UNKNOWN or answer.assignment != known:
                self._target = LocalAssignment(number + 1, answer.assignment)
            self.counts["assignments_received"] += 1
        if self._step is None and self.state is not MemberState.ACKNOWLEDGING:
            self._end_exchange()
        return Verdict.CONTINUE

    def _end_exchange(self) -> None:
        self.state = MemberState.STABLE if self._current == self._target else MemberState.RECONCILING

    def on_failure(self, now_ms: float) -> None:
        """Back off after a heartbeat without a response, unless the heartbeat was to leave."""
        self._in_flight = False
        if self._is_leaving:
            return
        self._not_before_ms = now_ms + self._backoff.ms(self._failures)
        self._failures += 1
        self._repeat_all_fields()

    def _repeat_all_fields(self) -> None:
        """Send the next heartbeat at once with all fields, because the last heartbeat may be lost."""
        self._sent_fields, self._sent_ms = {}, -math.inf

    def reconcile(self, named_topics: Container[UUID]) -> Step | None:
        """Return the next step towards the target assignment; None if nothing changes or a step is in progress.

        ``named_topics`` are ids of the topics whose names the caller knows. The caller ends a step by ``finish_step``.
        Without a step a heartbeat may be due that acknowledges the owned partitions.
        """
        if self.state is not MemberState.RECONCILING or self._step is not None:
            return None
        number, target = self._target
        named = frozenset(item for item in target if item in self.owned or item.topic_id in named_topics)
        if named == self.owned:
            if self._current.number != number:
                self._current, self.state = LocalAssignment(number, named), MemberState.ACKNOWLEDGING
            return None
        self._step, self._after_step = Step(self.owned - named, named - self.owned), LocalAssignment(number, named)
        self.counts["rebalances"] += 1
        return self._step

    def finish_step(self) -> None:
        """Acknowledge the completed reconciliation step, unless the member was fenced meanwhile."""
        if self._step is None:
            return
        self._current, self._step, self.state = self._after_step, None, MemberState.ACKNOWLEDGING

    @property
    def unresolved(self) -> frozenset[UUID]:
        """Topic ids of the assigned partitions that the member doesn't own yet."""
        return frozenset(item.topic_id for item in self._target.partitions - self.owned)

    @property
    def target_topics(self) -> frozenset[UUID]:
        """Topic ids of the target assignment."""
        return frozenset(item.topic_id for item in self._target.partitions)

    def rejoin(self) -> None:
        if self.state in {MemberState.FENCED, MemberState.STALE}:
            self._join()

    def leave(self) -> bool:
        """Leave the group; return True if the client must send a last heartbeat."""
        is_member = self.state not in SILENT
        self.state = MemberState.LEAVING if is_member else MemberState.UNSUBSCRIBED
        self._step, self._in_flight = None, False
        return is_member
