"""Finding coordinators, groups and their offsets."""

from typing import Any
from uuid import UUID

from aftershock.tests.scripted.call import Answer, Call, named, naming
from aftershock.tests.scripted.groups import Group, Member

NOT_COORDINATOR = 16
UNKNOWN_TOPIC_ID = 100
NOWHERE = (-1, -1, None)


async def find_coordinator(call: Call) -> Answer:
    keys = getattr(call.body, "coordinator_keys", None) or [call.body.key]
    error = call.script.error or 0
    found = [
        {"key": key, "error_code": error, "error_message": "" if error else None}
        | (call.address(call.cluster.coordinator(key)) if not error else {"node_id": -1, "host": "", "port": -1})
        for key in keys
    ]
    return found[0] | {"coordinators": found}


def _group(call: Call, group_id: str) -> Group | None:
    """The group, if this node coordinates it."""
    if call.cluster.coordinator(group_id) != call.node.node_id:
        return None
    return call.groups.setdefault(group_id, Group())


async def join_group(call: Call) -> Answer:
    body, group = call.body, _group(call, call.body.group_id)
    if group is None:
        return {"error_code": NOT_COORDINATOR, "generation_id": -1}
    group.protocol_type = body.protocol_type
    session_s = body.session_timeout.total_seconds()
    rebalance_s = getattr(body, "rebalance_timeout", body.session_timeout).total_seconds()
    protocols = {protocol.name: bytes(protocol.metadata) for protocol in body.protocols}
    member = Member(body.member_id, protocols, session_s, rebalance_s, getattr(body, "group_instance_id", None))
    return {"generation_id": -1} | await group.join(member, must_know_its_id=call.request.version >= 4)


async def sync_group(call: Call) -> Answer:
    body, group = call.body, _group(call, call.body.group_id)
    if group is None:
        return {"error_code": NOT_COORDINATOR}
    assignments = {each.member_id: bytes(each.assignment) for each in body.assignments}
    names = {name: getattr(body, name, None) for name in ("protocol_type", "protocol_name")}
    instance_id = getattr(body, "group_instance_id", None)
    return names | await group.sync(body.member_id, body.generation_id, assignments, instance_id)


async def heartbeat(call: Call) -> Answer:
    body, group = call.body, _group(call, call.body.group_id)
    if group is None:
        return {"error_code": NOT_COORDINATOR}
    instance_id = getattr(body, "group_instance_id", None)
    return {"error_code": group.heartbeat(body.member_id, body.generation_id, instance_id)}


async def leave_group(call: Call) -> Answer:
    group = _group(call, call.body.group_id)
    if group is None:
        return {"error_code": NOT_COORDINATOR}
    leaving = [member.member_id for member in getattr(call.body, "members", (call.body,))]
    left = [{"member_id": member_id, "error_code": group.leave(member_id)} for member_id in leaving]
    return {"error_code": 0 if hasattr(call.body, "members") else left[0]["error_code"], "members": left}


async def offset_commit(call: Call) -> Answer:
    group = _group(call, call.body.group_id)
    generation = getattr(call.body, "generation_id_or_member_epoch", getattr(call.body, "generation_id", -1))
    instance_id = getattr(call.body, "group_instance_id", None)
    refused = group.refusal(call.body.member_id, generation, instance_id) if group else NOT_COORDINATOR
    return {
        "topics": [
            naming(topic) | {"partitions": [_commit(call, group, refused, topic, entry) for entry in topic.partitions]}
            for topic in call.body.topics
        ]
    }


def _commit(call: Call, group: Group | None, refused: int, topic: Any, entry: Any) -> Answer:
    scripted = call.error_of(named(topic), entry.partition_index)
    gone = UNKNOWN_TOPIC_ID if isinstance(named(topic), UUID) and call.cluster.topic(named(topic)) is None else 0
    error = scripted or refused or gone
    if group and not refused and (scripted is None or call.script.applied):
        epoch = getattr(entry, "committed_leader_epoch", -1)
        place = call.name_of(named(topic)), entry.partition_index
        group.committed[place] = (entry.committed_offset, epoch, entry.committed_metadata)
    return {"partition_index": entry.partition_index, "error_code": error}


async def offset_fetch(call: Call) -> Answer:
    if not hasattr(call.body, "groups"):
        return _offsets(call, call.body)
    return {"groups": [{"group_id": asked.group_id} | _offsets(call, asked) for asked in call.body.groups]}


def _offsets(call: Call, asked: Any) -> Answer:
    group = _group(call, asked.group_id)
    if group is None:
        return {"error_code": NOT_COORDINATOR, "topics": []}
    if asked.topics is None:
        wanted: list[tuple[Answer, list[tuple[str, int]]]] = [
            ({"name": name, "topic_id": topic.topic_id}, [place for place in group.committed if place[0] == name])
            for name, topic in call.cluster.topics.items()
        ]
    else:
        wanted = [
            (naming(topic), [(call.name_of(named(topic)), number) for number in topic.partition_indexes])
            for topic in asked.topics
        ]
    return {
        "topics": [
            naming_ | {"partitions": [_offset(call, group, place) for place in places]} for naming_, places in wanted
        ]
    }


def _offset(call: Call, group: Group, place: tuple[str, int]) -> Answer:
    offset, epoch, metadata = group.committed.get(place, NOWHERE)
    return {
        "partition_index": place[1],
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "metadata": metadata or "",
        "error_code": call.script.error_of(place) or 0,
    }
