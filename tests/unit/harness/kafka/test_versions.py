"""Requests of the harness in older versions: kio writes and reads each, and no value that exists there is lost."""

import io
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.protocol import RequestPayload

from aftershock.errors import AdminError, UnsupportedError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka import groups, replicas, settings
from aftershock.harness.kafka.admin import TOPIC, Admin
from aftershock.harness.kafka.versions import OLDEST, lowered
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.workloads.kafka.wire.codec import Versions
from aftershock.workloads.kafka.wire.connection import Connection

ONE = BrokerId(1)


class SentError(Exception):
    """Ends the caller, whose request is recorded."""


class Recording(Admin):
    def __init__(self) -> None:
        super().__init__({})
        self.requests: list[RequestPayload] = []

    def ask(self, request: RequestPayload, *_: Any, **__: Any) -> Any:
        self.requests.append(request)
        raise SentError


CALLS: dict[str, Callable[[Admin], object]] = {
    "describe_cluster": Admin.members,
    "describe_quorum": Admin.quorum,
    "metadata": lambda admin: admin.partitions(["orders"]),
    "create_topics": lambda admin: admin.create_topic("orders", 3, 1, {"retention.ms": "1"}),
    "delete_topics": lambda admin: admin.delete_topics(["orders"]),
    "describe_configs": lambda admin: admin.configs(TOPIC, "orders"),
    "incremental_alter_configs": lambda admin: admin.alter_configs(TOPIC, "orders", {"retention.ms": "1"}),
    "alter_partition_reassignments": lambda admin: admin.reassign({("orders", 0): [1, 2]}),
    "list_partition_reassignments": Admin.reassigning,
    "elect_leaders": lambda admin: admin.elect_unclean([("orders", 0)]),
    "find_coordinator": lambda admin: admin.coordinator("readers"),
    "list_groups": lambda admin: groups.groups(admin, ONE),
    "delete_groups": lambda admin: groups.delete_group(admin, ONE, "readers", "classic"),
    "describe_groups": lambda admin: groups._describe(admin, ONE, "readers", "classic"),
    "consumer_group_describe": lambda admin: groups._describe(admin, ONE, "readers", "consumer"),
    "fetch": lambda admin: replicas.fetch_from(admin, ONE, ("orders", 0), 7),
    "describe_client_quotas": settings.quotas,
    "alter_client_quotas": lambda admin: settings.change(admin, "client", "ours", {"producer_byte_rate": "1"}),
    "create_partitions": lambda admin: settings.add_partitions(admin, "orders", 6),
}


@pytest.mark.parametrize("api", CALLS)
def test_every_older_version_can_be_written_and_read(api: str) -> None:
    """Of each request, in each version from the oldest usable to the request's own."""
    admin = Recording()
    with suppress(SentError):
        CALLS[api](admin)
    (request,) = admin.requests
    key = int(request.__api_key__)
    assert api == api_key_map[key]
    for version in range(OLDEST[api], request.__version__ + 1):
        older = lowered(request, Versions({key: (0, version)}))
        buffer = io.BytesIO()
        entity_writer(type(older))(buffer, older)
        again, _ = entity_reader(type(older))(buffer.getvalue(), 0)
        assert (version, older) == (again.__version__, again)
        for name in ("topics", "groups", "coordinator_keys", "groups_names", "max_bytes"):
            assert not hasattr(again, name) or bool(getattr(again, name)) == bool(getattr(request, name))


def test_a_value_under_an_older_name_is_kept() -> None:
    """FindCoordinator has one key before version 4 (KIP-699)."""
    admin = Recording()
    with suppress(SentError):
        admin.coordinator("readers")
    assert "readers" == lowered(admin.requests[0], Versions({10: (0, 3)})).key  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("offered", "says"),
    [
        ({}, "offers no version of DescribeCluster, and one of versions 0 to 2 is needed"),
        ({60: (3, 4)}, "offers only versions 3 to 4 of DescribeCluster, and one of versions 0 to 2 is needed"),
    ],
)
def test_without_a_common_version_the_api_is_named(offered: dict[int, tuple[int, int]], says: str) -> None:
    admin = Recording()
    with suppress(SentError):
        admin.members()
    with pytest.raises(UnsupportedError, match=says):
        lowered(admin.requests[0], Versions(offered))


def test_an_admin_speaks_to_an_older_broker() -> None:
    """Metadata v5 has no topic ids and no leader epochs; FindCoordinator v2 has one key; other APIs are missing."""
    versions = {"Metadata": (0, 5), "FindCoordinator": (0, 2), "ListOffsets": (1, 3)}
    with ScriptedBroker(2, racks=["a", "b"], versions=versions) as broker:
        broker.create("orders", partitions=2)
        admin = Admin({BrokerId(node): address for node, address in broker.addresses.items()})
        assert ("orders",) == admin.topics()
        assert [(0, 1, -1), (1, 2, -1)] == [
            (state.partition, state.leader, state.leader_epoch) for state in admin.partitions(["orders"])
        ]
        assert {"orders": ""} == settings.topic_ids(admin)
        assert ONE == admin.coordinator("readers")
        assert {("orders", 0): (0, 0), ("orders", 1): (0, 0)} == replicas.log_ends(admin, "orders")
        with pytest.raises(AdminError, match="no version of DescribeCluster") as failure:
            admin.members()
        assert "UNSUPPORTED_VERSION" == failure.value.code
        assert {5} == {request.version for request in broker.journal("Metadata")}
        admin.close()


def test_a_connection_asks_for_the_versions_once() -> None:
    """With ApiVersions v4 refused, in the version that the broker names (KIP-511)."""
    with ScriptedBroker(versions={"ApiVersions": (0, 2)}) as broker:
        with Connection(broker.addresses[1], 5) as connection:
            assert (0, 2) == connection.versions.offered[18]
            assert connection.versions is connection.versions
        assert [2] == [request.version for request in broker.journal("ApiVersions")]  # v4 was refused
