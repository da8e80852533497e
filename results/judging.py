"""How any SLO becomes a check: its blank, whose rows it reads, too few samples, and PASS or FAIL by its threshold."""

import math
from dataclasses import replace

from aftershock.results.check import Check, Status, holds
from aftershock.results.evidence import Client, Evidence, Objective
from aftershock.results.phases import RUN, length_s, windows_of
from aftershock.results.slo import Compare, Side, Slo


def clients_of(evidence: Evidence, slo: Slo) -> list[Client]:
    """Those whose rows the SLO reads."""
    return [
        client for client in evidence.clients if _has(client, slo.side) and (not slo.arms or client.arm in slo.arms)
    ]


def _has(client: Client, side: Side | None) -> bool:
    topics = {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}
    return topics[side or "produce"] is not None


def blank(objective: Objective, slo: Slo) -> Check:
    """The check of an SLO with nothing judged yet."""
    kind = "compare" if isinstance(slo, Compare) else "slo"
    return Check(
        id=slo.check_id(),
        kind=kind,
        subject="all arms",
        phase=slo.window,
        status=Status.INCONCLUSIVE,
        n=0,
        minimum=slo.needs(),
        unit="ms",
        why="",
        at=objective.at,
    )


def decided(check: Check, observed: float | None, op: str, why: str) -> Check:
    """PASS or FAIL; None is over any threshold."""
    good = observed is not None and check.threshold is not None and holds(observed, op, check.threshold)
    status = Status.PASS if good else Status.FAIL
    where = "see the latency plot and the faults' bands in report.html"
    return replace(check, status=status, observed=observed, why=why, next=None if good else where)


def few(check: Check, evidence: Evidence, what: str) -> Check:
    """Says how much longer the window would have to be."""
    window = check.phase or RUN
    have_s = length_s(window, windows_of(evidence.phases))
    if not check.n:
        return replace(check, why="no record was seen", next=f"give the plan traffic in {window_name(check.phase)}")
    need_s = math.ceil(have_s * check.minimum / check.n)
    part = "the fault" if window.startswith("fault") else "the run" if window == RUN else f"timing.{window}"
    advice = f"{what} needs {check.minimum} records, saw {check.n}: lengthen {part} to {need_s}s or raise the rate"
    return replace(check, why=f"too few records: {check.n} of {check.minimum}", next=advice)


def window_name(window: str | None) -> str:
    """The window in words."""
    return window or "the time after warm-up"
