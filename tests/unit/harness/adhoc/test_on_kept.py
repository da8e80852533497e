"""Runs on a kept cluster: whether the cluster fits the plan, and which run uses it."""

import pytest

from aftershock.faults.sections.cluster import Cluster
from aftershock.harness.adhoc.on_kept import differences
from aftershock.harness.cluster.topology import ClusterSpec

KEPT = ClusterSpec.of(Cluster(packets=True, config={"num.io.threads": "4"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"packets": True}, []),
        ({"clocks": True}, ["clocks null, not true"]),
        ({"racks": {"b": 1, "a": 1, "c": 1}}, ['racks {"a": 1, "b": 1, "c": 1}, not {"b": 1, "a": 1, "c": 1}']),
        ({"config": {}}, ['config {"num.io.threads": "4"}, not {}']),
        ({"kafka": "4.1.2", "controllers": 3}, ['kafka "4.3.1", not "4.1.2"', "controllers 0, not 3"]),
        ({"block_device": {"size": "1GiB"}}, None),
    ],
)
def test_a_kept_cluster_must_have_what_the_plan_asks_for(
    changes: dict[str, object], expected: list[str] | None
) -> None:
    """It may have more; racks in another order have other brokers."""
    section: dict[str, object] = {"config": {"num.io.threads": "4"}} | changes
    found = differences(KEPT, ClusterSpec.of(Cluster.model_validate(section)))
    if expected is None:
        assert found[0].startswith("block_device null, not {")
    else:
        assert found == expected
