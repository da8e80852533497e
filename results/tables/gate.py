"""Shortcuts for large runs (comparison of fingerprints, table of the remaining records, coarse filters by time).

**Gate.** A block is 2,048 consecutive records of one producer. Each source of rows (the producer, the log, each
reader's deliveries) gives a fingerprint of the block, which is a count, and the XOR and sum of a salted 64-bit hash of
every record and its offset; the producer's fingerprint includes only acknowledged records. A reader of one of several
topics of a producer gets a part of each block, which is then never clean. A block is **clean** if its
sequence numbers have no gap and all sources that should have the block give the same fingerprint. In a clean block each
acknowledged record is in the log exactly once, at the offset that the producer reported, and was delivered once to each
reader, from that offset; failed records, records in doubt and those of uncommitted transactions are not in the log, as
the rules see it. Rows without ids, rows of unknown
producers and deliveries to unexpected readers are never clean.

Joining the rows of 10 million records takes 12.6 s, comparing fingerprints of blocks 2.0 s. Blocks are small because a
fault leaves a few records in doubt (perhaps written) at a time; with blocks of 65,536 records, 200 of 130,000 records
left no block of a run clean, and counting latencies took 2.7 times as long.

**Ledger.** This is a table with one row per record of the blocks that are not clean. A record is identified by (run,
producer_id, seq); rows of foreign producers have null ids and share one ledger row per run. To compute the ledger,
Spark shuffles only the rows of blocks that are not clean, and these twice.

**Time filters** are short filters on the times of records, for which Parquet's statistics suffice, because rows are
stored roughly in order of time. A time filter may let other rows pass, so a query repeats its exact condition.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import starmap
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.evidence.phases import Interval, merged
from aftershock.results.spark.tables import Tables, beside, union
from aftershock.results.tables.dims import Dims
from aftershock.results.tables.names import CLIENT_COLUMNS, client_names, hash_of
from aftershock.results.tables.settled import UNCOMMITTED

BLOCK = 2_048
NO_ID = -1
"""Value that stands for the missing block number and producer id of a row."""
HULLS_MAX = 4
SALT = (1 << 62) + secrets.randbits(62)
"""Salt of the fingerprints, drawn by each process that judges, and never written. With a number for each
judgement, Spark would compile its code again. At least 2^62, so that it is a bigint in each process."""
_BLOCK = ("run", "producer_id", "block")
_UNTAKEN = ("failed", "in_doubt", UNCOMMITTED)


@dataclass(frozen=True)
class Gate:
    """Tables with a row per block of 2,048 records, and per record of blocks that are not clean (None without any).

    ``sent`` has the rows of the table ``totals``.
    """

    blocks: DataFrame
    ledger: DataFrame | None
    sent: Sequence[Mapping[str, Any]]


def open_gate(read: Tables, dims: Dims, persist: Callable[[DataFrame], DataFrame], *, exhaustive: bool) -> Gate:
    """Compare the fingerprints of blocks of records, and compute the ledger; ``persist`` caches a Spark table."""
    of_runs = persist(blocks(read, dims, exhaustive=exhaustive))
    sent = [row.asDict() for row in totals(of_runs).collect()]
    suspect = any(row["suspect"] for row in sent)
    return Gate(of_runs, persist(ledger(read, of_runs)) if suspect else None, sent)


def blocks(read: Tables, dims: Dims, *, exhaustive: bool = False) -> DataFrame:
    """Return a row ``run producer_id block clean n acked_offsets failed in_doubt ...`` per block of records.

    ``n`` counts acknowledged records, ``acked_offsets`` the records whose offset the producer knows. The column
    ``client`` names the block's producer. ``readers`` (array) are the expected readers that got any record of the
    block. Rows without producer id or seq are assigned to block -1 of producer -1. Commits have blocks of their own,
    which are always clean.

    Columns about the rows of the records that ``sender`` sent (``side`` is produce or commit): ``_NUMBERS``,
    ``_ANSWERS``, and ``whole``, true if the rows have consecutive numbers and one sender. ``strange`` counts rows of
    unknown clients.
    """
    # fingerprints of produce rows and deliveries by client (``op`` is null for clients not in the plan), and of the log
    rows = read.outcomes.withColumns(block_of())
    timed = F.col("done_us").isNotNull() & F.col("intended_us").isNotNull()
    by_client = rows.groupBy(*_BLOCK, hash_of(*CLIENT_COLUMNS).alias("client_hash")).agg(
        *_fingerprint((F.col("op") == "consume") | (F.col("status") == "ok")),
        F.count(F.when((F.col("status") == "ok") & timed, True)).alias("good"),
        *[F.count(F.when(F.col("status") == status, True)).alias(status) for status in _UNTAKEN],
        *_numbers(),
        *_answers(),
    )
    named = by_client.join(beside(client_names(dims)), "client_hash", "left")
    named = named.withColumn("client", F.concat_ws("/", "workload", "arm")).drop("client_hash", "workload", "arm")
    of_log = read.log.withColumns(block_of()).groupBy(*_BLOCK).agg(*_fingerprint(F.lit(True)))
    absent = {name: F.lit(None).cast("bigint") for name in ("good", *_UNTAKEN, *_NUMBERS, *_ANSWERS)}
    of_log = of_log.withColumns({"op": F.lit("log"), "client": F.lit(None).cast("string"), **absent})

    names = (F.col("client").alias("owner"), F.col("readers").alias("readers_expected"))
    producers = dims.producers.select("run", "producer_id", *names)
    audiences = dims.audiences.withColumn("expected", F.lit(True))
    produced, logged, delivered, committed = (F.col("op") == op for op in ("produce", "log", "consume", "commit"))
    sent, commits = produced | committed, F.coalesce(committed, F.lit(False)).alias("commits")
    # a producer without offsets (acks=0) is no source for offsets
    without_offsets = produced & (F.col("placed") == 0)
    of_records = F.struct("n", "records")
    of_places = F.when(~without_offsets, F.struct("n", "placed", "places", "places_sum"))
    compared = (
        named.unionByName(of_log)
        .join(beside(producers), ["run", "producer_id"], "left")
        .join(beside(audiences), ["run", "producer_id", "client"], "left")
        .groupBy(*_BLOCK, "owner", "readers_expected", commits)
        .agg(
            F.coalesce(F.max(F.when(produced, F.col("n"))), F.lit(0).cast("bigint")).alias("n"),
            (F.min(of_records) == F.max(of_records)).alias("same_records"),
            (F.min(of_places) == F.max(of_places)).alias("same_places"),
            F.min(F.when(~without_offsets, F.col("placed"))).alias("placed"),
            F.max(F.when(produced, F.col("placed"))).alias("acked_offsets"),
            F.min("good").alias("good"),
            *[F.coalesce(F.max(F.when(produced, F.col(name))), F.lit(0)).alias(name) for name in _UNTAKEN],
            *[F.max(F.when(sent, F.col(name))).alias(name) for name in (*_NUMBERS, *_ANSWERS)],
            F.max(F.when(sent, F.col("op"))).alias("side"),
            F.max(F.when(sent, F.col("client"))).alias("sender"),
            F.count(F.when(sent, True)).alias("sending"),
            F.count(F.when(logged, True)).alias("logging"),
            F.count(F.when(delivered, True)).alias("reading"),
            F.coalesce(F.sum(F.when(F.col("op").isNull(), F.col("rows"))), F.lit(0)).alias("strange"),
            F.array_sort(F.collect_set(F.when(F.col("expected"), F.col("client")))).alias("readers"),
        )
    )
    n, expected = F.col("n"), F.col("readers_expected")
    same = F.col("same_records") & F.col("same_places") & (F.col("placed") == n) & (F.col("good") == n)
    count, ends = F.col("rows"), F.col("first_seq") + F.col("last_seq")
    gapless = F.col("last_seq") - F.col("first_seq") + 1 == count
    # numbers without a gap whose sum is that of consecutive numbers are these, unless several occur twice and as many
    # are missing
    whole = gapless & (2 * F.col("seqs") == count * ends) & (F.col("sending") == 1)
    untaken = sum((F.col(name) for name in _UNTAKEN), start=F.lit(0))
    sent_once = whole & (count == n + untaken) & (F.col("logging") == 1)
    read_by_all = (F.col("reading") == expected) & (F.size("readers") == expected) & (F.col("strange") == 0)
    clean = F.lit(False) if exhaustive else F.coalesce(same & sent_once & read_by_all, F.lit(False))
    return compared.select(
        *(*_BLOCK, (F.col("commits") | clean).alias("clean"), "n", "acked_offsets", *_UNTAKEN),
        *(F.col("owner").alias("client"), "readers"),
        *("side", "sender", F.coalesce(whole, F.lit(False)).alias("whole"), "strange", *_NUMBERS, *_ANSWERS),
    )


def totals(blocks: DataFrame) -> DataFrame:
    """Return ``_NUMBERS``, ``_ANSWERS``, ``whole``, ``strange`` and ``suspect`` (a block is not clean) of each sender.

    Columns of the key are ``run side sender producer_id``; ``side`` and ``sender`` are null for records without a row
    of a producer.
    """
    wide = {name: F.sum(F.col(name).cast("decimal(38,0)")).alias(name) for name in ("rows", "seqs", "intended")}
    return blocks.groupBy("run", "side", "sender", "producer_id").agg(
        *wide.values(),
        *[F.min(name).alias(name) for name in ("first_seq", "first_us", "whole")],
        *[F.max(name).alias(name) for name in ("last_seq", "last_us", "unanswered_last_us", "answered_us")],
        F.sum("unanswered").alias("unanswered"),
        F.min("unanswered_us").alias("unanswered_us"),
        F.sum("strange").alias("strange"),
        F.max(~F.col("clean")).alias("suspect"),
    )


def block_of() -> dict[str, Column]:
    """Return the columns ``producer_id`` and ``block``, the key of the block of 2,048 records of a record's row."""
    named = F.col("producer_id").isNotNull() & F.col("seq").isNotNull()
    return {
        "producer_id": F.when(named, F.col("producer_id")).otherwise(F.lit(NO_ID)),
        "block": F.when(named, F.expr(f"seq div {BLOCK}")).otherwise(F.lit(NO_ID).cast("bigint")),
    }


