"""Checks of the test harness itself (load generator, host, clock, warm-up), and of the run's completion.

After warm-up, the 99th percentile of the load generator's lateness, without the delay that a fault causes, must be at
most 50 ms; at most 5 % of the host's 100 ms ticks may be more than 50 ms late; the hypervisor may steal at most 10 % of
the CPU on average. Each record that a process had to send must have a row (measure/load). A run whose harness was
slower, or did not send its load, proves nothing about Kafka, so harness checks are PASS or INCONCLUSIVE, never FAIL.
Rows that contradict each other or the schedule are an ERROR, because then nothing in the evidence can be trusted.

A check of one client makes only the measurements of that client doubtful, and those of the readers of its records:

===================  ===============================================================================================
check                makes doubtful
===================  ===============================================================================================
generator            times on this side of the client: the client library of one process may block, which tells nothing
                     about other processes. No counts: that a record was sent some milliseconds late is no reason for
                     its failure, unless that took half of its deadline
load                 this side of the client
warmup               latencies of the clients that had not settled. Nothing else: a latency that drifts by a tenth is
                     no reason for a failed record or for a stall of seconds, and a client that stands still for good
                     never settles, so its failures must count. A client that completed nothing in the warm-up is judged
                     in everything: it had a chance
clocks               all measurements: times of clients on further hosts (`run_on`) can't be compared
host, clock,         all measurements, because all processes share the host and its clock, and an unfinished run was
complete, abort      not measured to its end
===================  ===============================================================================================
"""

from dataclasses import replace

from aftershock.names import outputs_reader
from aftershock.results.checks.doubts import HarnessCheck
from aftershock.results.evidence.evidence import Client, Evidence, deadline_ms_of
from aftershock.results.evidence.hosts import bounds_us
from aftershock.results.evidence.outages import deaths_of
from aftershock.results.evidence.phases import RUN
from aftershock.results.model.check import Check, Status, trust_check
from aftershock.results.model.facts import Facts, SentRows
from aftershock.results.slo import Side
from aftershock.results.tables.dims import SIDES

LATENESS_MS_MAX = 50.0
LATENESS_Q = 0.99
LATE_TICKS_PERCENT_MAX = 5.0
STEAL_PERCENT_MAX = 10.0
CLOCKS_MS_MAX = 2.0
"""Largest error of the clock of a host: shorter than a request and its answer between two clients through Kafka, so
that no delivery seems to come before its record was sent, and 1 % of the thinnest limit that plans usually have."""
TICKS_MIN = 20  # with fewer ticks a single late one exceeds the limit


_SPANS_SHOWN = 3  # of missing records; more do not fit a line


def harness_checks(evidence: Evidence, facts: Facts) -> list[HarnessCheck]:
    """Return the checks ``harness/...`` of a run.

    Each client that produces or commits has a ``harness/generator`` and a ``harness/load``.
    """
    checks: list[HarnessCheck] = []
    dead = {(death.client.key, death.side) for death in deaths_of(evidence)}
    for side in ("produce", "commit"):
        clients = [client for client in evidence.clients if side in client.topics]
        for client in clients:
            lanes, late = ((side, client.key),), _generator(evidence, facts, client, side)
            if not late.n and (client.key, side) in dead:
                continue  # nothing was to be sent any more, as `client/died` says
            checks.append(HarnessCheck(late, lanes, of_counts=_cost_deadlines(evidence, client, side, late)))
        checks += (HarnessCheck(_load(evidence, facts, client, side), ((side, client.key),)) for client in clients)
    of_clients = {client.key for client in evidence.clients}
    strays = [why for sent in facts.load if sent.client not in of_clients for why in sent.contradictions]
    if strays:
        values = {"n": len(strays), "observed": float(len(strays)), "threshold": 0.0, "unit": "groups of rows"}
        check = trust_check("harness", "load", "; ".join(strays), _AGAIN, passed=False, **values)
        checks.append(HarnessCheck(_contradictory(check)))
    return [*checks, HarnessCheck(_host(facts)), *_clocks(evidence), *_run_checks(evidence, facts)]


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
        "stop other work on the host, or lower the rate"
        if late_ms is not None
        else f"read logs/{client.workload}-{client.arm}-{side}*.log: why was nothing sent?",
        passed=punctual,
        subject=evidence.subject_of(client),
        arm=client.arm,
        observed=late_ms,
        threshold=LATENESS_MS_MAX,
        unit="ms",
        n=lateness.n,
        censored=lateness.censored,
    )


