"""Exec clients as the worker drives them: error names that clients in other languages report, and commits."""

import pytest
from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from aftershock.tests.unit.workloads.adapters.steps import answered, program, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.exec import ExecCommitter
from aftershock.workloads.adapters.exec_protocol import error_code
from aftershock.workloads.load.assignment import CommitAssignment, Go, Stop
from aftershock.workloads.load.events import Events


@pytest.mark.parametrize("code", list(ErrorCode))
def test_kafkas_error_names(code: ErrorCode) -> None:
    """The names of ``org.apache.kafka.common.protocol.Errors``."""
    assert error_code(code.name.upper()) == int(code)


@pytest.mark.parametrize("code", [-199, -195, -192, -185, -184, -150, 3, 6, 7, 10, 19, 45])
def test_librdkafkas_error_names(code: int) -> None:
    """librdkafka's own errors, and its names of Kafka's errors where they differ."""
    assert error_code(KafkaError(code).name()) == code


def test_an_unknown_name_is_kafkas_unknown_error() -> None:
    """Never the code of success, and no attribute of a class."""
    assert {error_code(name) for name in ("whatever", "", "name", "__doc__", "UNKNOWN_SERVER_ERROR")} == {-1}


ECHO = """
say(say="ready")
for order in orders:
    wanted = {"do": "commit", "seq": order["seq"], "group": f"orders-baseline-{order['seq'] % 3}",
              "partition": order["seq"] % 3 % told["partitions"], "offset": order["seq"] // 3}
    say(say="failed" if order != wanted else "acked", seq=order["seq"], **({"error": "X"} if order != wanted else {}))
"""


def test_groups_take_turns_and_their_offsets_rise(bench: Bench) -> None:
    """The program gets the commits in the order in which the assignment deals them, and each ack completes a row."""
    plain = bench.produce().model_dump(include=set(CommitAssignment.model_fields) - {"op"})
    told = CommitAssignment(**(plain | {"client": "exec", "command": program(ECHO), "groups": 3}))
    committer = ExecCommitter(told, bench.now_us, Events(told, bench.now_us))
    committer.prepare()
    now_us = bench.now_us()
    committer.obey(Go(start_us=now_us))
    committer.obey(Stop(at_us=now_us + 100_000))
    assert answered(committer) == {"did": "stop", "unreported": 0}
    committed = rows(bench, "p0")
    assert [row["status"] for row in committed] == ["ok"] * 20
    assert [(row["group"], row["offset"]) for row in committed[:4]] == [
        ("orders-baseline-0", 0),
        ("orders-baseline-1", 0),
        ("orders-baseline-2", 0),
        ("orders-baseline-0", 1),
    ]
