"""A small cluster and a correct client, simulated in ticks of 100 ms.

The client waits for as long as its settings permit, for what happened to its leader: to find another one and to connect
to it, and for a request time-out if connections to the leader stay open and silent. The simulator is independent of the
code under test and knows no grace periods. Nodes die, heartbeats are missed, controllers are elected, ISRs shrink,
leaders move, and a client discovers the new leaders; each step takes a random part of its permitted maximum. ``stalls``
holds the times in which the client, which always has records to send, had no success.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from aftershock.results.evidence.leadership import Leadership
from aftershock.tests.unit.results.checks.obligations.plays import TOLD, Fault, Play

TICK_S = 0.1
SESSION_S, LAG_S, QUORUM_S = 3.5, 5.0, 6.0
TOLD_S, UNTOLD_S = 3.2, 2.0
SLACK_S = 3.0  # added to the client's permitted delay for a lost request and a busy host
CAUGHT_UP_S = 0.5


@dataclass
class Simulation:
    """Simulate a play. From ``stuck_after_s`` on, the client never succeeds, which no rule permits."""

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
    elections: list[tuple[float, int | None]] = field(default_factory=list)
    """The time and the new leader of each election, the first leader at the time 0."""

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
        """Return the start and end of the fault's effect: a random time during injection and a random time during
        healing.
        """
        begins = self.source.uniform(fault.start_s, fault.injected_s)
        return begins, self.source.uniform(fault.healing_s, fault.end_s)

    def stalls(self) -> Iterator[tuple[float, float]]:
        """Return the stalls of at least one second as pairs of start and end, in seconds."""
        last_s, well_s, wait_s, was_well = float(self.play.start_s), 0.0, 0.0, True
        served_by, moved = self.leader, False
        for tick in range(round(self.play.end_s / TICK_S) + 1):
            now_s = tick * TICK_S
            away, lost = self._harmed(now_s)
            self._govern(now_s, away, lost)
            if not self.elections or self.elections[-1][1] != self.leader:
                self.elections.append((now_s, self.leader))
            well = self._writes(away, lost)
            # a client that waits for followers of its leader has nothing to find or to connect to afterwards
            moved |= self.leader != served_by or self.leader in away or f"client_a-k{self.leader}" in lost
            if well and (not was_well or moved):
                slack_s = self.source.uniform(0, SLACK_S)
                well_s, wait_s = now_s, slack_s + (self._client_needs_s(now_s) if moved else 0)
                served_by, moved = self.leader, False
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
        """Simulate the controller: elections, heartbeats, fencing, leaders and ISRs."""
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
        """Return whether a majority of the voters can fetch from this voter."""
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
        """Remove fenced replicas from the ISR, unless the ISR would be empty, and replace a fenced leader."""
        left = self.isr - self.fenced
        self.isr = left or self.isr
        if self.leader in self.fenced or self.leader is None:
            self.leader = self.source.choice(sorted(left)) if left else None

    def _follow(self, now_s: float, away: set[int], lost: set[str]) -> None:
        """Let the leader remove lagging replicas and add replicas that caught up, if the controller receives the
        change.
        """
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
        """Return whether the leader can acknowledge a write with acks=all."""
        leader = self.leader
        if leader is None or leader in away or f"client_a-k{leader}" in lost:
            return False
        in_sync = all(each == leader or self._fetches(each, leader, away, lost) for each in self.isr)
        return in_sync and len(self.isr) >= self.play.in_sync_min

    def _client_needs_s(self, now_s: float) -> float:
        """Return the client's delay after the cluster is healthy: back-offs, metadata, and requests that time out
        unnoticed.
        """
        untold = any(fault.kind not in TOLD and self._met_by_client(fault) for fault in self._live(now_s))
        return self.source.uniform(0, TOLD_S + (UNTOLD_S if untold else 0))

    def leaders(self) -> tuple[Leadership, ...]:
        """Return the elections as a harness records them that looks once a second."""
        phase_s = self.source.random()
        rows = []
        for epoch, (at_s, leader) in enumerate(self.elections):
            after_s = math.floor(at_s - phase_s) + phase_s if epoch else 0
            bounds_us = round(after_s * 1e6), round((after_s + 1) * 1e6) if epoch else 0
            rows.append(Leadership("orders", "t1", 0, epoch, leader, (), None, None, *bounds_us, ("poll",), {}))
        return tuple(rows)

    @staticmethod
    def _met_by_client(fault: Fault) -> bool:
        """Return whether a client fault concerns this play's client; clients of other racks are not simulated."""
        return any(not link.startswith(("client_b", "client_c")) for link in fault.links) or bool(fault.brokers)
