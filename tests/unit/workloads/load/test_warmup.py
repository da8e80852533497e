import random
from collections.abc import Callable
from math import exp, isnan, nan

import pytest

from aftershock.workloads.load.warmup import WINDOW_S, SecondMedians, judge_warmup


def first_settled(latency_us: Callable[[int], float], seconds: int = 120) -> int | None:
    """Return the number of seconds after which the rule calls a series settled, None if never."""
    series = [latency_us(second) for second in range(seconds)]
    return next((end for end in range(1, seconds + 1) if judge_warmup({"arm": series[:end]}).ok), None)


def noisy(share: float) -> Callable[[], float]:
    rng = random.Random(f"noise {share}")  # noqa: S311
    return lambda: max(0.1, rng.gauss(1, share))


def test_a_cold_jvm_has_not_settled_until_the_curve_is_flat() -> None:
    """An exponential decay from 300 ms to 8 ms: not settled while what is left of it exceeds a millisecond."""
    end = first_settled(lambda second: 8_000 + 300_000 * exp(-second / 4))
    assert end is not None
    assert 300_000 * exp(-(end - WINDOW_S / 2) / 4) < 2_000
    assert end < 45


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_a_flat_series_settles_soon_however_noisy(share: float) -> None:
    """Noise of 30 % costs some more seconds, not the run."""
    noise = noisy(share)
    ends = [first_settled(lambda _: 8_000 * noise()) for _ in range(50)]
    assert all(end is not None and end <= WINDOW_S + 30 for end in ends)


@pytest.mark.parametrize("growth", [1.03, 1.1, 0.97])
def test_a_slow_steady_drift_never_settles(growth: float) -> None:
    """3 % a second, up or down, is 20 % over the window."""
    assert first_settled(lambda second: 300_000 * growth**second, 60) is None


@pytest.mark.parametrize("seconds_before", [5, 6, 7])
def test_a_step_down_settles_once_it_is_behind(seconds_before: int) -> None:
    """A step inside the window isn't settled, though most pairs of seconds are level; flat for a while after, it is."""
    end = first_settled(lambda second: 80_000 if second < seconds_before else 8_000)
    assert end is not None
    assert seconds_before + 3 <= end <= seconds_before + WINDOW_S


def test_one_bad_second_is_forgiven() -> None:
    """A single stall of the host is not a drift."""
    assert judge_warmup({"arm": [8_000] * 5 + [200_000] + [8_000] * 2}).ok


def test_small_latencies_may_wobble_by_a_millisecond() -> None:
    """15 % of half a millisecond is below the precision of the measurement."""
    assert judge_warmup({"arm": [500, 600, 700, 800, 900, 1000, 1100, 1200]}).ok


def test_every_client_must_have_settled_and_the_worst_is_named() -> None:
    """One arm that still drifts prolongs the warm-up."""
    flat, drifting = [8_000.0] * 10, [8_000.0 * 1.2**second for second in range(10)]
    both = judge_warmup({"baseline": flat, "kip951": drifting})
    assert not both.ok
    assert both.why.startswith("kip951: the latency drifted by")
    assert both.unsettled == ("kip951",)
    silent = judge_warmup({"baseline": flat, "kip951": drifting, "asleep": []})
    assert (silent.why, silent.unsettled) == ("asleep: no record has completed", ("asleep", "kip951"))
    assert judge_warmup({"baseline": flat}).ok


@pytest.mark.parametrize(
    ("series", "why"),
    [([8_000.0] * (WINDOW_S - 1), "only 7 of the 8 s"), ([8_000.0] * 4 + [nan] * 4, "records completed in only 4")],
)
def test_silence_is_not_steadiness(series: list[float], why: str) -> None:
    """Too few samples are not settled, and the sentence says so."""
    verdict = judge_warmup({"arm": series})
    assert not verdict.ok
    assert why in verdict.why
    assert not judge_warmup({}).ok


def test_only_seconds_that_are_over_count_and_silence_shows() -> None:
    """Medians start with the first completion; a second without completions is NaN; the current second is left out."""
    seconds = SecondMedians()
    seconds.add(500_000, [])
    seconds.add(1_200_000, [10, 30])
    seconds.add(1_700_000, [20])
    assert seconds.medians_us() == []
    seconds.add(2_400_000, [])
    seconds.add(3_100_000, [7])
    first, second = seconds.medians_us()
    assert first == 20
    assert isnan(second)


def test_only_the_window_is_kept() -> None:
    """A day's latencies would fill the runner's memory; a long silence still counts as seconds that have passed."""
    seconds = SecondMedians()
    for second in range(1000):
        seconds.add(second * 1_000_000, [second] if second < 900 else [])
    assert len(seconds._by_second) <= WINDOW_S + 1
    assert [True] * WINDOW_S == [isnan(value) for value in seconds.medians_us()]
    assert "only 0 of the last 8 s" in judge_warmup({"arm": seconds.medians_us()}).why


def test_nothing_completed_has_no_medians() -> None:
    """A client that never completed a record has no first second."""
    seconds = SecondMedians()
    seconds.add(5_000_000, [])
    assert seconds.medians_us() == []


def test_the_p99_of_each_full_minute_is_kept() -> None:
    """The latencies of a minute count once it is over, and an empty minute has none."""
    seconds = SecondMedians()
    for second in range(60):
        seconds.add(second * 1_000_000, [second * 1_000, 1])
    assert [] == seconds.minutes
    seconds.add(185_000_000, [7])
    assert [(0, 58_000)] == seconds.minutes
    seconds.add(240_000_000, [])
    assert [(0, 58_000), (180_000_000, 7)] == seconds.minutes
