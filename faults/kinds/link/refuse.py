"""``refuse`` and ``flap``: connections over some links are closed at once and new ones refused, constantly or in turns.

``refuse`` differs from ``cut`` in that both sides notice at once. The fault disables the link's proxy in Toxiproxy. A
connection is refused to the side that opens it, so ``->`` disables the proxies that the source dials, and ``<->``
between racks disables the proxies that either rack dials.

``flap`` disables and enables the proxies over and over. Each time they are disabled, every connection is closed and new
ones are refused; each time they are enabled, clients may reconnect. The phases last ``down`` and ``up``, or with
``jitter`` times around them that the compiler draws. Each round has one witness: the number of proxies that were
closed, and the number that were open, when they should be.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import LinkFault, LinkInjection, running, targets_of
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.probing import answering_links, count_answers, probe_all, wait_until_answering
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, with_timeout
from aftershock.faults.runtime.world import World
from aftershock.faults.targets.links import LinkStream, resolve
from aftershock.faults.targets.values import Link

REFUSAL_MS = 200  # upper bound; a refusal takes a ms or two


async def dialled_streams(link: str, context: InjectionContext, draws: Draws) -> tuple[LinkStream, ...]:
    """Return the streams that the source dials. Raises FaultError if there are none, or a proxy is disabled already."""
    streams = tuple(stream for stream in await resolve(link, context.world, draws) if stream.stream == "upstream")
    disabled = await context.world.disabled()
    if taken := sorted(stream.link.proxy for stream in streams if stream.link.proxy in disabled):
        raise FaultError(f"{taken[0]} is disabled already; let the other fault heal before this one begins")
    return streams


async def count_disabled(proxies: Sequence[str], world: World) -> Witness:
    """Count the proxies that Toxiproxy has as disabled."""
    disabled = await world.disabled()
    enabled = [proxy for proxy in proxies if proxy not in disabled]
    what = "proxies disabled, read back from Toxiproxy" + (f"; {enabled[0]} is enabled" if enabled else "")
    return Witness(what, len(proxies), len(proxies) - len(enabled), "proxies", len(proxies), not enabled)


class RefuseInjection(LinkInjection):
    """Disabled proxies of some links. ``reachable``: the links that answered before."""

    measuring_us = REFUSAL_MS * 1000

    def __init__(
        self, context: InjectionContext, links: Sequence[Link], reachable: Sequence[Link], roles: dict[str, Any]
    ) -> None:
        self.context = context
        self.reachable = reachable
        self.targets = targets_of(links, roles)
        self.undo = Undo("enable_proxies", {"proxies": list(self.targets.links)})

    async def inject(self) -> None:
        """Disable every proxy."""
        for proxy in self.targets.links:
            await run_to_completion(self.context.world.disable(proxy))

    async def measure(self) -> Witness:
        """Expect an immediate refusal on every link that answered before; no response would mean another fault."""
        closed = count_answers(await probe_all(self.reachable, self.context))["closed"]
        asked = len(self.reachable)
        what = "links on which a connection is refused or closed at once"
        if not asked:
            what = "no link answered before, so none can be probed; the proxies read back are the witness"
        return Witness(what, asked, closed, "links", asked, ok=closed == asked)

    async def read_back(self) -> Witness:
        """Count the proxies that Toxiproxy has as disabled."""
        return await count_disabled(self.targets.links, self.context.world)


class Refuse(LinkFault):
    """Close the connections over some links and refuse new ones."""

    band: ClassVar[Band] = Band("#e377c2", "refuse")
    proof: ClassVar[str] = "a refusal on every link that answered before; the proxies, read back each second"
    remedy: ClassVar[str] = "the proxies are enabled, and every link answers again"
    drops_traffic: ClassVar[bool] = True
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (
        ExclusiveResource("door", "links"),
        ExclusiveResource("way", "links", by_plan=False),
    )
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["refuse"] = "refuse"

    def impact(self) -> Impact:
        """Return ``links``: nothing crosses them."""
        return "links"

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the links; raise FaultError if there are none, or if another fault has disabled a proxy already."""
        streams = await dialled_streams(self.link, context, draws)
        links = [stream.link for stream in streams]
        roles = await self.described(streams, context.world)
        return RefuseInjection(context, links, await answering_links(links, context), roles)


PHASE_MS_MIN = 200  # a phase must be long enough for a probe


State = Literal["closed", "open"]


class Check(NamedTuple):
    """Number of checked proxies, and number of proxies in the expected state."""

    proxies: int
    expected: int


