"""Which version is spoken, and what is said where there is none."""

import pytest

from aftershock.errors import UnsupportedError
from aftershock.workloads.kafka.client.requests import ApiVersionRange, group_by_topic
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.codec import Api, Versions

FETCH = ApiVersionRange(Api.FETCH, 15, 17)


@pytest.mark.parametrize(("offered", "cap", "version"), [((4, 18), None, 17), ((4, 16), None, 16), ((4, 18), 15, 15)])
def test_the_highest_that_both_have_and_the_cap_allows(offered: tuple[int, int], cap: int | None, version: int) -> None:
    """Our range, the broker's and the ablation's cap are all kept."""
    assert version == FETCH.messages(Versions({1: offered}), cap).FetchRequest.__version__


def test_an_old_broker_is_named_with_both_ranges() -> None:
    """A broker below our range is refused with a sentence that says what would do."""
    with pytest.raises(UnsupportedError, match="offers versions 4 to 12, this client needs 15 to 17"):
        FETCH.messages(Versions({1: (4, 12)}))


def test_a_missing_api_is_named() -> None:
    """An API that a broker doesn't have at all is an error of ours, not a KeyError."""
    with pytest.raises(UnsupportedError, match="FETCH"):
        FETCH.messages(Versions({}))


def test_each_topic_comes_once() -> None:
    """Whatever the order of the partitions, a topic is one entry."""
    mixed = [TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)]
    assert [("a", [0]), ("b", [0, 1])] == [(name, [tp.partition for tp in tps]) for name, tps in group_by_topic(mixed)]
