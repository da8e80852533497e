"""The example client with one defect: ``python broken_client.py FAULT``. ``none`` means no defect.

It can also commit, which the example doesn't show, so that the commit checks can be tested.
"""

import importlib.util
import json
import os
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

SPEC = importlib.util.spec_from_file_location("example", Path(__file__).parents[2] / "docs/examples/exec_client.py")
assert SPEC
assert SPEC.loader
example: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

say: Callable[..., None] = example.say
send: Callable[..., None] = example.send
fault = sys.argv[1]
seen: list[dict[str, Any]] = []
AT = 13


def said(report: str, **told: Any) -> None:
    """Return the example's reports with the defect."""
    seen.append(told)
    if report in SPOILT.get(fault, {}):
        SPOILT[fault][report](report, told)
    else:
        say(report, **told)


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[str, dict[str, Any]], None]:
    return lambda report, told: say(report, **(told | {name: change(told[name])}))


def twice(report: str, told: dict[str, Any]) -> None:
    say(report, **told)
    say(report, **told)


def skips(report: str, told: dict[str, Any]) -> None:
    if told["offset"] % AT:
        say(report, **told)


def swaps(report: str, told: dict[str, Any]) -> None:
    """Hold a record of an even offset until after the next record of its partition."""
    before = [one for one in seen if one.get("partition") == told["partition"] and "size_bytes" in one][:-1]
    if told["offset"] % 2:
        say(report, **told)
        for held in before[-1:]:
            say(report, **held)


held: set[int] = set()


def owned(report: str, told: dict[str, Any]) -> None:
    """Report all partitions of the member as assigned, and not only those that it gains."""
    (held.update if report == "assigned" else held.difference_update)(told["partitions"])
    say(report, **(told | ({"partitions": sorted(held)} if report == "assigned" else {})))


def noise(report: str, told: dict[str, Any]) -> None:
    sys.stdout.write("got one\n")
    say(report, **told)


def hurts(status: int) -> None:
    print("it hurts", file=sys.stderr, flush=True)
    os._exit(status)


SPOILT: dict[str, dict[str, Callable[[str, dict[str, Any]], None]]] = {
    "hangs": {"ready": lambda *_: None},
    "dies": {"ready": lambda *_: hurts(3)},
    "gives-up": {"ready": lambda *_: say("died", why="no broker") or hurts(1)},
    "noise": {"acked": noise, "record": noise},
    "twice": {"acked": twice, "record": twice},
    "wrong-seq": {"acked": changed("seq", lambda seq: seq + 1)},
    "wrong-type": {"acked": changed("offset", float)},
    "wrong-offset": {"acked": changed("offset", lambda offset: offset + 1)},
    "fails-what-is-written": {"acked": lambda _, told: say("failed", seq=told["seq"], error="REQUEST_TIMED_OUT")},
    "skips": {"record": skips},
    "swaps": {"record": swaps},
    "wrong-size": {"record": changed("size_bytes", lambda size: size + 1)},
    "no-mark": {"record": changed("mark", lambda _: None)},
    "some-mark": {"record": changed("mark", lambda mark: mark or b64encode(b"?").decode())},
    "unassigned": {"assigned": lambda *_: None},
    "half-assigned": {"assigned": changed("partitions", lambda held: held[:2])},
    "silent-revocation": {"revoked": lambda *_: None},
    "no-took": {
        "committed": lambda report, told: say(report, **{name: told[name] for name in told if name != "took_us"})
    },
    "assigned-owned": {"assigned": owned, "revoked": owned},
    "commits-ahead": {"committed": changed("offsets", lambda held: {number: at + 5 for number, at in held.items()})},
}


def sent(producer: Any, topic: str, seq: int, key: bytes | None, value: bytes, headers: list[Any]) -> None:
    """Send the example's records with the defect."""
    if fault == "eager":
        say("acked", seq=seq, partition=0, offset=seq)
        producer.produce(topic, value, key, headers=headers)
    elif fault == "forgets" and seq == AT:
        return
    elif fault == "pretends" and seq == AT:
        say("acked", seq=seq, partition=0, offset=0)
    else:
        key = b"" if fault == "no-null" and key is None else key
        headers = [] if fault == "no-headers" else headers
        if fault == "duplicates" and seq == AT:
            producer.produce(topic, value, key, headers=headers)
        send(producer, topic, seq, key, value, headers)


def orders() -> Any:
    """Return the example's orders; ``outlives`` continues when they end, ``leaves`` exits without waiting."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "close":
            if fault == "leaves":
                say("bye")
                os._exit(0)
            return
        yield order
    time.sleep(600 if fault == "outlives" else 0)
    os._exit(1)


def commit(told: dict[str, Any], config: dict[str, Any]) -> None:
    admin = AdminClient({"bootstrap.servers": config["bootstrap.servers"]})
    admin.list_topics(told["topic"], timeout=30)
    said("ready")
    latest: dict[str, Any] = {}
    for order in orders():
        seq, group, offset = order["seq"], order["group"], order["offset"]
        if fault == "eager":
            say("acked", seq=seq)
        offset = 0 if fault == "stale" and offset else offset
        place = TopicPartition(told["topic"], order["partition"], offset)
        wanted = ConsumerGroupTopicPartitions(group, [place])
        if group in latest:
            latest[group].exception()  # in order
        answers = admin.alter_consumer_group_offsets([wanted], request_timeout=told["deadline_ms"] / 1000)
        latest[group] = answers[group]
        if fault != "eager":
            latest[group].add_done_callback(lambda answer, seq=seq: committed(seq, answer))
    for answer in latest.values():
        answer.exception()


def committed(seq: int, answer: Any) -> None:
    if answer.exception():
        said("failed", seq=seq, error="REQUEST_TIMED_OUT")
    else:
        said("acked", seq=seq)


if __name__ == "__main__":
    example.say, example.send, example.each_until_close = said, sent, orders
    told = json.loads(sys.stdin.readline())
    spoilt = {
        "late": {"deadline_ms": 60_000},
        "from-the-start": {
            "topics": [topic | {"positions": dict.fromkeys(topic["positions"] or (), 0)} for topic in told["topics"]]
        },
        "no-commit": {"settings": {"enable.auto.commit": False}},
        "assigned-owned": {"settings": {"partition.assignment.strategy": "cooperative-sticky"}},
    }
    if fault == "no-commit":
        example.Commits.send = lambda _: None
    told |= spoilt.get(fault, {})
    config = {"bootstrap.servers": told["bootstrap"], "client.id": told["client_id"]}
    {"produce": example.produce, "consume": example.consume, "commit": commit}[told["op"]](told, config)
    say("bye")
