"""Cluster specs: two parts of a plan, checked as in a plan; other keys are listed as ignored."""

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.command_line import ClusterDocument, read_cluster_spec
from aftershock.faults.plans import find
from aftershock.faults.sections.cluster import Cluster


def test_two_parts() -> None:
    """A document with a cluster and topics has no ignored keys."""
    spec = read_cluster_spec("cluster: {racks: {a: 2, b: 1}}\ntopics: [{name: t, partitions: 3, replication: 2}]")
    assert {"a": 2, "b": 1} == spec.cluster.racks
    assert [("t", 3, 2)] == [(topic.name, topic.partitions, topic.replication) for topic in spec.topics]
    assert () == spec.ignored


@pytest.mark.parametrize("text", ["cluster: {}", "topics: []", "cluster: {profile: fast}\ntopics:"])
def test_both_are_optional(text: str) -> None:
    """Absent parts have their defaults."""
    assert ClusterDocument() == read_cluster_spec(text)


def test_a_whole_plan_serves() -> None:
    """The other keys of a whole plan are ignored and listed in order."""
    spec = read_cluster_spec(find("demo"))
    assert ["orders"] == [topic.name for topic in spec.topics]
    assert ("name", "why", "workloads", "timing", "faults", "slo") == spec.ignored


def test_nothing_of_the_rest_is_judged() -> None:
    """Mistakes in workloads, faults and SLOs are not reported."""
    text = (
        "name: NO\ntopics: [{name: t, partitions: 1, replication: 1}]\nworkloads: 3\nfaults: [{kind: nope}]\nslo: [x]"
    )
    assert ["t"] == [topic.name for topic in read_cluster_spec(text).topics]


def test_every_problem_with_its_place() -> None:
    """Unknown keys and an excessive replication are reported with line and column."""
    text = "topcs: []\ncluster: {rakcs: {a: 1}}\ntopics:\n  - {name: t, partitions: 1, replication: 4}\n"
    with pytest.raises(PlanError) as caught:
        read_cluster_spec(text)
    assert ["plan.yaml:1:1", "plan.yaml:2:11", "plan.yaml:4:43"] == [
        ":".join(problem.split(":")[:3]) for problem in caught.value.problems
    ]
    assert "did you mean `topics`?" in caught.value.problems[0]


@pytest.mark.parametrize("topics", ["0", "{t: 3}", "orders"])
def test_topics_that_are_no_list(topics: str) -> None:
    """Topics may be absent, but must otherwise be a list."""
    with pytest.raises(PlanError, match="`topics` must be a list"):
        read_cluster_spec(f"topics: {topics}")


def test_written_and_read_again() -> None:
    """A written spec reads back equal, including the resolved version."""
    spec = read_cluster_spec(
        "cluster: {racks: {b: 1, a: 2}, config: {num.io.threads: 2}}\ntopics: [{name: t, partitions: 3, replication: 2,"
        " config: {min.insync.replicas: 1}}]"
    ).on("4.3.1")
    again = read_cluster_spec(spec.to_yaml())
    assert spec == again
    assert ["b", "a"] == list(again.cluster.racks)
    assert "4.3.1" == again.cluster.kafka
    assert Cluster().kafka != again.cluster.kafka
