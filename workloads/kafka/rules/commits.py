"""What an answer to OffsetCommit calls for, and which answers prove that nothing was written.

Kafka: ``CommitRequestManager.OffsetCommitRequestState.onResponse``; ``ConsumerCoordinator.OffsetCommitResponseHandler``
says the same.

=============================  =======================================================================
COORDINATOR_LOAD_IN_PROGRESS,  asked again: the coordinator, or its metadata, isn't there yet
UNKNOWN_TOPIC_OR_PARTITION
NOT_COORDINATOR,               asked again, of a coordinator that is looked for first
COORDINATOR_NOT_AVAILABLE,
REQUEST_TIMED_OUT
all else                       final: what the group, the topic or the request is won't change by asking
=============================  =======================================================================

A coordinator appends and waits for its replicas. A write that is under way when it loses its partition ends as
NOT_COORDINATOR, and one that is too slow as COORDINATOR_NOT_AVAILABLE (``CoordinatorOperationExceptionHelper``), yet it
may be kept: these two prove nothing. Nor does REQUEST_TIMED_OUT, or a code that is listed nowhere here.

Offset commits under open-loop load: many groups without members, each commit with an outcome of its own.

This is the load that KIP-1224 is about. The KIP concerns the coordinator alone, so there is nothing to switch here: a
client of it is one that sends each commit as soon as it may. Kafka: ``CommitRequestManager``, ``ConsumerCoordinator``.

A *target* is one partition of one group.

1. **In order.** A target has one request in flight. Commits that are offered meanwhile queue behind it and go out one
   by one, in the order in which they were offered. So no coordinator can put an older position in a newer one's place.
2. **Again.** What the errors call for is in ``commit_errors.py``; no answer is treated like NOT_COORDINATOR. Retries of
   a target back off, doubling from ``retry.backoff.ms``, until one attempt succeeds.
3. **Superseded.** A commit whose attempt failed is not sent again when newer ones of its target wait. The newest of
   them is sent in the place of all, and they end as it ends. That is Kafka's auto-commit, which after a retriable error
   commits the positions of that moment; a commit promises that the group goes on from there *or later*, so all are
   acknowledged with it.
4. **Deadline.** A commit that has not ended ``delivery.timeout.ms`` after it was offered ends then, whatever is under
   way. A request in flight keeps the turn of its target until it is answered or its connection is gone (rule 1).
5. **Doubt.** A commit has *failed* if every attempt for it that was sent was answered, and surely not written
   (``NOT_WRITTEN``); else it is in doubt.

Not excluded, in Kafka as little as here: a request that a lost connection still holds (its broker was frozen) may be
written after a later commit. Only a member's epoch or a transaction could fence it, and these groups have neither.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codes import COORDINATOR_MOVED

MOVED: frozenset[int] = COORDINATOR_MOVED | {ErrorCode.request_timed_out}
"""The coordinator has to be looked for."""

ASKED_AGAIN: frozenset[int] = MOVED | {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.unknown_topic_or_partition,
}
"""The same commit may succeed later."""

NOT_WRITTEN: frozenset[int] = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
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
"""What ``KafkaApis`` and the coordinator find before they write."""


class Target(NamedTuple):
    """One partition of one group: what commits are in order of."""

    group: str
    topic: str
    partition: int


class Outcome(NamedTuple):
    """What became of one commit: Kafka's code (0: acknowledged), and whether it may have been written all the same.

    ``broker_id`` is the last coordinator that it was sent to, -1 if it never was; ``attempts`` counts the requests that
    were sent for it, those that superseded it included.
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
    unproven: int = 0  # attempts that were sent and are not known to have written nothing
    broker_id: int = UNKNOWN
    ended: bool = False

    def end(self, error: int) -> Outcome:
        self.ended = True
        return Outcome(self.token, error, bool(error and self.unproven), self.broker_id, self.attempts)


