"""Faults ``clock_bump``, ``clock_skew`` and ``clock_strobe``, which move the wall clock of one broker.

Monotonic time is untouched, as when an administrator or a time server sets a clock. Kafka uses the wall clock for the
append time of records, for retention and for limits on timestamps (``message.timestamp.after.max.ms``); sessions and
timeouts use monotonic time. A clock that is ahead by more than a topic's retention makes the broker delete the topic's
records at its next check, and no heal restores them.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import (
    READ_BACK_US,
    Band,
    Draws,
    ExclusiveResource,
    Injection,
    InjectionContext,
    PlanContext,
    Report,
)
from aftershock.faults.kinds.kafka.topics import ERASES
from aftershock.faults.kinds.process.base import NodeFault, led_partitions, node_duties
from aftershock.faults.runtime.record import Targets, Undo, Witness
from aftershock.faults.runtime.waiting import run_to_completion
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration, Shift
from aftershock.faults.targets.roles import brokers_of, resolve
from aftershock.faults.targets.values import BrokerId, ClockShift
from aftershock.faults.targets.world import World

MARGIN_MS = 100.0  # a request on a busy host takes as long, and its duration limits how exactly a clock can be read
_MARGIN_SHARE = 0.05
_STROBE_READS = 12


@dataclass(eq=False)
class ClockInjection(Injection):
    """Shift of the clock of broker ``victim``; ``since_us`` is the time of the injection, None in a rehearsal."""

    victim: BrokerId
    shift: ClockShift
    since_us: int | None = None

    async def inject(self) -> None:
        await run_to_completion(self.context.world.set_clock(self.victim, self.shift))
        self.since_us = self.context.clock.now_us()

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Read the broker's clock each second; a clock with another rate needs a second until that can be seen."""
        clock = self.context.clock
        if self.shift.rate != 1:
            await clock.sleep_until_us(clock.now_us() + READ_BACK_US)
        while True:
            report(await self._read_back())
            now_us = clock.now_us()
            if until_us is None or now_us >= until_us:
                return
            await clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def _read_back(self) -> Witness:
        world, clock = self.context.world, self.context.clock
        if not self.shift.strobe_ms:
            lasted_us = READ_BACK_US if self.since_us is None else clock.now_us() - self.since_us
            asked_ms = self.shift.offset_ms + (self.shift.rate - 1) * lasted_us / 1000
            error_ms = await world.clock_error_ms(self.victim)
            return self._witness(asked_ms, error_ms, 1, "ms ahead")
        errors_ms = []
        for _ in range(_STROBE_READS):
            errors_ms.append(await world.clock_error_ms(self.victim))
            # neighbouring reads are in different halves of the strobe
            await clock.sleep_until_us(clock.now_us() + round(self.shift.every_ms * 1000 * 0.7))
        return self._witness(2 * self.shift.strobe_ms, max(errors_ms) - min(errors_ms), len(errors_ms), "ms apart")

    def _witness(self, asked_ms: float, observed_ms: float, n: int, unit: str) -> Witness:
        ok = abs(observed_ms - asked_ms) <= MARGIN_MS + _MARGIN_SHARE * abs(asked_ms)
        what = f"clock of broker {self.victim}, by the append time of a record"
        return Witness(what, round(asked_ms, 1), round(observed_ms, 1), unit, n, ok)


