"""Stalls: Spark's result equals a plain implementation of the rule, and a run's rows lead to the expected checks."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import functions as F

from aftershock.results.checks.doubts import NO_DOUBTS, Doubts, HarnessCheck
from aftershock.results.checks.progress import obligation_checks
from aftershock.results.evidence.evidence import Evidence, Phase
from aftershock.results.measure.lag import FollowUpJobs
from aftershock.results.measure.stalls import SILENCES, during, in_slots, silences, slots, stalls
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts
from aftershock.results.spark.tables import small
from aftershock.results.tables.dims import Dims, Scene
from aftershock.results.tables.names import hash_of
from aftershock.tests.unit.results.evidence_factory import Made, Row, S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHAPE = "run int, side string, client string, topic string, partition int, wanted_us bigint, done_us bigint, ok boolean"
Wait = tuple[int, int, bool]


def stalls_of(spark: "SparkSession", rows: list[tuple[Any, ...]], at_least: int) -> list[tuple[Any, ...]]:
    """Return the stalls of these waits as text: ``client place start end``; a place is a partition, or with a topic."""
    placed = [(*row[:2], *(row[2] if isinstance(row[2], tuple) else ("t", row[2])), *row[3:]) for row in rows]
    waits = spark.createDataFrame([(0, *row) for row in placed], SHAPE)
    hashes = {
        "client_hash": hash_of("side", "client"),
        "topic_hash": F.when(F.col("topic").isNotNull(), hash_of("topic")),
    }
    waits = waits.withColumns(hashes)
    silent = list(silences(slots(waits, at_least).toArrow(), at_least))
    ends = [done for *_, done, _ in rows]
    slot_us, by_slot = in_slots(silent, min(ends), max(ends), at_least)
    seen = stalls(during(waits, small(spark, by_slot, SILENCES), slot_us), at_least).collect()
    told = []
    for row in seen:
        place = row["partition"] if row["topic"] in (None, "t") else (row["topic"], row["partition"])
        told.append((row["client"], place, row["start_us"], row["end_us"]))
    return sorted(told, key=lambda one: one[2:])


def by_hand(waits: list[Wait], at_least: int, joined: int) -> set[tuple[int, int]]:
    """Compute stalls in plain Python: from each success to the next, with the records that waited in between."""
    ends = [0, *sorted(done for _, done, ok in waits if ok), max(done for _, done, _ in waits) + 1]
    stalls_of = set()
    for last, following in pairwise(ends):
        times: list[tuple[int, int]] = []
        for done in sorted(done for _, done, _ in waits if last < done <= following):
            start = max(last, min(wanted for wanted, other, _ in waits if other >= done))
            if times and start <= times[-1][1] + joined:
                start = min(start, times.pop()[0])
            times.append((start, done))
        stalls_of |= {time for time in times if time[1] - time[0] >= at_least}
    return stalls_of


@pytest.mark.parametrize("seed", range(5))
def test_stalls_equal_a_plain_implementation(spark: "SparkSession", seed: int) -> None:
    """Random waits of two partitions, with failures and without two completions at the same time."""
    source = random.Random(seed)  # noqa: S311 - repeatable on purpose
    moments = source.sample(range(100, 100_000), 120)
    waits = {
        p: [(done - source.randint(0, min(done, 9000)), done, source.random() < 0.7) for done in moments[p::2]]
        for p in (0, 1)
    }
    rows = [("consume", "c", partition, *wait) for partition, some in waits.items() for wait in some]

    told = stalls_of(spark, rows, 2000)

    each = {p: {(start, end) for _, partition, start, end in told if partition == p} for p in (0, 1)}
    assert {p: by_hand(some, 2000, 1_000_000) for p, some in waits.items()} == each
    assert len(told) > 5


def test_a_client_stalls_only_if_all_its_partitions_stall(spark: "SparkSession") -> None:
    """The client does not stall while one of two partitions makes progress."""
    rows = [("produce", "c", 0, 0, at, True) for at in (10, 5000, 5010, 9000)]
    rows += [("produce", "c", 1, 0, at, True) for at in (10, 1500, 3000, 4500, 5010, 9001)]

    told = stalls_of(spark, rows, 2000)

    assert [(5010, 9000)] == [one[2:] for one in told if one[1] is None]
    assert [(10, 5000), (5010, 9000)] == [one[2:] for one in told if one[1] == 0]


def test_partitions_of_two_topics_stall_separately(spark: "SparkSession") -> None:
    """Partition 0 of one topic makes progress, while a record waits in partition 0 of the other."""
    rows = [("consume", "c", ("t", 0), at - 10, at, True) for at in range(10, 9000, 500)]
    rows += [("consume", "c", ("other", 0), 0, 10, True), ("consume", "c", ("other", 0), 20, 8000, True)]

    assert [("c", ("other", 0), 20, 8000)] == stalls_of(spark, rows, 2000)


def test_an_idle_client_never_stalls(spark: "SparkSession") -> None:
    """A minute without records between two successes is no stall; a minute in which one record waits is one stall."""
    idle = [("consume", "idle", 0, 0, 10, True), ("consume", "idle", 0, 60_000, 60_010, True)]
    waiting = [("consume", "waits", 0, 0, 10, True), ("consume", "waits", 0, 5, 60_010, True)]

    assert [("waits", 0, 10, 60_010)] == stalls_of(spark, [*idle, *waiting], 1000)


def test_failures_within_a_second_are_one_stall(spark: "SparkSession") -> None:
    """Two failures half a second apart are one stall; ten idle seconds between two failures separate two stalls."""
    rows = [("commit", "c", None, at, at + 10, False) for at in (0, 500_000, 10_500_000)]

    assert [("c", None, 0, 500_010)] == stalls_of(spark, rows, 1000)


def test_a_delivery_waits_from_the_acknowledgement_on(spark: "SparkSession") -> None:
    """A record intended at 0 s, acknowledged at 5 s and delivered at 7.5 s is a stall of 2.5 s, not of 6.5 s.

    A record in doubt may have been written just before its delivery, which therefore ends a silence and no stall.
    """
    rows = [("produce", 0, 100, 900, "ok"), ("consume", 0, 100, 1000, None)]
    rows += [("produce", 1, 0, 5000, "ok"), ("consume", 1, 0, 7500, None)]
    rows += [("produce", 2, 1000, 6000, "in_doubt"), ("consume", 2, 1000, 8700, None)]
    rows += [("produce", 3, 8000, 8750, "ok"), ("consume", 3, 8000, 8800, None)]
    told = [(op, seq, from_ms * 1000, done_ms * 1000, status) for op, seq, from_ms, done_ms, status in rows]
    shape = "op string, seq bigint, intended_us bigint, done_us bigint, status string"
    samples = spark.createDataFrame(told, shape).selectExpr(
        *(
            "0 as run",
            "'w' as workload",
            "'a' as arm",
            "0 as producer_id",
            "'t' as topic",
            "0 as partition",
            "true as due",
            "string(null) as error",
            "bigint(null) as sent_us",
            "bigint(null) as deadline_us",
            "*",
        )
    )
    evidence = SimpleNamespace(phases=(Phase("steady", None, 0, 9 * S),), journal=(), events=(), clients=())
    twice = FollowUpJobs(Dims(spark, (Scene(cast("Evidence", evidence)),)), samples, samples)

    seen = [
        (row["partition"], row["start_us"], row["end_us"])
        for row in twice.stalls_and_failures()["stalls"][0]
        if row["side"] == "consume"
    ]

    assert [(0, 5 * S, 7_500_000)] == seen


@pytest.mark.parametrize(("begin_s", "stalled"), [(0, [(0, S // 2, 8 * S)]), (7, [(0, 7 * S, 8 * S)])])
def test_a_record_waits_for_its_partition_from_the_begin_of_its_transaction(
    spark: "SparkSession", begin_s: int, stalled: list[tuple[int, int, int]]
) -> None:
    """A backlog of earlier transactions, written to another partition, is no stall of the partition that is next."""
    rows = [(0, 0, 0, S // 2), *((1, seq, 0, seq * S) for seq in range(1, 8)), (0, 8, 0, 8 * S)]
    shape = "partition int, seq bigint, intended_us bigint, done_us bigint"
    constant = ("0 as run", "'w' as workload", "'a' as arm", "'produce' as op", "'ok' as status", "'t' as topic")
    samples = spark.createDataFrame(rows, shape).selectExpr(*constant, "0 as producer_id", "true as due", "*")
    own = [(0, 0, 7, 0), (0, 8, 9, begin_s * S)]
    transactions = spark.createDataFrame(own, "producer_id int, first_seq bigint, last_seq bigint, begin_us bigint")
    evidence = SimpleNamespace(phases=(Phase("steady", None, 0, 9 * S),), journal=(), events=(), clients=())
    known = Dims(spark, (Scene(cast("Evidence", evidence)),))

    found = FollowUpJobs(known, samples, samples, transactions.selectExpr("0 as run", "*")).stalls_and_failures()[
        "stalls"
    ][0]

    assert stalled == [(0, row["start_us"], row["end_us"]) for row in found if row["partition"] == 0]


def test_a_good_run_breaks_no_obligation(evidence: Evidence, facts: Facts) -> None:
    """Every side of every arm was due progress, and the producers' stall after the killed leader was permitted."""
    checks = obligation_checks(evidence, facts, NO_DOUBTS)

    assert {("obligation/produce", "PASS"), ("obligation/consume", "PASS")} == {(c.id, c.status.value) for c in checks}
    assert 4 == len(checks)
    assert all("a stall of 3.0 s was permitted (" in check.why for check in checks if check.id.endswith("produce"))


