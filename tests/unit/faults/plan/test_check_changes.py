"""Changes of a plan by `--set`."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME

PLAN = FRAME + "  - {id: dead, at: 0s, for: 8s, kind: kill, broker: 1}\nslo: ['lost == 0']\n"


def test_applied() -> None:
    """Parts are addressed by key, index, name or id; below config and settings the rest is one key."""
    changes = (
        "timing.steady=4s",
        "workloads.0.produce.rate=80/s",
        "workloads.orders.arms.eager.settings.retry.backoff.ms=10",
        "topics.orders.config.min.insync.replicas=1",
        "faults.dead.for=6s",
        "cluster.kafka=4.1.2",
        "cluster.racks={b: 1, a: 2}",
    )
    checked = load_plan(PLAN, changes)
    plan = checked.plan
    assert plan.timing.steady == 4000
    assert plan.workloads[0].produce is not None
    assert plan.workloads[0].produce.rate == 80.0
    assert plan.workloads[0].arms["eager"].settings == {"retry.backoff.ms": 10}
    assert plan.topics[0].config == {"min.insync.replicas": "1"}
    assert plan.faults[0].for_ == 6000
    assert plan.cluster.kafka == "4.1.2"
    assert load_plan(checked.text).plan == plan
    assert list(load_plan(checked.text).plan.cluster.racks) == ["b", "a"]


def test_problems_are_at_the_change() -> None:
    """An invalid value is reported at its `--set` option."""
    with pytest.raises(PlanError, match=r"^--set timing.steady: `steady`: 4 is not a duration"):
        load_plan(PLAN, ["timing.steady=4"])


def test_slo_positions_survive() -> None:
    """An unchanged SLO keeps its position; a changed one is positioned on the command line."""
    assert load_plan(PLAN, ["timing.steady=4s"]).slo_positions == ("plan.yaml:11:7",)
    assert load_plan(PLAN, ["slo.0=lost <= 1"]).slo_positions == ("--set slo.0",)


def test_no_changes() -> None:
    """All invalid changes are reported at once."""
    with pytest.raises(PlanError) as caught:
        load_plan(PLAN, ["steady", "=3", "workloads.9.name=x", "faults.zz.for=3s", "name.x=1", "why=[", "slo.x=1"])
    assert len(caught.value.problems) == 7
    assert all(problem.startswith("--set ") for problem in caught.value.problems)
