"""Plans for attached clusters: permitted faults, refusals, and secrets."""

import json

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import check, load_plan
from aftershock.faults.plan.command_line import read_cluster_spec
from aftershock.faults.timeline.compile import compile_plan

SECURE = "{protocol: SASL_SSL, mechanism: SCRAM-SHA-512, user: alice, password: '${KAFKA_PASSWORD}', ca: ca.pem}"
REACHED = "bootstrap: 'kafka-1:9093,kafka-2:9093', toxiproxy: 'http://proxy:8474', proxies: {one: 1, two: 2}"
PLAN = """\
name: attached
cluster: {{attach: {{{attach}}}}}
topics: [{{name: orders, partitions: 3, replication: 2}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 60/s}}
    arms: {{theirs: {{}}, own: {{client: exec, command: [program], settings: {settings}}}}}
faults: [{fault}]
slo: ["lost == 0"]
"""
LATENCY = "{kind: latency, link: 'client(a) -> broker(1)', delay: 50ms, at: 0s, for: 4s}"


def written(attach: str = REACHED, fault: str = LATENCY, settings: str = "{}") -> str:
    return PLAN.format(attach=attach, fault=fault, settings=settings)


def problems_of(text: str) -> str:
    """Return all problems of a plan as one text."""
    with pytest.raises(PlanError) as refused:
        load_plan(text)
    return str(refused.value)


@pytest.mark.parametrize(
    "fault",
    [
        LATENCY,
        "{kind: refuse, link: 'client(*) -> broker', at: 0s, for: 4s}",
        "{kind: reassign, topic: orders, rotate: 1, at: 0s, for: 4s}",
        "{kind: config, topic: orders, set: {retention.ms: 1000}, at: 0s, for: 4s}",
        "{kind: kill_client, client: theirs, at: 0s, for: 4s}",
    ],
)
def test_what_may_be_done(fault: str) -> None:
    """Link faults on named proxies, Kafka faults on the plan's topics, and client faults are allowed."""
    plan = load_plan(written(REACHED + f", security: {SECURE}", fault)).plan
    check(plan)
    assert plan.cluster.attach is not None


IN_CONTAINERS = [
    "{kind: kill, broker: 1, at: 0s, for: 4s}",
    "{kind: pause, broker: leader of orders/0, at: 0s, for: 4s}",
    "{kind: restart, broker: 2, at: 0s}",
    "{kind: rolling_restart, at: 0s}",
    "{kind: cpu_quota, broker: 1, cpus: 0.1, at: 0s, for: 4s}",
]


@pytest.mark.parametrize("fault", IN_CONTAINERS)
def test_brokers_in_named_containers_may_be_stopped(fault: str) -> None:
    check(load_plan(written(REACHED + ", containers: {1: kafka-1, 2: kafka-2}", fault)).plan)
    why = f"a {fault[7:].partition(',')[0]} is refused on an attached cluster"
    assert f"{why}: Aftershock did not start the cluster; name the brokers' Docker containers" in problems_of(
        written(REACHED, fault)
    )


PODS = "bootstrap: 'k:1', kubernetes: {namespace: kafka, pods: strimzi.io/cluster=prod%s}"


@pytest.mark.parametrize("fault", [*IN_CONTAINERS[:4], "{kind: stop, broker: 1, at: 0s, for: 4s}"])
def test_brokers_in_pods_are_stopped_by_agents(fault: str) -> None:
    check(load_plan(written(PODS % ", agent: true", fault)).plan)
    assert "permit a privileged pod beside the brokers with `agent: true`" in problems_of(written(PODS % "", fault))


@pytest.mark.parametrize(
    ("faults", "warns"),
    [
        ("{kind: kill, broker: 1, at: 0s, for: 5s}, {kind: stop, broker: 1, at: 60s, for: 5s}", True),
        ("{kind: kill, broker: 1, at: 0s, for: 5s}, {kind: kill, broker: 2, at: 60s, for: 5s}", False),
        ("{kind: kill, broker: 1, at: 0s, for: 5s}, {kind: kill, broker: 1, at: 11m, for: 5s}", False),
        ("{kind: kill, broker: 1, at: 0s, for: 5s}, {kind: pause, broker: 1, at: 60s, for: 5s}", False),
    ],
)
def test_a_container_that_ends_again_starts_late(faults: str, warns: bool) -> None:
    warnings = load_plan(written(PODS % ", agent: true", faults)).warnings
    assert warns == any("CrashLoopBackOff" in warning for warning in warnings)


def test_a_pod_is_deleted_without_an_agent() -> None:
    delete = "{kind: delete_pod, broker: 1, at: 0s, for: 10s}"
    check(load_plan(written(PODS % "", delete)).plan)
    named = "bootstrap: 'k:1', kubernetes: {namespace: kafka, brokers: {0: kafka-0}}"
    assert "broker 1 has no pod under `attach.kubernetes.brokers`, which has those of 0" in problems_of(
        written(named, delete)
    )
    assert "name them under `attach.kubernetes`" in problems_of(written(REACHED, delete))


