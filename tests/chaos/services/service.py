"""A service with one defect, or none (``python service.py DEFECT``): copies records from one topic to another.

Its addresses and names are in the variables KAFKA, FROM, TO and GROUP. ``DEFECTS`` says what each defect is,
``CAUGHT`` which check finds it.
"""

import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, Message, Producer

DEFECTS = {
    "none": "waits for its outputs, then commits",
    "commits_first": "commits before it writes",
    "commits_by_timer": "lets librdkafka commit by a timer, while it works",
    "skips_some": "takes one of 97 inputs for invalid, and goes on",
    "writes_twice": "sends one of 97 outputs again, as after an error that was none",
    "works_in_threads": "processes the inputs of a batch concurrently",
    "forgets_at_the_end": "commits what it has read when it is asked to end, and writes nothing more",
    "drops_marks": "writes outputs that do not name their inputs",
}

CAUGHT = {
    "commits_first": "offsets_without_output",
    "commits_by_timer": "offsets_without_output",
    "skips_some": "pipe_lost",
    "writes_twice": "pipe_duplicate",
    "works_in_threads": "pipe_order",
    "forgets_at_the_end": "pipe_lost",
}
"""Check that fails a service, by its defect."""

NOT_CAUGHT = {"none": "no alarm", "drops_marks": "`integrity/pipe_lost` (INCONCLUSIVE)"}

FAULTS = {"forgets_at_the_end": "asked to end", "none": "asked to end"}
"""Fault on the processes of a service; a broker is killed for all of them."""


def main(defect: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    bootstrap = {"bootstrap.servers": os.environ["KAFKA"]}
    own = {"group.id": os.environ["GROUP"], "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
    by_timer = {"enable.auto.commit": defect == "commits_by_timer", "auto.commit.interval.ms": 100}
    consumer = Consumer({**bootstrap, **own, **by_timer})
    producer = Producer({**bootstrap, "enable.idempotence": True, "linger.ms": 0})
    consumer.subscribe([os.environ["FROM"]])
    sys.stdout.write("started\n")
    sys.stdout.flush()

    def write(message: Message) -> None:
        number = message.offset() or 0
        if defect == "works_in_threads":
            time.sleep(random.random() / 50)  # noqa: S311 -- a time to work
        if defect == "skips_some" and not number % 97:
            return
        headers = [] if defect == "drops_marks" else message.headers()
        for _ in range(2 if defect == "writes_twice" and not number % 97 else 1):
            producer.produce(os.environ["TO"], key=message.key(), value=message.value(), headers=headers)

    with ThreadPoolExecutor(8) as threads:
        while not stopping.is_set():
            messages = [message for message in consumer.consume(50, timeout=0.1) if message.error() is None]
            if not messages:
                continue
            if defect == "commits_first":
                consumer.commit(asynchronous=False)
            if defect == "commits_by_timer":
                time.sleep(0.5)  # work that takes longer than the timer
            if defect == "works_in_threads":
                list(threads.map(write, messages))
            else:
                for message in messages:
                    write(message)
            producer.flush(60)
            if defect not in ("commits_first", "commits_by_timer"):
                consumer.commit(asynchronous=False)
    if defect == "forgets_at_the_end" and consumer.consume(50, timeout=2):
        consumer.commit(asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1])