def stop_progress(rows: list[Row], start_s: float, end_s: float, *, arm: str, partition: int) -> None:
    """Delay all completions of a partition between two moments until right after the second."""
    for row in rows:
        if (row["arm"], row["partition"]) == (arm, partition) and start_s * S <= row["done_us"] < end_s * S:
            row["done_us"] = round(end_s * S)


def produce(run: Made) -> None:
    """Spoil a run: one partition of six accepts no record for eight seconds of steady."""
    stop_progress(run.produce, 7, 15, arm="baseline", partition=2)


def consume(run: Made) -> None:
    """Spoil a run: one partition of six delivers no record for eight seconds of steady."""
    stop_progress(run.consume, 7, 15, arm="baseline", partition=2)


def failing(run: Made) -> None:
    """Spoil a run: each record fails 100 ms after its intended time, for eight seconds."""
    for row in run.produce:
        if row["arm"] == "baseline" and 7 * S <= row["intended_us"] < 15 * S:
            row |= {"status": "failed", "error": "_MSG_TIMED_OUT", "partition": None, "offset": None}
            row["done_us"] = row["intended_us"] + 100_000


def few(run: Made) -> None:
    """Spoil a run: ten records fail while the leader is killed, between successes of other partitions."""
    hit = [row for row in run.produce if row["arm"] == "baseline" and 26 * S <= row["intended_us"] < 29 * S]
    for row in hit[::18]:
        row |= {"status": "failed", "error": "NOT_ENOUGH_REPLICAS", "partition": None, "offset": None}


