"""Protocol of ``docs/EXEC.md`` for the programs in Python: orders on standard input, reports on standard output.

The programs run in environments of their own, which have one library and nothing of Aftershock.
"""

import json
import os
import socket
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

_output, _pending = Lock(), Lock()
_due: dict[int, float] = {}  # the deadline of each order without a report; all orders have the same time limit
_orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()


def say(report: str, **details: object) -> None:
    line = json.dumps({"say": report} | details) + "\n"
    with _output:
        sys.stdout.write(line)
        sys.stdout.flush()


def say_timed(report: str, **details: object) -> None:
    """Report with the time on the host's monotonic clock."""
    say(report, **details, at_ns=time.monotonic_ns())


def run(
    module: str,
    operations: Mapping[str, Callable[[dict[str, Any]], None]],
    *,
    lacks: Mapping[str, str],
    unknown: Callable[[str], bool],
) -> None:
    """Read the start order, and run its operation; the end of standard input ends the process at once.

    With the arguments ``--describe SETTINGS``, only tell the version of the library (``module``), what it ``lacks``,
    and which of an arm's settings are ``unknown`` to it.
    """
    if sys.argv[1:2] == ["--describe"]:
        own = [name for name in json.loads(sys.argv[2]) if unknown(name.replace(".", "_"))]
        refused = f"{module} has no setting {own[0]}" if own else None
        sys.stdout.write(json.dumps({"version": version(module), "lacks": lacks, "refused": refused}))
        return
    start = json.loads(sys.stdin.readline())
    Thread(target=_read, daemon=True).start()
    Thread(target=_expire, daemon=True).start()
    try:
        operations[start["op"]](start)
    except BaseException as error:
        say("died", why=f"{type(error).__name__}: {error}")
        raise
    say("bye")
    os._exit(0)  # threads of the library may still run


def _read() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        _orders.put(None if order["do"] == "close" else order)
    os._exit(1)


def orders() -> Iterator[dict[str, Any]]:
    """Yield orders until ``close``."""
    while (order := _orders.get()) is not None:
        yield order


def closing() -> Callable[[], bool]:
    """Return a function that returns True after ``close``, for a consumer, which has no other order."""
    listener = Thread(target=lambda: list(orders()), daemon=True)
    listener.start()
    return lambda: not listener.is_alive()


def settings_of(start: dict[str, Any]) -> dict[str, Any]:
    """Return the arm's settings with the names of kafka-python and aiokafka; producers have no session."""
    settings = {name.replace(".", "_"): value for name, value in start["settings"].items()}
    if start["op"] != "consume":
        settings.pop("session_timeout_ms", None)
    return settings


def record_of(order: dict[str, Any]) -> tuple[bytes | None, bytes, list[tuple[str, bytes | None]]]:
    """Return key, value and headers of an order to send."""

    def content(text: str | None) -> bytes | None:
        return None if text is None else b64decode(text)

    return content(order["key"]), b64decode(order["value"]), [(name, content(text)) for name, text in order["headers"]]


def mark_of(headers: Any) -> str | None:
    """Return the value of the header ``aftershock`` in base64."""
    mark = dict(headers or ()).get("aftershock")
    return None if mark is None else b64encode(mark).decode()


class CountedSocket(socket.socket):
    """Socket that counts its bytes by the peer's port: the libraries in Python count none by broker."""

    def send(self, *args: Any) -> int:
        return self._count(0, super().send(*args))

    def sendmsg(self, *args: Any) -> int:
        return self._count(0, super().sendmsg(*args))

    def recv(self, *args: Any) -> bytes:
        received = super().recv(*args)
        self._count(1, len(received))
        return received

    def recv_into(self, *args: Any) -> int:
        return self._count(1, super().recv_into(*args))

    def _count(self, place: int, size: int) -> int:
        if not hasattr(self, "_bytes"):
            name = self.getpeername()
            self._bytes = _traffic.setdefault(name[1], [0, 0]) if isinstance(name, tuple) else [0, 0]
        self._bytes[place] += size
        return size


_traffic: dict[int, list[int]] = {}  # bytes sent and received, by the peer's port
socket.socket = CountedSocket


def report_traffic(brokers: Callable[[], Iterable[Any]]) -> None:
    """Report the bytes exchanged with each broker once a second; ``brokers`` copies those that the library knows."""

    def report() -> None:
        while True:
            time.sleep(1)
            # kafka-python 3 renamed the id
            ports = {node.node_id if hasattr(node, "node_id") else node.nodeId: node.port for node in brokers()}
            found = {node: _traffic[port] for node, port in ports.items() if port in _traffic and str(node).isdecimal()}
            if found:
                say("traffic", brokers=found)

    Thread(target=report, daemon=True).start()


def topic_names(start: dict[str, Any]) -> list[str]:
    return [topic["name"] for topic in start["topics"]]


def say_partitions(report: str, start: dict[str, Any], partitions: Any, **details: object) -> None:
    """Report partitions as ``assigned``, ``revoked`` or ``lost``, each topic of the order by itself."""
    numbers: dict[str, list[int]] = {name: [] for name in topic_names(start)}
    for place in partitions:
        numbers.setdefault(place.topic, []).append(place.partition)
    for topic, own in numbers.items():
        say_timed(report, topic=topic, partitions=own, **details)