def _cost_deadlines(evidence: Evidence, client: Client, side: Side, generator: Check) -> bool:
    """Return True if the generator was so late, or so many records were never sent, that records may fail for it."""
    return generator.observed is None or 2 * generator.observed >= deadline_ms_of(evidence, client, side)


_AGAIN = "restore the evidence or run the plan again"


def _load(evidence: Evidence, facts: Facts, client: Client, side: Side) -> Check:
    """Return the check that each record that the client's processes had to send has a row."""
    processes = [sent for sent in facts.load if (sent.side, sent.client) == (side, client.key)]
    noun = "commits" if side == "commit" else "records"
    contradictions = [f"{sent.worker or client.key}: {why}" for sent in processes for why in sent.contradictions]
    expected, rows = sum(sent.expected or 0 for sent in processes), sum(sent.rows for sent in processes)
    short = [sent for sent in processes if sent.worker and sent.rows != sent.expected]
    if not processes:
        why = f"the run has no phases, so how many {noun} were due is unknown"
    elif short:
        why = "; ".join(_gap(sent, noun) for sent in short[:_SPANS_SHOWN])
        why += f"; and {len(short) - _SPANS_SHOWN} more processes" if len(short) > _SPANS_SHOWN else ""
    else:
        why = (
            f"each of the {expected} {noun} that were due in the load has a row" if expected else f"no {noun} were due"
        )
    check = trust_check(
        "harness",
        "load" if side == "produce" else f"load-{side}",
        "; ".join([*contradictions, why]),
        f"read logs/{short[0].worker}.log around that time, and run the plan again" if short else _AGAIN,
        passed=expected > 0 and not short and not contradictions,
        subject=evidence.subject_of(client),
        arm=client.arm,
        observed=float(rows) if processes else None,
        threshold=float(expected) if processes else None,
        unit=noun,
        n=rows,
    )
    return _contradictory(check) if contradictions else check


def _gap(sent: SentRows, noun: str) -> str:
    """Return which records of a process have no row, for example ``orders-a-produce: 12 of 50 records have no row``."""
    if sent.expected is None:
        return f"{sent.worker}: no {noun[:-1]} has a row"
    shown = sent.missing[:_SPANS_SHOWN]
    spans = [f"{one.n} to {one.topic} from {one.after_us / 1e6:.2f} to {one.before_us / 1e6:.2f} s" for one in shown]
    missing = sent.expected - sent.rows
    longest = "the longest spans: " if sum(span.n for span in shown) < missing else ""
    return f"{sent.worker}: {missing} of {sent.expected} {noun} have no row ({longest}{', '.join(spans)})"


def _contradictory(check: Check) -> Check:
    return replace(check, status=Status.ERROR, next=_AGAIN, why=f"the evidence contradicts itself: {check.why}")


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


def _clocks(evidence: Evidence) -> list[HarnessCheck]:
    """Return the check of the clocks of hosts; none if all clients ran on the runner's host."""
    bounds = bounds_us(evidence.run)
    if not bounds:
        if not any("run_on" in workload for workload in evidence.timeline["workloads"]):
            return []
        why = "the run has clients on further hosts (`run_on`), and does not tell how wrong their clocks were"
        values = {"observed": None, "threshold": CLOCKS_MS_MAX, "unit": "ms", "n": 0}
        return [HarnessCheck(trust_check("harness", "clocks", why, _AGAIN, passed=False, subject="hosts", **values))]
    worst_ms = max(bounds) / 1e3
    exact = worst_ms <= CLOCKS_MS_MAX
    why = f"the times of clients on {len(bounds)} hosts are at most {worst_ms:.3f} ms wrong"
    advice = None if exact else "stop other work on the hosts, or run the clients nearer to the runner"
    values = {"observed": worst_ms, "threshold": CLOCKS_MS_MAX, "unit": "ms", "n": len(bounds)}
    return [HarnessCheck(trust_check("harness", "clocks", why, advice, passed=exact, subject="hosts", **values))]


