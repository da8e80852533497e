"""Member of a group of the classic protocol, in which one member, the leader, assigns the partitions.

Rules of group members (``AbstractCoordinator``, ``ConsumerCoordinator``, ``Heartbeat`` of Kafka 4.3):

1. A rebalance is a JoinGroup request, whose response has the next generation, and a SyncGroup request, whose response
   has the member's assignment. The leader's SyncGroup request contains the assignments of all members.
2. The coordinator chooses the member id. It answers the first JoinGroup of a dynamic member with MEMBER_ID_REQUIRED
   (79) and the id, with which the member joins at once. A static member (with a ``group.instance.id``, KIP-345) joins
   without that round trip, and doesn't leave the group by itself.
3. Before the member joins, its application prepares (``prepared``): it commits and revokes partitions. After SyncGroup
   the application takes over the assignment (``applied``). Both happen only while the application polls. JoinGroup
   waits at the coordinator until all members have joined, at most for ``max.poll.interval.ms``.
4. A member with a generation sends a heartbeat every ``heartbeat.interval.ms``, also while its application prepares.
   REBALANCE_IN_PROGRESS (27) requests that the member joins again; it stays a member of its generation until then.
5. UNKNOWN_MEMBER_ID (25) resets generation and member id, ILLEGAL_GENERATION (22) only the generation. The member has
   then lost its partitions and must not commit; it joins again after their release. An error in the response to a
   request of an older generation is ignored.
6. FENCED_INSTANCE_ID (82), and errors of JoinGroup and SyncGroup that are neither retriable nor among the above, end
   the membership. An unexpected error of Heartbeat is retried.
7. After NOT_COORDINATOR (16) or COORDINATOR_NOT_AVAILABLE (15) the client finds the coordinator again. After a
   retriable error or without a response, JoinGroup follows after ``retry.backoff.ms``, also if SyncGroup failed. A
   failed heartbeat is repeated after a back-off that doubles.
   Without a successful heartbeat for ``session.timeout.ms``, counted from the JoinGroup response or from the discovery
   of the coordinator if these are later, the client gives up a pending Heartbeat or SyncGroup and finds the coordinator
   again (``Heartbeat.sessionTimeoutExpired``; ``session_left_ms``).
8. Offsets are committed only in the state STABLE, with the member's generation (``commit_refusal``).
9. A member whose application has not polled for ``max.poll.interval.ms`` leaves the group (a static member only forgets
   its generation), has lost its partitions, and joins again when the application polls. The time of a pending
   JoinGroup doesn't count.

::

    UNSUBSCRIBED ─subscribe─▶ UNJOINED ─prepared─▶ PREPARING_REBALANCE ─join─▶ COMPLETING_REBALANCE ─sync─▶ STABLE
                                 ▲                       ▲                             │                     │
                                 │                       └──────rejoin, if prepared────┴─────────────────────┘
                                 └──generation reset─ any                       FATAL ◀─final errors─ any

A member sends one of these requests at a time. Kafka sends heartbeats beside a pending SyncGroup, but on the same
connection, whose requests a broker answers in order. Without a pending request Kafka finds the coordinator again as
soon as the session has ended, this client with its next heartbeat.
"""

import math
from collections import Counter
from enum import Enum
from typing import NamedTuple

from aftershock.workloads.kafka.rules.consumer_group import LOST_COORDINATOR_CODES, Verdict
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codes import name as error_name

COORDINATOR_LOAD_IN_PROGRESS = 14
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
FENCED_INSTANCE_ID = 82
RESET_CODES = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID})
REASON_LENGTH_MAX = 255
"""Longest reason in JoinGroup and LeaveGroup (KIP-800, ``JoinGroupRequest.maybeTruncateReason``)."""


class MemberState(Enum):
    """State of a member of a classic group; the module docstring has a diagram of the state transitions."""

    UNSUBSCRIBED = "unsubscribed"
    UNJOINED = "unjoined"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"
    FATAL = "fatal"


REBALANCING = frozenset({MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE})


class Generation(NamedTuple):
    """Generation of a group, with the member's id and the name of the assignor that the coordinator chose."""

    number: int = UNKNOWN
    member_id: str = ""
    assignor: str | None = None


