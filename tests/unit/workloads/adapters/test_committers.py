"""Committers as the worker drives them: the reference client over a scripted broker, confluent's over librdkafka's
mock cluster.
"""

import json
from bisect import bisect_right
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from aftershock.errors import SettingError, WorkloadError
from aftershock.names import key_partition
from aftershock.tests.mock_cluster import MockCluster
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.adapters.steps import TOPIC, answered, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.load.assignment import Go, Stop
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.worker import Client, make_client

S = 1_000_000


def committer(bench: Bench, **changes: Any) -> Client:
    told = bench.commit(**changes)
    client = make_client(told, bench.now_us, Events(told, bench.now_us))
    client.prepare()
    return client


def commits(bench: Bench, client: Client, for_us: int = S // 2) -> dict[str, Any]:
    """Go for ``for_us`` (200 commits a second), then stop; return the answer to the stop."""
    now_us = bench.now_us()
    client.obey(Go(start_us=now_us))
    client.obey(Stop(at_us=now_us + for_us))
    return answered(client)


def events(bench: Bench) -> list[str]:
    return [json.loads(line)["event"] for line in bench.events.read_text().splitlines()]


def test_every_commit_has_its_row(here: Bench, broker: ScriptedBroker) -> None:
    """100 commits of five groups: rows in the order of their numbers; the cluster has the last commit of each group."""
    client = committer(here)
    assert {"did": "stop", "unreported": 0} == commits(here, client)
    client.close()
    found = rows(here, "o0")
    assert [("commit", "ok", 1, 1)] * 100 == [(r["op"], r["status"], r["broker_id"], r["attempts"]) for r in found]
    assert [(n % 5 % 4, n // 5) for n in range(100)] == [(row["partition"], row["offset"]) for row in found]
    for number in range(5):
        assert {(TOPIC, number % 4): 19} == broker.committed(f"orders-baseline-{number}")
    counters = client.counters()
    assert (100, 100, 100, 5) == tuple(counters[name] for name in ("sent", "ok", "commits_sent", "coordinator_lookups"))


def test_a_transactional_arm_commits_in_transactions_only(here: Bench, broker: ScriptedBroker) -> None:
    """The setting ``transactional`` turns each commit into a transaction."""
    client = committer(here, settings={"transactional": True}, rate_per_s=50)
    commits(here, client)
    client.close()
    assert {"ok"} == {row["status"] for row in rows(here, "o0")}
    assert not broker.journal("OffsetCommit")
    assert 25 == client.counters()["transactions_committed"]


def test_a_coordinator_that_moves_costs_a_retry_and_no_commit(here: Bench, broker: ScriptedBroker) -> None:
    """During the load: all commits are acknowledged, the events list the retry, and the group has the newest
    positions.
    """
    client = committer(here, groups=1)
    broker.script("OffsetCommit", nth=20, times=3, error=16)
    commits(here, client)
    client.close()
    assert {"ok"} == {row["status"] for row in rows(here, "o0")}
    assert {(TOPIC, 0): 99} == broker.committed("orders-baseline-0")
    assert 3 == events(here).count("commit_retried")
    assert 4 == client.counters()["coordinator_lookups"]


@pytest.mark.parametrize(("error", "status"), [(30, "failed"), (-1, "in_doubt")])
def test_the_row_of_a_refused_commit_has_the_error(
    here: Bench, broker: ScriptedBroker, error: int, status: str
) -> None:
    """An error of the group means failed; an unknown error means in doubt."""
    client = committer(here)
    broker.script("OffsetCommit", nth=7, error=error)
    commits(here, client)
    client.close()
    found = rows(here, "o0")
    assert [status] == [row["status"] for row in found if row["status"] != "ok"]


def test_settings_of_other_clients_are_ignored(here: Bench) -> None:
    """An arm's settings are for its clients of every kind; a setting that no client has is refused."""
    committer(here, settings={"linger.ms": 5, "fetch.max.wait.ms": 100}, switches={"fetch_session": False}).close()
    with pytest.raises(SettingError, match="transactional"):
        committer(here, worker="o1", settings={"transactionl": True})


# ---- closed loop


def test_a_closed_loop_keeps_its_in_flight_limit(here: Bench, broker: ScriptedBroker) -> None:
    """Eight commits are sent before the first is done, and never more; each next commit is due when one is done."""
    client = committer(here, rate_per_s=None, in_flight=8, groups=40)
    assert {"did": "stop", "unreported": 0} == commits(here, client)
    client.close()
    found = rows(here, "o0")
    assert len(found) > 80
    assert {"ok"} == {row["status"] for row in found}
    assert {(n % 40 % 4, n // 40) for n in range(len(found))} == {(row["partition"], row["offset"]) for row in found}
    ends = sorted(row["done_us"] for row in found)
    under_way = [n + 1 - bisect_right(ends, row["sent_us"]) for n, row in enumerate(found)]
    assert [1, 2, 3, 4, 5, 6, 7, 8] == under_way[:8]
    assert 8 == max(under_way)
    assert all(row["intended_us"] >= ends[n - 8] for n, row in enumerate(found) if n >= 8)
    assert len(broker.journal("OffsetCommit")) == len(found)


def test_a_closed_loop_waits_for_commits_in_flight(here: Bench, broker: ScriptedBroker) -> None:
    """A commit that is never answered keeps its place until its deadline; no commit is sent after the stop."""
    client = committer(here, rate_per_s=None, in_flight=1, groups=2, deadline_ms=400)
    broker.script("OffsetCommit", nth=3, answer="lost")
    now_us = here.now_us()
    client.obey(Go(start_us=now_us))
    client.obey(Stop(at_us=now_us + S // 2))
    assert {"did": "stop", "unreported": 0} == answered(client)
    client.close()
    found = rows(here, "o0")
    assert 1 == sum(row["status"] == "in_doubt" for row in found)
    assert all(later["sent_us"] >= row["done_us"] for row, later in pairwise(found))
    assert all(now_us <= row["intended_us"] < now_us + S // 2 for row in found)


def test_groups_are_dealt_coordinator_by_coordinator(here: Bench) -> None:
    """The evidence names the groups in the order in which they were dealt."""
    client = committer(here, groups=30, offsets_partitions=3)
    commits(here, client)
    client.close()
    parts = [key_partition(row["group"], 3) for row in rows(here, "o0")]
    assert parts[:30] == sorted(parts[:30]) == parts[30:60]


# ---- confluent-kafka's


def kept(cluster: MockCluster, group: str, topic: str, partition: int) -> int:
    """Return the group's committed offset in the cluster."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
    (future,) = admin.list_consumer_group_offsets([wanted]).values()
    (place,) = future.result(10).topic_partitions
    return int(place.offset)


def test_confluents_commits_are_acked_and_stored(live_bench: Bench, mock_cluster: MockCluster) -> None:
    """The admin client commits for groups without members; the cluster has the last commit of each group."""
    client = committer(live_bench, workload=live_bench.topic)
    assert {"did": "stop", "unreported": 0} == commits(live_bench, client)
    assert ["ok"] * 100 == [row["status"] for row in rows(live_bench, "o0")]
    for number in range(5):
        group = f"{live_bench.topic}-baseline-{number}"
        assert 19 == kept(mock_cluster, group, live_bench.topic, number % 4)
    assert {"sent": 100, "ok": 100, "failed": 0, "in_doubt": 0} == client.counters()


def test_confluents_unanswered_commits_are_in_doubt(live_bench: Bench, mock_cluster: MockCluster) -> None:
    """Without brokers no commit is acked, and each ends at its deadline in doubt."""
    client = committer(live_bench, deadline_ms=500, rate_per_s=20)
    mock_cluster.down()
    try:
        assert {"did": "stop", "unreported": 0} == commits(live_bench, client)
    finally:
        mock_cluster.up()
    client.step(S)
    found = rows(live_bench, "o0")
    assert [("in_doubt", "_TIMED_OUT")] * 10 == [(row["status"], row["error"]) for row in found]
    assert all(row["done_us"] >= row["deadline_us"] for row in found)


def test_confluents_traffic_is_counted(live_bench: Bench) -> None:
    """librdkafka's statistics arrive during the load; exposure is derived from them."""
    client = committer(live_bench)
    commits(live_bench, client, for_us=3 * S)
    progress = client.progress()
    assert sum(sent for sent, _ in progress["traffic"].values()) > 0
    assert progress["window"]


def test_confluents_settings_that_the_harness_needs_are_refused(live_bench: Bench) -> None:
    with pytest.raises(WorkloadError, match="group"):
        committer(live_bench, settings={"group.id": "g"})
