from __future__ import annotations

import json
import os
import subprocess
import sys

from aftershock.workloads.load.worker import ORPHANED, Outbox

ECHO = """
import sys
from aftershock.workloads.load.worker import Inbox, Outbox
inbox, outbox = Inbox(0), Outbox(1)
while True:
    outbox.report("heard", line=inbox.wait().decode())
"""


def test_lines_arrive_whole_and_the_end_of_input_ends_the_process() -> None:
    """Lines are split at newlines, however they were written; a closed pipe means that the runner died."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        os.write(process.stdin.fileno(), b"one\ntwo\nth")
        heard = [json.loads(process.stdout.readline())["line"] for _ in range(2)]
        os.write(process.stdin.fileno(), b"ree\n")
        heard.append(json.loads(process.stdout.readline())["line"])
        process.stdin.close()
        assert process.wait(20) == ORPHANED
    assert heard == ["one", "two", "three"]


def test_saying_never_waits_for_a_reader() -> None:
    """With a full pipe and no reader the client continues; then everything arrives in order."""
    reading, writing = os.pipe()
    outbox = Outbox(writing)
    for number in range(300):
        outbox.report("progress", number=number, ballast="x" * 1000)
    with os.fdopen(reading, "rb") as reader:
        assert [json.loads(reader.readline())["number"] for _ in range(300)] == list(range(300))
    os.close(writing)


def test_flush_waits_until_all_is_written() -> None:
    """A worker's last reports are written before it ends."""
    reading, writing = os.pipe()
    outbox = Outbox(writing)
    outbox.report("done", did="quit")
    outbox.flush(10)
    os.close(writing)
    with os.fdopen(reading, "rb") as reader:
        assert json.loads(reader.read()) == {"say": "done", "did": "quit"}
