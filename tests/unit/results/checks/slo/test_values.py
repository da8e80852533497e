"""Each metric against a value: within it, over it by the least there is, and too little seen to say."""

import pytest

from aftershock.results.checks.check import Status
from aftershock.results.evidence.evidence import Client
from aftershock.results.measure.facts import Distribution, Lag, LongestGap, Outage
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage, client, seen

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
    """Held by 1 us, broken by 1 us; a censored one is over any limit; with one record too few nothing is said."""
    stage = Stage()
    stage.latency(seen(n, value_us))
    check = stage.check(f"produce.latency p99 {op} 250ms in fault")
    assert (status, n, 1000, 250.0, "ms") == (check.status, check.n, check.minimum, check.threshold, check.unit)
    assert (check.next is None) == (status is PASS)
    assert ("arm=a", "fault", "a") == (check.subject, check.phase, check.arm)


def test_too_few_say_how_much_longer() -> None:
    """The advice counts with the load that there was: 480 records in 10 s make 1000 in 21 s."""
    stage = Stage()
    stage.latency(seen(480, 1))
    told = stage.check("produce.latency p99 < 1ms in fault").next
    assert told == "p99 needs 1000 records, saw 480: lengthen the fault to 21s or raise the rate"
    assert stage.check("produce.latency p99 < 1ms in steady").next == "add traffic for the plan in steady"


def test_service_time_stands_beside_latency() -> None:
    """The user's wait and the client's own figure are told together, where there are enough of both."""
    stage = Stage()
    stage.latency(seen(1000, 250_000))
    assert stage.check("produce.latency p99 <= 250ms in fault").why == "p99 in fault is 250 ms"
    stage.latency(seen(1000, 3_000), metric="service")
    told = stage.check("produce.latency p99 <= 250ms in fault")
    assert (PASS, "p99 in fault is 250 ms; from the actual send 3 ms") == (told.status, told.why)


@pytest.mark.parametrize(
    ("n", "value_us", "status"), [(1, 999, PASS), (1, 1000, FAIL), (1, None, FAIL), (0, None, OPEN)]
)
def test_the_largest(n: int, value_us: int | None, status: Status) -> None:
    """One record is enough for a maximum, and a failure is larger than any."""
    stage = Stage()
    stage.latency(seen(n, value_us))
    assert stage.check("produce.latency max < 1ms in fault").status is status


@pytest.mark.parametrize(
    ("n", "mean_us", "censored", "status"),
    [(30, 999.9, 0, PASS), (30, 1000.1, 0, FAIL), (30, 10.0, 1, FAIL), (29, 10.0, 0, OPEN)],
)
def test_the_mean(n: int, mean_us: float, censored: int, status: Status) -> None:
    """A mean of which one failed is over any limit: how late that one would have been nobody knows."""
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
    """999 of 1000 are at least 99.9 %, and one failure of ten that may be is a tenth of the budget, to the record."""
    stage = Stage()
    stage.latency(Distribution(n, failed, 1, {}), "run")
    assert stage.check(text).status is status


def test_a_budget_says_what_it_counts() -> None:
    """The share used up, of how many that may fail."""
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
        (LongestGap(), 0, OPEN),
    ],
)
def test_a_gap(longest: LongestGap, due: int, status: Status) -> None:
    """Silence from end to end is a gap of as many records as were due; where none was due nothing is known."""
    stage = Stage(longest={("produce.gap", A, "fault"): longest})
    stage.latency(Distribution(due, due, None, {}))
    check = stage.check("produce.gap < 6s in fault")
    assert (status, "s", longest.n or due) == (check.status, check.unit, check.n)


@pytest.mark.parametrize(
    ("outages", "due", "status"),
    [
        ((), 100, PASS),
        ((Outage(0, 1_000_000, 1, 1), Outage(2, 2_999_999, 1, 2)), 100, PASS),
        ((Outage(0, 3_000_000, 1, 1),), 100, FAIL),
        ((Outage(None, 3_000_000, 1, 1),), 100, FAIL),
        ((), 0, OPEN),
        (None, 100, OPEN),
    ],
)
def test_unavailable_is_the_worst_partitions(outages: tuple[Outage, ...] | None, due: int, status: Status) -> None:
    """The sum of a partition's stalls; a stall of the whole side is one of each; where nothing was due, unknown."""
    stage = Stage(unavailable={} if outages is None else {("produce", A, "fault"): outages})
    stage.latency(Distribution(due, 0, 1, {}))
    assert stage.check("produce.unavailable < 3s in fault").status is status


@pytest.mark.parametrize(("value", "status"), [(99, PASS), (100, FAIL), (None, OPEN)])
@pytest.mark.parametrize(("metric", "limit"), [("consume.lag", "100 records"), ("consume.freshness", "100us")])
def test_lag_and_freshness(metric: str, limit: str, value: int | None, status: Status) -> None:
    """Of the seconds of a window: records that wait, or how old the oldest is."""
    before = Lag(30 * S, 10**9, 10**9)  # the second that ended as the window began
    stage = Stage(lag={A: (before, *([Lag(31 * S, value, value)] if value else []))})
    check = stage.check(f"{metric} max < {limit} in recovery")
    assert (status, "records" if metric == "consume.lag" else "ms") == (check.status, check.unit)


def test_seconds_are_what_lag_needs() -> None:
    """A p95 needs 200 seconds to be told, whatever the rate."""
    stage = Stage(lag={A: tuple(Lag(second * S, 5, 5) for second in range(60))})
    told = stage.check("consume.lag p95 < 9 in recovery")
    assert (OPEN, "p95 needs 200 seconds, saw 10: lengthen timing.recovery to 200s") == (told.status, told.next)


@pytest.mark.parametrize(("aggregate", "value"), [("p50", 15), ("p51", 16), ("max", 30), ("mean", 15.5)])
def test_seconds_have_quantiles_too(aggregate: str, value: float) -> None:
    """Of thirty seconds with 30, 29 … 1 records: nearest-rank, an observed value."""
    stage = Stage(lag={A: tuple(Lag((11 + at) * S, 30 - at, 1) for at in range(30))})
    check = stage.check(f"consume.lag {aggregate} < 99 in run")
    assert (value, 30) == (check.observed, check.n)


def test_every_arm_is_judged_unless_one_is_named() -> None:
    """Without `for` there is a check for each arm with the side; an arm that the plan lacks gives one that says so."""
    stage = Stage()
    text = "produce.latency p99 < 1ms in fault"
    assert ["arm=a", "arm=b"] == [check.subject for check in stage.checks(text)]
    assert ["arm=b"] == [check.subject for check in stage.checks(f"{text} for b")]
    (nobody,) = stage.checks(f"{text} for c")
    assert (OPEN, 0, "the plan has no arm 'c' with a produce side") == (nobody.status, nobody.n, nobody.why)


def test_arms_of_one_name_are_told_apart() -> None:
    """Where two workloads have an arm of one name, the subject names the workload too."""
    twins: list[Client] = [client("a"), client("a", "audit")]
    subjects = [check.subject for check in Stage(clients=twins).checks("produce.gap < 6s")]
    assert ["workload=orders arm=a", "workload=audit arm=a"] == subjects
