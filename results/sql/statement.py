"""One statement of Spark SQL, run if it is a query and nothing else: evidence is looked at, never changed.

Spark runs a command while its text is parsed, so that must be known before: by its first word, and for WITH, which may
also lead an INSERT, by the plan that EXPLAIN tells.
"""

import re

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from aftershock.errors import AftershockError
from aftershock.results.session import JVM_LOST, reason

QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC")

_IGNORED = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_CHANGES = re.compile(r"\b(?:InsertInto|DeleteFrom|Update|MergeInto)\w*")


def answered(spark: SparkSession, text: str) -> DataFrame:
    """The rows that the query ``text`` gives. AftershockError where it is none, or where Spark can't read it."""
    text = text.strip().removesuffix(";")
    try:
        if first_word(text) == "WITH" and _CHANGES.search(_plan(spark, text)):
            raise AftershockError("this WITH changes a table; end it with SELECT")
        return spark.sql(text)
    except (PySparkException, *JVM_LOST) as broken:
        raise refused(broken) from None


def first_word(text: str) -> str:
    """What a query begins with, behind spaces, comments and brackets. AftershockError where no query begins so."""
    begun = _IGNORED.match(text)
    word = re.compile(r"\w*").match(text, begun.end() if begun else 0)
    first = word[0].upper() if word else ""
    if first not in QUERIES:
        raise AftershockError(f"{first or 'nothing'} is no query: begin with one of {', '.join(QUERIES)}")
    return first


def refused(broken: Exception) -> AftershockError:
    """What Spark has against a query, in a sentence. Ask while the session lasts."""
    return AftershockError(f"Spark refuses the query: {reason(broken)}")


def _plan(spark: SparkSession, text: str) -> str:
    """The statement as parsed, before anything is looked up or done."""
    explained = str(spark.sql(f"EXPLAIN EXTENDED {text}").collect()[0][0])
    return explained.split("== Analyzed Logical Plan ==", 1)[0]
