"""Who of a group's members reads a partition.

Rules: a member reads a partition from its first to its last delivery within one lane; two members of a group whose
times overlap own it both. While faults are at work that may be nobody's lie (a member that the coordinator can't reach,
or that was frozen, is replaced before it knows): such overlaps are ``co_owned_in_fault``, from the first inject until a
session's time after the last heal.
"""

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from aftershock.results.evidence import Client, Evidence
from aftershock.results.integrity.finding import Fact, fact, found, no_record
from aftershock.results.measuring.dims import Dims

SESSION_US = 45_000_000
"""Kafka's session.timeout.ms: how long a group may take to notice that a member is gone."""


def co_owned(delivered: DataFrame, dims: Dims) -> DataFrame | None:
    """``co_owned`` and ``co_owned_in_fault``, by reader; examined are the times that its members read partitions.

    None where nobody reads in a group.
    """
    if not any(group_of(one.evidence, reader) for one in dims.scenes for reader in one.readers):
        return None
    owned = ("run", "group", "topic", "partition", "client", "member", "lane")
    spans = (
        delivered.where(F.col("member").isNotNull())
        .groupBy(*owned)
        .agg(F.min("at").alias("start"), F.max("at").alias("end"))
        .select(*owned, F.struct("start", "end").alias("its"))
    )
    others = F.collect_list(F.struct("member", "its.start", "its.end")).alias("others")
    by_partition = spans.groupBy(*owned[:4]).agg(F.collect_list(F.struct(*owned[4:], "its")).alias("all"), others)
    each = by_partition.select("run", "others", F.explode("all").alias("one"))
    met = F.filter(
        "others",
        lambda other: (
            (other["member"] != F.col("one.member"))
            & (other["start"] <= F.col("one.its.end"))
            & (F.col("one.its.start") <= other["start"])
        ),
    )
    rows = each.select("run", F.col("one.client").alias("client"), no_record().alias("record"), met.alias("met"))
    return found(_excused(rows, dims), _facts())


def _excused(rows: DataFrame, dims: Dims) -> DataFrame:
    """With ``free``, the moments of the overlaps that no fault explains, and ``met``, those that one may."""
    spans = ((run, *span) for run, scene in enumerate(dims.scenes) for span in faults_at_work(scene.evidence))
    faults = dims.table(spans, "run int, from_us bigint, until_us bigint")
    told = rows.join(F.broadcast(faults), "run", "left")
    within = F.filter("met", lambda one: one["start"].between(F.col("from_us"), F.col("until_us")))
    return told.withColumns({"free": F.size("met") - F.size(within), "excused": F.size(within)})


def faults_at_work(evidence: Evidence) -> Iterator[tuple[int, int]]:
    """From the first inject until a session's time after the last heal; never, without faults."""
    times = [line["t_us"] for line in evidence.journal]
    if times:
        yield min(times), max(times) + SESSION_US


def group_of(evidence: Evidence, client: Client) -> str | None:
    """The group that a client consumes in, as the harness calls it: ``<group>-<arm>``."""
    groups = {one["name"]: (one.get("consume") or {}).get("group") for one in evidence.timeline["workloads"]}
    group = groups.get(client.workload)
    return f"{group}-{client.arm}" if group else None


def _facts() -> list[Fact]:
    client = F.col("client")
    return [
        fact("co_owned", "consume", client, 1, F.col("free") > 0),
        fact("co_owned_in_fault", "consume", client, 1, F.col("excused") > 0),
    ]
