"""The parts of the trial: their plans can be run as they are changed."""

from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.harness.labs.kip.trials import KIP_227, Planned
from aftershock.results.trials.kip227 import CPU_FULL, CPU_SESSION, FOLLOWERS_FULL, FOLLOWERS_SESSION


def sessions_on(part: Planned) -> set[bool | None]:
    workloads = load_plan(Path(find(part.plan)), part.settings(part.blocks)).plan.workloads
    return {arm.fetch_session for workload in workloads if workload.consume for arm in workload.arms.values()}


@pytest.mark.parametrize("part", KIP_227.parts, ids=lambda part: part.name)
def test_sessions(part: Planned) -> None:
    """Where both kinds are compared side by side both are there; the CPU's parts have one each; followers take none."""
    followers: dict[str, set[bool | None]] = {FOLLOWERS_SESSION: set(), FOLLOWERS_FULL: set()}
    alone = {CPU_SESSION: {True}, CPU_FULL: {False}, "sessions": {True}, "evicted": {None}, **followers}
    assert alone.get(part.name, {True, False}) == sessions_on(part)
