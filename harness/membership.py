"""Who is a member of a group now, as its coordinator has it: asked over the listeners that no fault touches."""

from typing import Any, cast

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.static.protocol import RequestPayload

from aftershock.harness.admin import Admin
from aftershock.harness.pool.groups import groups


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
