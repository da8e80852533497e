"""Offset commits under open-loop load, from many groups without members, with a separate outcome for each commit.

Offset commits are the load for trials of KIP-1224, which changes only the coordinator. Modelled on Kafka's
``CommitRequestManager`` and ``ConsumerCoordinator``.

1. **In order.** Each partition of a group has at most one commit request in flight. Later commits of the partition are
   queued and sent one by one, so no coordinator can replace a newer position with an older position.
2. **Retries.** Commits with errors in ``COMMIT_RETRIABLE`` are retried, with errors in ``COMMIT_MOVED`` after the
   coordinator is found again; a missing response is treated like NOT_COORDINATOR. Other errors of a commit are final.
   Retries of commits back off, doubling from ``retry.backoff.ms`` until an attempt for the partition succeeds.
3. **Superseded.** A commit whose attempt failed is not sent again if newer commits of its partition wait. The newest
   commit is sent instead, and its outcome counts for the older commits, because a commit means that the group continues
   from the committed offset *or later*. Kafka's auto-commit also commits the current positions after a retriable error.
4. **Deadline.** A commit ends ``delivery.timeout.ms`` after it was queued, even if its request is in flight. A commit
   request in flight blocks later commits of the partition until a response arrives or the connection is closed.
5. **Doubt.** A commit has *failed* if every attempt that was sent for the commit was surely not written
   (``NOT_WRITTEN``); otherwise the commit is in doubt.

A coordinator appends a commit to its log and waits for the replicas. NOT_COORDINATOR (the coordinator has lost its
partition while it waited) and COORDINATOR_NOT_AVAILABLE (the write was too slow) therefore don't prove that a commit
was not written (``CoordinatorOperationExceptionHelper``).

A commit on a lost connection, for example to a frozen broker, may be written after a later commit, as in Kafka. Only a
member epoch or a transaction could fence such a late commit; groups without members have neither.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codes import COORDINATOR_MOVED

COMMIT_MOVED: frozenset[int] = COORDINATOR_MOVED | {ErrorCode.request_timed_out}
"""Errors of a commit after which the client must find the coordinator again."""

COMMIT_RETRIABLE: frozenset[int] = COMMIT_MOVED | {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
}
"""Errors of a commit after which the client sends the same commit again."""

NOT_WRITTEN: frozenset[int] = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.invalid_group_id,
        ErrorCode.unknown_member_id,
        ErrorCode.rebalance_in_progress,
        ErrorCode.invalid_commit_offset_size,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.invalid_request,
        ErrorCode.group_id_not_found,
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_topic_id,
        ErrorCode.stale_member_epoch,
    }
)
"""Errors of a commit that ``KafkaApis`` and the coordinator detect before they write the commit."""


class Target(NamedTuple):
    """Partition for which a group commits offsets."""

    group: str
    topic: str
    partition: int


class Outcome(NamedTuple):
    """Outcome of one commit; ``error`` is Kafka's error code, 0 for success; ``in_doubt`` means possibly written.

    ``broker_id`` is the coordinator of the commit's last attempt, -1 without attempts. ``attempts`` is the number of
    requests sent for the commit, including requests that committed a newer offset in its place.
    """

    token: int
    error: int
    in_doubt: bool
    broker_id: int
    attempts: int


@dataclass(slots=True, eq=False)
class _Commit:
    token: int
    offset: int
    deadline_ms: float
    attempts: int = 0
    unproven: int = 0  # attempts that were sent and may have been written
    broker_id: int = UNKNOWN
    ended: bool = False

    def end(self, error: int) -> Outcome:
        self.ended = True
        return Outcome(self.token, error, bool(error and self.unproven), self.broker_id, self.attempts)


@dataclass(slots=True)
class _Turns:
    """Pending commits of a partition of a group; ``carried`` are the commits that the latest request covers."""

    waiting: deque[_Commit] = field(default_factory=deque)
    carried: list[_Commit] = field(default_factory=list)
    in_flight: bool = False
    is_sent: bool = False
    failures: int = 0
    retry_at_ms: float = 0.0

    def clean(self) -> None:
        """Remove commits that have ended, except commits of the request in flight."""
        while self.waiting and self.waiting[0].ended:
            self.waiting.popleft()
        if not self.in_flight:
            self.carried = [commit for commit in self.carried if not commit.ended]


class Commits:
    """Pending offset commits of one client.

    Counters of offset commits: ``commits_sent`` (requests), ``commits_retried`` (requests that send a commit again),
    ``commits_queued_behind`` (commits queued behind pending commits of the partition), ``commits_superseded``.
    """

    def __init__(self, *, delivery_timeout_ms: float, backoff: Backoff) -> None:
        self.counts: Counter[str] = Counter()
        self._timeout_ms, self._backoff = delivery_timeout_ms, backoff
        self._targets: dict[Target, _Turns] = {}
        self._by_deadline: deque[_Commit] = deque()

    def offer(self, target: Target, offset: int, token: int, now_ms: float) -> None:
        """Queue an offset commit, whose outcome ``on_response``, ``expire`` or ``abandon`` returns exactly once."""
        turns = self._targets.setdefault(target, _Turns())
        commit = _Commit(token, offset, now_ms + self._timeout_ms)
        turns.clean()
        self.counts["commits_queued_behind"] += bool(turns.waiting or turns.carried)
        turns.waiting.append(commit)
        self._by_deadline.append(commit)

    def wait_ms(self, target: Target, now_ms: float) -> float:
        """Return the milliseconds until the next commit, infinite while a request is in flight or without commits."""
        turns = self._targets[target]
        turns.clean()
        if turns.in_flight or not (turns.carried or turns.waiting):
            return inf
        return max(0.0, turns.retry_at_ms - now_ms)

    def begin(self, target: Target) -> int:
        """Return the offset to commit now; the caller then calls ``on_response`` or ``on_no_response``."""
        turns = self._targets[target]
        turns.clean()
        turns.in_flight, turns.is_sent = True, False
        if turns.carried:
            self.counts["commits_superseded"] += len(turns.waiting)
            turns.carried += turns.waiting
            turns.waiting.clear()
        else:
            turns.carried = [turns.waiting.popleft()]
        return turns.carried[-1].offset

    def sent(self, target: Target, broker_id: int) -> None:
        """Record that the commit request for a partition is sent to a broker."""
        turns = self._targets[target]
        turns.is_sent = True
        self.counts["commits_sent"] += 1
        self.counts["commits_retried"] += any(commit.attempts for commit in turns.carried)
        for commit in turns.carried:
            commit.attempts += 1
            commit.unproven += 1
            commit.broker_id = broker_id

    def on_response(self, target: Target, error: int, now_ms: float) -> list[Outcome]:
        """Process the error code of a commit response; return the outcomes of the commits that have ended."""
        turns = self._targets[target]
        if turns.is_sent and error in NOT_WRITTEN:
            for commit in turns.carried:
                commit.unproven -= 1
        if error in COMMIT_RETRIABLE:
            self.on_no_response(target, now_ms)
            return []
        ended = [commit.end(error) for commit in turns.carried if not commit.ended]
        turns.carried, turns.in_flight, turns.failures, turns.retry_at_ms = [], False, 0, 0.0
        return ended

    def on_no_response(self, target: Target, now_ms: float) -> None:
        """Schedule another attempt for a commit without a coordinator, a connection or a response."""
        turns = self._targets[target]
        turns.in_flight = False
        turns.retry_at_ms = now_ms + self._backoff.ms(turns.failures)
        turns.failures += 1

    def wanted(self, target: Target) -> bool:
        return any(not commit.ended for commit in self._targets[target].carried)

    def expire(self, now_ms: float) -> list[Outcome]:
        """End the commits whose deadline has passed, and return their outcomes."""
        ended = []
        while self._by_deadline and (self._by_deadline[0].ended or self._by_deadline[0].deadline_ms <= now_ms):
            commit = self._by_deadline.popleft()
            if not commit.ended:
                ended.append(commit.end(ErrorCode.request_timed_out))
        return ended

    @property
    def next_deadline_ms(self) -> float:
        """Earliest deadline of all pending commits; infinite without commits."""
        return self._by_deadline[0].deadline_ms if self._by_deadline else inf

    def abandon(self) -> list[Outcome]:
        return self.expire(inf)
