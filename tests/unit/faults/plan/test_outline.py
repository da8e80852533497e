"""What a cluster for ad-hoc work reads of a plan: two parts, judged as in a plan, the rest named."""

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.command_line import ClusterSpec, read_cluster_spec
from aftershock.faults.plans import find


def test_two_parts() -> None:
    """A document of a cluster and topics is read whole, with nothing left over."""
    outline = read_cluster_spec("cluster: {racks: {a: 2, b: 1}}\ntopics: [{name: t, partitions: 3, replication: 2}]")
    assert {"a": 2, "b": 1} == outline.cluster.racks
    assert [("t", 3, 2)] == [(topic.name, topic.partitions, topic.replication) for topic in outline.topics]
    assert () == outline.ignored


@pytest.mark.parametrize("text", ["cluster: {}", "topics: []", "cluster: {profile: fast}\ntopics:"])
def test_both_are_optional(text: str) -> None:
    """Without topics, or without a word about the cluster, the defaults stand."""
    assert ClusterSpec() == read_cluster_spec(text)


def test_a_whole_plan_serves() -> None:
    """Of a plan that ships the rest is ignored, and named in its order."""
    outline = read_cluster_spec(find("demo"))
    assert ["orders"] == [topic.name for topic in outline.topics]
    assert ("name", "why", "workloads", "timing", "faults", "slo") == outline.ignored


def test_nothing_of_the_rest_is_judged() -> None:
    """Mistakes in workloads, faults and SLOs don't keep a cluster from being launched."""
    text = (
        "name: NO\ntopics: [{name: t, partitions: 1, replication: 1}]\nworkloads: 3\nfaults: [{kind: nope}]\nslo: [x]"
    )
    assert ["t"] == [topic.name for topic in read_cluster_spec(text).topics]


def test_every_problem_with_its_place() -> None:
    """A misspelt key of the document, one inside a part, too much replication: three sentences with line and column."""
    text = "topcs: []\ncluster: {rakcs: {a: 1}}\ntopics:\n  - {name: t, partitions: 1, replication: 4}\n"
    with pytest.raises(PlanError) as caught:
        read_cluster_spec(text)
    assert ["plan.yaml:1:1", "plan.yaml:2:11", "plan.yaml:4:43"] == [
        ":".join(problem.split(":")[:3]) for problem in caught.value.problems
    ]
    assert "did you mean `topics`?" in caught.value.problems[0]


@pytest.mark.parametrize("topics", ["0", "{t: 3}", "orders"])
def test_topics_that_are_no_list(topics: str) -> None:
    """Only absent topics are none; anything else that is no list is a mistake."""
    with pytest.raises(PlanError, match="`topics` must be a list"):
        read_cluster_spec(f"topics: {topics}")


def test_written_and_read_again() -> None:
    """What is kept beside the cluster says the same again, the version that really runs included."""
    outline = read_cluster_spec(
        "cluster: {racks: {b: 1, a: 2}, config: {num.io.threads: 2}}\ntopics: [{name: t, partitions: 3, replication: 2,"
        " config: {min.insync.replicas: 1}}]"
    ).on("4.3.1")
    again = read_cluster_spec(outline.to_yaml())
    assert outline == again
    assert ["b", "a"] == list(again.cluster.racks)
    assert "4.3.1" == again.cluster.kafka
    assert Cluster().kafka != again.cluster.kafka
