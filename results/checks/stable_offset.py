"""Checks ``obligation/stable_offset``, which require that Kafka ends every transaction, topic by topic.

Readers of committed records stop at a partition's last stable offset, the beginning of its oldest open transaction. A
producer ends its transactions, or the coordinator aborts them: ``transaction.timeout.ms`` after their begin, at its
next scan for such transactions, and then with a marker in each partition. So a last stable offset that stays at one
value below the high watermark for longer, while the leader answers, belongs to a transaction that nobody will end (a
hanging transaction, KIP-890), and the check FAILs. No transaction of a client explains it, because none may be open for
so long.

Time in which a fault of brokers, or of links between them, kept coordinators from leaders does not count, nor do
``RETURN_MS`` after it, and suspect times of the host. The run waits after the load until all transactions must have
ended, and its last sample of each partition decides what a standstill before the end leaves open: the check passes only
if the last stable offset has reached the high watermark everywhere, and if it ever moved.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aftershock.names import OFFSETS_TOPIC
from aftershock.results.checks.doubts import suspects_of
from aftershock.results.checks.obligations.reach import Harm, harms_of, settings_of
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import Interval, merged, overlap_us
from aftershock.results.evidence.transactions import (
    MARKERS_MS,
    RETURN_MS,
    SCAN,
    SCAN_MS,
    STABLE_OFFSETS,
    TIMEOUT,
    open_transactions_ms,
    timeouts_ms,
)
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts, StableOffsets, Standstill

_NAMES_MAX = 3
_ADVICE = (
    "find the open transaction: `aftershock sql RUN` on batches/ gives the producer of the batch at that offset, and "
    "`kafka-transactions.sh find-hanging` tells whether a coordinator knows it"
)
_UNREAD = "find out from the brokers' logs why its leader did not answer after the load, and run the plan again"

Place = tuple[str, int]


def stable_offset_checks(evidence: Evidence, facts: Facts) -> list[Check]:
    """Return the check of each topic whose last stable offsets the run records; none for older versions' runs."""
    timeouts = timeouts_ms(evidence.timeline["workloads"])
    recorded = evidence.run.get(STABLE_OFFSETS) or ()
    excused = _excused(evidence, facts)
    return [_check(evidence, facts, topic, timeouts[topic], excused) for topic in recorded if topic in timeouts]


def _excused(evidence: Evidence, facts: Facts) -> Sequence[Interval]:
    until_us = max((stable.last_us for stable in facts.stable.values()), default=0)
    faults = [
        (harm.start_us, harm.end_us + RETURN_MS * 1000) for harm in harms_of(evidence, until_us) if _may_delay(harm)
    ]
    of_host = [(one.start_us, one.end_us) for one in suspects_of(evidence) if one.client is None]
    return merged([*faults, *of_host])


def _may_delay(harm: Harm) -> bool:
    """Return True if a fault may keep a coordinator from ending a transaction; one of clients alone does not."""
    between_brokers = bool(harm.brokers) or harm.between_nodes or harm.everywhere or harm.impact == "unknown"
    return between_brokers and not harm.between_clients


def _check(evidence: Evidence, facts: Facts, topic: str, timeout_ms: int, excused: Sequence[Interval]) -> Check:
    settings = settings_of(evidence)
    bound_us = open_transactions_ms(timeout_ms, settings) * 1000
    partitions = {number: stable for (name, number), stable in sorted(facts.stable.items()) if name == topic}
    stood = max(
        (
            (one.end_us - one.start_us - overlap_us(excused, one.start_us, one.end_us), number, one)
            for number, stable in partitions.items()
            for one in stable.standstills
        ),
        key=lambda candidate: candidate[0],
        default=None,
    )
    advances = sum(stable.advances for stable in partitions.values())
    terms = f"{TIMEOUT} {timeout_ms / 1e3:g} s, the coordinator's scan {int(settings.get(SCAN) or SCAN_MS) / 1e3:g} s"
    allowed = f"{bound_us / 1e6:g} s are allowed: {terms}, markers {MARKERS_MS / 1e3:g} s"
    longest = f"it stood for {_standstill(topic, *stood)} ({allowed})" if stood else f"it never stood ({allowed})"
    status, why, advice = Status.PASS, "", None
    behind = [number for number, stable in partitions.items() if stable.offset < stable.end]
    missing = [*_unsampled(evidence, topic, partitions)]
    if stood and stood[0] > bound_us:
        status, advice = Status.FAIL, _ADVICE
        why = f"a transaction hangs: the last stable offset stood for {_standstill(topic, *stood)} ({allowed})"
        if len(behind) > 1:
            why += f"; at the end, {len(behind)} partitions have an open transaction"
    elif not advances and not behind:
        status, why = Status.INCONCLUSIVE, f"the last stable offset of {topic} never moved"
        advice = "add to the plan transactions that end"
    elif missing:
        status, advice = Status.INCONCLUSIVE, _UNREAD
        why = f"the last stable offset of {_names(topic, missing)} is not known after the load; {longest}"
    elif behind:
        status, advice = Status.INCONCLUSIVE, "let the faults end earlier, and run the plan again"
        stops = f"{_names(topic, behind)} still has an open transaction at the end"
        why = f"{stops}, which faults may excuse; {longest}"
    else:
        count = f"all {len(partitions)} partitions" if len(partitions) > 1 else "the partition"
        why = f"the last stable offset reached the end of {count} after the load; before, {longest}"
    return Check(
        id="obligation/stable_offset",
        kind="obligation",
        subject=f"topic={topic}",
        status=status,
        observed=stood[0] / 1e6 if stood else None,
        threshold=bound_us / 1e6,
        unit="s",
        n=advances,
        minimum=0 if status is Status.FAIL else 1,
        why=why,
        next=advice,
    )


def _standstill(topic: str, calm_us: int, number: int, one: Standstill) -> str:
    length_us = one.end_us - one.start_us
    beside = "" if calm_us == length_us else f", {(length_us - calm_us) / 1e6:.1f} s of it during faults or just after"
    where = f"at offset {one.offset} of {topic}/{number}, whose log ended at {one.end}"
    return f"{length_us / 1e6:.1f} s from {one.start_us / 1e6:.1f} s {where}{beside}"


def _unsampled(evidence: Evidence, topic: str, partitions: dict[int, StableOffsets]) -> Iterator[int]:
    """Yield the partitions without a sample after the load; of Kafka's own topic, those that had one before."""
    load_end_us = (evidence.run.get("marks") or {}).get("load_end_us")
    planned: Mapping[str, Any] = next((row for row in evidence.timeline.get("topics", ()) if row["name"] == topic), {})
    count = 0 if topic == OFFSETS_TOPIC else int(planned.get("partitions") or 0)
    for number in sorted({*range(count), *partitions}):
        stable = partitions.get(number)
        if stable is None or load_end_us is None or stable.last_us < load_end_us:
            yield number


def _names(topic: str, numbers: Sequence[int]) -> str:
    more = len(numbers) - _NAMES_MAX
    named = ", ".join(f"{topic}/{number}" for number in numbers[:_NAMES_MAX])
    return named + (f" and {more} more" if more > 0 else "")