_NUMBERS = ("rows", "first_seq", "last_seq", "seqs", "first_us", "last_us", "intended")
"""Number of rows; least, greatest and sum of their numbers (seq); least, greatest and sum of their intended times."""


_ANSWERS = ("unanswered", "unanswered_us", "unanswered_last_us", "answered_us")
"""Number of rows of what was sent and got no result, time of the first and last such send, and of the last success."""


def _answers() -> list[Column]:
    lacks = (F.col("status") == "in_doubt") & F.col("done_us").isNull() & F.col("sent_us").isNotNull()
    values = (
        F.count(F.when(lacks, True)),
        F.min(F.when(lacks, F.col("sent_us"))),
        F.max(F.when(lacks, F.col("sent_us"))),
        F.max(F.when(F.col("status") == "ok", F.col("done_us"))),
    )
    return [value.alias(name) for name, value in zip(_ANSWERS, values, strict=True)]


def _numbers() -> list[Column]:
    seq, intended_us = F.col("seq"), F.col("intended_us")
    values = (
        F.count("*"),
        F.min(seq),
        F.max(seq),
        F.sum(seq),
        F.min(intended_us),
        F.max(intended_us),
        F.sum(intended_us),
    )
    return [value.alias(name) for name, value in zip(_NUMBERS, values, strict=True)]


