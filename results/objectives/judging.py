"""How any SLO becomes a check: its blank, whose rows it reads, PASS or FAIL by its threshold."""

from dataclasses import replace

from aftershock.results.check import Check, Status, holds
from aftershock.results.evidence import Client, Evidence, Objective
from aftershock.results.objectives.readings import topic_of
from aftershock.results.slo import Measure, Side, Slo

LOOK = "see the latency plot and the faults' bands in report.html"


def clients_of(evidence: Evidence, side: Side, arm: str | None) -> list[Client]:
    """Those that have the side; of one arm, or of all."""
    return [one for one in evidence.clients if topic_of(one, side) is not None and arm in (None, one.arm)]


def blank(objective: Objective, slo: Slo) -> Check:
    """The check of an SLO with nothing judged yet."""
    return Check(
        id=slo.check_id(),
        kind="compare" if isinstance(slo, Measure) and slo.compares_arms else "slo",
        subject="all arms",
        phase=slo.of.window if isinstance(slo, Measure) else None,
        status=Status.INCONCLUSIVE,
        n=0,
        minimum=slo.needs(),
        unit="ms",
        why="",
        at=objective.at,
        gate=objective.gate,
    )


def decided(check: Check, observed: float | None, op: str, why: str) -> Check:
    """PASS or FAIL; None is over any threshold."""
    good = observed is not None and check.threshold is not None and holds(observed, op, check.threshold)
    status = Status.PASS if good else Status.FAIL
    return replace(check, status=status, observed=observed, why=why, next=None if good else LOOK)
