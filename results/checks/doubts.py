"""Doubts about measurements: why a run, or a client of it, can't be trusted, and which checks that concerns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts, Suspect

ClientLane: TypeAlias = tuple[str, str]
"""Side of a client (produce, consume, commit) and the client's key."""


@dataclass(frozen=True)
class HarnessCheck:
    """Check of the harness, and the measurements that are in doubt if the check does not pass.

    These are the measurements of ``lanes``, None for all clients; only of latencies if ``of_latency``.
    """

    check: Check
    lanes: tuple[ClientLane, ...] | None = None
    of_latency: bool = False

    @property
    def reason(self) -> str:
        return f"{self.check.id}: {self.check.why}"


@dataclass(frozen=True)
class Doubts:
    """Reasons to distrust a run, by fault id for unproven faults.

    ``harness`` is the first reason that concerns all measurements, None if there is none; ``of_clients`` are the checks
    of the harness that concern some clients or measurements only. If the run has ``suspects``, ``again`` are its
    measurements without their times, and ``harness_again`` and ``of_clients_again`` the reasons according to these
    (checks/suspects.py). If ``strict``, the run's status depends on each obligation check.
    """

    unproven: Mapping[str, str] = field(default_factory=dict)
    harness: str | None = None
    suspects: tuple[Suspect, ...] = ()
    again: Facts | None = None
    harness_again: str | None = None
    of_clients: tuple[HarnessCheck, ...] = ()
    of_clients_again: tuple[HarnessCheck, ...] = ()
    strict: bool = False

    @classmethod
    def of(
        cls,
        faults: Sequence[Check],
        harness: Sequence[HarnessCheck],
        again: Facts | None = None,
        harness_again: Sequence[HarnessCheck] = (),
    ) -> "Doubts":
        """Collect the reasons from the checks that did not pass; ``harness_again`` are those of facts ``again``."""
        unproven: dict[str, str] = {}
        for check in faults:
            if check.status is not Status.PASS:
                unproven.setdefault(check.id.split("/", 1)[1], f"{check.id}: {check.why}")
        (of_all, of_clients), (of_all_again, of_clients_again) = map(_reasons, (harness, harness_again))
        return cls(unproven, of_all, (), again, of_all_again, of_clients, of_clients_again)

    def reason(self, lanes: Collection[ClientLane], *, of_latency: bool, again: bool = False) -> str | None:
        """Return why the harness makes a measurement of ``lanes`` doubtful, in the second measurement if ``again``."""
        of_all, of_clients = (self.harness_again, self.of_clients_again) if again else (self.harness, self.of_clients)
        for doubt in of_clients:
            concerned = doubt.lanes is None or not {*lanes}.isdisjoint(doubt.lanes)
            if of_all is None and concerned and (of_latency or not doubt.of_latency):
                return doubt.reason
        return of_all


def _reasons(harness: Sequence[HarnessCheck]) -> tuple[str | None, tuple[HarnessCheck, ...]]:
    """Return the first reason that concerns all measurements, and the checks that concern only some."""
    failed = [one for one in harness if one.check.status is not Status.PASS]
    limited = tuple(one for one in failed if one.lanes is not None or one.of_latency)
    return next((one.reason for one in failed if one not in limited), None), limited


NO_DOUBTS = Doubts()
CheckFamily: TypeAlias = Callable[[Evidence, Facts, Doubts], list[Check]]


def subject_of(client: Client, clients: tuple[Client, ...]) -> str:
    """Return ``arm=kip951`` as a client's name, after its workload's name if several workloads have such an arm."""
    namesakes = sum(candidate.arm == client.arm for candidate in clients)
    return f"arm={client.arm}" if namesakes == 1 else f"workload={client.workload} arm={client.arm}"
