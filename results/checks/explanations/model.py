"""Explanations: causes that permit anomalies at one place and in one time, and their join with the anomalies.

An anomaly that an integrity rule finds is FAIL unless an explanation matches it. An explanation limits what it explains
by client, process, partition, offsets, time, leader epoch and number of attempts; an anomaly must lie within every
limit, so an unknown value of the anomaly (null) matches no limit on it. One exception: an unknown leader epoch is
within every limit, because many clients don't report it and the offset and the time decide then.

An explanation that is not ``certain`` names what is missing in the evidence: an anomaly that only such explanations
match is INCONCLUSIVE. So is the loss of a record whose producer did not tell its offset, if a cause explains losses at
some offsets of the partition at that time (``unplaced``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from aftershock.results.model.facts import Explained
from aftershock.results.spark.tables import beside, local

AT = (
    "struct<topic:string,partition:int,offset:bigint,from_us:bigint,until_us:bigint,epoch:int,worker:string,"
    "attempts:int,group:string,occupied:boolean,sent_us:bigint,output:string>"
)
"""Place and time of an anomaly in Spark's tables, the columns of ``Anomaly``."""
ANYWHERE = ""


@dataclass(frozen=True)
class Anomaly:
    """Place and time of a breach of an integrity rule, null where unknown.

    ``from_us`` and ``until_us`` are the interval in which the cause must have been at work, such as from the sending of
    a record to its acknowledgement. ``topic`` is the topic's name or id; ``group`` the consumer group of a commit.
    ``occupied`` is True if the log holds another record at the offset, or ends before it. ``sent_us`` is when the
    record was sent. ``output`` is the partition of a service's last output (``billed/3``).
    """

    client: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    from_us: int | None = None
    until_us: int | None = None
    epoch: int | None = None
    worker: str | None = None
    attempts: int | None = None
    group: str | None = None
    occupied: bool | None = None
    sent_us: int | None = None
    output: str | None = None


@dataclass(frozen=True)
class Explanation:
    """Cause that explains anomalies of a rule within its limits; None sets no limit.

    The anomaly's interval must overlap ``from_us`` to ``until_us``, or lie within them if ``throughout`` is True, and
    last at least ``lasting_us``; a record must be sent by ``sent_by_us``. Its offset must be at least ``from_offset``
    and below ``until_offset``, its leader epoch below ``epoch``, its number of attempts at least ``attempts``. A
    ``truncation`` explains only an anomaly at an occupied offset, an ``unplaced`` explanation only one without an
    offset. ``cause`` is a phrase for a sentence, ``evidence`` names the file that witnesses it.
    """

    rule: str
    side: str
    cause: str
    evidence: str
    client: str | None = None
    worker: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    from_offset: int | None = None
    until_offset: int | None = None
    from_us: int | None = None
    until_us: int | None = None
    sent_by_us: int | None = None
    lasting_us: int | None = None
    epoch: int | None = None
    attempts: int | None = None
    group: str | None = None
    output: str | None = None
    throughout: bool = False
    truncation: bool = False
    unplaced: bool = False
    certain: bool = True

    def explains(self, anomaly: Anomaly) -> bool:
        """Return True if the anomaly is within every limit."""
        if self.topic is not None and anomaly.topic not in (self.topic, self.topic_id or self.topic):
            return False
        same = (
            (self.client, anomaly.client),
            (self.worker, anomaly.worker),
            (self.partition, anomaly.partition),
            (self.group, anomaly.group),
            (self.output, anomaly.output),
        )
        first_us, last_us = anomaly.from_us, anomaly.until_us
        at_least = (
            (self.from_offset, anomaly.offset),
            (self.from_us, first_us if self.throughout else last_us),
            (self.attempts, anomaly.attempts),
        )
        at_most = (
            (self.until_us, last_us if self.throughout else first_us),
            (self.sent_by_us, anomaly.sent_us),
        )
        below = ((self.until_offset, anomaly.offset), (self.epoch, -1 if anomaly.epoch is None else anomaly.epoch))
        lasted = None if None in (anomaly.from_us, anomaly.until_us) else anomaly.until_us - anomaly.from_us  # type: ignore[operator]
        return (
            all(limit is None or value == limit for limit, value in same)
            and all(limit is None or (value is not None and value >= limit) for limit, value in at_least)
            and all(limit is None or (value is not None and value <= limit) for limit, value in at_most)
            and all(limit is None or (value is not None and value < limit) for limit, value in below)
            and (anomaly.occupied is True or not self.truncation)
            and (anomaly.offset is None or not self.unplaced)
            and (self.lasting_us is None or (lasted is not None and lasted >= self.lasting_us))
        )


