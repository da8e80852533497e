"""Checks of the test harness itself (load generator, host, clock, warm-up), and of the run's completion.

After warm-up, the 99th percentile of the load generator's lateness, without the delay that a fault causes, must be at
most 50 ms; at most 5 % of the host's 100 ms ticks may be more than 50 ms late; the hypervisor may steal at most 10 % of
the CPU on average. A run whose harness was slower proves nothing about Kafka, so harness checks are PASS or
INCONCLUSIVE, never FAIL.
"""

from aftershock.results.checks.check import Check, Doubts, subject_of, trust_check
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure.facts import Facts
from aftershock.results.slo import Side

LATENESS_MS_MAX = 50.0
LATENESS_Q = 0.99
LATE_TICKS_PERCENT_MAX = 5.0
STEAL_PERCENT_MAX = 10.0
TICKS_MIN = 20  # with fewer ticks a single late one exceeds the limit


def harness_checks(evidence: Evidence, facts: Facts, _: Doubts) -> list[Check]:
    """Return the checks ``harness/...`` of a run; each client that produces or commits has a ``harness/generator``."""
    producing = [_generator(evidence, facts, client, "produce") for client in evidence.clients if client.produces_to]
    committing = [_generator(evidence, facts, client, "commit") for client in evidence.clients if client.commits_to]
    return [*producing, *committing, _host(facts), *_run_checks(evidence, facts)]


def _generator(evidence: Evidence, facts: Facts, client: Client, side: Side) -> Check:
    lateness = facts.distribution(f"{side}.lateness", client.key, RUN)
    late_us = lateness.at.get(LATENESS_Q)
    late_ms = None if late_us is None else late_us / 1e3
    punctual = late_ms is not None and late_ms <= LATENESS_MS_MAX
    noun = "commit" if side == "commit" else "record"
    if late_ms is not None:
        why = f"p99 of the delay from the intended to the actual send is {late_ms:.1f} ms"
    else:
        why = f"{lateness.censored} {noun}s were never sent" if lateness.n else f"no {noun} was sent after warm-up"
    return trust_check(
        "harness",
        "generator" if side == "produce" else f"generator-{side}",
        why if punctual else f"the load generator fell behind its schedule: {why}",
        "stop other work on the host, or lower the rate",
        passed=punctual,
        subject=subject_of(client, evidence.clients),
        arm=client.arm,
        observed=late_ms,
        threshold=LATENESS_MS_MAX,
        unit="ms",
        n=lateness.n,
        censored=lateness.censored,
    )


def _host(facts: Facts) -> Check:
    host = facts.host
    late_percent = 100 * host.late_ticks / host.ticks if host.ticks else None
    steal_percent = 100 * (host.steal or 0.0)
    enough = host.ticks >= TICKS_MIN
    within = late_percent is not None and late_percent <= LATE_TICKS_PERCENT_MAX and steal_percent <= STEAL_PERCENT_MAX
    busy = "" if host.cpu_busy is None else f"; CPU {100 * host.cpu_busy:.0f} % busy"
    why, advice = "the harness recorded no ticks of the host's timer", None
    if late_percent is not None:
        why = (
            f"{late_percent:.1f} % of the ticks of a 100 ms timer were over 50 ms late, and the hypervisor took "
            f"{steal_percent:.1f} % of the CPU time{busy}"
        )
    if not enough:
        why = f"the host was observed for too short a time: {why}"
        advice = "lengthen timing.steady in the plan to 2s or more"
    elif not within:
        why, advice = f"the host was overloaded: {why}", "stop other work on the host, or give it more cores"
    values = {"observed": late_percent, "threshold": LATE_TICKS_PERCENT_MAX, "unit": "%", "n": host.ticks}
    passed = enough and within
    return trust_check("harness", "host", why, advice, passed=passed, subject="host", minimum=TICKS_MIN, **values)


def _run_checks(evidence: Evidence, facts: Facts) -> list[Check]:
    """Return the checks of the clock, the warm-up, the completeness of the run, and the plan's abort conditions."""
    # time never went backwards: each latency is a difference of two clock readings
    metrics = [f"{side}.latency" for side in ("produce", "consume", "commit")]
    n = sum(facts.distribution(metric, client.key, RUN).n for client in evidence.clients for metric in metrics)
    why = f"{facts.backwards} of {n} rows ended before they were sent" if n else "no record was observed"
    advice = "find the program that changes the host's clock, or run the plan again"
    values = {"observed": float(facts.backwards), "threshold": 0.0, "unit": "rows", "n": n}
    clock = trust_check("harness", "clock", why, advice, passed=n > 0 and not facts.backwards, **values)

    state = evidence.run.get("warmup") or {}
    settled, after_ms = bool(state.get("settled")), state.get("after_ms")
    warmup = trust_check(
        "harness",
        "warmup",
        str(state.get("why") or ("latency settled" if settled else "the run ended before its warm-up was over")),
        "raise timing.warmup.max, or stop other work on the host",
        passed=settled,
        phase="warmup",
        observed=None if after_ms is None else after_ms / 1e3,
        threshold=evidence.timeline.get("timing", {}).get("warmup_max_ms", 0) / 1e3 or None,
        unit="s",
        n=int("settled" in state),
    )

    files = sum(len(parts) for parts in evidence.parquet.values())
    why = "the run finished and its manifest lists all evidence files"
    if not evidence.complete:
        reason = evidence.run.get("why")
        why = f"the run is {evidence.run.get('status')}"
        why = f"{why}: {reason}" if reason else f"{why}, and its evidence is partial"
    why = why if files else f"{why}; the run directory has no file of records"
    advice = "run the plan again and let the run finish"
    values = {"observed": float(files), "unit": "files", "n": files}
    complete = trust_check("harness", "complete", why, advice, passed=evidence.complete and files > 0, **values)

    conditions = evidence.run.get("abort")
    if conditions is None:
        return [clock, warmup, complete]
    condition, polls = conditions["met"], conditions["looks"]
    why = f"none of the plan's abort conditions held in {polls} polls"
    if condition:
        why = f"the run stopped early, as the plan requires: {condition}"
    cause = "find the fault that led to the abort condition in the events before the abort" if condition else None
    abort = trust_check("harness", "abort", why, cause, passed=polls > 0 and not condition, unit="looks", n=polls)
    return [clock, warmup, complete, abort]
