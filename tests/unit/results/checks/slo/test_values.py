"""SLOs with a fixed limit: per metric the value within the limit, just beyond the limit, and with too few samples."""

import pytest

from aftershock.results.evidence.evidence import Client
from aftershock.results.model.check import Status
from aftershock.results.model.facts import Distribution, Lag, LongestGap, Outage
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage, client, latencies

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE


@pytest.mark.parametrize(
    ("n", "value_us", "op", "status"),
    [
        (1000, 249_999, "<", PASS),
        (1000, 250_000, "<", FAIL),
        (1000, 250_000, "<=", PASS),
        (1000, 250_001, "<=", FAIL),
        (1000, None, "<", FAIL),
        (999, 1, "<", OPEN),
        (999, 10**9, "<", OPEN),
        (0, None, "<", OPEN),
    ],
)
def test_a_quantile(n: int, value_us: int | None, op: str, status: Status) -> None:
    """The limit is exact to 1 us; a censored quantile exceeds any limit; one record too few gives INCONCLUSIVE."""
    stage = Stage()
    stage.latency(latencies(n, value_us))
    check = stage.check(f"produce.latency p99 {op} 250ms in fault")
    assert (status, n, 1000, 250.0, "ms") == (check.status, check.n, check.minimum, check.threshold, check.unit)
    assert (check.next is None) == (status is PASS)
    assert ("arm=a", "fault", "a") == (check.subject, check.phase, check.arm)


def test_too_few_samples_advise_a_longer_window() -> None:
    """The advice uses the observed load: 480 records in 10 s make 1000 records in 21 s."""
    stage = Stage()
    stage.latency(latencies(480, 1))
    advice = stage.check("produce.latency p99 < 1ms in fault").next
    assert advice == "p99 needs 1000 records, saw 480: lengthen the fault to 21s or raise the rate"
    assert stage.check("produce.latency p99 < 1ms in steady").next == "add traffic for the plan in steady"


def test_service_time_is_reported_with_latency() -> None:
    """The reason has latency and service time where both have enough samples."""
    stage = Stage()
    stage.latency(latencies(1000, 250_000))
    assert stage.check("produce.latency p99 <= 250ms in fault").why == "p99 in fault is 250 ms"
    stage.latency(latencies(1000, 3_000), metric="service")
    check = stage.check("produce.latency p99 <= 250ms in fault")
    assert (PASS, "p99 in fault is 250 ms; measured from the actual send: 3 ms") == (check.status, check.why)


@pytest.mark.parametrize(
    ("n", "value_us", "status"), [(1, 999, PASS), (1, 1000, FAIL), (1, None, FAIL), (0, None, OPEN)]
)
def test_the_maximum(n: int, value_us: int | None, status: Status) -> None:
    """One record suffices for a maximum, and a failed record exceeds any limit."""
    stage = Stage()
    stage.latency(latencies(n, value_us))
    assert stage.check("produce.latency max < 1ms in fault").status is status


@pytest.mark.parametrize(
    ("n", "mean_us", "censored", "status"),
    [(30, 999.9, 0, PASS), (30, 1000.1, 0, FAIL), (30, 10.0, 1, FAIL), (29, 10.0, 0, OPEN)],
)
def test_the_mean(n: int, mean_us: float, censored: int, status: Status) -> None:
    """A mean with a failed record exceeds any limit, because the failed record's latency is unknown."""
    stage = Stage()
    stage.latency(Distribution(n, censored, 1, {}, mean_us))
    assert stage.check("produce.latency mean <= 1ms in fault").status is status


@pytest.mark.parametrize(
    ("n", "failed", "text", "status"),
    [
        (1000, 1, "produce.success >= 99.9%", PASS),
        (1000, 2, "produce.success >= 99.9%", FAIL),
        (1000, 1, "produce.success > 99.9%", FAIL),
        (999, 0, "produce.success >= 99.9%", OPEN),
        (1, 0, "produce.success >= 100%", PASS),
        (9_999_999, 0, "produce.success >= 99.99999%", OPEN),
        (10_000_000, 2, "produce.success >= 99.99999%", FAIL),
        (1000, 1, "produce.budget(99%) <= 10%", PASS),
        (1000, 2, "produce.budget(99%) <= 10%", FAIL),
        (1000, 1, "produce.budget(99%) < 10%", FAIL),
        (99, 0, "produce.budget(99%) <= 10%", OPEN),
    ],
)
def test_shares_are_exact(n: int, failed: int, text: str, status: Status) -> None:
    """999 of 1000 is at least 99.9 %, and one failure of ten permitted uses a tenth of the budget."""
    stage = Stage()
    stage.latency(Distribution(n, failed, 1, {}), "run")
    assert stage.check(text).status is status


def test_a_budget_reports_used_share_and_permitted_failures() -> None:
    stage = Stage()
    stage.latency(Distribution(1000, 4, 1, {}), "run")
    check = stage.check("produce.budget(99%) <= 50%")
    assert (40.0, 50.0, "%", 4) == (check.observed, check.threshold, check.unit, check.censored)
    assert check.why == "4 of 1000 records failed: 40% of the error budget of 1%"


