"""What this host can measure just now: how late its timers fire, and what a probe through a quiet link costs.

Taken before the load of each run and kept in ``run.json``. An SLO on latency that is finer than the timers are late
would judge the host, so it is refused before anything is sent.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median, quantiles

from aftershock.errors import FaultError, PlanError
from aftershock.faults.record import Clock
from aftershock.faults.timeline import Objective
from aftershock.faults.world import Linked
from aftershock.harness.rundir import RunDir
from aftershock.results.slo import Measure, parse

TIMERS, TIMER_US = 100, 5_000
PROBES = 3


@dataclass(frozen=True)
class Noise:
    """``timer_late_ms``: the 90th percentile of ``timers``; ``probe_ms``: the median of ``probes``, None without."""

    timer_late_ms: float
    timers: int
    probe_ms: float | None
    probes: int


async def calibrate(home: RunDir, objectives: Iterable[Objective], world: Linked, clock: Clock) -> None:
    """Measure, write down, and refuse what can't be judged. PlanError with every SLO that is too fine."""
    late_ms = [await _late_ms(clock) for _ in range(TIMERS)]
    probes_ms = await _probes_ms(world)
    noise = Noise(
        round(quantiles(late_ms, n=10)[-1], 3),
        TIMERS,
        round(median(probes_ms), 3) if probes_ms else None,
        len(probes_ms),
    )
    home.tell(calibration=asdict(noise))
    if finer := list(too_fine(objectives, noise)):
        raise PlanError(finer)


def too_fine(objectives: Iterable[Objective], noise: Noise) -> Iterable[str]:
    """A sentence for each SLO on latency whose threshold is below the noise."""
    for objective in objectives:
        slo = parse(objective.text)
        limit_us = slo.threshold_us if isinstance(slo, Measure) and slo.of.about.confident else None
        if limit_us is not None and limit_us < noise.timer_late_ms * 1000:
            yield (
                f"{objective.at}: `{objective.text}` is finer than this host can measure now, whose timers are "
                f"{noise.timer_late_ms:g} ms late: raise the threshold, or free the host of other work"
            )


async def _late_ms(clock: Clock) -> float:
    due_us = clock.now_us() + TIMER_US
    await clock.sleep_until_us(due_us)
    return (clock.now_us() - due_us) / 1000


async def _probes_ms(world: Linked) -> list[float]:
    """Round trips through each client link, those that are answered."""
    links = [link for link in world.links() if link.channel == "client"]
    tried = [await asyncio.gather(*map(world.probe_ms, links), return_exceptions=True) for _ in range(PROBES)]
    for trip in (trip for trips in tried for trip in trips):
        if isinstance(trip, BaseException) and not isinstance(trip, FaultError):
            raise trip
    return [trip for trips in tried for trip in trips if isinstance(trip, float)]
