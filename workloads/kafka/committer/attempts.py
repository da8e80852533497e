"""The settings of the reference committer: Kafka's names and defaults (4.3), and our own.

The requests that commit one offset, plainly or in a transaction, in whichever version a broker speaks.

One attempt at one commit on the wire, as plain OffsetCommit; ``transactional_attempts.py`` has the other kind.

One attempt at one commit on the wire, as a transaction of its own; the rules are in ``rules/transactions.py``.

Each target has a transactional id, ``<client id>-<group>-<partition>``, as one application a partition would have.
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
from aftershock.workloads.kafka.client.network_client import Brokers
from aftershock.workloads.kafka.client.requests import Dialect
from aftershock.workloads.kafka.client.settings import ClientSettings, flag, number
from aftershock.workloads.kafka.rules.commits import MOVED, Target
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.transactions import Identity, Stage, Transaction
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff
from aftershock.workloads.kafka.wire.codec import Api


@dataclass(frozen=True, kw_only=True)
class CommitterSettings(ClientSettings):
    """What a committer has. ``transactional`` makes each commit one transaction of its own (``TxnOffsetCommit``).

    ``delivery_timeout_ms`` bounds a commit with all its retries. Kafka's consumer has ``default.api.timeout.ms`` for
    it, whose default this is; the name is the producer's, because plans and assignments speak of deadlines alike.
    ``connections_per_broker`` is ours: a broker answers the requests of one connection one after the other, so commits
    that are to meet in a coordinator's batch must not share one. Groups are dealt to so many in turn.
    ``commit_metadata_bytes`` of text go with each plain commit: a few large ones fill a coordinator's batch.
    """

    delivery_timeout_ms: int = number(60_000, 1)
    connections_per_broker: int = number(16, 1)
    commit_metadata_bytes: int = number(0, 0, 32_767)
    transactional: bool = flag(default=False)
    transaction_timeout_ms: int = number(60_000, 1)

    def __post_init__(self) -> None:
        """``SettingError`` for settings that contradict one another."""
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise SettingError(
                f"delivery.timeout.ms is {self.delivery_timeout_ms}, less than request.timeout.ms "
                f"({self.request_timeout_ms}): raise it, or lower request.timeout.ms"
            )


OFFSET_COMMIT = Dialect(Api.OFFSET_COMMIT, 8, 9)
"""10 names topics by id alone."""

TXN_OFFSET_COMMIT = Dialect(Api.TXN_OFFSET_COMMIT, 3, 4)
ADD_OFFSETS_TO_TXN = Dialect(Api.ADD_OFFSETS_TO_TXN, 3, 4)
END_TXN = Dialect(Api.END_TXN, 3, 4)
"""5 of TxnOffsetCommit and EndTxn are KIP-890's second part: another protocol."""

INIT_TRANSACTIONS = Dialect(Api.INIT_PRODUCER_ID, 3, 5)


def offset_commit(messages: Any, target: Target, offset: int, metadata: str = "") -> Any:
    """OffsetCommit of a group without members."""
    topic = messages.OffsetCommitRequestTopic(
        name=target.topic, partitions=(_partition(messages.OffsetCommitRequestPartition, target, offset, metadata),)
    )
    return messages.OffsetCommitRequest(
        group_id=target.group, generation_id_or_member_epoch=UNKNOWN, member_id="", topics=(topic,)
    )


def txn_offset_commit(messages: Any, target: Target, offset: int, *, transactional_id: str, identity: Identity) -> Any:
    """TxnOffsetCommit of a group without members."""
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
    """The code that either response has for its one partition; ProtocolError when it speaks of none."""
    answers = [partition for topic in response.topics for partition in topic.partitions]
    if not answers:
        raise ProtocolError("a commit was answered without a word about its partition")
    return int(answers[0].error_code)


def init_transactions(messages: Any, transactional_id: str, timeout_ms: int) -> Any:
    """InitProducerId of a transactional id: a new epoch, and an end to what was left open."""
    return messages.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=timedelta(milliseconds=timeout_ms),
        producer_id=UNKNOWN,
        producer_epoch=UNKNOWN,
    )


def add_offsets(messages: Any, transactional_id: str, identity: Identity, group: str) -> Any:
    """AddOffsetsToTxn: the offsets of ``group`` are to be part of the transaction."""
    return messages.AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )


def end_transaction(messages: Any, transactional_id: str, identity: Identity, *, commit: bool) -> Any:
    """EndTxn: commit or abort."""
    return messages.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )


