"""Whether each fault took hold, as the executor measured it while it lasted. No witness, no verdict.

Rules: a fault needs at least one witness that observed something and none that failed; one that was never injected, or
not healed, has none. In a rehearsal nothing is injected, and every witness must be silent: one that speaks would vouch
for anything.

Whether workload traffic met a fault: what to look at for each, and the check. A fault nobody met proves nothing.

===================  ============================================================================================
target               met by
===================  ============================================================================================
brokers              bytes that clients sent to them between inject and heal
client links         bytes that clients sent over them between inject and heal
replication links    records produced, in the fault's window, to partitions whose followers fetch over them
controller links     nothing that can be counted from outside: never proven
clients              their own records and commits intended in the fault's window
topics               produce records of these topics intended in the fault's window; commits, if groups' offsets are
                     kept in one of them (``__consumer_offsets``, ``__share_group_state``)
requests             those that the wire proxy has done something to, by its own count, as the witnesses have it
===================  ============================================================================================

Where the fault ends all traffic to its targets (it ``severs``), what went there from 3 s before inject counts instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.checks.check import Check, Status
from aftershock.results.evidence.evidence import Evidence, Phase
from aftershock.results.measure.facts import Crossed, Facts
from aftershock.results.measure.samples import Passage


def witness(evidence: Evidence, step: Mapping[str, Any]) -> Check:
    """``witness/<fault>``: PASS or INCONCLUSIVE, with what was asked and what was observed."""
    rehearsed = bool(evidence.run.get("rehearse"))
    fault = step["id"]
    lines = [line for line in evidence.journal if line["fault"] == fault]
    seen = [line["witness"] for line in lines if line.get("witness")]
    failed = [line for line in lines if line["state"] == "failed"]
    refuted = [told for told in seen if (_speaks(told) if rehearsed else not told.get("ok"))]
    told = (refuted or seen or [{}])[-1]
    proven = bool(seen if rehearsed else any(map(_speaks, seen))) and not refuted and not failed
    return Check(
        id=f"witness/{fault}",
        kind="witness",
        subject=f"fault={fault}",
        phase=f"fault/{fault}",
        status=Status.PASS if proven else Status.INCONCLUSIVE,
        observed=_number(told.get("observed")),
        threshold=_number(told.get("asked")),
        unit=str(told.get("unit") or ""),
        n=len(seen),
        minimum=1,
        why=_why(lines, failed, told, proven=proven, rehearsed=rehearsed),
        next=None if proven else f"read the lines of {fault} in journal.jsonl, mend the cause, run the plan again",
    )


def _speaks(told: Mapping[str, Any]) -> bool:
    """Whether it says that the fault is there, of its own observation."""
    return bool(told.get("ok")) and bool(told.get("n"))


def _why(
    lines: list[Mapping[str, Any]],
    failed: list[Mapping[str, Any]],
    told: Mapping[str, Any],
    *,
    proven: bool,
    rehearsed: bool,
) -> str:
    if failed:
        return f"it failed: {failed[-1].get('why') or 'the journal does not say why'}"
    if not lines:
        return "it was never injected"
    if not told:
        return "it was injected, but nothing proved that it took hold"
    asked, observed = (_shown(told.get(key), told.get("unit")) for key in ("asked", "observed"))
    said = f"{told.get('what', 'witness')}: asked {asked}, observed {observed}"
    if rehearsed:
        return f"silent, as it must be in a rehearsal: {said}" if proven else f"nothing was injected, yet: {said}"
    return said if proven else f"it did not take hold, or not to the end: {said}"


def _shown(value: object, unit: object) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{shown} {unit}" if unit and _number(value) is not None else shown


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


BEFORE_US = 3_000_000
# librdkafka counts once a second, its worker tells twice and the runner samples once: what is sent is seen this late
SAMPLING_US = 3_000_000
COORDINATED = {"__consumer_offsets", "__share_group_state"}


def targets_of(evidence: Evidence, fault: str) -> Mapping[str, Any]:
    """What the fault was resolved to, by the last line of the journal that says."""
    told = [line.get("targets") for line in evidence.journal if line["fault"] == fault]
    return next((targets for targets in reversed(told) if targets), {})


def passages(evidence: Evidence) -> list[Passage]:
    """Which bytes to count for which fault; none for faults that never began or that are met otherwise."""
    counted = [(_passage(evidence, step), evidence.window_of(step["id"])) for step in evidence.steps]
    return [passage for passage, window in counted if passage and window]


def crossing_of(evidence: Evidence, fault: str) -> Mapping[str, Sequence[int]]:
    """The partitions (by topic) whose followers fetch over the fault's replication links, as the journal has them."""
    roles = targets_of(evidence, fault).get("roles") or {}
    return dict(roles.get("crossing") or {})


