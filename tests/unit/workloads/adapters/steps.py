"""Steps of a worker with its client, for tests in the role of the worker, and scripted client programs."""

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
TOPIC = "t"
"""Topic of the scripted broker."""

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
    """Return a program that reads its start order into ``told`` and runs ``code``, which can use ``say`` and
    ``orders``.
    """
    return (sys.executable, "-c", _PROGRAM + code)


def answered(client: Client) -> dict[str, Any]:
    """Step the client until it answers the last order."""
    until = time.monotonic() + LIMIT_S
    while (answer := client.answer()) is None:
        assert time.monotonic() < until, f"no answer after {LIMIT_S} s"
        client.step(20_000)
    return answer


def rows(bench: Bench, worker: str) -> list[dict[str, Any]]:
    """Return the evidence of one worker."""
    convert(bench.spool, bench.outcomes)
    found: list[dict[str, Any]] = pq.read_table(bench.outcomes / f"part-{worker}.parquet").to_pylist()
    return found
