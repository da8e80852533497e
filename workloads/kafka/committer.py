"""Reference committer, which commits offsets of many groups without members, by the rules of ``rules/commits.py``.

A broker handles the requests of a connection one after the other, so commits on the same connection never get into the
same batch of a coordinator, the subject of KIP-1224. The committer therefore distributes the partitions over several
connections to each coordinator.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import cycle
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError, SettingError, UnsupportedError
from aftershock.workloads.kafka.client.coordinator import TRANSACTION_KEY, Coordinator
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import (
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    END_TXN_1_MOST,
    INIT_TRANSACTIONS,
    OFFSET_COMMIT,
    TXN_OFFSET_COMMIT,
    TXN_OFFSET_COMMIT_1_MOST,
    ApiVersionRange,
    TransactionVersion,
    offset_commit_versions,
    topic_reference,
)
from aftershock.workloads.kafka.client.settings import ClientSettings, flag, number
from aftershock.workloads.kafka.client.tasks import EventListener, Wake, monotonic_ms, retry_until_answered
from aftershock.workloads.kafka.rules.commits import COMMIT_MOVED, COMMIT_RETRIABLE, Commits, Outcome, Target
from aftershock.workloads.kafka.rules.idempotence import ProducerId
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.transactions import Stage, Transaction
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire import codes


@dataclass(frozen=True, kw_only=True)
class CommitterSettings(ClientSettings):
    """Settings of a reference committer.

    With ``transactional``, each commit is a separate transaction (``TxnOffsetCommit``). ``commit_metadata_bytes``
    enlarges OffsetCommit requests, so that a few requests fill a coordinator's batch.
    """

    delivery_timeout_ms: int = number(60_000, 1)  # limit for a commit with its retries
    connections_per_broker: int = number(16, 1)
    commit_metadata_bytes: int = number(0, 0, 32_767)
    transactional: bool = flag(default=False)
    transaction_timeout_ms: int = number(60_000, 1)

    def __post_init__(self) -> None:
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise SettingError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}, less than request.timeout.ms "
                f"({self.request_timeout_ms}): raise delivery.timeout.ms, or lower request.timeout.ms"
            )


def _topics(
    topic_kind: Any, partition_kind: Any, target: Target, offset: int, metadata: str = "", topic_id: UUID | None = None
) -> Any:
    partition = partition_kind(
        partition_index=target.partition,
        committed_offset=offset,
        committed_leader_epoch=UNKNOWN,
        committed_metadata=metadata,
    )
    return (topic_kind(**topic_reference(topic_kind, target.topic, topic_id), partitions=(partition,)),)


def _commit_error(response: Any) -> int:
    answers = [partition for topic in response.topics for partition in topic.partitions]
    if not answers:
        raise ProtocolError("the response to an offset commit lacks the partition of the commit")
    return int(answers[0].error_code)


class ConnectionLane(NamedTuple):
    """Connections that some of a committer's partitions share, one to each coordinator."""

    settings: CommitterSettings
    brokers: NetworkClient
    backoff: Backoff


class PlainAttempts:
    """Commits of one partition by OffsetCommit; ``sent`` is called with the node id just before a request is sent."""

    def __init__(self, target: Target, lane: ConnectionLane, sent: Callable[[int], None]) -> None:
        self._target, self._lane, self._sent = target, lane, sent
        self._coordinator = Coordinator(target.group, lane.brokers, lane.backoff)

    @property
    def lookups(self) -> int:
        return self._coordinator.lookups

    async def prepare(self) -> None:
        """Connect to the group's coordinator, and check its API versions; raises as ``Coordinator.ask``."""
        channel = await self._lane.brokers.channel(await self._coordinator.find(), "coordinator")
        OFFSET_COMMIT.messages(channel.versions)

    async def make(self, offset: int) -> int:
        """Commit an offset and return Kafka's error code; raise OSError or ProtocolError if there is no response."""
        try:
            node_id = await self._coordinator.find()
            topic_id = self._coordinator.metadata.topic_id(self._target.topic)

            def request(messages: Any) -> Any:
                self._sent(node_id)
                kinds = messages.OffsetCommitRequestTopic, messages.OffsetCommitRequestPartition
                metadata = "m" * self._lane.settings.commit_metadata_bytes
                return messages.OffsetCommitRequest(
                    group_id=self._target.group,
                    generation_id_or_member_epoch=UNKNOWN,
                    member_id="",
                    topics=_topics(*kinds, self._target, offset, metadata, topic_id),
                )

            error = _commit_error(await self._coordinator.ask(offset_commit_versions((topic_id,)), request))
        except BrokerError as refused:
            return refused.code
        except UnsupportedError:
            return int(ErrorCode.unsupported_version)
        if error in COMMIT_MOVED:
            self._coordinator.forget()
        return error


