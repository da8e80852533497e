"""The lines that worker and program exchange, compared with docs/EXEC.md."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters import exec_protocol
from aftershock.workloads.adapters.exec_protocol import (
    Acked,
    Assigned,
    Bye,
    ClientError,
    Died,
    Failed,
    Ready,
    Record,
    Report,
    Revoked,
    Traffic,
    parse_report,
)
from aftershock.workloads.load.assignment import CommitAssignment

ROOT = Path(__file__).parents[4]

REPORTS: list[tuple[str, Report]] = [
    ('{"say": "ready"}', Ready()),
    ('{"say": "acked", "seq": 0, "partition": 3, "offset": 17}', Acked(seq=0, partition=3, offset=17)),
    ('{"say": "acked", "seq": 7}', Acked(seq=7, partition=-1, offset=-1)),
    ('{"say": "failed", "seq": 0, "error": "X", "in_doubt": true}', Failed(seq=0, error="X", in_doubt=True)),
    ('{"say": "failed", "seq": 0, "error": "X"}', Failed(seq=0, error="X", in_doubt=None)),
    (
        '{"say": "record", "partition": 0, "offset": 17, "mark": "AAE=", "size_bytes": 1000}',
        Record(partition=0, offset=17, mark=b"\x00\x01", size_bytes=1000),
    ),
    (
        '{"say": "record", "partition": 0, "offset": 17, "mark": null, "size_bytes": 0, "leader_epoch": 4}',
        Record(partition=0, offset=17, mark=None, size_bytes=0, leader_epoch=4),
    ),
    ('{"say": "assigned", "partitions": [0, 1], "member": "m"}', Assigned(partitions=(0, 1), member="m")),
    ('{"say": "revoked", "partitions": []}', Revoked(partitions=())),
    ('{"say": "traffic", "brokers": {"1": [5, 6]}}', Traffic(brokers={1: (5, 6)})),
    ('{"say": "error", "error": "X", "detail": "d"}', ClientError(error="X", detail="d")),
    ('{"say": "died", "why": "no"}', Died(why="no")),
    ('{"say": "bye"}', Bye()),
]


@pytest.mark.parametrize(("line", "report"), REPORTS)
def test_reports(line: str, report: Report) -> None:
    """Each line of the document gives the documented report, with documented defaults for omitted fields."""
    assert report == parse_report(line.encode())


def test_every_report_is_documented() -> None:
    """By its name on the wire."""
    document = (ROOT / "docs" / "EXEC.md").read_text()
    assert [report.say for _, report in REPORTS if f'"say": "{report.say}"' not in document] == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"starting up...", "starting up..."),
        (b"", "''"),
        (b'"ready"', "ready"),
        (b'{"say": "hello"}', "hello"),
        (b'{"seq": 1}', "say"),
        (b'{"say": "acked"}', "seq"),
        (b'{"say": "acked", "seq": 0, "ofset": 3}', "ofset"),
        (b'{"say": "acked", "seq": 0, "partition": -2}', "partition"),
        (b'{"say": "record", "partition": 0, "offset": -1, "mark": null, "size_bytes": 1}', "offset"),
        (b'{"say": "record", "partition": 0, "offset": 1, "mark": "=!", "size_bytes": 1}', "mark"),
        (b'{"say": "traffic", "brokers": {"one": [1, 2]}}', "brokers"),
        (b"\xff\xfe", "\\ufffd"),
    ],
)
def test_an_invalid_line_is_shown_in_the_error(line: bytes, what: str) -> None:
    """The error names the problem, shows the line and refers to the protocol's documentation."""
    with pytest.raises(WorkloadError) as caught:
        parse_report(line)
    assert what in str(caught.value).encode("ascii", "backslashreplace").decode()
    assert "docs/EXEC.md" in str(caught.value)


def test_a_long_line_is_shown_in_part() -> None:
    """A megabyte of noise gives a short message."""
    with pytest.raises(WorkloadError) as caught:
        parse_report(b"x" * 2**20)
    assert len(str(caught.value)) < 1000


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_give_a_report_or_a_protocol_error(line: bytes) -> None:
    try:
        parse_report(line)
    except WorkloadError:
        return
    assert json.loads(line)["say"]


def told(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_the_start_order_of_each_op_is_documented(bench: Bench) -> None:
    """The arm's settings are passed on unchanged."""
    common = {"do", "protocol", "op", "bootstrap", "topic", "partitions", "client_id", "client_rack", "settings"}
    produce = told(exec_protocol.start_order(bench.produce(settings={"linger.ms": 3, "x": True})))
    assert produce.keys() == common | {"acks", "idempotence", "linger_ms", "deadline_ms"}
    assert produce["settings"] == {"linger.ms": 3, "x": True}
    consume = told(exec_protocol.start_order(bench.consume(client_rack="b"), {0: 17}))
    assert consume.keys() == common | {"group", "from", "positions"}
    assert (consume["positions"], consume["from"], consume["client_rack"]) == ({"0": 17}, "earliest", "b")
    plain = bench.produce().model_dump(include=set(CommitAssignment.model_fields) - {"op"})
    commit = told(exec_protocol.start_order(CommitAssignment(**plain, groups=2)))
    assert commit.keys() == common | {"deadline_ms", "groups"}
    assert commit["groups"] == [f"{plain['workload']}-{plain['arm']}-{number}" for number in range(2)]


@given(
    st.none() | st.binary(max_size=40),
    st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=30)), max_size=3),
)
@settings(max_examples=50)
def test_records_survive_the_protocol(key: bytes | None, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
    """Key, value and headers are read back unchanged, null distinct from empty, for any bytes."""

    def back(text: str | None) -> bytes | None:
        return None if text is None else b64decode(text, validate=True)

    order = told(exec_protocol.send_order(3, key, value, headers))
    assert (order["do"], order["seq"], back(order["key"]), back(order["value"])) == ("send", 3, key, value)
    assert [(name, back(content)) for name, content in order["headers"]] == headers


def test_commit_and_close_orders_are_documented() -> None:
    commit = {"do": "commit", "seq": 0, "group": "g", "partition": 2, "offset": 41}
    assert told(exec_protocol.commit_order(0, "g", 2, 41)) == commit
    assert told(exec_protocol.close_order()) == {"do": "close"}
