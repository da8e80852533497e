"""What each fault took away and when, by the timeline and the journal: the only thing obligations know of faults.

::

    intended ──▶ injected ─────────────▶ healing ──▶ healed
       | moving     | in force              | moving    | over

Rules, each for the client's benefit. Of a fault that failed, or of a kind that does not say what it takes, nothing is
known: nothing is owed of what it touches. What was not undone lasts until the end. A fault that strikes while the ISR
is not sure to be full (links between nodes were hit, and have not settled) is unknown too: the one replica left in
sync may be the one it takes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from aftershock.results.evidence import Evidence

Stage = Literal["before", "moving", "in force", "over"]
ALONE = ("nodes", "one node")
"""What a fault without ``for`` takes only until it is done: a restart. All else without ``for`` stays."""


@dataclass(frozen=True)
class Harm:
    """One fault's effect. ``unseen``: how many changes there were at moments that nobody wrote down.

    ``controller``: whether the active controller may have been among its brokers.
    """

    fault: str
    takes: str
    told: bool
    start_us: int
    injected_us: int
    healing_us: int
    end_us: int
    brokers: frozenset[int] = frozenset()
    links: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    controller: bool = True
    unseen: int = 0

    def stage(self, at_us: int) -> Stage:
        """Where it is at a moment; its ends belong to what follows them."""
        if not self.start_us <= at_us < self.end_us:
            return "over" if at_us >= self.end_us else "before"
        return "in force" if self.injected_us <= at_us < self.healing_us else "moving"

    @property
    def between_nodes(self) -> bool:
        """Whether it may have kept replicas or controllers from each other."""
        return any(not link.startswith("client_") for link in self.links)

    @property
    def everywhere(self) -> bool:
        """Whether nobody knows whom it hit."""
        return not (self.brokers or self.links or self.topics or self.clients)


def harms_of(evidence: Evidence, until_us: int) -> list[Harm]:
    """Every fault that began, in order; none in a rehearsal."""
    if evidence.run.get("rehearse"):
        return []
    found = (_harm(evidence, step, until_us) for step in evidence.steps)
    return sorted((harm for harm in found if harm), key=lambda harm: (harm.start_us, harm.fault))


def sure(harms: Iterable[Harm], settled_us: Callable[[Harm], int]) -> list[Harm]:
    """The same, with those unknown that struck where the ISR may have been narrow. ``settled_us``: until when it is."""
    known: list[Harm] = []
    for harm in harms:
        narrowed = any(_narrows(other) and harm.start_us < settled_us(other) for other in known)
        known.append(replace(harm, takes="unknown") if narrowed and harm.takes in ("links", *ALONE) else harm)
    return known


def _narrows(harm: Harm) -> bool:
    return harm.between_nodes or harm.everywhere or (harm.takes == "unknown" and bool(harm.brokers))


def _harm(evidence: Evidence, step: Mapping[str, Any], until_us: int) -> Harm | None:
    lines = [line for line in evidence.journal if line["fault"] == step["id"]]
    at_us = {line["state"]: line["t_us"] for line in reversed(lines)}
    if "intended" not in at_us:
        return None
    known, undone = "injected" in at_us and "failed" not in at_us, _undone(lines[-1], step)
    takes = str(step.get("takes", "unknown")) if known else "unknown"
    alone = step.get("for_ms") is None
    stays = not undone or (alone and takes not in (*ALONE, "leaders"))
    start_us, end_us = at_us["intended"], until_us if stays else lines[-1]["t_us"]
    whole = stays or alone
    return Harm(
        fault=step["id"],
        takes="unknown" if stays else takes,
        told=bool(step.get("told", False)),
        start_us=start_us,
        injected_us=start_us if whole else at_us.get("injected", start_us),
        healing_us=end_us if whole else at_us.get("healing", end_us),
        end_us=end_us,
        unseen=_unseen(takes, lines, alone=alone),
        **_targets(lines),
    )


def _unseen(takes: str, lines: Iterable[Mapping[str, Any]], *, alone: bool) -> int:
    """What changes within one stage of the journal: a node that goes and comes back, leaders that move."""
    if takes == "one node":
        return 2 * len(_targets(lines)["brokers"])
    return {"nodes": 2, "leaders": 1}.get(takes, 0) if alone else 0


def _undone(last: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """A fault with ``for`` whose last line gives a reason was undone in a hurry, and nobody looked."""
    return last["state"] == "healed" and (step.get("for_ms") is None or not last.get("why"))


def _targets(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    told: Mapping[str, Any] = next((line["targets"] for line in reversed(list(lines)) if line.get("targets")), {})
    sets: dict[str, Any] = {name: frozenset(told.get(name, ())) for name in ("brokers", "links", "topics", "clients")}
    return sets | {"controller": (told.get("roles") or {}).get("controller") is not False}
