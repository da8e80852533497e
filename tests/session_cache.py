"""A model of the broker's half of KIP-227: the sharded cache of fetch sessions, its eviction, and its responses.

1. A full request closes the session that it names, whichever client opened it. Epoch 0 then requests a new session,
   which is created with the response and may be refused; epoch -1 requests none.
2. An incremental request fails with 70 for an unknown id, with 71 for an unexpected epoch, and with 106 if it has topic
   ids where the session has names, or the reverse. Otherwise its additions, changes and removals are applied in that
   order, and the epoch rises. A session without partitions is closed (id 0). The epoch is checked again for the
   response.
3. An incremental response has a partition if it has records, an error, a preferred replica, or another high watermark
   or log start than the last one sent. An error resets the last high watermark. A partition with records moves to the
   end of the session's order, so that other partitions are served first when bytes are limited.
4. The slots are split evenly over 8 shards (no sessions at all with fewer slots than shards); new sessions are assigned
   round-robin. A full shard evicts its least recently used session if that is idle for over 120 s; else its lowest in
   the order (privileged, size, id), if that may be evicted and the new session, with id 0, does not rank lower. A
   follower is privileged. A normal new session may evict sessions that were over 120 s old at their last use; a
   follower's session may also evict every normal session.

Source: ``FetchManager``, ``FetchContext``, ``FetchSession``, ``FetchSessionCacheShard`` of Kafka 4.3.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from uuid import UUID

from aftershock.workloads.kafka.rules.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchPartition,
    next_epoch,
)

SHARDS = 8
EVICTION_MS = 120_000.0
ID_RANGE = (2**31 - 1) // SHARDS

Key = tuple[UUID | str, int]
"""A partition: topic id (Fetch 13 and later) or name, and index."""


class Read(NamedTuple):
    """The log's answer for one partition; ``size`` in bytes."""

    size: int = 0
    high_watermark: int = -1
    log_start_offset: int = 0
    error: int = 0
    preferred_replica: int = -1


class Answer(NamedTuple):
    """The session part of a response: the partitions in the response, in order."""

    error: int
    session_id: int
    partitions: tuple[Key, ...] = ()


