"""Which version of an API to speak: the highest that the broker offers, kio knows and the caller allows."""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache

from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.protocol import RequestPayload

from aftershock.errors import UnsupportedError


class Api(IntEnum):
    """Kafka's API keys that the reference clients use."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    CONSUMER_GROUP_HEARTBEAT = 68


@cache
def known_versions(api: Api) -> range:
    """The versions that kio has of an API."""
    versions = schema_name_map[api_key_map[api]]
    return range(min(versions), max(versions) + 1)


@cache
def request_type(api: Api, version: int) -> type[RequestPayload]:
    """The request class of that version. Its first use imports it, 10 ms and more for the larger ones.

    Raises:
        UnsupportedError: kio has no such version.
    """
    if version not in known_versions(api):
        raise UnsupportedError(f"{api.name}: version {version} is asked for, this client knows {_span(api)}")
    return load_request_schema(api, version)


class Versions:
    """What one broker offers: API key -> (lowest version, highest version)."""

    def __init__(self, offered: Mapping[int, tuple[int, int]]) -> None:
        self.offered = dict(offered)

    def pick(self, api: Api, cap: int | None = None) -> int:
        """The highest version that both sides have, at most ``cap``.

        Raises:
            UnsupportedError: they have none in common.
        """
        if api not in self.offered:
            raise UnsupportedError(
                f"the broker doesn't offer {api.name}; this client needs one of versions {_span(api)}"
            )
        lowest, highest = self.offered[api]
        known = known_versions(api)
        version = min(highest, known[-1], known[-1] if cap is None else cap)
        if version < max(lowest, known[0]):
            limit = "" if cap is None else f", of which at most {cap} may be used"
            raise UnsupportedError(
                f"{api.name}: the broker offers versions {lowest} to {highest}, this client knows {_span(api)}{limit}"
            )
        return version


def _span(api: Api) -> str:
    known = known_versions(api)
    return f"{known[0]} to {known[-1]}"
