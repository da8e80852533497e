"""Plans for a cluster on Kubernetes: what it can't have is refused at its place, and nothing else."""

from pathlib import Path

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.harness.run.job import Permissions, on_kubernetes, prepare

PLAN = """name: pods
cluster: {{{cluster}}}
topics: [{{name: orders, partitions: 3, replication: 3}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 1/s}}}}]
faults: [{{at: 0s, {fault}}}]
"""
KILL = "kind: kill, broker: 1, for: 4s"


def text(cluster: str = "kubernetes: {}", fault: str = KILL) -> str:
    return PLAN.format(cluster=cluster, fault=fault)


@pytest.mark.parametrize(
    ("cluster", "fault"),
    [
        ("kubernetes: {}", KILL),
        ("kubernetes: {namespace: kafka-test, storage_class: gp3, node_selector: {disk: ssd}}", KILL),
        ("racks: {a: 1, b: 2}, kubernetes: {zones: {a: eu-1a, b: eu-1b}}", KILL),
        ("kubernetes: {}", "kind: latency, link: 'client(a) <-> broker', delay: 10ms, for: 4s"),
        ("kubernetes: {}, wire_proxy: observe", "kind: pause, broker: leader of orders/0, for: 4s"),
        ("kubernetes: {}", "kind: reassign, topic: orders, rotate: 1"),
        ("kubernetes: {}", "kind: kill, broker: 1, for: 4s, host: stays"),
        ("kubernetes: {}", "kind: delete_pod, broker: 1, for: 4s, grace: 0s"),
        ("kubernetes: {nodes: true}", "kind: drain, broker: 1, for: 9s"),
        # without Kubernetes, everything is as before
        ("disks: {count: 1}", "kind: disk_full, broker: 1, for: 4s"),
        ("clocks: true", "kind: clock_bump, broker: 1, by: 1h, for: 4s"),
    ],
)
def test_what_a_cluster_on_kubernetes_can_have_is_accepted(cluster: str, fault: str) -> None:
    assert load_plan(text(cluster, fault)).plan.faults


@pytest.mark.parametrize(
    ("cluster", "fault", "says"),
    [
        (
            "kubernetes: {}, disks: {count: 1}",
            KILL,
            "plan.yaml:2:34: `disks` is impossible on Kubernetes, because a file",
        ),
        ("kubernetes: {}, clocks: true", KILL, "`clocks` is impossible on Kubernetes"),
        (
            "kubernetes: {}",
            "kind: kill, broker: 1, for: 4s, host: silent",
            "plan.yaml:5:25: a kill is impossible on Kub",
        ),
        ("kubernetes: {}", "kind: power_loss, broker: 1, for: 4s", "a power_loss is impossible on Kubernetes"),
        ("kubernetes: {}", "kind: disk_full, broker: 1, for: 4s", "a disk_full is impossible on Kubernetes"),
        ("kubernetes: {}", "kind: clock_bump, broker: 1, by: 1h, for: 4s", "because the library is put into"),
        ("kubernetes: {}", "kind: cpu_quota, broker: 1, cpus: 0.5, for: 4s", "the limits of a running pod"),
        (
            "kafka: default",
            "kind: delete_pod, broker: 1, for: 4s",
            "a delete_pod needs brokers in pods: write `cluster:",
        ),
        ("kubernetes: {}", "kind: drain, broker: 1, for: 9s", "`nodes: true` under `cluster.kubernetes`"),
        ("kafka: default", "kind: drain, broker: 1, for: 9s", "a drain needs brokers in pods"),
        ("kubernetes: {namespace: Kafka}", KILL, "namespace"),
        ("kubernetes: {zones: {a: x}}", KILL, "`kubernetes.zones` has the racks a, and the cluster has a, b, c"),
        ("kubernetes: {where: x}", KILL, "where"),
        ("kubernetes: {}, attach: {bootstrap: 'h:1'}", KILL, "`kubernetes` is for launching a cluster, and `attach`"),
    ],
)
def test_what_it_can_not_have_is_refused(cluster: str, fault: str, says: str) -> None:
    with pytest.raises(PlanError) as refused:
        load_plan(text(cluster, fault))
    assert says in str(refused.value)


def test_a_named_namespace_needs_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = text("kubernetes: {namespace: kafka-test}")
    with pytest.raises(PlanError, match=r"plan.yaml:2:35: .* namespace kafka-test; add --allow-namespace kafka-test"):
        prepare(plan, (), 0, print)
    with pytest.raises(PlanError, match="add --allow-namespace kafka-test"):
        prepare(plan, (), 0, print, permissions=Permissions(namespaces=("kafka",)))
    assert {"kafka-test"} == set(
        prepare(plan, (), 0, print, permissions=Permissions(namespaces=("kafka-test",))).namespaces
    )
    assert prepare(text(), (), 0, print).spec.kubernetes


def test_a_project_file_permits_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aftershock.toml").write_text('allow_namespaces = ["kafka-test"]\n')
    assert prepare(text("kubernetes: {namespace: kafka-test}"), (), 0, print).namespaces == {"kafka-test"}


def test_any_plan_can_be_launched_on_kubernetes_by_an_option(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text("kafka: default"))
    assert load_plan(path, on_kubernetes(path, ["timing.steady=9s"])).plan.cluster.kubernetes
    path.write_text(text("kafka: default", "kind: delete_pod, broker: 1, for: 4s"))
    assert load_plan(path, on_kubernetes(path, [])).plan.cluster.kubernetes
    path.write_text(text("kubernetes: {namespace: kafka-test}"))
    assert [] == on_kubernetes(path, [])
    path.write_text(text("attach: {bootstrap: 'h:1'}", "kind: elect, topic: orders"))
    with pytest.raises(PlanError, match="the plan attaches to one"):
        on_kubernetes(path, [])
