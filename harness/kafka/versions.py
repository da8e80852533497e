"""Versions of the harness's own requests, which are lowered for a broker that is older than Kafka 4.

The harness builds a request in one version. A broker that offers only older versions gets the request in the highest
version that it offers, down to ``OLDEST``, below which the harness could not use the response. Fields that an older
version lacks are left out; a response in an older version lacks fields too, which its reader must replace.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from kio.index import load_request_schema
from kio.schema.index import api_key_map
from kio.static.protocol import RequestPayload

from aftershock.errors import UnsupportedError
from aftershock.workloads.kafka.wire.codec import Versions

OLDEST = {
    "fetch": 11,  # older requests are answered by leaders only (KIP-392)
    "list_offsets": 1,
    "metadata": 4,  # the first version that does not create missing topics
    "offset_fetch": 8,
    "offset_for_leader_epoch": 3,  # the first version that a consumer may send
    "find_coordinator": 0,
    "leave_group": 3,
    "describe_groups": 4,
    "list_groups": 0,
    "delete_records": 0,
    "describe_configs": 1,
    "create_partitions": 0,
    "delete_groups": 0,
    "elect_leaders": 1,
    "incremental_alter_configs": 0,
    "describe_client_quotas": 0,
    "alter_client_quotas": 0,
    "describe_quorum": 0,
    "update_features": 1,
    "describe_cluster": 0,
    "consumer_group_heartbeat": 0,
    "consumer_group_describe": 0,
    "create_topics": 7,  # the first version that returns the topic's id
    "delete_topics": 6,  # the first version that deletes by id
    "offset_delete": 0,
    "alter_partition_reassignments": 0,
    "list_partition_reassignments": 0,
    "init_producer_id": 3,
    "describe_transactions": 0,
    "describe_producers": 0,
    "list_transactions": 0,
    "write_txn_markers": 1,
}
"""Lowest usable version by kio's name of the API; of other APIs only the version of the request is usable."""

# fields that only older versions have
_FORMER_FIELDS: Mapping[tuple[str, str], Callable[[Any], object]] = {
    ("find_coordinator", "key"): lambda request: request.coordinator_keys[0],
    ("metadata", "include_cluster_authorized_operations"): lambda _: False,
}


def api_title(name: str) -> str:
    """Return Kafka's name of an API, for example ``DescribeCluster`` for kio's ``describe_cluster``."""
    return "".join(word.capitalize() for word in name.split("_"))


def lowered(request: RequestPayload, versions: Versions) -> RequestPayload:
    """Return a request in a version that the broker offers; raise UnsupportedError if there is none."""
    key, version = int(request.__api_key__), int(request.__version__)
    name = api_key_map[key]
    oldest = OLDEST.get(name, version)
    lowest, highest = versions.offered.get(key, (0, -1))
    if highest < oldest or lowest > version:
        offered = f"only versions {lowest} to {highest}" if key in versions.offered else "no version"
        wanted = f"version {version}" if oldest == version else f"one of versions {oldest} to {version}"
        raise UnsupportedError(f"the broker offers {offered} of {api_title(name)}, and {wanted} is needed")
    if highest >= version:
        return request
    return _converted(request, load_request_schema(key, highest), name)  # type: ignore[no-any-return]


def _converted(value: Any, kind: Any, api: str) -> Any:
    values = {}
    for name in _field_names(kind):
        if hasattr(value, name):
            values[name] = _in_version(getattr(value, name), kind, api)
        elif former := _FORMER_FIELDS.get((api, name)):
            values[name] = former(value)
    return kind(**values)


def _in_version(value: Any, parent: Any, api: str) -> Any:
    """Return a field's value with the classes of the version to which the class ``parent`` belongs."""
    if isinstance(value, tuple):
        return tuple(_in_version(item, parent, api) for item in value)
    if is_dataclass(value):
        return _converted(value, getattr(sys.modules[parent.__module__], type(value).__name__), api)
    return value


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
