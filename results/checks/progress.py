"""Checks ``obligation/produce``, ``/consume`` and ``/commit``, which require progress even without any SLO.

A client must make progress while progress is possible (docs/OBLIGATIONS.md). An obligation check FAILS if
a stall in a stretch of required progress lasts longer than the patience (longest permitted stall), or is INCONCLUSIVE
if the host can't be trusted. The check passes only if a client that stands still would have been found during at least
``SHARE_MIN`` of the load after warm-up; with less it is INCONCLUSIVE, and affects the run's status only if the judge is
strict. So is the check of a producer with ``acks=0``, which shows no progress.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aftershock.results.checks.doubts import Doubts, settled
from aftershock.results.checks.obligations.lanes import Lane, lanes
from aftershock.results.checks.obligations.spans import PATIENCE_US, Span, stretches
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, Interval, merged, overlap_us
from aftershock.results.evidence.transactions import reads_committed
from aftershock.results.model.check import Check, Status, percent
from aftershock.results.model.facts import Facts, FailureSpan, Stall

SHARE_MIN = 0.4
"""Share of the load after warm-up below which an obligation check does not pass, because a client could have stood
still unnoticed in most of the time. Shipped plans reach ``SHARE_ADVISED``."""
SHARE_ADVISED = 0.6
STARTING_US = 30_000_000
"""Time after a warm-up that did not settle in which a client may still be starting, such as joining its group."""
SETTING_SHARE_MIN = 0.1
"""Share of the time that a setting has to excuse to be named in advice."""
SAMPLING_US = 1_000_000
"""Time by which a standstill of a last stable offset may be longer than its samples say, at each end: two periods."""
LONG_WAIT_MS = 2_000
"""Wait of a client beyond which its setting is named in advice; the others are shorter than any fault."""


@dataclass(frozen=True)
class Overlap:
    """Part of a stall that lies within a stretch of time in which progress was possible and therefore required.

    ``span`` is the span with the most patience of those that the part meets. A stall that goes on when the patience
    falls, such as after the heal of a delay, has a part from then on, too; ``kept_us`` is what it may last at least.
    """

    stall: Stall
    span: Span
    start_us: int
    end_us: int
    left_out: tuple[Interval, ...] = ()
    kept_us: int = 0

    @property
    def allowed_us(self) -> int:
        return max(self.span.patience_us, self.kept_us)

    @property
    def within_us(self) -> int:
        return self.end_us - self.start_us - overlap_us(self.left_out, self.start_us, self.end_us)

    @property
    def over_us(self) -> int:
        return self.within_us - self.allowed_us


def obligation_checks(evidence: Evidence, facts: Facts, doubts: Doubts) -> list[Check]:
    """Return the check of each lane. A generator that falls behind is no doubt: it may be the judged client's fault."""
    harness, again = (
        [doubt for doubt in checks if not doubt.check.id.startswith("harness/generator")]
        for checks in (doubts.harness, doubts.harness_again)
    )
    doubts = replace(doubts, harness=harness, harness_again=again)
    checks = []
    for lane in lanes(evidence):

        def judge_again(again: Facts, lane: Lane = lane) -> Check:
            return _check(evidence, again, lane)

        plain = _check(evidence, facts, lane)
        judged = settled(plain, judge_again, evidence, doubts, [(lane.side, lane.client)], (RUN,))
        checks.append(_with_share(judged, lane, strict=doubts.strict))
    return checks


def _with_share(check: Check, lane: Lane, *, strict: bool) -> Check:
    """Let a check that would have found a stall in too little of the time pass no more."""
    check = replace(check, share=lane.share)
    if check.status is Status.PASS and lane.share < SHARE_MIN:
        share, least = percent(lane.share), percent(SHARE_MIN)
        why = f"judged for {share} of the time after warm-up, where {least} are needed; {check.why}"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next=share_advice(lane), gate=strict)
    return replace(check, gate=True) if strict else check


def share_advice(lane: Lane) -> str:
    """Return how a plan lets a lane be judged for longer: by the client's own waits, or by a longer phase."""
    excused_us: dict[str, int] = {}
    for spans in [*lane.partitions.values()] or [lane.whole]:
        for span in spans:
            own = max((term for term in span.grace if term.own), key=lambda term: term.ms, default=None)
            if not span.required and own is not None and own.ms > LONG_WAIT_MS:
                length_us = max(0, min(span.end_us, lane.end_us) - span.start_us)
                name = own.name.rpartition(" ")[2]
                excused_us[name] = excused_us.get(name, 0) + min(length_us, round(1000 * own.ms))
    setting = max(excused_us, key=lambda name: excused_us[name], default=None)
    if setting and excused_us[setting] < SETTING_SHARE_MIN * lane.length_us * max(1, len(lane.partitions)):
        setting = None
    # all of the added time is judged
    longer_s = math.ceil((SHARE_ADVISED - lane.share) * lane.length_us / (1 - SHARE_ADVISED) / 1e6)
    phase = f"lengthen timing.steady or timing.recovery by {longer_s} s in all"
    return f"lower the arm's `{setting}`, or {phase}" if setting else phase


