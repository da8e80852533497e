"""How long clients may wait: by their settings, else by the defaults of their library."""

import pytest

from aftershock.results.checks.obligations.waits import client_waits


@pytest.mark.parametrize(
    ("client", "own", "answer_ms", "session_ms"),
    [
        ("java", {}, 30_000, 45_000),
        ("rdkafka", {}, 60_000, 45_000),
        ("exec", {}, 60_000, 45_000),
        ("exec", {"request.timeout.ms": "5000"}, 5_000, 45_000),
        ("sarama", {}, 30_000, 10_000),
        ("sarama", {"session.timeout.ms": "6000"}, 30_000, 6_000),
        ("aiokafka", {}, 40_000, 10_000),
        ("kafkajs", {"request.timeout.ms": "8000"}, 8_000, 30_000),
    ],
)
def test_answers_and_sessions(client: str, own: dict[str, str], answer_ms: int, session_ms: int) -> None:
    waits = client_waits(client, own, {}, grouped=True)
    assert (answer_ms, session_ms) == (waits.request.ms, waits.session[0].ms)


def test_what_a_plan_can_not_change_is_not_advised() -> None:
    waits = client_waits("franz-go", {}, {}, grouped=True)
    assert (False, False, True) == (waits.request.own, waits.reconnect.own, waits.session[0].own)
