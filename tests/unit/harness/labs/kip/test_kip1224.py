"""The parts of the trial: the lingers are really turned round, and the changed plans can be run."""

from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.harness.labs.kip.trials import KIP_1224, OLD_KAFKA, Planned
from aftershock.results.trials.kip1224 import IDLE, OLD, SHARE
from aftershock.results.trials.kip1224_commits import LINGER, SHARE_LINGER


def brokers(part: Planned) -> dict[int, str]:
    checked = load_plan(Path(find(part.plan)), part.settings(part.blocks))
    found = checked.plan.cluster.brokers or {}
    return {broker: own.get(LINGER, own.get(SHARE_LINGER)) for broker, own in found.items()}


@pytest.mark.parametrize("names", [IDLE, SHARE])
def test_a_latin_square(names: tuple[str, ...]) -> None:
    """In three runs each broker has each linger once, and each run has all three."""
    runs = [brokers(part) for part in KIP_1224.parts if part.name in names]
    assert [{"-1", "5", "0"}] * 3 == [set(run.values()) for run in runs]
    assert [{"-1", "5", "0"}] * 3 == [{run[broker] for run in runs} for broker in (1, 2, 3)]


@pytest.mark.parametrize("part", KIP_1224.parts, ids=lambda part: part.name)
def test_plans(part: Planned) -> None:
    """Each part's plan can be run with its changes; only the old default's is of another Kafka, which knows no -1."""
    assert (OLD_KAFKA if part.name == OLD else None) == part.kafka
    assert part.kafka is None or "-1" not in brokers(part).values()
