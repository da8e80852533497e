"""Groups, administered. Each is known to its coordinator alone, so every request goes to one broker.

A group with members can't be deleted, and a client that was killed stays a member until its session times out: 45 s by
default. So members are made to leave first; a live one joins again, and then the group can't be deleted in peace.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, cast

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.static.primitive import i32Timedelta

from aftershock.faults.values import BrokerId
from aftershock.harness.admin import Admin

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
