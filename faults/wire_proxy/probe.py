"""Probes, harmless requests about a topic that doesn't exist, which show the effect of a wire proxy rule.

A test on a real broker shows that the broker refuses the probe of each API in ``rules.PROBED``, or changes nothing.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.protocol import Entity, RequestPayload

from aftershock.errors import UnsupportedError
from aftershock.faults.wire_proxy.messages import build_entity, number_field, struct_of
from aftershock.faults.wire_proxy.rules import API_KEYS, TOPIC_FIELDS
from aftershock.workloads.kafka.wire.schema import plain_fields

_LISTS = frozenset({"topics", "topic_data", "groups"})
_UNUSED_NAME = "aftershock-probe"
_UNUSED_ID = UUID(int=0xAF7E_0000_0000_4000_8000_0000_0000_0001)
_VALUES: dict[str, Any] = {
    "client_software_name": "aftershock",
    "client_software_version": "1",
    "allow_auto_topic_creation": False,
    "key": _UNUSED_NAME,
    "coordinator_keys": (_UNUSED_NAME,),
    "acks": -1,
    "session_epoch": -1,
    "replica_id": -1,
}


def probe_request(api: str, offered: Mapping[int, tuple[int, int]]) -> RequestPayload:
    """Build a probe in the highest API version that broker and kio know; raise UnsupportedError without one."""
    lowest, highest = offered.get(API_KEYS[api], (0, -1))
    version = min(highest, max(_versions(api)))
    if version < lowest:
        raise UnsupportedError(f"the broker offers no version of {api} that a probe can be sent in")
    kind: type[Entity] = load_request_schema(API_KEYS[api], version)
    values = dict(_VALUES)
    for field in plain_fields(kind):
        if field.name in _LISTS and (struct := struct_of(field)):
            item: dict[str, Any] = dict.fromkeys((*TOPIC_FIELDS, "group_id"), _UNUSED_NAME)
            subfields = plain_fields(struct)
            # Metadata has both a name and an id, and accepts only one value
            item["topic_id"] = None if any(subfield.name == "name" for subfield in subfields) else _UNUSED_ID
            for subfield in subfields:
                if (partition := struct_of(subfield)) and number_field(partition):
                    item[subfield.name] = (build_entity(partition, {}),)
            values[field.name] = (build_entity(struct, item),)
    request: RequestPayload = build_entity(kind, values)
    return request


def names_topics(api: str) -> bool:
    """Return True if requests of an API name topics in any version that kio knows."""
    kinds = [load_request_schema(API_KEYS[api], version) for version in _versions(api)]
    structs = [struct for kind in kinds for field in plain_fields(kind) if (struct := struct_of(field))]
    return any(field.name in TOPIC_FIELDS for struct in structs for field in plain_fields(struct))


def _versions(api: str) -> Mapping[int, object]:
    versions: Mapping[int, object] = schema_name_map[api_key_map[API_KEYS[api]]]
    return versions
