"""Fault ``churn``, which lets drawn members of a consumer group leave, die or return, one after the other.

The compiler draws the changes, so that equal seeds give equal sequences. At least one member stays in the group.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from aftershock.errors import FaultError
from aftershock.faults.kinds.client.membership import MemberFault, wait_until_joined
from aftershock.faults.kinds.fault import Band, Draws, Impact, Injection, InjectionContext, PlanContext, Report
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration
from aftershock.faults.sections.workloads import MEMBERS_MAX

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

    def impact(self) -> Impact:
        return "unknown"  # when which member is away is not declared

    def draw(self, source: random.Random) -> dict[str, Any]:
        count = ceil((self.for_ or self.every) / self.every)
        return super().draw(source) | {"changes": [[source.random(), source.random()] for _ in range(count)]}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        targets = await self.target_clients(context, draws)
        count = len(targets.clients)
        if count < MEMBERS_MIN:
            raise FaultError(f"{self.client} has one member, so its group can't churn; add `members` to the workload")
        away_max = min(self.away or count // 2, count - 1)
        undo = Undo("start_clients", {"clients": list(targets.clients)})
        numbers = [(which, who) for which, who in draws["changes"]]
        return ChurnInjection(context, targets, self.every * 1000, self.changes, away_max, numbers, undo=undo)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        for workload in plan.workloads.values():
            consume = workload.consume
            if consume is None or not any(
                self.selector.matches(workload.name, arm, "consume") for arm in workload.arms
            ):
                continue
            if consume.members < MEMBERS_MIN:
                message = f"the groups of `{workload.name}` have one member and can't churn: raise `members`"
                yield Problem(("client",), message)
            if consume.static and "kill" in self.changes and consume.protocol != "classic":
                message = (
                    "a static member that was killed can't return before its session times out "
                    "(UNRELEASED_INSTANCE_ID, KIP-848): write `changes: [leave]`, or remove `static`"
                )
                yield Problem(("changes",), message)
