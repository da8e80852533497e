"""Candidates of each reduction, those with the largest expected gain first."""

from typing import Any

import pytest

from aftershock.faults.search.candidates import Document, Reduction, apply_reduction, refusal_of, without
from aftershock.faults.search.reductions import (
    close_gaps,
    focus_slos,
    merge_faults,
    reduce_load,
    reduce_rounds,
    resolve_choices,
    shorten,
    shrink_cluster,
    weaken_faults,
    with_fault_ids,
)
from aftershock.tests.unit.faults.search.following import SEED, follow, plan, slow


def offered(reduction: Reduction, document: Document) -> dict[str, Document]:
    return {candidate.change: candidate.document for candidate in reduction(document)}


def test_rounds() -> None:
    """One block or half of them, one round or half of them; `until` becomes one round."""
    repeated = {"repeat": 4, "every": "5s", "fault": slow("f0", 0)}
    until = {"every": "5s", "until": "20s", "fault": slow("f1", 0)}
    result = offered(reduce_rounds, plan(repeated, until, blocks=8))
    assert ["1 of 8 blocks", "4 of 8 blocks"] == [*result][:2]
    assert 1 == result["entry 1: 1 of 4 rounds"]["faults"][0]["repeat"]
    assert {"every": "5s", "repeat": 1, "fault": slow("f1", 0)} == result["entry 2: one round, not until 20s"][
        "faults"
    ][1]
    assert {} == offered(reduce_rounds, plan(slow("f0", 0)))


def test_a_choice_is_settled() -> None:
    """Each alternative replaces the choice."""
    choice = {"at": "4s", "choose": [{"weight": 3, "fault": slow("f0", 0)}, {"fault": slow("f1", 0)}]}
    result = offered(resolve_choices, plan(choice))
    assert [slow("f0", 4), slow("f1", 4)] == [each["faults"][0] for each in result.values()]


def test_equal_faults_are_merged() -> None:
    """The merged fault lasts from the first start to the second end; different faults are not merged."""
    result = offered(merge_faults, plan(slow("f0", 1), slow("f1", 6), slow("f2", 9, delay="80ms")))
    assert [[{**slow("f0", 1), "for": "7s"}, slow("f2", 9, delay="80ms")]] == [
        each["faults"] for each in result.values()
    ]


def test_gaps_are_closed() -> None:
    """Overlaps are kept; without gaps there is no candidate."""
    (result,) = offered(close_gaps, plan(slow("f0", 1), slow("f1", 2), slow("f2", 20))).values()
    assert ["1s", "2s", "4s"] == [each["at"] for each in result["faults"]]
    assert {} == offered(close_gaps, result)


def test_shorter() -> None:
    """Phases, then all faults, then each fault; not below the visible minimum."""
    document = plan(slow("f0", 0), slow("f1", 3), timing={"steady": "10s", "recovery": "3s", "fault": "2s"})
    result = offered(shorten, document)
    assert ["phases: steady 5s", "every fault half as long: 0 1s, 1 1s"] == [*result][:2]
    assert ["f0 for 1s, not 2s", "f1 for 1s, not 2s"] == [*result][2:]
    least = plan({**slow("f0", 0), "for": "900ms"}, timing={"steady": "2s", "recovery": "3s", "fault": "2s"})
    assert {} == offered(shorten, least)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"kind": "latency", "link": "rack(a) <-> rack(b)", "delay": "40ms", "jitter": "5ms"},
         ["f without jitter", "f: link rack(a) -> rack(b), not rack(a) <-> rack(b)", "f: delay 20ms, not 40ms"]),
        ({"kind": "bandwidth", "link": "client(a) -> broker", "rate": "100kB/s"}, ["f: rate 200kB/s, not 100kB/s"]),
        ({"kind": "cpu_quota", "broker": "1", "cpus": 0.2}, ["f: cpus 0.4, not 0.2"]),
        ({"kind": "memory_limit", "broker": "1", "memory": "1MB"}, ["f: memory 2000000, not 1MB"]),
        ({"kind": "pause", "broker": "1"}, []),
        ({"kind": "latency", "link": "client(a) -> broker", "delay": "19ms"}, []),
        ({"kind": "latency", "link": "client(a) -> broker", "delay": {"range": ["20ms", "40ms"]}}, []),
    ],
)  # fmt: skip
def test_weaker(fault: dict[str, Any], says: list[str]) -> None:
    """Each parameter changes in its weaker direction."""
    assert says == [*offered(weaken_faults, plan({"id": "f", "for": "4s", **fault}))]


