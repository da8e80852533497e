"""Kafka's APIs and error codes by the names that Kafka gives them: ``OffsetCommit``, ``NOT_LEADER_OR_FOLLOWER``."""

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

API_KEYS: dict[str, int] = {
    "".join(word.capitalize() for word in name.split("_")): key for key, name in api_key_map.items()
}
"""Name -> API key."""

API_NAMES: dict[int, str] = {key: name for name, key in API_KEYS.items()}
"""API key -> name."""

ERROR_CODES: dict[str, int] = {code.name.upper(): code.value for code in ErrorCode if code.value}
"""Name -> error code."""

PRODUCE = API_KEYS["Produce"]
FETCH = API_KEYS["Fetch"]
API_VERSIONS = API_KEYS["ApiVersions"]
