"""The history of leaders, merged from polls, the controllers' log, the leaders and the checkpoints."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.leader_history import (
    CONTRADICTION_US,
    EpochKey,
    LeaderPolls,
    PartitionView,
    Polled,
    WallClock,
    epoch_starts,
    history,
    parse_checkpoint,
    read_views,
)
from aftershock.harness.kafka.metadata_log import APPEND_LINGER_MS, Election
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.kafka.wire.batch_builder import build

ONE, TWO, THREE = map(BrokerId, (1, 2, 3))
S = 1_000_000
ORIGIN_US = 1_700_000_000 * S
WHERE: TopicPartition = ("orders", 0)
CLOCK = WallClock(ORIGIN_US, 0)
LATE_US = (APPEND_LINGER_MS + 1) * 1000


def view(epoch: int, leader: int | None = 1, topic_id: str = "id-1") -> PartitionView:
    return PartitionView("orders", topic_id, 0, epoch, leader, (1, 2))


def key(epoch: int, topic_id: str = "id-1") -> EpochKey:
    return EpochKey(topic_id, 0, epoch)


def elected(epoch: int, at_us: int, until_us: int | None = None, **how: Any) -> Election:
    """Return the election of broker 2 at this time of the run."""
    until_ms = None if until_us is None else (ORIGIN_US + until_us) // 1000
    fields = {"leader": 2, "isr": (2, 3), "unclean": False} | how
    return Election("orders", "id-1", 0, epoch, at_ms=(ORIGIN_US + at_us) // 1000, until_ms=until_ms, **fields)


def rows(
    polled: Mapping[EpochKey, Polled] | None = None,
    elections: list[Election] | None = None,
    clock: WallClock | None = CLOCK,
    starts: Any = None,
    checkpoints: Any = None,
) -> list[dict[str, Any]]:
    return history(polled or {}, elections or [], clock, starts or {}, checkpoints or {}, {"orders": "id-1"})


def test_polls_bound_an_election() -> None:
    """Elected after the last request that showed the older epoch, and before the first response that shows the new."""
    polls = LeaderPolls()
    polls.answered(ONE, 10, 11, [view(0)])
    polls.answered(TWO, 20, 21, [view(0)])
    polls.answered(ONE, 30, 31, [view(2, leader=2)])
    assert Polled(view(0), None, 11) == polls.first[key(0)]
    assert Polled(view(2, leader=2), 10, 31) == polls.first[key(2)]
    assert {"orders": "id-1"} == polls.topic_ids


def test_a_broker_that_is_cut_off_does_not_date_an_election_too_late() -> None:
    """Elected at 25: broker 2 showed the old epoch at 30 still, and broker 1 at 10 for the last time."""
    polls = LeaderPolls()
    polls.answered(ONE, 10, 11, [view(0)])
    polls.answered(TWO, 30, 31, [view(0)])
    polls.answered(THREE, 40, 41, [view(1)])
    assert 10 == polls.first[key(1)].after_us


def test_a_broker_that_does_not_answer_makes_no_bound_loose() -> None:
    polls = LeaderPolls()
    polls.answered(ONE, 10, 11, [view(0)])
    polls.failed(ONE)
    polls.answered(TWO, 90, 91, [view(0)])
    polls.answered(TWO, 100, 101, [view(1)])
    assert 90 == polls.first[key(1)].after_us


def test_a_topic_that_is_created_again_has_a_history_of_its_own() -> None:
    """The new id begins with the epoch 0 again, after the last response without it."""
    polls = LeaderPolls()
    polls.answered(ONE, 10, 11, [view(3)])
    polls.answered(ONE, 20, 21, [])
    polls.answered(ONE, 30, 31, [view(0, topic_id="id-2")])
    assert Polled(view(0, topic_id="id-2"), 20, 31) == polls.first[key(0, "id-2")]


def test_all_sources_make_one_line() -> None:
    """The controllers' log has the exact time; a poll came 400 ms later; broker 3 has another start."""
    line = rows(
        {key(5): Polled(view(5, leader=2), 8 * S, 10 * S + 400_000)},
        [elected(5, 10 * S)],
        starts={WHERE: {5: 812}},
        checkpoints={ONE: {WHERE: {4: 700, 5: 812}}, THREE: {WHERE: {5: 800}}, TWO: {("other", 0): {5: 1}}},
    )
    assert line == [
        {
            "topic": "orders", "topic_id": "id-1", "partition": 0, "epoch": 5, "leader": 2, "isr": [2, 3],
            "unclean": False, "start_offset": 812, "after_us": 10 * S, "by_us": 10 * S + LATE_US,
            "sources": ["controller", "polled", "leader", "checkpoint"], "checkpoints": {"3": 800},
        }
    ]  # fmt: skip