class ClockFault(NodeFault):
    """Base of faults on the wall clock of one broker."""

    family = "clock"
    needs = ("clocks",)
    proof = "The append time of a record on the broker differs from this host's time as asked (read each second)."
    remedy = "The broker's clock agrees with this host's."
    permanent_effect = "Records that retention deletes while a clock is ahead are gone."
    drops_traffic = False
    exclusive_resources: ClassVar[tuple[ExclusiveResource, ...]] = (ExclusiveResource("clock", "brokers"),)
    allowance_ms = 2_000

    @abstractmethod
    def shift(self) -> ClockShift:
        """Return how the clock differs from true time while the fault lasts."""

    @property
    def ahead_ms(self) -> int:
        """Largest time by which the clock is ahead while the fault lasts."""
        shift = self.shift()
        return shift.offset_ms + shift.strobe_ms + round((shift.rate - 1) * (self.for_ or 0))

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().surprises(plan)
        cluster = plan.cluster
        if cluster and len(cluster.node_racks if not cluster.controllers else ()) == 1:
            yield Problem(("broker",), "the only broker is the only controller too, so its time is the cluster's")

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        world = context.world
        if not world.has_clocks():
            raise FaultError("the clocks of this cluster can't be moved: launch it with `cluster: {clocks: true}`")
        victim = await resolve(self.broker, world, draws, "broker")
        if victim not in brokers_of(world):
            raise FaultError(f"node {victim} is an isolated controller, whose clock can't be read; use a broker")
        led = await led_partitions(victim, world)
        roles: dict[str, Any] = {"asked": self.broker, **await node_duties(victim, led, world)}
        expired = await self._expired_topics(victim, world)
        roles |= {"permits": ERASES} if expired else {}
        targets = Targets(brokers=(victim,), topics=tuple(expired), roles=roles)
        undo = Undo("restore_clock", {"broker": victim})
        return ClockInjection(context, targets, victim, self.shift(), undo=undo)

    async def _expired_topics(self, victim: BrokerId, world: World) -> list[str]:
        """Return the topics on the broker whose records expire, because the clock is ahead by their retention."""
        topics = {state.topic for state in await world.partitions() if victim in state.replicas}
        expired = []
        for topic in sorted(topics):
            settings = {name: setting.value for name, setting in (await world.config("topic", topic)).items()}
            retention_ms = int(settings.get("retention.ms") or -1)
            if "delete" in (settings.get("cleanup.policy") or "") and 0 <= retention_ms <= self.ahead_ms:
                expired.append(topic)
        return expired


class ClockBump(ClockFault):
    """Move a broker's wall clock forward or back, and back again at the end."""

    band = Band("#1b9e77", "clock bump")

    drawn = ('{broker: BROKER, by: [5s, 1h, "-1h"]}',)
    kind: Literal["clock_bump"] = "clock_bump"
    by: Annotated[Shift, Field(description="how far the clock is ahead")]

    @field_validator("by")
    @classmethod
    def _moves(cls, by: int) -> int:
        if abs(by) < 2 * MARGIN_MS:
            raise ValueError(f"a clock that is moved by less than {2 * MARGIN_MS:.0f}ms can't be told from a busy host")
        return by

    def shift(self) -> ClockShift:
        return ClockShift(offset_ms=self.by)


class ClockSkew(ClockFault):
    """Let a broker's wall clock run fast or slow, and set it right at the end."""

    band = Band("#66a61e", "clock skew")

    drawn = ("{broker: BROKER, rate: [0.5, 1.5]}",)
    kind: Literal["clock_skew"] = "clock_skew"
    rate: Annotated[float, Field(ge=0.1, le=100, description="seconds of the broker's clock in a second")]

    @field_validator("rate")
    @classmethod
    def _drifts(cls, rate: float) -> float:
        if abs(rate - 1) < 0.2:  # noqa: PLR2004
            raise ValueError("a clock that errs by less than 0.2 s in a second can't be told from a busy host at once")
        return rate

    def shift(self) -> ClockShift:
        return ClockShift(rate=self.rate)


class ClockStrobe(ClockFault):
    """Move a broker's wall clock forward and back again and again."""

    band = Band("#a6761d", "clock strobe")

    drawn = ("{broker: BROKER, by: 5s}",)
    kind: Literal["clock_strobe"] = "clock_strobe"
    by: Annotated[Duration, Field(ge=200, description="how far the clock is ahead and behind in turn")]
    every: Annotated[Duration, Field(ge=20, le=60_000, description="time between two jumps")] = 100

    def shift(self) -> ClockShift:
        return ClockShift(strobe_ms=self.by, every_ms=self.every)
