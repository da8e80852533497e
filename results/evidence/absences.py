"""Brokers that left the cluster during a run although no fault of the run took them away."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence.evidence import Evidence

LATE_US = 15_000_000
"""Time after a fault's heal in which a broker that it stopped may be away or be fenced once more: 10 s for the start of
its JVM on a loaded host, and a session (``broker.session.timeout.ms``)."""
SEEN_US = 2_000_000
"""Time after which the polls (two a second, one broker after the other) have shown a change."""


@dataclass(frozen=True)
class Absence:
    """Time in which the cluster was without a broker; ``back_us`` is None if the broker did not return in the run."""

    broker: int
    left_us: int
    back_us: int | None

    def __str__(self) -> str:
        back = "did not return" if self.back_us is None else f"was back at {self.back_us / 1e6:.1f} s"
        return f"broker {self.broker} left at {self.left_us / 1e6:.1f} s, not by us, and {back}"

    def overlaps(self, start_us: int, end_us: int) -> bool:
        return self.left_us < end_us and (self.back_us is None or start_us < self.back_us)


def absences(evidence: Evidence) -> tuple[Absence, ...]:
    """Return all absences of brokers, in order of time. Runs of earlier versions did not record them."""
    found = []
    lines = [line for line in evidence.events if line.get("event") in ("broker_left", "broker_returned")]
    for number, line in enumerate(lines):
        if line["event"] == "broker_left":
            later = (other for other in lines[number + 1 :] if other["broker"] == line["broker"])
            back_us = next((other["t_us"] for other in later if other["event"] == "broker_returned"), None)
            found.append(Absence(line["broker"], line["t_us"], back_us))
    return tuple(found)


def unplanned_absences(evidence: Evidence) -> tuple[Absence, ...]:
    """Return the absences during which no fault was in force that touches the broker; in order of time.

    A fault touches the brokers that it names, the nodes at both ends of its links between nodes, and, if it names
    neither brokers, links, topics nor clients, all of them.
    """
    return tuple(one for one in absences(evidence) if not _by_fault(evidence, one.broker, one.left_us))


def _by_fault(evidence: Evidence, broker: int, at_us: int) -> bool:
    if evidence.run.get("rehearse"):
        return False
    racks = {node["id"]: node.get("rack") for node in evidence.run.get("brokers", ())}
    spans: dict[str, tuple[int, int | None]] = {}
    touching = set()
    for line in evidence.journal:
        fault = line["fault"]
        if line["state"] == "intended":
            spans[fault] = line["t_us"], None
        elif line["state"] == "healed" and fault in spans:
            spans[fault] = spans[fault][0], line["t_us"]
        if _touches(line.get("targets") or {}, broker, racks.get(broker)):
            touching.add(fault)
    return any(
        start_us <= at_us and (end_us is None or at_us <= end_us + LATE_US)
        for fault, (start_us, end_us) in spans.items()
        if fault in touching
    )


def _touches(targets: Mapping[str, Any], broker: int, rack: str | None) -> bool:
    if broker in targets.get("brokers", ()):
        return True
    links = [link for link in targets.get("links", ()) if not link.startswith("client_")]
    if any(link.endswith(f"-k{broker}") or link.partition("_")[2].rpartition("-")[0] == rack for link in links):
        return True
    return not any(targets.get(name) for name in ("brokers", "links", "topics", "clients"))
