"""Names of errors, as clients in other languages have them."""

import pytest
from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from aftershock.tests.unit.workloads.adapters.steps import answered, program, rows
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters.exec import ExecCommitter, error_code
from aftershock.workloads.load.assignment import CommitAssignment, Go, Stop
from aftershock.workloads.load.events import Events


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_of_kafka_by_kafkas_name(code: ErrorCode) -> None:
    """As ``org.apache.kafka.common.protocol.Errors`` names them."""
    assert error_code(code.name.upper()) == int(code)


@pytest.mark.parametrize("code", [-199, -195, -192, -185, -184, -150, 3, 6, 7, 10, 19, 45])
def test_librdkafkas_names(code: int) -> None:
    """Its own errors, and where its name of one of Kafka's differs, that as well."""
    assert error_code(KafkaError(code).name()) == code


def test_a_name_that_nobody_knows() -> None:
    """Kafka's own code for "unknown"; never that of success, and no attribute of a class."""
    assert {error_code(name) for name in ("whatever", "", "name", "__doc__", "UNKNOWN_SERVER_ERROR")} == {-1}


ECHO = """
say(say="ready")
for order in orders:
    wanted = {"do": "commit", "seq": order["seq"], "group": f"orders-baseline-{order['seq'] % 3}",
              "partition": order["seq"] % 3 % told["partitions"], "offset": order["seq"] // 3}
    say(say="failed" if order != wanted else "acked", seq=order["seq"], **({"error": "X"} if order != wanted else {}))
"""


def test_groups_take_turns_and_their_offsets_rise(bench: Bench) -> None:
    """The program is handed each commit as the assignment deals them out, and each ack ends its row."""
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
