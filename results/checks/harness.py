"""Whether the harness itself can be believed: its load generator, host, clock and warm-up, and that the run finished.

Limits, after warm-up: the 99th percentile of a generator's lateness at most 50 ms, what a fault held up not counted; at
most 5 % of the host's 100 ms ticks more than 50 ms late; at most 10 % of the CPU stolen by the hypervisor on average.
Beyond them nothing is proven: these checks are PASS or INCONCLUSIVE, never FAIL.
"""

from collections.abc import Iterator

from aftershock.results.checks.check import Check, Status, subject_of
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure.facts import Facts
from aftershock.results.slo import Side

LATENESS_MS_MAX = 50.0
LATENESS_Q = 0.99
LATE_TICKS_PERCENT_MAX = 5.0
STEAL_PERCENT_MAX = 10.0
TICKS_MIN = 20  # one late tick of fewer would be over the limit


def harness(evidence: Evidence, facts: Facts) -> list[Check]:
    """The kinds of check, the generator's for each client that produces or commits."""
    producing = [_generator(evidence, facts, client, "produce") for client in evidence.clients if client.produces_to]
    committing = [_generator(evidence, facts, client, "commit") for client in evidence.clients if client.commits_to]
    ours = [_host(facts), _clock(evidence, facts), _warmup(evidence), _complete(evidence)]
    return [*producing, *committing, *ours, *_abort(evidence)]


def _generator(evidence: Evidence, facts: Facts, client: Client, side: Side) -> Check:
    lateness = facts.distribution(f"{side}.lateness", client.key, RUN)
    late_us = lateness.at.get(LATENESS_Q)
    late_ms = None if late_us is None else late_us / 1e3
    punctual = late_ms is not None and late_ms <= LATENESS_MS_MAX
    what = "commit" if side == "commit" else "record"
    seen = f"no {what} was sent after warm-up" if not lateness.n else f"{lateness.censored} {what}s never left it"
    seen = f"p99 of sent - intended is {late_ms:.1f} ms" if late_ms is not None else seen
    return Check(
        id="harness/generator" if side == "produce" else f"harness/generator-{side}",
        kind="harness",
        subject=subject_of(client, evidence.clients),
        arm=client.arm,
        status=Status.PASS if punctual else Status.INCONCLUSIVE,
        observed=late_ms,
        threshold=LATENESS_MS_MAX,
        unit="ms",
        n=lateness.n,
        minimum=1,
        censored=lateness.censored,
        why=seen if punctual else f"the load generator lagged its own schedule: {seen}",
        next=None if punctual else "free the host of other work, or lower the rate",
    )


def _abort(evidence: Evidence) -> Iterator[Check]:
    """Whether the run went to its end, where its plan names conditions to stop at."""
    watched = evidence.run.get("abort")
    if watched is None:
        return
    met = watched["met"]
    yield Check(
        id="harness/abort",
        kind="harness",
        subject="run",
        status=Status.INCONCLUSIVE if met or not watched["looks"] else Status.PASS,
        unit="looks",
        n=watched["looks"],
        minimum=1,
        why=f"stopped, as the plan asks: {met}" if met else f"no condition of the plan's in {watched['looks']} looks",
        next="see what the cluster was put through before that moment" if met else None,
    )


def _host(facts: Facts) -> Check:
    host = facts.host
    late = 100 * host.late_ticks / host.ticks if host.ticks else None
    steal = 100 * (host.steal or 0.0)
    watched = host.ticks >= TICKS_MIN
    calm = watched and late is not None and late <= LATE_TICKS_PERCENT_MAX and steal <= STEAL_PERCENT_MAX
    doubt = "the host was starved" if watched else "the host was watched for too short a time"
    busy = "" if host.cpu_busy is None else f"; CPU {100 * host.cpu_busy:.0f} % busy"
    seen = (
        f"{late:.1f} % of 100 ms ticks over 50 ms late, {steal:.1f} % stolen{busy}" if late is not None else "no ticks"
    )
    return Check(
        id="harness/host",
        kind="harness",
        subject="host",
        status=Status.PASS if calm else Status.INCONCLUSIVE,
        observed=late,
        threshold=LATE_TICKS_PERCENT_MAX,
        unit="%",
        n=host.ticks,
        minimum=TICKS_MIN,
        why=seen if calm else f"{doubt}: {seen}",
        next=None if calm else _advice(watched=watched),
    )


def _clock(evidence: Evidence, facts: Facts) -> Check:
    """Whether time went forwards: every figure is a difference of two moments."""
    metrics = [f"{side}.latency" for side in ("produce", "consume", "commit")]
    n = sum(facts.distribution(metric, client.key, RUN).n for client in evidence.clients for metric in metrics)
    forwards = n > 0 and not facts.backwards
    return Check(
        id="harness/clock",
        kind="harness",
        subject="run",
        status=Status.PASS if forwards else Status.INCONCLUSIVE,
        observed=float(facts.backwards),
        threshold=0.0,
        unit="rows",
        n=n,
        minimum=1,
        why=f"{facts.backwards} of {n} were done before they were sent" if n else "no record was seen to tell by",
        next=None if forwards else "look for what sets the host's clock, or run the plan again",
    )


def _advice(*, watched: bool) -> str:
    return "free the host of other work, or give it more cores" if watched else "lengthen timing.steady to 2s or more"


def _warmup(evidence: Evidence) -> Check:
    warmup = evidence.run.get("warmup") or {}
    settled = bool(warmup.get("settled"))
    after_ms = warmup.get("after_ms")
    return Check(
        id="harness/warmup",
        kind="harness",
        subject="run",
        phase="warmup",
        status=Status.PASS if settled else Status.INCONCLUSIVE,
        observed=None if after_ms is None else after_ms / 1e3,
        threshold=evidence.timeline.get("timing", {}).get("warmup_max_ms", 0) / 1e3 or None,
        unit="s",
        n=int("settled" in warmup),
        minimum=1,
        why=str(warmup.get("why") or ("latency settled" if settled else "the run ended before warm-up did")),
        next=None if settled else "raise timing.warmup.max, or free the host of other work",
    )


def _complete(evidence: Evidence) -> Check:
    status = str(evidence.run.get("status"))
    why = "the run finished and named its evidence" if evidence.complete else f"the run is {status}"
    if not evidence.complete:
        why += f": {evidence.run['why']}" if evidence.run.get("why") else ", and its evidence partial"
    files = sum(len(parts) for parts in evidence.parquet.values())
    return Check(
        id="harness/complete",
        kind="harness",
        subject="run",
        status=Status.PASS if evidence.complete and files else Status.INCONCLUSIVE,
        observed=float(files),
        unit="files",
        n=files,
        minimum=1,
        why=why if files else f"{why}; there are no records",
        next=None if evidence.complete and files else "run the plan again, to its end",
    )
