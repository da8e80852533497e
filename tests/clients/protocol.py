"""Protocol of ``docs/EXEC.md`` for the clients in Python: orders on standard input, reports on standard output."""

import json
import os
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from kio.schema.errors import ErrorCode

_output, _pending = Lock(), Lock()
_due: dict[int, float] = {}  # the deadline of each order without a report; all orders have the same time limit
_orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()


def say(report: str, **details: object) -> None:
    line = json.dumps({"say": report} | details) + "\n"
    with _output:
        sys.stdout.write(line)
        sys.stdout.flush()


def run(**operations: Callable[[dict[str, Any]], None]) -> None:
    """Read the start order, and run its operation; the end of standard input ends the process at once."""
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


def say_record(record: Any) -> None:
    """Report a record of kafka-python or aiokafka."""
    mark, size_bytes = mark_of(record.headers), len(record.value or b"")
    say("record", partition=record.partition, offset=record.offset, mark=mark, size_bytes=size_bytes)


def assign_positions(consumer: Any, partition_of: Callable[[str, int], Any], start: dict[str, Any]) -> None:
    """Let a consumer of kafka-python or aiokafka without a group read each partition from its start position."""
    starts = {partition_of(start["topic"], int(number)): offset for number, offset in start["positions"].items()}
    consumer.assign(list(starts))
    for partition, offset in starts.items():
        consumer.seek(partition, offset)
    say("assigned", partitions=[partition.partition for partition in starts])
    say("ready")


def name_of(error: Any) -> str:
    """Return Kafka's name of an exception of kafka-python or aiokafka, or librdkafka's name where Kafka has none."""
    kind = error if isinstance(error, type) else type(error)
    names = {"KafkaTimeoutError": "_MSG_TIMED_OUT", "KafkaConnectionError": "_TRANSPORT", "TimeoutError": "_TIMED_OUT"}
    try:
        return ErrorCode(kind.errno).name.upper()
    except (AttributeError, ValueError):
        return names.get(kind.__name__, kind.__name__)


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