def test_a_drain_needs_the_permission_of_the_plan() -> None:
    drain = "{kind: drain, broker: 1, at: 0s, for: 10s}"
    check(load_plan(written(PODS % ", nodes: true", drain)).plan)
    assert "permit that with `nodes: true` under `attach.kubernetes`" in problems_of(written(PODS % "", drain))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("{kind: crash_loop, broker: 1, at: 0s, for: 20s}", "(CrashLoopBackOff), so it can't go on"),
        (IN_CONTAINERS[4], "the limits of a pod are not changed yet"),
        ("{kind: kill, broker: 1, host: stays, at: 0s, for: 4s}", "needs `hosts`, which only a launched cluster has"),
        ("{kind: disk_full, broker: 1, at: 0s, for: 4s}", "the files and disks of the brokers are yours"),
    ],
)
def test_what_pods_do_not_offer(fault: str, why: str) -> None:
    assert why in problems_of(written(PODS % ", agent: true", fault))


IN_NETWORKS = [
    "{kind: cut, broker: 1, at: 0s, for: 4s}",
    "{kind: cut, between: [[1], [2]], at: 0s, for: 4s}",
    "{kind: packet_loss, link: 'client(a) <-> broker(1)', share: 5%, at: 0s, for: 4s}",
    "{kind: packet_delay, link: 'replication(*) -> broker(2)', delay: 50ms, at: 0s, for: 4s}",
]
CONTAINERS = ("containers: {1: kafka-1, 2: kafka-2}", "compose: shop.yml", "labels: {com.docker.compose.project: shop}")


@pytest.mark.parametrize("selector", CONTAINERS)
@pytest.mark.parametrize("fault", IN_NETWORKS)
def test_packets_of_named_containers_may_be_changed(fault: str, selector: str) -> None:
    check(load_plan(written(f"bootstrap: 'k:1', {selector}", fault)).plan)
    why = f"a {fault[7:].partition(',')[0]} is refused on an attached cluster"
    assert f"{why}: Aftershock did not start the cluster; name the brokers' Docker containers" in problems_of(
        written("bootstrap: 'k:1'", fault)
    )


def test_a_cut_from_clients_needs_no_more_than_proxies() -> None:
    cut = "{kind: cut, link: 'client(a) -> broker(1)', at: 0s, for: 4s}"
    check(load_plan(written(REACHED, cut)).plan)
    check(load_plan(written("bootstrap: 'k:1', proxy: insert", cut)).plan)
    assert "only links from clients can be cut" in problems_of(written(REACHED, IN_NETWORKS[0]))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("{kind: clock_bump, broker: 1, by: 1h, at: 0s, for: 4s}", "a container has the clock of its host"),
        ("{kind: cut, between: [[1], [3]], at: 0s, for: 4s}", "broker 3 has no container under `attach.containers`"),
        ("{kind: cut, broker: 3, at: 0s, for: 4s}", "broker 3 has no container under `attach.containers`"),
        (IN_NETWORKS[2].replace("client(a)", "controller(a)"), "links from clients and from each other"),
        (IN_NETWORKS[2].replace("client(a)", "client(b)"), "so rack b has no links"),
        ("{kind: kill, broker: 3, at: 0s, for: 4s}", "broker 3 has no container under `attach.containers`"),
        ("{kind: kill, broker: 1, host: silent, at: 0s, for: 4s}", "needs `hosts`, which only a launched cluster has"),
        ("{kind: disk_full, broker: 1, at: 0s, for: 4s}", "a disk_full is refused on an attached cluster"),
        ("{kind: lose_rack, rack: a, at: 0s, for: 4s}", "a lose_rack is refused on an attached cluster"),
    ],
)
def test_a_container_is_not_enough_for_everything(fault: str, why: str) -> None:
    assert why in problems_of(written(REACHED + ", containers: {1: kafka-1, 2: kafka-2}", fault))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            "{kind: kill, broker: 1, at: 0s, for: 4s}",
            "a kill is refused on an attached cluster: Aftershock did not start",
        ),
        ("{kind: cut, rack: b, at: 0s, for: 4s}", "only links from clients can be cut"),
        (
            "{kind: packet_loss, link: 'client(a) -> broker(1)', share: 5%, at: 0s, for: 4s}",
            "a packet_loss is refused on an attached cluster",
        ),
        ("{kind: move_controller, at: 0s, for: 4s}", "only works on a launched cluster"),
        ("{kind: recreate_topic, topic: orders, at: 0s}", "may delete only topics in `attach.create`"),
        (
            "{kind: config, broker: 1, set: {num.io.threads: 4}, at: 0s, for: 4s}",
            "which is not listed in `attach.brokers`",
        ),
        (
            "{kind: config, topic: __consumer_offsets, set: {retention.ms: 1}, at: 0s, for: 4s}",
            "is shared by all users of an attached cluster",
        ),
        (LATENCY.replace("broker(1)", "broker(7)"), "leads to broker 7; they lead to 1, 2"),
        (LATENCY.replace("client(a)", "client(b)"), "so rack b has no links"),
        (LATENCY.replace("client(a)", "replication(a)"), "only has links from clients"),
        (LATENCY.replace("client(a) -> broker(1)", "rack(a) -> rack(b)"), "only has links from clients"),
    ],
)
def test_what_is_refused(fault: str, why: str) -> None:
    """A fault that needs more is refused with the reason, before any connection is opened."""
    assert why in problems_of(written(fault=fault))


