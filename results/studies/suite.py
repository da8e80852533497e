"""Registered suite of an audit: its rows, the figures by which clients are compared, and the limits that mark a client.

``audit.toml`` is the registration. It was written before the first run, and its digest is registered here, as the plans
of a KIP's trial are: a registration that differs from its digest is refused until its version is raised. A limit is a
sum of terms, such as ``broker.session.timeout.ms``, which follow from the settings of the cluster alone.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias, cast

from aftershock.errors import EvidenceError

VERSION = 2
REGISTERED: Mapping[int, str] = {2: "a265f497531ac8e3"}
"""Digest of ``audit.toml`` by version; a version is never registered again with another digest."""

Figure: TypeAlias = Literal["recovery", "after_heal", "wait", "silence", "p95"]
TITLES: Mapping[Figure, str] = {
    "recovery": "until the client works as before, from the fault",
    "after_heal": "until the client works as before, from the heal",
    "wait": "longest that a record took",
    "silence": "longest time without a delivery of any one partition",
    "p95": "p95 latency under the fault",
}
DIGITS: Mapping[Figure, int] = {figure: 2 if figure == "p95" else 1 for figure in TITLES}
"""Digits after the point of a figure in seconds."""


@dataclass(frozen=True)
class Row:
    """Row of a card: a workload of a scenario's plan, its figure, and its limit, a sum of factors times terms.

    ``further`` rows belong to the suite with a ``+`` only.
    """

    id: str
    plan: str
    workload: str
    figure: Figure
    limit: Mapping[str, float]
    why: str
    further: bool = False

    @property
    def formula(self) -> str:
        """The limit as a sum of terms, such as ``quorum + session + 2 backoff``."""
        return " + ".join(name if factor == 1 else f"{factor:g} {name}" for name, factor in self.limit.items())


@dataclass(frozen=True)
class Suite:
    """Registration of a suite; ``ideal`` are settings of a reference client that needs no longer than the cluster.

    Rows tell clients apart from ``units`` values of each on, if clients explain ``explained_min`` of their variance;
    differences below ``counts_s`` do not count. A limit that the ideal client exceeds, too, is ``excused``.
    """

    version: int
    digest: str
    rows: tuple[Row, ...]
    terms: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, int]
    ideal: Mapping[str, str | int]
    units: int
    copies_max: Mapping[str, int]
    excused: str
    explained_min: float
    counts_s: Mapping[Figure, float]

    def rows_of(self, plan: str) -> list[Row]:
        return [row for row in self.rows if row.plan == plan]

    def compares_readers(self, plan: str) -> bool:
        """Return True if a row of the plan compares consumers, so that copies of a client read, too."""
        return any(row.figure == "silence" for row in self.rows_of(plan))

    def plans(self, *, further: bool) -> tuple[str, ...]:
        """Return the scenarios' plans in the order of their rows, with or without those of the suite with a ``+``."""
        return tuple(dict.fromkeys(row.plan for row in self.rows if further or not row.further))

    def seconds(self, term: str, settings: Mapping[str, str]) -> float:
        """Return a term of the limits for brokers with these settings."""
        entry = self.terms[term]
        if "s" in entry:
            return float(entry["s"])
        return sum(float(settings.get(name, self.defaults[name])) for name in entry["settings"]) / 1000

    def limit_s(self, row: Row, settings: Mapping[str, str]) -> float:
        """Return a row's limit in seconds for brokers with these settings."""
        return round(sum(factor * self.seconds(term, settings) for term, factor in row.limit.items()), 6)


@cache
def registered() -> Suite:
    """Read the registration; raise EvidenceError if it is not the one that was registered as its version."""
    return parse(tomllib.loads((resources.files(__package__) / "audit.toml").read_text(encoding="utf-8")))


def digest_of(document: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that stand for the content of a registration."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def parse(document: Mapping[str, Any]) -> Suite:
    """Return the suite that a document registers; raise EvidenceError if it changed after its registration."""
    version, digest = document["version"], digest_of(document)
    if REGISTERED.get(version) != digest:
        raise EvidenceError(
            f"audit.toml has the digest {digest}, and version {version} was registered with "
            f"{REGISTERED.get(version)}; raise `version`, and register the new digest in suite.py"
        )
    rules = document["rules"]
    rows = tuple(
        Row(
            entry["id"],
            entry.get("plan", entry["id"]),
            entry.get("workload", "orders"),
            cast("Figure", entry["figure"]),
            entry["limit"],
            entry["why"],
            entry.get("further", False),
        )
        for entry in document["row"]
    )
    return Suite(
        version,
        digest,
        rows,
        document["terms"],
        document["defaults"],
        document["ideal"],
        rules["units"],
        rules["copies_max"],
        rules["excused"],
        rules["explained_min"],
        rules["counts_s"],
    )


IDEAL = "ideal"
"""Arm that shows what the cluster alone needs: the reference client with the settings of ``Suite.ideal``."""
CLUSTER = "the cluster"
"""Name of a card's row with the checks that belong to no client."""
_COPIES: Sequence[str] = ("", "-2nd", "-3rd")


COPIES = "-copies"
"""End of the name of the workload with the copies that only produce."""


def copies(client: str, count: int | None = None) -> list[str]:
    """Return the arms of a client that runs ``count`` times side by side, by default as often as one ever does."""
    return [client + suffix for suffix in _COPIES[:count]]


def client_of(arm: str) -> str:
    """Return the client of which an arm is a copy."""
    return next((arm.removesuffix(suffix) for suffix in _COPIES[1:] if arm.endswith(suffix)), arm)
