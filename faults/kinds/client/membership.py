"""Faults on the members of consumer groups: ``join``, ``leave``, ``roll_members``, ``evict`` and ``churn``.

``leave`` lets a member shut down as an application does that is stopped: the member commits, leaves its group and
exits. With the heal it starts and joins again. ``roll_members`` does this with one
member after the other, as a deployment does. ``join`` starts further members, which the plan's compiler holds in
reserve; with ``for`` they leave at the heal. ``evict`` keeps a member from polling for longer than
``max.poll.interval.ms``, after which its client library leaves the group (KIP-62); the member then continues with the
records that it has. ``churn`` lets members leave, die or return, one after the other; the compiler draws the changes,
so that equal seeds give equal sequences, and at least one member stays in the group.

Processes of a service are members too. A service has no switch for its polling, so ``evict`` removes its member from
the group, as an administrator does (LeaveGroup, KIP-345); the service learns of it by its next heartbeat or commit.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.client.base import (
    ClientFault,
    DownInjection,
    grouped_pipe,
    no_member,
    require_told,
    services_among,
)
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
    report_at_both_ends,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.services import MEMBERS_MAX
from aftershock.faults.sections.units import Duration, format_duration
from aftershock.faults.targets.clients import Op
from aftershock.names import LIBRARIES, ON_LIBRDKAFKA

JOINED_DEADLINE_MS = 60_000


class MemberFault(ClientFault):
    """Base of faults on members of consumer groups."""

    unavailable: ClassVar[Impact] = "members"
    needs_members: ClassVar[bool] = True
    op: Op | None = "consume"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        if self.op not in ("consume", "pipe"):
            yield Problem(("op",), "only consumers and services are members of groups: omit `op`")
        elif not plan.unreadable_workloads and not any(
            (workload.consume and workload.consume.group and self.selector.matches(workload.name, arm, "consume"))
            or (grouped_pipe(self, workload) and self.selector.matches(workload.name, arm, "pipe"))
            for workload in plan.workloads.values()
            for arm in workload.arms
        ):
            yield no_member(self, plan)


async def group_witness(clients: tuple[str, ...], context: InjectionContext, *, present: bool) -> Witness:
    """Return a witness that the groups' coordinators list all, or none, of the clients as members."""

    async def membership() -> list[bool | None]:
        return [await context.world.in_group(client) for client in clients]

    members = await retry_refused(membership, context.clock, READ_DEADLINE_MS)
    # of a process of a service that can't be told from others, nothing is known
    listed, known = members.count(True), len(members) - members.count(None)
    asked = known if present else 0
    what = "clients that the coordinator of their group lists as members"
    return Witness(what, asked, listed, "clients", known, ok=listed == asked and known > 0)


async def wait_until_joined(clients: Sequence[str], context: InjectionContext) -> None:
    """Wait until each client runs and its group's coordinator lists it; raise FaultError after a deadline."""

    async def missing() -> str | None:
        states = {process.name: process.state for process in await context.world.clients()}
        for client in clients:
            if states.get(client) != "running":
                return f"{client} does not run"
            listed = await context.world.in_group(client)
            if not listed:
                return (
                    f"the coordinator does not list {client} as a member"
                    if listed is False
                    else f"it can't be told which member of its group is {client}"
                )
        return None

    await wait_until(missing, context.clock, JOINED_DEADLINE_MS)


