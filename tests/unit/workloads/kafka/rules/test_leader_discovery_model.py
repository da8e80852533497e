"""Any sequence of responses, hints and epochs from other sources, against a model written from the text of the KIP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

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
from aftershock.workloads.kafka.rules.leader_discovery import Attempts, LeaderDiscovery, LeaderDiscoverySwitches
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import Backoff, Leader, Node, TopicPartition

FEW = settings(max_examples=120, deadline=None)
NODES = st.integers(0, 4)
LEADERS = st.builds(Leader, st.integers(-1, 4), st.integers(-1, 9))
PARTITIONS = st.sampled_from([T0, T1])


@dataclass(frozen=True)
class Answer:
    """A Metadata response."""

    leaders: Mapping[TopicPartition, Leader]
    nodes: frozenset[int]
    topic_id: UUID | None
    error: int


@dataclass(frozen=True)
class Hints:
    """A failed Produce or Fetch response; its endpoints have ports that distinguish them from Metadata's."""

    errors: Mapping[TopicPartition, tuple[int, Leader]]
    endpoints: frozenset[int]


@dataclass(frozen=True)
class Seen:
    """An epoch of a committed offset."""

    tp: TopicPartition
    epoch: int


ANSWERS = st.builds(
    Answer,
    st.fixed_dictionaries({T0: LEADERS}, optional={T1: LEADERS}),
    st.frozensets(NODES, min_size=1),
    st.sampled_from([ID, ID, ID, OTHER_ID, None]),
    st.sampled_from([0, 0, 0, 3]),
)
FIRST = Answer({T0: Leader(1, 2), T1: Leader(0, 3)}, frozenset({0, 1, 2}), ID, 0)
ERRORS = st.tuples(st.sampled_from([6, 6, 74, 3, 19]), LEADERS)
HINTS = st.builds(Hints, st.dictionaries(PARTITIONS, ERRORS, min_size=1), st.frozensets(NODES))
EPOCHS_SEEN = st.builds(Seen, PARTITIONS, st.integers(0, 9))
STEPS = st.lists(st.one_of(HINTS, ANSWERS, HINTS, EPOCHS_SEEN), max_size=14).map(lambda steps: [FIRST, *steps])


@dataclass
class Model:
    """What a client should know; -1 and None for unknown."""

    epoch: dict[TopicPartition, int] = field(default_factory=lambda: {T0: -1, T1: -1})
    cached: dict[TopicPartition, Leader | None] = field(default_factory=lambda: {T0: None, T1: None})
    nodes: dict[int, Node] = field(default_factory=dict)
    topic_id: UUID | None = None

    def on_response(self, step: Answer) -> None:
        another_topic = step.topic_id not in (None, self.topic_id)
        for tp in (T0, T1):
            told = None if step.error else step.leaders.get(tp)
            if told is None:
                self.cached[tp] = None
            elif told.epoch == -1 or another_topic or told.epoch >= self.epoch[tp]:
                self.cached[tp], self.epoch[tp] = told, told.epoch
        self.topic_id = step.topic_id
        self.nodes = {number: node(number) for number in step.nodes}

    def hinted(self, step: Hints) -> set[TopicPartition]:
        offered = {number: node(number, 19092) for number in step.endpoints}
        taken = {
            tp: leader
            for tp, (error, leader) in step.errors.items()
            if error in (6, 74)
            and leader.node_id in self.nodes | offered
            and leader.epoch > self.epoch[tp]
            and self.cached[tp] is not None
        }
        for tp, leader in taken.items():
            self.cached[tp], self.epoch[tp] = leader, leader.epoch
        self.nodes |= offered if taken else {}
        return set(taken)

    def seen(self, step: Seen) -> None:
        if self.epoch[step.tp] != -1:
            self.epoch[step.tp] = max(self.epoch[step.tp], step.epoch)

    def leader(self, tp: TopicPartition) -> Leader:
        cached = self.cached[tp]
        trusted = cached is not None and cached.epoch == self.epoch[tp] and cached.node_id in self.nodes
        return cached if cached is not None and trusted else Leader(-1, self.epoch[tp])


def client() -> tuple[Metadata, LeaderDiscovery]:
    metadata = Metadata(backoff=backoff())
    metadata.want(["t"])
    return metadata, LeaderDiscovery(metadata, LeaderDiscoverySwitches(), backoff())


def take(metadata: Metadata, rule: LeaderDiscovery, step: Answer | Hints | Seen) -> set[TopicPartition]:
    """Apply one step to the client; return the partitions with accepted hints."""
    if isinstance(step, Seen):
        metadata.update_epoch(step.tp, step.epoch)
    elif isinstance(step, Answer):
        response = answer(step.leaders, nodes=step.nodes, topic_id=step.topic_id, error=step.error)
        learn(metadata, response)
    else:
        endpoints = [node(number, 19092) for number in step.endpoints]
        verdicts = rule.apply_hints(step.errors, endpoints)
        return {tp for tp, verdict in verdicts.items() if verdict is None}
    return set()


