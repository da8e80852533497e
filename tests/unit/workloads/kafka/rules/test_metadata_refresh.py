"""The timetable of metadata refreshes, row by row; jitter is within 20 %, so the bounds are those of ``Backoff``."""

from collections.abc import Callable
from math import inf

import pytest

from aftershock.tests.unit.workloads.kafka.rules.known_cluster import backoff
from aftershock.workloads.kafka.rules.metadata import Refresh

DAY_MS = 86_400_000


def refresh(max_age_ms: float = DAY_MS) -> Refresh:
    return Refresh(max_age_ms, backoff())


def answered(timetable: Refresh, times: int, now_ms: float = 0) -> Refresh:
    for _ in range(times):
        timetable.request_sent()
        timetable.on_response(now_ms, complete=True)
    return timetable


def failed(timetable: Refresh, times: int) -> Refresh:
    for _ in range(times):
        timetable.request_sent()
        timetable.on_failure(0)
    return timetable


def test_the_first_request_is_due_at_once() -> None:
    assert 0 == refresh().wait_ms(0)


def test_nothing_is_due_while_a_request_is_in_flight() -> None:
    """One request at a time, even if another one is requested meanwhile."""
    timetable = refresh()
    timetable.request_sent()
    timetable.request()
    timetable.request_at_once()
    assert inf == timetable.wait_ms(DAY_MS)


def test_a_response_is_valid_until_max_age() -> None:
    """Without a request, the next one is due ``max_age_ms`` after the last response, to the millisecond."""
    timetable = answered(refresh(5000), 1, now_ms=70)
    assert (5000, 1, 0) == tuple(timetable.wait_ms(now) for now in (70, 5069, 5070))


@pytest.mark.parametrize(
    ("history", "lowest", "highest"),
    [
        pytest.param(lambda: answered(refresh(), 1), 80, 120, id="one answer"),
        pytest.param(lambda: answered(refresh(), 2), 160, 240, id="two equivalent ones"),
        pytest.param(lambda: answered(refresh(), 3), 320, 480, id="three"),
        pytest.param(lambda: answered(refresh(), 9), 800, 1000, id="many"),
        pytest.param(lambda: failed(refresh(), 1), 80, 120, id="one failure"),
        pytest.param(lambda: failed(refresh(), 2), 160, 240, id="two failures"),
        pytest.param(lambda: failed(refresh(), 9), 800, 1000, id="many failures"),
        pytest.param(lambda: failed(answered(refresh(), 9), 1), 80, 120, id="a failure ends a row of equivalents"),
        pytest.param(lambda: answered(failed(refresh(), 9), 1), 80, 120, id="an answer ends a row of failures"),
    ],
)
def test_requested_updates_back_off(history: Callable[[], Refresh], lowest: float, highest: float) -> None:
    """As long as the number of consecutive failures or equivalent responses says."""
    timetable = history()
    timetable.request()
    assert all(lowest <= timetable.wait_ms(0) <= highest for _ in range(50))
    assert 0 == timetable.wait_ms(highest)


def test_a_new_epoch_resets_the_back_off() -> None:
    timetable = answered(refresh(), 5)
    timetable.equivalents = 0
    timetable.request()
    assert timetable.wait_ms(0) <= 120


def test_a_periodic_update_resets_the_back_off() -> None:
    """The periodic update is no retry."""
    timetable = answered(refresh(5000), 5)
    assert 0 == timetable.wait_ms(5000)
    assert 0 == timetable.equivalents


def test_a_failure_keeps_the_request() -> None:
    """A requested update is still wanted after a failure, however young the last response is."""
    timetable = answered(refresh(), 1)
    timetable.request()
    assert 0 == failed(timetable, 1).wait_ms(120)


def test_a_response_satisfies_requests_made_meanwhile() -> None:
    """As in Kafka's full update."""
    timetable = refresh()
    timetable.request_sent()
    timetable.request()
    timetable.on_response(0, complete=True)
    assert DAY_MS == timetable.wait_ms(0)


def test_an_incomplete_answer_leaves_the_request() -> None:
    """A topic that was wanted after the request was sent is requested next, when the back-off is over."""
    timetable = refresh()
    timetable.request_sent()
    timetable.request_at_once()
    timetable.on_response(0, complete=False)
    assert 80 <= timetable.wait_ms(0) <= 120


def test_a_new_topic_does_not_wait() -> None:
    """A topic wanted for the first time is requested at once, after any number of equivalents or failures."""
    for timetable in (answered(refresh(), 9), failed(refresh(), 9)):
        timetable.request_at_once()
        assert 0 == timetable.wait_ms(0)