def _passage(evidence: Evidence, step: Mapping[str, Any]) -> Passage | None:
    targets, window = targets_of(evidence, step["id"]), evidence.window_of(step["id"])
    if window is None:
        return None
    proxies = ""
    if step["met_by"] == "brokers" and targets.get("brokers"):
        proxies = _to_brokers(targets["brokers"])
    elif step["met_by"] == "links":
        proxies = "|".join(map(re.escape, _client_links(targets)))
    if not proxies:
        return None
    if step["severs"]:
        return _before(step["id"], proxies, window)
    return Passage(step["id"], proxies, window.start_us, window.end_us + SAMPLING_US)


def _client_links(targets: Mapping[str, Any]) -> list[str]:
    return [link for link in targets.get("links", ()) if link.startswith("client_")]


def _to_brokers(brokers: Sequence[int]) -> str:
    return f"client_.*-k(?:{'|'.join(str(int(broker)) for broker in brokers)})"


def _before(fault: str, proxies: str, window: Phase) -> Passage:
    """The last sample that may count is taken just after inject; what it adds entered before."""
    return Passage(fault, proxies, window.start_us - BEFORE_US - SAMPLING_US, window.start_us + SAMPLING_US)


def exposure(evidence: Evidence, facts: Facts, step: Mapping[str, Any]) -> Check:
    """``exposure/<fault>``: PASS when traffic met the fault, INCONCLUSIVE when none did."""
    met = _met(evidence, facts, step)
    fault, exposed = step["id"], met.amount > 0
    return Check(
        id=f"exposure/{fault}",
        kind="exposure",
        subject=f"fault={fault}",
        phase=f"fault/{fault}",
        status=Status.PASS if exposed else Status.INCONCLUSIVE,
        observed=float(met.amount),
        threshold=0.0,
        unit=met.unit,
        n=met.n,
        minimum=1,
        why=f"{met.amount} {met.unit} met it: {met.how}" if exposed else f"no traffic met it: no {met.unit} {met.how}",
        next=None if exposed else met.advice,
    )


@dataclass(frozen=True)
class _Met:
    """How much traffic met a fault, in which unit, of how many observations, and how it is known."""

    amount: int
    unit: str
    n: int
    how: str
    advice: str = "aim the fault at links, brokers, topics or clients that the workloads use"


def _met(evidence: Evidence, facts: Facts, step: Mapping[str, Any]) -> _Met:
    fault, targets = step["id"], targets_of(evidence, step["id"])
    links = targets.get("links", ())
    if step["met_by"] == "brokers" or (step["met_by"] == "links" and _client_links(targets)):
        crossed = facts.crossed.get(fault, Crossed())
        where = f"to nodes {targets.get('brokers')}" if step["met_by"] == "brokers" else f"over {_some(links)}"
        return _Met(crossed.bytes, "bytes", crossed.n, f"sent by clients {where}")
    if step["met_by"] == "requests":
        return _by_count(evidence, fault)
    if step["met_by"] in ("topics", "clients"):
        aimed = targets.get(step["met_by"], ())
        records = sum(
            facts.distribution(f"{side}.latency", key, f"fault/{fault}").n for key, side in _hit(evidence, aimed)
        )
        return _Met(records, "records", records, f"of {_some(aimed)} in its window")
    if any(link.startswith("replication_") for link in links):
        records = facts.produced_in(f"fault/{fault}", crossing_of(evidence, fault))
        return _Met(records, "records", records, f"produced to partitions replicated over {_some(links)}")
    advice = "read its witness: what crosses controller links can't be counted from outside"
    return _Met(0, "bytes", 0, f"counted over {_some(links)}", advice)


def _by_count(evidence: Evidence, fault: str) -> _Met:
    """In a rehearsal nothing is done to any request, so none can be missed."""
    told = [line["witness"] for line in evidence.journal if line["fault"] == fault and line.get("witness")]
    hits = max((int(each["observed"]) for each in told if each["unit"] == "requests"), default=0)
    if evidence.run.get("rehearse"):
        return _Met(1, "rehearsal", len(told), "nothing was injected, so there was nothing to meet")
    advice = "let its rule name an API, a topic and a client that the workloads use, and last longer"
    return _Met(hits, "requests", len(told), "that its rule has done something to", advice)


def _hit(evidence: Evidence, aimed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The clients, and what they did, whose topics or whose own names are among those aimed at."""
    for client in evidence.clients:
        name = client.key.replace("/", "-")
        if client.produces_to in aimed or f"{name}-produce" in aimed:
            yield client.key, "produce"
        if (client.commits_to and COORDINATED & {*aimed}) or f"{name}-commit" in aimed:
            yield client.key, "commit"
        if f"{name}-consume" in aimed:
            yield client.key, "consume"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) or "nothing"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"  # noqa: PLR2004 - three names fit a line
