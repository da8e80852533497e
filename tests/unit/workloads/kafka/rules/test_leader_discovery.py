"""KIP-951, row by row; test_leader_discovery_model.py compares random histories with a model."""

import pytest

from aftershock.tests.unit.workloads.kafka.rules.known_cluster import (
    OTHER_ID,
    T0,
    T1,
    T2,
    answer,
    backoff,
    knowing,
    learn,
    node,
)
from aftershock.workloads.kafka.rules.leader_discovery import (
    Attempts,
    LeaderDiscovery,
    LeaderDiscoverySwitches,
    Refusal,
)
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition

NOT_LEADER, FENCED, NETWORK = 6, 74, 13


def discovery(metadata: Metadata, **off: bool) -> LeaderDiscovery:
    return LeaderDiscovery(metadata, LeaderDiscoverySwitches(**off), backoff(11))


# -- acceptance


@pytest.mark.parametrize("error", [NOT_LEADER, FENCED])
@pytest.mark.parametrize(
    ("tp", "hint", "verdict"),
    [
        pytest.param(T0, Leader(2, 4), Refusal.NOT_NEWER, id="a: older epoch"),
        pytest.param(T0, Leader(2, 5), Refusal.NOT_NEWER, id="a: the epoch that is known"),
        pytest.param(T0, Leader(8, 5), Refusal.NOT_NEWER, id="a before b"),
        pytest.param(T2, Leader(2, 3), Refusal.NOT_NEWER, id="a before c: its epoch was seen, its metadata is gone"),
        pytest.param(T0, Leader(8, 6), Refusal.UNKNOWN_LEADER, id="b: neither known nor among the endpoints"),
        pytest.param(T2, Leader(8, 4), Refusal.UNKNOWN_LEADER, id="b before c"),
        pytest.param(T2, Leader(2, 4), Refusal.UNKNOWN_PARTITION, id="c: not cached, epoch seen"),
        pytest.param(TopicPartition("x", 0), Leader(2, 4), Refusal.UNKNOWN_PARTITION, id="c: never heard of"),
        pytest.param(T0, Leader(2, 6), None, id="newer, on a known node"),
        pytest.param(T0, Leader(7, 6), None, id="newer, on a node of the endpoints"),
        pytest.param(T1, Leader(2, 0), None, id="any epoch where none is known"),
    ],
)
def test_acceptance_of_hints(error: int, tp: TopicPartition, hint: Leader, verdict: Refusal | None) -> None:
    """Rule 2, row by row: node 1 leads t/0 since epoch 5, and t/1 without epoch; t/2 had epoch 3 and is gone."""
    metadata = knowing({T0: Leader(1, 5), T1: Leader(1, UNKNOWN), T2: Leader(1, 3)})
    learn(metadata, answer({T0: Leader(1, 5), T1: Leader(1, UNKNOWN)}))
    rule, before = discovery(metadata), metadata.leader(tp)
    assert {tp: verdict} == rule.apply_hints({tp: (error, hint)}, [node(7)])
    assert (hint if verdict is None else before) == metadata.leader(tp)
    counter = verdict or "hints_accepted"
    assert (1, 1, int(verdict is None)) == tuple(
        rule.counts[name] for name in ("hints_offered", counter, "endpoints_merged")
    )


@pytest.mark.parametrize("error", [3, 5, 9, NETWORK, 56, 75, 100, 103])
def test_hints_beside_other_errors_are_ignored(error: int) -> None:
    """A leader beside any error but 6 and 74 is ignored, as are the endpoints."""
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    assert {} == rule.apply_hints({T0: (error, Leader(2, 6))}, [node(7)])
    assert (0, Leader(1, 5), 3) == (rule.counts["hints_offered"], metadata.leader(T0), len(metadata.nodes))


@pytest.mark.parametrize("hint", [Leader(), Leader(2, UNKNOWN), Leader(UNKNOWN, 6)])
def test_a_hint_needs_leader_and_epoch(hint: Leader) -> None:
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    assert {} == rule.apply_hints({T0: (NOT_LEADER, hint)}, [node(7)])
    assert Leader(1, 5) == metadata.leader(T0)


def test_a_newer_epoch_seen_elsewhere_refuses_a_hint() -> None:
    """The last seen epoch decides, not the cached leader's: a hint between the two is stale."""
    metadata = knowing({T0: Leader(1, 5)})
    metadata.update_epoch(T0, 7)
    verdicts = discovery(metadata).apply_hints({T0: (NOT_LEADER, Leader(2, 6))}, [])
    assert {T0: Refusal.NOT_NEWER} == verdicts


# -- endpoints