class LeaveInjection(DownInjection):
    down = "exited"
    verb = "start_clients"

    async def put_down(self, client: str) -> None:
        await self.context.world.leave_client(client)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the coordinator does not list the members, and each second that their processes are gone."""
        if self.members:
            report(await group_witness(self.targets.clients, self.context, present=False))
        await super().hold(until_us, report)


class Leave(MemberFault):
    """Let members of a consumer group commit, leave the group and exit, and start them at the end."""

    band = Band("#9c9ede", "leave")
    proof = (
        "The group's coordinator lists the members no more. The kernel lists no process of theirs (read each second)."
    )
    remedy = "The members are started, and the group's coordinator lists them again."
    allowance_ms = 8_000  # a client closes in a second; Python, librdkafka or a JVM start in 1-4 s
    closes_connections = True
    needs_members = False

    kind: Literal["leave"] = "leave"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        return LeaveInjection(context, await self.target_clients(context, draws))


@dataclass(eq=False)
class RollMembersInjection(Injection):
    """Leave and return of members, one after the other, with ``pause_us`` between two; ``back`` counts the returns."""

    pause_us: int
    exited: int = 0
    back: int = 0

    async def inject(self) -> None:
        clock, world = self.context.clock, self.context.world
        for number, client in enumerate(self.targets.clients):
            if number:
                await clock.sleep_until_us(clock.now_us() + self.pause_us)
            await run_to_completion(world.leave_client(client))
            states = {process.name: process.state for process in await world.clients()}
            self.exited += states.get(client, "exited") == "exited"
            await run_to_completion(world.start_client(client))
            await wait_until_joined([client], self.context)
            self.back += 1

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 - the restarts are over
        """Report how many members exited, and how many the coordinator listed again before the next one left."""
        count = len(self.targets.clients)
        what = "members that exited when they left their group, as the kernel reports"
        report(Witness(what, count, self.exited, "members", count, ok=self.exited == count))
        what = "members that the coordinator of their group listed again before the next one left"
        report(Witness(what, count, self.back, "members", count, ok=self.back == count))


class RollMembers(MemberFault):
    """Let the members of a consumer group leave and start again, one after the other."""

    band = Band("#cedb9c", "roll members")
    unavailable = "unknown"  # when which member is away is not declared
    proof = "Each member's process was gone, and the group's coordinator listed it again before the next one left."
    remedy = "The members are members again when the fault ends. If it is interrupted, all are started."
    for_rule = "refused"
    allowance_ms = 60_000  # for each member a second to leave, and 1-4 s until it is listed again

    drawn = ("{client: CLIENT}",)
    kind: Literal["roll_members"] = "roll_members"
    pause: Annotated[Duration, Field(description="time between the return of a member and the leave of the next")] = 0

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        targets = await self.target_clients(context, draws)
        await require_told(targets.clients, context)
        undo = Undo("start_clients", {"clients": list(targets.clients)})
        return RollMembersInjection(context, targets, self.pause * 1000, undo=undo)


@dataclass(eq=False)
class JoinInjection(Injection):
    async def inject(self) -> None:
        for client in self.targets.clients:
            await run_to_completion(self.context.world.start_client(client))
        await wait_until_joined(self.targets.clients, self.context)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the coordinator lists the new members, at the start and at the end."""
        read = partial(group_witness, self.targets.clients, self.context, present=True)
        await report_at_both_ends(read, read, report, self.context.clock, until_us)


class Join(MemberFault):
    """Start further members of a consumer group, which leave at the end."""

    band = Band("#637939", "join")
    proof = "The group's coordinator lists the new members."
    remedy = "With `for` the new members leave the group and exit."
    permanent_effect = "Without `for` the new members stay."
    allowance_ms = 8_000
    drops_traffic = False
    exclusive_resources = ()
    for_rule = "optional"

    kind: Literal["join"] = "join"
    members: Annotated[StrictInt, Field(ge=1, le=MEMBERS_MAX)] = 1

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        if self.selector.number is not None or not self.selector.certain:
            message = "`join` starts new members: name an arm, `ARM` or `WORKLOAD/ARM`"
            yield Problem(("client",), message)

    async def resolve_targets(self, context: InjectionContext, _draws: Draws) -> Injection:
        workers = [client for client in await context.world.clients() if client.reserve and client.state == "exited"]
        matches = [client for client in workers if self.selector.matches(client.workload, client.arm, client.op)]
        waiting = sorted(matches, key=lambda client: client.number)
        if len(waiting) < self.members:
            raise FaultError(
                f"{len(waiting)} members of {self.client} are in reserve, and {self.members} should join; let the "
                "members of an earlier `join` leave first (`for`)"
            )
        new = tuple(client.name for client in waiting[: self.members])
        targets = Targets(clients=new, roles={"asked": self.client_text})
        undo = Undo("leave_clients", {"clients": list(targets.clients)})
        return JoinInjection(context, targets, undo=undo)


POLL_INTERVAL_DEFAULT_MS = 300_000


