"""Faults ``refuse``, ``flap`` and ``misroute`` on the Toxiproxy proxies of some links.

``refuse`` disables the link's proxy in Toxiproxy, so client and broker notice at once, unlike with ``cut``. A client's
new connections are accepted and closed at once, because Docker forwards the port; on a cluster with a wire proxy they
are refused (ECONNREFUSED), like those to a host whose broker does not run. Clients treat these differently. The link
selector ``a -> b`` disables the proxies that clients and nodes of rack ``a`` dial; ``a <-> b`` also disables the
proxies that rack ``b`` dials. ``flap`` alternates phases with disabled proxies, of the duration ``down``, and phases
with enabled proxies, of the duration ``up``; with ``jitter`` the compiler draws the duration of each phase.

``misroute`` swaps two client links, so that a client that dials one broker reaches the other: the proxies of the two
links exchange their upstreams, which closes every connection over the links. If a client names the broker that it
expects (ApiVersions v5, KIP-1242), the other broker rejects the connection. To witness the swap, the harness asks each
link's broker for the settings of a broker id, because brokers return settings only for their own id.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    FieldPath,
    Injection,
    InjectionContext,
    OnLink,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.link.base import LinkFault, LinkInjection, link_targets
from aftershock.faults.kinds.probing import answering_links, links_to_running_brokers, probe_all
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until, with_timeout
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.links import ToBroker, parse
from aftershock.faults.targets.links import resolve as links_of
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, Link

REFUSAL_MS = 200  # upper bound; a refusal takes a ms or two
PHASE_MS_MIN = 200  # a phase must be long enough for a probe


@dataclass(eq=False)
class RefuseInjection(LinkInjection):
    """Disabled proxies of links; under ``flap`` the proxies are disabled and enabled in turn for ``phases_ms``."""

    measuring_us = REFUSAL_MS * 1000
    reachable: Sequence[Link]
    phases_ms: Sequence[int] = ()

    async def inject(self) -> None:
        for proxy in self.targets.links:
            await run_to_completion(self.context.world.disable(proxy))

    async def measure(self) -> Witness:
        """Return a witness that the links that answered before the fault refuse connections."""
        closed = (await probe_all(self.reachable, self.context)).count("closed")
        asked = len(self.reachable)
        what = "links on which a connection is refused or closed at once"
        if not asked:
            what = "no link answered before the fault, so Toxiproxy's list of disabled proxies is the only evidence"
        return Witness(what, asked, closed, "links", asked, ok=closed == asked)

    async def read_back(self) -> Witness:
        disabled, proxies = await self.context.world.disabled(), self.targets.links
        enabled = [proxy for proxy in proxies if proxy not in disabled]
        what = "proxies that are disabled, read back from Toxiproxy" + (f"; {enabled[0]} is enabled" if enabled else "")
        return Witness(what, len(proxies), len(proxies) - len(enabled), "proxies", len(proxies), not enabled)


class ProxyFault(LinkFault):
    """Base of faults that disable the Toxiproxy proxies of some links."""

    remedy = "The proxies are enabled, and every link answers again."
    closes_connections = True
    exclusive_resources = (ExclusiveResource("proxy", "links"), ExclusiveResource("traffic", "links", by_plan=False))
    allowance_ms = 1_000
    injection: ClassVar[type[RefuseInjection]] = RefuseInjection

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        streams = [s for s in await links_of(self.link, context.world, draws) if s.stream == "upstream"]
        disabled = await context.world.disabled()
        if conflicts := sorted(stream.link.proxy for stream in streams if stream.link.proxy in disabled):
            raise FaultError(f"the proxy {conflicts[0]} is disabled already; start this fault after the other one")
        targets = link_targets(streams, await self.target_roles(streams, context.world))
        undo = Undo("enable_proxies", {"proxies": list(targets.links)})
        reachable = await answering_links((stream.link for stream in streams), context)
        return self.injection(context, targets, reachable, draws.get("phases_ms", ()), undo=undo)


class Refuse(ProxyFault):
    """Close the connections over some links at once and refuse new connections."""

    band = Band("#e377c2", "refuse")
    unavailable = "links"
    proof = "Links that answered before refuse connections. Toxiproxy lists the proxies as disabled (read each second)."
    drops_traffic = True

    drawn = ("{link: CLIENT_LINK}",)
    on_link = OnLink("closed at once", "refused", "lost", "closed connections, then refusals")
    kind: Literal["refuse"] = "refuse"


class FlapInjection(RefuseInjection):
    injected = False  # a rehearsal only observes

    async def inject(self) -> None:
        await super().inject()
        self.injected = True

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Disable and enable the proxies in turn, and report a witness after each pair of phases."""
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
                what = "checks in which a proxy accepted connections (phase `up`) or refused connections (phase `down`)"
                what = what if checked else "the fault ended before the first check of a proxy"
                report(Witness(what, checked, expected, "looks", checked, ok=checked == expected))
                checked = expected = 0
            if phase_us == ends_us:
                return