def test_one_accepted_hint_merges_every_endpoint() -> None:
    """Endpoints replace the known addresses of nodes, those of refused partitions too; other nodes stay."""
    metadata = knowing({T0: Leader(1, 5), T1: Leader(1, 5)})
    rule = discovery(metadata)
    errors = {T0: (NOT_LEADER, Leader(7, 6)), T1: (NOT_LEADER, Leader(8, 5))}
    assert {T0: None, T1: Refusal.NOT_NEWER} == rule.apply_hints(errors, [node(7), node(8), node(2, port=19092)])
    known = {0: node(0), 1: node(1), 2: node(2, port=19092), 7: node(7), 8: node(8)}
    assert (known, 3) == (metadata.nodes, rule.counts["endpoints_merged"])


def test_refused_hints_merge_no_endpoint() -> None:
    """New nodes and moved ones alike."""
    metadata = knowing({T0: Leader(1, 5)})
    rule, version = discovery(metadata), metadata.version
    rule.apply_hints({T0: (NOT_LEADER, Leader(7, 5))}, [node(7), node(2, port=19092)])
    assert {0: node(0), 1: node(1), 2: node(2)} == metadata.nodes
    assert (version, 0) == (metadata.version, rule.counts["endpoints_merged"])


def test_an_endpoint_brings_back_a_leader_whose_node_was_gone() -> None:
    """The KIP's restart: the last metadata is from the time when the broker was down; the hint has its address."""
    metadata = knowing({T0: Leader(1, 5)}, nodes=(0, 1))
    discovery(metadata).apply_hints({T0: (NOT_LEADER, Leader(2, 6))}, [node(2, port=19092)])
    assert (Leader(2, 6), node(2, port=19092)) == (metadata.leader(T0), metadata.nodes[2])


# -- the refresh


@pytest.mark.parametrize(
    ("error", "hint", "asks"),
    [
        pytest.param(NOT_LEADER, Leader(2, 6), True, id="accepted"),
        pytest.param(NOT_LEADER, Leader(2, 5), True, id="refused"),
        pytest.param(NOT_LEADER, Leader(), True, id="no hint"),
        pytest.param(NETWORK, Leader(), True, id="disconnect"),
        pytest.param(3, Leader(), True, id="unknown topic"),
        pytest.param(19, Leader(), False, id="not enough replicas"),
        pytest.param(7, Leader(), False, id="timed out: who drops the connection asks"),
        pytest.param(75, Leader(), False, id="unknown leader epoch"),
    ],
)
def test_invalid_metadata_errors_request_a_refresh(error: int, hint: Leader, asks: bool) -> None:
    """With or without a hint, as soon as the back-off is over; other errors don't."""
    metadata = knowing({T0: Leader(1, 5)})
    discovery(metadata).apply_hints({T0: (error, hint)}, [])
    assert asks == (metadata.wait_ms(120) == 0)


def test_a_hint_keeps_the_back_off_of_equivalent_answers() -> None:
    """``requestUpdate(false)``: neither the error nor the accepted hint shortens the wait for the next refresh."""
    metadata = knowing({T0: Leader(1, 5)})
    for _ in range(4):
        learn(metadata, answer({T0: Leader(1, 5)}))
    discovery(metadata).apply_hints({T0: (NOT_LEADER, Leader(2, 6))}, [])
    assert 640 <= metadata.wait_ms(0) <= 960


@pytest.mark.parametrize(
    ("error", "hint", "routed", "critical"),
    [
        pytest.param(NOT_LEADER, Leader(2, 6), {}, False, id="accepted: the batch goes on without metadata"),
        pytest.param(NOT_LEADER, Leader(2, 6), {T0: 5}, False, id="accepted, with its route"),
        pytest.param(NOT_LEADER, Leader(), {}, True, id="no hint"),
        pytest.param(NOT_LEADER, Leader(8, 6), {}, True, id="refused: nobody to go to"),
        pytest.param(NOT_LEADER, Leader(2, 4), {T0: 5}, True, id="the leader known says it isn't one (yet)"),
        pytest.param(NOT_LEADER, Leader(), {T0: 4}, False, id="late: a newer leader is known meanwhile"),
        pytest.param(NOT_LEADER, Leader(2, 5), {T0: 4}, False, id="late, with a hint"),
        pytest.param(NETWORK, Leader(), {T0: 5}, True, id="disconnect"),
        pytest.param(19, Leader(), {T0: 5}, False, id="the leader is right, only its ISR is small"),
    ],
)
def test_a_request_is_critical_without_a_newer_leader(
    error: int, hint: Leader, routed: dict[TopicPartition, int], critical: bool
) -> None:
    """Records wait as long as the client knows no newer leader than the one that refused."""
    metadata = knowing({T0: Leader(1, 5)})
    discovery(metadata).apply_hints({T0: (error, hint)}, [], routed)
    assert critical == metadata.request_sent()


# -- retries of a producer


def retried(rule: LeaderDiscovery, tries: int, tp: TopicPartition = T0) -> Attempts:
    """Return a batch that was routed by the current epoch and failed ``tries`` times, the last time at 1000 ms."""
    attempts = Attempts()
    rule.wait_ms(attempts, tp, 0)
    for _ in range(tries):
        attempts.on_failure(1000)
    return attempts


