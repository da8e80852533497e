"""Faults described by a test, and the evidence that a run with these faults leaves. No records are made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aftershock.results.evidence.evidence import Client, Evidence, Phase

S = 1_000_000
TOLD = ("kill", "restart", "refuse", "rotate", "fence_producer")
TAKES = {
    "kill": "nodes",
    "pause": "nodes",
    "restart": "nodes",
    "roll": "one node",
    "cut": "links",
    "refuse": "links",
    "late": "moments",
    "rotate": "leaders",
    "leave": "members",
    "join": "members",
    "evict": "members",
    "kill_client": "members",
    "fence_producer": "connections",
}
"""Kind of fault → its impact; kinds that are not listed have an unknown impact."""


@dataclass(frozen=True)
class Fault:
    """Describe one fault and its real times in seconds. If not ``lasting``, the fault is over when it is injected."""

    kind: str
    start_s: float
    injected_s: float
    healing_s: float
    end_s: float
    brokers: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    lasting: bool = True
    controller: bool | None = None
    failed: bool = False
    delay_ms: int = 0
    rule: dict[str, Any] | None = None
    silence: str = ""

    @property
    def id(self) -> str:
        """Unique within a play, because no two faults begin at the same time."""
        return f"{self.kind}-{self.start_s:g}"

    @property
    def takes(self) -> str:
        """The impact that the fault's kind declares."""
        return TAKES.get(self.kind, "unknown")

    def step(self) -> dict[str, Any]:
        """The fault as a step of the timeline."""
        own = {"delay_ms": self.delay_ms, "silence": self.silence or (None if self.kind in TOLD else "until heal")}
        for_ms = round(1000 * (self.healing_s - self.start_s)) if self.lasting else None
        return {
            "id": self.id,
            "kind": self.kind,
            "for_ms": for_ms,
            "takes": self.takes,
            "told": self.kind in TOLD,
            **own,
        }

    def lines(self) -> list[dict[str, Any]]:
        """The fault's lines of the journal."""
        targets = {name: list(getattr(self, name)) for name in ("brokers", "links", "topics", "clients")}
        states = {"intended": self.start_s, "injected": self.injected_s, "healing": self.healing_s}
        if not self.lasting:
            states = {"intended": self.start_s, "injected": self.end_s}
        states["failed" if self.failed else "healed"] = self.end_s
        roles = {"controller": self.controller} | ({"rule": self.rule} if self.rule else {})
        told = {"fault": self.id, "targets": targets | {"roles": roles}}
        return [told | {"t_us": round(at * S), "state": state} for state, at in states.items()]


def lasting(kind: str, start_s: float, end_s: float, **targets: Any) -> Fault:
    """Return a fault that takes effect and is healed without delay."""
    return Fault(kind, start_s, start_s, end_s, end_s, **targets)


@dataclass(frozen=True)
class Play:
    """Describe a run of 120 s after 10 s of warm-up: producer and consumer in rack a, topic ``orders`` with three
    replicas.
    """

    faults: Sequence[Fault] = ()
    racks: dict[int, str] = field(default_factory=lambda: {1: "a", 2: "b", 3: "c"})
    isolated: tuple[int, ...] = ()
    in_sync_min: int = 2
    assignment: dict[int, list[int]] = field(default_factory=lambda: {0: [1, 2, 3]})
    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "socket.timeout.ms": 2000,
            "socket.connection.setup.timeout.ms": 2000,
            "reconnect.backoff.max.ms": 1000,
        }
    )
    group: str | None = None
    members: int = 1
    reserve: int = 0
    start_s: int = 10
    end_s: int = 130
    client: str = "confluent"
    transaction: bool = False
    client_rack: str | None = None
    warmup: dict[str, Any] = field(default_factory=lambda: {"settled": True})

    def evidence(self) -> Evidence:
        """Return the evidence that the run leaves."""
        produce: dict[str, Any] = {"topic": "orders", "acks": "all", "rack": "a"}
        produce |= {"transaction": {"records": 10}} if self.transaction else {}
        consume: dict[str, Any] = {"topic": "orders", "group": self.group, "rack": "a"}
        consume |= {"members": self.members, "reserve": {"base": self.reserve} if self.reserve else {}}
        arms = {"base": {"client": self.client, "settings": self.settings, "client_rack": self.client_rack}}
        workload = {"name": "w", "produce": produce, "consume": consume, "arms": arms}
        config = {"min.insync.replicas": str(self.in_sync_min)}
        topic = {"name": "orders", "partitions": len(self.assignment), "replication": 3, "config": config}
        nodes = [{"id": node, "rack": rack} for node, rack in self.racks.items()]
        assigned = {str(number): replicas for number, replicas in self.assignment.items()}
        broker = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
        return Evidence(
            home=Path("play"),
            run={
                "run_id": "play",
                "status": "complete",
                "warmup": self.warmup,
                "brokers": nodes,
                "voters": list(self.isolated or self.racks),
                "topics": [{"name": "orders", "assignment": assigned}],
                "profile": {"name": "fast", "replica.lag.time.max.ms": "5000", **broker},
            },
            timeline={
                "cluster": {"controllers": len(self.isolated), "config": {"replica.selector.class": "Aware"}},
                "topics": [topic],
                "workloads": [workload],
                "steps": [fault.step() for fault in self.faults],
            },
            clients=(
                Client(
                    *("w", "base", ("orders",), ("orders",), True, "all", True, False, "a", "a"),
                    members=self.members + self.reserve,
                ),
            ),
            producers={0: "w/base"},
            phases=(Phase("steady", None, self.start_s * S, self.end_s * S),),
            objectives=(),
            journal=tuple(line for fault in self.faults for line in fault.lines()),
            events=(),
            parquet={},
            manifested=True,
        )
