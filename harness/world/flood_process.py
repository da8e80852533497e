"""Program that overloads brokers for the fault ``flood``, ``python -m aftershock.harness.world.flood_process``.

It reads no record of what it has sent: the topic's log tells. It ends after its time, and at the end of its standard
input, which is that of the process that started it. It imports little, because it has to start at once.
"""

import json
import os
import select
import sys
import time
from typing import Any

from confluent_kafka import Producer

_STEP_S = 0.01
_BUFFER_KIB = 65_536
_MESSAGE_TIMEOUT_MS = 5_000


def pour(order: dict[str, Any], stdin: int) -> None:
    """Send records at the given rate until the time is over, or ``stdin`` ends; what a broker refuses is given up."""
    settings = {"bootstrap.servers": order["bootstrap"], "client.id": f"aftershock-flood-{order['fault']}"}
    settings |= {"acks": 1, "linger.ms": 5, "batch.size": 1_000_000, "log_level": 0}
    settings |= {"queue.buffering.max.kbytes": _BUFFER_KIB, "message.timeout.ms": _MESSAGE_TIMEOUT_MS}
    producer = Producer(settings)
    value = os.urandom(order["record_size"])
    began_s, sent = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < order["for_ms"] / 1000:
        if select.select([stdin], [], [], 0)[0] and not os.read(stdin, 1):
            break
        due = int(passed_s * order["bytes_per_s"] / order["record_size"])
        while sent < due:
            try:
                producer.produce(order["topic"], value, partition=sent % order["partitions"])
            except BufferError:
                sent = due  # the brokers are slower than the flood: it does not catch up
                break
            sent += 1
        producer.poll(_STEP_S)
        time.sleep(max(0.0, _STEP_S - (time.monotonic() - began_s - passed_s)))
    producer.purge()


if __name__ == "__main__":
    pour(json.loads(sys.argv[1]), sys.stdin.fileno())