def _fingerprint(counting: Column) -> list[Column]:
    """Return counts, XORs and a sum of the hashes of the records and places for which ``counting`` is true.

    Without the salt, records could be chosen whose hashes cancel out in the XOR.
    """
    record = F.xxhash64(F.lit(SALT), "producer_id", "seq")
    place = F.xxhash64(record, "topic", "partition", "offset")
    return [
        F.count(F.when(counting, True)).alias("n"),
        F.bit_xor(F.when(counting, record)).alias("records"),
        F.count(F.when(counting, F.col("offset"))).alias("placed"),
        F.bit_xor(F.when(counting, place)).alias("places"),
        F.sum(F.when(counting, F.shiftright(place, 40))).alias("places_sum"),  # of the upper 24 bits: can't overflow
    ]


_RECORD = ("run", "producer_id", "seq")
_PLACE = ("topic", "partition", "offset")
_SENT = (
    *("client", "topic", "partition", "offset", "status", "client_rack", "intended_us", "sent_us", "done_us"),
    *("broker_rack", "broker_id", "leader_epoch", "bytes", "attempts", "deadline_us"),
)
_DELIVERED = ("client_rack", "broker_rack", "broker_id", "leader_epoch", "partition", "offset", "bytes")


def ledger(read: Tables, blocks: DataFrame) -> DataFrame:
    """Return the ledger, with one row per record of those ``blocks`` of 2,048 records that are not clean.

    Columns of the ledger are ``run producer_id seq``; from the produce row ``client`` (workload/arm, null for a
    phantom) and ``_SENT``; ``logged`` (number of copies in the log); ``placed`` (array of the places, ``topic partition
    offset``, at which the log or a consumer has the record), ``held`` (those of the log) and ``places`` (the number of
    ``placed``); ``deliveries`` (array of
    ``reader first_us n rack first again`` by reader), where ``first`` has columns of the first delivery
    (``_DELIVERED``), and ``again`` (null if there is only one) all deliveries as ``done_us worker member topic
    partition offset``.
    """
    # every row about a record: its produce row, its copies in the log, its deliveries
    key, place = F.concat_ws("/", "workload", "arm"), F.struct(*_PLACE)
    worker = F.coalesce("worker", F.concat_ws("-", "workload", "arm", F.lit("consume")))
    produced, consumed = F.col("op") == "produce", F.col("op") == "consume"
    named = F.col("producer_id").isNotNull() & F.col("seq").isNotNull()
    outcomes = read.outcomes.where(F.col("op").isin("produce", "consume")).withColumn("client", key)
    of_clients = outcomes.select(
        *_RECORD,
        F.col("op").alias("origin"),
        F.when(consumed, key).alias("reader"),
        F.when(produced, F.struct(*_SENT)).alias("sent"),
        F.when(consumed, place).alias("place"),
        F.when(consumed, F.struct("done_us", *_DELIVERED)).alias("delivered"),
        F.when(consumed & named, F.struct("done_us", worker.alias("worker"), "member", *_PLACE)).alias("again"),
    )
    logged = read.log.select(*_RECORD, F.lit("log").alias("origin"), place.alias("place"))
    rows = union(of_clients, logged)
    sightings = suspects(rows, blocks).groupBy(*_RECORD, "origin", "reader")
    by_origin = sightings.agg(
        F.max("sent").alias("sent"),
        F.count("*").alias("n"),
        F.collect_set("place").alias("placed"),
        F.min("delivered").alias("first"),
        F.collect_list("again").alias("again"),
    )
    placed = F.array_sort(F.array_distinct(F.flatten(F.collect_list("placed"))))
    delivered = F.struct(
        *("reader", F.col("first.done_us").alias("first_us"), "n", F.col("first.client_rack").alias("rack"), "first"),
        F.when(F.col("n") > 1, F.col("again")).alias("again"),
    )
    return (
        by_origin.groupBy(*_RECORD)
        .agg(
            F.max("sent").alias("sent"),
            F.coalesce(F.sum(F.when(F.col("origin") == "log", F.col("n"))), F.lit(0)).alias("logged"),
            placed.alias("placed"),
            F.flatten(F.collect_list(F.when(F.col("origin") == "log", F.col("placed")))).alias("held"),
            F.array_sort(F.collect_list(F.when(F.col("origin") == "consume", delivered))).alias("deliveries"),
        )
        .select(
            *_RECORD,
            "sent.*",
            "logged",
            F.size("placed").cast("bigint").alias("places"),
            "placed",
            "held",
            "deliveries",
        )
    )


