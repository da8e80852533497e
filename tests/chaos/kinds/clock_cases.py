"""Cases of faults on brokers' wall clocks. Sessions and timeouts use monotonic time, which is untouched."""

from aftershock.tests.chaos.kinds.case import Case, Observation, unharmed


def refused(seen: Observation) -> None:
    """Assert that records were refused, because they seem to come from more than an hour ahead."""
    assert {"INVALID_TIMESTAMP"} == set(seen.failures("during"))
    assert [] == seen.failures("after")


CASES = {
    "clock_bump": [
        Case("{kind: clock_bump, broker: leader of probe/0, by: -2h, for: 4s}", refused, "clocks"),
        Case("{kind: clock_bump, broker: leader of probe/0, by: 1h, for: 4s}", unharmed, "clocks"),
    ],
    "clock_skew": [Case("{kind: clock_skew, broker: leader of probe/0, rate: 2, for: 5s}", unharmed, "clocks")],
    "clock_strobe": [Case("{kind: clock_strobe, broker: leader of probe/0, by: 5s, for: 4s}", unharmed, "clocks")],
}
