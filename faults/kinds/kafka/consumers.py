"""Faults ``move_coordinator``, ``delete_group_offsets`` and ``close_session`` on what brokers know of consumers.

A group's coordinator is the leader of the group's partition of ``__consumer_offsets`` (``GroupMetadataManager``), so
the coordinator moves with that partition's leadership. Kafka deletes committed offsets (KIP-496) only while no member
of the group subscribes to their topic.

``close_session`` closes a consumer's fetch session (KIP-227), so that it sends a full fetch request. A broker closes a
fetch session on the request of any client that names the session id, a random number. The reference consumers write
their session ids to ``events.jsonl``; for another client, the plan gives a session id and its broker, for instance from
the client's log. The confluent client (librdkafka) has no fetch sessions.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Fault,
    FieldPath,
    Injection,
    InjectionContext,
    Report,
    report_at_both_ends,
)
from aftershock.faults.kinds.kafka.assignments import partition_of, rotate
from aftershock.faults.kinds.kafka.reassign import MOVED_DEADLINE_MS, ReassignInjection
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.undo import assignment_as_json
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.services import GroupName
from aftershock.faults.targets.clients import ClientText, select_clients
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.names import OFFSETS_TOPIC, key_partition


@dataclass(eq=False)
class MoveCoordinatorInjection(ReassignInjection):
    """Move of the coordinator that ``find`` returns; ``coordinated`` says of what, ``former`` is that before."""

    find: Callable[[], Awaitable[BrokerId]] = field(kw_only=True)
    coordinated: str = field(kw_only=True)
    former: BrokerId = field(kw_only=True)

    async def inject(self) -> None:
        await super().inject()
        await wait_until(self._unmoved, self.context.clock, MOVED_DEADLINE_MS)

    async def _unmoved(self) -> str | None:
        coordinator = await self.find()
        return f"broker {coordinator} coordinates the {self.coordinated} still" if coordinator == self.former else None

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that another broker is the coordinator, at the start and at the end of the fault."""
        read = self.coordinator_witness
        await report_at_both_ends(read, read, report, self.context.clock, until_us)

    async def coordinator_witness(self) -> Witness:
        now = await retry_refused(self.find, self.context.clock, READ_DEADLINE_MS)
        what = f"brokers other than {self.former} that coordinate the {self.coordinated}, by a FindCoordinator request"
        return Witness(what, asked=1, observed=int(now != self.former), unit="brokers", n=1, ok=now != self.former)


class CoordinatorMove(Fault):
    """Base of faults that move a coordinator, which is the leader of a partition of an internal topic."""

    family = "Kafka"
    unavailable = "leaders"
    permanent_effect = "Without `for` the coordinator stays where it was moved."
    exposure_target = "topics"
    closes_connections = True  # the former coordinator answers with an error
    exclusive_resources = (ExclusiveResource("assignment", "topics"),)
    for_rule = "optional"
    allowance_ms = 2_000
    apis = ("FindCoordinator", "AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders")

    async def move_of(
        self, context: InjectionContext, topic: str, subject: tuple[str, str], find: Callable[[], Awaitable[BrokerId]]
    ) -> Injection:
        """Return the move of the partition of ``topic`` that belongs to ``subject`` to the replica behind its leader.

        ``subject`` is ("group", its name) or ("transactional_id", the id). The leader need not be the first replica,
        after another fault; a replica that is not in sync can't be elected.
        """
        former = await find()  # creates the topic
        states = await context.world.partitions([topic])
        noun, key = subject
        number = key_partition(key, len(states))
        (state,) = (state for state in states if state.partition == number)
        if len(state.replicas) == 1:
            raise FaultError(f"{topic} has one replica, so the coordinator can't move; add brokers")
        targets = Targets(topics=(topic,), roles={noun: key, "partition": number, "from": former})
        place, count = partition_of(state), len(state.replicas)
        behind = state.replicas.index(former) + 1 if former in state.replicas else 1
        turns = [turn % count for turn in range(behind, behind + count - 1)]
        in_sync = [turn for turn in turns if state.replicas[turn] in state.isr]
        if not in_sync:
            raise FaultError(f"{topic}/{number} has no other replica in sync, so the coordinator can't move now")
        moved = rotate([state], in_sync[0])
        led = [[*place]] if state.leader == state.replicas[0] else []
        undo = Undo("restore_assignment", {"assignment": assignment_as_json({place: state.replicas}), "elect": led})
        called = f"{noun.replace('_', ' ')} {key}"
        return MoveCoordinatorInjection(
            context, targets, {place: state}, moved, True, find=find, coordinated=called, former=former, undo=undo
        )


class MoveCoordinator(CoordinatorMove):
    """Move the coordinator of a consumer group to another broker."""

    band = Band("#3182bd", "move coordinator")
    proof = "Another broker answers as the group's coordinator."
    remedy = "With `for` the earlier broker coordinates the group again, if it was the preferred replica."

    drawn = ("{group: GROUP}",)
    kind: Literal["move_coordinator"] = "move_coordinator"
    group: GroupName

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        find = partial(context.world.coordinator, self.group)
        return await self.move_of(context, OFFSETS_TOPIC, ("group", self.group), find)