class TransactionalAttempts:
    """Commits of one partition in transactions; ``sent`` is called with the node id just before EndTxn is sent.

    Each partition of a group has its own transactional id, as in an application with one producer per partition. If
    ``is_wanted`` returns False, because the offset commit has expired, the transaction is aborted if possible.
    """

    def __init__(
        self,
        target: Target,
        lane: ConnectionLane,
        sent: Callable[[int], None],
        is_wanted: Callable[[], bool],
        counts: Counter[str],
    ) -> None:
        self._target, self._lane, self._sent, self._is_wanted = target, lane, sent, is_wanted
        self._id = f"{lane.settings.client_id}-{target.group}-{target.partition}"
        self._transaction = Transaction(lane.backoff, counts)
        self._version = TransactionVersion(
            {END_TXN.api: END_TXN_1_MOST, TXN_OFFSET_COMMIT.api: TXN_OFFSET_COMMIT_1_MOST}
        )
        self._group_coordinator = Coordinator(target.group, lane.brokers, lane.backoff)
        self._transaction_coordinator = Coordinator(self._id, lane.brokers, lane.backoff, TRANSACTION_KEY)

    @property
    def lookups(self) -> int:
        return self._group_coordinator.lookups + self._transaction_coordinator.lookups

    async def prepare(self) -> None:
        final_requests = {self._group_coordinator: TXN_OFFSET_COMMIT, self._transaction_coordinator: END_TXN}
        for coordinator, api in final_requests.items():
            channel = await self._lane.brokers.channel(await coordinator.find(), "coordinator")
            api.messages(channel.versions)
            coordinator.versions = channel.versions
        self._update_version()

    def _update_version(self) -> None:
        """Set the version of the next transaction by the latest features of the brokers."""
        known = [each.versions for each in (self._group_coordinator, self._transaction_coordinator) if each.versions]
        self._transaction.set_version_2(enabled=self._version.is_2(known))

    async def make(self, offset: int) -> int:
        transaction = self._transaction
        transaction.begin()
        while transaction.has_request:
            await asyncio.sleep(transaction.wait_ms / 1000)
            if not self._is_wanted():
                transaction.abandon()
            try:
                error = await self._send(offset)
            except BrokerError as refused:
                error = refused.code
            except UnsupportedError:
                error = int(ErrorCode.unsupported_version)
            except (OSError, ProtocolError):
                transaction.on_no_response()
                continue
            if transaction.coordinator_lost(error):
                committing = transaction.stage is Stage.COMMITTING
                (self._group_coordinator if committing else self._transaction_coordinator).forget()
            transaction.on_response(error)
        self._update_version()
        return transaction.error

    def _range(self, api: ApiVersionRange) -> ApiVersionRange:
        return api if self._transaction.version_2 else api._replace(most=END_TXN_1_MOST)

    async def _send(self, offset: int) -> int:
        transaction, coordinator, group = self._transaction, self._transaction_coordinator, self._target.group
        stage, (producer_id, epoch) = transaction.stage, transaction.identity
        sender = {"transactional_id": self._id, "producer_id": producer_id, "producer_epoch": epoch}
        if stage is Stage.IDENTIFYING:  # this raises the epoch and aborts an open transaction
            timeout = timedelta(milliseconds=self._lane.settings.transaction_timeout_ms)
            sender |= {"producer_id": UNKNOWN, "producer_epoch": UNKNOWN, "transaction_timeout": timeout}
            response = await coordinator.ask(
                INIT_TRANSACTIONS, lambda messages: messages.InitProducerIdRequest(**sender)
            )
            transaction.identity = ProducerId(response.producer_id, response.producer_epoch)
        elif stage is Stage.ADDING:
            response = await coordinator.ask(
                ADD_OFFSETS_TO_TXN, lambda messages: messages.AddOffsetsToTxnRequest(**sender, group_id=group)
            )
        elif stage is Stage.COMMITTING:

            def request(messages: Any) -> Any:
                kinds = messages.TxnOffsetCommitRequestTopic, messages.TxnOffsetCommitRequestPartition
                topics = _topics(*kinds, self._target, offset)
                return messages.TxnOffsetCommitRequest(
                    **sender, group_id=group, generation_id=UNKNOWN, member_id="", topics=topics
                )

            return _commit_error(await self._group_coordinator.ask(self._range(TXN_OFFSET_COMMIT), request))
        else:
            commit = stage is Stage.ENDING
            node_id = await coordinator.find()
            if commit:
                self._sent(node_id)
            response = await coordinator.ask(
                self._range(END_TXN), lambda messages: messages.EndTxnRequest(**sender, committed=commit)
            )
            if not response.error_code and getattr(response, "producer_id", UNKNOWN) != UNKNOWN:
                transaction.identity = ProducerId(response.producer_id, response.producer_epoch)
        return int(response.error_code)


_SOONEST_MS = 1.0  # lower limit, so that a wait rounded to 0 does not spin


