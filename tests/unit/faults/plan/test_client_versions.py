"""Versions of clients in plans: what an arm may say, and what it may not."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked

PLAN = """\
name: versions
topics: [{name: orders, partitions: 6, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 20/s}
    arms:
      own: ARM
faults: [{at: 0s, for: 9s, kind: kill, broker: leader of orders/0}]
slo: ["lost == 0"]
"""


@pytest.mark.parametrize("version", ["2.3.0", "1.8.2", "3.0", "2.12.0-RC1", "3.0.0rc1", "1.9.0-rc.2"])
def test_a_version_reaches_the_timeline(version: str) -> None:
    arm = f'{{client: librdkafka, version: "{version}", settings: {{socket.timeout.ms: 5000}}}}'
    timeline = compile_checked(load_plan(PLAN.replace("ARM", arm), ()), 0)
    assert version == timeline.workloads[0]["arms"]["own"]["version"]


def test_java_has_the_version_of_the_brokers_unless_the_plan_names_one() -> None:
    plain = compile_checked(load_plan(PLAN.replace("ARM", "{client: java}"), ()), 0)
    assert "version" not in plain.workloads[0]["arms"]["own"]
    named = compile_checked(load_plan(PLAN.replace("ARM", "{client: java, version: 3.9.1}"), ()), 0)
    assert "3.9.1" == named.workloads[0]["arms"]["own"]["version"]


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("{client: librdkafka, version: 2.10}", r"`2\.1` is a number, in which 2\.10 would be 2\.1"),
        ("{client: librdkafka, version: 2}", "`2` is a number"),
        ("{client: librdkafka, version: latest}", "`latest` is no version of a client"),
        ('{client: librdkafka, version: "2.3.0 --index http://x"}', "is no version of a client"),
        ("{client: librdkafka, version: ../../x}", "is no version of a client"),
        ("{client: sarama}", "`client: sarama` needs a `version`"),
        ("{client: confluent, version: 2.3.0}", "for the client confluent: write `client: librdkafka`"),
        ("{client: exec, version: 2.3.0, command: [x]}", "for the client exec: remove it"),
        ("{client: kafkajs, version: 2.2.4, command: [x]}", "the client kafkajs runs no `command`"),
        ("{client: java, version: 3.9.1, settings: {num-records: 5}}", "`num-records` runs Kafka's tool"),
        ("{client: java, version: 4.3.1, settings: {share: true}}", "`share` runs Kafka's client of the brokers'"),
        ("{client: librdkafka, version: 2.3.0, settings: {plugin.library.paths: x}}", "because it loads code"),
        ("{client: kafka-python, version: 3.0.5, settings: {ssl.cafile: x}}", "may read files"),
        ("{client: aiokafka, version: 0.12.0, settings: {loop: x}}", "`loop` is not an aiokafka setting"),
        ("{client: franz-go, version: 1.21.2, settings: {commits_aborts: true}}", "is not a franz-go setting"),
        ("{client: kafkajs, version: 2.2.4, settings: {isolation.level: x}}", "has a key of its own"),
    ],
)
def test_wrong_versions_and_settings_are_refused_at_their_place(arm: str, message: str) -> None:
    with pytest.raises(PlanError, match=rf"plan\.yaml:[47]:\d+: .*{message}"):
        load_plan(PLAN.replace("ARM", arm), ())


def test_a_pipe_runs_the_client_of_the_brokers_version() -> None:
    text = PLAN.replace("ARM", "{client: java, version: 3.9.1}").replace(
        "    arms:", "    pipe: {from: orders, to: billed, group: biller}\n    arms:"
    )
    with pytest.raises(PlanError, match="remove `version`"):
        load_plan(text.replace("[{name: orders", "[{name: billed, partitions: 1, replication: 1}, {name: orders"), ())