def _check(evidence: Evidence, facts: Facts, lane: Lane) -> Check:
    side, client = lane.side, lane.client
    stalls = [stall for stall in facts.stalls if (stall.side, stall.client) == (side, client.key)]
    left_out = facts.left_out.get((side, client.key), ())
    waits = {stall: held_back_in(evidence, facts, lane, stall) for stall in stalls}
    found = [overlap for stall in stalls for overlap in overlaps(lane, stall, merged([*left_out, *waits[stall]]))]
    if not (evidence.run.get("warmup") or {}).get("settled", True):
        start_us = lane.whole[0].start_us
        found = [overlap for overlap in found if not _starting(overlap.stall, start_us, lane.end_us)]
    worst = max(found, key=lambda overlap: (overlap.over_us, overlap.within_us), default=None)
    broken = worst is not None and worst.over_us > 0
    n = facts.distribution(f"{side}.latency", client.key, RUN).n
    why = (
        _why(facts, lane, stalls, worst, waits) if n or broken else "progress was required, but no record was observed"
    )
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
        subject=evidence.subject_of(client),
        arm=client.arm,
        status=status,
        observed=worst.within_us / 1e6 if worst else None,
        threshold=(worst.allowed_us if worst else PATIENCE_US) / 1e6,
        unit="s",
        n=n,
        minimum=0 if broken else 1,
        why=why,
        next=advice,
        gate=not unobserved,
    )


def held_back_in(evidence: Evidence, facts: Facts, lane: Lane, stall: Stall) -> Sequence[Interval]:
    """Return when open transactions held a reader of committed records back in the partition of a stall.

    The reader as a whole is held back while all of its partitions are.
    """
    if lane.side != "consume" or not facts.stable or not reads_committed(evidence, lane.client):
        return ()
    held = {
        place: merged([(one.start_us - SAMPLING_US, one.end_us + SAMPLING_US) for one in stable.standstills])
        for place, stable in facts.stable.items()
        if place[0] in lane.topics
    }
    if stall.partition is not None:
        return held.get((stall.topic or lane.topics[0], stall.partition), ())
    common: Sequence[Interval] = [(stall.start_us, stall.end_us)]
    for spans in held.values():
        common = [(max(start, first), min(end, last)) for start, end in common for first, last in spans if start < last]
        common = [(start, end) for start, end in common if start < end]
    return common if held else ()


def _starting(stall: Stall, start_us: int, end_us: int) -> bool:
    """Return True for a stall of a client that was still starting when the judged time began, and then worked."""
    return stall.start_us <= start_us and stall.end_us < min(end_us, start_us + STARTING_US)


def overlaps(lane: Lane, stall: Stall, left_out: tuple[Interval, ...] = ()) -> Iterator[Overlap]:
    """Yield the parts of a stall in which progress was required; the times ``left_out`` count for nothing."""
    # a record that waits through a stall waits for most of it, unless its deadline is shorter
    long_us = min(PATIENCE_US, lane.deadline_us, (stall.end_us - stall.start_us) // 2)
    waiting = stall.waited_us is None or stall.waited_us >= long_us
    for stretch in stretches(lane.of(stall.partition, stall.topic), waiting=waiting):
        start_us, end_us = max(stall.start_us, stretch[0].start_us), min(stall.end_us, stretch[-1].end_us)
        met = [span for span in stretch if span.start_us < end_us and start_us < span.end_us]
        if start_us >= end_us:
            continue
        for first, span in enumerate(met):
            if first and span.patience_us >= met[first - 1].patience_us:
                continue
            most = max(met[first:], key=lambda span: span.patience_us)
            kept_us = max((before.kept_us for before in met[:first]), default=0)
            overlap = Overlap(stall, most, max(start_us, span.start_us), end_us, left_out, kept_us)
            if overlap.within_us > 0:
                yield overlap


def _why(
    facts: Facts,
    lane: Lane,
    stalls: Sequence[Stall],
    worst: Overlap | None,
    waits: Mapping[Stall, Sequence[Interval]],
) -> str:
    required_s, length_s = lane.share * lane.length_us / 1e6, lane.length_us / 1e6
    share = percent(lane.share)
    texts = [f"progress was required for {share} of the time after warm-up ({required_s:.1f} of {length_s:.1f} s)"]
    if worst is None:
        texts.append("no stall within that time")
    else:
        stall, span = worst.stall, worst.span
        topic = stall.topic or lane.topics[0]
        given_up = ""
        if span.grace and not span.required:
            waited_s = (stall.waited_us or 0) / 1e6
            given_up = f"; that excuses waiting, and here no record waited for more than {waited_s:.1f} s"
        where = "the client as a whole" if stall.partition is None else f"{topic}/{stall.partition}"
        lasted_s, start_s, end_s, allowed_s = (
            us / 1e6 for us in (worst.within_us, stall.start_us, stall.end_us, worst.allowed_us)
        )
        texts.append(
            f"the longest stall within that time, of {where}, lasted {lasted_s:.1f} s "
            f"(from {start_s:.1f} to {end_s:.1f} s; {allowed_s:g} s are allowed: {span.why}{given_up})"
        )
    # a stall while no progress was required, and failures, are only reported
    idle = [stall for stall in stalls if not [*overlaps(lane, stall)]]
    reasons = ((stall, _excuse(lane.of(stall.partition, stall.topic), stall)) for stall in idle)
    permitted = [(stall, excuse) for stall, excuse in reasons if excuse]
    if permitted:
        longest, reason = max(permitted, key=lambda pair: pair[0].end_us - pair[0].start_us)
        texts.append(f"a stall of {(longest.end_us - longest.start_us) / 1e6:.1f} s was permitted ({reason})")
    longest_us = max((end - start for spans in waits.values() for start, end in spans), default=0)
    if longest_us:
        texts.append(
            f"open transactions held it back for up to {longest_us / 1e6:.1f} s, which obligation/stable_offset judges"
        )
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