class Committer:
    """Committer of many groups' offsets, on one asyncio event loop.

    ``report`` is called once for every offset commit, at its deadline at the latest, and must not raise.
    """

    def __init__(
        self, settings: CommitterSettings, *, report: Callable[[Outcome], None], on_event: EventListener
    ) -> None:
        self._settings, self._report, self._on_event = settings, report, on_event
        draw = random.Random()  # noqa: S311  # spreads retries; not a secret
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
        self._metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=self._backoff)
        self._commits = Commits(delivery_timeout_ms=settings.delivery_timeout_ms, backoff=self._backoff)
        self._transactions: Counter[str] = Counter()
        self._wake = Wake()
        self._lanes: list[ConnectionLane] = []
        for _ in range(settings.connections_per_broker):
            brokers = NetworkClient(
                settings, self._metadata, monotonic_ms, on_event=on_event, draw=draw, on_change=self._wake
            )
            self._lanes.append(ConnectionLane(settings, brokers, self._backoff))
        self._next_lane = cycle(range(len(self._lanes)))
        self._attempts: dict[Target, PlainAttempts | TransactionalAttempts] = {}
        self._tasks: dict[Target | None, asyncio.Task[None]] = {}

    @property
    def counts(self) -> Counter[str]:
        lookups = Counter(coordinator_lookups=sum(attempts.lookups for attempts in self._attempts.values()))
        return self._commits.counts + self._transactions + self._metadata.counts + lookups

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Bytes (sent, received) of all connections by node id."""
        sums: dict[int, tuple[int, int]] = {}
        for lane in self._lanes:
            for node_id, (sent, received) in lane.brokers.traffic.items():
                sent_before, received_before = sums.get(node_id, (0, 0))
                sums[node_id] = (sent_before + sent, received_before + received)
        return sums

    async def start(self, targets: Sequence[Target]) -> None:
        """Fetch the topics' metadata and connect to the coordinators, retrying without a limit.

        Raises BrokerError if the committer is not authorized for a topic or a group, UnsupportedError if the brokers
        lack a required API version.
        """
        self._metadata.want({target.topic for target in targets})
        await retry_until_answered(self._learn_topics, self._backoff)
        self._tasks[None] = asyncio.create_task(self._maintain())
        for target in targets:
            lane, sent = self._lanes[next(self._next_lane)], partial(self._commits.sent, target)
            if self._settings.transactional:
                is_wanted = partial(self._commits.wanted, target)
                self._attempts[target] = TransactionalAttempts(target, lane, sent, is_wanted, self._transactions)
            else:
                self._attempts[target] = PlainAttempts(target, lane, sent)

        async def prepare(lane_targets: Iterable[Target]) -> None:
            for target in lane_targets:  # one after the other, because there may be thousands
                await retry_until_answered(self._attempts[target].prepare, self._backoff)

        lanes = len(self._lanes)
        await asyncio.gather(*(prepare(targets[number::lanes]) for number in range(lanes)))

    async def _learn_topics(self) -> None:
        await self._lanes[0].brokers.refresh()
        for name in self._metadata.wanted:
            topic = self._metadata.topic(name)
            if topic is not None and topic.error in codes.HOPELESS:
                reason = codes.name(topic.error)
                raise BrokerError(f"offsets of the topic {name} cannot be committed: {reason}", topic.error)
            if topic is None or topic.error:
                raise ConnectionError(f"the metadata lacks the topic {name}")

    def offer(self, target: Target, offset: int, *, token: int) -> None:
        """Queue an offset commit for a partition that ``start`` was given, and return at once."""
        self._commits.offer(target, offset, token, monotonic_ms())
        self._wake()
        task = self._tasks.get(target)
        if task is None or task.done():
            if task is not None and not task.cancelled():
                task.result()
            self._tasks[target] = asyncio.create_task(self._work(target))

    async def _work(self, target: Target) -> None:
        while (wait_ms := self._commits.wait_ms(target, monotonic_ms())) < inf:
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)
                continue
            try:
                error = await self._attempts[target].make(self._commits.begin(target))
            except (OSError, ProtocolError) as unanswered:
                self._commits.on_no_response(target, monotonic_ms())
                self._report_retry(target, str(unanswered))
                continue
            self._report_all(self._commits.on_response(target, error, monotonic_ms()))
            if error in COMMIT_RETRIABLE:
                self._report_retry(target, codes.name(error))

    def _report_retry(self, target: Target, why: str) -> None:
        self._on_event("commit_retried", group=target.group, topic=target.topic, partition=target.partition, why=why)

    def _report_all(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._report(outcome)

    async def _maintain(self) -> None:
        while True:
            now_ms = monotonic_ms()
            self._report_all(self._commits.expire(now_ms))
            refresh_ms = self._lanes[0].brokers.refresh_if_due()
            await self._wake.wait(max(_SOONEST_MS, min(refresh_ms, self._commits.next_deadline_ms - now_ms)))

    async def close(self, timeout_ms: float) -> None:
        """Wait up to ``timeout_ms`` for pending commits, and report the rest as failed or in doubt."""
        working = [task for target, task in self._tasks.items() if target is not None and not task.done()]
        if working:
            await asyncio.wait(working, timeout=timeout_ms / 1000)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._report_all(self._commits.abandon())
        await asyncio.gather(*(lane.brokers.close() for lane in self._lanes))