_LIMITS = (
    ("client", "string"),
    ("worker", "string"),
    ("from_offset", "bigint"),
    ("until_offset", "bigint"),
    ("from_us", "bigint"),
    ("until_us", "bigint"),
    ("sent_by_us", "bigint"),
    ("lasting_us", "bigint"),
    ("epoch", "int"),
    ("attempts", "int"),
    ("group", "string"),
    ("output", "string"),
    ("throughout", "boolean"),
    ("truncation", "boolean"),
    ("unplaced", "boolean"),
)
_MATCHES = """
    (x.client is null or x.client = client)
    and (x.worker is null or coalesce(x.worker = at.worker, false))
    and (x.from_offset is null or coalesce(at.offset >= x.from_offset, false))
    and (x.until_offset is null or coalesce(at.offset < x.until_offset, false))
    and (x.`group` is null or coalesce(x.`group` = at.`group`, false))
    and (x.output is null or coalesce(x.output = at.output, false))
    and (x.from_us is null or coalesce(if(x.throughout, at.from_us, at.until_us) >= x.from_us, false))
    and (x.until_us is null or coalesce(if(x.throughout, at.until_us, at.from_us) <= x.until_us, false))
    and (x.sent_by_us is null or coalesce(at.sent_us <= x.sent_by_us, false))
    and (x.lasting_us is null or coalesce(at.until_us - at.from_us >= x.lasting_us, false))
    and (x.epoch is null or coalesce(at.epoch, -1) < x.epoch)
    and (x.attempts is null or coalesce(at.attempts >= x.attempts, false))
    and (not x.truncation or coalesce(at.occupied, false))
    and (not x.unplaced or at.offset is null)
"""
_PLACE = "concat_ws('/', at.topic, at.partition)"
_FIRST = "try_element_at(filter(coalesce(try_element_at(by_place, {place}), array()), x -> " + _MATCHES + "), 1).number"
_TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "boolean": (BooleanType(), pa.bool_()),
    "string": (StringType(), pa.string()),
    "bigint": (LongType(), pa.int64()),
    "int": (IntegerType(), pa.int32()),
}


def explained_by(anomalies: DataFrame, spark: SparkSession, of_runs: Sequence[Sequence[Explanation]]) -> DataFrame:
    """Add the column ``explanation``, the lowest number of an explanation that matches, null if none matches.

    ``anomalies`` has the columns ``run rule side client at`` (``AT``); rows without a breach have no ``at``. The number
    is the explanation's index in the list of its run, in which certain explanations must come first.
    """
    if not any(of_runs):
        return anomalies.withColumn("explanation", F.lit(None).cast("int"))
    key = ("run", "rule", "side")
    table = beside(_table(spark, of_runs))
    places = (f"'{ANYWHERE}'", "at.topic", _PLACE)
    numbers = ", ".join(_FIRST.format(place=place) for place in places)
    joined = anomalies.join(table, [*key], "left")
    # least() ignores nulls
    return joined.withColumn("explanation", F.expr(f"if(at is null, null, least({numbers}))")).drop("by_place")


def _table(spark: SparkSession, of_runs: Sequence[Sequence[Explanation]]) -> DataFrame:
    """Return ``run rule side by_place``, a map from topics, partitions (``orders/3``) or '' to explanations."""
    rows = [
        (run, one.rule, one.side, place, number, one)
        for run, explanations in enumerate(of_runs)
        for number, one in enumerate(explanations)
        for place in _places(one)
    ]
    limits = [StructField(name, _TYPES[kind][0]) for name, kind in _LIMITS]
    of_place = ArrayType(StructType([StructField("number", IntegerType()), *limits]))
    arrow = pa.struct([("number", pa.int32()), *[(name, _TYPES[kind][1]) for name, kind in _LIMITS]])
    columns: dict[str, list[object]] = {"run": [], "rule": [], "side": [], "by_place": []}
    for (run, rule, side), of_rule in groupby(sorted(rows, key=lambda row: row[:5]), key=lambda row: row[:3]):
        by_place = [
            (place, [{"number": row[4]} | {name: getattr(row[5], name) for name, _ in _LIMITS} for row in at_place])
            for place, at_place in groupby(of_rule, key=lambda row: row[3])
        ]
        for name, value in zip(columns, (run, rule, side, by_place), strict=True):
            columns[name].append(value)
    table = pa.table(
        {
            "run": pa.array(columns["run"], pa.int32()),
            "rule": pa.array(columns["rule"], pa.string()),
            "side": pa.array(columns["side"], pa.string()),
            "by_place": pa.array(columns["by_place"], pa.map_(pa.string(), pa.list_(arrow))),
        }
    )
    names = [StructField("run", IntegerType()), StructField("rule", StringType()), StructField("side", StringType())]
    schema = StructType([*names, StructField("by_place", MapType(StringType(), of_place))])
    return local(spark, table, schema)


def _places(explanation: Explanation) -> Iterable[str]:
    if explanation.topic is None:
        return (ANYWHERE,)
    topics = dict.fromkeys(filter(None, (explanation.topic, explanation.topic_id)))
    return [topic if explanation.partition is None else f"{topic}/{explanation.partition}" for topic in topics]


def first_match(explanations: Sequence[Explanation], rule: str, side: str, anomaly: Anomaly) -> Explanation | None:
    """Return the first explanation of the rule that matches; certain explanations come first in the list."""
    of_rule = (one for one in explanations if (one.rule, one.side) == (rule, side))
    return next((one for one in of_rule if one.explains(anomaly)), None)


def in_order(explanations: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Return the explanations with the certain ones first, and otherwise in the given order."""
    return tuple(sorted(explanations, key=lambda one: not one.certain))


def unplaced(explanation: Explanation) -> Explanation:
    """Return what a cause that limits offsets leaves open about anomalies whose offset is unknown."""
    anywhere = replace(explanation, from_offset=None, until_offset=None, truncation=False)
    return replace(anywhere, evidence="the offset of an acknowledgement is missing", unplaced=True, certain=False)


def counted(explanation: Explanation, n: int) -> Explained:
    """Return the number of anomalies that an explanation explains, as it is stored and shown."""
    return Explained(explanation.cause, explanation.evidence, n, explanation.certain)


def for_rules(explanation: Explanation, *places: tuple[str, str]) -> list[Explanation]:
    """Return the explanation for several pairs of rule and side."""
    return [replace(explanation, rule=rule, side=side) for rule, side in places]