def start_positions(consumer: Any, partition_of: Callable[[str, int], Any], start: dict[str, Any]) -> None:
    """Let a consumer of kafka-python or aiokafka without a group read each partition from its start position."""
    starts = {
        partition_of(topic["name"], int(number)): offset
        for topic in start["topics"]
        for number, offset in topic["positions"].items()
    }
    consumer.assign(list(starts))
    for partition, offset in starts.items():
        consumer.seek(partition, offset)
    say_partitions("assigned", start, starts)


class Processed:
    """What a consumer has processed and not committed, by partition of kafka-python or aiokafka."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._schedule = start["commit"] or {}
        self._processing_s = start["processing_ms"] / 1000
        self._offsets: dict[Any, int] = {}
        self._records, self._committed = 0, time.monotonic()

    def process(self, place: Any, record: Any) -> None:
        """Take the time of processing, and report the record."""
        time.sleep(self._processing_s)
        mark, size_bytes = mark_of(record.headers), len(record.value or b"")
        say_timed(
            "record",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            mark=mark,
            size_bytes=size_bytes,
        )
        self._offsets[place] = record.offset + 1
        self._records += 1

    def due(self) -> dict[Any, int]:
        """Return and forget the offsets to commit, if a commit is due by the order's schedule."""
        every_ms, every_records = self._schedule.get("every_ms"), self._schedule.get("every_records")
        late = every_ms is not None and time.monotonic() - self._committed >= every_ms / 1000
        if not self._offsets or not (late or (every_records is not None and self._records >= every_records)):
            return {}
        due, self._offsets, self._records, self._committed = self._offsets, {}, 0, time.monotonic()
        return due

    def take(self, places: Any) -> dict[Any, int]:
        """Return and forget the offsets of partitions that are given up; none if the library commits by itself."""
        taken = {place: self._offsets.pop(place) for place in places if place in self._offsets}
        return taken if self._schedule else {}


def say_committed(offsets: Mapping[Any, int], began: float) -> None:
    """Report offsets that Kafka has accepted, of a commit that was sent at ``began``."""
    topics: dict[str, dict[str, int]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place.topic, {})[str(place.partition)] = offset
    for topic, numbers in topics.items():
        say_timed("committed", topic=topic, offsets=numbers, took_us=round(1e6 * (time.monotonic() - began)))


def name_of(error: Any) -> str:
    """Return Kafka's name of an exception of kafka-python or aiokafka, or librdkafka's name where Kafka has none."""
    kind = error if isinstance(error, type) else type(error)
    own = {"KafkaTimeoutError": "_MSG_TIMED_OUT", "KafkaConnectionError": "_TRANSPORT", "TimeoutError": "_TIMED_OUT"}
    return _error_names().get(str(getattr(kind, "errno", None))) or own.get(kind.__name__, kind.__name__)


@cache
def _error_names() -> dict[str, str]:
    return dict(json.loads(Path(__file__).with_name("errors.json").read_text()))


def begin(seq: int, deadline_ms: int) -> None:
    """Start the deadline of an order, after which the order is reported as failed, in doubt."""
    with _pending:
        _due[seq] = time.monotonic() + deadline_ms / 1000


def acked(seq: int, **place: int) -> None:
    """Report an order as acknowledged, unless it was reported."""
    _once("acked", seq, place)


def failed(seq: int, error: str, *, in_doubt: bool | None = None) -> None:
    """Report an order as failed, unless it was reported."""
    _once("failed", seq, {"error": error} | ({} if in_doubt is None else {"in_doubt": in_doubt}))


def _once(report: str, seq: int, details: dict[str, Any]) -> None:
    with _pending:
        is_open = _due.pop(seq, None) is not None
    if is_open:
        say(report, seq=seq, **details)


def await_reports() -> None:
    """Return when every order is reported."""
    while _due:
        time.sleep(0.01)


def _expire() -> None:
    while True:
        time.sleep(0.05)
        with _pending:
            late = [seq for seq, due in _due.items() if due < time.monotonic()]
        for seq in late:
            failed(seq, "_MSG_TIMED_OUT", in_doubt=True)


def commit_each(start: dict[str, Any], commit: Callable[[dict[str, Any], float], str | None]) -> None:
    """Commit the orders of each group one by one, and those of several groups at once, until ``close``.

    ``commit`` takes an order and its deadline, and returns the name of an error, or None.
    """
    threads: dict[str, ThreadPoolExecutor] = {}

    def report(order: dict[str, Any], due: float) -> None:
        if error := commit(order, due):
            failed(order["seq"], error)
        else:
            acked(order["seq"])

    for order in orders():
        begin(order["seq"], start["deadline_ms"])
        thread = threads.setdefault(order["group"], ThreadPoolExecutor(1))
        thread.submit(report, order, time.monotonic() + start["deadline_ms"] / 1000)
    await_reports()
