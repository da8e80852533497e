"""SLOs that compare a selection with a multiple of another: both need enough records, and the limit is exact."""

import pytest

from aftershock.results.model.check import Status
from aftershock.results.model.facts import Distribution, LongestGap, Slice
from aftershock.tests.unit.results.checks.slo.stage import A, B, Stage, client, latencies

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE
TEXT = "produce.latency p99 in fault <= 2 * p99 in steady"


def against(ours: Distribution, steady: Distribution) -> Stage:
    stage = Stage()
    stage.latency(ours)
    stage.latency(steady, "steady")
    return stage


@pytest.mark.parametrize(
    ("ours", "steady", "status"),
    [
        (latencies(1000, 20_000), latencies(1000, 10_000), PASS),
        (latencies(1000, 20_001), latencies(1000, 10_000), FAIL),
        (latencies(1000, None), latencies(1000, 10_000), FAIL),
        (latencies(999, 1), latencies(1000, 10_000), OPEN),
        (latencies(1000, 1), latencies(999, 10_000), OPEN),
        (latencies(1000, 1), latencies(1000, None), OPEN),
        (latencies(1000, 1), latencies(1000, 0), OPEN),
    ],
)
def test_both_sides_decide(ours: Distribution, steady: Distribution, status: Status) -> None:
    """The limit is exact to the microsecond; a thin, censored or zero second selection gives INCONCLUSIVE."""
    assert against(ours, steady).check(TEXT).status is status


def test_the_reason_names_values_and_threshold() -> None:
    """The check reports observed value and threshold in ms, how the threshold was computed, and the selection that is
    too small.
    """
    check = against(latencies(1000, 41_000), latencies(2000, 20_000)).check(TEXT)
    assert (41.0, 40.0, "ms", 1000, "slo") == (check.observed, check.threshold, check.unit, check.n, check.kind)
    assert check.why == "p99 in fault is 41 ms; 2 x p99 in steady is 20 ms"
    spare = against(latencies(2000, 1), latencies(600, 1, 0.5)).check(TEXT.replace("* p99", "* p50"))
    assert (2000, 1000) == (spare.n, spare.minimum)  # steady has thirty times the samples that p50 needs
    thin = against(latencies(1000, 1), latencies(600, 1)).check(TEXT)
    assert (600, "p99 needs 1000 records, saw 600: lengthen timing.steady to 17s or raise the rate") == (
        thin.n,
        thin.next,
    )
    gone = against(latencies(1000, 1), latencies(1000, None)).check(TEXT)
    assert gone.why.endswith("produce.latency p99 in steady is censored, so there is nothing to compare with")


def test_factors_are_exact() -> None:
    """0.29 * 100 us are 29 us, not the 28.999... of floating-point arithmetic."""
    stage = against(latencies(1000, 29), latencies(1000, 100))
    assert stage.check("produce.latency p99 in fault <= 0.29 * p99 in steady").status is PASS
    assert 0.29 * 100 < 29  # the float error that the code avoids


def test_other_metrics_of_the_same_unit() -> None:
    """A gap may be compared with a quantile; each has its own minimum of samples."""
    stage = Stage(longest={("produce.gap", A, "fault"): LongestGap(5, 30_000)})
    stage.latency(latencies(1000, 10_000), "steady")
    text = "produce.gap in fault <= 3 * p99 of produce.latency in steady"
    assert stage.check(text).status is PASS
    stage.longest["produce.gap", A, "fault"] = LongestGap(5, 30_001)
    assert stage.check(text).status is FAIL


def test_each_subject_against_itself() -> None:
    """Each rack is compared with its own steady state; a rack without steady records is INCONCLUSIVE."""
    stage = Stage()
    stage.cut(
        "produce.latency",
        "fault",
        Slice("rack=a", None, latencies(1000, 20)),
        Slice("rack=b", None, latencies(1000, 90)),
        each="rack",
    )
    stage.cut(
        "produce.latency",
        "steady",
        Slice("rack=a", None, latencies(1000, 10)),
        Slice("rack=b", None, latencies(1000, 50)),
        each="rack",
    )
    text = f"{TEXT} for each rack"
    assert stage.check(text).status is PASS
    stage.cut("produce.latency", "steady", Slice("rack=b", None, latencies(1000, 50)), each="rack")
    assert (OPEN, "arm=a rack=a", 0) == ((check := stage.check(text)).status, check.subject, check.n)


def test_each_slot_against_the_whole() -> None:
    """Slots divide the first selection only; the second selection is one value."""
    stage = Stage()
    slices = [Slice("", at * 1_000_000, latencies(20, 21 if at == 25 else 20, 0.5)) for at in range(20, 30, 5)]
    stage.cut("produce.latency", "fault", *slices, every_us=5_000_000)
    stage.latency(latencies(20, 10, 0.5), "steady")
    check = stage.check("produce.latency p50 in every 5s of fault <= 2 * p50 in steady")
    assert check.status is FAIL
    assert "worst the 5s from 25.0 s" in check.why


ARMS = "p99(a) <= 0.5 * p99(b) of produce.latency in fault"


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        (latencies(1000, 10_000), latencies(1000, 20_000), PASS),
        (latencies(1000, 10_001), latencies(1000, 20_000), FAIL),
        (latencies(1000, None), latencies(1000, 20_000), FAIL),
        (latencies(1000, 10_000), latencies(1000, None), OPEN),
        (latencies(1000, 10_000), latencies(999, 20_000), OPEN),
    ],
)
def test_arms_are_compared_by_their_ratio(ours: Distribution, theirs: Distribution, status: Status) -> None:
    """The check is of kind `compare`; it is INCONCLUSIVE if the second arm's value is censored."""
    stage = Stage()
    stage.latency(ours)
    stage.latency(theirs, client=B)
    check = stage.check(ARMS)
    assert (status, "compare", "arm=a against arm=b") == (check.status, check.kind, check.subject)
    assert (0.5, "ratio") == (check.threshold, check.unit) or status is OPEN


def test_the_observed_value_is_the_ratio() -> None:
    """10 ms of the first arm and 20 ms of the second are 0.5."""
    stage = Stage()
    stage.latency(latencies(1000, 10_000))
    stage.latency(latencies(1000, 20_000), client=B)
    check = stage.check(ARMS)
    assert (0.5, "p99 in fault is 10 ms; p99 in fault for b is 20 ms") == (check.observed, check.why)


def test_every_arm_is_compared_except_with_itself() -> None:
    """Without a first arm, every other arm is compared with the second, preferably within its own workload."""
    clients = [client("a"), client("b"), client("c"), client("b", "audit")]
    text = "produce.gap in fault <= 2 * produce.gap for b"
    assert ["arm=a against arm=b", "arm=c against arm=b"] == [check.subject for check in Stage(clients).checks(text)]
    (nobody,) = Stage([client("a"), client("b", "x"), client("b", "y")]).checks(text)
    assert (OPEN, "each arm must name exactly one client of the plan") == (nobody.status, nobody.why)
