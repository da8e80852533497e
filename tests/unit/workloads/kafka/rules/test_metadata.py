"""The rules of metadata.py; test_leader_discovery_model.py compares its epochs with a model."""

from math import inf
from uuid import UUID

import pytest

from aftershock.tests.unit.workloads.kafka.rules.known_cluster import (
    ID,
    OTHER_ID,
    T0,
    T1,
    answer,
    backoff,
    knowing,
    learn,
    node,
)
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, MetadataResponse, PartitionMetadata, TopicMetadata


def test_initial_metadata_is_empty() -> None:
    """Every query has a defined result before the first response, and a request is due at once."""
    metadata = Metadata(backoff=backoff())
    metadata.want(["t"])
    assert Leader(UNKNOWN, UNKNOWN) == metadata.leader(T0)
    assert (None, None, None) == (metadata.partition(T0), metadata.topic("t"), metadata.topic_id("t"))
    assert (0, 0) == (metadata.wait_ms(0), metadata.version)


def test_a_response_is_applied() -> None:
    """Leaders, nodes, ids and partitions are those of the response."""
    metadata = knowing({T0: Leader(1, 5), T1: Leader(2, 0)})
    assert (Leader(1, 5), Leader(2, 0)) == (metadata.leader(T0), metadata.leader(T1))
    assert {0: node(0), 1: node(1), 2: node(2)} == metadata.nodes
    assert (ID, "t", None) == (metadata.topic_id("t"), metadata.name_of(ID), metadata.name_of(OTHER_ID))
    topic = metadata.topic("t")
    assert topic is not None
    assert [metadata.partition(T0), metadata.partition(T1)] == list(topic.partitions)


@pytest.mark.parametrize(
    ("told", "nodes", "expected"),
    [
        pytest.param(Leader(2, 4), (0, 1, 2), Leader(1, 5), id="an older epoch is refused, the old leader stays"),
        pytest.param(Leader(2, 5), (0, 1, 2), Leader(2, 5), id="an equal epoch is taken"),
        pytest.param(Leader(2, 6), (0, 1, 2), Leader(2, 6), id="a newer epoch is taken"),
        pytest.param(Leader(UNKNOWN, 6), (0, 1, 2), Leader(UNKNOWN, 6), id="a newer epoch without leader is taken"),
        pytest.param(Leader(2, UNKNOWN), (0, 1, 2), Leader(2, UNKNOWN), id="without epoch it is taken and forgotten"),
        pytest.param(Leader(2, 6), (0, 1), Leader(UNKNOWN, 6), id="a leader that is no known node can't be used"),
        pytest.param(Leader(2, 4), (0, 2), Leader(UNKNOWN, 5), id="refused, but the kept leader's node is gone"),
    ],
)
def test_stale_responses_are_refused(told: Leader, nodes: tuple[int, ...], expected: Leader) -> None:
    """Row by row: the effect of the next response on a client that knows leader 1 since epoch 5."""
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, answer({T0: told}, nodes=nodes))
    assert expected == metadata.leader(T0)
    assert int(told.epoch == 4) == metadata.counts["metadata_stale_refused"]


def test_an_equal_epoch_updates_replicas() -> None:
    """Replicas change without the epoch: replica and offline lists of an equal epoch are those of the response."""
    metadata = knowing({T0: Leader(1, 5)})
    response = answer({T0: Leader(1, 5)})
    topic = response.topics[0]
    shrunk = topic.partitions[0]._replace(replicas=(0, 1), offline=())
    learn(metadata, response._replace(topics=(topic._replace(partitions=(shrunk,)),)))
    assert shrunk == metadata.partition(T0)


def test_after_a_response_without_epoch_any_epoch_is_accepted() -> None:
    """The known epoch is dropped with it: a far lower epoch is accepted."""
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, answer({T0: Leader(1, UNKNOWN)}))
    learn(metadata, answer({T0: Leader(2, 1)}))
    assert Leader(2, 1) == metadata.leader(T0)