class EvictInjection(DownInjection):
    down = "running"
    verb = "resume_polling"

    async def put_down(self, client: str) -> None:
        await self.context.world.stop_polling(client)

    async def inject(self) -> None:
        await super().inject()
        await wait_until(self._polling, self.context.clock, READ_DEADLINE_MS)

    async def _polling(self) -> str | None:
        beats = await self._heartbeats()
        return next((f"the client {name} still polls" for name, beat in beats.items() if not beat or beat.polls), None)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second that the members run and do not poll, and at the end that the group lists them no more."""
        clock = self.context.clock
        report(await self.read_back())
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self.read_back())
        report(await group_witness(self.targets.clients, self.context, present=False))

    async def read_back(self) -> Witness:
        states, beats = await self._states(), await self._heartbeats()
        still = sum(states[name] == "running" and beat is not None and not beat.polls for name, beat in beats.items())
        what = "clients that run and do not poll, by their heartbeats"
        return Witness(what, len(beats), still, "clients", len(beats), ok=still == len(beats))


@dataclass(eq=False)
class RemovalInjection(DownInjection):
    """Removal of services' members by an administrator; ``removed`` has their member ids by process."""

    down = "running"
    verb = "resume_clients"  # which does nothing to a process that runs

    removed: dict[str, frozenset[str]] = field(default_factory=dict)

    async def put_down(self, client: str) -> None:
        self.removed[client] = await self.context.world.evict_client(client)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report each second that the coordinator lists none of the removed members; the processes join as new ones."""
        clock = self.context.clock
        report(await self.read_back())
        while until_us is not None and (now_us := clock.now_us()) < until_us:
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))
            report(await self.read_back())

    async def read_back(self) -> Witness:
        async def listed() -> int:
            members = {client: await self.context.world.group_members(client) for client in self.removed}
            return sum(member.id in self.removed[client] for client, of in members.items() for member in of)

        count = sum(map(len, self.removed.values()))
        left = await retry_refused(listed, self.context.clock, READ_DEADLINE_MS)
        what = "removed members that the coordinator of their group still lists"
        return Witness(what, asked=0, observed=left, unit="members", n=count, ok=left == 0 and count > 0)


class Evict(MemberFault):
    """Have members expelled from their group while their processes run on, and let the members join again.

    Clients do not poll until their group has expelled them. Members that are processes of a service are removed by an
    administrator's request.
    """

    band = Band("#756bb1", "evict")
    proof = (
        "Clients run and do not poll (read each second), and at the end the group's coordinator no longer lists them. "
        "Members of a service are removed by an administrator's request, and the coordinator does not list them (read "
        "each second)."
    )
    remedy = "The members poll, and the group's coordinator lists them again."
    allowance_ms = 8_000  # a member learns with its next poll that it has lost its partitions, and joins again

    drawn = ("{client: CLIENT, for: 9s}",)
    kind: Literal["evict"] = "evict"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        targets = await self.target_clients(context, draws)
        services = await services_among(targets.clients, context)
        if not services:
            return EvictInjection(context, targets)
        if len(services) < len(targets.clients):
            raise FaultError(f"{self.client} has both consumers and processes of a service: write WORKLOAD/ARM")
        await require_told(services, context)
        return RemovalInjection(context, targets)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        for workload in plan.workloads.values():
            for name, arm in workload.arms.items() if workload.consume else ():
                if not self.selector.matches(workload.name, name, "consume") or self.for_ is None:
                    continue
                setting = arm.settings.get("max.poll.interval.ms", POLL_INTERVAL_DEFAULT_MS)
                limit_ms = int(str(setting)) if str(setting).isdecimal() else POLL_INTERVAL_DEFAULT_MS
                has_limit = arm.client not in ("exec", *LIBRARIES) or arm.client in ON_LIBRDKAFKA
                if has_limit and self.for_ <= limit_ms:
                    limit, longer = format_duration(limit_ms), format_duration(limit_ms + 5000)
                    message = (
                        f"`{workload.name}/{name}` leaves its group only {limit} after its last poll: lengthen `for` "
                        f"to {longer}, or lower the arm's `max.poll.interval.ms`"
                    )
                    yield Problem(("for",), message)


Change = Literal["leave", "kill"]
CHANGES_MIN = 2  # a single change is a `leave` or a `kill_client`
MEMBERS_MIN = 2


@dataclass(eq=False)
class ChurnInjection(Injection):
    """Changes of a group's members, each drawn by two numbers; ``away`` lists the members that left or died."""

    every_us: int
    changes: tuple[Change, ...]
    away_max: int
    numbers: Sequence[tuple[float, float]]
    away: list[str] = field(default_factory=list)
    done: int = 0

    async def inject(self) -> None:
        await run_to_completion(self._change())

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Make the further changes; report the state of the member after each, and the number of changes at the end."""
        clock, due_us = self.context.clock, self.context.clock.now_us()
        while self.done and until_us is not None:  # a rehearsal changes nothing
            due_us = max(due_us + self.every_us, clock.now_us())
            if due_us >= until_us:
                break
            await clock.sleep_until_us(due_us)
            report(await self._change())
        if until_us is not None:
            await clock.sleep_until_us(until_us)
        ok = self.done >= CHANGES_MIN
        report(Witness("changes of the group's members", CHANGES_MIN, self.done, "changes", self.done, ok))

    async def _change(self) -> Witness:
        world, (which, who) = self.context.world, self.numbers[self.done % len(self.numbers)]
        present = [client for client in self.targets.clients if client not in self.away]
        possible = [*(["return"] if self.away else []), *(self.changes if len(self.away) < self.away_max else ())]
        change = possible[int(which * len(possible))]
        candidates = self.away if change == "return" else present
        client = candidates[int(who * len(candidates))]
        if change == "return":
            await world.start_client(client)
            await wait_until_joined([client], self.context)
            self.away.remove(client)
        else:
            await (world.leave_client(client) if change == "leave" else world.kill_client(client))
            self.away.append(client)
        self.done += 1
        states = {process.name: process.state for process in await world.clients()}
        expected, state = "running" if change == "return" else "exited", states.get(client, "exited")
        what = f"members that are {expected} after the change `{change}`, as the kernel reports"
        return Witness(what, 1, int(state == expected), "members", 1, ok=state == expected)


class Churn(MemberFault):
    """Let drawn members of a consumer group leave, die or return, one after the other."""

    band = Band("#a55194", "churn")
    unavailable = "unknown"  # when which member is away is not declared
    proof = "After each change the member's process is gone, or runs and is listed by the group's coordinator."
    remedy = "All members are started, and the group's coordinator lists them again."
    allowance_ms = 10_000

    drawn = ("{client: CLIENT, every: [1s, 2s], for: 8s}",)
    kind: Literal["churn"] = "churn"
    every: Annotated[Duration, Field(ge=500, le=600_000, description="time from one change to the next")] = 3_000
    changes: Annotated[tuple[Change, ...], Field(min_length=1, description="how members may go, `leave` or `kill`")] = (
        "leave",
        "kill",
    )
    away: Annotated[StrictInt, Field(ge=1, le=MEMBERS_MAX)] | None = Field(
        default=None, description="how many members may be away at a time, by default half of them"
    )

    def draw(self, source: random.Random) -> dict[str, Any]:
        count = ceil((self.for_ or self.every) / self.every)
        return super().draw(source) | {"changes": [[source.random(), source.random()] for _ in range(count)]}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        targets = await self.target_clients(context, draws)
        count = len(targets.clients)
        if count < MEMBERS_MIN:
            raise FaultError(f"{self.client} has one member, so its group can't churn; add `members` to the workload")
        await require_told(targets.clients, context)
        away_max = min(self.away or count // 2, count - 1)
        undo = Undo("start_clients", {"clients": list(targets.clients)})
        numbers = [(which, who) for which, who in draws["changes"]]
        return ChurnInjection(context, targets, self.every * 1000, self.changes, away_max, numbers, undo=undo)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        for workload in plan.workloads.values():
            consume, op = workload.consume, "pipe" if workload.pipe else "consume"
            group = consume or workload.pipe
            if group is None or not any(self.selector.matches(workload.name, arm, op) for arm in workload.arms):
                continue
            if group.members < MEMBERS_MIN:
                message = f"the groups of `{workload.name}` have one member and can't churn: raise `members`"
                yield Problem(("client",), message)
            if consume and consume.static and "kill" in self.changes and consume.protocol != "classic":
                message = (
                    "a static member that was killed can't return before its session times out "
                    "(UNRELEASED_INSTANCE_ID, KIP-848): write `changes: [leave]`, or remove `static`"
                )
                yield Problem(("changes",), message)