class FlapInjection(Injection):
    """Proxies of some links, disabled and enabled in turns. ``reachable``: the links that answered before."""

    def __init__(
        self,
        context: InjectionContext,
        links: Sequence[Link],
        reachable: Sequence[Link],
        phases_ms: Sequence[int],
        roles: Any,
    ) -> None:
        self.context = context
        self.reachable = reachable
        self.phases_ms = phases_ms
        self.targets = targets_of(links, roles)
        self.undo = Undo("enable_proxies", {"proxies": list(self.targets.links)})
        self.flapping = False  # a rehearsal only observes

    async def inject(self) -> None:
        """Disable every proxy for the first time."""
        await self._switch("closed")
        self.flapping = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Enable and disable the proxies as drawn, and check them in each phase."""
        clock, checks = self.context.clock, list[Check]()
        ends_us = until_us or clock.now_us()
        phase_us = clock.now_us()
        for turn, phase_ms in enumerate(self.phases_ms):
            state: State = "open" if turn % 2 else "closed"
            if turn and self.flapping:
                await self._switch(state)
            phase_us = min(phase_us + phase_ms * 1000, ends_us)
            checks.append(await self._check(state, phase_us))
            await clock.sleep_until_us(phase_us)
            if state == "open" or phase_us == ends_us:
                proxies, expected = sum(check.proxies for check in checks), sum(check.expected for check in checks)
                what = "checks of a proxy that found it as it should be, closed or open"
                what = what if proxies else "no proxy could be checked"
                report(Witness(what, proxies, expected, "looks", proxies, ok=proxies == expected))
                checks.clear()
            if phase_us == ends_us:
                return

    async def confirm_healed(self) -> None:
        """Wait until every link that answered before answers again."""
        await wait_until_answering(self.reachable, self.context)

    async def _switch(self, state: State) -> None:
        switch = self.context.world.disable if state == "closed" else self.context.world.enable
        for proxy in self.targets.links:
            await run_to_completion(switch(proxy))

    async def _check(self, state: State, until_us: int) -> Check:
        """Probe each link that answered before, until ``until_us``; if there is none, read the proxies back."""
        if not self.reachable:
            disabled = await self.context.world.disabled()
            expected = sum((proxy in disabled) == (state == "closed") for proxy in self.targets.links)
            return Check(len(self.targets.links), expected)
        links, clock = await running(self.reachable, self.context), self.context.clock
        left_ms = max(1, (until_us - clock.now_us()) // 1000)
        answers = await with_timeout(probe_all(links, self.context), clock, left_ms) or ()
        return Check(len(answers), [*answers].count("closed" if state == "closed" else "answered"))


class Flap(LinkFault):
    """Close the connections over some links and refuse new ones, again and again with pauses."""

    band: ClassVar[Band] = Band("#f7b6d2", "flap")
    proof: ClassVar[str] = "each round: a refusal while shut, an answer while open, on every link that answered before"
    remedy: ClassVar[str] = "the proxies are enabled, and every link answers again"
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (
        ExclusiveResource("door", "links"),
        ExclusiveResource("way", "links", by_plan=False),
    )
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["flap"] = "flap"
    down: Annotated[Duration, Field(ge=PHASE_MS_MIN, description="how long connections are refused each time")]
    up: Annotated[Duration, Field(ge=PHASE_MS_MIN, description="how long they are accepted each time")]
    jitter: Annotated[Duration, Field(description="each phase is drawn, this much around `down` and `up`")] = 0

    @model_validator(mode="after")
    def _never_too_short(self) -> Self:
        if min(self.down, self.up) - self.jitter < PHASE_MS_MIN:
            sentence = f"with jitter, `down` and `up` must be at least {PHASE_MS_MIN}ms; make the jitter smaller"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def impact(self) -> Impact:
        """Return ``unknown``: what gets through now and then may keep a leader in place."""
        return "unknown"

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw ``phases_ms``: closed, open, closed ... until the fault ends; and ``any`` roles."""
        draws, phases = super().draw(source), list[int]()
        while sum(phases) < (self.for_ or 0):
            base = self.up if len(phases) % 2 else self.down
            phases.append(round(source.uniform(base - self.jitter, base + self.jitter)))
        return draws | {"phases_ms": phases}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own times matter
        """Yield a fault that would end before the proxies are enabled once."""
        if self.for_ is not None and self.down + self.jitter >= self.for_:
            yield Problem(
                ("down",), "the fault ends before connections are accepted once: shorten `down`, or use refuse"
            )

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the links; raise FaultError if there are none, or if another fault has disabled a proxy already."""
        streams = await dialled_streams(self.link, context, draws)
        links = [stream.link for stream in streams]
        roles = await self.described(streams, context.world)
        return FlapInjection(context, links, await answering_links(links, context), draws["phases_ms"], roles)
