"""The example client with one defect, ``python ending_client.py DEFECT``: it ends or stands still after some records.

``crashes``: the producer dies of a segmentation fault. ``silent``: the producer accepts records and does nothing with
them. ``stands``: the consumer stops reading half of its partitions. ``rests`` is the harmless twin of all three: the
consumer does so for two seconds, and its producer works.
"""

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

SPEC = importlib.util.spec_from_file_location("example", Path(__file__).parents[2] / "docs/examples/exec_client.py")
assert SPEC
assert SPEC.loader
example: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

AFTER = 200
REST_S = 2.0
LAST_WORDS = "a pointer of the library is gone"
defect = sys.argv[1]
sent = read = 0
plain_send, plain_record, plain_consumer = example.send, example.say_record, example.Consumer
consumers: list[Any] = []


def send(*arguments: Any) -> None:
    global sent  # noqa: PLW0603 -- a count
    sent += 1
    if defect == "crashes" and sent > AFTER:
        print(LAST_WORDS, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if defect != "silent" or sent <= AFTER:
        plain_send(*arguments)


def consumer_of(config: dict[str, Any]) -> Any:
    consumers.append(plain_consumer(config))
    return consumers[0]


def say_record(message: Any) -> None:
    global read  # noqa: PLW0603 -- a count
    plain_record(message)
    read += 1
    if read == AFTER and defect in ("stands", "rests"):
        half = [place for place in consumers[0].assignment() if place.partition % 2]
        consumers[0].pause(half)
        if defect == "rests":
            threading.Timer(REST_S, lambda: consumers[0].resume(half)).start()


example.send, example.say_record, example.Consumer = send, say_record, consumer_of

order = json.loads(sys.stdin.readline())
config = {"bootstrap.servers": order["bootstrap"], "client.id": order["client_id"], "stats_cb": example.traffic}
{"produce": example.produce, "consume": example.consume}[order["op"]](order, config | {"statistics.interval.ms": 1000})
example.say("bye")
