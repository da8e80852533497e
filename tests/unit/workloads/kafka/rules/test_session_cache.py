"""The broker's half of KIP-227, as modelled for tests, against known behaviour of Kafka's broker."""

from collections.abc import Iterable
from uuid import UUID

import pytest

from aftershock.tests.session_cache import EVICTION_MS, ID_RANGE, SHARDS, Answer, Key, Read, SessionCache
from aftershock.workloads.kafka.rules.fetch_session import EPOCH_MAX, FetchPartition

TOPIC, OTHER = UUID(int=1), UUID(int=2)
A: Key = (TOPIC, 0)
B: Key = (TOPIC, 1)
C: Key = (TOPIC, 2)
D: Key = (TOPIC, 3)
IDLE = Read(high_watermark=5)
ONE_PER_SHARD = SHARDS


def asking(*keys: Key, offset: int = 0) -> dict[Key, FetchPartition]:
    return {key: FetchPartition(TOPIC, offset, 1_048_576) for key in keys}


def partitions(count: int) -> list[Key]:
    return [(TOPIC, index) for index in range(count)]


def opened(cache: SessionCache, keys: Iterable[Key] = (A, B, C), *, now_ms: float = 0, follower: bool = False) -> int:
    """Return the id of a new session, 0 if it was refused."""
    exchange = cache.begin(0, 0, asking(*keys), now_ms=now_ms, follower=follower)
    return exchange.answer(dict.fromkeys(exchange.wanted, IDLE), now_ms).session_id


def fetch(cache: SessionCache, session_id: int, epoch: int, **reads: Read) -> Answer:
    """Send an incremental request without changes; ``reads`` are the results of partitions A to D, idle by default."""
    exchange = cache.begin(session_id, epoch, {}, now_ms=0)
    given = dict(zip((A, B, C, D), (reads.get(name, IDLE) for name in "ABCD"), strict=True))
    return exchange.answer({key: given[key] for key in exchange.wanted}, 0)


@pytest.fixture
def cache() -> SessionCache:
    return SessionCache(7)


def test_a_full_request_opens_a_session_and_names_everything(cache: SessionCache) -> None:
    """Epoch 0: all partitions are in the response, in the order of the request; the session's next epoch is 1."""
    exchange = cache.begin(0, 0, asking(C, A, B), now_ms=0)
    answer = exchange.answer(dict.fromkeys(exchange.wanted, IDLE), 0)
    assert (0, (C, A, B)) == (answer.error, answer.partitions)
    session = cache.get(answer.session_id)
    assert session is not None
    assert (1, [C, A, B]) == (session.epoch, list(session.partitions))


@pytest.mark.parametrize(("epoch", "left"), [(0, 1), (-1, 0)])
def test_a_full_request_closes_the_session_it_names(cache: SessionCache, epoch: int, left: int) -> None:
    """From any client: there is no check of ownership. Epoch -1 opens none in its place."""
    victim = opened(cache)
    exchange = cache.begin(victim, epoch, asking(D), now_ms=0)
    answer = exchange.answer({D: IDLE}, 0)
    assert (None, left, (D,)) == (cache.get(victim), len(cache), answer.partitions)
    assert (answer.session_id != 0) == bool(left)


@pytest.mark.parametrize(
    ("stranger", "epoch", "by_id", "error"),
    [
        (False, 1, True, 0),
        (True, 1, True, 70),
        (False, 2, True, 71),
        (False, EPOCH_MAX, True, 71),
        (False, 1, False, 106),
    ],
)
def test_refused_incremental_requests(
    cache: SessionCache, *, stranger: bool, epoch: int, by_id: bool, error: int
) -> None:
    """An unknown id, a wrong epoch, and names where the session has ids; the session itself stays."""
    session_id = opened(cache)
    exchange = cache.begin(session_id + stranger, epoch, {}, now_ms=0, by_id=by_id)
    assert error == exchange.answer(dict.fromkeys(exchange.wanted, IDLE), 0).error
    assert cache.get(session_id) is not None


