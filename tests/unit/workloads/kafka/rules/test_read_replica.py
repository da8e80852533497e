"""KIP-392, the client's half: leases, fail-back to the leader, and the effect of partition errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.read_replica import AfterError, ReadFrom, ReadReplicas
from aftershock.workloads.kafka.rules.values import Leader, PartitionMetadata, TopicPartition
from aftershock.workloads.kafka.wire.codes import INVALID_METADATA

A, B, C = (TopicPartition("orders", index) for index in range(3))
LEASE_MS = 300_000
LEADER, FOLLOWER, OTHER, STRANGER = 1, 2, 3, 9
NODES = {LEADER, FOLLOWER, OTHER, STRANGER}
PARTITION = PartitionMetadata(0, Leader(LEADER, 5), replicas=(LEADER, FOLLOWER, OTHER))


def where(replicas: ReadReplicas, now_ms: float = 0, partition: PartitionMetadata = PARTITION) -> int:
    return replicas.node_for(A, partition, NODES, now_ms).node_id


@pytest.fixture
def leased() -> ReadReplicas:
    """Partition A has a lease on the follower until 300 s."""
    replicas = ReadReplicas(LEASE_MS)
    replicas.grant(A, FOLLOWER, 0)
    return replicas


def test_without_a_lease_the_leader_is_read() -> None:
    """The current leader."""
    assert ReadFrom(LEADER) == ReadReplicas(LEASE_MS).node_for(A, PARTITION, NODES, 0)
    moved = PARTITION._replace(leader=Leader(OTHER, 6))
    assert ReadFrom(OTHER) == ReadReplicas(LEASE_MS).node_for(A, moved, NODES, 0)


def test_a_named_replica_is_read(leased: ReadReplicas) -> None:
    """The lease is this partition's only."""
    assert FOLLOWER == where(leased)
    assert LEADER == leased.node_for(B, PARTITION, NODES, 0).node_id
    assert {"replica_switched": 1} == leased.counts


@pytest.mark.parametrize(("now_ms", "node_id", "expired"), [(LEASE_MS, FOLLOWER, 0), (LEASE_MS + 1, LEADER, 1)])
def test_a_lease_expires_after_metadata_max_age(
    leased: ReadReplicas, now_ms: float, node_id: int, expired: int
) -> None:
    """Not at that time but after it; the expiry is counted once."""
    assert [node_id, node_id] == [where(leased, now_ms), where(leased, now_ms)]
    assert {"replica_switched": 1} | ({"lease_expired": 1} if expired else {}) == leased.counts


def test_the_same_replica_again_does_not_extend_the_lease(leased: ReadReplicas) -> None:
    """Else a consumer could stay with a lagging replica for ever; after the lease it counts as a new one."""
    assert not leased.grant(A, FOLLOWER, LEASE_MS - 1)
    assert LEADER == where(leased, LEASE_MS + 1)
    assert leased.grant(A, FOLLOWER, LEASE_MS + 1)
    assert FOLLOWER == where(leased, 2 * LEASE_MS)
    assert {"replica_switched": 2, "lease_expired": 1} == leased.counts


def test_another_replica_gets_its_own_lease(leased: ReadReplicas) -> None:
    """The leader names another replica: the whole lease starts now."""
    assert leased.grant(A, OTHER, 200_000)
    assert [OTHER, LEADER] == [where(leased, 500_000), where(leased, 500_001)]


GONE = {
    "not listed in metadata": (PARTITION, NODES - {FOLLOWER}),
    "offline": (PARTITION._replace(offline=(FOLLOWER,)), NODES),
    "no longer a replica": (PARTITION._replace(replicas=(LEADER, OTHER)), NODES),
}


@pytest.mark.parametrize(("partition", "nodes"), GONE.values(), ids=GONE)
def test_a_missing_replica_fails_back(leased: ReadReplicas, partition: PartitionMetadata, nodes: set[int]) -> None:
    """To the leader, with a metadata refresh; if the replica returns, the leader has to name it again."""
    assert ReadFrom(LEADER, refresh_metadata=True) == leased.node_for(A, partition, nodes, 0)
    assert ReadFrom(LEADER) == leased.node_for(A, PARTITION, NODES, 0)
    assert {"replica_switched": 1, "replica_failed_back": 1} == leased.counts


def test_an_expired_lease_on_a_replica_that_is_gone_has_expired(leased: ReadReplicas) -> None:
    """Expiry is checked first: no refresh, and no fail-back is counted."""
    assert ReadFrom(LEADER) == leased.node_for(A, PARTITION, {LEADER}, LEASE_MS + 1)
    assert {"replica_switched": 1, "lease_expired": 1} == leased.counts


def test_a_moved_leader_ends_the_lease(leased: ReadReplicas) -> None:
    """``clear`` returns the replica for the event; the second call returns none."""
    assert [FOLLOWER, None] == [leased.clear(A), leased.clear(A)]
    assert LEADER == where(leased)
    assert {"replica_switched": 1, "replica_failed_back": 1} == leased.counts


def test_a_revoked_partition_loses_its_lease() -> None:
    """This is no fail-back; if the partition is assigned again, the leader is read first, and may name another
    replica.
    """
    replicas = ReadReplicas(LEASE_MS)
    for tp in (A, B, C):
        replicas.grant(tp, FOLLOWER, 0)
    replicas.forget((A, C, TopicPartition("payments", 0)))
    assert [None, FOLLOWER, None] == [replicas.replica(tp) for tp in (A, B, C)]
    assert {"replica_switched": 3} == replicas.counts
    assert replicas.grant(A, FOLLOWER, 0)


