"""``refuse`` and ``flap``: connections over some links are closed, and new connections refused, once or repeatedly.

``refuse`` disables the link's proxy in Toxiproxy, so client and broker notice at once, unlike with ``cut``. A proxy
refuses connections to the side that opens them: ``->`` disables the proxies that the source dials, and ``<->`` between
racks disables the proxies that either rack dials.

``flap`` disables and enables the proxies repeatedly. The closed phases last ``down`` and the open phases ``up``, or
with ``jitter`` durations that the compiler draws around ``down`` and ``up``. Each pair of a closed and an open phase
has one witness, which counts the proxies that were closed in the former and open in the latter.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

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
from aftershock.faults.kinds.link.base import LinkFault, LinkInjection, link_targets
from aftershock.faults.plan.document import Problem
from aftershock.faults.plan.units import Duration
from aftershock.faults.runtime.probing import answering_links, links_to_running_brokers, probe_all
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, with_timeout
from aftershock.faults.targets.links import resolve
from aftershock.faults.targets.values import Link

REFUSAL_MS = 200  # upper bound; a refusal takes a ms or two
PHASE_MS_MIN = 200  # a phase must be long enough for a probe


@dataclass(eq=False)
class RefuseInjection(LinkInjection):
    """Disabled proxies of links; ``phases_ms``: durations of the closed and open phases, in turn, of ``flap``."""

    measuring_us = REFUSAL_MS * 1000
    reachable: Sequence[Link]
    phases_ms: Sequence[int] = ()

    async def inject(self) -> None:
        for proxy in self.targets.links:
            await run_to_completion(self.context.world.disable(proxy))

    async def measure(self) -> Witness:
        """Expect a refusal on every link that answered before the fault; silence would mean another fault."""
        closed = (await probe_all(self.reachable, self.context)).count("closed")
        asked = len(self.reachable)
        what = "links on which a connection is refused or closed at once"
        if not asked:
            what = "no link answered before the fault, so no link can be probed; the proxies read back are the witness"
        return Witness(what, asked, closed, "links", asked, ok=closed == asked)

    async def read_back(self) -> Witness:
        disabled, proxies = await self.context.world.disabled(), self.targets.links
        enabled = [proxy for proxy in proxies if proxy not in disabled]
        what = "proxies that are disabled, read back from Toxiproxy" + (f"; {enabled[0]} is enabled" if enabled else "")
        return Witness(what, len(proxies), len(proxies) - len(enabled), "proxies", len(proxies), not enabled)


class ProxyFault(LinkFault):
    """Base of faults that disable the proxies of some links."""

    remedy = "The proxies are enabled, and every link answers again."
    closes_connections = True
    exclusive_resources = (ExclusiveResource("proxy", "links"), ExclusiveResource("traffic", "links", by_plan=False))
    allowance_ms = 1_000
    injection: ClassVar[type[RefuseInjection]] = RefuseInjection

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """Resolve the proxies that the source dials; raise FaultError if a proxy is disabled already."""
        streams = [s for s in await resolve(self.link, context.world, draws) if s.stream == "upstream"]
        disabled = await context.world.disabled()
        if conflicts := sorted(stream.link.proxy for stream in streams if stream.link.proxy in disabled):
            raise FaultError(
                f"the proxy {conflicts[0]} is disabled already; let the other fault heal before this fault begins"
            )
        targets = link_targets(streams, await self.target_roles(streams, context.world))
        undo = Undo("enable_proxies", {"proxies": list(targets.links)})
        reachable = await answering_links((stream.link for stream in streams), context)
        return self.injection(context, targets, reachable, draws.get("phases_ms", ()), undo=undo)


class Refuse(ProxyFault):
    """Close the connections over some links at once and refuse new connections."""

    band = Band("#e377c2", "refuse")
    proof = (
        "A connection is refused on every link that answered before the fault. "
        "Toxiproxy lists the proxies as disabled (read each second)."
    )
    drops_traffic = True

    kind: Literal["refuse"] = "refuse"

    def impact(self) -> Impact:
        return "links"


class FlapInjection(RefuseInjection):
    injected = False  # a rehearsal only observes

    async def inject(self) -> None:
        await super().inject()
        self.injected = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Enable and disable the proxies at the drawn times, and check in each phase that they are open or closed."""
        clock, world = self.context.clock, self.context.world
        ends_us = until_us or clock.now_us()
        phase_us = clock.now_us()
        checked = expected = 0
        for turn, phase_ms in enumerate(self.phases_ms):
            is_open = bool(turn % 2)
            if turn and self.injected:
                for proxy in self.targets.links:
                    await run_to_completion(world.enable(proxy) if is_open else world.disable(proxy))
            phase_us = min(phase_us + phase_ms * 1000, ends_us)
            if self.reachable:
                links = await links_to_running_brokers(self.reachable, self.context)
                left_ms = max(1, (phase_us - clock.now_us()) // 1000)
                answers = await with_timeout(probe_all(links, self.context), clock, left_ms) or []
                checked += len(answers)
                expected += answers.count("answered" if is_open else "closed")
            else:
                disabled = await world.disabled()
                checked += len(self.targets.links)
                expected += sum((proxy in disabled) != is_open for proxy in self.targets.links)
            await clock.sleep_until_us(phase_us)
            if is_open or phase_us == ends_us:
                what = "checks of a proxy that was closed, or open, as due in its phase"
                what = what if checked else "the fault ended before a proxy was checked"
                report(Witness(what, checked, expected, "looks", checked, ok=checked == expected))
                checked = expected = 0
            if phase_us == ends_us:
                return


class Flap(ProxyFault):
    """Close the connections over some links and refuse new connections, repeatedly, with pauses."""

    band = Band("#f7b6d2", "flap")
    proof = (
        "In each round, every link that answered before the fault refuses a connection in the `down` phase "
        "and answers in the `up` phase."
    )
    injection = FlapInjection

    kind: Literal["flap"] = "flap"
    down: Annotated[
        Duration, Field(ge=PHASE_MS_MIN, description="duration of each phase in which the links refuse connections")
    ]
    up: Annotated[
        Duration, Field(ge=PHASE_MS_MIN, description="duration of each phase in which the links accept connections")
    ]
    jitter: Annotated[
        Duration,
        Field(description="largest difference of a phase's duration from `down` or `up`, drawn for each phase"),
    ] = 0

    @model_validator(mode="after")
    def _never_too_short(self) -> Self:
        if min(self.down, self.up) - self.jitter < PHASE_MS_MIN:
            raise ValueError(f"with jitter, `down` and `up` must be at least {PHASE_MS_MIN}ms; lower the jitter")
        return self

    def impact(self) -> Impact:
        return "unknown"  # data that crosses while connections are accepted may keep a leader in place

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the durations of closed and open phases (``phases_ms``), and a number for each ``any broker`` role."""
        draws, phases = super().draw(source), list[int]()
        while sum(phases) < (self.for_ or 0):
            base = self.up if len(phases) % 2 else self.down
            phases.append(round(source.uniform(base - self.jitter, base + self.jitter)))
        return draws | {"phases_ms": phases}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own times matter
        if self.for_ is not None and self.down + self.jitter >= self.for_:
            yield Problem(("down",), "the fault ends before its first `up` phase: shorten `down`, or use refuse")
