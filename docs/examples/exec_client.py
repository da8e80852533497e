"""Client program that Aftershock can test, built on confluent-kafka; ``docs/EXEC.md`` specifies its protocol.

An arm of a plan uses this program with client ``exec`` and command ``[python3, docs/examples/exec_client.py]``.
"""
# ruff: noqa: ANN001, ANN003, ANN201, ANN202 -- an example is for reading

import json
import os
import sys
import time
from base64 import b64decode, b64encode
from threading import Thread

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition


def say(report, **details):
    sys.stdout.write(json.dumps({"say": report} | details) + "\n")
    sys.stdout.flush()


def say_with_time(report, **details):
    say(report, at_ns=time.monotonic_ns(), **details)


def each_until_close():
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "close":
            return
        yield order
    os._exit(1)  # the worker is gone: nobody is there to be told anything


def traffic(statistics):
    brokers = [broker for broker in json.loads(statistics)["brokers"].values() if broker["source"] != "logical"]
    say("traffic", brokers={at["nodeid"]: (at["txbytes"], at["rxbytes"]) for at in brokers if at["nodeid"] >= 0})


def send(producer, topic, seq, key, value, headers):
    def reported(error, message):
        if error:
            say("failed", seq=seq, error=error.name())
        else:
            say("acked", seq=seq, partition=message.partition(), offset=message.offset())

    try:
        producer.produce(topic, value, key, headers=headers, on_delivery=reported)
    except BufferError:
        say("failed", seq=seq, in_doubt=False, error="_QUEUE_FULL")
    except KafkaException as refused:
        say("failed", seq=seq, in_doubt=False, error=refused.args[0].name())


def serve(producer):
    while True:
        producer.poll(0.1)


def produce(told, config):
    config |= {"acks": told["acks"], "enable.idempotence": told["idempotence"], "linger.ms": told["linger_ms"]}
    producer = Producer(config | {"delivery.timeout.ms": told["deadline_ms"]} | told["settings"])
    for topic in told["topics"]:
        producer.list_topics(topic["name"], timeout=30)
    Thread(target=serve, args=[producer], daemon=True).start()
    say("ready", accepts=["topics"])
    for order in each_until_close():
        headers = [(name, b64decode(content)) for name, content in order["headers"]]
        key = None if order["key"] is None else b64decode(order["key"])
        send(producer, order["topic"], order["seq"], key, b64decode(order["value"]), headers)
    producer.flush()


def by_topic(partitions):
    """Return the topics with their partitions; an empty assignment is one of no topic."""
    numbers = {}
    for one in partitions:
        numbers.setdefault(one.topic, []).append(one.partition)
    return list(numbers.items()) or [(None, [])]


def say_committed(error, partitions, **took):
    accepted = [one for one in partitions if not error and not one.error and one.offset >= 0]
    for topic in {one.topic for one in accepted}:
        offsets = {one.partition: one.offset for one in accepted if one.topic == topic}
        say_with_time("committed", topic=topic, offsets=offsets, **took)


class Commits:
    """Commits of what was reported, after so many milliseconds or records; librdkafka commits if the plan has none."""

    def __init__(self, consumer, every) -> None:
        self.consumer, self.every = consumer, every or {"every_ms": None, "every_records": None}
        self.is_own, self.records, self.due = bool(every), 0, 0

    def reported(self, message):
        self.consumer.store_offsets(message)
        self.records += 1
        if self.every["every_records"] and self.records % self.every["every_records"] == 0:
            self.send()

    def send_if_due(self):
        if self.every["every_ms"] and time.monotonic() >= self.due:
            self.send()
            self.due = time.monotonic() + self.every["every_ms"] / 1000

    def send(self):
        began_ns = time.monotonic_ns()
        try:
            results = self.consumer.commit(asynchronous=False)
        except KafkaException as refused:
            if refused.args[0].name() != "_NO_OFFSET":  # nothing was reported since the last commit
                say("error", error=refused.args[0].name(), detail=refused.args[0].str())
        else:
            say_committed(None, results, took_us=(time.monotonic_ns() - began_ns) // 1000)


def say_record(message):
    mark = dict(message.headers() or ()).get("aftershock")
    place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
    say_with_time("record", **place, size_bytes=len(message), mark=None if mark is None else b64encode(mark).decode())


def consume(told, config):
    def assigned(_, partitions):
        for topic, numbers in by_topic(partitions):
            say_with_time("assigned", topic=topic, partitions=numbers, member=consumer.memberid() if group else None)
        say("ready", accepts=["topics"])

    def revoked(_, partitions):
        if commits.is_own:
            commits.send()  # before another member can get the partitions
        for topic, numbers in by_topic(partitions):
            say_with_time("revoked", topic=topic, partitions=numbers)

    def lost(_, partitions):
        for topic, numbers in by_topic(partitions):
            say_with_time("lost", topic=topic, partitions=numbers)

    group, pattern = told["group"], told["pattern"]
    # librdkafka does not tell when it sent a commit of its own accord, so these are reported without took_us
    config |= {"enable.auto.commit": bool(group) and not told["commit"], "on_commit": say_committed}
    # an offset is stored for the next commit after its record is reported
    config |= {"group.id": group or "none", "auto.offset.reset": told["from"], "enable.auto.offset.store": False}
    consumer = Consumer(config | told["settings"])
    commits = Commits(consumer, told["commit"])
    if group:
        names = [f"^({pattern})$"] if pattern else [topic["name"] for topic in told["topics"]]
        consumer.subscribe(names, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        if told["members"] > 1:
            say("ready", accepts=["topics"])  # a member may get no partitions
    else:
        starts = [
            TopicPartition(topic["name"], int(number), offset)
            for topic in told["topics"]
            for number, offset in topic["positions"].items()
        ]
        consumer.assign(starts)
        assigned(consumer, starts)
    listener = Thread(target=lambda: list(each_until_close()))
    listener.start()
    while listener.is_alive():
        commits.send_if_due()
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            time.sleep(told["processing_ms"] / 1000)
            say_record(message)
            if group:
                commits.reported(message)
    consumer.close()


if __name__ == "__main__":
    told = json.loads(sys.stdin.readline())
    config = {"bootstrap.servers": told["bootstrap"], "client.id": told["client_id"], "stats_cb": traffic}
    config |= {"client.rack": told["client_rack"] or ""}
    {"produce": produce, "consume": consume}[told["op"]](told, config | {"statistics.interval.ms": 1000})
    say("bye")