# ---- errors: (error, leased, current, resets) → what to do


def replicas_with(lease: bool) -> ReadReplicas:
    replicas = ReadReplicas(LEASE_MS)
    if lease:
        replicas.grant(A, FOLLOWER, 0)
    return replicas


BACK = [3, 6, 9, 56, 74, 78, 100, 103]
ERRORS = [
    *((error, leased, True, True, AfterError.REFRESH) for error in BACK for leased in (True, False)),
    (75, True, True, True, AfterError.FETCH_AGAIN),
    (75, False, True, True, AfterError.FETCH_AGAIN),
    (-1, True, True, True, AfterError.FETCH_AGAIN),
    (2, True, True, True, AfterError.FATAL),
    (29, False, True, True, AfterError.FATAL),
    (42, False, True, True, AfterError.FATAL),
]
#: the KIP's cases 2 to 4 reach the client as one error: what counts is who sent it, and whether it still matters
OUT_OF_RANGE = [
    ("from a replica", True, True, True, AfterError.ASK_LEADER),
    ("from a replica, no policy", True, True, False, AfterError.ASK_LEADER),
    ("from a replica, for an old position", True, False, True, AfterError.ASK_LEADER),
    ("from the leader", False, True, True, AfterError.RESET),
    ("from the leader, no policy", False, True, False, AfterError.OUT_OF_RANGE),
    ("from the leader, for an old position", False, False, True, AfterError.IGNORE),
    ("from the leader, for an old position, no policy", False, False, False, AfterError.IGNORE),
]


@pytest.mark.parametrize(("error", "leased", "current", "resets", "action"), ERRORS)
def test_reaction_to_each_error(error: int, action: AfterError, *, leased: bool, current: bool, resets: bool) -> None:
    """Every code that Kafka's consumer distinguishes, with and without a lease."""
    assert action == replicas_with(leased).on_error(A, error, current=current, resets=resets)


@pytest.mark.parametrize(
    ("leased", "current", "resets", "action"), [row[1:] for row in OUT_OF_RANGE], ids=[row[0] for row in OUT_OF_RANGE]
)
def test_out_of_range(action: AfterError, *, leased: bool, current: bool, resets: bool) -> None:
    """A replica's error is never final: the leader is read. The leader's is, for the current position."""
    assert action == replicas_with(leased).on_error(A, 1, current=current, resets=resets)


@pytest.mark.parametrize("error", [1, -1, 2, 75, *BACK])
def test_an_error_ends_the_lease_or_leaves_it(leased: ReadReplicas, error: int) -> None:
    """Out of range and the fail-back list end it; UNKNOWN_LEADER_EPOCH fetches there again: Kafka's hot loop."""
    leased.on_error(A, error, current=True, resets=True)
    ends = error in {1, *BACK}
    assert (LEADER if ends else FOLLOWER) == where(leased)
    assert int(ends) == leased.counts["replica_failed_back"]


def test_out_of_range_twice_resets_the_position(leased: ReadReplicas) -> None:
    """First from the replica, then from the leader at the same offset."""
    actions = [leased.on_error(A, 1, current=True, resets=True) for _ in range(2)]
    assert [AfterError.ASK_LEADER, AfterError.RESET] == actions


def test_fail_back_errors_are_invalid_metadata_errors() -> None:
    """All but OFFSET_NOT_AVAILABLE."""
    assert {78} == set(BACK) - INVALID_METADATA


def test_switched_off_the_leader_is_always_read() -> None:
    """A named replica is ignored; no counter changes, and errors have the same effect as at the leader."""
    replicas = ReadReplicas(LEASE_MS, enabled=False)
    assert not replicas.grant(A, FOLLOWER, 0)
    assert LEADER == where(replicas)
    assert AfterError.RESET == replicas.on_error(A, 1, current=True, resets=True)
    assert {} == replicas.counts


# ---- against an independent model

steps = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from([FOLLOWER, OTHER])),
    st.tuples(st.just("wait"), st.sampled_from([1, LEASE_MS // 2 + 1, LEASE_MS])),
    st.tuples(st.just("error"), st.sampled_from([1, 6, 75, 78])),
    st.tuples(st.just("offline"), st.sampled_from([(), (FOLLOWER,), (OTHER,)])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=10, max_size=40))
def test_leases_equal_a_replay_of_the_history(history: list[tuple[str, object]]) -> None:
    """The replica is that of the latest grant that no later event has ended."""
    replicas, now_ms, partition = ReadReplicas(LEASE_MS), 0.0, PARTITION
    node: int | None = None
    since_ms = 0.0
    for kind, what in history:
        if kind == "grant" and isinstance(what, int):
            replicas.grant(A, what, now_ms)
            since_ms = since_ms if node == what else now_ms
            node = what
        elif kind == "wait" and isinstance(what, int):
            now_ms += what
        elif kind == "error" and isinstance(what, int):
            replicas.on_error(A, what, current=True, resets=True)
            node = node if what == 75 else None
        elif isinstance(what, tuple):
            partition = PARTITION._replace(offline=what)
        if node in partition.offline or now_ms - since_ms > LEASE_MS:
            node = None
        assert (LEADER if node is None else node) == where(replicas, now_ms, partition)
