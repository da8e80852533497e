"""Doubts about measurements: why a run, or a client of it, can't be trusted, and which checks that concerns.

Faults without proof, and a harness that was too slow, are one source of doubt. The other are suspect intervals, in
which the load generator or the host stood still. Each client process and the runner have a timer
(``workloads/load/events.py``), which writes an event ``stalled`` when it fired 50 ms late or more. The following table
lists the causes.

===================  ==============================================================================  =================
cause                evidence                                                                        concerns
===================  ==============================================================================  =================
host suspended       BOOTTIME gained 50 ms or more on MONOTONIC                                      all clients
VM paused            a late tick, and REALTIME jumped by 50 ms or more, or at least 10 % of the CPU  all clients
                     time was stolen
generator stalled    a late tick without any of these                                                the client; its
                                                                                                     readers; all if
                                                                                                     it is the runner
===================  ==============================================================================  =================

A stall that a fault of the plan caused (``pause_client``) is not suspect. After a stall, a client works off what fell
due meanwhile, so an interval is prolonged by the length of its stall, at most a minute.

The rule is stated in docs/VERDICT.md. ``left_out`` gives the times that the second measurement leaves out
(``without`` in ``results/measure/samples.py``), ``settled`` compares its check with that of the first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.evidence.outages import FROZEN, KILLED, worker_outages
from aftershock.results.evidence.phases import RUN, Interval, merged, overlap_us
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts, Suspect
from aftershock.results.slo import Side

EVENT = "stalled"
STALL_US_MIN = 50_000
STOLEN_MIN = 0.1
AFTERMATH_US_MAX = 60_000_000
SUSPECTS_MAX = 1_000
"""Number of suspect intervals of a run that count, the longest; a host with more stalls fails ``harness/host``."""

SHARE_PERCENT_MAX = 5.0
Lane = tuple[Side, Client]
ClientLane: TypeAlias = tuple[str, str]
"""Side of a client (produce, consume, commit) and the client's key."""


@dataclass(frozen=True)
class HarnessCheck:
    """Check of the harness, and the measurements that are in doubt if the check does not pass.

    These are the measurements of ``lanes``, None for all clients; only of latencies if ``of_latency``, and none that
    only count records if not ``of_counts``.
    """

    check: Check
    lanes: tuple[ClientLane, ...] | None = None
    of_latency: bool = False
    of_counts: bool = True


@dataclass(frozen=True)
class Doubts:
    """Reasons to distrust a run, by fault id for unproven faults.

    ``harness`` are the harness checks. If the run has ``suspects``, ``again`` are its measurements without their times,
    and ``harness_again`` the harness checks of these. If ``strict``, the run's status depends on each obligation check.
    """

    unproven: Mapping[str, str] = field(default_factory=dict)
    harness: Sequence[HarnessCheck] = ()
    suspects: tuple[Suspect, ...] = ()
    again: Facts | None = None
    harness_again: Sequence[HarnessCheck] = ()
    strict: bool = False

    def reason(
        self, lanes: Collection[ClientLane], *, of_latency: bool, of_count: bool = False, again: bool = False
    ) -> str | None:
        """Return why the harness makes a measurement of ``lanes`` doubtful, in the second measurement if ``again``.

        A reason that concerns all measurements comes first.
        """
        harness = self.harness_again if again else self.harness
        failed = [doubt for doubt in harness if doubt.check.status is not Status.PASS]
        for doubt in sorted(failed, key=lambda doubt: doubt.lanes is not None or doubt.of_latency):
            concerned = doubt.lanes is None or not {*lanes}.isdisjoint(doubt.lanes)
            if concerned and (of_latency or not doubt.of_latency) and (doubt.of_counts or not of_count):
                return f"{doubt.check.id}: {doubt.check.why}"
        return None


def unproven_faults(checks: Iterable[Check]) -> dict[str, str]:
    """Map each fault with a witness or exposure check that did not pass to the first reason."""
    unproven: dict[str, str] = {}
    for check in checks:
        if check.status is not Status.PASS:
            unproven.setdefault(check.id.split("/", 1)[1], f"{check.id}: {check.why}")
    return unproven


NO_DOUBTS = Doubts()


def suspects_of(evidence: Evidence) -> tuple[Suspect, ...]:
    """Return the suspect intervals of a run, in order of time; none if the run has no such events."""
    planned = worker_outages(evidence, KILLED, FROZEN)
    found = []
    for line in evidence.events:
        if line.get("event") != EVENT:
            continue
        start_us, end_us, late_us, suspended_us = (
            int(line[name]) for name in ("since_us", "until_us", "late_us", "suspended_us")
        )
        if overlap_us(planned.get(str(line.get("worker")), ()), start_us, end_us):
            continue
        key = f"{line['workload']}/{line['arm']}" if line.get("worker") else None
        cause, stalled_us = "the process was stopped or got no CPU", late_us
        if suspended_us >= STALL_US_MIN:
            cause, key, stalled_us = "the host was suspended", None, suspended_us
        elif late_us >= STALL_US_MIN and (abs(line["stepped_us"]) >= STALL_US_MIN or line["stolen"] >= STOLEN_MIN):
            cause, key = "the virtual machine was paused", None
        if stalled_us >= STALL_US_MIN:
            side = line["op"] if key else None
            found.append(
                Suspect(cause, str(line.get("worker") or "the runner"), side, key, start_us, end_us, stalled_us)
            )
    longest = sorted(found, key=lambda suspect: -suspect.stalled_us)[:SUSPECTS_MAX]
    return tuple(sorted(longest, key=lambda suspect: suspect.start_us))


