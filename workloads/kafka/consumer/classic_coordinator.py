"""Consumer coordinator of the classic group protocol, with JoinGroup, SyncGroup, heartbeats and LeaveGroup.

Modelled on Kafka's ``AbstractCoordinator`` and ``ConsumerCoordinator``; the state machine of a group member is in
``rules/classic_group.py``, and the assignors are in ``rules/assignors.py``. Beyond the rules there:

1. With an eager assignor the member commits and revokes all partitions before it joins again. With cooperative
   assignors only (KIP-429) it commits, keeps its partitions, and revokes those that the new assignment lacks, without
   another commit as in Kafka; then it joins again, so that their new owners get them.
2. The leader assigns again when the number of partitions of a topic in the group changes. A member with a pattern
   matches it against the names of all topics, whenever it has new metadata, and joins again when the matching topics
   change.
"""

from collections import Counter
from contextlib import suppress
from re import Pattern

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.coordinator import Coordinator
from aftershock.workloads.kafka.client.tasks import Wake, retry_until_answered
from aftershock.workloads.kafka.consumer.assigned_partitions import AssignedPartitions, RebalanceListener
from aftershock.workloads.kafka.consumer.commit_request_manager import CommittedOffsets, Membership
from aftershock.workloads.kafka.consumer.consumer_protocol import (
    GroupRequests,
    JoinAnswer,
    PreviousAssignment,
    decode_assignment,
)
from aftershock.workloads.kafka.consumer.shared import ConsumerContext, Topics
from aftershock.workloads.kafka.rules.assignors import (
    ASSIGNORS,
    GroupAssignment,
    PartitionCounts,
    RebalanceProtocol,
    Subscription,
    rebalance_protocol,
)
from aftershock.workloads.kafka.rules.classic_group import (
    REBALANCING,
    ClassicMember,
    Duty,
    MemberState,
    PendingRequest,
    Request,
)
from aftershock.workloads.kafka.rules.consumer_group import Verdict
from aftershock.workloads.kafka.rules.values import UNKNOWN
from aftershock.workloads.kafka.wire import codes


