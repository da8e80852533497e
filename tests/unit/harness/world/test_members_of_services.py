"""Which members a coordinator lists for a client, and the removal of a service's member."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aftershock.errors import FaultError
from aftershock.faults.targets.values import GroupMember
from aftershock.harness.world import kafka
from aftershock.harness.world.client_processes import ClientProcesses
from aftershock.harness.world.group_members import write_owners
from aftershock.harness.world.kafka import ClientsWorld
from aftershock.workloads.load.assignment import ConsumeAssignment, PipeAssignment
from aftershock.workloads.load.spool import write_assignment

COMMON = {"run_id": "r", "origin_ns": 0, "workload": "w", "arm": "a", "topic": "orders", "topic_id": "i", "rack": "a"}
ONE, TWO, READER = "w-a-pipe-1", "w-a-pipe-2", "w-a-consume"


class World(ClientsWorld):
    """Operations on the clients of a spool; ``evicted`` are the ids that were removed."""

    def __init__(self, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clients = ClientProcesses("r", spool)
        self._cluster = cast("Any", SimpleNamespace(admin=None))
        self.listed: list[GroupMember] = []
        self.evicted: list[frozenset[str]] = []
        monkeypatch.setattr(kafka.groups, "members", lambda *_: self.listed)
        monkeypatch.setattr(kafka.groups, "evict_members", lambda _admin, _group, ids: self.evicted.append(ids))
        common = COMMON | {"spool": spool, "events": spool / "e", "partitions": 2, "bootstrap": "b:9"}
        for worker in (ONE, TWO):
            (spool / worker).mkdir()
            pipe = {"worker": worker, "to": "billed", "group": "biller", "command": ["billing"]}
            write_assignment(spool / worker, PipeAssignment.model_validate(common | pipe | {"client": "service"}))
        (spool / READER).mkdir()
        reader = common | {"worker": READER, "group": "readers"}
        write_assignment(spool / READER, ConsumeAssignment.model_validate(reader))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def member(name: str, client: str = "rdkafka") -> GroupMember:
    return GroupMember(client, name, None, frozenset())


async def test_a_consumer_is_known_by_its_client_id(world: World) -> None:
    world.listed = [member("x", READER), member("y")]
    assert frozenset({"x"}) == await world.member_ids(READER)
    world.listed = [member("y")]
    assert await world.in_group(READER) is False


async def test_a_process_of_a_service_is_known_by_what_the_run_found_out(world: World, tmp_path: Path) -> None:
    world.listed = [member("a"), member("b")]
    assert [None, None] == [await world.in_group(worker) for worker in (ONE, TWO)]
    write_owners(tmp_path, {"biller": {"a": {ONE}, "b": {TWO}}})
    assert [True, True] == [await world.in_group(worker) for worker in (ONE, TWO)]
    world.listed = [member("b")]
    assert [False, True] == [await world.in_group(worker) for worker in (ONE, TWO)]


async def test_the_member_of_a_process_is_removed(world: World, tmp_path: Path) -> None:
    world.listed = [member("a"), member("b")]
    with pytest.raises(FaultError, match="can't be told from other members"):
        await world.evict_client(ONE)
    write_owners(tmp_path, {"biller": {"a": {ONE}, "b": {TWO}}})
    assert frozenset({"a"}) == await world.evict_client(ONE)
    assert [frozenset({"a"})] == world.evicted
