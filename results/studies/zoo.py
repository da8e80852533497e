"""Bugs of released clients, and whether the verdict of a run tells the broken version of a client from the fixed one.

A run has two arms, ``broken`` and ``fixed``, which get the same load and the same faults. Its word follows from the
checks that affect the verdict:

* ``found``: a check that was registered for the bug failed for ``broken``, and every check of ``fixed`` passed
* ``fixed undecided``: the same, but a check of ``fixed`` is undecided
* ``fixed blamed``: a check of ``fixed`` failed
* ``other reason``: ``broken`` failed, but by none of the registered checks
* ``not found``: no check of ``broken`` failed
* ``open``: a witness or an exposure is undecided, so that it is not known whether the faults took place

``zoo.toml`` beside this module registers the bugs and the rule by which they were chosen.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeAlias

from aftershock.results.evidence.files import read_json
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.model.check import Check, Status

Word: TypeAlias = Literal["found", "fixed undecided", "fixed blamed", "other reason", "not found", "open"]
BROKEN, FIXED = "broken", "fixed"
PROMISES = ("lost", "duplicated", "given up", "stuck", "crash", "late")
_TRUST = ("witness", "exposure")
_MINUTE_US = 60_000_000


@dataclass(frozen=True)
class Bug:
    """Registered bug; ``checks`` are patterns of check ids, any of which finds it. ``obstacle`` is why it can't run."""

    id: str
    chosen: str
    title: str
    tracker: str
    client: str
    broken: str
    fixed: str
    promise: str
    checks: Sequence[str]
    obstacle: str = ""

    @property
    def versions(self) -> str:
        return f"{self.client} {self.broken} → {self.fixed}"


@dataclass(frozen=True)
class Outcome:
    """Word of a run, and the ids of the failed checks that decide it; ``why`` is the first one's explanation."""

    word: Word
    checks: Sequence[str] = ()
    why: str = ""

    @property
    def by_slo(self) -> bool:
        """True if no check without an SLO found the bug."""
        return bool(self.checks) and all(check.startswith("slo/") for check in self.checks)


def read_bugs() -> Mapping[str, Bug]:
    """Return the registered bugs by id, in the order of the file."""
    document = tomllib.loads(Path(__file__).with_name("zoo.toml").read_text(encoding="utf-8"))
    bugs = [Bug(chosen=entry.pop("from"), **entry) for entry in document["bug"]]
    return {bug.id: bug for bug in bugs}


@dataclass(frozen=True)
class Attempt:
    """What the verdict of one run of a bug's plan says.

    ``plan`` is a digest of the plan, ``minutes`` the time from the launch to the end of the load. ``checks`` are those
    that did not pass, and ``passed`` is the number of passed checks that affect the verdict, by arm.
    """

    run_id: str
    plan: str
    seed: int
    kafka: str
    minutes: float
    checks: Sequence[Check]
    passed: Mapping[str, int]


def attempt_of(run: JudgedRun, plan: str) -> Attempt:
    """Return what the verdict of a stored run says."""
    verdict = run.verdict
    passed = Counter(check.arm for check in verdict.gating if check.arm and check.status is Status.PASS)
    ends_us = [row["end_us"] for row in read_json(run.home / "phases.json")]
    return Attempt(
        verdict.run_id,
        plan,
        verdict.seed or 0,
        str(run.run["versions"]["kafka"]),
        round(max(ends_us) / _MINUTE_US, 1),
        tuple(check for check in verdict.checks if check.status is not Status.PASS),
        dict(passed),
    )


def judge(bug: Bug, attempt: Attempt) -> Outcome:
    gating = [check for check in attempt.checks if check.gate]
    failed = {
        arm: [check for check in gating if check.arm == arm and check.status in (Status.FAIL, Status.ERROR)]
        for arm in (BROKEN, FIXED)
    }
    right = [check for check in failed[BROKEN] if any(fnmatchcase(check.id, pattern) for pattern in bug.checks)]
    if failed[FIXED]:
        return _outcome("fixed blamed", failed[FIXED])
    if doubts := [check for check in attempt.checks if check.kind in _TRUST]:
        return _outcome("open", doubts)
    if right:
        sure = attempt.passed.get(FIXED) and not any(check.arm == FIXED for check in gating)
        return _outcome("found" if sure else "fixed undecided", right)
    return _outcome("other reason", failed[BROKEN]) if failed[BROKEN] else Outcome("not found")


def _outcome(word: Word, checks: Sequence[Check]) -> Outcome:
    return Outcome(word, tuple(dict.fromkeys(check.id for check in checks)), checks[0].why)