def test_another_topic_id_starts_the_epochs_again() -> None:
    """A recreated topic has epochs from 0: they are accepted, and counted."""
    metadata = knowing({T0: Leader(1, 5), T1: Leader(1, 5)})
    learn(metadata, answer({T0: Leader(2, 0), T1: Leader(2, 9)}, topic_id=OTHER_ID))
    assert (Leader(2, 0), Leader(2, 9)) == (metadata.leader(T0), metadata.leader(T1))
    assert (OTHER_ID, None) == (metadata.topic_id("t"), metadata.name_of(ID))
    assert 2 == metadata.counts["metadata_topic_id_changes"]
    assert 0 == metadata.counts["metadata_stale_refused"]


def test_an_answer_without_topic_id_keeps_the_epochs() -> None:
    """Without an id the topic may be the same: an older epoch is still stale."""
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, answer({T0: Leader(2, 0)}, topic_id=None))
    assert Leader(1, 5) == metadata.leader(T0)


def test_a_topic_that_returns_may_have_lower_epochs() -> None:
    """While a topic is missing its id is unknown: afterwards a lower epoch is accepted, even of the same topic (as
    shipped).
    """
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, answer({}, topic_id=None, error=3))
    learn(metadata, answer({T0: Leader(2, 1)}))
    assert Leader(2, 1) == metadata.leader(T0)


def test_a_topic_with_an_error_loses_its_partitions_and_keeps_its_epochs() -> None:
    """No partition has a leader, but the last seen epoch still refuses older ones, hints included."""
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, answer({}, error=29))
    topic = metadata.topic("t")
    assert topic is not None
    assert (29, ()) == (topic.error, topic.partitions)
    assert (None, Leader(UNKNOWN, 5)) == (metadata.partition(T0), metadata.leader(T0))
    learn(metadata, answer({T0: Leader(2, 4)}))
    assert (None, Leader(UNKNOWN, 5)) == (metadata.partition(T0), metadata.leader(T0))


def test_a_partition_error_hides_no_epoch() -> None:
    """LEADER_NOT_AVAILABLE beside an epoch: the epoch is learned, without leader."""
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, answer({T0: Leader(UNKNOWN, 6)}, partition_error=5))
    assert Leader(UNKNOWN, 6) == metadata.leader(T0)


@pytest.mark.parametrize(
    ("error", "partition_error", "again"),
    [(3, 0, True), (100, 0, True), (0, 5, True), (0, 9, True), (29, 0, False), (17, 0, False), (0, 0, False)],
)
def test_invalid_metadata_errors_request_an_update(error: int, partition_error: int, again: bool) -> None:
    """After the back-off; other errors wait until the response expires."""
    metadata = knowing({T0: Leader(1, 5)}, error=error, partition_error=partition_error)
    assert again == (metadata.wait_ms(120) == 0)


def test_an_answer_replaces_nodes_and_topics() -> None:
    """Nodes and topics that a response leaves out are removed."""
    metadata = knowing({T0: Leader(1, 5)})
    learn(metadata, MetadataResponse((node(0),), ()))
    assert ({0: node(0)}, None, Leader(UNKNOWN, 5)) == (metadata.nodes, metadata.topic("t"), metadata.leader(T0))


def test_unwanted_topics_are_left_out() -> None:
    """A response with additional topics doesn't fill the cache."""
    metadata = Metadata(backoff=backoff())
    learn(metadata, answer({T0: Leader(1, 5)}))
    assert (None, Leader()) == (metadata.topic("t"), metadata.leader(T0))


def test_wanted_topics_keep_their_order_and_are_asked_for_once() -> None:
    """A known topic needs no request; a new one is requested at once in spite of the back-off."""
    metadata = knowing({T0: Leader(1, 5)})
    metadata.want(["t"])
    assert 300_000 == metadata.wait_ms(0)
    metadata.want(["z", "t", "a", "z"])
    assert (("t", "z", "a"), 0) == (metadata.wanted, metadata.wait_ms(0))


def test_a_topic_wanted_while_in_flight_is_asked_for_next() -> None:
    """The response in flight doesn't name it, so the request stays open."""
    metadata = Metadata(backoff=backoff())
    metadata.want(["t"])
    metadata.request_sent()
    metadata.want(["u"])
    assert inf == metadata.wait_ms(0)
    metadata.update(answer({T0: Leader(1, 5)}), 0)
    assert 0 == metadata.wait_ms(120)


