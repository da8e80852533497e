"""Traffic that shows that a fault met clients: which proxies and partitions count, and when."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.evidence.evidence import Evidence

BEFORE_US = 3_000_000
# librdkafka counts once a second, its worker reports twice a second and the runner samples once: the sum is the delay
SAMPLING_US = 3_000_000


@dataclass(frozen=True)
class Passage:
    """Proxies (a regular expression for whole names) whose bytes between two times show that a fault met traffic."""

    fault: str
    proxies: str
    from_us: int
    to_us: int


def targets_of(evidence: Evidence, fault: str) -> Mapping[str, Any]:
    """Return the resolved targets (such as broker ids) of a fault, from the journal's last line that has any."""
    resolved = [line.get("targets") for line in evidence.journal if line["fault"] == fault]
    return next((targets for targets in reversed(resolved) if targets), {})


def crossing_of(evidence: Evidence, fault: str) -> Mapping[str, Sequence[int]]:
    """Return the partitions, by topic, whose followers fetch over the fault's replication links."""
    roles = targets_of(evidence, fault).get("roles") or {}
    return dict(roles.get("crossing") or {})


def passages(evidence: Evidence) -> list[Passage]:
    """Return, for each fault whose exposure is measured in bytes, the proxies and the time in which bytes count."""
    result = []
    for step in evidence.steps:
        fault = step["id"]
        targets, window = targets_of(evidence, fault), evidence.window_of(fault)
        proxies = ""
        if step["met_by"] == "brokers" and targets.get("brokers"):
            proxies = f"client_.*-k(?:{'|'.join(str(int(broker)) for broker in targets['brokers'])})"
        elif step["met_by"] == "links":
            proxies = "|".join(map(re.escape, client_links(targets)))
        if window is None or not proxies:
            continue
        start_us, end_us = window.start_us, window.end_us + SAMPLING_US
        if step["severs"]:
            # the last sample that counts is taken just after inject, for bytes that were sent before inject
            start_us, end_us = window.start_us - BEFORE_US - SAMPLING_US, window.start_us + SAMPLING_US
        result.append(Passage(fault, proxies, start_us, end_us))
    return result


def client_links(targets: Mapping[str, Any]) -> list[str]:
    return [link for link in targets.get("links", ()) if link.startswith("client_")]
