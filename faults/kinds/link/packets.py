"""Faults ``packet_loss``, ``packet_delay``, ``packet_reorder``, ``packet_duplicate`` and ``packet_corrupt`` below TCP.

Toxiproxy's toxics act on the data of connections; these faults act on packets, and TCP notices. A lost packet costs a
round trip if others follow it, otherwise some 10 ms until TCP probes (RFC 8985), and 200 ms or more if the probe is
lost too (RFC 6298). TCP drops a corrupt packet by its checksum, so it costs the same. Duplicates and late packets cost
little: the receiver sorts them, and tells the sender of duplicates (DSACK, RFC 2883).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    OnLink,
    Report,
    report_each_second,
)
from aftershock.faults.kinds.link.base import SHARE, LinkFault, link_targets
from aftershock.faults.runtime.record import Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.units import Duration, Percent
from aftershock.faults.targets.links import LinkStream, resolve
from aftershock.faults.targets.values import PacketChange, PacketCounts

SEEN_MIN = 100
RETRANSMISSION_MS = 200  # the first time-out of a segment (RFC 6298); each further one is twice as long
REPEATS_MAX = 10  # after which the time-outs reach their limit of two minutes
UNLIKELY = 1e-6  # probability that a segment is lost so often, which a run of a million segments would show once
ROUND_TRIPS = 10  # late round trips that obligations allow for (results/checks/obligations/spans.py)
_MARGIN = 0.005
_DEVIATIONS = 4.0  # of a random number of packets, which one run in ten thousand exceeds
_COUNTED = {
    "RetransSegs": "TCP segments that were sent again by both ends of the links, as their kernels count",
    "TCPDSACKRecv": "duplicates of which a receiver told a sender of TCP, as the kernels of both ends count",
    "InCsumErrors": "TCP segments with a wrong checksum, as the kernels of both ends count",
    "TCPOFOQueue": "TCP segments that arrived before others that were sent earlier, as the kernels of both ends count",
}


@dataclass(eq=False)
class PacketInjection(Injection):
    """Change of packets of ``streams``; ``before`` are the counters before the fault, ``counter`` that of TCP."""

    streams: Sequence[LinkStream]
    change: PacketChange
    counter: str | None
    before: PacketCounts

    async def inject(self) -> None:
        names = [(stream.link.proxy, stream.stream) for stream in self.streams]
        await run_to_completion(self.context.world.change_packets(self.context.fault, names, self.change))

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the rules are in force each second, and at the end what was changed and what TCP noticed."""
        await report_each_second(self._read_back, report, self.context.clock, until_us)
        counts = await self.context.world.packet_counts(self.context.fault)
        share, changed = self.change.share, counts.changed / counts.seen if counts.seen else 0.0
        margin = max(_MARGIN, _DEVIATIONS * math.sqrt(share * (1 - share) / max(counts.seen, 1)))
        # only segments with data can be corrupted; the others count as seen
        fits = 0 < changed <= share + margin if self.change.action == "corrupt" else abs(changed - share) <= margin
        what = f"share of packets that were changed; {counts.changed} of {counts.seen}"
        ok = counts.seen >= SEEN_MIN and fits
        report(Witness(what, round(100 * share, 3), round(100 * changed, 3), "%", counts.seen, ok))
        if self.counter:
            noticed = counts.tcp[self.counter] - self.before.tcp[self.counter]
            report(Witness(_COUNTED[self.counter], 1, noticed, "segments", counts.seen, ok=noticed > 0))

    async def _read_back(self) -> Witness:
        present = await self.context.world.has_packet_rules(self.context.fault)
        return Witness("rules of the fault in the kernel", 1, float(present), "reads", 1, ok=present)


class PacketDelayInjection(PacketInjection):
    async def _read_back(self) -> Witness:
        """Measure the round trip of a request over a client's link, which each delayed direction prolongs."""
        links = [stream.link for stream in self.streams if stream.link.channel == "client"]
        if not links:
            return await super()._read_back()
        least_ms = (self.change.delay_ms - self.change.jitter_ms) * links.count(links[0])
        observed_ms = round(await self.context.world.probe_ms(links[0]), 1)
        what = f"round trip of a request over {links[0].proxy}"
        return Witness(what, least_ms, observed_ms, "ms", 1, ok=observed_ms >= SHARE * least_ms)