class Request(Enum):
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"


class PendingRequest(NamedTuple):
    """Request to send, with the generation at that time; ``reason`` is for JoinGroup and LeaveGroup (KIP-800)."""

    kind: Request
    generation: Generation
    reason: str = ""


class Duty(Enum):
    """What the application has to do before the member can go on (rule 3)."""

    NONE = "nothing"
    PREPARE = "commit and revoke partitions, then call prepared()"
    APPLY = "take over the assignment, then call applied()"


class ClassicMember:
    """State machine of a classic group member; ``poll_interval_ms`` is ``max.poll.interval.ms``.

    ``session_timeout_ms`` limits requests only: the coordinator decides when the member's session has ended.

    Counters of a classic member: heartbeats, joins (JoinGroup requests), assignments_received, rebalances, fenced,
    poll_timeouts.
    """

    def __init__(
        self,
        *,
        backoff: Backoff,
        poll_interval_ms: float,
        heartbeat_interval_ms: float,
        session_timeout_ms: float,
        is_static: bool = False,
    ) -> None:
        self.generation, self.state = Generation(), MemberState.UNSUBSCRIBED
        self.is_leader = False
        self.rejoin_needed = False
        self.rejoin_reason = ""
        self.assignment: bytes | None = None
        """Assignment that the application has not taken over yet."""
        self.counts: Counter[str] = Counter()
        self._backoff, self._is_static = backoff, is_static
        self._poll_interval_ms, self._heartbeat_interval_ms = poll_interval_ms, heartbeat_interval_ms
        self._poll_deadline_ms = self._session_deadline_ms = math.inf
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_ms = self._join_not_before_ms = 0.0
        self._heartbeat_failures = 0
        self._is_prepared = False
        self._leave: PendingRequest | None = None
        self._in_flight: PendingRequest | None = None

    # ---- what the application does

    def subscribe(self) -> None:
        self.state = MemberState.UNJOINED
        self.request_rejoin("")

    def polled(self, now_ms: float) -> None:
        """Record that the application polls, from which time ``max.poll.interval.ms`` counts."""
        self._poll_deadline_ms = now_ms + self._poll_interval_ms

    @property
    def duty(self) -> Duty:
        if self.state in {MemberState.UNSUBSCRIBED, MemberState.FATAL}:
            return Duty.NONE
        if self.assignment is not None:
            return Duty.APPLY
        return Duty.PREPARE if self.rejoin_needed and not self._is_prepared else Duty.NONE

    @property
    def has_lost_partitions(self) -> bool:
        """True if the generation was reset, so that the partitions may already belong to another member (rule 5)."""
        return self.state is not MemberState.UNSUBSCRIBED and self.generation.number == UNKNOWN

    @property
    def commit_refusal(self) -> int:
        """Error code of a commit that must not be sent now; 0 if the commit may be sent (rule 8)."""
        if self.state in {MemberState.STABLE, MemberState.UNSUBSCRIBED}:
            return 0
        return REBALANCE_IN_PROGRESS if self.state in REBALANCING else UNKNOWN_MEMBER_ID

    def prepared(self) -> None:
        self._is_prepared = True

    def applied(self) -> None:
        self.assignment, self._is_prepared = None, False

    def request_rejoin(self, reason: str) -> None:
        """Let the member join again; ``reason`` is told to the coordinator."""
        self.rejoin_needed, self.rejoin_reason = True, reason[:REASON_LENGTH_MAX]

    def leave(self, reason: str) -> PendingRequest | None:
        """End the membership; return the LeaveGroup request to send, None if there is none."""
        request = self._leave or self._leave_request(reason)
        self.state, self.generation, self.rejoin_needed = MemberState.UNSUBSCRIBED, Generation(), False
        self._in_flight = self._leave = None
        return request

    def _leave_request(self, reason: str) -> PendingRequest | None:
        is_member = self.state is MemberState.STABLE or self.state in REBALANCING
        if self._is_static or not is_member or not self.generation.member_id:
            return None
        return PendingRequest(Request.LEAVE, self.generation, reason[:REASON_LENGTH_MAX])

    # ---- requests

    def wait_ms(self, now_ms: float) -> float:
        """Return the milliseconds until a request is due; infinite while one is in flight or none is to be sent."""
        if self._in_flight is not None or self.state in {MemberState.UNSUBSCRIBED, MemberState.FATAL}:
            return math.inf
        kind, due_ms = self._next()
        if kind is not Request.JOIN and self._has_generation:
            due_ms = min(due_ms, self._poll_deadline_ms)
        return max(0.0, due_ms - now_ms)

    @property
    def _has_generation(self) -> bool:
        return self.state in {MemberState.STABLE, MemberState.COMPLETING_REBALANCE}

    def _next(self) -> tuple[Request | None, float]:
        """Return the kind of the next request, and when it is due."""
        if self._leave is not None:
            return Request.LEAVE, -math.inf
        if self.state is MemberState.COMPLETING_REBALANCE:
            return Request.SYNC, -math.inf
        if self.rejoin_needed and self._is_prepared and self.assignment is None:
            return Request.JOIN, self._join_not_before_ms
        return (Request.HEARTBEAT, self._heartbeat_ms) if self.state is MemberState.STABLE else (None, math.inf)

    def request(self, now_ms: float) -> PendingRequest | None:
        """Return the request to send now; None if only ``max.poll.interval.ms`` has passed.

        The caller then calls the ``on_`` method of the request, or ``on_failure``.
        """
        kind, due_ms = self._next()
        if kind is not Request.JOIN and self._has_generation and now_ms >= self._poll_deadline_ms:
            self.counts["poll_timeouts"] += 1
            self._leave = self._leave_request("consumer poll timeout has expired.")
            self._reset("consumer pro-actively leaving the group", keep_member_id=False)
            return None
        if kind is None or due_ms > now_ms:
            return None
        self._in_flight = PendingRequest(kind, self.generation, self.rejoin_reason)
        if self._leave is not None:
            self._in_flight, self._leave = self._leave, None
        elif kind is Request.JOIN:
            self.state = MemberState.PREPARING_REBALANCE
            self.counts["joins"] += 1
        elif kind is Request.HEARTBEAT:
            self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
            self._session_deadline_ms = min(self._session_deadline_ms, now_ms + self._session_timeout_ms)
            self.counts["heartbeats"] += 1
        return self._in_flight

    def session_left_ms(self, now_ms: float) -> float:
        """Return the longest time to wait for a response to Heartbeat or SyncGroup (rule 7)."""
        return max(0.0, min(self._session_deadline_ms - now_ms, self._session_timeout_ms))

    def on_join(self, error: int, generation: Generation, now_ms: float, *, leader: str = "") -> Verdict:
        """Process a response to JoinGroup; ``generation`` contains a new member id even with MEMBER_ID_REQUIRED."""
        self._in_flight = None
        if self.state is not MemberState.PREPARING_REBALANCE:  # a commit has reset the generation
            return Verdict.CONTINUE
        if not error:
            self.generation, self.state = generation, MemberState.COMPLETING_REBALANCE
            self.is_leader = leader == generation.member_id
            self._heartbeat_ms, self._heartbeat_failures = now_ms + self._heartbeat_interval_ms, 0
            self._session_deadline_ms = now_ms + self._session_timeout_ms
            self.polled(now_ms)
            return Verdict.CONTINUE
        if error == MEMBER_ID_REQUIRED:
            self.generation = Generation(member_id=generation.member_id)
            self.request_rejoin(f"need to re-join with the given member-id: {generation.member_id}")
            return Verdict.CONTINUE
        return self._on_rebalance_error(error, now_ms)

    def on_sync(self, error: int, assignment: bytes, now_ms: float) -> Verdict:
        self._in_flight = None
        if self.state is not MemberState.COMPLETING_REBALANCE:
            return Verdict.CONTINUE
        if error:
            return self._on_rebalance_error(error, now_ms)
        self.state, self.assignment = MemberState.STABLE, assignment
        self.rejoin_needed, self.rejoin_reason = False, ""
        self.counts["assignments_received"] += 1
        self.counts["rebalances"] += 1
        return Verdict.CONTINUE

    def _on_rebalance_error(self, error: int, now_ms: float) -> Verdict:
        self.state = MemberState.PREPARING_REBALANCE
        self.request_rejoin(f"rebalance failed due to {error_name(error)}")
        if error in RESET_CODES:
            self.counts["fenced"] += 1
            self._reset(self.rejoin_reason, keep_member_id=error == ILLEGAL_GENERATION)
            return Verdict.RELEASE
        if error == REBALANCE_IN_PROGRESS:
            return Verdict.CONTINUE
        if error in LOST_COORDINATOR_CODES or error == COORDINATOR_LOAD_IN_PROGRESS:
            self._join_not_before_ms = now_ms + self._backoff.ms(0)
            return Verdict.FIND_COORDINATOR if error in LOST_COORDINATOR_CODES else Verdict.REPORT
        self.state = MemberState.FATAL
        return Verdict.FAIL

    def on_heartbeat(self, error: int, now_ms: float) -> Verdict:
        sent, self._in_flight = self._in_flight, None
        if sent is None or sent.generation != self.generation:
            return Verdict.CONTINUE
        if error in {0, REBALANCE_IN_PROGRESS}:
            self._heartbeat_failures = 0
            self._session_deadline_ms = now_ms + self._session_timeout_ms
            if error and self.state is MemberState.STABLE:
                self.request_rejoin("group is already rebalancing")
            return Verdict.CONTINUE
        if error in RESET_CODES:
            self.counts["fenced"] += 1
            reason = f"encountered {error_name(error)} from HEARTBEAT response"
            self._reset(reason, keep_member_id=error == ILLEGAL_GENERATION)
            return Verdict.RELEASE
        if error == FENCED_INSTANCE_ID:
            self.state = MemberState.FATAL
            return Verdict.FAIL
        self._repeat_heartbeat(now_ms)
        if error not in LOST_COORDINATOR_CODES:
            return Verdict.REPORT
        self._session_deadline_ms = math.inf
        return Verdict.FIND_COORDINATOR

    def on_leave(self) -> None:
        """Process a response to LeaveGroup, whatever it is: the request is never repeated."""
        self._in_flight = None

    def on_failure(self, reason: str, now_ms: float) -> None:
        """Process a request without a response, after which the client finds the coordinator again."""
        sent, self._in_flight = self._in_flight, None
        self._session_deadline_ms = math.inf
        if sent is None or sent.kind is Request.LEAVE:
            return
        if sent.kind is Request.HEARTBEAT:
            self._repeat_heartbeat(now_ms)
        elif self.state in REBALANCING:
            self.state = MemberState.PREPARING_REBALANCE
            self.request_rejoin(f"rebalance failed due to {reason}")
            self._join_not_before_ms = now_ms + self._backoff.ms(0)

    def on_commit_error(self, error: int, generation: int) -> None:
        """Process the error of a commit that was sent with ``generation`` (rules 4 and 5)."""
        if error == REBALANCE_IN_PROGRESS:
            self.request_rejoin("offset commit failed since group is already rebalancing")
        elif error in RESET_CODES and self.state not in {MemberState.UNSUBSCRIBED, MemberState.FATAL}:
            is_outdated = generation != self.generation.number
            if not (is_outdated and self.state is MemberState.PREPARING_REBALANCE):
                self.counts["fenced"] += 1
                reason = f"encountered {error_name(error)} from OFFSET_COMMIT response"
                self._reset(reason, keep_member_id=error == ILLEGAL_GENERATION)

    def _repeat_heartbeat(self, now_ms: float) -> None:
        self._heartbeat_ms = now_ms + self._backoff.ms(self._heartbeat_failures)
        self._heartbeat_failures += 1

    def _reset(self, reason: str, *, keep_member_id: bool) -> None:
        """Reset the generation, so that the application releases its lost partitions before the member joins again."""
        self.state, self.assignment, self._is_prepared = MemberState.UNJOINED, None, False
        self.generation = Generation(member_id=self.generation.member_id if keep_member_id else "")
        self.request_rejoin(reason)