def named(*topics: tuple[str, UUID, bool]) -> MetadataResponse:
    """Return a response with topics of one partition each: name, id, whether it is internal."""
    part = PartitionMetadata(0, Leader(1, 5))
    return MetadataResponse(
        (node(1),), tuple(TopicMetadata(name, topic_id, (part,), 0, internal) for name, topic_id, internal in topics)
    )


def test_a_consumer_with_a_pattern_wants_all_topics_that_match() -> None:
    """Internal topics never match (``exclude.internal.topics``), topics that are wanted by name always do."""
    metadata = Metadata(backoff=backoff())
    metadata.want(["u"])
    metadata.want_all(lambda name: name.startswith("t"))
    assert None is metadata.request_topics
    learn(metadata, named(("t1", ID, False), ("u", OTHER_ID, False), ("v", ID, False), ("t-internal", ID, True)))
    assert (("t1", "u"), True) == (metadata.topic_names, metadata.is_complete)
    metadata.want(["v"])
    assert not metadata.is_complete
    learn(metadata, named(("v", ID, False)))
    assert ("v",) == metadata.topic_names


def test_a_request_has_ids_or_names() -> None:
    """A broker ignores names beside ids, so a consumer whose topics come by id asks for nothing else."""
    metadata = knowing({T0: Leader(1, 5)})
    metadata.want_ids(frozenset({OTHER_ID}))
    assert ((OTHER_ID,), 0) == (metadata.request_topics, metadata.wait_ms(0))
    learn(metadata, named(("t2", OTHER_ID, False), ("t3", UUID(int=3), False)))
    assert ("t2", ("t2",), True) == (metadata.name_of(OTHER_ID), metadata.topic_names, metadata.is_complete)
    metadata.want_ids(frozenset({OTHER_ID}))
    assert metadata.wait_ms(0) > 0


def test_metadata_is_complete_when_all_wanted_topics_were_requested() -> None:
    """Also if the response in flight began before a topic was wanted."""
    metadata = knowing({T0: Leader(1, 5)})
    assert metadata.is_complete
    metadata.request_sent()
    metadata.want(["u"])
    metadata.update(answer({T0: Leader(1, 5)}), 0)
    assert not metadata.is_complete
    learn(metadata, answer({T0: Leader(1, 5)}))
    assert metadata.is_complete


@pytest.mark.parametrize(
    ("told", "equivalent"),
    [
        pytest.param(Leader(1, 5), True, id="the same again"),
        pytest.param(Leader(2, 4), True, id="stale"),
        pytest.param(Leader(2, 5), True, id="another leader of the same epoch"),
        pytest.param(Leader(1, 6), False, id="a newer epoch"),
        pytest.param(Leader(1, UNKNOWN), False, id="no epoch"),
    ],
)
def test_equivalent_answers_back_off(told: Leader, equivalent: bool) -> None:
    """Responses without a new epoch count as equivalent, and consecutive ones double the wait; any other one resets
    it.
    """
    metadata = knowing({T0: Leader(1, 5)})
    for _ in range(2):
        learn(metadata, answer({T0: Leader(1, 5)}))
    learn(metadata, answer({T0: told}))
    metadata.request_update()
    assert (320 if equivalent else 80) <= metadata.wait_ms(0) <= (480 if equivalent else 120)
    assert 2 + equivalent == metadata.counts["metadata_equivalent"]


def test_the_version_rises_with_every_update() -> None:
    """Each response and each accepted hint, and nothing else."""
    metadata = knowing({T0: Leader(1, 5)})
    metadata.request_update()
    metadata.request_sent()
    metadata.on_failure(0)
    assert 1 == metadata.version
    metadata.move_leaders({T0: Leader(2, 6)}, [])
    learn(metadata, answer({T0: Leader(2, 6)}))
    assert 3 == metadata.version


