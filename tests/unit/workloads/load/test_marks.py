"""Marks that a service copies, and JSON values that carry them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.workloads.load.schedule import HEADER, JsonValue, Mark, mark_in, mark_text, pack, parse_mark

MARK = Mark(3, 1580, 20_034_567)
TEMPLATE = {"id": "{mark}", "order": {"number": "no {seq}", "customer": "c-{key}"}, "amount": 5, "paid": True}


@given(st.builds(Mark, st.integers(0, 10**9 - 1), st.integers(0, 10**17), st.integers(0, 10**17)))
def test_a_mark_survives_as_text(mark: Mark) -> None:
    assert mark == parse_mark(mark_text(mark))


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "a:b:c", "1:2:-3", " 1:2:3", "\u0661:2:3", None, 5, ["1:2:3"]])
def test_other_texts_are_no_marks(text: object) -> None:
    assert parse_mark(text) is None


@pytest.mark.parametrize(
    ("place", "headers", "key", "value"),
    [
        ("header", [(HEADER, pack(*MARK))], b"other", b"any"),
        ("key", None, mark_text(MARK).encode(), b"any"),
        ("$.id", None, None, json.dumps({"id": mark_text(MARK), "cents": 500}).encode()),
        ("$.order.id", None, None, json.dumps({"order": {"id": mark_text(MARK)}}).encode()),
    ],
)
def test_an_output_names_its_input(place: str, headers: object, key: bytes | None, value: bytes) -> None:
    assert MARK == mark_in(place, headers, key, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b'{"id": 5}', b'{"id": {"id": 1}}', b'"text"', b"\xff", b"[" * 100_000, None]
)
def test_an_output_without_a_mark(value: bytes | None) -> None:
    assert mark_in("$.id", None, None, value) is None


def test_a_json_value_is_that_of_its_template() -> None:
    value = JsonValue(TEMPLATE).value(MARK, b"7")
    expected = {"id": "3:1580:20034567", "order": {"number": "no 1580", "customer": "c-7"}, "amount": 5, "paid": True}
    assert expected == json.loads(value)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"order": {"number": "no 1580", "customer": "c-other"}}, True),  # the record's key is not known
        ({"order": {"number": "no 1581", "customer": "c-7"}}, False),
        ({"order": {"number": "no 1580", "customer": "d-7"}}, False),
        ({"amount": 6}, False),
        ({"id": "3:1581:20034567"}, False),
        ({"more": 1}, False),
    ],
)
def test_a_spoilt_json_value_is_recognised(change: dict[str, object], *, same: bool) -> None:
    template = JsonValue(TEMPLATE)
    value = json.dumps(json.loads(template.value(MARK, b"7")) | change).encode()
    assert same == template.is_value(MARK, value)


@pytest.mark.parametrize("value", [b"", b"{", b"[" * 100_000, b"5", b"\xff\xfe"])
def test_a_value_that_is_no_json_is_none(value: bytes) -> None:
    assert not JsonValue(TEMPLATE).is_value(MARK, value)
