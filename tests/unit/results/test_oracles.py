"""Quantiles, gaps and recovery against ten lines of plain Python each: many made-up cases in one Spark query."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aftershock.results.latency import histogram, quantiles
from aftershock.results.recovery import CALM_US, gaps, recoveries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

few = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PERCENTS = (7, 50, 95, 99, 100)
LATENCY = st.one_of(st.none(), st.integers(0, 8), st.integers(0, 10**7))


@few
@given(cases=st.lists(st.lists(LATENCY, min_size=1, max_size=50), min_size=20, max_size=60))
def test_quantiles_are_nearest_rank(spark: "SparkSession", cases: list[list[int | None]]) -> None:
    """The value at rank ceil(q n) of the sorted samples, censored ones last; null where that is a censored one."""
    rows = [(case, value) for case, values in enumerate(cases) for value in values]
    samples = spark.createDataFrame(rows, "case int, latency_us bigint")
    found = quantiles(histogram(samples, ["case"]), ["case"], [percent / 100 for percent in PERCENTS]).collect()
    assert len(cases) == len(found)
    for row in found:
        values = cases[row["case"]]
        slow_last = sorted(values, key=lambda value: (value is None, value))
        expected = [slow_last[-(-percent * len(values) // 100) - 1] for percent in PERCENTS]
        assert expected == [row[f"q{index}"] for index in range(len(PERCENTS))]
        assert (len(values), values.count(None)) == (row["n"], row["censored"])


WINDOWS = {"fault": ((10, 40), (60, 80)), "fault/a": ((10, 40),), "run": ((5, 100),)}


def _longest(times: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    longest = 0
    for start, end in spans:
        marks = [start, *sorted(time for time in times if start <= time < end), end]
        longest = max(longest, *(after - before for before, after in pairwise(marks)))
    return longest


@few
@given(cases=st.lists(st.lists(st.integers(0, 110), min_size=1, max_size=30), min_size=20, max_size=50))
def test_a_gap_is_the_longest_silence_in_its_window(spark: "SparkSession", cases: list[list[int]]) -> None:
    """Clipped to the window, whose ends count; a part of the window without any success is one silence."""
    from aftershock.results.measure import _whole  # noqa: PLC0415 - what completes the query's answer

    rows = [("produce.gap", f"c{case}", time) for case, times in enumerate(cases) for time in times]
    moments = spark.createDataFrame(rows, "metric string, client string, done_us bigint")
    found = {(row["client"], row["window"]): _whole(row, WINDOWS) for row in gaps(moments, WINDOWS).collect()}
    for case, times in enumerate(cases):
        for window, spans in WINDOWS.items():
            inside = [time for time in times if any(start <= time < end for start, end in spans)]
            seen = found.get((f"c{case}", window))
            assert (seen is None) == (not inside)
            assert seen is None or (len(inside), _longest(times, spans)) == (seen.n, seen.longest_us)


INJECT_US, END_US, STEADY_P95_US = 3_000_000, 20_000_000, 1000
RECORD = st.tuples(st.integers(0, END_US + 1_000_000), st.sampled_from([900, 2000, 2001, 5000, None]) | st.just(500))


def _calm_after(records: Sequence[tuple[int, int | None]]) -> int | None:
    for start in sorted(intended for intended, _ in records if intended >= INJECT_US):
        ahead = [taken for intended, taken in records if start <= intended < start + CALM_US and intended < END_US]
        fast = sum(taken is not None and taken <= 2 * STEADY_P95_US for taken in ahead)
        if None not in ahead and fast >= ceil(len(ahead) * 95 / 100) and start + CALM_US <= END_US:
            return start - INJECT_US
    return None


@few
@given(cases=st.lists(st.lists(RECORD, min_size=1, max_size=40), min_size=20, max_size=50))
def test_recovery_is_the_first_calm_two_seconds(
    spark: "SparkSession", cases: list[list[tuple[int, int | None]]]
) -> None:
    """The first record after inject from which 2 s of load pass without a failure, with p95 <= 2 x steady."""
    rows = [
        (f"c{case}", intended, None if taken is None else intended + taken, "ok" if taken else "failed")
        for case, records in enumerate(cases)
        for intended, taken in records
    ]
    book = spark.createDataFrame(rows, "client string, intended_us bigint, done_us bigint, status string")
    steady = {f"c{case}": STEADY_P95_US for case in range(len(cases))}
    rows_found = recoveries(book, {"kill-1": INJECT_US}, steady, END_US).collect()
    found = {row["client"]: row["recovered_us"] for row in rows_found}
    assert [_calm_after(records) for records in cases] == [found.get(f"c{case}") for case in range(len(cases))]
