"""One judged statement, and the four things that can be said of it (design 5.4).

Rules: every check carries ``n`` and a ``minimum``; with fewer observations it is INCONCLUSIVE, so that nothing observed
is never PASS. ``why`` says what was seen, ``next`` what to do about it.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeAlias

from aftershock.results.evidence import Client

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
