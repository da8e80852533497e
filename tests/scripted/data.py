"""Produce and Fetch."""

import asyncio
import time
from typing import Any

from aftershock.tests.scripted import transactions
from aftershock.tests.scripted.call import Answer, Call, named, naming
from aftershock.tests.scripted.cluster import FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, Leader, Partition, unknown
from aftershock.tests.scripted.log import Appended
from aftershock.tests.session_cache import Exchange, Key, Read
from aftershock.workloads.kafka.rules.fetch_session import FetchPartition

HINTED = {NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH}
TOPIC_IDS_SINCE = 13
FOLLOWERS_SINCE = 11


async def produce(call: Call) -> Answer:
    hints: list[Leader] = []
    responses = [
        naming(topic) | {"partition_responses": [_produce(call, topic, entry, hints) for entry in topic.partition_data]}
        for topic in call.body.topic_data
    ]
    call.cluster.wake()
    return {"responses": responses, "node_endpoints": call.endpoints(hints)}


def _produce(call: Call, topic: Any, entry: Any, hints: list[Leader]) -> Answer:
    partition = call.cluster.partition(named(topic), entry.index)
    error = call.error_of(named(topic), entry.index)
    answer: Answer = {"index": entry.index, "error_code": error or 0, "base_offset": -1, "log_start_offset": 0}
    if error is None or call.script.applied:
        done = _append(call, partition, bytes(entry.records or b""), topic, entry.index)
        answer["error_code"] = error or done.error
        answer["base_offset"] = -1 if error else done.base_offset
    return answer | _hinted(call, partition, answer["error_code"], hints)


def _append(call: Call, partition: Partition | None, records: bytes, topic: Any, number: int) -> Appended:
    if partition is None:
        return Appended(unknown(named(topic)))
    refused = partition.refusal(call.node.node_id)
    refused = refused or transactions.refusal(call, records, named(topic), number, partition)
    return Appended(refused) if refused else partition.log.append(records, partition.leader.epoch)


def _hinted(call: Call, partition: Partition | None, error: int, hints: list[Leader]) -> Answer:
    hint = call.hint(partition) if error in HINTED else None
    if hint is None:
        return {}
    hints.append(hint)
    return {"current_leader": {"leader_id": hint.node, "leader_epoch": hint.epoch}}


async def fetch(call: Call) -> Answer:
    """Answer when there is enough to tell, or the wait is over."""
    exchange = _begin(call)
    deadline_s = time.monotonic() + call.body.max_wait.total_seconds()
    while True:
        news = call.cluster.news
        answers = _read_all(call, exchange)
        left_s = deadline_s - time.monotonic()
        if exchange.error or left_s <= 0 or _is_enough(call, answers):
            return _answer(call, exchange, answers)
        try:
            await asyncio.wait_for(news.wait(), left_s)
        except TimeoutError:
            continue


def _begin(call: Call) -> Exchange:
    asked = {
        (named(topic), entry.partition): FetchPartition(
            topic_id=getattr(topic, "topic_id", None),
            fetch_offset=entry.fetch_offset,
            max_bytes=entry.partition_max_bytes,
            leader_epoch=getattr(entry, "current_leader_epoch", -1),
        )
        for topic in call.body.topics
        for entry in topic.partitions
    }
    forgotten = [
        (named(topic), number)
        for topic in getattr(call.body, "forgotten_topics_data", ())
        for number in topic.partitions
    ]
    return call.node.sessions.begin(
        getattr(call.body, "session_id", 0),
        getattr(call.body, "session_epoch", -1),
        asked,
        forgotten,
        now_ms=time.monotonic() * 1000,
        by_id=call.request.version >= TOPIC_IDS_SINCE,
    )


def _read_all(call: Call, exchange: Exchange) -> dict[Key, Answer]:
    answers: dict[Key, Answer] = {}
    left = call.body.max_bytes
    for key, asked in exchange.wanted.items():
        answers[key] = _read(call, key, asked, left, is_first=left == call.body.max_bytes)
        left -= len(answers[key].get("records") or b"")
    return answers


def _read(call: Call, key: Key, asked: FetchPartition, left: int, *, is_first: bool) -> Answer:
    partition, node = call.cluster.partition(*key), call.node.node_id
    error = call.error_of(*key)
    if partition is None or error:
        return {"error_code": error or unknown(key[0]), "high_watermark": -1}
    error = partition.refusal(node, asked.leader_epoch, leader_only=call.request.version < FOLLOWERS_SINCE)
    if error:
        return {"error_code": error, "high_watermark": -1}
    log = partition.log
    answer: Answer = {
        "high_watermark": log.high_watermark(node),
        "last_stable_offset": log.last_stable_offset(node),
        "log_start_offset": log.start,
    }
    preferred = partition.preferred_by(getattr(call.body, "rack_id", ""))
    if preferred not in {-1, node} and partition.is_led_by(node):
        return answer | {"preferred_read_replica": preferred}
    limit = min(asked.max_bytes, left)
    committed = bool(getattr(call.body, "isolation_level", 0))
    error, records = log.read(asked.fetch_offset, limit, node, at_least_one=is_first, committed=committed)
    aborted = [
        {"producer_id": each.producer_id, "first_offset": each.first}
        for each in log.aborted
        if committed and each.marker >= asked.fetch_offset
    ]
    return answer | {"error_code": error, "records": records, "aborted_transactions": aborted}


def _is_enough(call: Call, answers: dict[Key, Answer]) -> bool:
    told = any(answer.get("error_code") or answer.get("preferred_read_replica", -1) >= 0 for answer in answers.values())
    size = sum(len(answer.get("records") or b"") for answer in answers.values())
    return told or size >= call.body.min_bytes


def _answer(call: Call, exchange: Exchange, answers: dict[Key, Answer]) -> Answer:
    reads = {
        key: Read(
            len(answer.get("records") or b""),
            answer["high_watermark"],
            answer.get("log_start_offset", -1),
            answer.get("error_code", 0),
            answer.get("preferred_read_replica", -1),
        )
        for key, answer in answers.items()
    }
    told = exchange.answer(reads, time.monotonic() * 1000)
    hints: list[Leader] = []
    topics: dict[Any, list[Answer]] = {}
    for topic, number in told.partitions:
        answer = answers[topic, number]
        hint = _hinted(call, call.cluster.partition(topic, number), answer.get("error_code", 0), hints)
        whole = {"partition_index": number, "records": b"", "aborted_transactions": []} | answer | hint
        topics.setdefault(topic, []).append(whole)
    return {
        "error_code": told.error,
        "session_id": told.session_id,
        "responses": [
            {"topic": topic, "topic_id": topic, "partitions": partitions} for topic, partitions in topics.items()
        ],
        "node_endpoints": call.endpoints(hints),
    }
