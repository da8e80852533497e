"""Settings of nodes and topics: Kafka's own names only, and nothing that reaches a command line, a file or a class."""

import re
from pathlib import Path

import pytest

from aftershock.errors import ClusterError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.command_line import parse_inject, read_cluster_spec
from aftershock.faults.sections.broker_settings import known_settings, setting_refusal
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.workloads import Topic
from aftershock.harness.cluster.topology import ClusterSpec

PLAN = """\
name: strange
cluster: {{{cluster}}}
topics: [{{name: orders, partitions: 3, replication: 1, config: {{{topic}}}}}]
workloads: [{{name: orders, produce: {{topic: orders, rate: 10/s}}}}]
faults: [{{kind: config, {target}, set: {{{values}}}, at: 0s, for: 1s}}]
slo: ["lost == 0"]
"""
IMAGES = Path(__file__).parents[4] / "harness" / "cluster" / "images" / "kafka"


def problems_of(
    cluster: str = "racks: {a: 1}", topic: str = "", target: str = "topic: orders", values: str = "retention.ms: 1"
) -> str:
    """Return all problems of a plan as one text; "" for a valid plan."""
    try:
        load_plan(PLAN.format(cluster=cluster, topic=topic, target=target, values=values))
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("opts: -XX:OnOutOfMemoryError=id", "Kafka has no node setting `opts`"),
        ("jmx.opts: -javaagent:x", "Kafka has no node setting `jmx.opts`"),
        ("heap.opts: -Xmx9g", "Kafka has no node setting `heap.opts`"),
        ("jvm.performance.opts: x", "Kafka has no node setting"),
        ("log4j.opts: x", "Kafka has no node setting"),
        ("jmx.port: 1", "Kafka has no node setting"),
        ("num.io.thread: 4", "Kafka has no node setting `num.io.thread`; did you mean `num.io.threads`?"),
        ("'NUM.IO.THREADS': 4", "Kafka has no node setting"),
        ("'num.io.threads=1\\n\\nx': 4", "Kafka has no node setting"),
        ("listeners: X://:1", "`listeners` is set by the harness"),
        ("controller.quorum.bootstrap.servers: evil:1", "is set by the harness"),
        ("log.dirs: /", "is set by the harness"),
        ("ssl.keystore.location: /etc/passwd", "may read files"),
        ("sasl.kerberos.kinit.cmd: id", "run commands"),
        ("listener.name.client_a.plain.sasl.jaas.config: x", "Kafka has no node setting"),
        ("listener.name.client_a.ssl.keystore.location: x", "may read files"),
        ("listener.name.client_a.opts: x", "Kafka has no node setting `listener.name.client_a.opts`"),
        ("remote.log.storage.manager.class.path: /x.jar", "may read files"),
        ("config.providers: file", "may read files"),
        ("replica.selector.class: java.lang.Runtime", "loads the class `java.lang.Runtime`"),
        ("metric.reporters: 'org.apache.kafka.common.metrics.JmxReporter,evil.X'", "loads the class `evil.X`"),
        ("authorizer.class.name: evil.X", "loads the class `evil.X`"),
        ('num.io.threads: "3\\nlog.dirs=/"', "must be one line"),
        ('num.io.threads: "3\\\\"', "without a backslash"),
    ],
)
def test_refused_settings_of_nodes(settings: str, why: str) -> None:
    """For all nodes, for one broker, by a fault and when the cluster is launched, each with its position."""
    assert re.search(rf"^plan.yaml:2:\d+: .*{re.escape(why)}", problems_of(f"racks: {{a: 1}}, config: {{{settings}}}"))
    one = problems_of(f"racks: {{a: 1}}, brokers: {{1: {{{settings}}}}}")
    assert re.search(rf"^plan.yaml:2:\d+: .*{re.escape(why)}", one)
    assert re.search(
        rf"^plan.yaml:5:\d+: .*{re.escape(why)}", problems_of(target="broker: 1", values=settings), re.MULTILINE
    )
    with pytest.raises(PlanError, match=re.escape(why)):
        read_cluster_spec(f"cluster: {{config: {{{settings}}}}}")


@pytest.mark.parametrize(
    "settings",
    [
        "num.io.threads: 4, log.retention.ms: -1",
        "listener.name.client_a.max.connections: 7",
        "replica.selector.class: ''",
        "replica.selector.class: aftershock.HighestFollower",
        "metric.reporters: org.apache.kafka.common.metrics.JmxReporter",
        "group.consumer.assignors: uniform",
        "leader.replication.throttled.rate: 1000",
    ],
)
def test_permitted_settings_of_nodes(settings: str) -> None:
    assert "" == problems_of(f"racks: {{a: 1}}, config: {{{settings}}}")


def test_settings_of_topics() -> None:
    """In `topics` and in a fault; a node's setting is no topic's setting."""
    assert "" == problems_of(topic="retention.ms: 5, leader.replication.throttled.replicas: '*'")
    assert "plan.yaml:3:65: Kafka has no topic setting `retention.m`; did you mean `retention.ms`?" in problems_of(
        topic="retention.m: 5"
    )
    assert "Kafka has no topic setting `num.io.threads`" in problems_of(values="num.io.threads: 5")
    with pytest.raises(PlanError, match="Kafka has no topic setting"):
        parse_inject(
            "config",
            ["topic=orders", "set={retention.m: 5}"],
            "5s",
            Cluster(),
            [Topic(name="orders", partitions=1, replication=1)],
            "c-1",
        )


def test_brokers_of_an_attached_cluster_may_have_settings_of_their_own() -> None:
    """Such as `confluent.…`; but what reads files or loads classes is refused there too."""
    attach = "attach: {bootstrap: 'k:1', brokers: [1]}"
    assert "" == problems_of(attach, topic="confluent.x: 1", target="broker: 1", values="confluent.y: 2")
    assert "may read files" in problems_of(attach, target="broker: 1", values="ssl.keystore.location: /x")
    assert "loads the class" in problems_of(attach, target="broker: 1", values="metric.reporters: evil.X")


def test_nothing_else_reaches_a_container() -> None:
    """A specification that no check has seen is refused, and no permitted name is a variable of the start scripts."""
    spec = ClusterSpec.of(Cluster(config={"opts": "-XX:OnOutOfMemoryError=id"}))
    with pytest.raises(ClusterError, match="no node setting `opts`"):
        spec.environment(spec.topology.nodes[0], "id", {})
    scripts = [path.read_text() for path in (IMAGES / "docker" / "run", *(IMAGES / "bin").iterdir())]
    variables = set(re.findall(r"KAFKA_[A-Z0-9_]+", "".join(scripts)))
    assert {"KAFKA_OPTS", "KAFKA_JMX_OPTS", "KAFKA_HEAP_OPTS"} <= variables
    names = {f"KAFKA_{name.replace('.', '_').upper()}": name for name in known_settings()["node"]}
    reached = {names[variable] for variable in variables & names.keys()}
    assert all(setting_refusal("node", name, "x") for name in reached), reached
