"""Fault ``packet_loss``, which drops a share of the packets of some links below TCP.

Toxiproxy's toxics act on the data of connections; here the kernel drops packets, and TCP notices and sends them again.
A lost packet costs a round trip if others follow it, otherwise some 10 ms until TCP probes (RFC 8985), and 200 ms or
more if the probe is lost too (RFC 6298).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.link.base import LinkFault, link_targets
from aftershock.faults.plan.units import Percent
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.targets.links import LinkStream, resolve
from aftershock.faults.targets.values import PacketCounts

SEEN_MIN = 100
_MARGIN = 0.005
_DEVIATIONS = 4.0  # of a random number of losses, which one run in ten thousand exceeds


@dataclass(eq=False)
class PacketLossInjection(Injection):
    """Loss of a ``share`` of the packets of ``streams``; ``before`` are the kernel's counters before the fault."""

    streams: Sequence[LinkStream]
    share: float
    before: PacketCounts

    async def inject(self) -> None:
        names = [(stream.link.proxy, stream.stream) for stream in self.streams]
        await run_to_completion(self.context.world.drop_packets(self.context.fault, names, self.share))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the rules are in force each second, and at the end what share of the packets was lost."""
        await report_each_second(self._read_back, report, self.context.clock, until_us)
        counts = await self.context.world.packet_counts(self.context.fault)
        lost = counts.dropped / counts.seen if counts.seen else 0.0
        margin = max(_MARGIN, _DEVIATIONS * math.sqrt(self.share * (1 - self.share) / max(counts.seen, 1)))
        ok = counts.seen >= SEEN_MIN and abs(lost - self.share) <= margin
        what = f"share of lost packets, as the kernel counts; {counts.dropped} of {counts.seen}"
        report(Witness(what, round(100 * self.share, 3), round(100 * lost, 3), "%", counts.seen, ok))
        again = counts.retransmitted - self.before.retransmitted
        what = "TCP segments that were sent again by both ends of the links, as their kernels count"
        report(Witness(what, 1, again, "segments", counts.seen, ok=again > 0))

    async def _read_back(self) -> Witness:
        present = await self.context.world.has_packet_rules(self.context.fault)
        return Witness("rules of the fault in the kernel", 1, float(present), "reads", 1, ok=present)


class PacketLoss(LinkFault):
    """Drop a random share of the packets of some links, which TCP then sends again."""

    band = Band("#17becf", "packet loss")
    proof = "The kernel lists the rules (read each second) and counts the share asked for. TCP sent segments again."
    remedy = "The rules are removed from the kernel. Connections stay open."
    needs = ("packets",)
    exclusive_resources = (ExclusiveResource("packets", "links"),)
    allowance_ms = 1_000

    kind: Literal["packet_loss"] = "packet_loss"
    share: Annotated[Percent, Field(description="share of the packets that is lost, at random")]

    @field_validator("share")
    @classmethod
    def _not_all(cls, share: float) -> float:
        if share >= 1:
            raise ValueError("a link that loses all packets is cut: use the kind `cut`")
        return share

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        if not world.has_packet_control():
            raise FaultError("packets of this cluster can't be dropped: launch it with `cluster: {packets: true}`")
        streams = await resolve(self.link, world, draws)
        targets = link_targets(streams, await self.target_roles(streams, world))
        before = await world.packet_counts(context.fault)
        undo = Undo("remove_packet_rules", {"fault": context.fault})
        return PacketLossInjection(context, targets, streams, self.share, before, undo=undo)
