"""Brokers that leave and in-sync replicas: which answers of brokers make an event, and when it happened."""

from aftershock.harness.kafka.leader_history import PartitionView
from aftershock.harness.kafka.membership import NAMES_MAX, Change, Membership

ALL = {1, 2, 3}


def view(partition: int, *isr: int) -> PartitionView:
    return PartitionView("orders", "t", partition, 4, isr[0], isr)


def changes(*answers: tuple[set[int], list[PartitionView]]) -> list[Change]:
    """Return what the answers show, the first of them at 0, and each 500 us after the one before."""
    state = Membership()
    return [change for n, (brokers, views) in enumerate(answers) for change in state.answered(500 * n, brokers, views)]


def test_nothing_changes_without_a_change() -> None:
    assert changes(*[(ALL, [view(0, 1, 2, 3)])] * 4) == []


def test_a_broker_that_leaves_and_returns_is_dated_by_the_first_of_two_answers() -> None:
    found = changes((ALL, []), (ALL, []), ({1, 3}, []), ({1, 3}, []), (ALL, []), (ALL, []))
    assert found == [Change(1000, "broker_left", {"broker": 2}), Change(2000, "broker_returned", {"broker": 2})]


def test_one_answer_of_a_broker_that_knows_an_old_state_is_no_change() -> None:
    """A broker that is cut off from the controllers answers every third time with the state of before."""
    gone = ({1, 3}, [])
    found = changes((ALL, []), (ALL, []), gone, (ALL, []), gone, gone, (ALL, []), gone, gone)
    assert found == [Change(2000, "broker_left", {"broker": 2})]


def test_partitions_that_change_together_are_one_event() -> None:
    full = [view(number, 1, 2, 3) for number in range(NAMES_MAX + 5)]
    less = [view(number, 1, 3) for number in range(NAMES_MAX + 5)]
    left, joined = changes((ALL, full), (ALL, full), (ALL, less), (ALL, less), (ALL, full), (ALL, full))
    assert (left.t_us, left.event, left.fields["broker"], left.fields["n"]) == (1000, "isr_left", 2, NAMES_MAX + 5)
    assert len(left.fields["places"]) == NAMES_MAX
    assert (joined.t_us, joined.event) == (2000, "isr_joined")
