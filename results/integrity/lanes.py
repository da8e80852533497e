"""A reader's deliveries, each with its lane: within one a consumer goes forward, and skips and repeats nothing.

A new lane begins whenever the partition was assigned to the reader (at-least-once permits what follows to be seen
again) and whenever the reader said that it reset its position. Read from the events of the clients.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Evidence
from aftershock.results.measuring.dims import Dims
from aftershock.results.spark.tables import Tables

LANE = ("client", "topic", "partition", "lane", "member")
OWN_MARKS = ("reference",)
"""Clients that tell the high watermark of the very answer: librdkafka tells that of its latest, whoever gave it."""

Event = Mapping[str, Any]


def deliveries(read: Tables, dims: Dims) -> DataFrame:
    """Every consume row as ``run client topic topic_id partition lane member group offset at`` and what it tells.

    That is ``epoch`` (of the batch), ``own`` (whether the high watermark is that of the answer which brought the row),
    ``high_watermark broker_id error producer_id seq``. ``topic_id`` is the topic where no id is known.
    """
    consumed = read.outcomes.where((F.col("op") == "consume") & F.col("offset").isNotNull())
    rows = consumed.select(
        "run",
        F.concat_ws("/", "workload", "arm").alias("client"),
        "topic",
        F.coalesce("topic_id", "topic").alias("topic_id"),
        "partition",
        "member",
        "group",
        "offset",
        F.col("done_us").alias("at"),
        F.col("leader_epoch").alias("epoch"),
        F.col("client").isin(*OWN_MARKS).alias("own"),
        "high_watermark",
        "broker_id",
        "error",
        "producer_id",
        "seq",
    )
    begun = F.filter("begun", lambda moment: moment <= F.col("at"))
    told = rows.join(F.broadcast(_beginnings(dims)), ["run", "client", "topic", "partition"], "left")
    return told.withColumn("lane", F.coalesce(F.size(begun), F.lit(0)).cast("bigint")).drop("begun")


def _beginnings(dims: Dims) -> DataFrame:
    rows = ((run, *one[:4]) for run, scene in enumerate(dims.scenes) for one in beginnings(scene.evidence))
    table = dims.table(rows, "run int, client string, topic string, partition int, at_us bigint")
    return table.groupBy("run", "client", "topic", "partition").agg(F.collect_list("at_us").alias("begun"))


def beginnings(evidence: Evidence) -> Iterator[tuple[str, str, int, int, bool]]:
    """(client, topic, partition, moment, whether by an assignment) of every new lane."""
    for client, line in told_by(evidence, "assigned"):
        yield from ((client, topic, number, line["t_us"], True) for topic, number in line["partitions"])
    for client, line in told_by(evidence, "position_reset"):
        yield client, line["topic"], line["partition"], line["t_us"], False


def told_by(evidence: Evidence, event: str) -> Iterator[tuple[str, Event]]:
    """The events of that name of every client that consumes, by its key."""
    readers = [client for client in evidence.clients if client.consumes_from]
    for line in evidence.events:
        if line.get("event") == event and line.get("op", "consume") == "consume":
            for client in readers:
                if (line.get("arm"), line.get("workload", client.workload)) == (client.arm, client.workload):
                    yield client.key, line
