"""Transactions in memory: what coordinators know of transactional ids, and what the leaders of partitions have open."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, OpenTransaction, TopicPartition, TransactionState

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.fake_world import FakeWorld


class FakeTransactions:
    """Fake of the part of `faults.runtime.world.Administered` on transactions, which tests fill from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.transactional: dict[str, TransactionState] = {}
        self.open: dict[TopicPartition, list[OpenTransaction]] = {}

    async def transaction_coordinator(self: "FakeWorld", transactional_id: str) -> BrokerId:
        await self._called("transaction_coordinator", transactional_id)
        state = self._partitions.get(("__transaction_state", 0))
        return state.leader if state and state.leader is not None else BrokerId(2)

    async def fence_producer(self: "FakeWorld", transactional_id: str) -> tuple[int, int]:
        await self._called("fence_producer", transactional_id)
        before = self.transactional[transactional_id]
        after = replace(before, state="Empty", epoch=before.epoch + 1, partitions=frozenset())
        self.transactional[transactional_id] = after
        return after.producer_id, after.epoch

    async def transaction_state(self: "FakeWorld", transactional_id: str) -> TransactionState | None:
        await self._called("transaction_state", transactional_id)
        return self.transactional.get(transactional_id)

    async def transaction_states(self: "FakeWorld", producer_id: int) -> Sequence[TransactionState]:
        await self._called("transaction_states", producer_id)
        if silent := [broker for broker in self.states if not self._serves(broker)]:
            raise AdminError(f"no broker answered ListTransactions (k{silent[0]})", "NETWORK_EXCEPTION")
        return [state for state in self.transactional.values() if state.producer_id == producer_id]

    async def open_transactions(self: "FakeWorld", topic: str, partition: int) -> Sequence[OpenTransaction]:
        await self._called("open_transactions", (topic, partition))
        return list(self.open.get((topic, partition), ()))

    async def write_abort_marker(self: "FakeWorld", topic: str, partition: int, transaction: OpenTransaction) -> None:
        await self._called("write_abort_marker", (topic, partition, transaction))
        self.open[topic, partition].remove(transaction)
