"""Judges the stalls by what was owed: ``obligation/produce``, ``obligation/consume``, ``obligation/commit``.

Rules. A stall inside an obligation that outlasts the patience FAILS, without any SLO; under a harness that can't be
trusted it is INCONCLUSIVE. Stalls and failures outside are counted in ``why``, with the reason why they were permitted.
A client that was owed nothing at all has no such check. What holds at every moment (nothing lost, nothing twice) is
``integrity/...``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aftershock.results.checks.check import Check, Status, subject_of
from aftershock.results.checks.obligations.spans import PATIENCE_US, Span
from aftershock.results.checks.obligations.stalls import Lane, lanes
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure.facts import Facts, Failed, Stall


@dataclass(frozen=True)
class _Broken:
    """The part of a stall that lies in a span in which progress was owed."""

    stall: Stall
    span: Span

    @property
    def within_us(self) -> int:
        return min(self.stall.end_us, self.span.end_us) - max(self.stall.start_us, self.span.start_us)

    @property
    def over_us(self) -> int:
        return self.within_us - self.span.patience_us


def obligations(evidence: Evidence, facts: Facts, untrusted: str | None) -> list[Check]:
    """A check for each side of each client that was owed progress. ``untrusted``: why the harness is in doubt."""
    return [_check(evidence, facts, lane, untrusted) for lane in lanes(evidence) if lane.owed_us]


def _check(evidence: Evidence, facts: Facts, lane: Lane, untrusted: str | None) -> Check:
    side, client = lane.side, lane.client
    worst = max(_overlaps(facts, lane), key=lambda one: (one.over_us, one.within_us), default=None)
    broken = worst is not None and worst.over_us > 0
    n = facts.distribution(f"{side}.latency", client.key, RUN).n
    status = Status.FAIL if broken else Status.PASS if n else Status.INCONCLUSIVE
    why = _why(facts, lane, worst, n)
    advice = "read the client's log and the brokers' around that time; docs/OBLIGATIONS.md has the arithmetic"
    if broken and untrusted:
        status, why, advice = Status.INCONCLUSIVE, f"{untrusted}; measured: {why}", "mend what the harness checks say"
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
        next=advice if broken else None if n else "give the plan traffic that this can be judged by",
    )


def _overlaps(facts: Facts, lane: Lane) -> Iterator[_Broken]:
    for stall in facts.stalls:
        if (stall.side, stall.client) == (lane.side, lane.client.key):
            for span in lane.of(stall.partition):
                one = _Broken(stall, span)
                if span.owed and one.within_us > 0:
                    yield one


def _why(facts: Facts, lane: Lane, worst: _Broken | None, n: int) -> str:
    if not n:
        return "progress was owed, but no record was seen"
    owed = f"progress was owed for {lane.owed_us / 1e6:.1f} of {lane.length_us / 1e6:.1f} s"
    if worst is None:
        seen = "no stall reached into it"
    else:
        stall, span = worst.stall, worst.span
        where = "the client as a whole" if stall.partition is None else f"{lane.topic}/{stall.partition}"
        seen = (
            f"the longest stall in it, of {where}, lasted {worst.within_us / 1e6:.1f} s "
            f"(from {stall.start_us / 1e6:.1f} to {stall.end_us / 1e6:.1f} s; "
            f"{span.patience_us / 1e6:g} s are allowed: {span.why})"
        )
    return "; ".join([owed, seen, *_permitted(facts, lane)])


def _permitted(facts: Facts, lane: Lane) -> Iterator[str]:
    """What is only reported: the longest stall while nothing was owed, and failures, each with a reason."""
    mine = [stall for stall in facts.stalls if (stall.side, stall.client) == (lane.side, lane.client.key)]
    free = [stall for stall in mine if _unowed(lane.of(stall.partition), stall) and not _owed_some(lane, stall)]
    if free:
        longest = max(free, key=lambda stall: stall.end_us - stall.start_us)
        reason = _unowed(lane.of(longest.partition), longest)
        yield f"a stall of {(longest.end_us - longest.start_us) / 1e6:.1f} s was permitted ({reason})"
    failed = facts.failures.get((lane.side, lane.client.key), ())
    excused = {one: reason for one in failed if (reason := _unowed(lane.whole, one))}
    if failed:
        why = f" ({next(iter(excused.values()))})" if excused else ""
        told = f"{sum(one.n for one in excused)} of them while nothing was owed{why}, and none is judged by itself"
        yield f"{sum(one.n for one in failed)} failed, {told}"


def _unowed(spans: Sequence[Span], time: Stall | Failed) -> str | None:
    """The first reason why nothing was owed at some moment of it; None where something was at every one."""
    met = [span for span in spans if span.start_us < time.end_us and time.start_us < span.end_us]
    return next((span.why for span in met if not span.owed), None if met else "it was before or after what is judged")


def _owed_some(lane: Lane, stall: Stall) -> bool:
    return any(span.owed and _Broken(stall, span).within_us > 0 for span in lane.of(stall.partition))
