from math import isnan

from aftershock.workloads.load.warmup import SecondMedians


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


def test_nothing_completed_has_no_medians() -> None:
    """A client that never completed a record has no first second."""
    seconds = SecondMedians()
    seconds.add(5_000_000, [])
    assert seconds.medians_us() == []
