"""The fingerprint gate: which blocks of records it clears, and that results are the same with and without the gate."""

from dataclasses import fields
from functools import reduce
from operator import xor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from aftershock.results.model.facts import Facts
from aftershock.results.spark.tables import small, tables
from aftershock.results.tables import gate
from aftershock.results.tables.dims import dims
from aftershock.tests.unit.results.evidence_factory import Made, Row, S
from aftershock.tests.unit.results.measuring import named, together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aftershock.results.evidence.evidence import Evidence


BLOCK = 100
"""Blocks of a hundred records, so that a run of six thousand has sixty."""
Runs = dict[str, "Evidence"]


def of(rows: list[Row], producer_id: int, seq: int) -> Row:
    return next(row for row in rows if (row["producer_id"], row["seq"]) == (producer_id, seq))


def clean(_: Made) -> None:
    """The spoiled blocks of a clean run: none."""


def lost_at_an_edge(run: Made) -> None:
    """The last record of a block is in no log, and the first of the next block is not delivered to one reader."""
    run.log.remove(of(run.log, 0, 199))
    run.consume.remove(of(run.consume, 0, 200))


def duplicates_that_equal_the_losses(run: Made) -> None:
    """A reader receives one record three times and two records not at all, so the row count is as expected."""
    again = of(run.consume, 1, 310)
    run.consume += [dict(again, done_us=again["done_us"] + S), dict(again, done_us=again["done_us"] + 2 * S)]
    for seq in (316, 322):
        run.consume.remove(of(run.consume, 1, seq))


def changed_places(run: Made) -> None:
    """Two records are in the log at each other's offsets."""
    first, second = of(run.log, 0, 606), of(run.log, 0, 612)
    first["offset"], second["offset"] = second["offset"], first["offset"]


def in_doubt(run: Made) -> None:
    """One record failed, one record in doubt is in the log, and one record is from an unknown producer."""
    of(run.produce, 0, 50).update(status="failed")
    of(run.produce, 1, 2950).update(status="in_doubt")
    run.log.append(run.log[0] | {"producer_id": 9, "seq": 0, "offset": 10_000})


def never_written(run: Made) -> None:
    """Some records failed, some are in doubt, and none is anywhere, including whole blocks of one producer."""
    gone = {(0, seq): "failed" for seq in (0, 50, 99, 100)} | {(1, seq): "in_doubt" for seq in range(1250, 1600)}
    for row in run.produce:
        if status := gone.get((row["producer_id"], row["seq"])):
            row.update(status=status, offset=None)
            if status == "in_doubt":
                row.update(done_us=None)
    for rows in (run.log, run.consume):
        rows[:] = [row for row in rows if (row["producer_id"], row["seq"]) not in gone]


def failed_without_a_row(run: Made) -> None:
    """One record failed, and the next record has no row and is nowhere."""
    never_written(run)
    run.produce.remove(of(run.produce, 0, 51))
    for rows in (run.log, run.consume):
        rows[:] = [row for row in rows if (row["producer_id"], row["seq"]) != (0, 51)]


def nameless(run: Made) -> None:
    """A record without ids is in the log and delivered."""
    run.log.append(run.log[0] | {"producer_id": None, "seq": None, "offset": 10_000})
    run.consume.append(run.consume[0] | {"producer_id": None, "seq": None, "offset": 10_000, "done_us": 49 * S})


def without_offsets(run: Made) -> None:
    """One producer gets no offsets, so its records are compared by their ids."""
    for row in run.produce:
        row["offset"] = row["offset"] if row["producer_id"] else None


def recorded_twice(run: Made) -> None:
    """A record is twice in every table, so all fingerprints agree."""
    for rows in (run.produce, run.log, run.consume):
        rows += [dict(row) for row in rows if (row["producer_id"], row["seq"]) == (0, 1000)]


def read_by_a_stranger(run: Made) -> None:
    """A record is also delivered to a client that is not in the plan."""
    run.consume.append(of(run.consume, 1, 700) | {"workload": "strangers"})


SUSPECT = {
    clean: set(),
    lost_at_an_edge: {(0, 1), (0, 2)},
    duplicates_that_equal_the_losses: {(1, 3)},
    changed_places: {(0, 6)},
    in_doubt: {(0, 0), (1, 29), (9, 0)},
    never_written: {(1, 13), (1, 14), (1, 15)},  # without acknowledgements there are no fingerprints to compare
    failed_without_a_row: {(0, 0), (1, 13), (1, 14), (1, 15)},
    nameless: {(-1, -1)},
    without_offsets: set(),
    recorded_twice: {(0, 10)},
    read_by_a_stranger: {(1, 7)},
}