class ClassicCoordinator:
    """Group membership of a consumer under the classic protocol."""

    def __init__(self, group_id: str, shared: ConsumerContext) -> None:
        settings = shared.settings
        self._group_id, self._shared = group_id, shared
        self._coordinator = Coordinator(group_id, shared.brokers, shared.backoff)
        self._instance_id = settings.group_instance_id
        self._member = ClassicMember(
            backoff=shared.backoff,
            poll_interval_ms=settings.max_poll_interval_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            session_timeout_ms=settings.session_timeout_ms,
            is_static=self._instance_id is not None,
        )
        self.store = CommittedOffsets(
            group_id,
            self._coordinator,
            shared.backoff,
            settings.default_api_timeout_ms,
            self.membership,
            on_rejected=self._on_commit_rejected,
            is_classic=True,
        )
        self._partitions = AssignedPartitions(shared, self.store)
        self._requests = GroupRequests(group_id, settings, self._coordinator)
        self._wake = Wake()  # the member has something to send
        self._is_eager = rebalance_protocol(settings.partition_assignment_strategy) is RebalanceProtocol.EAGER
        self._pattern: Pattern[str] | None = None
        self._topics: frozenset[str] = frozenset()
        self._joined_topics: frozenset[str] | None = None
        self._metadata_version = UNKNOWN
        self._awaited_version: int | None = None
        self._is_preparing = False
        self._previous = PreviousAssignment()
        self._assignments: GroupAssignment = {}
        self._group_topics: frozenset[str] = frozenset()
        self._assigned_counts: PartitionCounts | None = None  # as of the assignment, if the member is the leader

    @property
    def counts(self) -> Counter[str]:
        return self._member.counts

    @property
    def member_id(self) -> str:
        return self._member.generation.member_id

    @property
    def member_epoch(self) -> int:
        return self._member.generation.number

    def membership(self) -> Membership:
        """Return the member's generation for a commit; raise BrokerError while the member must not commit."""
        refusal = self._member.commit_refusal
        if refusal:
            advice = "poll until the rebalance is over" if self._member.state in REBALANCING else "poll to join again"
            raise BrokerError(
                f"the consumer is no stable member of the group {self._group_id}, so its commit was not sent: "
                f"{codes.name(refusal)}; {advice}",
                refusal,
            )
        if self._member.state is MemberState.UNSUBSCRIBED:
            return Membership()
        return Membership(self.member_id, self.member_epoch, self._instance_id)

    def _on_commit_rejected(self, error: int, generation: int) -> None:
        before = self._member.generation
        self._member.on_commit_error(error, generation)
        if self._member.generation != before:
            name = codes.name(error)
            self._shared.on_event("member_fenced", error=name, member_id=before.member_id, epoch=before.number)
        self._wake()
        self._shared.on_change()

    def join(self, topics: Topics, listener: RebalanceListener) -> None:
        self._partitions.listener = listener
        if isinstance(topics, Pattern):
            self._pattern = topics
            self._shared.metadata.want_all(lambda name: topics.fullmatch(name) is not None)
        else:
            self._topics = frozenset(topics)
            self._shared.metadata.want(topics)
        self._member.subscribe()

    # ---- requests, also while the application doesn't poll

    async def run(self) -> None:
        """Exchange requests with the group's coordinator until the membership ends; raise BrokerError then."""
        while True:
            now_ms = self._shared.clock_ms()
            wait_ms = self._member.wait_ms(now_ms)
            if wait_ms > 0:
                await self._wake.wait(wait_ms)
                continue
            generation, request = self._member.generation, self._member.request(now_ms)
            if request is not None:
                await self._send(request)
            else:
                self._shared.on_event("poll_timeout", member_id=generation.member_id, epoch=generation.number)
            self._shared.on_change()

    async def _send(self, request: PendingRequest) -> None:
        member, shared, requests = self._member, self._shared, self._requests
        timeout_ms = min(shared.settings.request_timeout_ms, member.session_left_ms(shared.clock_ms()))
        verdict = Verdict.CONTINUE
        try:
            if request.kind is Request.JOIN:
                error, verdict = await self._join_group(request)
            elif request.kind is Request.SYNC:
                error, assignment = await requests.sync(request, self._assignments, timeout_ms)
                verdict = member.on_sync(error, assignment, shared.clock_ms())
            elif request.kind is Request.HEARTBEAT:
                error = await requests.heartbeat(request, timeout_ms)
                verdict = member.on_heartbeat(error, shared.clock_ms())
            else:
                error = await requests.leave(request)
                member.on_leave()
        except (OSError, ProtocolError) as failure:
            member.on_failure(type(failure).__name__, shared.clock_ms())
            event = "heartbeat_failed" if request.kind is Request.HEARTBEAT else "group_request_failed"
            shared.on_event(event, request=request.kind.value, reason=str(failure) or type(failure).__name__)
            return
        name, generation = codes.name(error), request.generation
        if request.kind is Request.SYNC and member.assignment is not None:
            shared.on_event(
                "group_joined",
                epoch=generation.number,
                leader=member.is_leader,
                protocol="classic",
                assignor=generation.assignor,
            )
        if verdict is not Verdict.CONTINUE:
            shared.on_event("group_error", error=name, verdict=verdict.name.lower(), request=request.kind.value)
        if verdict is Verdict.RELEASE or error == ErrorCode.fenced_instance_id:
            shared.on_event("member_fenced", error=name, member_id=generation.member_id, epoch=generation.number)
        if verdict is Verdict.FIND_COORDINATOR:
            self._coordinator.forget()
        elif verdict is Verdict.FAIL:
            raise BrokerError(
                f"the group {self._group_id} rejects this consumer's {request.kind.value}: {name}; see the broker's "
                "log, or use another group",
                error,
            )

    async def _join_group(self, pending: PendingRequest) -> tuple[int, Verdict]:
        self._assigned_counts, self._assignments, self._joined_topics = None, {}, self._topics
        subscription = Subscription(
            tuple(self._topics),
            tuple(self._shared.positions),
            pending.generation.number,
            rack=self._shared.settings.client_rack,
        )
        answer = await self._requests.join(pending, subscription, self._previous)
        if answer.members:
            await self._assign(answer)
        now_ms = self._shared.clock_ms()
        return answer.error, self._member.on_join(answer.error, answer.generation, now_ms, leader=answer.leader)

    async def _assign(self, answer: JoinAnswer) -> None:
        """Compute the assignments of all members, which the leader sends with SyncGroup."""
        metadata = self._shared.metadata
        self._group_topics = frozenset(topic for member in answer.members.values() for topic in member.topics)
        metadata.want(self._group_topics)

        async def update_metadata() -> None:
            if not await self._shared.brokers.refresh():
                raise ConnectionError("no broker answered the request for the metadata of the group's topics")

        while not metadata.is_complete:
            await retry_until_answered(update_metadata, self._shared.backoff)
        self._assigned_counts = self._partition_counts()
        if not answer.skips_assignment:
            self._assignments = ASSIGNORS[str(answer.generation.assignor)](self._assigned_counts, answer.members)

    def _partition_counts(self) -> PartitionCounts:
        topics = ((name, self._shared.metadata.topic(name)) for name in self._group_topics)
        return {name: len(topic.partitions) for name, topic in topics if topic is not None and topic.partitions}

    # ---- what the application does in poll and close

    def polled(self) -> None:
        """Commit the offsets of records from earlier polls if an automatic commit is due, unless in a rebalance."""
        if not self._member.commit_refusal and not self._member.rejoin_needed:
            self._partitions.commits.polled(self._shared.clock_ms())

    def settle(self) -> None:
        """Prepare to join the group, or take over an assignment, as far as possible without waiting."""
        member = self._member
        member.polled(self._shared.clock_ms())
        if member.state is MemberState.FATAL:
            self._partitions.lose(self.member_id)
            return
        if member.state is not MemberState.UNSUBSCRIBED:
            self._watch_metadata()
        while member.duty is not Duty.NONE:
            if member.duty is Duty.APPLY:
                self._apply()
            elif not self._prepare():
                break
            self._wake()
        self._partitions.restore_positions()

    def _watch_metadata(self) -> None:
        """Let the member join again if new metadata changes the topics to subscribe to, or the leader's assignment."""
        metadata, member = self._shared.metadata, self._member
        if metadata.version == self._metadata_version:
            return
        if self._pattern is not None and metadata.is_complete:
            self._topics = frozenset(name for name in metadata.topic_names if self._pattern.fullmatch(name))
        if member.rejoin_needed:
            return
        self._metadata_version = metadata.version
        if self._assigned_counts is not None and self._partition_counts() != self._assigned_counts:
            member.request_rejoin("cached metadata has changed")
        elif self._joined_topics is not None and self._joined_topics != self._topics:
            member.request_rejoin("subscription has changed")

    def _prepare(self) -> bool:
        """Give up partitions before JoinGroup; return False while a commit or the metadata is awaited."""
        member, positions, partitions = self._member, self._shared.positions, self._partitions
        if self._pattern is not None and not self._has_fresh_metadata():
            return False
        given_up = sorted(tp for tp in positions if self._is_eager or tp.topic not in self._topics)
        if not self._is_preparing:
            self._is_preparing = True
            self._shared.on_event("rebalance_started", epoch=self.member_epoch, reason=member.rejoin_reason)
            if not member.has_lost_partitions:
                partitions.begin_revocation(given_up)
        if member.has_lost_partitions:
            partitions.lose(self.member_id)
        elif partitions.is_committed:
            partitions.revoke(given_up)
        else:
            return False
        self._is_preparing, self._awaited_version = False, None
        member.prepared()
        return True

    def _has_fresh_metadata(self) -> bool:
        """Return True if the metadata is newer than the reason to join, so that few rebalances follow a new topic."""
        metadata = self._shared.metadata
        if self._awaited_version is None:
            self._awaited_version = metadata.version
            metadata.request_update()
            self._shared.on_change()
        return metadata.is_complete and metadata.version > self._awaited_version

    def _apply(self) -> None:
        """Take over the assignment: revoke what a cooperative assignment lacks, and add what is new."""
        member, positions, partitions = self._member, self._shared.positions, self._partitions
        assert member.assignment is not None  # noqa: S101  # the member's duty is to apply it
        assigned = decode_assignment(member.assignment)
        if not all(self._is_subscribed(tp.topic) for tp in assigned):
            member.applied()
            member.request_rejoin("received assignment does not match the current subscription")
            return
        revoked = sorted(set(positions).difference(assigned))
        partitions.revoke(revoked)
        self._previous = PreviousAssignment(assigned, self.member_epoch)
        if self._pattern is not None:  # the leader may know topics that this member didn't know when it joined
            topics = {tp.topic for tp in assigned}
            self._shared.metadata.want(topics - self._topics)
            self._topics, self._joined_topics = self._topics | topics, (self._joined_topics or frozenset()) | topics
        partitions.add(sorted(set(assigned).difference(positions)))
        member.applied()
        if revoked:
            member.request_rejoin("need to revoke partitions and re-join")

    def _is_subscribed(self, topic: str) -> bool:
        return topic in self._topics if self._pattern is None else self._pattern.fullmatch(topic) is not None

    async def leave(self) -> None:
        """Commit the positions (if commits are automatic), release all partitions and leave the group."""
        member, positions = self._member, self._shared.positions
        is_member = not member.has_lost_partitions and member.state is not MemberState.FATAL
        if is_member:
            await self._partitions.commits.finish()
        if is_member and member.state not in REBALANCING:
            self._partitions.revoke(sorted(positions))
        else:
            self._partitions.lose(self.member_id)
        request = member.leave("the consumer is being closed")
        if request is not None:
            with suppress(ClientError):  # a group that could not be joined cannot be left either
                await self._send(request)

    async def close(self) -> None:
        await self._partitions.close()
