"""A run of two arms without measurements, to which a test adds measurements one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aftershock.results.checks.doubts import Doubts, HarnessCheck
from aftershock.results.checks.integrity import integrity_results
from aftershock.results.checks.slo.checks import slo_checks, wanted
from aftershock.results.evidence.evidence import Client, Evidence, Objective, Phase
from aftershock.results.model.check import Check
from aftershock.results.model.facts import (
    Cut,
    Distribution,
    Facts,
    Lag,
    LongestGap,
    Outage,
    Recovered,
    RecoveryCriterion,
    Slice,
)

S = 1_000_000
A, B = "orders/a", "orders/b"
PARTITIONS = 3


def client(arm: str, workload: str = "orders") -> Client:
    return Client(workload, arm, ("orders",), ("orders",), True, "all", True, False, commits_to="orders")


def latencies(n: int, value_us: int | None, q: float = 0.99, **more: Any) -> Distribution:
    """Return ``n`` latencies whose quantile ``q`` has this value; None means that the quantile is a failed record."""
    censored = more.pop("censored", 0 if value_us is not None else n)
    return Distribution(n, censored, value_us, {q: value_us, 1.0: value_us}, **more)


@dataclass
class Stage:
    """Steady from 10 s to 20 s, a fault from 20 s to 30 s, recovery until ``end_s``, and no measurements yet."""

    clients: Sequence[Client] = (client("a"), client("b"))
    steps: Sequence[str] = ("kill-1",)
    end_s: int = 40
    distributions: dict[tuple[str, str, str], Distribution] = field(default_factory=dict)
    longest: dict[tuple[str, str, str], LongestGap] = field(default_factory=dict)
    recoveries: dict[tuple[str, str], Recovered] = field(default_factory=dict)
    calms: dict[tuple[RecoveryCriterion, str], Recovered] = field(default_factory=dict)
    cuts: dict[tuple[Cut, str], tuple[Slice, ...]] = field(default_factory=dict)
    unavailable: dict[tuple[str, str, str], tuple[Outage, ...]] = field(default_factory=dict)
    lag: dict[str, tuple[Lag, ...]] = field(default_factory=dict)
    member_lag: dict[tuple[str, str], tuple[Lag, ...]] = field(default_factory=dict)
    unproven: Mapping[str, str] = field(default_factory=dict)
    harness: Sequence[HarnessCheck] = ()

    def latency(
        self, distribution: Distribution, window: str = "fault", client: str = A, metric: str = "latency"
    ) -> None:
        self.distributions[f"produce.{metric}", client, window] = distribution

    def cut(self, metric: str, window: str, *slices: Slice, each: Any = None, every_us: int | None = None) -> None:
        self.cuts[Cut(metric, window, each, every_us), A] = slices

    def evidence(self, *texts: str, gate: bool = True, advice: str = "") -> Evidence:
        phases = [
            ("warmup", None, 0, 10),
            ("steady", None, 10, 20),
            ("fault", "kill-1", 20, 30),
            ("recovery", None, 30, self.end_s),
        ]
        return Evidence(
            home=Path("run"),
            run={"topics": [{"name": "orders", "partitions": PARTITIONS}], "status": "complete"},
            timeline={
                "steps": [{"id": step, "entry": step.partition("@")[0]} for step in self.steps],
                "workloads": [
                    {"name": name, "arms": {client.arm: None for client in self.clients if client.workload == name}}
                    for name in dict.fromkeys(client.workload for client in self.clients)
                ],
            },
            clients=tuple(self.clients),
            producers={0: A, 1: B},
            phases=tuple(Phase(name, fault, start * S, end * S) for name, fault, start, end in phases),
            objectives=tuple(Objective(text, "plan.yaml:9:5", gate, advice) for text in texts),
            journal=(),
            events=(),
            parquet={},
            manifested=True,
        )

    def checks(self, *texts: str, gate: bool = True, advice: str = "") -> list[Check]:
        """Return the checks of these SLOs, after asserting that the SLOs requested every extra measurement they use."""
        evidence = self.evidence(*texts, gate=gate, advice=advice)
        asked = wanted(evidence)
        assert {cut for cut, _ in self.cuts} <= set(asked.cuts)
        facts = Facts(
            distributions=self.distributions,
            longest=self.longest,
            recoveries=self.recoveries,
            calms=self.calms,
            cuts=self.cuts,
            unavailable=self.unavailable,
            lag=self.lag,
            member_lag=self.member_lag,
        )
        checks = slo_checks(evidence, facts, integrity_results(evidence, facts), Doubts(self.unproven, self.harness))
        assert all(check.why and check.why == check.why.strip() for check in checks)
        return checks

    def check(self, text: str) -> Check:
        """Return the first check of one SLO, which is that of arm a."""
        return self.checks(text)[0]
