"""Compares two arms under the same faults: the ratio of their quantiles.

Rules: both arms need enough records; where the second's quantile is censored nothing is known to compare with.
"""

from dataclasses import replace

from aftershock.results.check import Check
from aftershock.results.evidence import Evidence, Objective
from aftershock.results.facts import MAX, Facts
from aftershock.results.judging import blank, clients_of, decided, few
from aftershock.results.phases import RUN
from aftershock.results.slo import Compare, quantile_name


def compare(evidence: Evidence, facts: Facts, objective: Objective, slo: Compare) -> Check:
    """The ratio of two arms' quantiles; INCONCLUSIVE where the second is censored, for then nothing is known of it."""
    left, right = slo.arms
    named = [client for arm in slo.arms for client in clients_of(evidence, slo) if client.arm == arm]
    seen = [facts.distribution(slo.metric, client.key, slo.window or RUN) for client in named]
    check = replace(blank(objective, slo), subject=f"arm={left} against arm={right}", arm=left, unit="ratio")
    check = replace(check, threshold=slo.factor, censored=sum(one.censored for one in seen))
    check = replace(check, n=min((one.n for one in seen), default=0))
    if len(seen) != 2:  # noqa: PLR2004 - two arms are compared
        return replace(check, why="each arm must name exactly one client of the plan", next="name two arms in the SLO")
    if check.n < slo.needs():
        return few(check, evidence, quantile_name(slo.q))
    ours_us, theirs_us = (one.at[MAX if slo.q is None else slo.q] for one in seen)
    if not theirs_us:
        why = f"{quantile_name(slo.q)} of {right} is censored or zero: there is nothing to compare with"
        return replace(check, why=why, next=f"see why {right} failed")
    shown = f"{theirs_us / 1e3:g} ms for {right}"
    if ours_us is None:
        return decided(check, None, slo.op, f"censored for {left}, {shown}")
    return decided(check, ours_us / theirs_us, slo.op, f"{ours_us / 1e3:g} ms for {left}, {shown}")