@pytest.fixture(scope="module")
def runs(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Write a run for each function above."""
    spoiled = {spoil.__name__: made.copy() for spoil in SUSPECT}
    for spoil in SUSPECT:
        spoil(spoiled[spoil.__name__])
    return named(spoiled, tmp_path_factory.mktemp("gate"))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BLOCK", BLOCK)


def test_the_spoiled_blocks_are_in_doubt_and_no_other(spark: "SparkSession", runs: Runs) -> None:
    """Each defect puts exactly its own blocks in doubt, also at their edges; a cleared block names its producer
    and readers.
    """
    evidence = list(runs.values())
    rows = gate.blocks(tables(spark, evidence), dims(spark, evidence)).collect()
    told: dict[str, set[tuple[int, int]]] = {name: set() for name in runs}
    for row in rows:
        if not row["clean"]:
            told[evidence[row["run"]].run["run_id"]].add((row["producer_id"], row["block"]))
    assert {spoil.__name__: blocks for spoil, blocks in SUSPECT.items()} == told
    of_clean = [row for row in rows if row["clean"]]
    assert {100} == {row["n"] + row["failed"] + row["in_doubt"] for row in of_clean}
    assert {("orders/baseline", "orders/patient")} == {tuple(row["readers"]) for row in of_clean}
    assert {"orders/baseline", "orders/patient"} == {row["client"] for row in of_clean}


@pytest.mark.nightly  # takes three minutes; the planted defects prove in every run that cleared blocks hide no defect
def test_facts_are_the_same_without_the_gate(spark: "SparkSession", runs: Runs) -> None:
    """Facts of every spoiled run are equal with and without the gate."""
    gated, exhaustive = together(spark, runs), together(spark, runs, exhaustive=True)
    unlike = {
        (name, field.name)
        for name in runs
        for field in fields(Facts)
        if getattr(gated[name], field.name) != getattr(exhaustive[name], field.name)
    }
    assert set() == unlike


def cancelling(differences: list[int]) -> list[int]:
    """Return the positions of numbers whose XOR is zero, by elimination over GF(2)."""
    basis: dict[int, tuple[int, int]] = {}  # highest bit -> the number, and the positions that it is made of
    for position, difference in enumerate(differences):
        number, members = difference, 1 << position
        while number:
            pivot = number.bit_length()
            if pivot not in basis:
                basis[pivot] = number, members
                break
            number, members = number ^ basis[pivot][0], members ^ basis[pivot][1]
        else:
            return [at for at in range(len(differences)) if members >> at & 1]
    raise AssertionError("more than 64 numbers of 64 bits are dependent")


def test_records_chosen_to_cancel_out_are_found(
    spark: "SparkSession", made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some forty records moved in the log to offsets at which their unsalted hashes cancel out in the XOR: the block
    is not clean, whatever the salt is.
    """
    block = sorted((row for row in made.log if row["producer_id"] == 0), key=lambda row: row["seq"])[:BLOCK]
    schema = "producer_id int, seq bigint, topic string, partition int, offset bigint"
    names = [field.split()[0] for field in schema.split(", ")]
    moved = [row | {"offset": row["offset"] + 100_000} for row in block]
    hashes = small(spark, [[row[name] for name in names] for row in (*block, *moved)], schema)
    place = F.xxhash64(F.xxhash64("producer_id", "seq"), "topic", "partition", "offset")
    values = [value % (1 << 64) for (value,) in hashes.select(place).collect()]
    chosen = cancelling([a ^ b for a, b in zip(values[:BLOCK], values[BLOCK:], strict=True)])
    assert 20 < len(chosen) < 60
    assert 0 == reduce(xor, (values[at] ^ values[BLOCK + at] for at in chosen))
    run = made.copy()
    for at in chosen:
        of(run.log, 0, block[at]["seq"])["offset"] = moved[at]["offset"]
    (evidence,) = named({"chosen": run}, tmp_path).values()
    for salt in (gate.SALT, 1 << 62, (1 << 63) - 1):
        monkeypatch.setattr(gate, "SALT", salt)
        rows = gate.blocks(tables(spark, [evidence]), dims(spark, [evidence])).where("not clean").collect()
        assert {(0, 0)} == {(row["producer_id"], row["block"]) for row in rows}
