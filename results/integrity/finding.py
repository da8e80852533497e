"""The shape of what a rule finds, before it is summed up: rows, each with how much it examined and found broken."""

from collections.abc import Iterable

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


def fact(rule: str, side: str | Column, client: str | Column, examined: Column | int, broken: Column | int) -> Column:
    """``examined`` and ``broken`` are conditions or numbers of rows; broken counts only among the examined."""
    return _fact(rule, side, client, examined, F.when(_number(examined) > 0, _number(broken)))


def breach(rule: str, side: str | Column, client: str | Column, broken: Column) -> Column:
    """What was examined with all others, and is broken."""
    return _fact(rule, side, client, 0, broken)


def _fact(rule: str, side: str | Column, client: str | Column, examined: Column | int, broken: Column) -> Column:
    return F.struct(
        F.lit(rule).alias("rule"),
        _text(side).alias("side"),
        _text(client).alias("client"),
        _number(examined).alias("examined"),
        _number(broken).alias("broken"),
    )


def found(rows: DataFrame, facts: Iterable[Column]) -> DataFrame:
    """The facts of every row (which has ``run`` and ``record``), without those that say nothing."""
    told = rows.select("run", "record", F.explode(F.array(*facts)).alias("fact")).select("run", "record", "fact.*")
    return told.where(((F.col("examined") > 0) | (F.col("broken") > 0)) & F.col("client").isNotNull())


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


def _text(value: str | Column) -> Column:
    return F.lit(value) if isinstance(value, str) else value


def _number(value: Column | int) -> Column:
    column = F.lit(value) if isinstance(value, int) else value
    return F.coalesce(column.cast("bigint"), F.lit(0).cast("bigint"))
