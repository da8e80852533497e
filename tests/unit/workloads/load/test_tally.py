from aftershock.workloads.load.events import WINDOW, Tally
from aftershock.workloads.load.spool import Status


def test_counts_stay_and_windows_start_anew() -> None:
    """Counts are since the start, latencies since the last message; only successes have a latency."""
    tally = Tally()
    for late in (5, 900, 10):
        tally.sent_late(late)
    tally.ended(Status.OK, 4000)
    tally.ended(Status.FAILED, 0)
    expected = {"sent": 3, "ok": 1, "failed": 1, "in_doubt": 0}
    assert tally.progress() == expected | {"late_p99_us": 900, "window": [4000]}
    assert tally.progress() == expected | {"late_p99_us": 0, "window": []}
    assert tally.done == 2


def test_a_window_keeps_the_latest() -> None:
    """A fast client doesn't make messages grow."""
    tally = Tally()
    for latency in range(WINDOW + 50):
        tally.ended(Status.OK, latency)
    assert tally.progress()["window"] == list(range(50, WINDOW + 50))
