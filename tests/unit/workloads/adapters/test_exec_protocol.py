"""The lines that worker and program exchange, compared with docs/EXEC.md."""

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.errors import WorkloadError
from aftershock.tests.unit.workloads.conftest import Bench
from aftershock.workloads.adapters import exec_protocol
from aftershock.workloads.adapters.exec_orders import Close, Commit, Send, parse_order, start_order
from aftershock.workloads.adapters.exec_orders import Go as StartOwnLoad
from aftershock.workloads.adapters.exec_protocol import (
    INTEGERS,
    Acked,
    AckedAll,
    Assigned,
    Bye,
    ClientError,
    Committed,
    Died,
    Failed,
    Lost,
    NodeDisconnected,
    Ready,
    Record,
    Report,
    ReportError,
    RequestTimedOut,
    Revoked,
    Sent,
    Summary,
    Traffic,
    parse_report,
)
from aftershock.workloads.load.assignment import CommitAssignment

ROOT = Path(__file__).parents[4]

REPORTS: list[tuple[str, Report]] = [
    ('{"say": "ready"}', Ready()),
    ('{"say": "ready", "reports": ["attempts"]}', Ready(reports=("attempts",))),
    ('{"say": "acked", "seq": 7, "attempts": 2}', Acked(seq=7, attempts=2)),
    ('{"say": "node_disconnected", "broker": 2, "at_ns": 5}', NodeDisconnected(broker=2, at_ns=5)),
    ('{"say": "request_timed_out", "broker": 2}', RequestTimedOut(broker=2)),
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
    ('{"say": "lost", "topic": "t", "partitions": [1], "epoch": 3}', Lost(topic="t", partitions=(1,), epoch=3)),
    ('{"say": "committed", "topic": "t", "offsets": {"1": 5}}', Committed(topic="t", offsets={1: 5})),
    ('{"say": "sent", "seq": 3, "at_ns": [5, 6]}', Sent(seq=3, at_ns=(5, 6))),
    ('{"say": "acked_all", "rows": [[3, 5, -1, 7]]}', AckedAll(rows=((3, 5, -1, 7),))),
    ('{"say": "summary", "text": "5 records sent"}', Summary(text="5 records sent")),
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


NUMBERS = [
    (line, field)
    for line, field in (
        ('{"say": "acked", "seq": @}', "seq"),
        ('{"say": "failed", "seq": @, "error": "X"}', "seq"),
        ('{"say": "acked", "seq": 0, "partition": @}', "partition"),
        ('{"say": "acked", "seq": 0, "offset": @}', "offset"),
        ('{"say": "record", "partition": @, "offset": 0, "mark": null, "size_bytes": 1}', "partition"),
        ('{"say": "record", "partition": 0, "offset": @, "mark": null, "size_bytes": 1}', "offset"),
        ('{"say": "record", "partition": 0, "offset": 0, "mark": null, "size_bytes": @}', "size_bytes"),
        ('{"say": "assigned", "partitions": [0, @]}', "partitions.1"),
        ('{"say": "traffic", "brokers": {"1": [@, 6]}}', "brokers.1.0"),
    )
]


@pytest.mark.parametrize("number", ["true", "5.0", "1e2", '"7"', "null", "[1]"])
@pytest.mark.parametrize(("line", "field"), NUMBERS)
def test_a_number_that_is_no_integer_is_refused(line: str, field: str, number: str) -> None:
    """Also where Python or a lax parser would take it for one; with the field, the line and the rule of the page."""
    written = line.replace("@", number)
    with pytest.raises(ReportError) as caught:
        parse_report(written.encode())
    assert INTEGERS == caught.value.rule
    assert f"(field {field} of {json.loads(written)['say']}: Input should be a valid integer)" in str(caught.value)
    assert written in str(caught.value)
    assert 'docs/EXEC.md, Rules: "Numbers are integers' in str(caught.value)


@pytest.mark.parametrize("number", [-2, 2**63])
@pytest.mark.parametrize(("line", "field"), NUMBERS)
def test_a_number_out_of_range_is_refused(line: str, field: str, number: int) -> None:
    with pytest.raises(ReportError, match=rf"field {re.escape(field)} of") as caught:
        parse_report(line.replace("@", str(number)).encode())
    assert caught.value.rule.section in ("produce", "consume", "All operations")


@pytest.mark.parametrize("key", ["1.0", "1_0", " 1", "01", "+1", "-1", "", "99999999999"])
def test_a_broker_id_is_a_plain_number(key: str) -> None:
    with pytest.raises(ReportError, match="brokers"):
        parse_report(json.dumps({"say": "traffic", "brokers": {key: [1, 2]}}).encode())


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
    """The arm's settings are passed on unchanged; every other number is an integer."""
    common = {
        "do",
        "protocol",
        "op",
        "bootstrap",
        "topic",
        "partitions",
        "topics",
        "client_id",
        "client_rack",
        "settings",
    }
    line = start_order(bench.produce(settings={"linger.ms": 3, "x": True}))
    assert b'"linger_ms":5,' in line
    produce = told(line)
    assert produce.keys() == common | {"acks", "idempotence", "linger_ms", "deadline_ms", "load", "transaction"}
    assert produce["settings"] == {"linger.ms": 3, "x": True}
    consume = told(start_order(bench.consume(client_rack="b"), {(bench.topic, 0): 17}))
    grouping = {"group", "members", "group_protocol", "assignor", "instance_id", "commit", "processing_ms"}
    assert consume.keys() == common | grouping | {"from", "pattern", "positions", "isolation"}
    assert (consume["positions"], consume["from"], consume["client_rack"]) == ({"0": 17}, "earliest", "b")
    more = [{"name": "returns", "topic_id": "i", "partitions": 2}]
    two = told(start_order(bench.consume(more_topics=more), {(bench.topic, 3): 17, ("returns", 1): 4}))
    assert (bench.topic, {"3": 17}) == (two["topic"], two["positions"])
    assert [
        {"name": bench.topic, "partitions": two["partitions"], "positions": {"3": 17}},
        {"name": "returns", "partitions": 2, "positions": {"1": 4}},
    ] == two["topics"]
    plain = bench.produce().model_dump(include=set(CommitAssignment.model_fields) - {"op"})
    commit = told(start_order(CommitAssignment(**plain, groups=2)))
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

    order = told(Send(seq=3, topic="t", key=key, value=value, headers=tuple(headers)).line())
    assert "t" == order["topic"]
    assert (order["do"], order["seq"], back(order["key"]), back(order["value"])) == ("send", 3, key, value)
    assert [(name, back(content)) for name, content in order["headers"]] == headers


@pytest.mark.parametrize(("plan_ms", "sent"), [(0, b"0"), (0.2, b"1"), (5.0, b"5"), (5.5, b"6")])
def test_a_linger_is_sent_as_whole_milliseconds(bench: Bench, plan_ms: float, sent: bytes) -> None:
    """A fraction is rounded up, so that a linger never becomes none."""
    assert b'"linger_ms":%b,' % sent in start_order(bench.produce(linger_ms=plan_ms))


def test_orders_follow_their_schema(bench: Bench) -> None:
    """Each order that the harness writes is valid by the shipped schema, and as an order only."""
    plain = bench.produce().model_dump(include=set(CommitAssignment.model_fields) - {"op"})
    for line in (
        start_order(bench.produce(settings={"a": 1.5, "b": "c"})),
        start_order(bench.consume(client_rack="b"), {(bench.topic, 0): 17}),
        start_order(bench.consume(group="g")),
        start_order(CommitAssignment(**plain, groups=2)),
        Send(seq=0, topic="t", key=None, value=b"v", headers=(("h", None), ("\u2028", b"\xff"))).line(),
        Commit(seq=0, group="g", partition=1, offset=2).line(),
        start_order(bench.produce(client="java", settings={"num-records": 9}, record_size_min=9, record_size_max=9)),
        StartOwnLoad(start_ns=5, start_us=2).line(),
        Close().line(),
    ):
        assert follows(told(line), {"$ref": "#/$defs/Order"})
        assert not follows(told(line), {"$ref": "#/$defs/Report"})
        assert line.isascii()
        assert line == parse_order(line).line()


MESSAGES = [json.loads(line) for line, _ in REPORTS]
VALUES = st.sampled_from(
    [None, True, -2, -1, 0, 3, 2**31, 2**63, 5.5, "a", "1", "AAE=", [], [0], [1, 2], {}, {"1": [1, 2]}]
)


@given(
    st.sampled_from(MESSAGES),
    st.dictionaries(st.sampled_from(sorted({key for message in MESSAGES for key in message})), VALUES, max_size=2),
    st.sets(st.sampled_from(sorted({key for message in MESSAGES for key in message})), max_size=1),
)
@settings(max_examples=400)
def test_the_schema_accepts_what_the_harness_accepts(
    message: dict[str, Any], changes: dict[str, Any], removed: set[str]
) -> None:
    """For reports with changed, added and removed fields; base64 is an annotation in JSON Schema."""
    changed = {key: value for key, value in (message | changes).items() if key not in removed}
    if isinstance(changed.get("mark"), str):
        changed["mark"] = "AAE="
    try:
        parse_report(json.dumps(changed).encode())
    except ReportError:
        accepted = False
    else:
        accepted = True
    assert accepted == follows(changed, {"$ref": "#/$defs/Report"})


SCHEMA = exec_protocol.schema()
TYPES = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict, "number": (int, float)}


