"""A small cluster and a correct client, in ticks of 100 ms, that wait for as long as their settings let them.

Independent of the code under test: it knows no grace. Nodes die, heartbeats are missed, controllers are elected, ISRs
shrink, leaders move, and a client finds them; each takes a drawn part of what it may take at most. ``stalls`` are the
times in which the client, who always has records waiting, had no success.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from aftershock.tests.unit.results.checks.obligations.plays import TOLD, Fault, Play

TICK_S = 0.1
SESSION_S, LAG_S, QUORUM_S = 3.5, 5.0, 6.0
TOLD_S, UNTOLD_S = 3.2, 6.0
SLACK_S = 3.0  # of the patience: a lost request, a busy host
CAUGHT_UP_S = 0.5


@dataclass
class Simulation:
    """The play as it goes. ``stuck_after_s``: from then on the client never succeeds, which no rule allows."""

    play: Play
    source: random.Random
    stuck_after_s: float | None = None
    controller: int = 0
    governed_s: float = 0.0
    beaten_s: dict[int, float] = field(default_factory=dict)
    fetched_s: dict[int, float] = field(default_factory=dict)
    linked_s: dict[int, float] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    isr: set[int] = field(default_factory=set)
    leader: int | None = None

    def __post_init__(self) -> None:
        self.brokers = sorted(set(self.play.racks) - set(self.play.isolated))
        self.voters = sorted(self.play.isolated or self.play.racks)
        self.replicas = self.play.assignment[0]
        self.isr, self.leader = set(self.replicas), self.source.choice(self.replicas)
        self.controller = self.source.choice(self.voters)
        self.patience = {fault.id: self._drawn(fault) for fault in self.play.faults}
        self.lag_s = LAG_S * self.source.uniform(1, 1.5)
        self.session_s = self.source.uniform(0.5, 1) * SESSION_S
        self.quorum_s = self.source.uniform(0.2, 1) * QUORUM_S

    def _drawn(self, fault: Fault) -> tuple[float, float]:
        """When its effect really begins and ends: some time while it is injected, some time while it is healed."""
        begins = self.source.uniform(fault.start_s, fault.injected_s)
        return begins, self.source.uniform(fault.healing_s, fault.end_s)

    def stalls(self) -> Iterator[tuple[float, float]]:
        """From and to, in seconds, of a second at least."""
        last_s, well_s, wait_s, was_well = float(self.play.start_s), 0.0, 0.0, True
        for tick in range(round(self.play.end_s / TICK_S) + 1):
            now_s = tick * TICK_S
            away, lost = self._harmed(now_s)
            self._govern(now_s, away, lost)
            well = self._writes(away, lost)
            if well and not was_well:
                well_s, wait_s = now_s, self._client_needs_s(now_s)
            was_well = well
            stuck = self.stuck_after_s is not None and now_s >= self.stuck_after_s
            if well and not stuck and now_s >= well_s + wait_s:
                if now_s - last_s >= 1:
                    yield last_s, now_s
                last_s = max(now_s, float(self.play.start_s))
        if self.play.end_s - last_s >= 1:
            yield last_s, float(self.play.end_s)

    def _live(self, now_s: float) -> list[Fault]:
        return [fault for fault in self.play.faults if self.patience[fault.id][0] <= now_s < self.patience[fault.id][1]]

    def _harmed(self, now_s: float) -> tuple[set[int], set[str]]:
        away, lost = set[int](), set[str]()
        for fault in self._live(now_s):
            away |= set(fault.brokers)
            lost |= set(fault.links)
        return away, lost

    def _dials(self, channel: str, source: int, target: int, lost: set[str]) -> bool:
        racks = self.play.racks
        return racks[source] == racks[target] or f"{channel}_{racks[source]}-k{target}" not in lost

    def _govern(self, now_s: float, away: set[int], lost: set[str]) -> None:
        """Elections, heartbeats, fencing, leaders and ISRs, as the controller would."""
        if self._rules(self.controller, away, lost):
            self.governed_s = now_s
        elif now_s - self.governed_s > self.quorum_s:
            able = [voter for voter in self.voters if self._rules(voter, away, lost)]
            if able:
                self.controller, self.governed_s = self.source.choice(able), now_s
                self.beaten_s = dict.fromkeys(self.brokers, now_s)
        if self.governed_s == now_s:
            self._beat(now_s, away, lost)
            self._lead()
        self._follow(now_s, away, lost)

    def _rules(self, voter: int, away: set[int], lost: set[str]) -> bool:
        """Whether a majority of the voters fetches from it."""
        fetching = [
            v for v in self.voters if v == voter or (v not in away and self._dials("controller", v, voter, lost))
        ]
        return voter not in away and 2 * len(fetching) > len(self.voters)

    def _beat(self, now_s: float, away: set[int], lost: set[str]) -> None:
        for broker in self.brokers:
            if broker not in away and self._dials("controller", broker, self.controller, lost):
                self.beaten_s[broker] = now_s
                self.fenced.discard(broker)
            elif now_s - self.beaten_s.get(broker, now_s) > self.session_s:
                self.fenced.add(broker)

    def _lead(self) -> None:
        """Fenced replicas leave the ISR, unless it would be empty; a leader that is fenced gives way."""
        left = self.isr - self.fenced
        self.isr = left or self.isr
        if self.leader in self.fenced or self.leader is None:
            self.leader = self.source.choice(sorted(left)) if left else None

    def _follow(self, now_s: float, away: set[int], lost: set[str]) -> None:
        """The leader drops who lags and takes back who has caught up, if the controller hears it."""
        leader = self.leader
        if leader is None or leader in away:
            return
        heard = self.governed_s == now_s and self._dials("controller", leader, self.controller, lost)
        for replica in self.replicas:
            if replica == leader or self._fetches(replica, leader, away, lost):
                self.fetched_s[replica] = now_s
            else:
                self.linked_s[replica] = now_s
            late = now_s - self.fetched_s.get(replica, now_s) > self.lag_s
            if heard and late:
                self.isr.discard(replica)
            if heard and replica not in self.fenced and now_s - self.linked_s.get(replica, -9) > CAUGHT_UP_S:
                self.isr.add(replica)

    def _fetches(self, replica: int, leader: int, away: set[int], lost: set[str]) -> bool:
        return replica not in away and self._dials("replication", replica, leader, lost)

    def _writes(self, away: set[int], lost: set[str]) -> bool:
        """Whether the leader can acknowledge to all."""
        leader = self.leader
        if leader is None or leader in away or f"client_a-k{leader}" in lost:
            return False
        in_sync = all(each == leader or self._fetches(each, leader, away, lost) for each in self.isr)
        return in_sync and len(self.isr) >= self.play.in_sync_min

    def _client_needs_s(self, now_s: float) -> float:
        """From the moment on that all is well: back-offs, metadata, and requests that time out where nobody told."""
        untold = any(fault.kind not in TOLD and self._met_by_client(fault) for fault in self._live(now_s))
        return self.source.uniform(0, TOLD_S + (UNTOLD_S if untold else 0)) + self.source.uniform(0, SLACK_S)

    @staticmethod
    def _met_by_client(fault: Fault) -> bool:
        """Clients of other racks are not ours."""
        return any(not link.startswith(("client_b", "client_c")) for link in fault.links) or bool(fault.brokers)
