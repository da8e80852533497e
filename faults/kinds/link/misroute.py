"""``misroute``: two links of clients are crossed, so that who dials one broker finds the other.

Their proxies lead where the other led, and every connection through them is closed as they turn. A client that goes by
addresses sends to a broker that does not lead what it asks for; one that says whom it means (ApiVersions v5, KIP-1242)
is turned away. The witness asks whoever answers for its own settings, which a broker gives for its own id only, so the
proof comes over Kafka's protocol and through the crossed link itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    FieldPath,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
)
from aftershock.faults.kinds.link.base import LinkFault, LinkInjection, manned, targets_of
from aftershock.faults.plan.document import Problem
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.targets.links import ToBroker, parse
from aftershock.faults.targets.links import resolve as links_of
from aftershock.faults.targets.roles import RoleText, resolve
from aftershock.faults.targets.values import BrokerId, Link

BACK_DEADLINE_MS = 10_000
PROBE_SLACK_MS = 300


class MisrouteInjection(LinkInjection):
    """The proxies of some links, led to ``wanted``. ``others``: the broker that should be found behind each."""

    measuring_us = PROBE_SLACK_MS * 1000

    def __init__(
        self,
        context: InjectionContext,
        pairs: Sequence[tuple[Link, Link]],
        upstreams: Mapping[str, str],
        roles: Mapping[str, Any],
    ) -> None:
        self.context = context
        crossed = [*pairs, *((other, one) for one, other in pairs)]
        self.others = {link: other.broker for link, other in crossed}
        self.wanted = {link.proxy: upstreams[other.proxy] for link, other in crossed}
        self.targets = targets_of(self.others, roles)
        before = [[proxy, upstreams[proxy]] for proxy in self.targets.links]
        self.undo = Undo("redirect_proxies", {"upstreams": before})

    async def inject(self) -> None:
        """Turn every proxy."""
        for proxy in self.targets.links:
            await run_to_completion(self.context.world.redirect(proxy, self.wanted[proxy]))

    async def measure(self) -> Witness:
        """Behind each link whose other broker runs, that other one must answer."""
        seen = {link: await self._behind(link) for link in await self._manned()}
        told = {link: node for link, node in seen.items() if node is not None}
        right = sum(node == self.others[link] for link, node in told.items())
        what = "links behind which the other broker answers, by its own account"
        if not told:
            what = "nobody answers behind these links; the proxies read back are the witness"
        return Witness(what, len(told), right, "links", len(told), ok=right == len(told))

    async def read_back(self) -> Witness:
        """How many of the proxies lead where they were turned, as Toxiproxy has it."""
        now = await self.context.world.upstreams()
        astray = [proxy for proxy, upstream in self.wanted.items() if now.get(proxy) != upstream]
        what = "proxies crossed, read back from Toxiproxy" + (f"; {astray[0]} is not" if astray else "")
        asked = len(self.wanted)
        return Witness(what, asked, asked - len(astray), "proxies", asked, not astray)

    async def confirm_healed(self) -> None:
        """Behind each link whose broker runs, its own broker answers."""
        await wait_until(self._astray, self.context.clock, BACK_DEADLINE_MS)

    async def _astray(self) -> str | None:
        for link in await manned(list(self.others), self.context):
            if (node := await self._behind(link)) not in (None, link.broker):
                return f"behind {link.proxy} broker {node} answers"
        return None

    async def _manned(self) -> list[Link]:
        return [link for link, broker in self.others.items() if await self.context.world.state(broker) == "running"]

    async def _behind(self, link: Link) -> BrokerId | None:
        try:
            return await self.context.world.node_behind(link)
        except FaultError:
            return None  # another fault sits on the link


class Misroute(LinkFault):
    """Cross a client link with that of the same rack to another broker."""

    band: ClassVar[Band] = Band("#637939", "misroute")
    proof: ClassVar[str] = "the node id that answers behind each link, over Kafka's protocol; the proxies, read back"
    remedy: ClassVar[str] = "the proxies lead where they did, and the right broker answers behind each"
    closes_connections: ClassVar[bool] = True
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("upstream", "links"),)
    allowance_ms: ClassVar[int] = 2_000

    kind: Literal["misroute"] = "misroute"
    with_: Annotated[RoleText, Field(alias="with", description="the broker whose link it is crossed with")]

    @model_validator(mode="after")
    def _one_clients_link(self) -> Self:
        selector = parse(self.link)
        if not isinstance(selector, ToBroker) or selector.channel != "client" or not selector.role or selector.both:
            sentence = "a misroute crosses a client's link to one broker: say `client(a) -> broker(1)`"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def impact(self) -> Impact:
        """Whoever answers leads nothing of what is asked, and may know yesterday's leaders."""
        return "unknown"

    def roles(self) -> dict[FieldPath, str]:
        """Both brokers."""
        return super().roles() | {("with",): self.with_}

    def links(self) -> dict[FieldPath, str]:
        """The link, and the one it is crossed with."""
        source = self.link.partition("->")[0]
        return super().links() | {("with",): f"{source}-> broker({self.with_})"}

    def problems(self, plan: PlanContext) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own two ends
        """A link crossed with itself."""
        if super().roles().get(("link",)) == self.with_ and "any" not in self.with_:
            yield Problem(("with",), "that is the broker at the end of `link` itself: name another")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        """FaultError if there is no such link, if both lead to one broker, or if they are crossed already."""
        stretches = await links_of(self.link, context.world, draws)
        other = await resolve(self.with_, context.world, draws, "with")
        links = {(link.source_rack, link.broker): link for link in context.world.links() if link.channel == "client"}
        ones = [stretch.link for stretch in stretches]
        if other == ones[0].broker or (ones[0].source_rack, other) not in links:
            raise FaultError(f"{self.with_} is broker {other}, and {self.link} can't be crossed with a link to it")
        pairs = [(one, links[one.source_rack, other]) for one in ones]
        roles = await self.described(stretches, context.world) | {"with": other}
        return MisrouteInjection(context, pairs, await context.world.upstreams(), roles)
