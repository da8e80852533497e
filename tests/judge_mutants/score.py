"""Comparison of the verdict on an edited run with the verdict on the unedited run (``kinds.py`` defines the terms)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.results.model.check import Verdict
from aftershock.tests.judge_mutants.kinds import Plant

RANKS = {"PASS": 0, "INCONCLUSIVE": 1, "FAIL": 2, "ERROR": 3}
_SIDE = re.compile(r"(?:^| )(produce|consume|commit)$")
_OF_TIME = ("slo/", "compare/", "obligation/")
_DOUBTS = ("harness/host", "harness/clock", "harness/complete")


@dataclass(frozen=True, order=True)
class Key:
    """What a check is about, without the worst subject, which an edit may change."""

    id: str
    arm: str
    side: str
    phase: str


Statuses = Mapping[Key, str]


@dataclass(frozen=True)
class Score:
    """Result of one edit. ``result`` is ``caught``, ``missed``, ``clean``, ``blamed`` or ``undecidable``.

    ``undecidable``: the checks that must notice the defect do not pass in the unedited run, so that nothing can change.
    ``changed`` lists the checks with another status; ``others`` those of arms that the edit does not touch.
    """

    result: str
    changed: tuple[str, ...]
    others: tuple[str, ...] = ()


def statuses(checks: Iterable[Any]) -> dict[Key, str]:
    """Return the worst status of each thing that is checked."""
    worst: dict[Key, str] = {}
    for check in checks:
        side = _SIDE.search(str(check.subject))
        key = Key(check.id, check.arm or "", side[1] if side else "", check.phase or "")
        status = str(check.status.value)
        if RANKS[status] >= RANKS[worst.get(key, "PASS")]:
            worst[key] = status
    return worst


def _relevant(plant: Plant, key: Key) -> bool:
    arm = plant.arm is None or key.arm in ("", plant.arm)
    return arm and key.id.startswith(plant.checks) and (plant.side is None or key.side in ("", plant.side))


def score(plant: Plant, harmless: bool, before: Statuses, judgement: Verdict | EvidenceError) -> Score:
    if isinstance(judgement, EvidenceError):
        result = "blamed" if harmless else "caught" if plant.error else "missed"
        return Score(result, (f"error: {judgement}",))
    after = statuses(judgement.checks)
    worse = {key: status for key, status in after.items() if RANKS[status] > RANKS[before.get(key, "PASS")]}
    changed = tuple(
        f"{key.id} {key.arm} {key.side} {key.phase}: {before.get(key, 'none')} -> {after.get(key, 'none')}".replace(
            "  ", " "
        )
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
    if harmless:
        counted = [key for key in worse if plant.slo or not key.id.startswith(("slo/", "compare/"))]
        blamed = [
            key for key in counted if worse[key] == "FAIL" or (worse[key] == "INCONCLUSIVE" and not plant.unknown)
        ]
        return Score("blamed" if blamed else "clean", changed)
    needed = RANKS[plant.status]
    others = tuple(
        f"{key.id} {key.arm}"
        for key, status in sorted(worse.items())
        if status == "FAIL" and key.arm and plant.touched is not None and key.arm not in plant.touched
    )
    if any(_relevant(plant, key) and RANKS[status] >= needed for key, status in worse.items()):
        return Score("caught", changed, others)
    return Score("undecidable" if _undecidable(plant, before) else "missed", changed, others)


def _undecidable(plant: Plant, before: Statuses) -> bool:
    """Return True if no check that must notice the defect can get worse.

    An SLO that is INCONCLUSIVE in the unedited run does not become FAIL by a defect, and nothing of time or progress
    does if the host was starved. A count of records does.
    """
    starved = any(key.id in _DOUBTS and status != "PASS" for key, status in before.items())
    settled = _OF_TIME if starved else _OF_TIME[:2]
    open_checks = [
        key
        for key, status in before.items()
        if _relevant(plant, key)
        and RANKS[status] < RANKS[plant.status]
        and not (status != "PASS" and key.id.startswith(settled))
    ]
    return not open_checks and any(_relevant(plant, key) for key in before)