class Flap(ProxyFault):
    """Close the connections over some links and refuse new connections, repeatedly."""

    band = Band("#f7b6d2", "flap")
    proof = "Links that answered before refuse connections in each `down` phase and answer in each `up` phase."
    injection = FlapInjection

    drawn = ("{link: CLIENT_LINK, down: [300ms, 1s], up: [300ms, 1s], jitter: [0s, 100ms]}",)
    on_link = OnLink("closed in each `down` phase", "refused in each `down` phase", "lost", "repeated disconnects")
    kind: Literal["flap"] = "flap"
    down: Annotated[Duration, Field(ge=PHASE_MS_MIN, description="duration of phases that refuse connections")]
    up: Annotated[Duration, Field(ge=PHASE_MS_MIN, description="duration of phases that accept connections")]
    jitter: Annotated[Duration, Field(description="largest random deviation of a phase from `down` or `up`")] = 0

    @model_validator(mode="after")
    def _never_too_short(self) -> Self:
        if min(self.down, self.up) - self.jitter < PHASE_MS_MIN:
            raise ValueError(f"`down` and `up` minus `jitter` must be at least {PHASE_MS_MIN}ms: lower `jitter`")
        return self

    # the impact is unknown: data that crosses while connections are accepted may keep a leader in place

    def draw(self, source: random.Random) -> dict[str, Any]:
        """Draw the fault's random choices, including ``phases_ms``, the durations of the phases of ``flap``."""
        draws, phases = super().draw(source), list[int]()
        while sum(phases) < (self.for_ or 0):
            base = self.up if len(phases) % 2 else self.down
            phases.append(round(source.uniform(base - self.jitter, base + self.jitter)))
        return draws | {"phases_ms": phases}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own times matter
        if self.for_ is not None and self.down + self.jitter >= self.for_:
            yield Problem(("down",), "the fault ends before its first `up` phase: lower `down`, or use `refuse`")


RESTORED_DEADLINE_MS = 10_000
PROBE_SLACK_MS = 300


