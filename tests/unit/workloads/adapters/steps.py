"""What a worker does with a client, for tests that are the worker, and programs that say what a test wants said."""

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.worker import Client

EXAMPLE = (sys.executable, str(Path(__file__).parents[4] / "docs" / "examples" / "exec_client.py"))
LIMIT_S = 30.0

_PROGRAM = """
import json, sys
def say(**report):
    print(json.dumps(report), flush=True)
def orders():
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "close":
            say(say="bye")
            sys.exit(0)
        yield order
orders = orders()
told = next(orders)
"""


def program(code: str) -> tuple[str, ...]:
    """A program that has read ``told``, its start, and goes on with ``code``, which has ``say`` and ``orders``."""
    return (sys.executable, "-c", _PROGRAM + code)


def answered(client: Client) -> dict[str, Any]:
    """Step the client until it has an answer to the last order."""
    until = time.monotonic() + LIMIT_S
    while (answer := client.answer()) is None:
        assert time.monotonic() < until, f"no answer after {LIMIT_S} s"
        client.step(20_000)
    return answer


def rows(bench: Bench, worker: str) -> list[dict[str, Any]]:
    """The evidence of one worker."""
    convert(bench.spool, bench.outcomes)
    found: list[dict[str, Any]] = pq.read_table(bench.outcomes / f"part-{worker}.parquet").to_pylist()
    return found
