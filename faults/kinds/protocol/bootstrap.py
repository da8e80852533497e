"""Fault ``lose_bootstrap``: bootstrap addresses that are dead, or that lead to another broker.

Clients need a bootstrap address when they start, and when they have lost all brokers that they know (KIP-899,
KIP-1102), so let the fault overlap with ``kill_client``, or with one that cuts the clients off for long. In a plan with
this fault, the clients get bootstrap addresses that no broker advertises, one for each broker: the fault takes nothing
else from them. Their connections are accepted and then closed at once, or stay ``silent``. With ``to``, the addresses
lead to another broker, as a name does whose DNS entry has changed; established connections stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    Fault,
    Impact,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion, wait_until
from aftershock.faults.sections.cluster import RackName
from aftershock.faults.sections.document import Problem
from aftershock.faults.targets.values import BrokerId, Outcome
from aftershock.faults.wire_proxy.rules import rule_from

_ANSWER_MS = 2_000
_SILENCE_MS = 500
_HEALED_DEADLINE_MS = 10_000
BootstrapAddress = tuple[str, BrokerId]
"""Rack of the clients, and broker behind the address."""


@dataclass(eq=False)
class BootstrapInjection(Injection):
    """Rule of the wire proxy about ``addresses``, of which ``answering`` led to their broker before the fault."""

    rule: Mapping[str, Any]
    addresses: Sequence[BootstrapAddress]
    answering: Sequence[BootstrapAddress]
    asked: int = 0
    """Connections of the harness, which the rule counts, too."""

    async def inject(self) -> None:
        await run_to_completion(self.context.world.add_rule(self.rule))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Ask the addresses at the beginning and before the end; read the number of connections each second."""
        clock = self.context.clock
        until_us = until_us or clock.now_us()
        await self._ask(report)
        while clock.now_us() < until_us:
            await clock.sleep_until_us(min(clock.now_us() + READ_BACK_US, until_us))
            report(await self._counted())
        await self._ask(report)
        report(await self._counted())

    async def confirm_healed(self) -> None:
        """Wait until each address that answered before the fault leads to its broker again."""

        async def remaining() -> str | None:
            for rack, broker in self.answering:
                if await self.context.world.ask_bootstrap(rack, broker, _ANSWER_MS) != ("answered", broker):
                    return f"the bootstrap address of broker {broker} for rack {rack} does not lead to it"
            return None

        await wait_until(remaining, self.context.clock, _HEALED_DEADLINE_MS)

    async def _ask(self, report: Report) -> None:
        if not self.answering:
            return
        to, silent = self.rule.get("broker", -1), self.rule.get("connection") == "silent"
        wanted: tuple[Outcome, BrokerId | None] = ("silent" if silent else "closed", None)
        wanted = wanted if to < 0 else ("answered", BrokerId(to))
        seen = 0
        for rack, broker in self.answering:
            found = await self.context.world.ask_bootstrap(rack, broker, _SILENCE_MS if silent else _ANSWER_MS)
            self.asked += 2 if found[0] == "answered" else 1  # the second one identifies the broker
            seen += found == wanted
        what = (
            f"bootstrap addresses that lead to broker {to}" if to >= 0 else f"bootstrap addresses that are {wanted[0]}"
        )
        report(Witness(what, len(self.answering), seen, "addresses", len(self.answering), seen == len(self.answering)))

    async def _counted(self) -> Witness:
        counters = (await self.context.world.rules()).get(self.context.fault)
        if counters is None:
            return Witness("rules of the fault that are in force in the wire proxy", 1, 0, "rules", 1, ok=False)
        of_clients = max(0, counters["hit"] - self.asked)
        return Witness("connections of clients to the lost bootstrap addresses", 0, of_clients, "requests", 1, ok=True)


class LoseBootstrap(Fault):
    """Let bootstrap addresses of the clients be dead, or lead to another broker."""

    family = "protocol"
    band = Band("#dadaeb", "bootstrap")
    unavailable = "requests"
    proof = (
        "The harness connects to the addresses, which are closed, silent, or lead to the other broker. The wire proxy "
        "counts the connections of clients to them (read each second)."
    )
    remedy = "The rule is removed, silent connections are closed, and each address leads to its broker."
    needs = ("wire_proxy",)
    exposure_target = "requests"
    for_rule = "needed"
    allowance_ms = 3_000

    drawn = ("{brokers: [[1], [2], [1, 2]], connection: [closed, silent], for: 8s}", "{brokers: [[1]], to: 2, for: 8s}")
    drawn_with = "{kind: kill_client, client: CLIENT, op: OP, for: 3s}"
    kind: Literal["lose_bootstrap"] = "lose_bootstrap"
    brokers: Annotated[
        tuple[Annotated[StrictInt, Field(ge=0)], ...],
        Field(min_length=1, description="brokers whose bootstrap addresses are lost"),
    ]
    rack: RackName | None = Field(default=None, description="rack of the affected clients; by default all racks")
    connection: Literal["closed", "silent"] = Field(
        default="closed", description="what becomes of a connection to an address that leads to no broker"
    )
    to: Annotated[StrictInt, Field(ge=0)] | None = Field(
        default=None, description="broker to which the addresses lead, like a name whose DNS entry has changed"
    )

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.to is not None and self.connection == "silent":
            raise ValueError("an address that leads to a broker is not silent: remove `connection` or `to`")
        if self.to is not None and self.to in self.brokers:
            raise ValueError(f"the address of broker {self.to} leads there anyway: remove it from `brokers`")
        return self

    def impact(self) -> Impact:
        return "connections" if self.to is not None else "requests"

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        known = sorted(plan.cluster.broker_racks) if plan.cluster else []
        named = [(("brokers", place), broker) for place, broker in enumerate(self.brokers)]
        for where, broker in (*named, *((("to",), self.to),) * (self.to is not None)):
            if known and broker not in known:
                yield Problem(where, f"the cluster has no broker {broker}: use {', '.join(map(str, known))}")
        if known and self.to is None and {*known} <= {*self.brokers}:
            message = "no bootstrap address would be left for a client that starts: leave out a broker"
            yield Problem(("brokers",), message)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:  # noqa: ARG002 -- nothing is drawn
        world = context.world
        await world.rules()  # raises FaultError if the cluster has no wire proxy
        racks = sorted({link.source_rack for link in world.links() if link.channel == "client"})
        addresses = [
            (rack, BrokerId(broker))
            for rack in racks
            if self.rack in (None, rack)
            for broker in sorted({*self.brokers})
        ]
        answering = []
        for rack, broker in addresses:
            if await world.ask_bootstrap(rack, broker, _ANSWER_MS) == ("answered", broker):
                answering.append((rack, broker))
        if not addresses:
            raise FaultError(f"the cluster has no clients in rack {self.rack}; correct the fault's `rack`")
        rule: dict[str, Any] = {
            "name": context.fault,
            "do": self.kind,
            "brokers": sorted({*self.brokers}),
            "rack": self.rack,
        }
        rule |= {"connection": self.connection, "broker": -1 if self.to is None else self.to}
        document = rule_from(rule).as_json()
        undo = Undo("remove_rules", {"rules": [context.fault]})
        return BootstrapInjection(context, Targets(roles={"rule": document}), document, addresses, answering, undo=undo)
