from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aftershock.workloads.load.worker import ORPHANED, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aftershock.tests.unit.workloads.conftest import Bench


WORKER = [sys.executable, "-P", "-m", "aftershock.workloads.load.worker"]

RUNNER = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-P", "-m", "aftershock.workloads.load.worker"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
worker.stdin.write(sys.stdin.buffer.readline())
worker.stdin.flush()
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
"""

RUNNER_WITH_BORROWED_PIPES = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-P", "-m", "aftershock.workloads.load.worker"], stderr=subprocess.DEVNULL)
print(worker.pid, flush=True)
time.sleep(600)
"""


class Talk:
    """A worker without a fleet: the bare conversation."""

    def __init__(self, first_line: str) -> None:
        self.process = subprocess.Popen(
            WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.send(first_line)

    def send(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, say: str) -> dict[str, Any]:
        """The next message of that kind; the rest is passed over."""
        assert self.process.stdout
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["say"] == say:
                return message
        raise AssertionError(f"the worker ended without saying {say}")

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def talk() -> Iterator[Callable[[str], Talk]]:
    talks: list[Talk] = []

    def start(first_line: str) -> Talk:
        talks.append(Talk(first_line))
        return talks[-1]

    yield start
    for each in talks:
        each.end()


def wait_gone(pid: int, deadline_s: float = 30) -> None:
    until = time.monotonic() + deadline_s
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        assert time.monotonic() < until, f"process {pid} outlived its runner by {deadline_s} s"
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_the_whole_conversation(live_bench: Bench, talk: Callable[[str], Talk]) -> None:
    """Ready, go, progress, stop, quit: each answered as documented, the counters written, exit status 0."""
    worker = talk(live_bench.produce().model_dump_json())
    assert worker.hear("ready") == {"say": "ready", "reports": ["node_disconnected", "request_timed_out"]}
    start_us = live_bench.now_us()
    worker.send(json.dumps({"do": "go", "start_us": start_us}))
    progress = worker.hear("progress")
    assert progress.keys() == {
        *("say", "t_us", "sent", "ok", "failed", "in_doubt", "late_p99_us", "window", "traffic"),
    }
    worker.send(json.dumps({"do": "stop", "at_us": start_us + 1_000_000}))
    assert worker.hear("done") == {"say": "done", "did": "stop", "unreported": 0}
    worker.send('{"do": "quit"}')
    assert worker.hear("done") == {"say": "done", "did": "quit"}
    assert worker.process.wait(20) == 0
    (counters,) = [line for line in events(live_bench) if line["event"] == "counters"]
    assert counters["counters"] == {"sent": 200, "ok": 200, "failed": 0, "in_doubt": 0}
    assert (counters["arm"], counters["worker"]) == ("baseline", "p0")


def events(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bench.events.read_text().splitlines()]


def test_ctrl_c_is_the_runners_to_judge(live_bench: Bench, talk: Callable[[str], Talk]) -> None:
    """A SIGINT that a terminal sends to the whole group does not end the client: it continues to report."""
    worker = talk(live_bench.produce().model_dump_json())
    worker.hear("ready")
    os.kill(worker.process.pid, signal.SIGINT)
    worker.hear("progress")
    worker.hear("progress")
    assert worker.process.poll() is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"no.such.setting": "1"}, "no.such.setting"),
        ({"group.id": "g"}, "name the consumer group with group in the workload"),
    ],
)
def test_settings_that_are_refused_are_said(
    bench: Bench, talk: Callable[[str], Talk], settings: dict[str, str], why: str
) -> None:
    """A worker that cannot start gives the reason in its last message, and exits with status 1."""
    worker = talk(bench.produce(settings=settings).model_dump_json())
    assert why in worker.hear("died")["why"]
    assert worker.process.wait(20) == 1


def test_an_order_that_is_none_is_an_end_with_a_reason(live_bench: Bench, talk: Callable[[str], Talk]) -> None:
    """Runner and worker of different versions must not misunderstand each other silently."""
    worker = talk(live_bench.produce().model_dump_json())
    worker.hear("ready")
    worker.send('{"do": "dance"}')
    assert "dance" in worker.hear("died")["why"]


def test_closing_the_pipe_ends_the_worker_even_before_it_is_ready(bench: Bench, talk: Callable[[str], Talk]) -> None:
    """Without a cluster the worker never becomes ready: at the end of input it exits."""
    worker = talk(bench.produce().model_dump_json())
    assert worker.process.stdin
    worker.process.stdin.close()
    assert worker.process.wait(20) == ORPHANED


def test_a_worker_dies_with_its_runner(live_bench: Bench) -> None:
    """kill -9 the runner: its worker ends by itself."""
    with subprocess.Popen([sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runner:
        assert runner.stdin
        assert runner.stdout
        runner.stdin.write(live_bench.produce().model_dump_json().encode() + b"\n")
        runner.stdin.flush()
        worker = int(runner.stdout.readline())
        os.kill(runner.pid, signal.SIGKILL)
        wait_gone(worker)


def test_a_worker_dies_with_its_runner_though_somebody_holds_its_pipes(live_bench: Bench) -> None:
    """Both pipes stay open in this test, but the parent has changed: the worker still ends."""
    reading, writing = os.pipe()
    os.write(writing, live_bench.produce().model_dump_json().encode() + b"\n")
    code = [sys.executable, "-c", RUNNER_WITH_BORROWED_PIPES]
    with subprocess.Popen(code, stdin=reading, stdout=subprocess.PIPE) as runner:
        assert runner.stdout
        worker = int(runner.stdout.readline())
        assert json.loads(runner.stdout.readline())["say"] == "ready"
        os.kill(runner.pid, signal.SIGKILL)
        wait_gone(worker)
    os.close(reading)
    os.close(writing)


def test_a_worker_loads_its_own_client_alone() -> None:
    """One of librdkafka carries neither the reference clients nor what they need: its memory and start are measured."""
    script = (
        "import sys, aftershock.workloads.load.worker, aftershock.workloads.adapters.confluent\n"
        "print([name for name in ('numpy', 'kio', 'aftershock.workloads.kafka.client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()


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
