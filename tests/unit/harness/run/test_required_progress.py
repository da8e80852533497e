"""The planned share of required progress: of the shipped plans, and what lowers it."""

import re
from pathlib import Path

import pytest

from aftershock.faults.plan.check import load_plan
from aftershock.harness.cli.init import _PLAN
from aftershock.harness.run.required_progress import planned_lanes, share_warnings
from aftershock.results.checks.progress import SHARE_ADVISED
from aftershock.results.model.check import percent

ROOT = Path(__file__).parents[4]
SHIPPED = sorted((ROOT / "faults" / "plans").glob("*.yaml")) + sorted(
    (ROOT / "faults" / "plans" / "audit").glob("*.yaml")
)
WITHOUT_POWER = "durability"
"""The measurement that cuts the power of all brokers again and again, whose runs are stored with a hash of the plan:
while no broker runs, no progress can be required.
"""

PLAN = """
name: cut-off
cluster: {racks: {a: 1, b: 1, c: 1}, profile: fast}
topics: [{name: orders, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 50/s, rack: a}
    arms: {ours: {client: confluent}}
timing: {warmup: {min: 5s, max: 30s}, steady: 10s, recovery: 10s}
"""


def shares(text: str) -> dict[str, float]:
    return {f"{lane.client.arm} {lane.side}": lane.share for lane in planned_lanes(load_plan(text))}


@pytest.mark.parametrize("path", [path for path in SHIPPED if path.stem != WITHOUT_POWER], ids=lambda path: path.stem)
def test_shipped_plans_require_progress_for_most_of_the_time(path: Path) -> None:
    """Of each client and operation, so that a run of the plan judges its obligations."""
    checked = load_plan(path)
    assert planned_lanes(checked)
    assert share_warnings(checked) == []


def test_the_plans_of_readme_and_init_require_progress_for_most_of_the_time() -> None:
    """Both plans under their own names, as a reader saves them."""
    readme = re.search(r"```yaml\n(name: leader-lost\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert readme is not None
    for text in (readme[1], _PLAN):
        planned = shares(text)
        assert len(planned) > 1
        assert min(planned.values()) >= SHARE_ADVISED


def test_without_faults_all_of_the_time_is_judged() -> None:
    assert shares(PLAN) == {"ours produce": 1.0}


def test_a_plan_that_judges_too_little_is_warned_about() -> None:
    """Of a vanished host librdkafka notices nothing for a minute; a third of the partitions were led by it. The warning
    names the share, the setting and how much longer a phase must be.
    """
    brief = PLAN.replace("steady: 10s, recovery: 10s", "steady: 5s, recovery: 5s")
    text = f"{brief}faults: [{{id: gone, at: 0s, for: 10s, kind: kill, broker: leader of orders/0, host: silent}}]\n"
    (warning,) = share_warnings(load_plan(text))
    share = shares(text)["ours produce"]
    assert f"`orders/ours` (produce) during {percent(share)} of the time" in warning
    assert "lower the arm's `socket.timeout.ms`, or lengthen timing.steady or timing.recovery by" in warning

    patient = shares(text.replace("client: confluent", "client: confluent, settings: {socket.timeout.ms: 2000}"))
    assert patient["ours produce"] > share
    longer = re.search(r"by (\d+) s in all", warning)
    assert longer is not None
    lengthened = shares(text.replace("steady: 5s", f"steady: {5 + int(longer[1]) + 1}s"))
    assert lengthened["ours produce"] >= SHARE_ADVISED


@pytest.mark.parametrize(
    ("fault", "at_least", "at_most"),
    [
        ('kind: latency, link: "client(a) <-> broker", delay: 100ms', 1.0, 1.0),
        ("kind: delay_response, api: Produce, delay: 200ms", 1.0, 1.0),
        ("kind: answer_error, api: Produce, error: NOT_ENOUGH_REPLICAS", 0.3, 0.7),
        ("kind: answer_error, api: Fetch, error: NOT_LEADER_OR_FOLLOWER", 1.0, 1.0),
        ("kind: cpu_quota, broker: 1, cpus: 0.1", 0.0, 0.4),
    ],
)
def test_a_fault_excuses_only_what_it_can_do(fault: str, at_least: float, at_most: float) -> None:
    """A delay and errors of an API that a producer does not use excuse nothing, what stops it its own time, and a fault
    of unknown effect its time and a grace.
    """
    planned = shares(f"{PLAN}faults: [{{at: 0s, for: 10s, {fault}}}]\n")
    assert at_least <= planned["ours produce"] <= at_most


def test_plans_for_an_attached_cluster_have_no_planned_share() -> None:
    """The voters of such a cluster are not known, and its obligations are not judged."""
    text = PLAN.replace(
        "{racks: {a: 1, b: 1, c: 1}, profile: fast}", "{attach: {bootstrap: 'broker:9092', create: [orders]}}"
    )
    assert planned_lanes(load_plan(text)) == []
