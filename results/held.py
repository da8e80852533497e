"""When a fault held a client itself: killed or frozen, so that what it did late or not at all is the fault's doing.

Read from the journal, so it covers faults of the plan and those that somebody injected by hand meanwhile. A rehearsal
holds nobody.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from aftershock.results.evidence import Evidence
from aftershock.results.phases import Interval, merged

KILLED = "start_clients"
FROZEN = "resume_clients"
"""The undos of such faults, as the journal has them."""


def held(evidence: Evidence, *verbs: str) -> dict[tuple[str, str], tuple[Interval, ...]]:
    """The times, by (side, client key), of faults with these undos; one never healed holds its clients to the end."""
    spans: dict[str, list[Interval]] = {}
    for worker, span in _spans(evidence, verbs):
        spans.setdefault(worker, []).append(span)
    return {
        (side, client.key): merged(spans[worker])
        for client in evidence.clients
        for side in ("produce", "consume", "commit")
        if (worker := f"{client.workload}-{client.arm}-{side}") in spans
    }


def _spans(evidence: Evidence, verbs: tuple[str, ...]) -> Iterator[tuple[str, Interval]]:
    lasted_us = max((phase.end_us for phase in evidence.phases), default=0)
    for fault in dict.fromkeys(line["fault"] for line in evidence.journal):
        lines = [line for line in evidence.journal if line["fault"] == fault and _undo(line) in verbs]
        if lines:
            healed = [line["t_us"] for line in lines if line["state"] == "healed"]
            span = (lines[0]["t_us"], healed[-1] if healed else max(lasted_us, lines[-1]["t_us"]))
            yield from ((worker, span) for worker in lines[0]["targets"]["clients"])


def _undo(line: Mapping[str, Any]) -> str | None:
    undo = line.get("undo") or {}
    return undo.get("verb")