@dataclass(frozen=True)
class Judged:
    """Hold the runs above, measured together."""

    evidence: Mapping[str, Evidence]
    facts: Mapping[str, Facts]

    def check(self, name: str, side: str, arm: str = "baseline", untrusted: Sequence[HarnessCheck] = ()) -> Check:
        """Return the obligation check of one side of one arm."""
        checks = obligation_checks(self.evidence[name], self.facts[name], Doubts(harness=untrusted))
        (stalls_of,) = (check for check in checks if (check.id, check.arm) == (f"obligation/{side}", arm))
        return stalls_of


@pytest.fixture(scope="module")
def stalled(spark: "SparkSession", made: Made, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    from aftershock.tests.unit.results.measuring import named, together  # noqa: PLC0415 - tests without Spark should not load it

    spoiled = {spoil.__name__: made.copy() for spoil in (produce, consume, failing, few)}
    for name, run in spoiled.items():
        globals()[name](run)
    runs = named(spoiled, tmp_path_factory.mktemp("stalled"))
    return Judged(runs, together(spark, runs))


@pytest.mark.parametrize("side", ["produce", "consume"])
def test_a_stall_of_one_partition_without_any_fault_fails(stalled: Judged, side: str) -> None:
    """The affected arm fails without an SLO, and the other arm passes."""
    assert Status.FAIL is stalled.check(side, side).status
    assert "orders/2" in stalled.check(side, side).why
    assert Status.PASS is stalled.check(side, side, "patient").status


def test_failures_without_partition_stall_the_whole_client(stalled: Judged) -> None:
    """The stall counts for the client as a whole; on a starved host the check is INCONCLUSIVE."""
    check = stalled.check("failing", "produce")
    assert Status.FAIL is check.status
    assert "of the client as a whole" in check.why
    assert "480 records failed, 0 of them while no progress was required" in check.why
    starved = Check("harness/host", "harness", "run", Status.INCONCLUSIVE, 1, 1, "", "the host was starved")
    assert Status.FAIL is not stalled.check("failing", "produce", untrusted=[HarnessCheck(starved)]).status


def test_a_few_failures_are_reported_and_not_judged(stalled: Judged) -> None:
    """The failures occurred while no progress was due."""
    check = stalled.check("few", "produce")
    assert Status.PASS is check.status
    assert "10 records failed, 10 of them while no progress was required (kill-1" in check.why
