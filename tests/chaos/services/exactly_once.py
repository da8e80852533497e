"""A service that promises exactly once, with one defect, or none (``python exactly_once.py DEFECT``): copies records
from one topic to another in transactions.

Its addresses and names are in the variables KAFKA, FROM, TO, GROUP and MEMBER. One input in 97 meets an error that is
gone at the second attempt, so that a service aborts transactions and reads again. Two defects would then repeat outputs
beside what they do wrong, and meet no such error: an output outside of a transaction is not aborted, and a consumer of
uncommitted records may get a position from before its last transaction (OffsetFetch without ``require_stable``).
"""

import os
import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

DEFECTS = {
    "nothing": "writes outputs and positions in one transaction, and reads again what was aborted",
    "offsets_apart": "commits its positions with the consumer, after the transaction",
    "ignores_abort": "catches the error that aborted a transaction, and goes on with the next inputs",
    "reads_uncommitted": "reads inputs whose transactions were aborted",
    "writes_outside": "writes outputs with a second producer, which has no transactions",
    "two_processes": "the same as the first, in two processes",
    "no_metadata": "sends positions without the metadata of its group membership",
    "commits_when_fenced": "writes its outputs again, in a new transaction, when its group has refused its positions",
    "shares_an_id": "uses one transactional id in two processes",
}

CAUGHT = {
    "offsets_apart": "output_without_offset",
    "ignores_abort": "pipe_lost",
    "reads_uncommitted": "aborted_read",
    "writes_outside": "offsets_without_output",
    "no_metadata": "pipe_duplicate",
    "commits_when_fenced": "pipe_duplicate",
}
"""Check that fails a service, by its defect."""

NOT_CAUGHT = {
    "nothing": "no alarm",
    "two_processes": "no alarm",
    "shares_an_id": "no alarm: the processes fence each other, so nothing is lost or repeated; the summary says how "
    "often they ended",
}

FAULTS = {
    "two_processes": "one process frozen until its group has expelled it",
    "no_metadata": "one process frozen until its group has expelled it",
    "commits_when_fenced": "one process frozen until its group has expelled it",
}
"""Fault on the processes of a service."""

WORK_S = 0.4
"""Time of the work on a batch, in which faults find the service."""
STEP_S = 15.0


class TemporaryError(Exception):
    """Error of something that the service needs, which is gone at the next attempt."""


class Service:
    """Consumer and producer of one process."""

    def __init__(self, defect: str) -> None:
        self.defect = defect
        bootstrap = {"bootstrap.servers": os.environ["KAFKA"]}
        own = {"group.id": os.environ["GROUP"], "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
        isolation = {"isolation.level": "read_uncommitted" if defect == "reads_uncommitted" else "read_committed"}
        self.consumer = Consumer({**bootstrap, **own, **isolation, "enable.auto.commit": False})
        name = os.environ["GROUP"] if defect == "shares_an_id" else os.environ["MEMBER"]
        self.producer = Producer({**bootstrap, "transactional.id": name, "linger.ms": 0})
        self.plain = Producer({**bootstrap, "enable.idempotence": True}) if defect == "writes_outside" else None
        self.stranger = Consumer({**bootstrap, "group.id": os.environ["GROUP"]}) if defect == "no_metadata" else None
        self.has_begun = False
        self.failed: set[tuple[int | None, int | None]] = set()

    def process(self, messages: list[Message]) -> None:
        """Copy a batch in a transaction; read it again if the transaction had to be aborted."""
        consumer, producer = self.consumer, self.producer
        # the membership under which the batch was read
        owned, metadata = {place.partition for place in consumer.assignment()}, consumer.consumer_group_metadata()
        if self.stranger:
            metadata = self.stranger.consumer_group_metadata()
        batch = [message for message in messages if message.partition() in owned]
        if not self.has_begun:
            producer.init_transactions(60)
            self.has_begun = True
        producer.begin_transaction()
        try:
            ends: dict[int, int] = {}
            for message in batch:
                self.write(message)
                ends[message.partition() or 0] = (message.offset() or 0) + 1
            positions = [TopicPartition(os.environ["FROM"], *end) for end in ends.items()]
            if self.defect == "offsets_apart":
                producer.commit_transaction(STEP_S)
                time.sleep(WORK_S)
                consumer.commit(offsets=positions, asynchronous=False)
                return
            time.sleep(WORK_S)
            producer.send_offsets_to_transaction(positions, metadata, STEP_S)
            producer.commit_transaction(STEP_S)
        except (KafkaException, TemporaryError) as error:
            if isinstance(error, KafkaException) and not error.args[0].txn_requires_abort():
                raise
            sys.stdout.write(f"aborted: {error}\n")
            producer.abort_transaction(STEP_S)
            if self.defect == "commits_when_fenced" and isinstance(error, KafkaException):
                producer.begin_transaction()
                for message in batch:
                    self.write(message)
                producer.commit_transaction(STEP_S)
            if self.defect != "ignores_abort":
                self.rewind()

    def write(self, message: Message) -> None:
        place = message.partition(), message.offset()
        is_hard = self.defect not in ("reads_uncommitted", "writes_outside") and not (message.offset() or 0) % 97
        if is_hard and place not in self.failed:
            self.failed.add(place)
            raise TemporaryError(f"no connection to the warehouse at {place}")
        producer = self.plain or self.producer
        producer.produce(os.environ["TO"], key=message.key(), value=message.value(), headers=message.headers())
        if self.plain:
            self.plain.flush(STEP_S)

    def rewind(self) -> None:
        """Read on from what the group has committed."""
        for place in self.consumer.committed(self.consumer.assignment(), STEP_S):
            self.consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


def main(defect: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    service = Service(defect)
    service.consumer.subscribe([os.environ["FROM"]])
    sys.stdout.write("started\n")
    sys.stdout.flush()
    try:
        while not stopping.is_set():
            messages = [each for each in service.consumer.consume(50, timeout=0.1) if each.error() is None]
            if messages:
                service.process(messages)
            sys.stdout.flush()
    except KafkaException as error:
        sys.stdout.write(f"giving up: {error}\n")
        sys.stdout.flush()
        service.consumer.close()
        os._exit(1)  # a producer whose transaction is open would wait for its end
    service.consumer.close()


if __name__ == "__main__":
    main(sys.argv[1])
