"""One judged statement, and the four things that can be said of it (design 5.4).

Rules: every check carries ``n`` and a ``minimum``; with fewer observations it is INCONCLUSIVE, so that nothing observed
is never PASS. ``why`` says what was seen, ``next`` what to do about it.

The verdict of a run: its checks, and the worst of those that gate it (ERROR > FAIL > INCONCLUSIVE > PASS).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeAlias

from aftershock.results.evidence.evidence import Client

SAMPLES_MAX = 20

Number: TypeAlias = float | Fraction


class Status(StrEnum):
    """What became of a check; the order of declaration is from best to worst."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"
    ERROR = "ERROR"

    @property
    def severity(self) -> int:
        """Higher is worse: ERROR > FAIL > INCONCLUSIVE > PASS."""
        return tuple(Status).index(self)


@dataclass(frozen=True)
class Check:
    """A row of ``verdict.json``. ``observed`` and ``threshold`` are in ``unit``; ``samples`` are [producer_id, seq].

    ``gate``: whether the run's status hangs on it, or it is only watched.
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

    def to_json(self) -> dict[str, Any]:
        """The check as plain data."""
        return vars(self) | {"status": self.status.value, "samples": [list(sample) for sample in self.samples]}


def subject_of(client: Client, clients: tuple[Client, ...]) -> str:
    """``arm=kip951``; with the workload before it where another workload has an arm of that name."""
    twins = sum(other.arm == client.arm for other in clients)
    return f"arm={client.arm}" if twins == 1 else f"workload={client.workload} arm={client.arm}"


def holds(observed: Number, op: str, threshold: Number) -> bool:
    """Whether ``observed op threshold``; exact where both are."""
    return {
        "<": observed < threshold,
        "<=": observed <= threshold,
        ">": observed > threshold,
        ">=": observed >= threshold,
        "==": observed == threshold,
    }[op]


SCHEMA_VERSION = 1
EXIT_CODES = {Status.PASS: 0, Status.FAIL: 1, Status.INCONCLUSIVE: 2, Status.ERROR: 3}


@dataclass(frozen=True)
class Verdict:
    """What ``verdict.json`` says. A run without a check that gates it proved nothing: INCONCLUSIVE."""

    run_id: str
    plan: str
    seed: int | None
    arms: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def gating(self) -> tuple[Check, ...]:
        """The checks that the status hangs on; the others are ``gate: report``."""
        return tuple(check for check in self.checks if check.gate)

    @property
    def status(self) -> Status:
        """The worst of the checks that gate."""
        return worst([check.status for check in self.gating])

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 ERROR."""
        return EXIT_CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        """The document of design 5.4."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "status": self.status.value,
            "plan": self.plan,
            "seed": self.seed,
            "arms": list(self.arms),
            "checks": [check.to_json() for check in self.checks],
        }

    def text(self) -> str:
        """``verdict.json`` as it is written."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def worst(statuses: Sequence[Status]) -> Status:
    """The worst, INCONCLUSIVE for none."""
    return max(statuses, key=lambda status: status.severity, default=Status.INCONCLUSIVE)


def from_json(document: dict[str, Any]) -> Verdict:
    """A verdict as ``to_json`` wrote it. Raises KeyError, TypeError or ValueError where it was not."""
    checks = tuple(_check(dict(row)) for row in document["checks"])
    return Verdict(document["run_id"], document["plan"], document["seed"], tuple(document["arms"]), checks)


def _check(row: dict[str, Any]) -> Check:
    samples = tuple((producer, seq) for producer, seq in row.pop("samples"))
    return Check(**row | {"status": Status(row["status"]), "samples": samples})
