"""Statements that `sql` accepts, and its output formats, without Spark."""

import json

import pytest

from aftershock.errors import AftershockError
from aftershock.results.spark.sql import TABLE_ROWS_MAX, as_csv, as_json, as_table, first_word

ROWS = [("a,b", 1, None, [[0, 7]]), ("long" * 30, 22, 0.5, None)]
NAMES = ("name", "n", "ms", "samples")


@pytest.mark.parametrize(
    "text",
    ["select 1", " ( select 1)", "-- why\nSELECT 1", "/* why */ with a as (select 1) select * from a", "show tables"],
)
def test_queries_are_accepted(text: str) -> None:
    """Leading spaces, comments and brackets are skipped, and case does not matter."""
    assert first_word(text) in {"SELECT", "WITH", "SHOW"}


@pytest.mark.parametrize(
    "text",
    ["", "-- select", "drop view outcomes", "INSERT INTO x VALUES (1)", "create table x as select 1", "set x=1",
     "/* select */ delete from x", "add jar 'x.jar'", "cache table outcomes", "reset", "use x", "selected"],
)  # fmt: skip
def test_other_statements_are_refused(text: str) -> None:
    """Empty statements and statements that change data are refused; the error lists the accepted keywords."""
    with pytest.raises(AftershockError, match="is not a query: begin with one of SELECT"):
        first_word(text)


def test_values_do_not_command_the_terminal() -> None:
    """Names and values come from evidence of others."""
    assert list(as_table(["\x1b[2J"], [["\x9b2Jx\u202ey"]])) == ["?[2J", "------", "?2Jx?y"]


def test_the_table_format() -> None:
    """Numbers are right-aligned, null is empty, long cells are cut, and a note follows the first thousand rows."""
    assert list(as_table(NAMES, ROWS[:1])) == [
        "name  n  ms  samples",
        "----  -  --  --------",
        "a,b   1      [[0, 7]]",
    ]
    cut = list(as_table(NAMES, ROWS))[-1]
    assert cut.startswith("long" * 19 + "lon…  22  0.5")
    many = list(as_table(("n",), ((number,) for number in range(TABLE_ROWS_MAX + 5))))
    assert (len(many), many[-1]) == (TABLE_ROWS_MAX + 3, "… the first 1000 rows; --csv or --json prints all rows")


def test_json_and_csv_have_every_row() -> None:
    """JSON keeps types and nulls; CSV quotes cells, and null is empty; without rows there is an empty array or
    a head.
    """
    assert [dict(zip(NAMES, row, strict=True)) for row in ROWS] == json.loads("".join(as_json(NAMES, ROWS)))
    assert list(as_csv(NAMES, ROWS[:1])) == ["name,n,ms,samples", '"a,b",1,,"[[0, 7]]"']
    assert [list(as_json(NAMES, [])), list(as_csv(NAMES, []))] == [["[]"], ["name,n,ms,samples"]]