@dataclass(eq=False)
class DeleteGroupOffsetsInjection(Injection):
    group: str
    partitions: Sequence[TopicPartition]

    async def inject(self) -> None:
        await run_to_completion(self.context.world.delete_group_offsets(self.group, self.partitions))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report that the coordinator knows no committed offset of the partitions."""
        world = self.context.world
        offsets = await retry_refused(lambda: world.group_offsets(self.group), self.context.clock, READ_DEADLINE_MS)
        left, count = len(offsets.keys() & {*self.partitions}), len(self.partitions)
        what = f"partitions for which the group {self.group} has no committed offset, by an OffsetFetch request"
        report(Witness(what, count, count - left, "partitions", count, ok=left == 0))


class DeleteGroupOffsets(Fault):
    """Delete the offsets that a consumer group has committed for a topic; the group must have no members meanwhile."""

    family = "Kafka"
    band = Band("#e6550d", "delete offsets")
    proof = "The group's coordinator knows no committed offset of the topic."
    remedy = "Nothing is restored: the group starts where `from` says."
    permanent_effect = "The committed offsets are gone."
    exposure_target = "topics"
    exclusive_resources = ()
    for_rule = "refused"
    allowance_ms = 1_000
    apis = ("FindCoordinator", "OffsetFetch", "OffsetDelete")

    kind: Literal["delete_group_offsets"] = "delete_group_offsets"
    group: GroupName
    topic: str

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        offsets = await context.world.group_offsets(self.group)
        partitions = sorted(place for place in offsets if place[0] == self.topic)
        if not partitions:
            raise FaultError(f"the group {self.group} has committed no offset of {self.topic}; start the fault later")
        before = {str(number): offsets[topic, number] for topic, number in partitions}
        # the group then reads everything again, or only what is new
        roles = {"group": self.group, "offsets": before, "permits": ["commit_behind", "skipped"]}
        targets = Targets(topics=(self.topic,), roles=roles)
        return DeleteGroupOffsetsInjection(context, targets, self.group, partitions)


Session = tuple[BrokerId, int]


@dataclass(eq=False)
class CloseSessionInjection(Injection):
    sessions: Sequence[Session]

    async def inject(self) -> None:
        for broker, session in self.sessions:
            await run_to_completion(self.context.world.close_fetch_session(broker, session))

    async def hold(self, _until_us: int | None, report: Report) -> None:
        """Report the number of fetch sessions that their brokers no longer have."""

        async def open_sessions() -> list[Session]:
            return [session for session in self.sessions if await self.context.world.fetch_session_is_open(*session)]

        remaining = await retry_refused(open_sessions, self.context.clock, READ_DEADLINE_MS)
        asked = len(self.sessions)
        what = "fetch sessions that were open before the fault and are closed now, according to their brokers"
        report(Witness(what, asked, asked - len(remaining), "sessions", asked, not remaining))


class CloseSession(Fault):
    """Close the fetch sessions of a consumer (KIP-227)."""

    family = "Kafka"
    unavailable = "connections"
    band = Band("#7b4173", "close session")
    proof = "Each broker answers that it does not know the closed fetch session."
    remedy = "Nothing needs to be restored: the consumer opens a new fetch session with its next fetch."
    exposure_target = "brokers"
    closes_connections = True  # the broker answers the next fetch with an error
    exclusive_resources = ()
    for_rule = "refused"
    allowance_ms = 500
    apis = ("Fetch",)

    drawn = ("{client: CLIENT}",)
    kind: Literal["close_session"] = "close_session"
    client: ClientText | None = Field(
        default=None,
        description="the arm (of reference clients) whose consumers' fetch sessions are closed",
    )
    broker: RoleText | None = Field(default=None, description="the broker whose fetch sessions are closed")
    session: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="id of the fetch session to close; needs `broker`"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.client is None) == (self.session is None) or (self.session is not None and self.broker is None):
            raise ValueError("close_session needs either `client: ARM`, or `session: ID` and its `broker: ROLE`")
        return self

    def clients(self) -> dict[FieldPath, str]:
        return {("client",): self.client} if self.client is not None else {}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        broker = None if self.broker is None else await resolve(self.broker, world, draws, "broker")
        clients = await select_clients(self.client, world, draws) if self.client else ()
        consumers = tuple(client.name for client in clients if client.op == "consume")
        sessions = [session for name in consumers for session in (await world.fetch_sessions(name)).items()]
        sessions += [(broker, self.session)] if broker is not None and self.session is not None else []
        on_broker = [(node, session) for node, session in sessions if broker in (None, node)]
        open_ = [session for session in sorted(on_broker) if await world.fetch_session_is_open(*session)]
        if not open_:
            if self.client is None:
                raise FaultError(f"broker {broker} has no open fetch session {self.session}; check `session`")
            raise FaultError(f"{self.client} reports no open fetch session; only reference consumers report sessions")
        brokers = tuple(sorted({node for node, _ in open_}))
        targets = Targets(brokers, clients=consumers, roles={"sessions": [list(session) for session in open_]})
        return CloseSessionInjection(context, targets, open_)
