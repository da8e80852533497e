"""For how long a broker's data has been waiting."""

from aftershock.workloads.kafka.rules.partitioner import NodeLatency


def test_a_node_is_late_when_its_data_waits_for_longer_than_the_timeout() -> None:
    """The delay runs from the last time it could be sent to; exactly the timeout is not late yet."""
    latency = NodeLatency()
    latency.ready(1, 100, can_drain=True)
    latency.ready(1, 105, can_drain=False)
    assert not latency.later_than(5)
    latency.ready(1, 106, can_drain=False)
    assert {1} == latency.later_than(5)


def test_a_node_that_takes_data_is_in_time_again() -> None:
    """Draining sets the delay back to nothing."""
    latency = NodeLatency()
    latency.ready(1, 0, can_drain=False)
    latency.ready(1, 50, can_drain=False)
    latency.ready(1, 51, can_drain=True)
    assert not latency.later_than(5)


def test_a_node_without_data_is_not_late() -> None:
    """Time alone makes nobody late: the delay is that of the last time it had data to send, as Kafka's stats are."""
    latency = NodeLatency()
    latency.ready(1, 0, can_drain=True)
    latency.ready(2, 1000, can_drain=False)
    latency.ready(2, 1010, can_drain=False)
    assert {2} == latency.later_than(5)


def test_a_node_that_could_not_be_sent_to_at_first_sight_is_late_from_then_on() -> None:
    """The first sight starts the clock, not the epoch."""
    latency = NodeLatency()
    latency.ready(7, 1_000_000, can_drain=False)
    assert not latency.later_than(5)