@FEW
@given(STEPS)
def test_agrees_with_the_model(steps: list[Answer | Hints | Seen]) -> None:
    """After each step: the same hints accepted, the same leaders, epochs and nodes."""
    (metadata, rule), model = client(), Model()
    for step in steps:
        taken = take(metadata, rule, step)
        if isinstance(step, Answer):
            model.on_response(step)
        elif isinstance(step, Seen):
            model.seen(step)
        else:
            assert model.hinted(step) == taken
        for tp in (T0, T1):
            assert model.leader(tp) == metadata.leader(tp)
            assert model.epoch[tp] == metadata.leader(tp).epoch
        assert model.nodes == metadata.nodes


@FEW
@given(STEPS)
def test_epochs_never_go_back(steps: list[Answer | Hints | Seen]) -> None:
    """While the topic id is the same and every response has epochs, no step lowers an epoch."""
    metadata, rule = client()
    for step in steps:
        before = {tp: metadata.leader(tp).epoch for tp in (T0, T1)}
        known_id = metadata.topic_id("t")
        take(metadata, rule, step)
        told = step.leaders if isinstance(step, Answer) else {}
        if isinstance(step, Answer) and step.topic_id not in (None, known_id):
            continue
        for tp, epoch in before.items():
            forgotten = tp in told and told[tp].epoch == -1
            assert forgotten or metadata.leader(tp).epoch >= epoch


@FEW
@given(STEPS)
def test_endpoints_are_merged_with_the_first_accepted_hint(steps: list[Answer | Hints | Seen]) -> None:
    """All endpoints of a response are known afterwards if one of its hints was accepted; else no node has changed."""
    metadata, rule = client()
    for step in steps:
        before = dict(metadata.nodes)
        taken = take(metadata, rule, step)
        if isinstance(step, Hints):
            merged = {number: node(number, 19092) for number in step.endpoints} if taken else {}
            assert before | merged == metadata.nodes


@FEW
@given(STEPS)
def test_every_hint_is_counted_once(steps: list[Answer | Hints | Seen]) -> None:
    """Offered hints are the sum of accepted and refused ones."""
    metadata, rule = client()
    for step in steps:
        take(metadata, rule, step)
    verdicts = sum(n for name, n in rule.counts.items() if name.startswith(("hints_accepted", "hints_refused")))
    assert rule.counts["hints_offered"] == verdicts


TURNS = st.lists(st.tuples(st.sampled_from(["look", "look", "hint", "answer"]), st.integers(0, 400)), max_size=40)


@FEW
@given(TURNS, st.integers(0, 2**32))
def test_retries_of_a_batch(turns: list[tuple[str, int]], seed: int) -> None:
    """A batch that fails at each attempt, while leaders move by hints and by metadata. Each epoch gives at most one
    immediate retry, at the next check; any other retry keeps its back-off, not shorter and not longer.
    """
    metadata = knowing({T0: Leader(1, 0)})
    pause = Backoff(100, 1000, Random(seed))  # noqa: S311  # repeatable, not secret
    rule = LeaderDiscovery(metadata, LeaderDiscoverySwitches(), pause)
    batch, tried, failed_ms, now_ms = Attempts(), 0, 0, 0
    epoch, looked_at, immediate_at = 0, -1, []
    for kind, passed_ms in turns:
        now_ms += passed_ms
        if kind == "hint":
            epoch += 1
            rule.apply_hints({T0: (6, Leader(epoch % 3, epoch))}, [])
        elif kind == "answer":
            epoch += 1
            learn(metadata, answer({T0: Leader(epoch % 3, epoch)}))
        else:
            wait_ms = rule.wait_ms(batch, T0, now_ms)
            moved, looked_at = tried > 0 and epoch > looked_at, epoch
            base_ms = min(100 * 2 ** max(tried - 1, 0), 1000)
            assert 0 <= wait_ms <= max(0, failed_ms + min(1.2 * base_ms, 1000) - now_ms)
            assert not moved or wait_ms == 0
            if wait_ms == 0:
                immediate = rule.drained(batch)
                assert immediate or tried == 0 or now_ms - failed_ms >= 0.8 * base_ms
                immediate_at += [epoch] * immediate
                batch.on_failure(now_ms)
                tried, failed_ms = tried + 1, now_ms
    assert sorted(set(immediate_at)) == immediate_at
    assert len(immediate_at) == rule.counts["retries_immediate"]
