"""Groups, administered. Each is known to its coordinator alone, so every request goes to one broker.

A group with members can't be deleted, and a client that was killed stays a member until its session times out: 45 s by
default. So members are made to leave first; a live one joins again, and then the group can't be deleted in peace.

Who is a member of a group now, as its coordinator has it: asked over the listeners that no fault touches.

Fetch sessions of others, asked about and closed by their ids (KIP-227).

Kafka's ``FetchManager`` checks no ownership. A *full* request that names a session closes it, whoever's it is. An
*incremental* one whose epoch is wrong changes nothing, and its error tells whether the session exists: the id is not
found, or the epoch is not the session's.

The fetch sessions (KIP-227) that reference consumers have or had open, as their events tell.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.static.primitive import i32Timedelta
from kio.static.protocol import RequestPayload

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.kafka.admin import Admin

_LEAVING = -1  # the member epoch that says so (KIP-848)
_NO_MATTER = i32Timedelta.parse(timedelta(seconds=1))


def groups(admin: Admin, coordinator: BrokerId) -> dict[str, str]:
    """The groups that a broker coordinates, each with its type: "classic", "consumer", "share" or "streams"."""
    response = admin.ask(ListGroupsRequest(states_filter=(), types_filter=()), only=coordinator)
    return {group.group_id: group.group_type.lower() for group in response.groups}


def delete_group(admin: Admin, coordinator: BrokerId, group: str, kind: str) -> str:
    """Delete a group, or make its members leave so that the next attempt can; "" or what stood in the way."""
    response = admin.ask(DeleteGroupsRequest(groups_names=(cast("Any", group),)), only=coordinator)
    (result,) = response.results
    if result.error_code is ErrorCode.non_empty_group and kind in _EXPEL:
        expel(admin, coordinator, group, kind)
    if result.error_code in {ErrorCode.none, ErrorCode.group_id_not_found}:
        return ""
    return f"group {group} can't be deleted: {result.error_code.name.upper()}"


def expel(admin: Admin, coordinator: BrokerId, group: str, kind: str, clients: Collection[str] | None = None) -> None:
    """Make the members of a group leave: those of these clients (their ``client.id``), or all."""
    _EXPEL[kind](admin, coordinator, group, lambda member: clients is None or member.client_id in clients)


def _expel_classic(admin: Admin, coordinator: BrokerId, group: str, chosen: Callable[[Any], bool]) -> None:
    names = (cast("Any", group),)
    described = admin.ask(DescribeGroupsRequest(groups=names, include_authorized_operations=False), only=coordinator)
    members = tuple(
        MemberIdentity(member_id=m.member_id, group_instance_id=m.group_instance_id, reason="removed by Aftershock")
        for m in filter(chosen, described.groups[0].members)
    )
    admin.ask(LeaveGroupRequest(group_id=cast("Any", group), members=members), only=coordinator)


def _expel_consumers(admin: Admin, coordinator: BrokerId, group: str, chosen: Callable[[Any], bool]) -> None:
    names = (cast("Any", group),)
    request = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=False)
    for member in filter(chosen, admin.ask(request, only=coordinator).groups[0].members):
        leave = ConsumerGroupHeartbeatRequest(
            group_id=cast("Any", group),
            member_id=member.member_id,
            member_epoch=cast("Any", _LEAVING),
            instance_id=member.instance_id,
            rack_id=None,
            rebalance_timeout=_NO_MATTER,
            subscribed_topic_names=None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=None,
        )
        admin.ask(leave, only=coordinator)


_EXPEL: Mapping[str, Callable[[Admin, BrokerId, str, Callable[[Any], bool]], None]] = {
    "classic": _expel_classic,
    "consumer": _expel_consumers,
}


def member_clients(admin: Admin, group: str) -> frozenset[str]:
    """The client ids of a group's members; none where there is no such group. AdminError if nobody answers."""
    coordinator = admin.coordinator(group)
    kind = groups(admin, coordinator).get(group)
    described = admin.ask(_describe(group, kind), only=coordinator)
    return frozenset(member.client_id for each in described.groups for member in each.members)


def _describe(group: str, kind: str | None) -> RequestPayload:
    """A group of KIP-848 is described by a request of its own; to the other one it isn't there."""
    names = (cast("Any", group),)
    if kind == "consumer":
        return ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=False)
    return DescribeGroupsRequest(groups=names, include_authorized_operations=False)


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


_OPENED = "session_established"
_CLOSED = {"session_refused", "session_lost", "session_reset", "session_closed"}


Session = tuple[BrokerId, int]


def open_sessions(events: Iterable[Mapping[str, Any]], worker: str) -> dict[BrokerId, int]:
    """The id of the session with each broker. The events of a run, in the order in which they were written."""
    sessions: dict[BrokerId, int] = {}
    for line in events:
        if line.get("worker") == worker and line.get("event") == _OPENED:
            sessions[BrokerId(line["node_id"])] = line["session_id"]
        elif line.get("worker") == worker and line.get("event") in _CLOSED:
            sessions.pop(BrokerId(line["node_id"]), None)
    return sessions


def told_sessions(events: Iterable[Mapping[str, Any]]) -> list[Session]:
    """Every session that was ever granted to any of them."""
    return sorted({(BrokerId(line["node_id"]), line["session_id"]) for line in events if line.get("event") == _OPENED})


def still_open(sessions: Iterable[Session], admin: Admin) -> list[Session] | None:
    """Those that their brokers know; None where a broker doesn't tell."""
    try:
        return [each for each in sessions if is_open(admin, *each)]
    except AdminError:
        return None
