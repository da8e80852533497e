"""Faults ``move_transaction_coordinator``, ``fence_producer`` and ``abort_transaction`` on Kafka's transactions.

The transaction coordinator of a producer is the leader of the partition of ``__transaction_state`` to which the
producer's ``transactional.id`` belongs (``TransactionStateManager``), so it moves with that partition's leadership.

``fence_producer`` asks for a producer id of the same transactional id, as an administrator does with
``Admin.fenceProducers``. Kafka aborts the open transaction, and refuses every request of the earlier epoch from then
on. A correct client ends, or creates a new producer with the id.

``abort_transaction`` ends a *hanging* transaction (KIP-664), of which no coordinator knows: readers of committed
records wait for its end for ever. The marker that ends it is forged, so it would tear a transaction that a coordinator
knows as ongoing; the fault is then refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, Draws, Fault, Injection, InjectionContext, PlanContext, Report
from aftershock.faults.kinds.kafka.consumers import CoordinatorMove
from aftershock.faults.runtime.record import Targets, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.values import OpenTransaction
from aftershock.faults.targets.world import World
from aftershock.names import TRANSACTIONS_TOPIC

TransactionalId = Annotated[
    str,
    Field(
        pattern=r"^[^\s()]{1,249}$",
        description="`transactional.id` of a producer: the name of its process, or the id of your own program",
    ),
]


class MoveTransactionCoordinator(CoordinatorMove):
    """Move the coordinator of a producer's transactions to another broker."""

    band = Band("#6baed6", "move transaction coordinator")
    proof = "Another broker answers as the coordinator of the transactional id."
    remedy = "With `for` the earlier broker coordinates the transactions again, if it was the preferred replica."

    kind: Literal["move_transaction_coordinator"] = "move_transaction_coordinator"
    transactional_id: TransactionalId

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        find = partial(context.world.transaction_coordinator, self.transactional_id)
        return await self.move_of(context, TRANSACTIONS_TOPIC, ("transactional_id", self.transactional_id), find)


@dataclass(eq=False)
class FenceProducerInjection(Injection):
    """Epoch of a producer that is raised; ``granted`` is the producer id and epoch that Kafka gave to the harness."""

    transactional_id: str
    granted: tuple[int, int] | None = field(default=None, kw_only=True)

    async def inject(self) -> None:
        async def fence() -> None:
            self.granted = await self.context.world.fence_producer(self.transactional_id)

        await run_to_completion(fence())

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that the coordinator has the granted epoch, or a later one if a new producer has come since."""
        world, name = self.context.world, self.transactional_id
        state = await retry_refused(lambda: world.transaction_state(name), self.context.clock, READ_DEADLINE_MS)
        fenced = False
        if state and self.granted:  # a producer id whose epochs are used up is replaced by another one
            fenced = state.producer_id != self.granted[0] or state.epoch >= self.granted[1]
        what = (
            f"producers of the transactional id {name} that have no epoch below the one given to the harness, by a "
            "DescribeTransactions request"
        )
        report(Witness(what, asked=1, observed=int(fenced), unit="producers", n=1, ok=fenced))


class FenceProducer(Fault):
    """Fence the producer of a transactional id, as a second producer with the same id does, or an administrator."""

    family = "Kafka"
    unavailable = "connections"  # the producer's session with the coordinator ends once
    band = Band("#9ecae1", "fence producer")
    proof = "The coordinator of the transactional id has a later epoch than the producer."
    remedy = "Nothing is restored: the client needs a new producer."
    permanent_effect = "The earlier epoch stays fenced; an open transaction is aborted."
    exposure_target = "clients"
    closes_connections = True  # the client's next request is answered with an error
    for_rule = "refused"
    allowance_ms = 2_000
    apis = ("FindCoordinator", "InitProducerId", "DescribeTransactions")

    kind: Literal["fence_producer"] = "fence_producer"
    transactional_id: TransactionalId

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        state = await context.world.transaction_state(self.transactional_id)
        if state is None:
            raise FaultError(
                f"no producer has used the transactional id {self.transactional_id} yet, so there is none to fence: "
                "start the fault later, or correct the id"
            )
        roles = {"transactional_id": state.transactional_id, "producer_id": state.producer_id, "epoch": state.epoch}
        targets = Targets(clients=await _client_of(context.world, self.transactional_id), roles=roles)
        return FenceProducerInjection(context, targets, self.transactional_id)


async def _client_of(world: World, transactional_id: str) -> tuple[str, ...]:
    """Return the client process of an id; a service's id has the process's name in it, if it has ``{member}``."""
    names = [client.name for client in await world.clients() if client.name in transactional_id]
    return (max(names, key=len),) if names else ()


@dataclass(eq=False)
class AbortTransactionInjection(Injection):
    topic: str
    partition: int
    hanging: Sequence[OpenTransaction]

    async def inject(self) -> None:
        for transaction in self.hanging:
            await run_to_completion(self.context.world.write_abort_marker(self.topic, self.partition, transaction))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report how many of the transactions the leader no longer has open."""
        world = self.context.world
        now = await retry_refused(
            lambda: world.open_transactions(self.topic, self.partition), self.context.clock, READ_DEADLINE_MS
        )
        ended, count = len({*self.hanging} - {*now}), len(self.hanging)
        what = (
            f"hanging transactions of {self.topic}/{self.partition} that the leader no longer lists as open, by a "
            "DescribeProducers request"
        )
        report(Witness(what, count, ended, "transactions", count, ok=ended == count))


