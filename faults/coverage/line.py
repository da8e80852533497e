"""A line of the coverage ledger: what one run did to one cell. Pure.

::

    {"schema_version": 1, "night": "2026-11-22", "run_id": "...", "seed": 7, "number": 3, "exercised": true, "why": "",
     "verdict": "PASS", "recovered_s": 3.2, "fault": "kill", "role": "leader", "phase": "overlapping",
     "workload": "confluent produce acks=all idempotent"}

``number`` is the run's among those drawn from ``seed``, which is how a search goes on where it was interrupted; None:
it was not drawn. ``recovered_s`` is null where the client was not seen to recover.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import date
from typing import Any

from aftershock.faults.coverage.cell import PHASES, Cell

SCHEMA_VERSION = 1
_TEXTS = ("run_id", "fault", "role", "workload", "why", "verdict")


@dataclass(frozen=True)
class Line:
    """What one run did to one cell. ``why``: what it lacked where it was not exercised."""

    night: date
    run_id: str
    seed: int
    number: int | None
    cell: Cell
    exercised: bool
    why: str
    verdict: str
    recovered_s: float | None = None

    def to_json(self) -> str:
        """The line, without its newline."""
        told = {field.name: getattr(self, field.name) for field in fields(self)} | {"night": self.night.isoformat()}
        cell = told.pop("cell")._asdict()
        return json.dumps({"schema_version": SCHEMA_VERSION, **told, **cell})


def parsed(said: dict[str, Any]) -> Line:
    """The line that a JSON object of this schema is. Raises ValueError or KeyError where it is none."""
    if wrong := list(_wrong(said)):
        raise ValueError(f"{wrong[0]} can't be {said[wrong[0]]!r}")
    cell = Cell(*(said[name] for name in Cell._fields))
    known: dict[str, Any] = {field.name: said.get(field.name) for field in fields(Line)}
    return Line(**known | {"night": date.fromisoformat(said["night"]), "cell": cell})


def _wrong(said: dict[str, Any]) -> Iterable[str]:
    yield from (name for name in _TEXTS if not isinstance(said[name], str))
    yield from (["seed"] if not isinstance(said["seed"], int) else [])
    yield from (["number"] if not isinstance(said["number"], int | None) else [])
    yield from (["exercised"] if not isinstance(said["exercised"], bool) else [])
    yield from (["phase"] if said["phase"] not in PHASES else [])
    yield from (["recovered_s"] if not isinstance(said.get("recovered_s"), float | int | None) else [])