def test_a_repeated_request_has_a_wrong_epoch(cache: SessionCache) -> None:
    """The session stays usable."""
    session_id = opened(cache)
    assert [0, 71, 0] == [fetch(cache, session_id, epoch).error for epoch in (1, 1, 2)]


def test_the_epoch_is_checked_again_when_the_answer_is_made(cache: SessionCache) -> None:
    """A request that another one overtook while it waited for data is answered 71, throttled or not."""
    session_id = opened(cache)
    waiting = cache.begin(session_id, 1, {}, now_ms=0)
    assert 0 == fetch(cache, session_id, 2).error
    reads = dict.fromkeys(waiting.wanted, IDLE)
    assert (71, 71) == (waiting.answer(reads, 0).error, waiting.throttle().error)


def test_epochs_wrap_to_one(cache: SessionCache) -> None:
    """The broker's epoch never becomes 0 either."""
    session_id = opened(cache)
    session = cache.get(session_id)
    assert session is not None
    session.epoch = EPOCH_MAX
    assert [0, 0] == [fetch(cache, session_id, epoch).error for epoch in (EPOCH_MAX, 1)]


NEWS = {
    "nothing": (IDLE, False),
    "records": (IDLE._replace(size=100), True),
    "another high watermark": (IDLE._replace(high_watermark=6), True),
    "another log start": (IDLE._replace(log_start_offset=1), True),
    "a preferred replica": (IDLE._replace(preferred_replica=2), True),
    "an error": (IDLE._replace(error=6), True),
}


@pytest.mark.parametrize(("read", "named"), NEWS.values(), ids=NEWS)
def test_an_incremental_response_has_changes_only(cache: SessionCache, read: Read, *, named: bool) -> None:
    """A partition that is left out is unchanged."""
    assert ((B,) if named else ()) == fetch(cache, opened(cache), 1, B=read).partitions


def test_each_change_is_sent_once(cache: SessionCache) -> None:
    """A new high watermark is in one response; after an error has ended the partition is sent once more."""
    session_id, moved = opened(cache), IDLE._replace(high_watermark=9)
    told = [fetch(cache, session_id, epoch, B=read).partitions for epoch, read in enumerate([moved, moved], 1)]
    assert [(B,), ()] == told
    failed = moved._replace(error=6)
    told = [fetch(cache, session_id, epoch, B=read).partitions for epoch, read in enumerate([failed, moved, moved], 3)]
    assert [(B,), (B,), ()] == told


def test_partitions_take_turns(cache: SessionCache) -> None:
    """A partition with records is read last the next time; a change without records keeps its place."""
    session_id = opened(cache)
    fetch(cache, session_id, 1, A=IDLE._replace(size=100), B=IDLE._replace(high_watermark=6))
    assert [B, C, A] == list(cache.begin(session_id, 2, {}, now_ms=0).wanted)


def test_a_request_adds_changes_and_forgets(cache: SessionCache) -> None:
    """A changed partition keeps its place, a new one goes last; forgetting an unknown partition has no effect."""
    session_id = opened(cache)
    exchange = cache.begin(session_id, 1, asking(D, B, offset=9), [A, (OTHER, 0)], now_ms=0)
    assert [(B, 9), (C, 0), (D, 9)] == [(key, asked.fetch_offset) for key, asked in exchange.wanted.items()]


def test_a_session_without_partitions_is_closed(cache: SessionCache) -> None:
    """Forgetting the last partition is answered with id 0."""
    session_id = opened(cache)
    exchange = cache.begin(session_id, 1, {}, [A, B, C], now_ms=0)
    assert Answer(0, 0) == exchange.answer({}, 0)
    assert 0 == len(cache)


