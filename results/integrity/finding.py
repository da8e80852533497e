"""The shape of what a rule finds, before it is summed up: rows, each with how much it examined and found broken."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.check import SAMPLES_MAX

LOG_READER = "log"
"""The client of what is found in the log and not with one client."""

_KEY = ("run", "rule", "side", "client")


def record() -> Column:
    """``producer_id seq`` of a row as one value, null where the row has none."""
    named = F.col("producer_id").isNotNull() & F.col("seq").isNotNull()
    return F.when(named, F.struct("producer_id", "seq"))


def no_record() -> Column:
    """None, of the same type."""
    return F.lit(None).cast("struct<producer_id:int,seq:bigint>")


class Fact(NamedTuple):
    """What one rule says of a row; ``side`` and ``client`` are a text or a column."""

    rule: str
    side: str | Column
    client: str | Column
    examined: Column | int
    broken: Column | int
    alone: bool = True

    def sql(self, named: Callable[[Column], str]) -> str:
        """The struct ``rule side client examined broken``; ``named`` gives the name of a column's value."""

        def text(value: str | Column) -> str:
            return f"'{value}'" if isinstance(value, str) else named(value)

        def number(value: Column | int) -> str:
            return f"{value}L" if isinstance(value, int) else f"coalesce(cast({named(value)} as bigint), 0L)"

        examined, broken = number(self.examined), number(self.broken)
        counted = f"if({examined} > 0, {broken}, 0L)" if self.alone else broken
        return (
            f"named_struct('rule', '{self.rule}', 'side', {text(self.side)}, 'client', {text(self.client)}, "
            f"'examined', {examined}, 'broken', {counted})"
        )


def fact(rule: str, side: str | Column, client: str | Column, examined: Column | int, broken: Column | int) -> Fact:
    """``examined`` and ``broken`` are conditions or numbers of rows; broken counts only among the examined."""
    return Fact(rule, side, client, examined, broken)


def breach(rule: str, side: str | Column, client: str | Column, broken: Column | int) -> Fact:
    """What was examined with all others, and is broken."""
    return Fact(rule, side, client, 0, broken, alone=False)


def found(rows: DataFrame, facts: Iterable[Fact]) -> DataFrame:
    """The facts of every row (which has ``run`` and ``record``), without those that say nothing.

    One expression in SQL for all: a column made in Python asks the JVM a dozen times, and there are hundreds.
    """
    columns: list[Column] = []

    def named(column: Column) -> str:
        number = next((at for at, one in enumerate(columns) if one is column), len(columns))
        if number == len(columns):
            columns.append(column)
        return f"fact_{number}"

    told = f"inline(array({', '.join([one.sql(named) for one in facts])}))"
    values = rows.select("run", "record", *[column.alias(f"fact_{number}") for number, column in enumerate(columns)])
    return values.selectExpr("run", "record", told).where("(examined > 0 or broken > 0) and client is not null")


def summed(told: DataFrame) -> DataFrame:
    """One row a (run, rule, side, client), with the least of the broken records as samples.

    First one row for all that is whole, and one a broken record: to find the least takes sorting, and they are few.
    """
    broken = F.when(F.col("broken") > 0, F.col("record"))
    few = told.groupBy(*_KEY, broken.alias("record")).agg(
        F.sum("examined").alias("examined"), F.sum("broken").alias("broken")
    )
    return few.groupBy(*_KEY).agg(
        F.sum("examined").alias("examined"),
        F.sum("broken").alias("broken"),
        F.min_by("record", "record", SAMPLES_MAX).alias("samples"),
    )
