"""Regressions that are known, each with the day on which that ends: ``known-issues.toml`` beside the ledger.

::

    [[issue]]
    metric = "produce.latency p99*"     # a glob on the metric; "plan" and "arm" likewise, where only some are meant
    reason = "KAFKA-19999: leaders move twice"
    from = 2026-11-01
    until = 2026-12-15

Rules: an issue excuses what changed from ``from`` on, as long as the last night is not past ``until``; after that it
excuses nothing, and is named as expired.
"""

import tomllib
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError

NAME = "known-issues.toml"
_GLOBS = ("metric", "plan", "arm")


@dataclass(frozen=True)
class Issue:
    """One known issue; the days are inclusive."""

    metric: str
    reason: str
    begin: date
    until: date
    plan: str = "*"
    arm: str = "*"

    def covers(self, plan: str, arm: str, metric: str, changed: date) -> bool:
        """Whether it speaks of a change of that night."""
        said = ((plan, self.plan), (arm, self.arm), (metric, self.metric))
        return self.begin <= changed <= self.until and all(fnmatchcase(name, glob) for name, glob in said)

    def expired(self, last: date) -> bool:
        """Whether it excuses nothing any more."""
        return last > self.until


def read(path: Path) -> tuple[Issue, ...]:
    """The issues; none where there is no file. Raises EvidenceError where it is damaged, for an excuse must be sure."""
    if not path.exists():
        return ()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as broken:
        raise EvidenceError(f"{path}: not readable as TOML ({broken}); mend it") from broken
    entries = document.get("issue", [])
    if document.keys() - {"issue"} or not isinstance(entries, list):
        raise EvidenceError(f"{path}: only [[issue]] tables belong here; mend it")
    return tuple(_issue(path, number, entry) for number, entry in enumerate(entries, 1))


def _issue(path: Path, number: int, entry: dict[str, Any]) -> Issue:
    where = f"{path}: issue {number}"
    unknown = sorted(entry.keys() - {*_GLOBS, "reason", "from", "until"})
    missing = [key for key in ("metric", "reason", "from", "until") if key not in entry]
    if unknown or missing:
        what = f"{unknown[0]!r} is unknown" if unknown else f"{missing[0]!r} is missing"
        raise EvidenceError(f"{where}: {what}; it has metric, reason, from and until, and may have plan and arm")
    for key, value in entry.items():
        if type(value) is not (date if key in ("from", "until") else str):
            raise EvidenceError(
                f"{where}: {key!r} must be a {'day like 2026-12-15' if key in ('from', 'until') else 'text'}"
            )
    globs = {key: entry[key] for key in _GLOBS if key in entry}
    return Issue(**globs, reason=entry["reason"], begin=entry["from"], until=entry["until"])