@pytest.mark.parametrize(
    ("attach", "why"),
    [
        ("bootstrap: nowhere", "must match"),
        ("bootstrap: 'k:1', toxiproxy: 'p:1'", "belong together"),
        ("bootstrap: 'k:1', toxiproxy: 'p:1', proxies: {a: 1, b: 1}", "lead to one broker"),
        ("bootstrap: 'k:1', racks: {a: z, b: z}", "have the same value of `broker.rack`"),
        ("bootstrap: 'k:1', containers: {1: a, 2: a}", "two brokers have the same container"),
        ("bootstrap: 'k:1', containers: {1: 'a b'}", "got `a b`"),
        ("bootstrap: 'k:1', containers: {1: a}, compose: b", "`containers` and `compose` both select"),
        ("bootstrap: 'k:1', compose: a, labels: {b: c}", "`compose` and `labels` both select"),
        ("bootstrap: 'k:1', labels: {'a b': c}", "got `a b`"),
        ("bootstrap: 'k:1', compose: a, kubernetes: {namespace: k, pods: x}", "`compose` and `kubernetes` both select"),
        ("bootstrap: 'k:1', kubernetes: {namespace: k}", "name the brokers' pods"),
        ("bootstrap: 'k:1', kubernetes: {namespace: k, pods: x, brokers: {1: a}}", "name the brokers' pods"),
        ("bootstrap: 'k:1', kubernetes: {namespace: k, brokers: {1: a, 2: a}}", "two brokers have the same pod"),
        ("bootstrap: 'k:1', kubernetes: {namespace: K_1, pods: x}", "got `K_1`"),
        ("bootstrap: 'k:1', proxy: insert, toxiproxy: 'p:1', proxies: {a: 1}", "remove it, or your own `toxiproxy`"),
        ("bootstrap: 'k:1', proxy: always", "insert"),
        ("bootstrap: 'k:1', create: [odrers]", "did you mean `orders`?"),
        ("bootstrap: 'k:1', security: {protocol: SASL_SSL, user: alice}", "needs `mechanism`"),
        ("bootstrap: 'k:1', security: {protocol: SSL, user: alice}", "`user` only applies to SASL"),
        ("bootstrap: 'k:1', security: {ca: ca.pem}", "`ca` only applies to SSL"),
        ("bootstrap: 'k:1', security: {protocol: SSL, key: k.pem}", "belong together"),
    ],
)
def test_half_an_attachment_is_refused(attach: str, why: str) -> None:
    """Keys that depend on one another must be given together."""
    assert why in problems_of(written(attach, "{kind: reassign, topic: orders, rotate: 1, at: 0s}"))


@pytest.mark.parametrize("password", ["hunter2", "12345", "[hunter2]", "{env: hunter2}", "'${hunter2'", "null-hunter2"])
@pytest.mark.parametrize("key", ["password", "key_password"])
def test_a_literal_secret_is_refused_and_not_repeated(key: str, password: str) -> None:
    """A literal secret of any type is refused; the message says how to provide it, and does not repeat it."""
    message = problems_of(written(REACHED + f", security: {{protocol: SSL, {key}: {password}}}"))
    assert "a plan must not contain a secret" in message
    assert "hunter2" not in message
    assert "12345" not in message


def test_security_in_one_word_is_not_repeated() -> None:
    """A secret in a one-line `security` is not repeated either."""
    assert "hunter2" not in problems_of(written(REACHED + ", security: 'alice:hunter2'"))


def test_settings_of_a_program_may_not_hold_secrets() -> None:
    """Security settings of an `exec` program come from `attach.security` only."""
    assert "`attach.security` passes the setting" in problems_of(written(settings="{sasl.password: hunter2}"))


def test_one_cluster_or_the_other() -> None:
    """`attach` excludes the keys for launching, and `cluster up` only launches."""
    assert "`racks` is for launching" in problems_of(
        written().replace("cluster: {attach", "cluster: {racks: {a: 1}, attach")
    )
    with pytest.raises(PlanError, match="`attach` only works with `aftershock run`"):
        read_cluster_spec("cluster: {attach: {bootstrap: 'k:1'}}\n")


def test_the_timeline_names_variables_and_no_secrets() -> None:
    """The timeline's cluster holds only the attachment: racks and versions of a launch would be wrong."""
    checked = load_plan(written(REACHED + f", rack: x, security: {SECURE}", LATENCY.replace("client(a)", "client(x)")))
    timeline = json.loads(compile_plan(checked.plan, 0, checked.source, checked.slo_positions).to_json())
    assert ["attach"] == list(timeline["cluster"])
    assert "${KAFKA_PASSWORD}" == timeline["cluster"]["attach"]["security"]["password"]
    assert "x" == timeline["workloads"][0]["produce"]["rack"]