def follows(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value is valid by what our schema uses of JSON Schema 2020-12."""
    known = {"$ref", "oneOf", "anyOf", "type", "const", "enum", "required", "properties", "additionalProperties"}
    known |= {"items", "prefixItems", "minItems", "maxItems", "minimum", "exclusiveMaximum", "propertyNames"}
    assert not schema.keys() - known - {"title", "description", "default", "contentEncoding"}
    if "$ref" in schema:
        return follows(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    verdicts = []
    if "oneOf" in schema:
        verdicts.append(sum(follows(value, option) for option in schema["oneOf"]) == 1)
    if "anyOf" in schema:
        verdicts.append(any(follows(value, option) for option in schema["anyOf"]))
    if (kind := schema.get("type")) == "integer":
        verdicts.append(isinstance(value, int) and not isinstance(value, bool))
    elif kind:
        verdicts.append(isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)))
    if not all(verdicts):
        return False
    verdicts.append("const" not in schema or value == schema["const"])
    verdicts.append(value in schema.get("enum", [value]))
    if isinstance(value, int):
        verdicts.append(value >= schema.get("minimum", value) and value < schema.get("exclusiveMaximum", value + 1))
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        verdicts.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
        verdicts += [follows(item, part) for item, part in zip(value, first, strict=False)]
        verdicts += [follows(item, schema.get("items", {})) for item in value[len(first) :]]
    if isinstance(value, dict):
        named, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
        verdicts.append(value.keys() >= set(schema.get("required", ())))
        for key, content in value.items():
            part = named.get(key, rest)
            verdicts.append(part is not False and follows(content, part))
            verdicts.append(re.search(schema.get("propertyNames", {}).get("pattern", ""), key) is not None)
    return all(verdicts)


def test_commit_and_close_orders_are_documented() -> None:
    commit = {"do": "commit", "seq": 0, "group": "g", "partition": 2, "offset": 41}
    assert told(Commit(seq=0, group="g", partition=2, offset=41).line()) == commit
    assert told(Close().line()) == {"do": "close"}