class PacketFault(LinkFault):
    """Base of faults on the packets of links."""

    unavailable = "moments"
    needs = ("packets",)
    proof = "The kernel lists the rules (read each second). Counters show the share asked for, and that TCP noticed."
    remedy = "The rules are removed from the kernel. Connections stay open."
    exclusive_resources = (ExclusiveResource("packets", "links"),)
    allowance_ms = 1_000
    counter: ClassVar[str | None]
    injection: ClassVar[type[PacketInjection]] = PacketInjection

    @abstractmethod
    def change(self) -> PacketChange:
        """Return what happens to the packets."""

    def delay_ms(self) -> int:
        """Return the largest delay of packets in both directions; of lost packets, a tenth of the longest silence."""
        change = self.change()
        if change.action in ("drop", "corrupt"):
            repeats = min(REPEATS_MAX, math.ceil(math.log(UNLIKELY) / math.log(change.share)))
            return int(RETRANSMISSION_MS * (2**repeats - 1)) // ROUND_TRIPS
        return 2 * (change.delay_ms + change.jitter_ms)

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        if not world.has_packet_control():
            raise FaultError(
                "packets of this cluster can't be changed: launch it with `cluster: {packets: true}`, or name the "
                "containers of an attached cluster under `attach.containers`"
            )
        streams = await resolve(self.link, world, draws, by_packets=True)
        targets = link_targets(streams, await self.target_roles(streams, world))
        before = await world.packet_counts(context.fault)
        undo = Undo("remove_packet_rules", {"fault": context.fault})
        return self.injection(context, targets, streams, self.change(), self.counter, before, undo=undo)


class PacketLoss(PacketFault):
    """Drop a random share of the packets of some links, which TCP then sends again."""

    band = Band("#17becf", "packet loss")
    counter = "RetransSegs"

    drawn = ("{link: CLIENT_LINK, share: [1%, 5%]}", "{link: NODE_LINK, share: [1%, 5%]}")
    on_link = OnLink("open", "accepted, some late", "sent again by TCP", "some late responses")
    kind: Literal["packet_loss"] = "packet_loss"
    share: Annotated[Percent, Field(description="share of the packets that is lost, at random")]

    @field_validator("share")
    @classmethod
    def _not_all(cls, share: float) -> float:
        if share >= 1:
            raise ValueError("a link that loses all packets is cut: use the kind `cut`")
        return share

    def change(self) -> PacketChange:
        return PacketChange("drop", self.share)


class PacketDelay(PacketFault):
    """Delay all packets of some links in one or both directions."""

    band = Band("#9edae5", "packet delay")
    proof = "The round trip of a request is as much longer (read each second). All packets were delayed, by counters."
    counter = None
    injection = PacketDelayInjection

    drawn = ("{link: CLIENT_LINK, delay: [20ms, 100ms]}",)
    on_link = OnLink("open", "accepted", "sorted by TCP", "late responses")
    kind: Literal["packet_delay"] = "packet_delay"
    delay: Annotated[Duration, Field(ge=5, le=10_000, description="how much later each packet arrives")]
    jitter: Annotated[Duration, Field(description="largest random difference from `delay`, at most half of it")] = 0

    @field_validator("jitter")
    @classmethod
    def _positive(cls, jitter: int, info: ValidationInfo) -> int:
        if 2 * jitter > info.data.get("delay", 0):
            raise ValueError("a jitter of more than half the delay can't be told from a busy host: lower `jitter`")
        return jitter

    def change(self) -> PacketChange:
        return PacketChange("delay", 1.0, self.delay, self.jitter)


class PacketReorder(PacketFault):
    """Let a random share of the packets of some links arrive later than packets that were sent after them."""

    band = Band("#c49c94", "packet reorder")
    counter = "TCPOFOQueue"

    drawn = ("{link: CLIENT_LINK, share: [1%, 10%]}",)
    on_link = OnLink("open", "accepted", "sorted by TCP", "late responses")
    kind: Literal["packet_reorder"] = "packet_reorder"
    share: Annotated[Percent, Field(le=0.5, description="share of the packets that arrive late, at random")]
    delay: Annotated[Duration, Field(ge=5, le=1_000, description="how much later these packets arrive")] = 10

    def change(self) -> PacketChange:
        return PacketChange("delay", self.share, self.delay)


class PacketDuplicate(PacketFault):
    """Let a random share of the packets of some links arrive twice."""

    band = Band("#dbdb8d", "packet duplicate")
    counter = "TCPDSACKRecv"

    drawn = ("{link: CLIENT_LINK, share: [1%, 10%]}",)
    on_link = OnLink("open", "accepted", "sorted by TCP", "late responses")
    kind: Literal["packet_duplicate"] = "packet_duplicate"
    share: Annotated[Percent, Field(description="share of the packets that arrive twice, at random")]

    def change(self) -> PacketChange:
        return PacketChange("duplicate", self.share)


class PacketCorrupt(PacketFault):
    """Flip a bit in a random share of the packets with data, which TCP drops by their checksum and sends again."""

    band = Band("#f7b6d2", "packet corrupt")
    counter = "InCsumErrors"

    drawn = ("{link: CLIENT_LINK, share: [1%, 5%]}",)
    on_link = OnLink("open", "accepted, some late", "sent again by TCP", "some late responses")
    kind: Literal["packet_corrupt"] = "packet_corrupt"
    share: Annotated[Percent, Field(le=0.5, description="share of the packets that are corrupted, at random")]

    def change(self) -> PacketChange:
        return PacketChange("corrupt", self.share)