def test_without_the_controllers_log_the_polls_count() -> None:
    """As on an attached cluster. An epoch that no poll saw has its offset, and the times of its neighbours."""
    polled = {key(3): Polled(view(3), None, 2 * S), key(5): Polled(view(5, leader=None), 8 * S, 10 * S)}
    third, fourth, fifth = rows(polled, starts={WHERE: {3: 0, 4: 70, 5: 90}})
    assert (None, 2 * S, 0, ["polled", "leader"]) == tuple(
        third[name] for name in ("after_us", "by_us", "start_offset", "sources")
    )
    assert (None, None, None, 70, None, 10 * S, ["leader"]) == tuple(
        fourth[name] for name in ("leader", "isr", "unclean", "start_offset", "after_us", "by_us", "sources")
    )
    assert (None, [1, 2], None, 8 * S, 10 * S) == tuple(
        fifth[name] for name in ("leader", "isr", "unclean", "after_us", "by_us")
    )


def test_epochs_before_the_run_are_left_out() -> None:
    """The cluster is older than the run: only the epoch in which the run begins counts."""
    history_ = [elected(0, -90 * S, -60 * S), elected(1, -60 * S, 5 * S), elected(2, 5 * S)]
    assert [(1, -60 * S), (2, 5 * S)] == [(row["epoch"], row["after_us"]) for row in rows(elections=history_)]


@pytest.mark.parametrize("drift_us", [300_000, -300_000])
def test_a_wall_clock_that_drifts_widens_the_bounds(drift_us: int) -> None:
    """The clock is somewhere between its start and its drift."""
    (row,) = rows(elections=[elected(1, 10 * S)], clock=WallClock(ORIGIN_US, drift_us))
    assert row["after_us"] == 10 * S - max(0, drift_us)
    assert row["by_us"] == 10 * S + LATE_US + max(0, -drift_us)


@pytest.mark.parametrize("off_us", [-1, 1])
def test_a_wall_clock_of_another_host_is_not_believed(off_us: int) -> None:
    """If one election contradicts the polls, no times of the controllers count; the rest of their log does."""
    off_us *= CONTRADICTION_US + 2 * S
    polled = {key(0): Polled(view(0), None, S), key(1): Polled(view(1, leader=2), 29 * S, 30 * S)}
    elections = [elected(0, 0 + off_us, 30 * S + off_us), elected(1, 30 * S + off_us, unclean=True)]
    first, second = rows(polled, elections)
    assert (None, S) == (first["after_us"], first["by_us"])
    assert (29 * S, 30 * S, True) == (second["after_us"], second["by_us"], second["unclean"])
    assert 30 * S == rows(polled, [elected(1, 30 * S)])[1]["after_us"]


def test_without_a_clock_no_times_of_the_controllers_are_used() -> None:
    """As in a run whose faults set clocks. A topic of an earlier run is known by its id, which no poll has shown."""
    earlier = replace(elected(0, 0), topic_id="id-0")
    (row,) = rows({key(1): Polled(view(1), S, 2 * S)}, [earlier, elected(1, 70 * S)], clock=None)
    assert (S, 2 * S, ["controller", "polled"]) == (row["after_us"], row["by_us"], row["sources"])


def test_checkpoints() -> None:
    assert {1: 0, 5: 10} == parse_checkpoint(["0", "2", "1 0", "5 10"])
    assert {} == parse_checkpoint(["0", "0"])
    for damaged in (["1", "0"], ["0", "2", "1 0"], ["0"], ["0", "1", "x 1"]):
        with pytest.raises(ValueError, match=r"checkpoint|unpack|invalid literal"):
            parse_checkpoint(damaged)


def test_the_starts_of_epochs_are_asked_of_the_leaders() -> None:
    """Three records of epoch 0, none of 1, two of 2. A leader that does not answer leaves out only its partitions."""
    with ScriptedBroker(2) as cluster:
        cluster.create("orders", partitions=3)
        admin = Admin({BrokerId(node): address for node, address in cluster.addresses.items()})
        assert [(0, 1, 0), (1, 2, 0), (2, 1, 0)] == [
            (found.partition, found.leader, found.epoch) for found in read_views(admin, ONE, ["orders", "missing"])[0]
        ]
        cluster.append("orders", 0, build([b"x"] * 3, timestamps_ms=[0] * 3))
        cluster.move_leader("orders", 0, to=2)
        cluster.move_leader("orders", 0, to=1)
        cluster.append("orders", 0, build([b"x"] * 2, timestamps_ms=[0] * 2))
        cluster.move_leader("orders", 2, to=1, epoch=7)
        wanted = {("orders", 0): range(3), ("orders", 1): range(1, 2), ("orders", 2): range(7, 8)}
        wanted[("gone", 0)] = range(1)
        assert {0: 0, 1: 3, 2: 3} == epoch_starts(admin, wanted)[("orders", 0)]
        assert {7: 0} == epoch_starts(admin, wanted)[("orders", 2)]
        cluster.down(2)
        found = epoch_starts(admin, wanted)
        assert ({0: 0, 1: 3, 2: 3}, {}) == (found[("orders", 0)], found[("orders", 1)])
        admin.close()