def suspects(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    """Return those ``rows`` (``run producer_id seq``) whose block of 2,048 records fails the fingerprint comparison."""
    return _in_blocks(rows, blocks.where(~F.col("clean")), "left_semi")


def cleared(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    return _in_blocks(rows, blocks.where(~F.col("clean")), "left_anti")


def _in_blocks(rows: DataFrame, blocks: DataFrame, how: str) -> DataFrame:
    of_row, key = block_of(), ["run", "gate_producer", "gate_block"]
    named = rows.withColumns({"gate_producer": of_row["producer_id"], "gate_block": of_row["block"]})
    keys = blocks.select("run", F.col("producer_id").alias("gate_producer"), F.col("block").alias("gate_block"))
    return named.join(beside(keys), key, how).drop("gate_producer", "gate_block")


def acked() -> Column:
    return F.coalesce(F.col("status") == "ok", F.lit(False))


Span = tuple[int | None, int | None]
_NEVER_US, _EVER_US = -(1 << 62), 1 << 62


def intended_within(spans: Iterable[Span]) -> Column:
    """Return the coarse filter for records whose intended time lies in any of ``spans`` (at least one)."""
    return _in_any(spans, lambda since, until: F.col("intended_us").between(since, until))


def pending_within(spans: Iterable[Span]) -> Column:
    """Return the coarse filter for records that were in flight at some time in any of ``spans`` (at least one)."""
    intended_us, done_us = F.col("intended_us"), F.col("done_us")
    return _in_any(
        spans,
        lambda since, until: (
            done_us.isNull() | (done_us > since) & (intended_us.isNull() | (intended_us < until) | (done_us <= until))
        ),
    )


def _in_any(spans: Iterable[Span], within: Callable[[int, int], Column]) -> Column:
    return reduce(or_, starmap(within, hulls(spans)))


def hulls(spans: Iterable[Span]) -> list[Interval]:
    """Return at most ``HULLS_MAX`` intervals that cover all ``spans`` (an end may be None), by joining the nearest."""
    ended = [(_NEVER_US if since is None else since, _EVER_US if until is None else until) for since, until in spans]
    joined = [*merged(ended)]
    while len(joined) > HULLS_MAX:
        nearest = min(range(len(joined) - 1), key=lambda index: joined[index + 1][0] - joined[index][1])
        joined[nearest : nearest + 2] = [(joined[nearest][0], joined[nearest + 1][1])]
    return joined
