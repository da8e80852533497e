"""A delay on links that changes as the compiler has drawn it: what ``latency`` and ``slow_rack`` share.

Toxiproxy's own ``jitter`` can't be reproduced, so all that changes is a schedule: one delay for every ``every`` of the
fault, and the toxics are updated as it says::

    jitter   delay +- jitter, uniform            ramp_to   in equal steps from delay to ramp_to
    spikes   drawn turns of a larger delay, neither the first nor the last

All of them go together; a spike replaces what it falls on.

Toxics of several faults on one link add up. An update lets one chunk that a toxic holds go early, and a delay is not
a queue: whatever comes meanwhile is late by the same time, all together. How it is witnessed stands in
``slowness.py``; a spike is probed as it comes.
"""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.faults.fault import Draws, Fault, Rest, Scene, Takes
from aftershock.faults.links import Stretch
from aftershock.faults.problem import Problem
from aftershock.faults.strikes.scheduled import PROBE_SLACK_MS, DelayStrike, Schedule
from aftershock.faults.units import Duration, format_duration

MOMENT_MS = 500  # a delay that still makes "moments" when it lies on both streams


class Spikes(BaseModel):
    """So many turns, drawn, of a larger delay; a turn is one ``every``, and the first and the last are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: Annotated[StrictInt, Field(ge=1, le=100)]
    delay: Annotated[Duration, Field(ge=1, le=600_000)]


class DelayedFault(Fault):
    """A fault that delays what flows over some links."""

    delay: Annotated[Duration, Field(ge=1, le=600_000)]
    jitter: Annotated[Duration, Field(description="the delay is drawn anew every `every`, so much around it")] = 0
    ramp_to: Annotated[Duration, Field(ge=1, le=600_000, description="the delay at the end")] | None = None
    spikes: Spikes | None = None
    every: Annotated[Duration, Field(ge=100, description="how long a delay lasts where it changes")] = 500

    @model_validator(mode="after")
    def _never_negative(self) -> Self:
        lowest = min(self.delay, self.ramp_to or self.delay)
        if self.jitter > lowest:
            sentence = f"jitter of {self.jitter}ms is more than the delay of {lowest}ms; make it smaller"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    @property
    def turns(self) -> int:
        """How many delays a schedule has."""
        return math.ceil((self.for_ or 0) / self.every)

    def draw(self, source: random.Random) -> dict[str, Any]:
        """``delay_ms``: one for every turn, where it changes; ``spikes``: which turns are; and ``any`` roles."""
        draws = super().draw(source)
        if not (self.jitter or self.ramp_to or self.spikes):
            return draws
        delays = [round(source.uniform(base - self.jitter, base + self.jitter)) for base in self._bases()]
        if self.spikes:
            inner = range(1, self.turns - 1)
            draws["spikes"] = sorted(source.sample(inner, min(self.spikes.count, len(inner))))
            delays = [self.spikes.delay if turn in draws["spikes"] else ms for turn, ms in enumerate(delays)]
        return draws | {"delay_ms": delays}

    def takes(self) -> Takes:
        """A short delay is nothing but late."""
        spike = self.spikes.delay if self.spikes else 0
        largest = max(self.delay + self.jitter, (self.ramp_to or 0) + self.jitter, spike)
        return "moments" if largest <= MOMENT_MS else "unknown"

    def problems(self, rest: Rest) -> Iterator[Problem]:  # noqa: ARG002 -- it is about its own times
        """Schedules that don't fit into the time the fault has."""
        if self.for_ is None:
            return
        if self.ramp_to is not None and self.turns < 2:  # noqa: PLR2004 -- from one delay to another
            yield Problem(("ramp_to",), f"a ramp takes two turns at least: make `every` {self.for_ // 2}ms or less")
        if self.spikes and self.spikes.count > self.turns - 2:
            sentence = f"there are {self.turns} turns, the first and the last without a spike: "
            yield Problem(("spikes", "count"), sentence + "ask for fewer, or for a shorter `every`")
        if self.spikes and 2 * self.spikes.delay + PROBE_SLACK_MS > self.every:
            sentence = "a spike ends with its turn, and what it holds is let go then: make `every` "
            room = format_duration(2 * self.spikes.delay + PROBE_SLACK_MS)
            yield Problem(("spikes", "delay"), sentence + f"{room} or longer, a round trip with such a delay")

    async def strike(
        self, scene: Scene, stretches: tuple[Stretch, ...], roles: Mapping[str, Any], draws: Draws
    ) -> DelayStrike:
        """The delay on these streams, which have been probed without it."""
        delays = tuple(draws.get("delay_ms") or (self.delay,))
        schedule = Schedule(delays, self.every, frozenset(draws.get("spikes") or ()))
        strike = DelayStrike(scene, stretches, schedule, roles)
        await strike.slowness.measure_before()
        return strike

    def _bases(self) -> list[float]:
        end, last = self.delay if self.ramp_to is None else self.ramp_to, max(1, self.turns - 1)
        return [self.delay + (end - self.delay) * turn / last for turn in range(self.turns)]
