"""Fault ``misroute``, which swaps two client links, so that a client that dials one broker reaches the other.

The Toxiproxy proxies of the two links exchange their upstreams, which closes every connection over the links. If a
client names the broker that it expects (ApiVersions v5, KIP-1242), the other broker rejects the connection. To witness
the swap, the harness asks each link's broker for the settings of a broker id, because brokers return settings only for
their own id.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    FieldPath,
    Injection,
    InjectionContext,
    PlanContext,
)
from aftershock.faults.kinds.link.base import LinkFault, LinkInjection
from aftershock.faults.kinds.probing import links_to_running_brokers
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.links import ToBroker, parse
from aftershock.faults.targets.links import resolve as links_of
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, Link

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
