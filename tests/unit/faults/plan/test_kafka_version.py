"""Plans for an older Kafka: each part that it lacks is refused at its own place, and nothing else."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import check_version, load_plan
from aftershock.faults.sections.broker_settings import known_settings, lacking_settings

PLAN = """name: older
cluster: {{{cluster}}}
topics: [{{name: orders, partitions: 1, replication: 1, config: {{{topic}}}}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 1/s}}
    consume: {{topic: orders, {consume}}}
    arms: {{ours: {{{arm}}}}}
"""
NINE = "kafka: 3.9.1"


def text(cluster: str = NINE, topic: str = "", consume: str = "from: earliest", arm: str = "client: confluent") -> str:
    return PLAN.format(cluster=cluster, topic=topic, consume=consume, arm=arm)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"consume": "group: g"},
        {"consume": "group: g, protocol: classic", "arm": "client: reference"},
        {"cluster": "kafka: 3.9.1, features: {metadata.version: 20, kraft.version: 0}"},
        {"cluster": "kafka: 3.7.1, features: {metadata.version: 15}"},
        {"cluster": "kafka: 4.0.0, features: {group.version: 1}", "consume": "group: g, protocol: consumer"},
        {"cluster": "image: 'ours/kafka:patched'", "consume": "group: g, protocol: consumer"},
    ],
)
def test_what_a_version_has_is_accepted(parts: dict[str, str]) -> None:
    load_plan(text(**parts))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            {"consume": "group: g, protocol: consumer"},
            "plan.yaml:7:50: Kafka 3.9.1 has the group protocol `consumer` (KIP-848) only as a preview: write",
        ),
        (
            {"consume": "group: g", "arm": "client: reference"},
            (
                "plan.yaml:7:37: Kafka 3.9.1 has the group protocol `consumer` (KIP-848), that of the arm `ours`, only "
                "as a preview: give the arm the setting `group.protocol: classic`, write"
            ),
        ),
        ({"consume": "group: g", "arm": "client: confluent, settings: {group.protocol: consumer}"}, "(KIP-848)"),
        ({"arm": "client: java, settings: {share: true}", "consume": "group: g"}, "has no share groups (KIP-932)"),
        (
            {"cluster": "kafka: 3.9.1, features: {group.version: 1}"},
            "plan.yaml:2:36: Kafka 3.9.1 has no feature `group.version`, only metadata.version and kraft.version:",
        ),
        ({"cluster": "kafka: 3.8.1, features: {kraft.version: 1}"}, "Kafka 3.8.1 has no feature `kraft.version`"),
        ({"cluster": "kafka: 3.6.2"}, "plan.yaml:2:18: Kafka 3.6.2 can't be launched: use a version from 3.7 on"),
        (
            {"cluster": "kafka: 3.9.1, config: {replica.selector.class: aftershock.HighestFollower}"},
            "the class `aftershock.HighestFollower` is built for Kafka 4: remove `replica.selector.class`",
        ),
        (
            {"cluster": "kafka: 3.9.1, config: {group.share.assignors: simple}"},
            "Kafka 3.9.1 has no node setting `group.share.assignors`: remove it, or launch Kafka 4.0 or later",
        ),
        (
            {"cluster": "kafka: 3.9.1, brokers: {1: {group.share.assignors: simple}}"},
            "Kafka 3.9.1 has no node setting `group.share.assignors`",
        ),
        (
            {"cluster": "kafka: 4.3.1, image: 'ours/kafka:1'"},
            "`kafka` is a version of Kafka's own image, and `image` is another image: remove either",
        ),
        ({"cluster": "image: ours"}, "image"),
        (
            {"cluster": "image: 'ours/kafka:1', config: {replica.selector.class: aftershock.HighestFollower}"},
            "the class `aftershock.HighestFollower` is not in the image ours/kafka:1",
        ),
    ],
)
def test_what_a_version_lacks_is_refused_by_its_name(parts: dict[str, str], says: str) -> None:
    with pytest.raises(PlanError) as refused:
        load_plan(text(**parts))
    assert [problem for problem in refused.value.problems if says in problem], refused.value.problems
    assert 1 == len(refused.value.problems)


def test_a_version_from_the_command_line_is_checked_too() -> None:
    checked = load_plan(text("profile: fast", consume="group: g, protocol: consumer"))
    check_version(checked, "4.3.1")
    with pytest.raises(PlanError, match=r"Kafka 3\.9\.1 has the group protocol"):
        check_version(checked, "3.9.1")
    for version in ("latest", "4.3", "4.3.1-rc1", "٤.3.1", "9" * 5000 + ".0.0"):
        with pytest.raises(PlanError, match="not a Kafka version; write a released version"):
            check_version(checked, version)


def test_upgrades_need_images_of_kafka() -> None:
    """The heal returns to a version, for which an image of the user's has no name."""
    faults = "faults: [{kind: rolling_upgrade, to: 4.3.1}]\n"
    load_plan(text() + faults)
    with pytest.raises(PlanError, match="`rolling_upgrade` replaces Kafka's own images"):
        load_plan(text("image: 'ours/kafka:3.9.1'") + faults)


def test_settings_that_an_older_kafka_lacks_are_settings_of_kafka() -> None:
    """The list is a part of all settings, and has what is new in 4.x."""
    for owner, lacking in lacking_settings().items():
        assert lacking < known_settings()[owner]
    assert {"group.share.assignors", "share.coordinator.threads"} <= lacking_settings()["node"]
    assert not {"log.retention.ms", "group.coordinator.rebalance.protocols"} & lacking_settings()["node"]
