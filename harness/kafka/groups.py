"""Administration of consumer groups (list, delete, remove members) and of consumers' fetch sessions.

The harness can query and close a client's fetch session (KIP-227) by the session's id, because Kafka's
``FetchManager`` checks no ownership. A *full* Fetch request with a session id closes that session. An *incremental*
Fetch request with a wrong epoch only returns an error, whose code shows whether the session exists.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from struct import unpack_from
from typing import Any, cast

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.offset_delete.v0 import request as offset_delete
from kio.schema.offset_fetch.v9 import request as offset_fetch
from kio.static.primitive import i32Timedelta
from kio.static.protocol import RequestPayload

from aftershock.errors import AdminError, FaultError
from aftershock.faults.targets.values import BrokerId, GroupMember, TopicPartition
from aftershock.harness.kafka.admin import Admin, message, per_topic, raise_for

_LEAVE_EPOCH = -1  # member epoch of a leaving member (KIP-848)
_FINAL_EPOCH = -1  # a full request without a new session
_WRONG_EPOCH = 2**31 - 1  # a session reaches this epoch only after years
_OPENED = {"session_established", "wire_session_established"}
"""Events of reference clients, and of the wire proxy for all clients."""
_CLOSED = {"session_refused", "session_lost", "session_reset", "session_closed"}
_CLOSED |= {f"wire_{event}" for event in _CLOSED}


def groups(admin: Admin, coordinator: BrokerId) -> dict[str, str]:
    """Return the type ("classic", "consumer", "share", "streams") of each group that a broker coordinates, by id.

    A broker older than Kafka 3.8 (ListGroups v5) returns no types, and its groups count as classic.
    """
    response = admin.ask(ListGroupsRequest(states_filter=(), types_filter=()), only=coordinator)
    return {group.group_id: getattr(group, "group_type", "classic").lower() for group in response.groups}


def delete_group(admin: Admin, coordinator: BrokerId, group: str, kind: str) -> str:
    """Delete a group and return "", or return the reason for a failure.

    If the group has members, only the members are removed, so that the next call can delete the group.
    """
    response = admin.ask(message(DeleteGroupsRequest, groups_names=(group,)), only=coordinator)
    (result,) = response.results
    if result.error_code is ErrorCode.non_empty_group:
        remove_members(admin, coordinator, group, kind)
    if result.error_code in {ErrorCode.none, ErrorCode.group_id_not_found}:
        return ""
    return f"Kafka refused to delete the group {group}: {result.error_code.name.upper()}"


def evict_members(admin: Admin, group: str, ids: Collection[str]) -> None:
    """Remove members from a group by their member ids; they join again when they learn of it.

    Raises FaultError if Kafka has no such request for groups of this type (share and streams groups).
    """
    coordinator = admin.coordinator(group)
    kind = groups(admin, coordinator).get(group, "classic")
    if kind not in {"classic", "consumer"}:
        raise FaultError(f"Kafka removes no members of a {kind} group, such as {group}: use kill_client or leave")
    remove_members(admin, coordinator, group, kind, ids=ids)


def remove_members(
    admin: Admin,
    coordinator: BrokerId,
    group: str,
    kind: str,
    clients: Collection[str] | None = None,
    ids: Collection[str] | None = None,
) -> None:
    """Remove the members whose ``client.id`` is in ``clients``, or all members, from a group that is no share group.

    With ``ids``, only the members with these member ids.

    Without the removal, a killed client would stay a member until its session times out, after 45 s by default.
    """
    if kind not in {"classic", "consumer"}:
        return
    (described,) = _describe(admin, coordinator, group, kind)
    members = [member for member in described.members if clients is None or member.client_id in clients]
    members = [member for member in members if ids is None or member.member_id in ids]
    if kind == "classic":
        identities = tuple(
            MemberIdentity(member_id=m.member_id, group_instance_id=m.group_instance_id, reason="removed by Aftershock")
            for m in members
        )
        admin.ask(message(LeaveGroupRequest, group_id=group, members=identities), only=coordinator)
        return
    for member in members:
        leave = message(
            ConsumerGroupHeartbeatRequest,
            group_id=group,
            member_id=member.member_id,
            member_epoch=_LEAVE_EPOCH,
            instance_id=member.instance_id,
            rack_id=None,
            rebalance_timeout=i32Timedelta.parse(timedelta(seconds=1)),  # unused by a leaving member
            subscribed_topic_names=None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=None,
        )
        admin.ask(leave, only=coordinator)


def members(admin: Admin, group: str) -> tuple[GroupMember, ...]:
    """Return the members of a group with their assigned partitions; empty if the broker does not know the group."""
    coordinator = admin.coordinator(group)
    kind = groups(admin, coordinator).get(group)
    described = [member for item in _describe(admin, coordinator, group, kind) for member in item.members]
    if kind == "consumer":
        return tuple(
            GroupMember(
                member.client_id,
                member.member_id,
                member.member_epoch,
                frozenset((t.topic_name, p) for t in member.assignment.topic_partitions for p in t.partitions),
                member.instance_id,
            )
            for member in described
        )
    return tuple(
        GroupMember(
            *(member.client_id, member.member_id, None, classic_assignment(member.member_assignment)),
            member.group_instance_id,
        )
        for member in described
    )


def committed_offsets(admin: Admin, group: str) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed."""
    group_request = message(
        offset_fetch.OffsetFetchRequestGroup, group_id=group, member_id=None, member_epoch=-1, topics=None
    )
    request = message(offset_fetch.OffsetFetchRequest, groups=(group_request,), require_stable=False)
    (answer,) = admin.ask(request, only=admin.coordinator(group)).groups
    raise_for(answer.error_code, f"read the committed offsets of the group {group}")
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in answer.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def delete_offsets(admin: Admin, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete committed offsets of a group (KIP-496); raise AdminError if a member subscribes to their topic."""
    kinds = offset_delete.OffsetDeleteRequestTopic, offset_delete.OffsetDeleteRequestPartition
    topics = per_topic(*kinds, partitions)
    request = message(offset_delete.OffsetDeleteRequest, group_id=group, topics=topics)
    answer = admin.ask(request, only=admin.coordinator(group))
    raise_for(answer.error_code, f"delete the committed offsets of the group {group}")
    for topic in answer.topics:
        for part in topic.partitions:
            what = f"delete the committed offset of {topic.name}/{part.partition_index} of the group {group}"
            raise_for(part.error_code, f"{what}, whose members must have left")


def classic_assignment(content: bytes) -> frozenset[TopicPartition]:
    """Parse the assignment that the leader of a classic group made (``ConsumerProtocolAssignment`` of Kafka).

    The content is a version, an array of topics, each with its name and an array of partition numbers, and user data;
    it is empty while the group rebalances.
    """
    partitions: set[TopicPartition] = set()
    if not content:
        return frozenset()
    (topics,), place = unpack_from(">i", content, 2), 6
    for _ in range(topics):
        (length,) = unpack_from(">h", content, place)
        topic = content[place + 2 : place + 2 + length].decode()
        (count,) = unpack_from(">i", content, place + 2 + length)
        numbers = unpack_from(f">{count}i", content, place + 6 + length)
        partitions |= {(topic, number) for number in numbers}
        place += 6 + length + 4 * count
    return frozenset(partitions)


def _describe(admin: Admin, coordinator: BrokerId, group: str, kind: str | None) -> Sequence[Any]:
    """Return descriptions of a group; DescribeGroups does not find groups of the type "consumer" (KIP-848)."""
    names = (group,)
    request: RequestPayload = message(DescribeGroupsRequest, groups=names, include_authorized_operations=False)
    if kind == "consumer":
        request = message(ConsumerGroupDescribeRequest, group_ids=names, include_authorized_operations=False)
    return cast("Sequence[Any]", admin.ask(request, only=coordinator).groups)


def is_open(admin: Admin, broker: BrokerId, session: int) -> bool:
    code = _fetch(admin, broker, session, _WRONG_EPOCH)
    if code not in {ErrorCode.invalid_fetch_session_epoch, ErrorCode.fetch_session_id_not_found}:
        name = code.name.upper()
        raise AdminError(f"broker k{broker} refused a request about the fetch session {session}: {name}", name)
    return code is ErrorCode.invalid_fetch_session_epoch


def close(admin: Admin, broker: BrokerId, session: int) -> int:
    """Close a fetch session; return Kafka's error code, which is 0 even if the session does not exist."""
    return int(_fetch(admin, broker, session, _FINAL_EPOCH).value)


def _fetch(admin: Admin, broker: BrokerId, session: int, epoch: int) -> ErrorCode:
    request = message(
        FetchRequest,
        max_wait=i32Timedelta.parse(timedelta(0)),
        min_bytes=0,
        session_id=session,
        session_epoch=epoch,
        topics=(),
        forgotten_topics_data=(),
    )
    return cast("ErrorCode", admin.ask(request, only=broker).error_code)


def open_sessions(events: Iterable[Mapping[str, Any]], worker: str) -> dict[BrokerId, int]:
    """Return the ids of the fetch sessions that a client still has open according to a run's events, by broker."""
    sessions: dict[BrokerId, int] = {}
    for line in events:
        if line.get("worker") == worker and line.get("event") in _OPENED:
            sessions[BrokerId(line["node_id"])] = line["session_id"]
        elif line.get("worker") == worker and line.get("event") in _CLOSED:
            sessions.pop(BrokerId(line["node_id"]), None)
    return sessions


def sessions_after_run(events: Iterable[Mapping[str, Any]], admin: Admin) -> dict[str, Any] | None:
    """Return the number of fetch sessions that a run opened (key ``told``); None if the run opened no fetch session.

    The key ``left`` lists the sessions that still exist as (broker id, session id), or has no value if a broker does
    not answer.
    """
    granted = {(BrokerId(line["node_id"]), line["session_id"]) for line in events if line.get("event") in _OPENED}
    try:
        open_now = [session for session in sorted(granted) if is_open(admin, *session)]
    except AdminError:
        open_now = None
    return {"told": len(granted), "left": open_now} if granted else None
