"""Plans whose clients run on further hosts: what is compiled, how the load is spread, and each mistake."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.assignments import all_worker_names, hosts_of
from aftershock.workloads.load.assignment import ConsumeAssignment, ProduceAssignment

# ruff: noqa: E501 -- a sentence that is expected is kept whole

PLAN = """\
name: hosts
{cluster}
topics: [{{name: orders, partitions: 12, replication: 3}}]
workloads:
  - name: orders
    produce: {{{produce}}}
    consume: {{topic: orders, group: readers, members: 4}}
    run_on: {{{run_on}}}
    arms: {{{arms}}}
faults: [{{at: 0s, {fault}}}]
"""
KILL = "kind: kill, broker: 1, for: 4s"


def text(
    run_on: str,
    *,
    produce: str = "topic: orders, rate: 900/s",
    arms: str = "a: {}, b: {}",
    fault: str = KILL,
    cluster: str = "",
) -> str:
    return PLAN.format(run_on=run_on, produce=produce, arms=arms, fault=fault, cluster=cluster)


def timeline(*words: str, **changes: str) -> Timeline:
    return compile_checked(load_plan(text(*words, **changes)), 0)


def test_each_worker_has_a_producer_and_the_rate_is_the_total() -> None:
    compiled = timeline("workers: 3")
    (load,) = compiled.workloads
    assert ({"workers": 3}, 3, 900.0) == (load["run_on"], load["produce"]["producers"], load["produce"]["rate_per_s"])
    assert len([name for name in all_worker_names(compiled) if "produce" in name]) == 6


def test_a_number_of_producers_stays() -> None:
    compiled = timeline("workers: 3", produce="topic: orders, rate: 900/s, producers: 5")
    assert compiled.workloads[0]["produce"]["producers"] == 5


def test_pods_keep_their_settings() -> None:
    cluster = "cluster: {kubernetes: {}}"
    compiled = timeline("kubernetes: {workers: 2, node_selector: {load: here}}", cluster=cluster)
    assert {"workers": 2, "kubernetes": {"node_selector": {"load": "here"}}} == compiled.workloads[0]["run_on"]


def test_clients_are_spread_over_the_hosts_in_turn() -> None:
    """Both arms of a host have as many clients of each kind, so that a slow host concerns them alike."""
    compiled = timeline("workers: 3")
    common = {"run_id": "r", "origin_ns": 0, "workload": "orders", "topic": "orders", "topic_id": "", "partitions": 12}
    common |= {"bootstrap": "b:9", "rack": "a", "spool": "/s", "events": "/e"}
    sizes = {"record_size_min": 1, "record_size_max": 1, "seed": 0, "rate_per_s": 1}
    clients = [
        ProduceAssignment(**common, **sizes, worker=f"{arm}-p{n}", arm=arm, number=n, producer_id=n)
        for arm in "ab"
        for n in (1, 2, 3)
    ] + [ConsumeAssignment(**common, worker=f"{arm}-c{n}", arm=arm, number=n) for arm in "ab" for n in (1, 2, 3, 4)]
    assert hosts_of(compiled, clients) == {
        "orders-1": ("a-p1", "b-p1", "a-c1", "a-c4", "b-c1", "b-c4"),
        "orders-2": ("a-p2", "b-p2", "a-c2", "b-c2"),
        "orders-3": ("a-p3", "b-p3", "a-c3", "b-c3"),
    }


@pytest.mark.parametrize(
    ("run_on", "changes", "says"),
    [
        ("", {}, "give either `workers`, a number, for this host, or `kubernetes: {workers: 8}` for pods"),
        ("workers: 2, kubernetes: {workers: 2}", {}, "give either `workers`, a number, for this host"),
        ("workers: 0", {}, "plan.yaml:8:23: `workers` must be at least 1"),
        ("kubernetes: {workers: 2}", {}, "pods of clients are beside brokers that the plan launches in pods: write `cluster: {kubernetes: {}}`, run the plan with --on kubernetes"),
        ("kubernetes: {workers: 2}", {"cluster": "cluster: {attach: {bootstrap: 'k:9092'}}"}, "pods of clients are beside brokers that the plan launches in pods"),
        ("kubernetes: {workers: 2}", {"cluster": "cluster: {kubernetes: {}}", "arms": "a: {client: java}"}, "the client java of the arm `a` is not in the image of worker pods, which have confluent and reference"),
        ("workers: 5", {"produce": "topic: orders, rate: 9/s, producers: 2"}, "an arm has 4 clients of a kind for 5 workers, so some would have none"),
        ("workers: 2", {"fault": "kind: kill_client, client: a, for: 2s"}, "plan.yaml:10:46: a kill_client reaches processes of this host only, and the clients of the workload `orders` run elsewhere"),
        ("workers: 2", {"fault": "kind: leave, client: any member of b, for: 2s"}, "a leave reaches processes of this host only"),
    ],
)  # fmt: skip
def test_mistakes(run_on: str, changes: dict[str, str], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(text(run_on, **changes))
    assert says in str(caught.value)


def test_a_service_runs_on_this_host() -> None:
    plan = text("workers: 2", arms="a: {client: service, command: [serve]}")
    plan = plan.replace(
        "consume: {topic: orders, group: readers, members: 4}", "pipe: {from: orders, to: billed, group: b}"
    )
    with pytest.raises(PlanError, match="the processes of a service run on this host: remove `run_on`"):
        load_plan(plan)
