"""Attempts to commit one offset: settings, requests, and the two ways to commit (plain OffsetCommit, or a transaction).

The rules of transactions are in ``rules/transactions.py``. Each target has its own transactional id, ``<client
id>-<group>-<partition>``, as in an application with one producer per partition.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError, SettingError, UnsupportedError
from aftershock.workloads.kafka.client.coordinator import TRANSACTION_KEY, Coordinator
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import ApiVersionRange
from aftershock.workloads.kafka.client.settings import ClientSettings, flag, number
from aftershock.workloads.kafka.rules.commits import MOVED, Target
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.transactions import Identity, Stage, Transaction
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codec import Api


@dataclass(frozen=True, kw_only=True)
class CommitterSettings(ClientSettings):
    """Settings of a committer. ``transactional`` makes each commit a separate transaction (``TxnOffsetCommit``).

    ``delivery_timeout_ms`` bounds a commit with all its retries. It corresponds to the consumer's
    ``default.api.timeout.ms``, and has the same default. It has the name of the producer's setting, because plans and
    assignments set both deadlines in the same way. ``connections_per_broker`` is an addition: a broker answers the
    requests of one connection one after the other, so commits on the same connection never get into the same batch of a
    coordinator. Groups are distributed over these connections in turn. ``commit_metadata_bytes`` of text go with each
    plain commit: a few large ones fill a coordinator's batch.
    """

    delivery_timeout_ms: int = number(60_000, 1)
    connections_per_broker: int = number(16, 1)
    commit_metadata_bytes: int = number(0, 0, 32_767)
    transactional: bool = flag(default=False)
    transaction_timeout_ms: int = number(60_000, 1)

    def __post_init__(self) -> None:
        """Raise ``SettingError`` for contradicting settings."""
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise SettingError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}, less than request.timeout.ms "
                f"({self.request_timeout_ms}): raise it, or lower request.timeout.ms"
            )


OFFSET_COMMIT = ApiVersionRange(Api.OFFSET_COMMIT, 8, 9)
"""10 identifies topics by id only."""

TXN_OFFSET_COMMIT = ApiVersionRange(Api.TXN_OFFSET_COMMIT, 3, 4)
ADD_OFFSETS_TO_TXN = ApiVersionRange(Api.ADD_OFFSETS_TO_TXN, 3, 4)
END_TXN = ApiVersionRange(Api.END_TXN, 3, 4)
"""Version 5 of TxnOffsetCommit and EndTxn is KIP-890's second part, a different protocol."""

INIT_TRANSACTIONS = ApiVersionRange(Api.INIT_PRODUCER_ID, 3, 5)


def offset_commit(messages: Any, target: Target, offset: int, metadata: str = "") -> Any:
    """Return OffsetCommit for a group without members."""
    topic = messages.OffsetCommitRequestTopic(
        name=target.topic, partitions=(_partition(messages.OffsetCommitRequestPartition, target, offset, metadata),)
    )
    return messages.OffsetCommitRequest(
        group_id=target.group, generation_id_or_member_epoch=UNKNOWN, member_id="", topics=(topic,)
    )


def txn_offset_commit(messages: Any, target: Target, offset: int, *, transactional_id: str, identity: Identity) -> Any:
    """Return TxnOffsetCommit for a group without members."""
    topic = messages.TxnOffsetCommitRequestTopic(
        name=target.topic, partitions=(_partition(messages.TxnOffsetCommitRequestPartition, target, offset),)
    )
    return messages.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=target.group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=UNKNOWN,
        member_id="",
        topics=(topic,),
    )


def _partition(kind: Any, target: Target, offset: int, metadata: str = "") -> Any:
    return kind(
        partition_index=target.partition,
        committed_offset=offset,
        committed_leader_epoch=UNKNOWN,
        committed_metadata=metadata,
    )


def commit_error(response: Any) -> int:
    """Return the error code of the single partition in either response; raise ProtocolError if it is missing."""
    answers = [partition for topic in response.topics for partition in topic.partitions]
    if not answers:
        raise ProtocolError("the response to a commit lacks its partition")
    return int(answers[0].error_code)


def init_transactions(messages: Any, transactional_id: str, timeout_ms: int) -> Any:
    """Return InitProducerId for a transactional id: it raises the epoch and aborts an open transaction."""
    return messages.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=timedelta(milliseconds=timeout_ms),
        producer_id=UNKNOWN,
        producer_epoch=UNKNOWN,
    )


def add_offsets(messages: Any, transactional_id: str, identity: Identity, group: str) -> Any:
    """Return AddOffsetsToTxn: the offsets of ``group`` become part of the transaction."""
    return messages.AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )


def end_transaction(messages: Any, transactional_id: str, identity: Identity, *, commit: bool) -> Any:
    """Return EndTxn: commit or abort."""
    return messages.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )


class ConnectionLane(NamedTuple):
    """Connections shared by some targets; all lanes of a committer share the same metadata."""

    settings: CommitterSettings
    brokers: NetworkClient
    metadata: Metadata
    backoff: Backoff
    clock_ms: Callable[[], float]