def test_a_throttled_answer_is_empty(cache: SessionCache) -> None:
    """Full: without a session. Incremental: in its session, whose epoch has risen."""
    assert Answer(0, 0) == cache.begin(0, 0, asking(A), now_ms=0).throttle()
    session_id = opened(cache)
    assert Answer(0, session_id) == cache.begin(session_id, 1, {}, now_ms=0).throttle()
    assert 0 == fetch(cache, session_id, 2).error


@pytest.mark.parametrize(("slots", "granted"), [(0, 0), (7, 0), (8, 8), (15, 8), (16, 16), (1000, 100)])
def test_slots_are_split_over_the_shards(slots: int, granted: int) -> None:
    """Each of 8 shards has an eighth of the slots, rounded down: with fewer than 8 slots no session is granted."""
    cache = SessionCache(7, slots)
    ids = [opened(cache) for _ in range(100)]
    assert granted == sum(session_id != 0 for session_id in ids)
    assert all(session_id // ID_RANGE == index % SHARDS for index, session_id in enumerate(ids) if session_id)


def test_an_idle_session_is_evicted_first() -> None:
    """After 120 s without use the least recently used session is evicted, of any size, also for a follower."""
    cache = SessionCache(7, ONE_PER_SHARD)
    first = opened(cache, partitions(50), follower=True)
    others = [opened(cache) for _ in range(SHARDS - 1)]
    assert 0 == opened(cache, partitions(1), now_ms=EVICTION_MS)
    for session_id in others:
        cache.close(session_id)
    while cache._made % SHARDS:
        opened(cache, now_ms=EVICTION_MS + 1)
    assert 0 != opened(cache, partitions(1), now_ms=EVICTION_MS + 1)
    assert (None, 1) == (cache.get(first), cache.evictions)


EVICTIONS = {
    "young, smaller": ((False, 1, False), (False, 9), False),
    "old, smaller": ((False, 1, True), (False, 9), True),
    "old, as large": ((False, 9, True), (False, 9), False),
    "old, larger": ((False, 10, True), (False, 9), False),
    "follower for young consumer": ((False, 99, False), (True, 1), True),
    "follower for young follower": ((True, 1, False), (True, 9), False),
    "follower for old, smaller follower": ((True, 1, True), (True, 9), True),
    "follower for old follower, as large": ((True, 9, True), (True, 9), False),
    "consumer for old, smaller follower": ((True, 1, True), (False, 9), False),
}


@pytest.mark.parametrize(("victim", "newcomer", "evicts"), EVICTIONS.values(), ids=EVICTIONS)
def test_eviction_order(victim: tuple[bool, int, bool], newcomer: tuple[bool, int], *, evicts: bool) -> None:
    """In a full shard of sessions in use: whether (follower, partitions, old) is evicted for (follower, partitions)."""
    cache = SessionCache(7, ONE_PER_SHARD)
    follower, size, old = victim
    sessions = [opened(cache, partitions(size), follower=follower) for _ in range(SHARDS)]
    now_ms = EVICTION_MS + 1 if old else EVICTION_MS
    for session_id in sessions:
        cache.begin(session_id, 1, {}, now_ms=now_ms)
    assert evicts == (opened(cache, partitions(newcomer[1]), now_ms=now_ms, follower=newcomer[0]) != 0)
    assert evicts == (cache.get(sessions[0]) is None)


def test_the_smallest_is_displaced_first() -> None:
    """Of the sessions that may be evicted, the one with the fewest partitions."""
    cache = SessionCache(7, 3 * SHARDS)
    sizes = (5, 2, 4)
    in_first_shard = []
    for size in sizes:
        in_first_shard.append(opened(cache, partitions(size)))
        for _ in range(SHARDS - 1):
            opened(cache, partitions(1))
    for session_id in in_first_shard:
        cache.begin(session_id, 1, {}, now_ms=EVICTION_MS + 1)
    opened(cache, partitions(3), now_ms=EVICTION_MS + 1)
    assert [True, False, True] == [cache.get(session_id) is not None for session_id in in_first_shard]
