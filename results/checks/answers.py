"""Answers of a run (``model/answer.py``), from its measurements and integrity results.

A fault's span lasts from its inject to the next inject, or to the end of the load; for a service that stands still at
the end of the load, until the end of the run. Its stops are the stalls
(``measure/stalls.py``) of a client within the span. Only stalls of a second or more are measured; for shorter ones the
longest gap between successes in the fault's window is the upper limit, if it is shorter than a second, too.
"""

from collections.abc import Iterator, Sequence

from aftershock.results.checks.integrity import Result
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.model.answer import Answer, Normality
from aftershock.results.model.facts import Facts, Stall
from aftershock.results.tables.dims import Scene

_SECOND_US = 1_000_000
_NEVER_US = 1 << 62


def answers(evidence: Evidence, facts: Facts, integrity: Sequence[Result]) -> tuple[Answer, ...]:
    """Return the answers of each client that produces or consumes, by fault of the plan that was injected."""
    scene = Scene(evidence)
    ids: dict[str, list[str]] = {}
    for step in evidence.steps:
        if evidence.window_of(step["id"]):
            ids.setdefault(step.get("entry") or step["id"], []).append(step["id"])
    return tuple(
        answer
        for client in evidence.clients
        if client.produces_to or client.consumes_from or client.pipe
        for answer in _of_client(scene, facts, integrity, client, ids)
    )


def _of_client(
    scene: Scene, facts: Facts, integrity: Sequence[Result], client: Client, ids: dict[str, list[str]]
) -> Iterator[Answer]:
    lost, twice = (_count(integrity, rule, client) for rule in ("lost", "duplicate"))
    name = scene.evidence.labels[client.key].replace("arm=", "").replace("workload=", "")
    whole_run = not ids or (len(ids) > 1 and bool(lost[0] or twice[0]))
    if whole_run:
        stopped, partition = (
            _stops(facts, client, RUN, [(scene.judged_from_us, scene.end_us)], scene.end_us) if not ids else ({}, None)
        )
        yield Answer(name, None, 1, True, *lost, *twice, stopped, partition, None)
    for fault, injected in ids.items():
        spans = []
        for step in injected:
            inject_us = scene.inject_us(step) or 0
            spans.append(
                (inject_us, min((at_us for at_us in scene.injects_us if at_us > inject_us), default=scene.end_us))
            )
        stopped, partition = _stops(facts, client, f"fault/{fault}", spans, scene.end_us)
        normality = _normality(facts, client, injected)
        yield Answer(name, fault, len(injected), not whole_run, *lost, *twice, stopped, partition, normality)


def _count(integrity: Sequence[Result], rule: str, client: Client) -> tuple[int | None, int]:
    """Return how many records broke a rule (None if it examined none), and how many of them are permitted."""
    findings = [
        one.finding
        for one in integrity
        if one.rule in (rule, f"pipe_{rule}") and one.judged and one.finding.client == client.key and not one.unknown
    ]
    examined = [finding for finding in findings if finding.examined]
    if not examined:
        return None, 0
    return sum(finding.broken for finding in examined), sum(finding.permitted for finding in examined)


def _stops(
    facts: Facts, client: Client, window: str, spans: Sequence[tuple[int, int]], load_end_us: int
) -> tuple[dict[str, int | None], tuple[str, int] | None]:
    """Return the longest stop of a client by side, and the partition that stopped for much longer, if there is one."""
    stopped: dict[str, int | None] = {}
    worst: tuple[str, int] | None = None
    for side, topics in client.topics.items():
        if side == "commit":
            continue
        within = spans
        if side == "pipe":  # a service is observed until it has processed the last input
            within = [(start, _NEVER_US if end == load_end_us else end) for start, end in spans]
        gap = facts.longest.get((f"{side}.gap", client.key, window))
        stalls = [stall for stall in facts.stalls if (stall.side, stall.client) == (side, client.key)]
        if not topics or (gap is None and not stalls):
            continue
        of_client = max((_within(stall, within) for stall in stalls if stall.partition is None), default=0)
        short_us = gap.longest_us if gap and (gap.longest_us or _SECOND_US) < _SECOND_US else None
        stopped[side] = of_client if of_client > (short_us or 0) else short_us
        for stall in stalls:
            us = _within(stall, within)
            if stall.partition is not None and us >= max(of_client + _SECOND_US, worst[1] if worst else 0):
                worst = f"{stall.topic or next(iter(topics))}/{stall.partition}", us
    return stopped, worst


def _within(stall: Stall, spans: Sequence[tuple[int, int]]) -> int:
    """Return the longest time of a stall in one of the spans, in microseconds."""
    return max((min(stall.end_us, end) - max(stall.start_us, start) for start, end in spans), default=0)


def _normality(facts: Facts, client: Client, injected: Sequence[str]) -> Normality | None:
    rows = [row for step in injected if (row := facts.recoveries.get((step, client.key)))]
    if not rows:
        return None
    returns = [row.recovered_us for row in rows if row.recovered_us is not None]
    without = [row.observed_us for row in rows if row.recovered_us is None]
    before = [row.before_heal for row in rows if row.before_heal is not None]
    worst_us = max(returns, default=None)
    return Normality(len(rows), len(returns), worst_us, min(without, default=0), len(before), sum(before))