@dataclass(slots=True)
class CachedPartition:
    """A partition of a session: the client's request, and the last values sent to the client."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def tell(self, read: Read) -> bool:
        """Return whether ``read`` belongs in an incremental response (rule 3), and record its values as sent."""
        news = (read.high_watermark, read.log_start_offset) != (self.high_watermark, self.log_start_offset)
        self.high_watermark = -1 if read.error else read.high_watermark
        self.log_start_offset = read.log_start_offset
        return bool(news or read.size or read.error or read.preferred_replica != -1)


@dataclass(slots=True)
class Session:
    """The broker's state of one client's session."""

    session_id: int
    privileged: bool
    by_id: bool
    created_ms: float
    partitions: dict[Key, CachedPartition]
    epoch: int = next_epoch(INITIAL_EPOCH)
    last_used_ms: float = 0.0
    size: int = 0

    def touch(self, now_ms: float) -> None:
        self.last_used_ms, self.size = now_ms, len(self.partitions)

    @property
    def rank(self) -> tuple[bool, int, int]:
        return self.privileged, self.size, self.session_id

    def evictable_by(self, *, privileged: bool) -> bool:
        return self.last_used_ms - self.created_ms > EVICTION_MS or (privileged and not self.privileged)

    def update(self, asked: Mapping[Key, FetchPartition], forgotten: Iterable[Key]) -> None:
        for key, partition in asked.items():
            if key in self.partitions:
                self.partitions[key].asked = partition
            else:
                self.partitions[key] = CachedPartition(partition)
        for key in forgotten:
            self.partitions.pop(key, None)

    def tell(self, reads: Mapping[Key, Read]) -> tuple[Key, ...]:
        told = tuple(key for key, read in reads.items() if key in self.partitions and self.partitions[key].tell(read))
        for key in told:
            if reads[key].size:
                self.partitions[key] = self.partitions.pop(key)
        return told


@dataclass(slots=True)
class Shard:
    """A part of the cache with evictions of its own."""

    number: int
    slots: int
    sessions: dict[int, Session] = field(default_factory=dict)
    evictions: int = 0

    def make_room(self, newcomer: tuple[bool, int, int], now_ms: float) -> bool:
        if len(self.sessions) < self.slots:
            return True
        victim = self._victim(newcomer, now_ms)
        if victim is None:
            return False
        del self.sessions[victim.session_id]
        self.evictions += 1
        return True

    def _victim(self, newcomer: tuple[bool, int, int], now_ms: float) -> Session | None:
        oldest = min(self.sessions.values(), key=lambda s: (s.last_used_ms, s.session_id), default=None)
        if oldest is None or now_ms - oldest.last_used_ms > EVICTION_MS:
            return oldest
        open_to_it = [s for s in self.sessions.values() if s.evictable_by(privileged=newcomer[0])]
        least = min(open_to_it, key=lambda s: s.rank, default=None)
        return least if least and newcomer >= least.rank else None

    def free_id(self, random: Random) -> int:
        ids = range(max(1, self.number * ID_RANGE), (self.number + 1) * ID_RANGE)
        while (chosen := random.choice(ids)) in self.sessions:
            pass
        return chosen


class SessionCache:
    """All sessions of one broker. Call ``begin`` for each request, then ``answer`` on its result."""

    def __init__(self, seed: int, slots: int = 1000) -> None:
        self.shards = [Shard(number, slots // SHARDS) for number in range(SHARDS)]
        self._random = Random(seed)  # noqa: S311  # repeatable ids, not secret ones
        self._made = 0

    @property
    def evictions(self) -> int:
        return sum(shard.evictions for shard in self.shards)

    def __len__(self) -> int:
        return sum(len(shard.sessions) for shard in self.shards)

    def get(self, session_id: int) -> Session | None:
        return self._shard_of(session_id).get(session_id)

    def close(self, session_id: int) -> None:
        self._shard_of(session_id).pop(session_id, None)

    def begin(
        self,
        session_id: int,
        epoch: int,
        asked: Mapping[Key, FetchPartition],
        forgotten: Iterable[Key] = (),
        *,
        now_ms: float,
        by_id: bool = True,
        follower: bool = False,
    ) -> "Exchange":
        """Process a request and return the exchange, which lists the partitions to read in order."""
        if epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            self.close(session_id)
            wants_session = epoch == INITIAL_EPOCH
            return Exchange(self, dict(asked), wants_session=wants_session, by_id=by_id, follower=follower)
        session = self.get(session_id)
        error = _refusal(session, epoch, by_id=by_id)
        if error or session is None:
            return Exchange(self, {}, error=error)
        session.update(asked, forgotten)
        if not session.partitions:
            self.close(session_id)
            return Exchange(self, dict(asked))
        session.touch(now_ms)
        session.epoch = next_epoch(session.epoch)
        wanted = {key: cached.asked for key, cached in session.partitions.items()}
        return Exchange(self, wanted, session=session, epoch=session.epoch)

    def create(self, cached: dict[Key, CachedPartition], now_ms: float, *, by_id: bool, follower: bool) -> int:
        """Return the id of a new session, or 0 if all sessions of its shard rank higher."""
        shard = self.shards[self._made % SHARDS]
        self._made += 1
        if not shard.make_room((follower, len(cached), 0), now_ms):
            return NO_SESSION
        session = Session(shard.free_id(self._random), follower, by_id, now_ms, cached)
        session.touch(now_ms)
        shard.sessions[session.session_id] = session
        return session.session_id

    def _shard_of(self, session_id: int) -> dict[int, Session]:
        number = session_id // ID_RANGE
        return self.shards[number].sessions if number in range(SHARDS) else {}


@dataclass(slots=True)
class Exchange:
    """A request in progress: read ``wanted`` (whole, in this order), then call ``answer``."""

    cache: SessionCache
    wanted: dict[Key, FetchPartition]
    error: int = 0
    wants_session: bool = False
    by_id: bool = True
    follower: bool = False
    session: Session | None = None
    epoch: int = FINAL_EPOCH

    def answer(self, reads: Mapping[Key, Read], now_ms: float) -> Answer:
        """Return the response; ``reads`` has an entry for each of ``wanted``, in that order."""
        if self.error:
            return Answer(self.error, NO_SESSION)
        if self.session is None:
            return Answer(0, self._create(reads, now_ms), tuple(reads))
        if self.session.epoch != self.epoch:
            return Answer(71, self.session.session_id)
        return Answer(0, self.session.session_id, self.session.tell(reads))

    def throttle(self) -> Answer:
        """Return the empty response of a broker whose quota is exhausted (KIP-219)."""
        if self.error or self.session is None:
            return Answer(self.error, NO_SESSION)
        return Answer(0 if self.session.epoch == self.epoch else 71, self.session.session_id)

    def _create(self, reads: Mapping[Key, Read], now_ms: float) -> int:
        if not self.wants_session:
            return NO_SESSION
        cached = {
            key: CachedPartition(self.wanted[key], read.high_watermark, read.log_start_offset)
            for key, read in reads.items()
        }
        return self.cache.create(cached, now_ms, by_id=self.by_id, follower=self.follower)


def _refusal(session: Session | None, epoch: int, *, by_id: bool) -> int:
    """Return the error code of rule 2, or 0 if the request is valid."""
    if session is None:
        return 70
    if session.epoch != epoch:
        return 71
    return 0 if session.by_id == by_id else 106
