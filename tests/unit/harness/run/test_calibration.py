"""Calibration: the noise is recorded, and an SLO finer than it is refused before anything is sent."""

import json
from pathlib import Path

import pytest

from aftershock.errors import PlanError
from aftershock.faults.timeline.timeline import Objective
from aftershock.harness.run.drive import Noise, calibrate, unmeasurable_slos
from aftershock.harness.run.rundir import RunDir
from aftershock.tests.unit.faults.fake_world import FakeWorld, JumpingClock

OBJECTIVES = (
    Objective("produce.latency p95 < 2ms in steady", "plan.yaml:9:5"),
    Objective("produce.latency p50 < 20ms in steady", "plan.yaml:10:5"),
    Objective("lost == 0", "plan.yaml:11:5"),
)


class LateClock(JumpingClock):
    """Every timer fires this late."""

    late_us = 0

    async def sleep_until_us(self, t_us: int) -> None:
        await super().sleep_until_us(t_us + self.late_us)


@pytest.fixture
def home(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "plan", 1, "aftershock run plan")


async def calibrated(home: RunDir, late_us: int) -> Noise:
    clock = LateClock()
    clock.late_us = late_us
    await calibrate(home, OBJECTIVES, FakeWorld(clock), clock)
    return Noise(**json.loads((home.path / "run.json").read_text())["calibration"])


async def test_a_quiet_host(home: RunDir) -> None:
    """Punctual timers and a probe through each client link; every SLO may be judged."""
    noise = await calibrated(home, 100)
    assert noise.timer_late_ms == pytest.approx(0.1)
    assert (noise.timers, noise.probes) == (100, 27)
    assert noise.probe_ms is not None


async def test_a_late_host_refuses_the_fine_slo_alone(home: RunDir) -> None:
    """With timers 3 ms late, 2 ms can't be judged: the error has position and remedy, and the measurement is kept."""
    with pytest.raises(PlanError) as refused:
        await calibrated(home, 3_000)
    (problem,) = refused.value.problems
    assert problem.startswith("plan.yaml:9:5: `produce.latency p95 < 2ms in steady` is finer than")
    assert json.loads((home.path / "run.json").read_text())["calibration"]["timer_late_ms"] == pytest.approx(3.0)


def test_no_slo_is_too_coarse() -> None:
    """Counts and thresholds above the noise are left alone."""
    assert [] == list(unmeasurable_slos(OBJECTIVES[1:], Noise(19.9, 100, None, 0)))
