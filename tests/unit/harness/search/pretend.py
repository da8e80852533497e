"""Fake cluster for minimisation: a rule decides which plans fail, and only runs take time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aftershock.harness.search.minimise import (
    Cache,
    CandidateRun,
    Minimisation,
    Minimised,
    Source,
    Word,
    planned_s,
)
from aftershock.tests.unit.faults.search.following import SEED, ids, plan, slow

CHECK = "slo/lost"
STEPS = 12
BEYOND_S = 20.0


class Killed(Exception):  # noqa: N818 -- what a kill -9 is to a test
    """The process is killed."""


@dataclass
class Pretend:
    """``rule`` decides the result of a plan; ``kill_at`` is the number of the run during which the process dies.

    A run takes ``BEYOND_S`` longer than its load.
    """

    rule: Callable[[Mapping[str, Any]], Word]
    kill_at: int = 0
    ran: list[Mapping[str, Any]] = field(default_factory=list)
    now_s: float = 0.0

    def __call__(self, document: Mapping[str, Any]) -> CandidateRun:
        self.ran.append(document)
        if len(self.ran) == self.kill_at:
            raise Killed
        self.now_s += planned_s(document, SEED) + BEYOND_S
        return CandidateRun(self.rule(document), "as the rule has it", f"run-{len(self.ran)}")


def culprit(*names: str) -> Callable[[Mapping[str, Any]], Word]:
    """Return a rule by which plans fail that have all of these faults."""
    return lambda document: "fails" if set(names) <= ids(document) else "passes"


def source(**more: Any) -> Source:
    faults = [slow(f"f{number}", 3 * number) for number in range(STEPS)]
    return Source("run-0", plan(*faults), SEED, rehearse=False, checks=(CHECK,), **more)


def search(folder: Path, pretend: Pretend, budget_s: float = 3600.0) -> tuple[Minimised, list[str], list[Minimised]]:
    """Run `aftershock minimise` in a folder; return the result, the log lines, and the plans at each reduction."""
    said: list[str] = []
    improved: list[Minimised] = []
    cache = Cache(folder / "cache.jsonl", said.append)
    found = Minimisation(source(), cache, pretend, lambda: pretend.now_s, said.append, improved.append).play(budget_s)
    return found, said, improved
