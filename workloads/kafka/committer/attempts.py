"""Attempts to commit an offset for a group without members, by an OffsetCommit request or in a transaction."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError, SettingError, UnsupportedError
from aftershock.workloads.kafka.client.coordinator import TRANSACTION_KEY, Coordinator
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import (
    OFFSET_COMMIT,
    ApiVersionRange,
    offset_commit_versions,
    topic_reference,
)
from aftershock.workloads.kafka.client.settings import ClientSettings, flag, number
from aftershock.workloads.kafka.rules.commits import COMMIT_MOVED, Target
from aftershock.workloads.kafka.rules.idempotence import ProducerId
from aftershock.workloads.kafka.rules.transactions import Stage, Transaction
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codec import Api


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


TXN_OFFSET_COMMIT = ApiVersionRange(Api.TXN_OFFSET_COMMIT, 3, 5)
ADD_OFFSETS_TO_TXN = ApiVersionRange(Api.ADD_OFFSETS_TO_TXN, 3, 4)
END_TXN = ApiVersionRange(Api.END_TXN, 3, 5)
VERSION_1_MOST = 4
"""Version 5 of the APIs TxnOffsetCommit and EndTxn belongs to version 2 of the transactions (KIP-890)."""

INIT_TRANSACTIONS = ApiVersionRange(Api.INIT_PRODUCER_ID, 3, 5)


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
        self._features_epoch, self._level = UNKNOWN, 0
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
        """Set the version of the next transaction by the latest features of the brokers.

        A broker may offer less than the features imply, for example behind a proxy that caps an API.
        """
        known = [each.versions for each in (self._group_coordinator, self._transaction_coordinator) if each.versions]
        for versions in known:
            if versions.features_epoch > self._features_epoch:
                self._features_epoch = versions.features_epoch
                self._level = versions.features.get("transaction.version", 0)
        required = (END_TXN.api, TXN_OFFSET_COMMIT.api)
        capable = all(versions.offered.get(api, (0, 0))[1] > VERSION_1_MOST for versions in known for api in required)
        self._transaction.set_version_2(enabled=capable and self._level > 1)

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
        return api if self._transaction.version_2 else api._replace(most=VERSION_1_MOST)

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