def moved(metadata: Metadata, epoch: int, by: str) -> None:
    """Move the leader, by a hint or by a Metadata response."""
    if by == "hint":
        discovery(metadata).apply_hints({T0: (NOT_LEADER, Leader(2, epoch))}, [])
    else:
        learn(metadata, answer({T0: Leader(2, epoch)}))


def test_a_first_try_does_not_wait() -> None:
    """With and without a known leader."""
    rule = discovery(knowing({T0: Leader(1, 5)}))
    assert (0, 0) == (rule.wait_ms(Attempts(), T0, 0), rule.wait_ms(Attempts(), T1, 0))


@pytest.mark.parametrize("by", ["hint", "answer"])
def test_one_immediate_retry_per_newer_epoch(by: str) -> None:
    """Whatever the source of the epoch: the first retry after it doesn't wait, the second does, the next epoch
    allows another.
    """
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    batch = retried(rule, 1)
    moved(metadata, 6, by)
    assert (0, True) == (rule.wait_ms(batch, T0, 1000), rule.drained(batch))
    batch.on_failure(1000)
    assert 160 <= rule.wait_ms(batch, T0, 1000) <= 240
    assert not rule.drained(batch)
    batch.on_failure(1000)
    moved(metadata, 7, by)
    assert (0, True) == (rule.wait_ms(batch, T0, 1000), rule.drained(batch))
    assert (2, 1) == (rule.counts["retries_immediate"], rule.counts["retries_backed_off"])


def test_an_epoch_learned_while_backing_off_ends_the_wait() -> None:
    """The batch failed and waits, and then the client learns a newer leader: the batch is sent at once."""
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    batch = retried(rule, 1)
    assert rule.wait_ms(batch, T0, 1000) >= 80
    moved(metadata, 6, "answer")
    assert 0 == rule.wait_ms(batch, T0, 1010)


def test_an_epoch_learned_before_the_first_try_frees_no_retry() -> None:
    """The batch hadn't failed when the leader moved: its first retry is on the same epoch."""
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    batch = retried(rule, 0)
    moved(metadata, 6, "answer")
    rule.examine(batch, T0)
    batch.on_failure(1000)
    assert rule.wait_ms(batch, T0, 1000) >= 80


def test_a_refused_hint_frees_no_retry() -> None:
    """The new leader hasn't applied the change and names the old one: ordinary back-off (the race of the KIP)."""
    metadata = knowing({T0: Leader(2, 6)})
    rule = discovery(metadata)
    batch = retried(rule, 1)
    rule.apply_hints({T0: (NOT_LEADER, Leader(1, 5))}, [])
    assert rule.wait_ms(batch, T0, 1000) >= 80


def test_a_leader_moving_on_the_same_epoch_frees_no_retry() -> None:
    """The epoch decides, not the node."""
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    batch = retried(rule, 1)
    learn(metadata, answer({T0: Leader(2, 5)}))
    assert rule.wait_ms(batch, T0, 1000) >= 80


def test_epochs_that_start_again_free_no_retry() -> None:
    """A recreated topic has lower epochs; a batch remembers its highest epoch (as shipped)."""
    metadata = knowing({T0: Leader(1, 5)})
    rule = discovery(metadata)
    batch = retried(rule, 1)
    learn(metadata, answer({T0: Leader(2, 1)}, topic_id=OTHER_ID))
    assert rule.wait_ms(batch, T0, 1000) >= 80


@pytest.mark.parametrize(
    ("tries", "lowest", "highest"), [(1, 80, 120), (2, 160, 240), (3, 320, 480), (4, 640, 960), (5, 800, 1000)]
)
def test_back_off_doubles_from_the_last_failure(tries: int, lowest: float, highest: float) -> None:
    """100 ms * 2^n within 20 %, at most 1 s, counted from the last failure, drawn at each check."""
    rule = discovery(knowing({T0: Leader(1, 5)}))
    batch = retried(rule, tries)
    looks = [rule.wait_ms(batch, T0, 1000) for _ in range(30)]
    assert all(lowest <= look <= highest for look in looks)
    assert len(set(looks)) > 1
    assert rule.wait_ms(batch, T0, 1000 + lowest / 2) <= highest - lowest / 2
    assert 0 == rule.wait_ms(batch, T0, 1000 + highest)


def test_a_first_try_is_no_retry() -> None:
    """A first attempt is counted as neither kind of retry."""
    rule = discovery(knowing({T0: Leader(1, 5)}))
    assert not rule.drained(retried(rule, 0))
    assert 0 == rule.counts.total()


# -- versions


@pytest.mark.parametrize(("api", "capped"), [(0, 9), (1, 15), (3, None), (18, None)])
def test_version_caps(api: int, capped: int | None) -> None:
    """Off, Produce and Fetch stay below the versions with hints and no other API is capped; on, no API is."""
    metadata = knowing({})
    assert capped == discovery(metadata, highest_version=False).version_cap(api)
    assert discovery(metadata).version_cap(api) is None
