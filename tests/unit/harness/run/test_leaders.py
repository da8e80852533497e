"""The recorder of leaders: what it polls, and what it writes when sources fail."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aftershock.errors import ClusterError, ProtocolError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.metadata_log import elections
from aftershock.harness.kafka.settings import topic_ids
from aftershock.harness.run import leaders, polling
from aftershock.harness.run.leaders import LeaderRecorder
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.tests.scripted_broker import ScriptedBroker

SEGMENT = Path(__file__).parents[3] / "data" / "metadata_log" / "00000000000000000000.log"
TOPICS = [{"name": "orders"}]


@pytest.fixture
def brokers() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(2) as cluster:
        cluster.create("orders", partitions=1)
        yield cluster


@pytest.fixture
def admin(brokers: ScriptedBroker) -> Iterator[Admin]:
    with closing(Admin({BrokerId(node): address for node, address in brokers.addresses.items()})) as admin:
        yield admin


@dataclass
class Target:
    """A cluster without files, as an attached one."""

    admin: Admin

    def metadata_log(self) -> bytes:
        return b""

    def epoch_checkpoints(self) -> Mapping[Any, Any]:
        return {}


class Failing(Target):
    """A launched cluster whose nodes can't be read."""

    def metadata_log(self) -> bytes:
        raise ClusterError("k1 is gone")

    def epoch_checkpoints(self) -> Mapping[Any, Any]:
        raise ClusterError("k2 is gone")


def recorder(target: Any, folder: Path, **timeline: Any) -> LeaderRecorder:
    home = RunDir.create(folder, "plan", 1, "aftershock run plan")
    clock = RunClock.starting_now()
    home.update(origin_unix_us=time.time_ns() // 1000 - clock.now_us())
    plan = SimpleNamespace(**{"topics": TOPICS, "workloads": [{"consume": None}], "steps": [], **timeline})
    return LeaderRecorder(target, cast("Any", plan), home, clock)


def written(recorder: LeaderRecorder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (recorder._home.path / "leaders.jsonl").read_text().splitlines()]


async def until_polled(brokers: ScriptedBroker, count: int) -> None:
    for _ in range(200):
        if len(brokers.journal("Metadata")) >= count:
            return
        await asyncio.sleep(0.05)
    pytest.fail("not polled")


async def test_brokers_are_polled_in_turn(
    brokers: ScriptedBroker, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of leaders is bounded by the polls, and its offset comes from the new leader."""
    monkeypatch.setattr(polling, "PERIOD_US", 20_000)
    record = recorder(Target(admin), tmp_path)
    async with record:
        await until_polled(brokers, 4)
        before_us = record._clock.now_us()
        brokers.move_leader("orders", 0, to=2)
        moved_us = record._clock.now_us()
        await until_polled(brokers, len(brokers.journal("Metadata")) + 4)
    await record.write(pytest.fail)
    assert {1, 2} == {request.node for request in brokers.journal("Metadata")}
    first, second = written(record)
    assert (0, 1, None, 0) == tuple(first[name] for name in ("epoch", "leader", "after_us", "start_offset"))
    assert (1, 2, 0, ["polled", "leader"]) == tuple(
        second[name] for name in ("epoch", "leader", "start_offset", "sources")
    )
    assert second["after_us"] <= before_us
    assert moved_us <= second["by_us"] + 1_000
    assert second["unclean"] is None


async def test_a_source_that_fails_is_said_and_left_out(admin: Admin, tmp_path: Path) -> None:
    said: list[str] = []
    record = recorder(Failing(admin), tmp_path)
    await record.write(said.append)
    (row,) = written(record)
    assert ["polled", "leader"] == row["sources"]
    assert ["the controllers' log: k1 is gone", "the brokers' checkpoints: k2 is gone"] == [
        line.partition("without ")[2] for line in said
    ]


async def test_without_any_answer_there_is_an_empty_document(
    brokers: ScriptedBroker, admin: Admin, tmp_path: Path
) -> None:
    """The document says that this version records leaders."""
    for node in (1, 2):
        brokers.down(node)
    record = recorder(Failing(admin), tmp_path)
    await record.write(lambda _: None)
    assert [] == written(record)


async def test_a_metadata_log_that_is_not_understood_is_left_out(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise ProtocolError("a record of the metadata log has type 3 in the unknown version 9")

    monkeypatch.setattr(leaders, "elections", refuse)
    said: list[str] = []
    record = recorder(Target(admin), tmp_path)
    await record.write(said.append)
    assert ["polled", "leader"] == written(record)[0]["sources"]
    assert "unknown version 9" in said[0]


@pytest.mark.parametrize(
    ("workload", "topics"),
    [
        ({"consume": None}, ["orders"]),
        ({"consume": {"group": None}, "arms": {"a": {}}}, ["orders"]),
        ({"consume": {"group": "g"}, "arms": {"a": {}}}, ["orders", "__consumer_offsets", "__share_group_state"]),
        (
            {"consume": None, "commit": {"groups": 4}, "arms": {"a": {"settings": {}}}},
            ["orders", "__consumer_offsets", "__share_group_state"],
        ),
        (
            {"consume": None, "commit": {"groups": 4}, "arms": {"a": {"settings": {"transactional": True}}}},
            ["orders", "__consumer_offsets", "__share_group_state", "__transaction_state"],
        ),
        ({"consume": None, "produce": {"transaction": {"records": 9}}}, ["orders", "__transaction_state"]),
        ({"consume": None, "pipe": {"transactional": True}}, ["orders", "__transaction_state"]),
    ],
)
def test_the_topics_of_coordinators_are_recorded_if_groups_matter(
    workload: Mapping[str, Any], topics: list[str], admin: Admin, tmp_path: Path
) -> None:
    assert topics == recorder(Target(admin), tmp_path, workloads=[workload])._topics


@pytest.mark.parametrize(("needs", "times"), [((), True), (("clocks",), False)])
async def test_clock_faults_make_the_controllers_times_useless(
    needs: tuple[str, ...], times: bool, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The elections themselves stay."""
    target, topic_id = Target(admin), topic_ids(admin)["orders"]
    elected = [replace(election, topic_id=topic_id) for election in elections(SEGMENT.read_bytes(), {"orders"})]
    monkeypatch.setattr(leaders, "elections", lambda *_: elected)
    fault = SimpleNamespace(cluster_needs=lambda: needs)
    record = recorder(target, tmp_path, steps=[SimpleNamespace(fault=lambda: fault)])
    record._home.update(origin_unix_us=1_795_878_010_000_000)
    record._clock = RunClock(time.monotonic_ns() - (time.time_ns() - 1_795_878_010_000_000_000))
    await record.write(pytest.fail)
    rows = [row for row in written(record) if "controller" in row["sources"]]
    assert len(rows) == 8
    assert {times} == {row["after_us"] is not None for row in rows}
