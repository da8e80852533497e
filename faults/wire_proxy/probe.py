"""A request that does no harm, to see a rule at work: it names a topic that nobody has.

Only these APIs are probed. Each was tried on a real broker: what it is asked for is refused or is nothing.
"""

from collections.abc import Mapping
from uuid import UUID

from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.protocol import Entity, RequestPayload

from aftershock.errors import UnsupportedError
from aftershock.faults.wire_proxy.messages import API_KEYS, TOPIC_FIELDS, made, number_field, struct_of
from aftershock.workloads.kafka.wire.schema import plain_fields

PROBED = frozenset(
    {
        "Produce",
        "Fetch",
        "ListOffsets",
        "Metadata",
        "OffsetCommit",
        "OffsetFetch",
        "FindCoordinator",
        "JoinGroup",
        "Heartbeat",
        "SyncGroup",
        "ApiVersions",
        "InitProducerId",
        "OffsetForLeaderEpoch",
        "TxnOffsetCommit",
        "ConsumerGroupHeartbeat",
    }
)
_LISTS = frozenset({"topics", "topic_data", "groups"})
_NOBODYS = "aftershock-probe"
_NOBODYS_ID = UUID(int=0xAF7E_0000_0000_4000_8000_0000_0000_0001)
_SAID = {
    "client_software_name": "aftershock",
    "client_software_version": "1",
    "allow_auto_topic_creation": False,
    "key": _NOBODYS,
    "coordinator_keys": (_NOBODYS,),
    "acks": -1,
    "session_epoch": -1,
    "replica_id": -1,
}


def probe_request(api: str, offered: Mapping[int, tuple[int, int]]) -> RequestPayload:
    """In the highest version that the broker offers and kio knows; UnsupportedError where there is none."""
    lowest, highest = offered.get(API_KEYS[api], (0, -1))
    version = min(highest, max(_versions(api)))
    if version < lowest:
        raise UnsupportedError(f"the broker offers no version of {api} that a probe could be sent in")
    kind: type[Entity] = load_request_schema(API_KEYS[api], version)
    items = {field.name: (_item(struct),) for field in plain_fields(kind) if (struct := struct_of(field))}
    request: RequestPayload = made(kind, {name: item for name, item in items.items() if name in _LISTS} | _SAID)
    return request


def names_topics(api: str) -> bool:
    """Whether requests of an API name topics, in any version that kio knows."""
    return any(_names_topics(load_request_schema(API_KEYS[api], version)) for version in _versions(api))


def _item(kind: type[Entity]) -> Entity:
    said = {**dict.fromkeys(TOPIC_FIELDS, _NOBODYS), "group_id": _NOBODYS, "topic_id": _NOBODYS_ID}
    names = {field.name for field in plain_fields(kind)}
    said |= {"topic_id": None} if "name" in names else {}  # Metadata has room for both, and takes one of them
    partitions = {
        field.name: (made(struct, {}),)
        for field in plain_fields(kind)
        if (struct := struct_of(field)) and number_field(struct)
    }
    item: Entity = made(kind, {**said, **partitions})
    return item


def _names_topics(kind: type[Entity]) -> bool:
    below = [struct for field in plain_fields(kind) if (struct := struct_of(field))]
    return any(field.name in TOPIC_FIELDS for struct in below for field in plain_fields(struct))


def _versions(api: str) -> Mapping[int, object]:
    versions: Mapping[int, object] = schema_name_map[api_key_map[API_KEYS[api]]]
    return versions
