"""KIP-227 end to end without a network: our client's half against the model of the broker's, with every kind of
failure.

The world is a broker with short logs and a session cache of one slot for each shard, and a client that fetches.
Between fetches partitions are written, wanted, dropped and recreated; sessions are closed by other clients,
displaced by followers, and forgotten by a restart. Requests and responses get lost, requests are sent twice, brokers
throttle.
"""

from itertools import count
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aftershock.tests.session_cache import EVICTION_MS, SHARDS, Answer, Exchange, Key, Read, SessionCache
from aftershock.workloads.kafka.rules.fetch_session import (
    FetchPartition,
    FetchRequestPlan,
    FetchSession,
    SessionVerdict,
)
from aftershock.workloads.kafka.rules.values import TopicPartition

TOPICS = ("orders", "payments")
PARTITIONS = [TopicPartition(topic, index) for topic in TOPICS for index in range(3)]
SERVED_MAX = 2
"""How many partitions the broker gives records of in one answer, and how many records of each: fairness matters."""
VERSION = 16

some = st.sampled_from(PARTITIONS)


class Broker:
    """Logs by topic id, and the session cache over them."""

    def __init__(self) -> None:
        self.seeds = count(7)  # a restarted broker draws other session ids, as Kafka's random ids are
        self.cache = SessionCache(next(self.seeds), SHARDS)
        self.logs: dict[Key, list[int]] = {}
        self.ids: dict[str, UUID] = {}
        self.topics = count(1)
        self.now_ms = 0.0
        for topic in TOPICS:
            self.create(topic)

    def create(self, topic: str) -> None:
        """Create a topic, for the first time or again: a new id and empty logs."""
        mine = [tp for tp in PARTITIONS if tp.topic == topic]
        for tp in mine if topic in self.ids else []:
            del self.logs[self.key(tp)]
        self.ids[topic] = UUID(int=next(self.topics))
        self.logs |= {self.key(tp): [] for tp in mine}

    def key(self, tp: TopicPartition) -> Key:
        return self.ids[tp.topic], tp.partition

    def begin(self, plan: FetchRequestPlan) -> Exchange:
        asked: dict[Key, FetchPartition] = {(p.topic_id, tp.partition): p for tp, p in plan.send.items() if p.topic_id}
        forgotten: list[Key] = [(topic_id, tp.partition) for tp, topic_id in plan.to_forget(VERSION) if topic_id]
        return self.cache.begin(plan.session_id, plan.epoch, asked, forgotten, now_ms=self.now_ms)

    def serve(self, exchange: Exchange) -> tuple[Answer, dict[Key, list[int]]]:
        """Read and respond; return the records by partition."""
        records: dict[Key, list[int]] = {}
        reads = {}
        for key, asked in exchange.wanted.items():
            log = self.logs.get(key)
            if log is None:
                reads[key] = Read(error=100)
                continue
            if len(records) < SERVED_MAX and (found := log[asked.fetch_offset :][:SERVED_MAX]):
                records[key] = found
            reads[key] = Read(len(records.get(key, [])), high_watermark=len(log))
        return exchange.answer(reads, self.now_ms), records


