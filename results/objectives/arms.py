"""Two arms of one run against each other: who is compared with whom, and with confidence, by the plan's blocks.

Records of one stall are one event, so the band of a quantile says nothing of whether one arm is better: with
confidence, arms are compared block by block.
"""

from collections.abc import Iterator
from dataclasses import replace

from aftershock.results.check import Check, Status
from aftershock.results.comparing.comparison import BLOCKS_MIN, confident
from aftershock.results.evidence import Client, Evidence
from aftershock.results.facts import Facts
from aftershock.results.objectives.judging import clients_of
from aftershock.results.phases import RUN
from aftershock.results.slo import Measure, Multiple
from aftershock.results.wanted import Cut


def opponents(evidence: Evidence, slo: Measure) -> list[tuple[Client, Client]]:
    """Each client of the first selection with the one it is held against: of its own workload, else the only one."""
    first, other = slo.selections
    judged = [one for one in clients_of(evidence, first.about.side, first.arm) if one.arm != other.arm]
    against = clients_of(evidence, other.about.side, other.arm)
    return [(one, found) for one in judged for found in _against(one, against)]


def _against(one: Client, others: list[Client]) -> Iterator[Client]:
    beside = [other for other in others if other.workload == one.workload]
    yield from beside or (others if len(others) == 1 else ())


def block_cut(slo: Measure) -> Cut:
    """What has to be measured to compare arms with confidence."""
    return Cut(slo.of.metric, slo.of.window or RUN, each="block")


def in_blocks(evidence: Evidence, facts: Facts, empty: Check, slo: Measure, pair: tuple[Client, Client]) -> Check:  # noqa: ARG001 - like ``measured``
    """The check of two arms with confidence: the interval of their ratio over the blocks, against the factor."""
    if not isinstance(slo.limit, Multiple) or slo.confidence is None:
        raise TypeError(f"no comparison of arms with confidence: {slo}")
    factor, keys = float(slo.limit.factor), (pair[0].key, pair[1].key)
    seen = confident(facts, block_cut(slo), keys, slo.q, slo.op, factor, float(slo.confidence))
    check = replace(empty, status=seen.status, n=seen.blocks, minimum=BLOCKS_MIN, unit="ratio", threshold=factor)
    check = replace(check, observed=seen.ratio, censored=seen.censored, why=seen.why, next=seen.next)
    if check.next is None and check.status is not Status.PASS:
        return replace(check, next="see the comparison of the arms in report.html")
    return check
