"""One attempt at one commit on the wire, as a transaction of its own; the rules are in ``rules/transactions.py``.

Each target has a transactional id, ``<client id>-<group>-<partition>``, as one application a partition would have.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError, UnsupportedError
from aftershock.workloads.reference.commit_attempts import Lane
from aftershock.workloads.reference.commit_messages import (
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    INIT_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
    add_offsets,
    commit_error,
    end_transaction,
    init_transactions,
    txn_offset_commit,
)
from aftershock.workloads.reference.coordinator import TRANSACTION_KEY, Coordinator
from aftershock.workloads.rules.commits import Target
from aftershock.workloads.rules.transactions import Identity, Stage, Transaction


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