@dataclass(eq=False)
class MisrouteInjection(LinkInjection):
    """Proxies redirected to the addresses ``upstreams``; each link then leads to its broker in ``expected``."""

    measuring_us = PROBE_SLACK_MS * 1000
    expected: Mapping[Link, BrokerId]
    upstreams: Mapping[str, str]

    async def inject(self) -> None:
        for proxy in self.targets.links:
            await run_to_completion(self.context.world.redirect(proxy, self.upstreams[proxy]))

    async def measure(self) -> Witness:
        """Return a witness that each link leads to the other broker; links to a broker that doesn't run are omitted."""
        state = self.context.world.state
        running = [link for link, broker in self.expected.items() if await state(broker) == "running"]
        nodes = {link: await self._node_behind(link) for link in running}
        answered = {link: node for link, node in nodes.items() if node is not None}
        correct = sum(node == self.expected[link] for link, node in answered.items())
        what = "swapped links over which the other broker answers with its node id"
        if not answered:
            what = "no broker answers over the swapped links, so the proxies listed by Toxiproxy are the only evidence"
        return Witness(what, len(answered), correct, "links", len(answered), ok=correct == len(answered))

    async def read_back(self) -> Witness:
        current = await self.context.world.upstreams()
        wrong = [proxy for proxy, upstream in self.upstreams.items() if current.get(proxy) != upstream]
        what = "proxies that lead to the swapped broker, read back from Toxiproxy"
        what += f"; {wrong[0]} has another upstream" if wrong else ""
        count = len(self.upstreams)
        return Witness(what, count, count - len(wrong), "proxies", count, not wrong)

    async def confirm_healed(self) -> None:
        """Wait until each swapped link to a running broker leads to its own broker again."""

        async def swapped() -> str | None:
            for link in await links_to_running_brokers(self.expected, self.context):
                if (node := await self._node_behind(link)) not in (None, link.broker):
                    return f"broker {node} answers behind {link.proxy}"
            return None

        await wait_until(swapped, self.context.clock, RESTORED_DEADLINE_MS)

    async def _node_behind(self, link: Link) -> BrokerId | None:
        try:
            return await self.context.world.node_behind(link)
        except FaultError:
            return None  # another fault affects the link


class Misroute(LinkFault):
    """Swap a client link with the link from the same rack to another broker."""

    band = Band("#637939", "misroute")
    proof = "The other broker answers over each link. Toxiproxy lists the swapped upstreams (read each second)."
    remedy = "The proxies lead to their own brokers again, and the right broker answers over each link."
    closes_connections = True
    exclusive_resources = (ExclusiveResource("upstream", "links"),)
    allowance_ms = 2_000

    drawn = ('{link: LEADER_LINK, with: "any broker except leader of TOPIC/0"}',)
    kind: Literal["misroute"] = "misroute"
    with_: Annotated[RoleText, Field(alias="with", description="the broker whose link is swapped with `link`")]

    @model_validator(mode="after")
    def _client_link_to_one_broker(self) -> Self:
        selector = parse(self.link)
        if not isinstance(selector, ToBroker) or selector.channel != "client" or not selector.role or selector.both:
            raise ValueError("a misroute swaps a client's link to one broker: use `client(a) -> broker(1)`")
        return self

    # the impact is unknown: the other broker leads other partitions, and its metadata may be outdated

    def roles(self) -> dict[FieldPath, str]:
        return super().roles() | {("with",): self.with_}

    def links(self) -> dict[FieldPath, str]:
        source = self.link.partition("->")[0]
        return super().links() | {("with",): f"{source}-> broker({self.with_})"}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- only its own two ends matter
        if super().roles().get(("link",)) == self.with_ and "any" not in self.with_:
            yield Problem(("with",), "`with` is the broker at the end of `link` itself: use another broker")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        streams = await links_of(self.link, context.world, draws)
        broker = await resolve(self.with_, context.world, draws, "with")
        links = {(link.source_rack, link.broker): link for link in context.world.links() if link.channel == "client"}
        own = [stream.link for stream in streams]
        if broker == own[0].broker or (own[0].source_rack, broker) not in links:
            raise FaultError(
                f"{self.link} can't be swapped with a link to {self.with_} (broker {broker}): it leads to that broker "
                "itself, or its rack has no link to that broker; name another broker in `with`"
            )
        partners = {link: links[link.source_rack, broker] for link in own}
        partners |= {partner: link for link, partner in partners.items()}
        roles = await self.target_roles(streams, context.world) | {"with": broker}
        targets = Targets(links=tuple(sorted(link.proxy for link in partners)), roles=roles)
        before = await context.world.upstreams()
        undo = Undo("redirect_proxies", {"upstreams": [[proxy, before[proxy]] for proxy in targets.links]})
        expected = {link: partner.broker for link, partner in partners.items()}
        upstreams = {link.proxy: before[partner.proxy] for link, partner in partners.items()}
        return MisrouteInjection(context, targets, expected, upstreams, undo=undo)
