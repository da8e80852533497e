"""SLOs `with 95% confidence`: INCONCLUSIVE if the limit lies within the confidence band."""

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Band, Cut, Distribution, Slice
from aftershock.tests.unit.results.checks.slo.stage import A, B, Stage, latencies

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE


def banded(value_us: int | None, band: Band, n: int = 1000) -> Distribution:
    return Distribution(n, 0 if value_us else n, value_us, {0.99: value_us}, None, {(0.99, 0.95): band})


def check(ours: Distribution, text: str = "produce.latency p99 <= 5ms in fault with 95% confidence") -> Check:
    stage = Stage()
    stage.latency(ours)
    return stage.check(text)


@pytest.mark.parametrize(
    ("value_us", "band", "n", "status"),
    [
        (4_500, (4_000, 5_000), 1000, PASS),
        (4_500, (4_000, 5_001), 1000, OPEN),
        (5_500, (5_000, 6_000), 1000, OPEN),
        (5_500, (5_001, 6_000), 1000, FAIL),
        (4_500, (4_000, None), 1000, OPEN),
        (None, (5_001, None), 1000, FAIL),
        (None, (4_000, None), 1000, OPEN),
        (None, (None, None), 1000, FAIL),
        (4_500, (4_000, 5_000), 999, OPEN),
    ],
)
def test_the_whole_band_decides(value_us: int | None, band: Band, n: int, status: Status) -> None:
    """PASS if the whole band is within the limit, FAIL if none of it is, to the microsecond; a censored band exceeds
    any limit.
    """
    assert check(banded(value_us, band, n)).status is status


def test_an_inconclusive_band_advises_a_number_of_samples() -> None:
    """The band shrinks with the square root of n, so half the width takes four times as many samples."""
    outcome = check(banded(4_500, (4_000, 5_500)))
    assert outcome.why == "p99 in fault is 4.5 ms, between 4 ms and 5.5 ms (sampling error only)"
    assert outcome.next == "about 3000 more records are needed: lengthen the fault to 40s or raise the rate"
    assert "change the limit" in (check(banded(4_999, (4_000, 6_000))).next or "")
    assert "exactly at the limit" in (check(banded(5_000, (4_000, 6_000))).next or "")


def test_without_confidence_the_value_decides() -> None:
    """The same measurement passes a plain SLO."""
    assert check(banded(4_500, (4_000, 6_000)), "produce.latency p99 <= 5ms in fault").status is PASS


@pytest.mark.parametrize(
    ("slower", "blocks", "status"), [(0.4, 8, PASS), (0.9, 8, FAIL), (0.5, 8, OPEN), (0.4, 5, OPEN)]
)
def test_arms_are_compared_by_blocks(slower: float, blocks: int, status: Status) -> None:
    """The records of one stall are one event, so a comparison needs six blocks and reports the ratio's interval."""
    stage = Stage()
    for client, factor, swing in ((A, slower, 1000), (B, 1.0, 0)):
        slices = [
            Slice(f"block={number}", None, latencies(1000, int(factor * (10_000 + (-1) ** number * swing))))
            for number in range(1, blocks + 1)
        ]
        stage.cuts[Cut("produce.latency", "fault", "block"), client] = tuple(slices)
    outcome = stage.check("p99(a) <= 0.5 * p99(b) of produce.latency in fault with 95% confidence")
    assert (status, "compare", "ratio", blocks) == (outcome.status, outcome.kind, outcome.unit, outcome.n)
    assert (outcome.next is None) == (status is PASS)


@pytest.mark.parametrize(
    ("ours", "steady", "status"),
    [
        ((15, 20), (10, 12), PASS),
        ((15, 21), (10, 12), OPEN),
        ((24, 30), (10, 12), OPEN),
        ((25, 30), (10, 12), FAIL),
        ((25, 30), (10, None), OPEN),
    ],
)
def test_a_multiple_uses_both_bands(ours: Band, steady: Band, status: Status) -> None:
    """Twice 10 to 12 ms is 20 to 24 ms: a value below this range passes, and a value above fails."""
    stage = Stage()
    stage.latency(banded(18, ours))
    stage.latency(banded(11, steady), "steady")
    outcome = stage.check("produce.latency p99 in fault <= 2 * p99 in steady with 95% confidence")
    assert outcome.status is status
