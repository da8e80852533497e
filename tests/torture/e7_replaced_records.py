"""Hypothesis: the comparison of fingerprints overlooks no lost or duplicate record, however small its share is.

Method: evidence of 10 million records, of which a seed replaces 1 to 64, in the log or in the deliveries of the reader,
by another record of the same block of 2,048. The counts of all blocks stay equal, so only the fingerprints differ. The
product's gate and ledger must report exactly the replaced records as lost, and the others as duplicates.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from aftershock.results.checks.findings.records import of_ledger
from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.spark.conf import load_of
from aftershock.results.spark.session import session
from aftershock.results.spark.tables import Tables, columns, small, tables
from aftershock.results.tables.dims import Dims, dims
from aftershock.results.tables.gate import BLOCK, open_gate
from aftershock.tests.bench.evidence_generator import PARTITIONS, PRODUCERS, generate
from aftershock.tests.torture.runner import Experiment, Outcome
from aftershock.tests.unit.results.evidence_factory import LOAD_END_S, S

RECORDS = 10_000_000
REPLACED_MAX = 64
Record = tuple[int, int]
_OPEN = ExitStack()  # never closed: the session ends with the process


@dataclass(frozen=True)
class Large:
    """Tables of a large run with ``each`` records of every producer."""

    spark: SparkSession
    read: Tables
    dims: Dims
    each: int


def generated(folder: Path, records: int) -> Path:
    """Return a run directory with so many records; it is generated once, and kept beside the trials."""
    home = folder / f"e7_base-{records}"
    if not home.exists():
        partial = home.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        generate(partial, 2 * records).rename(home)
    return home


def opened(evidence: Evidence, spark: SparkSession) -> Large:
    loaded = tables(spark, [evidence])
    return Large(spark, loaded, dims(spark, [evidence]), loaded.log.count() // PRODUCERS)


def draw(each: int, source: random.Random) -> dict[Record, Record]:
    """Draw the records that are lost, each with the record of the same block that takes its place."""
    replaced: dict[Record, Record] = {}
    taken = set[Record]()

    def free(producer: int, seq: int) -> bool:
        # around the kill of a broker, some records are in doubt, and not expected anywhere
        intended_us = seq * (LOAD_END_S * S) // each
        return seq < each and (producer, seq) not in taken and abs(intended_us - 26 * S) > 100_000

    count = source.choice((1, 2, source.randint(3, REPLACED_MAX)))
    while len(replaced) < count:
        producer, seq = source.randrange(PRODUCERS), source.randrange(each)
        other = seq // BLOCK * BLOCK + source.randrange(BLOCK)
        if seq != other and free(producer, seq) and free(producer, other):
            taken |= {(producer, seq), (producer, other)}
            replaced[producer, seq] = producer, other
    return replaced


def examine(large: Large, replaced: dict[Record, Record], *, in_log: bool) -> Outcome:
    """Replace records in a table of the evidence, and compare what the product finds with what was replaced."""
    rows = [
        (producer, seq, other, other % PARTITIONS, other // PARTITIONS * PRODUCERS + producer)
        for (producer, seq), (_, other) in replaced.items()
    ]
    schema = "producer_id int, seq bigint, new_seq bigint, new_partition int, new_offset bigint"
    changes = F.broadcast(small(large.spark, rows, schema))
    table = large.read.log if in_log else large.read.outcomes
    names = table.columns
    joined = table.join(changes, ["producer_id", "seq"], "left")
    changed = F.col("new_seq").isNotNull()
    if in_log:
        new = {"seq": F.coalesce("new_seq", "seq")}
    else:
        changed &= F.col("op") == "consume"
        new = {
            name: F.when(changed, F.col(f"new_{name}")).otherwise(F.col(name))
            for name in ("seq", "partition", "offset")
        }
    table = joined.withColumns(new).select(*names)
    evidence = replace(large.read, log=table) if in_log else replace(large.read, outcomes=table)

    cached: list[DataFrame] = []
    persist: Callable[[DataFrame], DataFrame] = lambda rows: cached.append(rows.persist()) or cached[-1]  # noqa: E731
    try:
        gate = open_gate(evidence, large.dims, persist, exhaustive=False)
        broken = (
            []
            if gate.ledger is None
            else of_ledger(gate.ledger, large.read.log, large.dims).where("broken > 0").collect()
        )
    finally:
        for frame in cached:
            frame.unpersist()
    side, again = ("produce", "duplicate") if in_log else ("consume", "redelivered")
    found = {
        (row["rule"], row["record"]["producer_id"], row["record"]["seq"])
        for row in broken
        if row["side"] == side and row["rule"] in ("lost", again)
    }
    expected = {("lost", *record) for record in replaced} | {(again, *record) for record in replaced.values()}
    bad = [f"missed: {rule} {producer}:{seq}" for rule, producer, seq in sorted(expected - found)]
    bad += [f"false alarm: {rule} {producer}:{seq}" for rule, producer, seq in sorted(found - expected)]
    return Outcome(bad, len(expected), counts={"lost records": len(replaced), "in the log": int(in_log)})


@cache
def _large(folder: Path) -> Large:
    """Return the tables of the base run in a session that ends with this process."""
    home = generated(folder, RECORDS)
    evidence = read(home, columns(), None)
    parts = [part for parts in evidence.parquet.values() for part in parts]
    spark = _OPEN.enter_context(session(home / "logs" / "spark.log", None, load_of(parts)))
    return opened(evidence, spark)


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    large = _large(scratch.parent)
    replaced = draw(large.each, source)
    return examine(large, replaced, in_log=seed % 2 == 0)


EXPERIMENT = Experiment(
    name="e7_replaced_records",
    title="1 to 64 of 10 million records replaced, with equal counts",
    figure="replaced records that the product did not report, and false alarms",
    aim="0",
    trials=200,
    trial=trial,
    batch=50,
    wall_s=900.0,
    takes_s=30.0,
)
