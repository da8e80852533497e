"""Fetch sessions of others, asked about and closed by their ids (KIP-227).

Kafka's ``FetchManager`` checks no ownership. A *full* request that names a session closes it, whoever's it is. An
*incremental* one whose epoch is wrong changes nothing, and its error tells whether the session exists: the id is not
found, or the epoch is not the session's.
"""

from datetime import timedelta
from typing import Any, cast

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.static.primitive import i32Timedelta

from aftershock.errors import AdminError
from aftershock.faults.values import BrokerId
from aftershock.harness.admin import Admin

_AT_ONCE = i32Timedelta.parse(timedelta(0))
_FINAL_EPOCH = -1  # full, and asks for no session in the place of the one that it closes
_WRONG_EPOCH = 2**31 - 1  # a session would have to be fetched over for years to come to it


def is_open(admin: Admin, broker: BrokerId, session: int) -> bool:
    """Whether the broker knows a session of this id."""
    code = _fetch(admin, broker, session, _WRONG_EPOCH)
    if code not in {ErrorCode.invalid_fetch_session_epoch, ErrorCode.fetch_session_id_not_found}:
        raise AdminError(f"k{broker} does not tell of fetch session {session}: {code.name.upper()}", code.name.upper())
    return code is ErrorCode.invalid_fetch_session_epoch


def close(admin: Admin, broker: BrokerId, session: int) -> int:
    """Close it; Kafka's error code, 0 for none, also where there was no such session."""
    return int(_fetch(admin, broker, session, _FINAL_EPOCH).value)


def _fetch(admin: Admin, broker: BrokerId, session: int, epoch: int) -> ErrorCode:
    request = FetchRequest(
        max_wait=_AT_ONCE,
        min_bytes=cast("Any", 0),
        session_id=cast("Any", session),
        session_epoch=cast("Any", epoch),
        topics=(),
        forgotten_topics_data=(),
    )
    return cast("ErrorCode", admin.ask(request, only=broker).error_code)