def _sources(evidence: Evidence, lanes: Iterable[Lane]) -> set[ClientLane]:
    """Return the lanes of the clients, and of the producers whose records the clients read.

    The latency of a reader counts from the time at which the producer had to send, and records that were not sent can't
    be delivered, so whatever spoils a measurement of a producer spoils those of its readers.
    """
    keys = set[ClientLane]()
    for side, client in lanes:
        keys.add((side, client.key))
        if side == "consume":
            keys |= {("produce", other.key) for other in evidence.clients if client.reads_from(other)}
    return keys


def _concerning(evidence: Evidence, suspects: Sequence[Suspect], lanes: Iterable[Lane]) -> list[Suspect]:
    """Return the suspects of the host, of the clients, and of the producers whose records the clients read."""
    keys = _sources(evidence, lanes)
    return [suspect for suspect in suspects if suspect.client is None or (suspect.side, suspect.client) in keys]


def left_out(evidence: Evidence) -> dict[tuple[str, str], tuple[Interval, ...]]:
    """Return the suspect times, with the time to catch up, that concern each client, by side and client key."""
    suspects = suspects_of(evidence)
    times: dict[tuple[str, str], tuple[Interval, ...]] = {}
    for client in evidence.clients:
        for side in client.topics:
            own = _concerning(evidence, suspects, [(side, client)])
            if own:
                ends = (suspect.end_us + min(suspect.stalled_us, AFTERMATH_US_MAX) for suspect in own)
                times[side, client.key] = merged([(one.start_us, end) for one, end in zip(own, ends, strict=True)])
    return times


def settled(
    check: Check,
    judge_again: Callable[[Facts], Check],
    evidence: Evidence,
    doubts: Doubts,
    lanes: Sequence[Lane],
    windows: Iterable[str | None],
    *,
    of_latency: bool = False,
    of_count: bool = False,
) -> Check:
    """Apply the rule for suspect intervals, and for a slow harness, to a check of latency, availability or progress.

    A latency that had not settled in warm-up makes only checks ``of_latency`` doubtful, and a generator that was late
    none ``of_count`` of records.
    """
    own, sources = _concerning(evidence, doubts.suspects, lanes), _sources(evidence, lanes)
    reason = doubts.reason(sources, of_latency=of_latency, of_count=of_count)
    spans = merged([span for window in windows for span in evidence.windows.get(window or RUN, ())])
    within = [suspect for suspect in own if overlap_us(spans, suspect.start_us, suspect.end_us)]
    if check.status is Status.FAIL and own:
        again = None if doubts.again is None else judge_again(doubts.again)
        reason_again = doubts.reason(sources, of_latency=of_latency, of_count=of_count, again=True)
        if again is not None and again.status is Status.FAIL and reason_again is None:
            unchanged = again.why == check.why
            addition = "the same without suspect times" if unchanged else f"without suspect times: {again.why}"
            return replace(check, why=f"{check.why}; {addition}")
        if again is None or again.status is not Status.FAIL:
            why = f"{_sentence(within or own)}, and without such times the check does not fail; measured: {check.why}"
            advice = "stop other work on the host, and find out what stopped the process"
            return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    if check.status is Status.FAIL and reason:
        why = f"{reason}; measured: {check.why}"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next="fix the cause shown in the harness checks")
    stalls = merged([(max(one.start_us, one.end_us - one.stalled_us), one.end_us) for one in within])
    stalled_us = sum(overlap_us(spans, *stall) for stall in stalls)
    percent = 100 * stalled_us / max(1, sum(end - start for start, end in spans))
    if check.status is Status.PASS and percent > SHARE_PERCENT_MAX:
        why = (
            f"{_sentence(within)}; {percent:.1f} % of the judged time is suspect, more than {SHARE_PERCENT_MAX:g} %; "
            f"measured: {check.why}"
        )
        advice = "stop other work on the host, or lengthen the window"
        return replace(check, status=Status.INCONCLUSIVE, why=why, next=advice)
    return check


def _sentence(suspects: Sequence[Suspect]) -> str:
    longest = max(suspects, key=lambda suspect: suspect.stalled_us)
    text = (
        f"{longest.worker} stood still for {longest.stalled_us / 1e6:.2f} s from {longest.start_us / 1e6:.1f} s "
        f"({longest.cause})"
    )
    if len(suspects) == 1:
        return text
    more_s = (sum(suspect.stalled_us for suspect in suspects) - longest.stalled_us) / 1e6
    return f"{text}, with {len(suspects) - 1} more such intervals of {more_s:.2f} s in total"