@pytest.mark.parametrize(
    ("longest", "due", "status"),
    [
        (LongestGap(9, 5_999_999), 9, PASS),
        (LongestGap(9, 6_000_000), 9, FAIL),
        (LongestGap(0, 8_000_000), 480, FAIL),
        (LongestGap(0, 5_000_000), 480, OPEN),
        (LongestGap(0, 8_000_000), 0, FAIL),
        (LongestGap(0, 5_000_000), 0, OPEN),
        (LongestGap(), 0, OPEN),
    ],
)
def test_a_gap(longest: LongestGap, due: int, status: Status) -> None:
    """A window without any success is one gap of all records that were due, or of at least one that waited; without
    either the check is INCONCLUSIVE.
    """
    stage = Stage(longest={("produce.gap", A, "fault"): longest})
    stage.latency(Distribution(due, due, None, {}))
    check = stage.check("produce.gap < 6s in fault")
    waited = int(longest.longest_us is not None)
    assert (status, "s", longest.n or due or waited) == (check.status, check.unit, check.n)


@pytest.mark.parametrize(
    ("longest", "due", "status", "observed"),
    [
        (LongestGap(600, S), 600, PASS, 60.0),
        (LongestGap(500, S), 600, PASS, 50.0),
        (LongestGap(499, S), 600, FAIL, 49.9),
        (LongestGap(0, 10 * S), 600, FAIL, 0.0),
        (LongestGap(), 0, OPEN, None),
    ],
)
def test_throughput(longest: LongestGap, due: int, status: Status, observed: float | None) -> None:
    """Successes per second of the window, which has 10 s; without a record that was due there is no rate."""
    stage = Stage(longest={("produce.gap", A, "fault"): longest})
    stage.latency(Distribution(due, due, None, {}))
    check = stage.check("produce.throughput >= 50/s in fault")
    assert (status, "records/s", observed) == (check.status, check.unit, check.observed)


@pytest.mark.parametrize(
    ("outages", "due", "status"),
    [
        ((), 100, PASS),
        ((Outage(0, 1_000_000, 1, 1), Outage(2, 2_999_999, 1, 2)), 100, PASS),
        ((Outage(0, 3_000_000, 1, 1),), 100, FAIL),
        ((Outage(None, 3_000_000, 1, 1),), 100, FAIL),
        ((), 0, OPEN),
        ((Outage(None, 3_000_000, 1, 1),), 0, FAIL),
        ((Outage(None, 2_000_000, 1, 1),), 0, OPEN),
        (None, 100, OPEN),
    ],
)
def test_unavailability_is_that_of_the_worst_partition(
    outages: tuple[Outage, ...] | None, due: int, status: Status
) -> None:
    """Stalls of a partition are summed, and a stall of the whole side counts for every partition; INCONCLUSIVE without
    due records or stalls.
    """
    stage = Stage(unavailable={} if outages is None else {("produce", A, "fault"): outages})
    stage.latency(Distribution(due, 0, 1, {}))
    assert stage.check("produce.unavailable < 3s in fault").status is status


@pytest.mark.parametrize(("value", "status"), [(99, PASS), (100, FAIL), (None, OPEN)])
@pytest.mark.parametrize(("metric", "limit"), [("consume.lag", "100 records"), ("consume.freshness", "100us")])
def test_lag_and_freshness(metric: str, limit: str, value: int | None, status: Status) -> None:
    """The metrics are read per second of the window: waiting records, or the age of the oldest."""
    before = Lag(30 * S, 10**9, 10**9)  # the second that ends where the window begins is not part of the window
    stage = Stage(lag={A: (before, *([Lag(31 * S, value, value)] if value else []))})
    check = stage.check(f"{metric} max < {limit} in recovery")
    assert (status, "records" if metric == "consume.lag" else "ms") == (check.status, check.unit)


def test_samples_of_lag_are_seconds() -> None:
    """A p95 of lag needs 200 seconds at any rate."""
    stage = Stage(lag={A: tuple(Lag(second * S, 5, 5) for second in range(60))})
    check = stage.check("consume.lag p95 < 9 in recovery")
    assert (OPEN, "p95 needs 200 seconds, saw 10: lengthen timing.recovery to 200s") == (check.status, check.next)


@pytest.mark.parametrize(("aggregate", "value"), [("p50", 15), ("p51", 16), ("max", 30), ("mean", 15.5)])
def test_quantiles_of_lag_are_nearest_rank(aggregate: str, value: float) -> None:
    """Thirty seconds have 30, 29 … 1 waiting records; the quantile is an observed value."""
    stage = Stage(lag={A: tuple(Lag((11 + at) * S, 30 - at, 1) for at in range(30))})
    check = stage.check(f"consume.lag {aggregate} < 99 in run")
    assert (value, 30) == (check.observed, check.n)


def test_every_arm_is_judged_unless_the_slo_names_an_arm() -> None:
    """Without `for` there is a check per arm with this side; an unknown arm gives a check with an explanation."""
    stage = Stage()
    text = "produce.latency p99 < 1ms in fault"
    assert ["arm=a", "arm=b"] == [check.subject for check in stage.checks(text)]
    assert ["arm=b"] == [check.subject for check in stage.checks(f"{text} for b")]
    (nobody,) = stage.checks(f"{text} for c")
    assert (OPEN, 0, "the plan has no arm 'c' with a produce side") == (nobody.status, nobody.n, nobody.why)


def test_subjects_name_the_workload_of_arms_with_equal_names() -> None:
    """The subject includes the workload if two workloads have an arm of the same name."""
    twins: list[Client] = [client("a"), client("a", "audit")]
    subjects = [check.subject for check in Stage(clients=twins).checks("produce.gap < 6s")]
    assert ["workload=orders arm=a", "workload=audit arm=a"] == subjects
