"""Write cycles of small logs, and of random ones against the closure of all their orders."""

import random
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aftershock.results.evidence.evidence import read
from aftershock.results.judge import judge_in
from aftershock.results.measure.write_cycles import write_cycles
from aftershock.results.model.facts import WriteCycles
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.planted.transactions import committed_run, exchange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 40
Log = dict[str, list[tuple[int, int]]]
"""Records of each partition in the order of their offsets, each as producer and number of its transaction."""


def measured(log: Log, seqs: int = 1_000) -> WriteCycles:
    """Measure transactions of forty sequence numbers each, whose records get the next free one."""
    used: dict[tuple[int, int], int] = {}
    rows = []
    for place, records in log.items():
        for offset, transaction in enumerate(records):
            producer, number = transaction
            seq = number * SIZE + used.setdefault(transaction, 0)
            used[transaction] += 1
            if seq < seqs:
                rows.append((place, 2 * offset, producer, seq))
    columns = dict(zip(("place", "offset", "producer_id", "seq"), zip(*rows, strict=True), strict=True))
    own = [(producer, number * SIZE, number * SIZE + SIZE - 1) for producer, number in used]
    names = ("producer_id", "first_seq", "last_seq")
    transactions = pa.table(dict(zip(names, zip(*own, strict=True), strict=True)))
    return write_cycles(pa.table(columns), transactions, seqs)


def by_closure(log: Log) -> tuple[int, int]:
    """Return the transactions over several partitions, and those that precede themselves, by Warshall's closure."""
    first = {place: {one: records.index(one) for one in set(records)} for place, records in log.items()}
    every = {one for records in first.values() for one in records}
    several = sorted(one for one in every if sum(one in records for records in first.values()) > 1)
    before = {
        (one, other)
        for records in first.values()
        for one, other in product(several, several)
        if one in records and other in records and records[one] < records[other]
    }
    for middle, one, other in product(several, several, several):
        if (one, middle) in before and (middle, other) in before:
            before.add((one, other))
    return len(several), sum((one, one) in before for one in several)


A, B, C = (7, 0), (9, 0), (9, 1)


def test_two_transactions_in_different_orders() -> None:
    found = measured({"orders/0": [A, A, B], "orders/4": [B, A], "orders/5": [C, A]})
    assert (2, 2) == (found.examined, found.cyclic)
    assert ("7:0", "9:0", "orders/0", "orders/4") == found.example
    assert "7:0 is before that of 9:0 in orders/0, after it in orders/4" in str(found)


@pytest.mark.parametrize(
    "log",
    [
        {"orders/0": [A, B, C], "orders/4": [A, B, C]},
        {"orders/0": [A, B, A, B], "orders/4": [A, B]},  # records of two transactions take turns
        {"orders/0": [A, B, C]},  # one partition has one order
        {"orders/0": [A, C], "orders/1": [B, A], "orders/2": [B, C]},
    ],
)
def test_the_same_order_in_each_partition(log: Log) -> None:
    found = measured(log)
    assert 0 == found.cyclic
    assert f"write cycles: 0 of {found.examined} committed" in str(found)


def test_a_cycle_of_three_has_no_opposed_pair() -> None:
    found = measured({"orders/0": [A, B], "orders/1": [B, C], "orders/2": [C, A]})
    assert WriteCycles(3, 3) == found
    assert "in a cycle of three or more" in str(found)


def test_records_beyond_the_limit_are_left_out() -> None:
    log = {"orders/0": [A, B, (7, 5), (9, 5)], "orders/1": [A, B, (9, 5), (7, 5)]}
    assert (4, 2, True) == ((found := measured(log)).examined, found.cyclic, found.whole)
    bounded = measured(log, seqs=5 * SIZE)
    assert WriteCycles(2, 0, whole=False) == bounded
    assert "at least 0 of 2" in str(bounded)


def test_random_logs() -> None:
    """The count is that of the closure, and each example is right."""
    draw, some = random.Random(1), 0  # noqa: S311
    for _ in range(300):
        every = [(producer, number) for producer in range(3) for number in range(3)]
        some_of = every[: draw.randint(2, 9)]
        log = {f"orders/{number}": draw.choices(some_of, k=draw.randint(1, 8)) for number in range(4)}
        found = measured(log)
        assert by_closure(log) == (found.examined, found.cyclic), log
        some += bool(found.cyclic)
        if found.example:
            names, (earlier, later) = found.example[:2], found.example[2:]
            one, other = ((int(name.split(":")[0]), int(name.split(":")[1]) // SIZE) for name in names)
            assert log[earlier].index(one) < log[earlier].index(other)
            assert log[later].index(one) > log[later].index(other)
    assert 50 < some < 250


def test_a_producer_without_transactions_is_left_out() -> None:
    transactions = pa.table({"producer_id": [1], "first_seq": [0], "last_seq": [9]})
    places, offsets = ["orders/0", "orders/1", "orders/0", "orders/1"], [0, 0, 1, 1]
    records = pa.table({"place": places, "offset": offsets, "producer_id": [1, 1, 2, 2], "seq": [0, 1, 0, 1]})
    assert WriteCycles(1, 0) == write_cycles(records, transactions, 100)
    assert WriteCycles(0, 0) == write_cycles(records.slice(0, 0), transactions, 100)


def test_every_pair_of_a_small_log() -> None:
    """Two transactions are in a cycle if and only if two partitions differ."""
    for first, second in combinations(([A, B], [B, A], [A, A, B], [B, A, A]), 2):
        found = measured({"orders/0": first, "orders/1": second})
        assert (first[0] != second[0]) == bool(found.cyclic)


def test_the_figure_of_a_judged_run(spark: "SparkSession", tmp_path: Path) -> None:
    """A run whose partitions agree, and one of which one partition does not: no check tells them apart."""
    agreeing, differing = committed_run().copy("agreeing"), committed_run().copy("differing")
    exchange(differing)
    homes = [run.write(tmp_path / name) for name, run in (("agreeing", agreeing), ("differing", differing))]
    verdicts = judge_in(spark, [read(home, columns()) for home in homes])
    assert ["write cycles: 0 of 240", "write cycles: 2 of 240"] == [verdict.figures[0][:22] for verdict in verdicts]
    statuses = [[(check.id, check.subject, check.status) for check in verdict.checks] for verdict in verdicts]
    assert statuses[0] == statuses[1]
