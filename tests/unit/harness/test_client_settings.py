"""Settings of reference clients in plans: the plan's table agrees with the client's, although neither imports the
other.
"""

from dataclasses import fields

from aftershock.faults.plan.client_settings import PLAN_KEY_FOR, REFERENCE_SETTINGS, refusal
from aftershock.faults.sections.workloads import Arm
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.committer import CommitterSettings
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings

HAVE = {field.name for cls in (ProducerSettings, ConsumerSettings, CommitterSettings) for field in fields(cls)}
SWITCHES = {"leader_discovery", "fetch_session", "read_replica", "partitioner", "switch"}
HARNESS = {"bootstrap_servers", "client_id", "enable_auto_commit", "group_instance_id", "security"}
"""Whether a consumer commits follows from whether it has a group; how to connect is said of the cluster, once; the
clients of an arm share its settings, but not an instance id.
"""


def test_every_allowed_setting_exists() -> None:
    """A plan that passes validation can't fail for an unknown setting when its client starts."""
    assert set() == {name.replace(".", "_") for name in REFERENCE_SETTINGS} - HAVE


def test_every_setting_can_be_given_in_a_plan() -> None:
    """Each is allowed as a setting, has its own plan key, is a switch, or is set by the harness."""
    own = {name.replace(".", "_") for name in PLAN_KEY_FOR}
    said = {name.replace(".", "_") for name in REFERENCE_SETTINGS}
    assert set() == HAVE - said - own - SWITCHES - HARNESS


def test_switches_are_fields_of_an_arm() -> None:
    assert SWITCHES <= set(Arm.model_fields)


def test_a_setting_of_another_client_is_refused_with_the_nearest() -> None:
    """librdkafka's names are not Kafka's."""
    assert refusal("queued.min.messages", "reference") is not None
    assert "did you mean `fetch.max.wait.ms`" in str(refusal("fetch.wait.max.ms", "reference"))
    assert refusal("whatever.it.takes", "exec") is None