@dataclass(slots=True)
class _Turns:
    """A target's commits. ``carried`` are those that the request under way (or due again) is for, the newest last."""

    waiting: deque[_Commit] = field(default_factory=deque)
    carried: list[_Commit] = field(default_factory=list)
    in_flight: bool = False
    is_sent: bool = False
    failures: int = 0
    retry_at_ms: float = 0.0

    def clean(self) -> None:
        """Forget those that have ended; what is in flight stays, for its answer is still to come."""
        while self.waiting and self.waiting[0].ended:
            self.waiting.popleft()
        if not self.in_flight:
            self.carried = [commit for commit in self.carried if not commit.ended]


class Commits:
    """All commits of one committer.

    ``counts``: ``commits_sent`` requests, ``commits_retried`` of them after an attempt for the same commits;
    ``commits_queued_behind`` others when they were offered, ``commits_superseded`` by newer ones.
    """

    def __init__(self, *, delivery_timeout_ms: float, backoff: Backoff) -> None:
        self.counts: Counter[str] = Counter()
        self._timeout_ms, self._backoff = delivery_timeout_ms, backoff
        self._targets: dict[Target, _Turns] = {}
        self._by_deadline: deque[_Commit] = deque()

    def offer(self, target: Target, offset: int, token: int, now_ms: float) -> None:
        """Take a commit; its outcome comes from ``answered``, ``expire`` or ``abandon``, exactly once."""
        turns = self._targets.setdefault(target, _Turns())
        commit = _Commit(token, offset, now_ms + self._timeout_ms)
        turns.clean()
        self.counts["commits_queued_behind"] += bool(turns.waiting or turns.carried)
        turns.waiting.append(commit)
        self._by_deadline.append(commit)

    # ---- one attempt: begin, sent, and then answered or unanswered

    def wait_ms(self, target: Target, now_ms: float) -> float:
        """How long until ``begin`` has something to send: 0 now; infinite while one is in flight, or none waits."""
        turns = self._targets[target]
        turns.clean()
        if turns.in_flight or not (turns.carried or turns.waiting):
            return inf
        return max(0.0, turns.retry_at_ms - now_ms)

    def begin(self, target: Target) -> int:
        """The offset to send, now that ``wait_ms`` is 0. The target's turn is taken until an answer, or its absence."""
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
        """The attempt goes to the wire now; without this call it can't have been written."""
        turns = self._targets[target]
        turns.is_sent = True
        self.counts["commits_sent"] += 1
        self.counts["commits_retried"] += any(commit.attempts for commit in turns.carried)
        for commit in turns.carried:
            commit.attempts += 1
            commit.unproven += 1
            commit.broker_id = broker_id

    def answered(self, target: Target, error: int, now_ms: float) -> list[Outcome]:
        """Kafka's code for the attempt, and what ends with it."""
        turns = self._targets[target]
        if turns.is_sent and error in NOT_WRITTEN:
            for commit in turns.carried:
                commit.unproven -= 1
        if error in ASKED_AGAIN:
            self.unanswered(target, now_ms)
            return []
        ended = [commit.end(error) for commit in turns.carried if not commit.ended]
        turns.carried, turns.in_flight, turns.failures, turns.retry_at_ms = [], False, 0, 0.0
        return ended

    def unanswered(self, target: Target, now_ms: float) -> None:
        """The attempt came to nothing: no coordinator, no connection, no answer. It is due again after a back-off."""
        turns = self._targets[target]
        turns.in_flight = False
        turns.retry_at_ms = now_ms + self._backoff.ms(turns.failures)
        turns.failures += 1

    # ---- the ends that no answer brings

    def wanted(self, target: Target) -> bool:
        """Whether somebody still waits for the attempt that is under way."""
        return any(not commit.ended for commit in self._targets[target].carried)

    def expire(self, now_ms: float) -> list[Outcome]:
        """End the commits whose time is up."""
        ended = []
        while self._by_deadline and (self._by_deadline[0].ended or self._by_deadline[0].deadline_ms <= now_ms):
            commit = self._by_deadline.popleft()
            if not commit.ended:
                ended.append(commit.end(ErrorCode.request_timed_out))
        return ended

    @property
    def next_deadline_ms(self) -> float:
        """When ``expire`` may have something to end; infinite when nothing waits."""
        return self._by_deadline[0].deadline_ms if self._by_deadline else inf

    def abandon(self) -> list[Outcome]:
        """End everything: nothing is sent any more."""
        return self.expire(inf)