class Client:
    """The records read so far by topic id, and the session."""

    def __init__(self, ids: dict[str, UUID]) -> None:
        self.session = FetchSession()
        self.wanted: set[TopicPartition] = set()
        self.ids = dict(ids)
        self.consumed: dict[Key, list[int]] = {}

    def build(self) -> FetchRequestPlan:
        wanted = {tp: FetchPartition(self.ids[tp.topic], self.position(tp), 1024) for tp in sorted(self.wanted)}
        return self.session.build(wanted)

    def position(self, tp: TopicPartition) -> int:
        return len(self.consumed.get((self.ids[tp.topic], tp.partition), []))

    def take(self, answer: Answer, records: dict[Key, list[int]], throttle_ms: float = 0) -> SessionVerdict:
        names = self.session.topic_names
        ids = [(topic_id, index) for topic_id, index in answer.partitions if isinstance(topic_id, UUID)]
        verdict = self.session.on_response(
            error=answer.error,
            session_id=answer.session_id,
            partitions=[TopicPartition(names[topic_id], index) for topic_id, index in ids if topic_id in names],
            unknown_topic_ids=[topic_id for topic_id, _ in ids if topic_id not in names],
            throttle_ms=throttle_ms,
        )
        if verdict.accepted:
            for key, found in records.items():
                self.consumed.setdefault(key, []).extend(found)
        return verdict


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.client = Client(self.broker.ids)
        self.client.wanted = set(PARTITIONS)
        self.records = count()
        self.written(PARTITIONS)

    # ---- the world

    @rule(partitions=st.lists(some, min_size=1, max_size=4))
    def written(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self.broker.logs[self.broker.key(tp)].append(next(self.records))

    @rule(wanted=st.sets(some))
    def wanted(self, wanted: set[TopicPartition]) -> None:
        self.client.wanted = wanted

    @rule(topic=st.sampled_from(TOPICS), told=st.booleans())
    def created_anew(self, topic: str, *, told: bool) -> None:
        self.broker.create(topic)
        if told:
            self.client.ids = dict(self.broker.ids)

    @rule(ms=st.sampled_from([1_000.0, EVICTION_MS + 1]))
    def time_passes(self, ms: float) -> None:
        self.broker.now_ms += ms

    @rule(how=st.sampled_from(["closed", "displaced", "restarted"]))
    def session_lost(self, how: str) -> None:
        """Another client closes it, followers take all slots, or the broker restarts."""
        cache, now_ms = self.broker.cache, self.broker.now_ms
        if how == "closed":
            cache.begin(self.client.session.session_id, -1, {}, now_ms=now_ms)
        elif how == "displaced":
            for _ in range(SHARDS):
                cache.begin(0, 0, {}, now_ms=now_ms, follower=True).answer({}, now_ms)
        else:
            self.broker.cache = SessionCache(next(self.broker.seeds), SHARDS)

    # ---- fetches

    @rule(times=st.integers(1, 4))
    def fetched(self, times: int) -> None:
        """Fetch without failure: after a discarded response the next request is full, and its response is accepted."""
        for _ in range(times):
            if not self._exchange(self.client.build()).accepted:
                following = self.client.build()
                assert following.full
                assert set(following.send) == self.client.wanted
                assert self._exchange(following).accepted

    @rule(answered=st.booleans())
    def fetch_failed(self, *, answered: bool) -> None:
        """Lose the request or the response."""
        plan = self.client.build()
        if answered:
            self.broker.serve(self.broker.begin(plan))
        self._fails()

    @rule()
    def request_repeated_after_it(self) -> None:
        """The broker gets the same request twice, and the client gets the first response."""
        plan = self.client.build()
        first = self.broker.serve(self.broker.begin(plan))
        again = self.broker.serve(self.broker.begin(plan))
        self.client.take(*first)
        assert plan.full or again[0].error

    @rule()
    def request_repeated_before_it(self) -> None:
        """Another client sends the client's request first: the epoch reveals it, and the client starts a new
        session.
        """
        plan = self.client.build()
        self.broker.serve(self.broker.begin(plan))
        verdict = self._exchange(plan)
        assert plan.full or not verdict.accepted

    @rule()
    def throttled(self) -> None:
        plan = self.client.build()
        self.client.take(self.broker.begin(plan).throttle(), {}, throttle_ms=100)

    @rule()
    def closed(self) -> None:
        plan = self.client.session.close()
        if plan:
            self.broker.begin(plan)
            assert self.broker.cache.get(plan.session_id) is None
        assert self.client.build().full
        self._fails()

    @rule()
    def every_wanted_record_is_read_without_failures(self) -> None:
        """With sessions or without."""
        self.client.ids = dict(self.broker.ids)
        self.fetched(sum(map(len, self.broker.logs.values())) + 2)
        assert all(len(self.broker.logs[self.broker.key(tp)]) == self.client.position(tp) for tp in self.client.wanted)

    def _exchange(self, plan: FetchRequestPlan) -> SessionVerdict:
        return self.client.take(*self.broker.serve(self.broker.begin(plan)))

    def _fails(self) -> None:
        of_session = self.client.session.on_failure()
        assert set(of_session) == self.client.wanted
        assert not self.client.session.is_open

    # ---- what always holds

    @invariant()
    def nothing_is_lost_repeated_or_out_of_order(self) -> None:
        for key, read in self.client.consumed.items():
            if key in self.broker.logs:
                assert self.broker.logs[key][: len(read)] == read

    @invariant()
    def both_halves_agree(self) -> None:
        """The broker either refuses the next request, or serves every partition with the client's last values."""
        session = self.client.session
        broker_has = self.broker.cache.get(session.session_id)
        if session.is_open and broker_has and broker_has.epoch == session.epoch:
            mine = {(p.topic_id, tp.partition): p for tp, p in session.partitions.items()}
            assert mine == {key: cached.asked for key, cached in broker_has.partitions.items()}

    @invariant()
    def sessions_add_up(self) -> None:
        """Every established session is still open, or counted by its end."""
        counts = self.client.session.counts
        ended = sum(counts[f"sessions_{event}"] for event in ("lost", "reset", "closed"))
        assert counts["sessions_established"] == ended + self.client.session.is_open


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSessions = Sessions.TestCase
