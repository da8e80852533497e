"""Check, verdict, and doubts about measurements.

A check is a judged statement about a run, with a status. A check with fewer than ``minimum`` observations (``n``) is
INCONCLUSIVE, so a run without observations never passes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeAlias

from aftershock.redaction import redact_known
from aftershock.results.model.answer import Answer, answer_from_json
from aftershock.results.model.facts import Explained

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

    def __post_init__(self) -> None:
        for name in ("why", "next", "finding"):  # before a text is wrapped, which may end a line within a secret
            if text := getattr(self, name):
                object.__setattr__(self, name, redact_known(text))

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


SCHEMA_VERSION = 1
EXIT_CODES = {Status.PASS: 0, Status.FAIL: 1, Status.INCONCLUSIVE: 2, Status.ERROR: 3}


@dataclass(frozen=True)
class Verdict:
    """Content of ``verdict.json``. A run in which no check has ``gate`` set proves nothing and is INCONCLUSIVE.

    ``trusted`` describes the evidence files that differ from the manifest, and were judged with ``--trust``.
    ``by_author`` is true of a verdict from a pack, which was not judged here.
    ``provisional`` is set for a run that is not over: its ``state``, the end ``until_us`` of what was judged, and the
    ids of checks that were ``not_judged`` yet. ``answers`` say in a line per client and fault what happened; a verdict
    of an earlier version has none. ``unplanned`` are sentences about brokers and processes of services that left by
    themselves, and about services that worked on after the load. ``figures`` are sentences about what is measured and
    never judged.
    """

    run_id: str
    plan: str
    seed: int | None
    arms: tuple[str, ...]
    checks: tuple[Check, ...]
    trusted: tuple[str, ...] = ()
    provisional: Mapping[str, Any] | None = None
    by_author: bool = False
    answers: tuple[Answer, ...] = ()
    unplanned: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()

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
            **({"unplanned": list(self.unplanned)} if self.unplanned else {}),
            **({"figures": list(self.figures)} if self.figures else {}),
            "plan": self.plan,
            "seed": self.seed,
            "arms": list(self.arms),
            "answers": [answer.to_json() for answer in self.answers],
            "checks": [check.to_json() for check in self.checks],
        }

    def text(self) -> str:
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def worst(statuses: Sequence[Status]) -> Status:
    """Return the worst status; INCONCLUSIVE if there is no status."""
    return max(statuses, key=lambda status: status.severity, default=Status.INCONCLUSIVE)


def check_from_json(row: dict[str, Any]) -> Check:
    """Read a check from JSON. Raises KeyError, TypeError or ValueError if ``row`` is not a check."""
    samples = tuple((producer_id, seq) for producer_id, seq in row["samples"])
    explained = tuple(Explained(**part) for part in row.get("explained", ()))
    return Check(**row | {"status": Status(row["status"]), "samples": samples, "explained": explained})


def from_json(document: dict[str, Any]) -> Verdict:
    """Read a verdict from JSON. Raises KeyError, TypeError or ValueError if the document is not a verdict."""
    checks = tuple(map(check_from_json, document["checks"]))
    trusted = tuple(map(str, document.get("trusted", ())))
    arms = tuple(document["arms"])
    answers = tuple(map(answer_from_json, document.get("answers", ())))
    names = (document["run_id"], document["plan"], document["seed"], arms)
    unplanned, figures = (tuple(map(str, document.get(name, ()))) for name in ("unplanned", "figures"))
    return Verdict(*names, checks, trusted, answers=answers, unplanned=unplanned, figures=figures)
