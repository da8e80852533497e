"""Check, verdict, and doubts about measurements.

A check is a judged statement about a run, with a status. A check with fewer than ``minimum`` observations (``n``) is
INCONCLUSIVE, so a run without observations never passes.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeAlias

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.files import NEWEST_VERSIONS
from aftershock.results.measure.facts import Explained, Facts, Suspect

SAMPLES_MAX = 20

Number: TypeAlias = float | Fraction


class Status(StrEnum):
    """Status of a check or a run, declared from best to worst."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"
    ERROR = "ERROR"

    @property
    def severity(self) -> int:
        return tuple(Status).index(self)


@dataclass(frozen=True)
class Check:
    """A check in ``verdict.json``; ``why`` states what was observed, ``next`` gives advice.

    ``gate`` is True if the status of the run depends on the check; ``samples`` are ids [producer_id, seq] of records.
    ``explained`` are the anomalies that a cause explains, by cause. ``finding`` is what a reader should know although
    the check may have passed. ``share`` is the share of the load after warm-up in which the check could fail, None if
    that is not known. ``verdict.json`` has these three if they exist.
    """

    id: str
    kind: str
    subject: str
    status: Status
    n: int
    minimum: int
    unit: str
    why: str
    observed: float | None = None
    threshold: float | None = None
    arm: str | None = None
    phase: str | None = None
    censored: int = 0
    at: str | None = None
    next: str | None = None
    samples: tuple[tuple[int, int], ...] = ()
    gate: bool = True
    share: float | None = None
    explained: tuple[Explained, ...] = ()
    finding: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data; ``explained``, ``finding`` and ``share`` only if the check has them."""
        fields = {name: value for name, value in vars(self).items() if name not in ("explained", "finding") or value}
        if self.share is None:
            del fields["share"]
        if self.explained:
            fields["explained"] = [vars(part) for part in self.explained]
        return fields | {"status": self.status.value, "samples": [list(sample) for sample in self.samples]}


def trust_check(kind: str, name: str, why: str, advice: str | None, *, passed: bool, **values: Any) -> Check:
    """Return the check ``<kind>/<name>``, PASS if ``passed``, else INCONCLUSIVE with ``advice``."""
    status = Status.PASS if passed else Status.INCONCLUSIVE
    defaults: dict[str, Any] = {"subject": "run", "minimum": 1, "next": None if passed else advice}
    return Check(id=f"{kind}/{name}", kind=kind, status=status, why=why, **defaults | values)


def subject_of(client: Client, clients: tuple[Client, ...]) -> str:
    """Return ``arm=kip951`` as a client's name, after its workload's name if several workloads have such an arm."""
    namesakes = sum(candidate.arm == client.arm for candidate in clients)
    return f"arm={client.arm}" if namesakes == 1 else f"workload={client.workload} arm={client.arm}"


def percent(share: float) -> str:
    """Format a share from 0 to 1, such as ``62 %``, rounded down, so that no limit seems to be reached."""
    return f"{math.floor(100 * share + 1e-9)} %"


def holds(observed: Number, op: str, threshold: Number) -> bool:
    """Evaluate the comparison ``observed op threshold``, exactly if both numbers are exact (Fraction or int)."""
    return {
        "<": observed < threshold,
        "<=": observed <= threshold,
        ">": observed > threshold,
        ">=": observed >= threshold,
        "==": observed == threshold,
    }[op]


SCHEMA_VERSION = NEWEST_VERSIONS["verdict.json"]
EXIT_CODES = {Status.PASS: 0, Status.FAIL: 1, Status.INCONCLUSIVE: 2, Status.ERROR: 3}


@dataclass(frozen=True)
class Verdict:
    """Content of ``verdict.json``. A run in which no check has ``gate`` set proves nothing and is INCONCLUSIVE.

    ``trusted`` describes the evidence files that differ from the manifest, and were judged with ``--trust``.
    ``by_author`` is true of a verdict from a pack, which was not judged here.
    ``provisional`` is set for a run that is not over: its ``state``, the end ``until_us`` of what was judged, and the
    ids of checks that were ``not_judged`` yet.
    """

    run_id: str
    plan: str
    seed: int | None
    arms: tuple[str, ...]
    checks: tuple[Check, ...]
    trusted: tuple[str, ...] = ()
    provisional: Mapping[str, Any] | None = None
    by_author: bool = False

    @property
    def gating(self) -> tuple[Check, ...]:
        """The checks that determine the run's status; an SLO whose ``gate`` is ``report`` has no effect."""
        return tuple(check for check in self.checks if check.gate)

    @property
    def status(self) -> Status:
        return worst([check.status for check in self.gating])

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "status": self.status.value,
            **({"trusted": list(self.trusted)} if self.trusted else {}),
            **({"provisional": dict(self.provisional)} if self.provisional else {}),
            "plan": self.plan,
            "seed": self.seed,
            "arms": list(self.arms),
            "checks": [check.to_json() for check in self.checks],
        }

    def text(self) -> str:
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def worst(statuses: Sequence[Status]) -> Status:
    """Return the worst status; INCONCLUSIVE if there is no status."""
    return max(statuses, key=lambda status: status.severity, default=Status.INCONCLUSIVE)


def from_json(document: dict[str, Any]) -> Verdict:
    """Read a verdict from JSON. Raises KeyError, TypeError or ValueError if the document is not a verdict."""
    checks = []
    for row in document["checks"]:
        samples = tuple((producer_id, seq) for producer_id, seq in row["samples"])
        explained = tuple(Explained(**part) for part in row.get("explained", ()))
        checks.append(Check(**row | {"status": Status(row["status"]), "samples": samples, "explained": explained}))
    trusted = tuple(map(str, document.get("trusted", ())))
    arms = tuple(document["arms"])
    return Verdict(document["run_id"], document["plan"], document["seed"], arms, tuple(checks), trusted)


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
