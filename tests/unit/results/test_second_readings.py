"""The judge's figures equal those of plain DuckDB queries that follow docs/SLO.md (``tests/readings``)."""

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.tests.bench.evidence_generator import generate
from aftershock.tests.readings import transactions
from aftershock.tests.readings.__main__ import BATCH, stored_runs, unpacked
from aftershock.tests.readings.compare import Comparison, compare, differences
from aftershock.tests.readings.figure import Asked, Figure
from aftershock.tests.readings.judged import Judged
from aftershock.tests.unit.results.evidence_factory import Made
from aftershock.tests.unit.results.measuring import apart
from aftershock.tests.unit.results.planted.defects import DEFECTS
from aftershock.tests.unit.results.planted.judging import planted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_run_with_defects(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """The run has lost, duplicated, foreign, failed and doubtful records; its figures are also read by subject."""
    spoiled = made.copy()
    del spoiled.consume[1000:1003]
    spoiled.consume += [dict(row) for row in spoiled.consume[2000:2005]]
    lost = spoiled.log.pop(3333)
    record = lost["producer_id"], lost["seq"]
    spoiled.consume = [row for row in spoiled.consume if (row["producer_id"], row["seq"]) != record]
    spoiled.consume.append(spoiled.consume[-1] | {"seq": 99_999})
    for row in spoiled.produce[40:44]:
        row.update(status="in_doubt", done_us=None)
    for row in spoiled.produce[2000:2100]:
        row.update(status="failed", error="REQUEST_TIMED_OUT")
    home = spoiled.write(tmp_path / "run")
    found = list(compare(spark, {"run": home}, ["run", "fault"]))
    assert [] == [str(one) for one in found if not one.equal]


@pytest.mark.spark
def test_a_run_with_transactions(spark: "SparkSession", tmp_path: Path) -> None:
    """Some transactions are in doubt, and the last stable offset of a partition stands for a while.

    The other readings do not know which records were committed.
    """
    home = planted(DEFECTS["in-doubt-and-standing"], tmp_path)
    every = compare(spark, {"run": home}, ["run", "fault"])
    found = [one for one in every if one.judged.asked.op in transactions.METRICS]
    assert {"transaction.latency", "transaction.success", "stable_offset.lag"} == {
        one.judged.asked.metric for one in found
    }
    assert [] == [str(one) for one in found if not one.equal]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("first", range(0, len(stored_runs()), BATCH))
def test_all_stored_runs(spark: "SparkSession", tmp_path: Path, first: int) -> None:
    """All metrics, windows and subjects of all runs in the repository."""
    homes = unpacked(stored_runs()[first : first + BATCH], tmp_path)
    assert [] == [str(one) for one in compare(spark, homes) if not one.equal]


@pytest.mark.nightly
@pytest.mark.spark
def test_ten_million_outcomes(tmp_path: Path) -> None:
    """The benchmark's generator writes four producers, a hundred partitions, stalls and doubtful records."""
    assert [] == apart(differences, generate(tmp_path / "run", 10_000_000))


@pytest.mark.parametrize(
    ("unit", "observed", "second", "equal"),
    [
        ("ms", 41.7, 41_700, True),
        ("ms", 41.7, 41_701, False),
        ("s", 1.000001, 1_000_001, True),
        ("s", 1.000001, 1_000_000, False),
        ("%", 100 / 3, Fraction(1, 3), True),
        ("%", 100 / 3, Fraction(333_333_333, 1_000_000_000), False),
        ("records", 7.0, 7, True),
        ("records", 7.0, 8, False),
        ("ms", None, 41_700, False),
        ("ms", 41.7, None, False),
        ("ms", None, None, True),
    ],
)
def test_a_difference_of_a_microsecond_or_a_record_is_found(
    unit: str, observed: float | None, second: Fraction | int | None, equal: bool
) -> None:
    check = Check("slo/x", "slo", "arm=a", Status.PASS, 20, 10, unit, "", observed)
    figure = Figure(None if second is None else Fraction(second), 20)
    assert equal == Comparison("run", Judged(Asked("produce.latency", "p50"), "w/a", check), [figure]).equal


@pytest.mark.parametrize(("n", "equal"), [(7, True), (8, False)])
def test_too_few_values_are_the_same_few_on_both_sides(n: int, equal: bool) -> None:
    check = Check("slo/x", "slo", "arm=a", Status.INCONCLUSIVE, 7, 10, "ms", "")
    figures = [Figure(Fraction(5), 30), Figure(Fraction(6), n)]
    assert equal == Comparison("run", Judged(Asked("produce.latency", "p50"), "w/a", check), figures).equal
