"""Quantiles, gaps, recovery and lag compared with short plain Python oracles, on many cases in one Spark query."""

import random
from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aftershock.results.evidence.evidence import Client, Evidence, Phase
from aftershock.results.evidence.phases import merged
from aftershock.results.measure.answers import longest
from aftershock.results.measure.gaps import success_stretches, successes
from aftershock.results.measure.lag import measure_lags
from aftershock.results.measure.latency import quantiles
from aftershock.results.measure.recovery import recoveries
from aftershock.results.model.facts import NO_OWNER, Distribution, RecoveryCriterion
from aftershock.results.spark.tables import Tables
from aftershock.results.tables.dims import Dims, Scene, segments_of
from aftershock.results.tables.names import with_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

few = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PERCENTS = (7, 50, 95, 99, 100)
LATENCY = st.one_of(st.none(), st.integers(0, 8), st.integers(0, 10**7))


@few
@given(cases=st.lists(st.lists(LATENCY, min_size=1, max_size=50), min_size=20, max_size=60))
def test_quantiles_are_nearest_rank(spark: "SparkSession", cases: list[list[int | None]]) -> None:
    """The value has rank ceil(q n) among the sorted samples with censored samples last; a censored value is null."""
    rows = [(case, value) for case, values in enumerate(cases) for value in values]
    samples = spark.createDataFrame(rows, "case int, latency_us bigint")
    histogram = samples.groupBy("case", "latency_us").count().withColumnRenamed("count", "n")
    result = quantiles(histogram, ["case"], [percent / 100 for percent in PERCENTS]).collect()
    assert len(cases) == len(result)
    for row in result:
        values = cases[row["case"]]
        slow_last = sorted(values, key=lambda value: (value is None, value))
        expected = [slow_last[-(-percent * len(values) // 100) - 1] for percent in PERCENTS]
        assert expected == [row[f"q{index}"] for index in range(len(PERCENTS))]
        assert (len(values), values.count(None)) == (row["n"], row["censored"])


PHASES = (("steady", None, 5, 10), ("fault", "a", 10, 40), ("fault", "b", 60, 80), ("recovery", None, 80, 100))


def small_tables(spark: "SparkSession", *phases: tuple[str, str | None, int, int], clients: int = 0) -> Dims:
    """Return the small tables of a run of which only the phases matter, with clients ``w/c0 w/c1 ...`` of a topic."""
    cut = tuple(Phase(*one) for one in phases)
    told = tuple(
        Client("w", f"c{number}", ("t",), ("t",), acks_all=True, acks="all", idempotent=True, from_latest=False)
        for number in range(clients)
    )
    evidence = SimpleNamespace(
        phases=cut,
        clients=told,
        journal=(),
        events=(),
        steps=(),
        recovery_definition=1,
        window_of=lambda fault: next((phase for phase in cut if phase.fault == fault), None),
    )
    return Dims(spark, (Scene(cast("Evidence", evidence)),))


def _longest(times: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    longest = 0
    for start, end in spans:
        marks = [start, *sorted(time for time in times if start <= time < end), end]
        longest = max(longest, *(after - before for before, after in pairwise(marks)))
    return longest


@few
@given(
    cases=st.lists(st.lists(st.integers(0, 110), min_size=1, max_size=30), min_size=20, max_size=50),
    slot_us=st.sampled_from([None, 1, 7]),
)
def test_a_gap_is_the_longest_silence_in_its_window(
    spark: "SparkSession", cases: list[list[int]], slot_us: int | None
) -> None:
    """Gaps are clipped to the window, whose ends count; they are exact from the length of a slot on."""
    known = small_tables(spark, *PHASES, clients=len(cases))
    made = [(0, "produce", "w", f"c{case}", time, "ok") for case, times in enumerate(cases) for time in times]
    samples = spark.createDataFrame(
        made, "run int, op string, workload string, arm string, done_us bigint, status string"
    )
    rows = with_names(success_stretches(successes(samples, known, slot_us)).toArrow(), samples, known).to_pylist()
    result = longest(rows, {}, known.scenes[0], {}, slot_us or 1)
    for case, times in enumerate(cases):
        for window, spans in known.scenes[0].windows.items():
            inside = [time for time in times if any(start <= time < end for start, end in spans)]
            seen = result.get(("produce.gap", f"w/c{case}", window))
            assert (seen is None) == (not inside)
            assert seen is None or (len(inside), max(_longest(times, spans), slot_us or 1)) == (seen.n, seen.longest_us)


INJECT_US, END_US, STEADY_P95_US = 3_000_000, 20_000_000, 1000
STEADY = Distribution(1000, at={0.95: STEADY_P95_US})
RECORD = st.tuples(st.integers(0, END_US + 1_000_000), st.sampled_from([900, 2000, 2001, 5000, None]) | st.just(500))


def _dense(seed: int) -> list[tuple[int, int | None]]:
    """Return a record every 20 ms with few slow and fewer failed records, so that a single record decides about
    calm.
    """
    source = random.Random(seed)  # noqa: S311 - repeatable on purpose
    kinds: list[int | None] = [500] * 60 + [2001] * source.randint(1, 4) + [None] * source.randint(0, 1)
    return [(at + source.randint(0, 999), source.choice(kinds)) for at in range(2_900_000, 8_000_000, 20_000)]


def _calm_after(records: Sequence[tuple[int, int | None]], inject_us: int) -> int | None:
    for start in sorted(intended for intended, _ in records if inject_us <= intended < END_US):
        ahead = [taken for intended, taken in records if start <= intended < start + CALM_US and intended < END_US]
        fast = sum(taken is not None and taken <= 2 * STEADY_P95_US for taken in ahead)
        if None not in ahead and fast >= ceil(len(ahead) * 95 / 100) and start + CALM_US <= END_US:
            return start - inject_us
    return None


CALM_US = 2_000_000
SAMPLES = "run int, op string, workload string, arm string, intended_us bigint, done_us bigint, status string"


@few
@given(
    cases=st.lists(st.lists(RECORD, min_size=1, max_size=40), min_size=15, max_size=30),
    seeds=st.lists(st.integers(0, 10**6), min_size=10, max_size=10),
)
def test_recovery_by_definition_1_is_the_start_of_two_calm_seconds(
    spark: "SparkSession", cases: list[list[tuple[int, int | None]]], seeds: list[int]
) -> None:
    """The start is the first record after injection with 2 s of load without a failure and with p95 <= 2 x steady."""
    injects, cases = (INJECT_US, INJECT_US + 250_000), cases + [_dense(seed) for seed in seeds]
    rows = [
        (
            0,
            "produce",
            "w",
            f"c{case}",
            intended,
            None if taken is None else intended + taken,
            "ok" if taken else "failed",
        )
        for case, records in enumerate(cases)
        for intended, taken in records
    ]
    phases = [("fault", f"f{number}", at_us, END_US) for number, at_us in enumerate(injects)]
    known = small_tables(spark, *phases, clients=len(cases))
    steady = {("produce.latency", f"w/c{case}", "steady"): STEADY for case in range(len(cases))}
    calms = [RecoveryCriterion(f"f{number}") for number in range(len(injects))]
    (result,) = recoveries(spark.createDataFrame(rows, SAMPLES), known, [calms], [steady])
    for calm, at_us in zip(calms, injects, strict=True):
        for case, records in enumerate(cases):
            n = sum(at_us <= intended < END_US for intended, _ in records)
            seen = result.get((calm, f"w/c{case}"))
            assert (n, _calm_after(records, at_us)) == ((seen.n, seen.recovered_us) if seen else (0, None))


EVENT = st.tuples(st.integers(0, 5_999_999), st.integers(0, 3_000_000) | st.none())


def _lag(records: Sequence[tuple[int, int | None]], at_us: int) -> tuple[int, int]:
    """Compute lag in plain Python: offsets are record numbers, and the position is the highest delivered offset
    so far.
    """
    position = max((offset for offset, (_, got) in enumerate(records) if got is not None and got < at_us), default=-1)
    ahead = {offset: acked for offset, (acked, _) in enumerate(records) if offset > position and acked < at_us}
    return (max(ahead) - position, at_us - min(ahead.values())) if ahead else (0, 0)


@few
@given(cases=st.lists(st.lists(EVENT, min_size=1, max_size=30), min_size=4, max_size=8))
def test_lag_is_summed_over_partitions_at_every_second(
    spark: "SparkSession", cases: list[list[tuple[int, int | None]]]
) -> None:
    """The age is that of the oldest waiting record of all partitions."""
    lanes = [
        [(acked, None if late is None else acked + late) for acked, late in sorted(case, key=lambda pair: pair[0])]
        for case in cases
    ]
    rows: list[tuple[Any, ...]] = []
    for partition, records in enumerate(lanes):
        for offset, (acked, got) in enumerate(records):
            rows.append(("produce", partition, offset, acked))
            rows += [] if got is None else [("consume", partition, offset, got)]
    outcomes = spark.createDataFrame(rows, "op string, partition int, offset bigint, done_us bigint").selectExpr(
        "0 as run", "'w' as workload", "'c0' as arm", "'t' as topic", "'ok' as status", "*"
    )
    known = small_tables(spark, ("steady", None, 0, 7_000_000), clients=1)
    empty = spark.range(0)
    result = measure_lags(Tables(outcomes, *[empty] * 6), known)[0].clients
    delivered = any(got is not None for records in lanes for _, got in records)
    first = min(acked for records in lanes for acked, _ in records) // 1_000_000
    assert [(second + 1) * 1_000_000 for second in range(first, 7) if delivered] == [
        lag.at_us for lag in result["w/c0"]
    ]
    for seen in result["w/c0"]:
        each = [_lag(records, seen.at_us) for records in lanes]
        assert (sum(records for records, _ in each), max(age for _, age in each)) == (seen.records, seen.oldest_us)


MEMBERS = Client("w", "c", "t", "t", True, "all", True, False, members=2).workers("consume")
ACKED_US, GOT_US = (0, 0, 1_500_000, 2_000_000, 4_100_000), (1_000_000, 5_000_000, 5_000_001, 6_000_000, None)
"""When the records of each of three partitions were acknowledged, and when the group got them."""


@pytest.mark.parametrize(
    "moves", [(0, 2_000_000, 2_000_001, 5_999_999), (1, 2, 3, 4), (1_500_000, 3_999_999, 6_000_000, 7_000_000)]
)
def test_the_lag_of_a_member_is_that_of_the_partitions_it_owns(spark: "SparkSession", moves: tuple[int, ...]) -> None:
    """Partition 1 moves from the first member to the second and is given up; the third partition has never an owner."""
    rows = [("produce", partition, offset, at_us) for partition in range(3) for offset, at_us in enumerate(ACKED_US)]
    rows += [
        ("consume", p, offset, at_us) for p in range(3) for offset, at_us in enumerate(GOT_US) if at_us is not None
    ]
    outcomes = spark.createDataFrame(rows, "op string, partition int, offset bigint, done_us bigint").selectExpr(
        "0 as run", "'w' as workload", "'c' as arm", "'t' as topic", "'ok' as status", "*"
    )
    steps = [(0, "assigned", 0, 0), (moves[0], "assigned", 0, 1), (moves[1], "revoked", 0, 1)]
    steps += [(moves[2], "assigned", 1, 1), (moves[3], "lost", 1, 1)]
    common = {"workload": "w", "arm": "c", "op": "consume"}
    events = tuple(
        common | {"t_us": at_us, "event": name, "worker": MEMBERS[member], "partitions": [["t", partition]]}
        for at_us, name, member, partition in steps
    )
    known = small_tables(spark, ("steady", None, 0, 7_000_000), clients=1)
    evidence = SimpleNamespace(**vars(known.scenes[0].evidence))
    evidence.events = events
    evidence.clients = (Client("w", "c", "t", "t", True, "all", True, False, members=2),)
    dims, empty = Dims(spark, (Scene(cast("Evidence", evidence)),)), spark.range(0)
    (lags,) = measure_lags(Tables(outcomes, *[empty] * 6), dims, [True])
    expected: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for at_us in range(1_000_000, 7_000_001, 1_000_000):
        count, age_us = _lag([*zip(ACKED_US, GOT_US, strict=True)], at_us)
        owns: dict[str, int] = {MEMBERS[0]: 1, NO_OWNER: 1}
        owns[MEMBERS[0]] += moves[0] <= at_us < moves[1]
        owns[MEMBERS[1]] = int(moves[2] <= at_us < moves[3])
        owns[NO_OWNER] += at_us >= moves[3]
        for member, partitions in owns.items():
            if partitions:
                expected.setdefault(("w/c", member), []).append((at_us, partitions * count, age_us))
    seen = {
        key: [(lag.at_us, lag.records, lag.oldest_us) for lag in of_member] for key, of_member in lags.members.items()
    }
    assert expected == {key: values for key, values in seen.items() if values}


@given(
    spans=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=6),
    moments=st.lists(st.integers(0, 90), max_size=3),
)
def test_a_moment_lies_in_one_segment_and_the_segment_in_its_windows(
    spans: list[tuple[str, int, int]], moments: list[int]
) -> None:
    """Segments partition time, and the windows of a segment are those of every moment in it."""
    windows: dict[str, list[tuple[int, int]]] = {}
    for name, start, length in spans:
        windows.setdefault(name, []).append((start, start + length))
    joined = {name: merged(some) for name, some in windows.items()}
    parted = segments_of(joined, moments)
    for at in range(100):
        inside = [number for number, (start, end) in enumerate(parted.spans) if start <= at < end]
        assert len(inside) == (parted.cuts[0] <= at < parted.cuts[-1])
        for name, some in joined.items():
            assert any(start <= at < end for start, end in some) == any(n in parted.of(some) for n in inside), name
