"""Commits against a coordinator with every kind of failure, which never carries out a request of a closed connection
late.
"""

import random
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aftershock.workloads.kafka.rules.commits import Commits, Outcome, Target
from aftershock.workloads.kafka.rules.values import Backoff

TARGETS = [Target("g", "t", 0), Target("g", "t", 1)]
TIMEOUT_MS = 500.0
REFUSALS = [3, 14]
MAYBE_WRITTEN = [7, 15, 16]
FINAL = [25, 30]

some = st.sampled_from(TARGETS)


class World(RuleBasedStateMachine):
    """The committed offset is the commit's own number, so that newer is larger; each step takes time."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = Commits(delivery_timeout_ms=TIMEOUT_MS, backoff=Backoff(10, 100, random.Random(0)))  # noqa: S311  # spreads retries
        self.now_ms = 0.0
        self.offered: dict[int, tuple[Target, float]] = {}
        self.ended: dict[int, Outcome] = {}
        self.in_flight: dict[Target, int] = {}
        self.stored: dict[Target, int] = {}
        self.written: dict[Target, set[int]] = {target: set() for target in TARGETS}

    # ---- what the application and time do

    @rule(whose=some, count=st.integers(1, 3))
    def offer(self, whose: Target, count: int) -> None:
        for _ in range(count):
            token = len(self.offered)
            self.offered[token] = whose, self.now_ms
            self.commits.offer(whose, token, token, self.now_ms)

    @rule(ms=st.sampled_from([1, 15, 150, 400]))
    def pass_time(self, ms: float) -> None:
        self.now_ms += ms
        self.take(self.commits.expire(self.now_ms))

    # ---- what the connection and the coordinator do

    @rule(is_sent=st.sampled_from([True, True, False]))
    def send(self, is_sent: bool) -> None:
        """Send whatever may be sent."""
        for whose in {target for target, _ in self.offered.values()}:
            if self.commits.wait_ms(whose, self.now_ms) > 0:
                continue
            assert whose not in self.in_flight, "two requests of one target at once"
            number = self.commits.begin(whose)
            if is_sent:
                self.commits.sent(whose, 1)
                self.in_flight[whose] = number
            else:
                self.commits.on_no_response(whose, self.now_ms)

    def write(self, target: Target) -> None:
        number = self.in_flight[target]
        assert self.stored.get(target, -1) <= number, "an older commit was put in a newer one's place"
        self.stored[target] = number
        self.written[target].add(number)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), written=st.booleans())
    def lose(self, data: st.DataObject, written: bool) -> None:
        """Close the connection, before or after the request was carried out."""
        target = data.draw(st.sampled_from(sorted(self.in_flight)))
        if written:
            self.write(target)
        del self.in_flight[target]
        self.commits.on_no_response(target, self.now_ms)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), error=st.sampled_from([0, 0, 0, *REFUSALS, *MAYBE_WRITTEN, *FINAL]), written=st.booleans())
    def answer(self, data: st.DataObject, error: int, written: bool) -> None:
        target = data.draw(st.sampled_from(sorted(self.in_flight)))
        if error == 0 or (written and error in MAYBE_WRITTEN):
            self.write(target)
        del self.in_flight[target]
        self.take(self.commits.on_response(target, error, self.now_ms))

    # ---- what must hold

    def take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            assert outcome.token not in self.ended, "an outcome was told twice"
            self.ended[outcome.token] = outcome
            target, _ = self.offered[outcome.token]
            if not outcome.error:
                assert self.stored[target] >= outcome.token, "acknowledged, and the group would go on from before it"
            elif not outcome.in_doubt:
                assert outcome.token not in self.written[target], "surely not written, and it was"

    @invariant()
    def no_commit_outlives_its_deadline(self) -> None:
        for token, (_, offered_ms) in self.offered.items():
            assert token in self.ended or self.now_ms < offered_ms + TIMEOUT_MS

    @invariant()
    def every_open_commit_can_come_to_an_end(self) -> None:
        for token, (target, _) in self.offered.items():
            waits = token not in self.ended and target not in self.in_flight
            assert not waits or self.commits.wait_ms(target, self.now_ms) < inf

    def teardown(self) -> None:
        self.take(self.commits.abandon())
        assert self.offered.keys() == self.ended.keys()
        counts = self.commits.counts
        assert counts["commits_retried"] <= counts["commits_sent"]


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