def test_a_moved_leader_keeps_its_replicas() -> None:
    """Leader and epoch are replaced in partition and topic alike; replica lists and other partitions stay."""
    metadata = knowing({T0: Leader(1, 5), T1: Leader(1, 5)})
    before = metadata.partition(T0)
    metadata.move_leaders({T0: Leader(7, 6)}, [node(7)])
    after, topic = metadata.partition(T0), metadata.topic("t")
    assert before is not None
    assert topic is not None
    assert before._replace(leader=Leader(7, 6)) == after
    assert (after, metadata.partition(T1)) == topic.partitions
    assert (Leader(7, 6), Leader(1, 5)) == (metadata.leader(T0), metadata.leader(T1))


def test_a_moved_leader_refuses_a_stale_answer() -> None:
    """A broker with older metadata doesn't override a hint."""
    metadata = knowing({T0: Leader(1, 5)})
    metadata.move_leaders({T0: Leader(2, 6)}, [])
    learn(metadata, answer({T0: Leader(1, 5)}))
    assert Leader(2, 6) == metadata.leader(T0)


def test_an_epoch_seen_elsewhere_hides_an_older_leader() -> None:
    """A newer epoch in a committed offset: the cached leader isn't used, and no older response is accepted."""
    metadata = knowing({T0: Leader(1, 5)})
    assert metadata.update_epoch(T0, 7)
    assert (Leader(UNKNOWN, 7), 0) == (metadata.leader(T0), metadata.wait_ms(120))
    learn(metadata, answer({T0: Leader(2, 6)}))
    assert Leader(UNKNOWN, 7) == metadata.leader(T0)
    learn(metadata, answer({T0: Leader(2, 7)}))
    assert Leader(2, 7) == metadata.leader(T0)


@pytest.mark.parametrize(("tp", "epoch"), [(T0, 5), (T0, 4), (T1, 9)])
def test_an_old_epoch_seen_elsewhere_changes_nothing(tp: object, epoch: int) -> None:
    """Not newer, or of a partition without known epoch: no change and no request."""
    metadata = knowing({T0: Leader(1, 5)})
    assert not metadata.update_epoch(tp, epoch)  # type: ignore[arg-type]  # a TopicPartition out of a table
    assert (Leader(1, 5), Leader(), 300_000) == (metadata.leader(T0), metadata.leader(T1), metadata.wait_ms(0))


def critical(metadata: Metadata) -> int:
    return metadata.counts["metadata_requests_critical"]


def test_a_request_is_critical_if_records_wait() -> None:
    """Once for each request while records wait, for any number of partitions; again after a failure, not after the
    response.
    """
    metadata = knowing({T0: Leader(1, 5), T1: Leader(1, 5)})
    metadata.request_update()
    assert (False, 0) == (metadata.request_sent(), critical(metadata))
    metadata.update(answer({T0: Leader(1, 5), T1: Leader(1, 5)}), 0)
    metadata.request_update(held_up=[T0, T1])
    assert (True, 1) == (metadata.request_sent(), critical(metadata))
    metadata.on_failure(0)
    assert (True, 2) == (metadata.request_sent(), critical(metadata))
    metadata.update(answer({T0: Leader(2, 6), T1: Leader(2, 6)}), 0)
    metadata.request_update()
    assert (False, 2) == (metadata.request_sent(), critical(metadata))
    assert 5 == metadata.counts["metadata_requests"]


def test_a_request_is_not_critical_once_a_newer_leader_is_known() -> None:
    """A hint for one partition releases that one only; a request is critical while another partition waits."""
    metadata = knowing({T0: Leader(1, 5), T1: Leader(1, 5)})
    metadata.request_update(held_up=[T0, T1])
    metadata.move_leaders({T0: Leader(2, 6)}, [])
    assert metadata.request_sent()
    metadata.on_failure(0)
    metadata.move_leaders({T1: Leader(2, 6)}, [])
    assert not metadata.request_sent()


def test_records_of_an_unknown_partition_make_a_request_critical() -> None:
    metadata = Metadata(backoff=backoff())
    metadata.want(["t"])
    metadata.request_update(held_up=[T0])
    assert metadata.request_sent()