class AbortTransaction(Fault):
    """Abort the hanging transactions of a partition: those that are open there, and that no coordinator knows."""

    family = "Kafka"
    unavailable = "moments"  # nothing waits for it
    band = Band("#c6dbef", "abort transaction")
    proof = "The leader of the partition no longer lists the transactions as open."
    remedy = "Nothing is restored."
    permanent_effect = "The transactions have ABORT markers in the partition, which the harness wrote."
    exposure_target = "topics"
    closes_connections = True  # no request stays unanswered
    for_rule = "refused"
    allowance_ms = 2_000
    apis = ("FindCoordinator", "DescribeProducers", "ListTransactions", "DescribeTransactions", "WriteTxnMarkers")

    kind: Literal["abort_transaction"] = "abort_transaction"
    topic: str
    partition: Annotated[StrictInt, Field(ge=0)]

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        for topic in plan.topics.values():
            if topic.name == self.topic and self.partition >= topic.partitions:
                message = f"the topic {self.topic} has no partition {self.partition}: use 0 to {topic.partitions - 1}"
                yield Problem(("partition",), message)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        world, place = context.world, f"{self.topic}/{self.partition}"
        hanging, ongoing = [], []
        for transaction in await world.open_transactions(self.topic, self.partition):
            states = await world.transaction_states(transaction.producer_id)
            where = (self.topic, self.partition)
            known = [state for state in states if state.in_progress and where in state.partitions]
            ongoing += known
            hanging += [] if known else [transaction]
        # a transaction that has ended between the two answers hangs no more
        still = await world.open_transactions(self.topic, self.partition) if hanging else ()
        hanging = [transaction for transaction in hanging if transaction in still]
        if not hanging and ongoing:
            raise FaultError(
                f"the transaction of {ongoing[0].transactional_id} in {place} is not hanging: its coordinator knows "
                f"it as {ongoing[0].state}, and a marker of ours would tear it; use fence_producer instead"
            )
        if not hanging:
            raise FaultError(f"{place} has no open transaction now, so there is none to abort; start the fault later")
        roles = {"producer_ids": [transaction.producer_id for transaction in hanging], "partition": self.partition}
        return AbortTransactionInjection(
            context, Targets(topics=(self.topic,), roles=roles), self.topic, self.partition, hanging
        )
