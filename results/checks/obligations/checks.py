"""Checks ``obligation/produce``, ``/consume`` and ``/commit``, which require progress even without any SLO.

A client must make progress while progress is possible (``spans.py``, docs/OBLIGATIONS.md). An obligation check FAILS if
a stall in a time of required progress lasts longer than the patience (longest permitted stall), or is INCONCLUSIVE if
the harness can't be trusted. A producer with ``acks=0`` shows no progress: its check FAILS, or is INCONCLUSIVE and does
not affect the run's status. A client of which no progress was ever required has no obligation check.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aftershock.results.checks.check import Check, Doubts, Status, subject_of
from aftershock.results.checks.obligations.spans import PATIENCE_US, Span
from aftershock.results.checks.obligations.stalls import Lane, lanes
from aftershock.results.checks.suspects import settled
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval, overlap_us
from aftershock.results.measure.facts import Facts, FailureSpan, Stall


@dataclass(frozen=True)
class _Overlap:
    """Part of a stall that lies within a span of time in which progress was possible and therefore required."""

    stall: Stall
    span: Span
    left_out: tuple[Interval, ...] = ()

    @property
    def within_us(self) -> int:
        start_us, end_us = max(self.stall.start_us, self.span.start_us), min(self.stall.end_us, self.span.end_us)
        return end_us - start_us - overlap_us(self.left_out, start_us, end_us)

    @property
    def over_us(self) -> int:
        return self.within_us - self.span.patience_us


def obligation_checks(evidence: Evidence, facts: Facts, doubts: Doubts) -> list[Check]:
    """Return the check of each lane in which progress was required."""
    checks = []
    for lane in lanes(evidence):
        if lane.required_us:

            def judge_again(again: Facts, lane: Lane = lane) -> Check:
                return _check(evidence, again, lane)

            owners = [(lane.side, lane.client)]
            plain = _check(evidence, facts, lane)
            checks.append(settled(plain, judge_again, evidence, doubts, owners, (RUN,)))
    return checks


def _check(evidence: Evidence, facts: Facts, lane: Lane) -> Check:
    side, client = lane.side, lane.client
    stalls = [stall for stall in facts.stalls if (stall.side, stall.client) == (side, client.key)]
    left_out = facts.left_out.get((side, client.key), ())
    overlaps = [overlap for stall in stalls for overlap in _overlaps(lane, stall, left_out)]
    worst = max(overlaps, key=lambda overlap: (overlap.over_us, overlap.within_us), default=None)
    broken = worst is not None and worst.over_us > 0
    n = facts.distribution(f"{side}.latency", client.key, RUN).n
    why = _why(facts, lane, stalls, worst) if n else "progress was required, but no record was observed"
    status, advice = Status.PASS, None
    if broken:
        status = Status.FAIL
        advice = (
            "read the logs of the client and the brokers around the longest stall; docs/OBLIGATIONS.md explains "
            "how the allowed time is computed"
        )
    elif not n:
        status, advice = Status.INCONCLUSIVE, "add to the plan traffic that this obligation to make progress applies to"
    unobserved = status is Status.PASS and side == "produce" and client.acks == "0"
    if unobserved:
        status, why = Status.INCONCLUSIVE, f"with acks=0 no record was acknowledged, only sent; measured: {why}"
        advice = "nothing: an obligation of a producer with acks=0 can only fail; with `acks: 1` it can also pass"
    return Check(
        id=f"obligation/{side}",
        kind="obligation",
        subject=subject_of(client, evidence.clients),
        arm=client.arm,
        status=status,
        observed=worst.within_us / 1e6 if worst else None,
        threshold=(worst.span.patience_us if worst else PATIENCE_US) / 1e6,
        unit="s",
        n=n,
        minimum=1,
        why=why,
        next=advice,
        gate=not unobserved,
    )


def _overlaps(lane: Lane, stall: Stall, left_out: tuple[Interval, ...] = ()) -> list[_Overlap]:
    overlaps = (_Overlap(stall, span, left_out) for span in lane.of(stall.partition, stall.topic) if span.required)
    return [overlap for overlap in overlaps if overlap.within_us > 0]


def _why(facts: Facts, lane: Lane, stalls: Sequence[Stall], worst: _Overlap | None) -> str:
    texts = [f"progress was required for {lane.required_us / 1e6:.1f} of {lane.length_us / 1e6:.1f} s"]
    if worst is None:
        texts.append("no stall within that time")
    else:
        stall, span = worst.stall, worst.span
        topic = stall.topic or lane.topics[0]
        where = "the client as a whole" if stall.partition is None else f"{topic}/{stall.partition}"
        lasted_s, start_s, end_s, allowed_s = (
            us / 1e6 for us in (worst.within_us, stall.start_us, stall.end_us, span.patience_us)
        )
        texts.append(
            f"the longest stall within that time, of {where}, lasted {lasted_s:.1f} s "
            f"(from {start_s:.1f} to {end_s:.1f} s; {allowed_s:g} s are allowed: {span.why})"
        )
    # a stall while no progress was required, and failures, are only reported
    idle = [stall for stall in stalls if not _overlaps(lane, stall)]
    reasons = ((stall, _excuse(lane.of(stall.partition, stall.topic), stall)) for stall in idle)
    permitted = [(stall, excuse) for stall, excuse in reasons if excuse]
    if permitted:
        longest, reason = max(permitted, key=lambda pair: pair[0].end_us - pair[0].start_us)
        texts.append(f"a stall of {(longest.end_us - longest.start_us) / 1e6:.1f} s was permitted ({reason})")
    failures = facts.failures.get((lane.side, lane.client.key), ())
    if failures:
        excused = {failure: excuse for failure in failures if (excuse := _excuse(lane.whole, failure))}
        noun = "commits" if lane.side == "commit" else "records"
        because = f" ({next(iter(excused.values()))})" if excused else ""
        failed, failed_in_excused = (sum(failure.n for failure in some) for some in (failures, excused))
        texts.append(
            f"{failed} {noun} failed, {failed_in_excused} of them while no progress was required{because}; "
            "single failures are not judged"
        )
    return "; ".join(texts)


def _excuse(spans: Sequence[Span], time: Stall | FailureSpan) -> str | None:
    """Return why progress was not required at some moment of a stall or failure; None if it was always required."""
    during = [span for span in spans if span.start_us < time.end_us and time.start_us < span.end_us]
    reason = None if during else "it was before or after the judged part of the run"
    return next((span.why for span in during if not span.required), reason)