class Lane(NamedTuple):
    """The connections that some targets share; all lanes of a committer know the same metadata."""

    settings: CommitterSettings
    brokers: Brokers
    metadata: Metadata
    backoff: Backoff
    clock_ms: Callable[[], float]


class Attempts(Protocol):
    """How one target's commits get done."""

    @property
    def lookups(self) -> int:
        """How often a coordinator was looked for."""

    async def prepare(self) -> None:
        """Find whom to ask, connect, and see that it can be asked. Raises as ``Coordinator.ask``."""

    async def make(self, offset: int) -> int:
        """Commit ``offset``: Kafka's code. OSError or ProtocolError: there was no answer; back off."""


class PlainAttempts:
    """``sent`` is told the coordinator's node id just before a commit goes to the wire."""

    def __init__(self, target: Target, lane: Lane, sent: Callable[[int], None]) -> None:
        self._target, self._lane, self._sent = target, lane, sent
        self._coordinator = Coordinator(target.group, lane)

    @property
    def lookups(self) -> int:
        """How often the group's coordinator was looked for."""
        return self._coordinator.lookups

    async def prepare(self) -> None:
        """Find the coordinator and connect to it."""
        channel = await self._lane.brokers.channel(await self._coordinator.find(), "coordinator")
        OFFSET_COMMIT.messages(channel.versions)

    async def make(self, offset: int) -> int:
        """Commit ``offset``: see ``Attempts``."""
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
    """``sent`` is told the coordinator's node id just before a transaction's commit goes to the wire.

    ``wanted`` says whether anybody still waits for the commit: else it is aborted while it can be.
    """

    def __init__(
        self,
        target: Target,
        lane: Lane,
        sent: Callable[[int], None],
        wanted: Callable[[], bool],
        counts: Counter[str],
    ) -> None:
        self._target, self._lane, self._sent, self._wanted = target, lane, sent, wanted
        self._id = f"{lane.settings.client_id}-{target.group}-{target.partition}"
        self._transaction = Transaction(lane.backoff, counts)
        self._of_group = Coordinator(target.group, lane)
        self._of_id = Coordinator(self._id, lane, TRANSACTION_KEY)

    @property
    def lookups(self) -> int:
        """How often either coordinator was looked for."""
        return self._of_group.lookups + self._of_id.lookups

    async def prepare(self) -> None:
        """Find the coordinators and connect to them."""
        asked_of = {self._of_group: TXN_OFFSET_COMMIT, self._of_id: END_TXN}
        for coordinator, dialect in asked_of.items():
            channel = await self._lane.brokers.channel(await coordinator.find(), "coordinator")
            dialect.messages(channel.versions)

    async def make(self, offset: int) -> int:
        """Commit ``offset``, however many steps that takes: Kafka's code of what ended it."""
        self._transaction.begin()
        while self._transaction.under_way:
            await asyncio.sleep(self._transaction.wait_ms / 1000)
            await self._step(offset)
        return self._transaction.error

    async def _step(self, offset: int) -> None:
        transaction = self._transaction
        if not self._wanted():
            transaction.abandon()
        try:
            error = await self._ask(offset)
        except BrokerError as refused:
            error = refused.code
        except UnsupportedError:
            error = int(ErrorCode.unsupported_version)
        except (OSError, ProtocolError):
            transaction.unanswered()
            return
        if transaction.coordinator_lost(error):
            (self._of_group if transaction.stage is Stage.COMMITTING else self._of_id).forget()
        transaction.answered(error)

    async def _ask(self, offset: int) -> int:
        """Send what the stage asks for; the answer's code."""
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
        response = await self._of_id.ask(INIT_TRANSACTIONS, make)
        self._transaction.identity = Identity(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    async def _add_offsets(self) -> int:
        make = partial(add_offsets, transactional_id=self._id, identity=self._identity, group=self._target.group)
        return int((await self._of_id.ask(ADD_OFFSETS_TO_TXN, make)).error_code)

    async def _commit(self, offset: int) -> int:
        of = partial(txn_offset_commit, transactional_id=self._id, identity=self._identity)
        make = partial(of, target=self._target, offset=offset)
        return commit_error(await self._of_group.ask(TXN_OFFSET_COMMIT, make))

    async def _end(self, *, commit: bool) -> int:
        node_id = await self._of_id.find()
        if commit:
            self._sent(node_id)
        make = partial(end_transaction, transactional_id=self._id, identity=self._identity, commit=commit)
        return int((await self._of_id.ask(END_TXN, make)).error_code)

    @property
    def _identity(self) -> Identity:
        return self._transaction.identity