class Attempts(Protocol):
    """Ways to execute one target's commits."""

    @property
    def lookups(self) -> int:
        """Number of coordinator lookups."""

    async def prepare(self) -> None:
        """Find the coordinator, connect, and check its versions. Raises as ``Coordinator.ask``."""

    async def make(self, offset: int) -> int:
        """Commit ``offset`` and return Kafka's code. OSError or ProtocolError: there was no answer; back off."""


class PlainAttempts:
    """OffsetCommit. ``sent`` receives the coordinator's node id just before a commit goes to the wire."""

    def __init__(self, target: Target, lane: ConnectionLane, sent: Callable[[int], None]) -> None:
        self._target, self._lane, self._sent = target, lane, sent
        self._coordinator = Coordinator(target.group, lane)

    @property
    def lookups(self) -> int:
        """Number of lookups of the group's coordinator."""
        return self._coordinator.lookups

    async def prepare(self) -> None:
        """Find the coordinator and connect to it."""
        channel = await self._lane.brokers.channel(await self._coordinator.find(), "coordinator")
        OFFSET_COMMIT.messages(channel.versions)

    async def make(self, offset: int) -> int:
        """Commit ``offset``; see ``Attempts``."""
        try:
            node_id = await self._coordinator.find()
            error = commit_error(await self._coordinator.ask(OFFSET_COMMIT, self._request(offset, node_id)))
        except BrokerError as refused:
            return refused.code
        except UnsupportedError:
            return int(ErrorCode.unsupported_version)
        if error in MOVED:
            self._coordinator.forget()
        return error

    def _request(self, offset: int, node_id: int) -> Callable[[Any], Any]:
        def request(messages: Any) -> Any:
            self._sent(node_id)
            return offset_commit(messages, self._target, offset, "m" * self._lane.settings.commit_metadata_bytes)

        return request


class TransactionalAttempts:
    """Transactions. ``sent`` receives the coordinator's node id just before a transaction's commit goes to the wire.

    ``is_wanted`` returns whether the commit is still needed: if not, the transaction is aborted while that is possible.
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
        self._group_coordinator = Coordinator(target.group, lane)
        self._transaction_coordinator = Coordinator(self._id, lane, TRANSACTION_KEY)

    @property
    def lookups(self) -> int:
        """Number of lookups of either coordinator."""
        return self._group_coordinator.lookups + self._transaction_coordinator.lookups

    async def prepare(self) -> None:
        """Find the coordinators and connect to them."""
        final_requests = {self._group_coordinator: TXN_OFFSET_COMMIT, self._transaction_coordinator: END_TXN}
        for coordinator, dialect in final_requests.items():
            channel = await self._lane.brokers.channel(await coordinator.find(), "coordinator")
            dialect.messages(channel.versions)

    async def make(self, offset: int) -> int:
        """Commit ``offset``, in as many steps as needed; return Kafka's code of the result."""
        self._transaction.begin()
        while self._transaction.under_way:
            await asyncio.sleep(self._transaction.wait_ms / 1000)
            await self._step(offset)
        return self._transaction.error

    async def _step(self, offset: int) -> None:
        transaction = self._transaction
        if not self._is_wanted():
            transaction.abandon()
        try:
            error = await self._send(offset)
        except BrokerError as refused:
            error = refused.code
        except UnsupportedError:
            error = int(ErrorCode.unsupported_version)
        except (OSError, ProtocolError):
            transaction.unanswered()
            return
        if transaction.coordinator_lost(error):
            committing = transaction.stage is Stage.COMMITTING
            (self._group_coordinator if committing else self._transaction_coordinator).forget()
        transaction.answered(error)

    async def _send(self, offset: int) -> int:
        """Send the request of the current stage; return the response's code."""
        match self._transaction.stage:
            case Stage.IDENTIFYING:
                return await self._identify()
            case Stage.ADDING:
                return await self._add_offsets()
            case Stage.COMMITTING:
                return await self._commit(offset)
            case stage:
                return await self._end(commit=stage is Stage.ENDING)

    async def _identify(self) -> int:
        timeout_ms = self._lane.settings.transaction_timeout_ms
        make = partial(init_transactions, transactional_id=self._id, timeout_ms=timeout_ms)
        response = await self._transaction_coordinator.ask(INIT_TRANSACTIONS, make)
        self._transaction.identity = Identity(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    async def _add_offsets(self) -> int:
        make = partial(add_offsets, transactional_id=self._id, identity=self._identity, group=self._target.group)
        return int((await self._transaction_coordinator.ask(ADD_OFFSETS_TO_TXN, make)).error_code)

    async def _commit(self, offset: int) -> int:
        request = partial(txn_offset_commit, transactional_id=self._id, identity=self._identity)
        make = partial(request, target=self._target, offset=offset)
        return commit_error(await self._group_coordinator.ask(TXN_OFFSET_COMMIT, make))

    async def _end(self, *, commit: bool) -> int:
        node_id = await self._transaction_coordinator.find()
        if commit:
            self._sent(node_id)
        make = partial(end_transaction, transactional_id=self._id, identity=self._identity, commit=commit)
        return int((await self._transaction_coordinator.ask(END_TXN, make)).error_code)

    @property
    def _identity(self) -> Identity:
        return self._transaction.identity