def test_less_load() -> None:
    """Workloads, arms, sides, rates."""
    workloads = [
        {"name": "w", "produce": {"topic": "orders", "rate": "40/s"}, "consume": {"topic": "orders"},
         "arms": {"a": {}, "b": {}}},
        {"name": "v", "commit": {"rate": "9/s"}},
    ]  # fmt: skip
    result = offered(reduce_load, plan(workloads=workloads))
    assert ["without workload w", "without workload v", "only arm a", "only arm b"] == [*result][:4]
    assert ["workload w without consume", "workload w without produce", "workload w: produce at 20/s, not 40/s"] == [
        *result
    ][4:]
    assert {"b": {}} == result["only arm b"]["workloads"][0]["arms"]


def test_a_smaller_cluster() -> None:
    """Without a rack there are fewer replicas; settings go one by one; the wire proxy only if no fault needs it."""
    topics = [{"name": "orders", "partitions": 6, "replication": 3, "config": {"min.insync.replicas": 2}}]
    result = offered(
        shrink_cluster, plan(topics=topics, cluster={"wire_proxy": True, "controllers": 3, "racks": {"a": 2, "b": 1}})
    )
    assert [
        "topic orders: 1 of 6 partitions",
        "topic orders: 3 of 6 partitions",
        "topic orders without min.insync.replicas",
    ] == [*result][:3]
    assert ["cluster without controllers", "cluster without wire_proxy"] == [*result][3:5]
    alone = result["without rack b"]
    assert ({"a": 2}, 2) == (alone["cluster"]["racks"], alone["topics"][0]["replication"])
    assert "rack a with 1 of 2 brokers" in result
    assert "config" not in result["topic orders without min.insync.replicas"]["topics"][0]
    needed = plan({"for": "2s", "kind": "drop_response", "api": "Produce"}, cluster={"wire_proxy": True})
    assert not any("wire_proxy" in said for said in offered(shrink_cluster, needed))


def test_a_change_is_tested_once() -> None:
    """This holds even after another change was accepted: here only the second fault can be shortened."""

    def fails(document: Document) -> bool:
        return document["faults"][0]["for"] == "2s"

    document = plan({**slow("f0", 0), "for": "2s"}, {**slow("f1", 9), "for": "8s"})
    left, asked = follow(apply_reduction(document, shorten, SEED), fails)
    assert ["2s", "500ms"] == [each["for"] for each in left["faults"]]
    assert len(asked) == len({candidate.change for candidate in asked})


def test_only_slos_of_the_failed_checks_are_kept() -> None:
    """SLOs with numbered checks are kept too; an integrity rule needs no SLO."""
    slos = ["lost == 0", "produce.gap < 1s", {"slo": "produce.gap < 2s", "gate": "report"}, "produce.success >= 99%"]
    assert slos[1:3] == focus_slos(plan(slo=slos), ["slo/produce.gap-2"])["slo"]
    assert [] == focus_slos(plan(slo=slos), ["integrity/lost"])["slo"]


def test_the_wire_proxy_stays_when_its_faults_go() -> None:
    """The wire proxy stays in all candidates, so that they share a warm cluster."""
    assert focus_slos(plan({"for": "2s", "kind": "drop_response", "api": "Produce"}), [])["cluster"] == {
        "wire_proxy": True
    }
    assert "cluster" not in focus_slos(plan(slow("f0", 0)), [])


def test_faults_keep_their_ids() -> None:
    """`latency-2` keeps its name without the first fault; no run is needed, since no draw changes."""
    nameless = [without(slow("", at_s), ("id",)) for at_s in (0, 3)]
    left, asked = follow(with_fault_ids(plan(*nameless), SEED), lambda _: False)
    assert (["latency-1", "latency-2"], []) == ([each["id"] for each in left["faults"]], asked)


@pytest.mark.parametrize("fails", [True, False])
def test_an_id_that_changes_a_draw_is_tested(fails: bool) -> None:
    """A drawn role comes from a stream named by the id, so an id may change it."""
    document = plan({"for": "4s", "kind": "kill", "broker": "any broker except controller"})
    left, asked = follow(with_fault_ids(document, SEED), lambda _: fails)
    assert 1 == len(asked)
    assert fails == ("id" in left["faults"][0])


def test_the_refusal_of_an_invalid_candidate() -> None:
    """The refusal is the first problem of the check or the compiler."""
    assert "the topic `order` is not among" in refusal_of(plan({"kind": "elect", "topic": "order"}), SEED)
    assert "" == refusal_of(plan(slow("f0", 0)), SEED)