def _run_checks(evidence: Evidence, facts: Facts) -> list[HarnessCheck]:
    """Return the checks of the clock, the warm-up, the completeness of the run, and the plan's abort conditions."""
    # time never went backwards: each latency is a difference of two clock readings
    metrics = [f"{side}.latency" for side in SIDES]
    n = sum(facts.distribution(metric, client.key, RUN).n for client in evidence.clients for metric in metrics)
    premature = sum(finding.broken for (rule, _, _), finding in facts.findings.items() if rule == "premature")
    backwards = facts.backwards + premature
    why = f"{backwards} of {n} rows ended before they were sent" if n else "no record was observed"
    advice = "find the program that changes the host's clock, or run the plan again"
    values = {"observed": float(backwards), "threshold": 0.0, "unit": "rows", "n": n}
    clock = trust_check("harness", "clock", why, advice, passed=n > 0 and not backwards, **values)

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

    checks = [HarnessCheck(clock), _warmup(evidence), HarnessCheck(complete)]
    conditions = evidence.run.get("abort")
    if conditions is not None:
        condition, polls = conditions["met"], conditions["looks"]
        why = f"none of the plan's abort conditions held in {polls} polls"
        if condition:
            why = f"the run stopped early, as the plan requires: {condition}"
        cause = "find the fault that led to the abort condition in the events before the abort" if condition else None
        passed = polls > 0 and not condition
        checks.append(HarnessCheck(trust_check("harness", "abort", why, cause, passed=passed, unit="looks", n=polls)))
    return checks


def _warmup(evidence: Evidence) -> HarnessCheck:
    """Return the check of the warm-up, which concerns the clients whose latency had not settled.

    Runs of older versions did not record which clients these are, so that the check concerns all clients. A client that
    completed nothing (``silent``) has no latency that could have settled, and is judged.
    """
    state = evidence.run.get("warmup") or {}
    settled, after_ms, unsettled = bool(state.get("settled")), state.get("after_ms"), state.get("unsettled")
    lanes = {
        worker: (side, client.key)
        for client in evidence.clients
        for side in client.topics
        for worker in client.workers(side)
    }
    lanes |= {outputs_reader(one.workload, one.arm): ("pipe", one.key) for one in evidence.clients if one.pipe}
    silent = set(state.get("silent") or ())
    why = str(state.get("why") or ("latency settled" if settled else "the run ended before its warm-up was over"))
    advice = "raise timing.warmup.max, or stop other work on the host"
    concerned: tuple[tuple[str, str], ...] | None = None
    if not settled and unsettled:
        concerned = tuple(dict.fromkeys(lanes[worker] for worker in unsettled if worker in lanes.keys() - silent))
        why = f"{why}; not settled: {len(unsettled)} of {len(lanes)} clients, {', '.join(unsettled[:_SPANS_SHOWN])}"
        if len(unsettled) < len(lanes):
            advice = f"read logs/{unsettled[0]}.log, because other clients settled; or raise timing.warmup.max"
        if silent:
            first = min(silent)
            why = f"{why}; {first} completed nothing in the warm-up, and is judged all the same"
            advice = f"read logs/{first}.log: why did it complete no record?"
    check = trust_check(
        "harness",
        "warmup",
        why,
        advice,
        passed=settled,
        phase="warmup",
        observed=None if after_ms is None else after_ms / 1e3,
        threshold=evidence.timeline.get("timing", {}).get("warmup_max_ms", 0) / 1e3 or None,
        unit="s",
        n=int("settled" in state),
    )
    return HarnessCheck(check, concerned, of_latency=True)
