"""Checks that each fault took hold (``witness/<fault>``) and that workload traffic met it (``exposure/<fault>``).

The executor measures each fault while the fault is in force. The witness check of a fault passes if at least one
witness (a measured proof) observed the fault and no witness failed. In a rehearsal nothing is injected, so every
witness must report that the fault is absent; a witness that reports a fault in a rehearsal proves nothing.

A run in which a fault met no traffic proves nothing about that fault. Which traffic proves exposure depends on the
fault's target (``met_by`` in the timeline).

===================  ============================================================================================
target               counted as exposure
===================  ============================================================================================
brokers              bytes that clients sent to them between inject and heal
client links         bytes that clients sent over them between inject and heal
replication links    records produced, in the fault's window, to partitions whose followers fetch over them
controller links     nothing, because their traffic can't be counted from outside, so exposure is never proven
clients              records and commits of these clients intended in the fault's window
topics               records produced to these topics in the fault's window; commits, if a topic is
                     ``__consumer_offsets`` or ``__share_group_state``; if it is ``__transaction_state``, the
                     transactions that the moved coordinator coordinates, and outputs of transactional services
requests             requests that the wire proxy changed, by the count in the witness reports
===================  ============================================================================================

A fault that ends all traffic to its targets (``severs`` in the timeline) is exposed if there was traffic to its targets
in the 3 s before inject.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.names import TRANSACTIONS_TOPIC, key_partition
from aftershock.results.checks.obligations.reach import PARTITIONS_DEFAULT, TRANSACTIONS_PARTITIONS, settings_of
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.groups import group_of
from aftershock.results.measure.exposure import client_links, crossing_of, targets_of
from aftershock.results.model.check import Check, trust_check
from aftershock.results.model.facts import Facts, ProxyTraffic

COORDINATED = {"__consumer_offsets", "__share_group_state"}
_STATES = ("intended", "injected", "healed")
_NAMES_MAX = 3  # names that fit a line


def fault_checks(evidence: Evidence, facts: Facts) -> list[Check]:
    """Return the witness check and the exposure check of each fault, in the timeline's order."""
    return [check for step in evidence.steps for check in (witness(evidence, step), exposure(evidence, facts, step))]


def witness(evidence: Evidence, step: Mapping[str, Any]) -> Check:
    rehearsal = bool(evidence.run.get("rehearse"))
    fault = step["id"]
    lines = [line for line in evidence.journal if line["fault"] == fault]
    reports = [line["witness"] for line in lines if line.get("witness")]
    failures = [line for line in lines if line["state"] == "failed"]
    refuting = [report for report in reports if (_confirms(report) if rehearsal else not report.get("ok"))]
    report: Mapping[str, Any] = (refuting or reports or [{}])[-1]
    missing = [] if rehearsal else [state for state in _STATES if all(line["state"] != state for line in lines)]
    proven = bool(reports if rehearsal else any(map(_confirms, reports))) and not (refuting or failures or missing)
    if failures:
        why = f"the fault failed: {failures[-1].get('why') or 'the journal gives no reason'}"
    elif not lines:
        why = "the fault was never injected"
    elif missing:
        why = f"journal.jsonl has no line `{missing[0]}` of the fault, which any fault that did not fail has"
    elif not report:
        why = "the fault was injected, but no witness proved that the fault took hold"
    else:
        unit, values = report.get("unit"), []
        for value in (report.get("asked"), report.get("observed")):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            values.append(f"{text} {unit}" if unit and _number(value) is not None else text)
        why = f"{report.get('what', 'witness')}: expected {values[0]}, observed {values[1]}"
        if rehearsal:
            absent = "the fault is absent, as it must be in a rehearsal"
            why = f"{absent if proven else 'nothing was injected, yet the witness reports the fault'}: {why}"
        elif not proven:
            why = f"the fault did not take hold, or ended too early: {why}"
    return trust_check(
        "witness",
        fault,
        why,
        f"read the lines of fault {fault} in journal.jsonl, fix the cause, and run the plan again",
        passed=proven,
        subject=f"fault={fault}",
        phase=f"fault/{fault}",
        observed=_number(report.get("observed")),
        threshold=_number(report.get("asked")),
        unit=str(report.get("unit") or ""),
        n=len(reports),
    )


def _confirms(report: Mapping[str, Any]) -> bool:
    return bool(report.get("ok")) and bool(report.get("n"))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def exposure(evidence: Evidence, facts: Facts, step: Mapping[str, Any]) -> Check:
    traffic = _traffic(evidence, facts, step)
    fault, exposed = step["id"], traffic.amount > 0
    why = f"no traffic met the fault: no {traffic.unit} {traffic.where}"
    if exposed:
        why = f"{traffic.amount} {traffic.unit} met the fault: {traffic.where}"
    values = {"observed": float(traffic.amount), "threshold": 0.0, "unit": traffic.unit, "n": traffic.n}
    place = {"subject": f"fault={fault}", "phase": f"fault/{fault}"}
    return trust_check("exposure", fault, why, traffic.advice, passed=exposed, **place, **values)


@dataclass(frozen=True)
class _Traffic:
    """Traffic that met a fault, in ``unit``, with the number ``n`` of observations and the place of counting."""

    amount: int
    unit: str
    n: int
    where: str
    advice: str = "let the fault target links, brokers, topics or clients that the plan's workloads use"


def _traffic(evidence: Evidence, facts: Facts, step: Mapping[str, Any]) -> _Traffic:
    fault, targets = step["id"], targets_of(evidence, step["id"])
    links = targets.get("links", ())
    if step["met_by"] == "brokers" or (step["met_by"] == "links" and client_links(targets)):
        crossed = facts.crossed.get(fault, ProxyTraffic())
        where = f"to nodes {targets.get('brokers')}" if step["met_by"] == "brokers" else f"over {_some(links)}"
        return _Traffic(crossed.bytes, "bytes", crossed.n, f"sent by clients {where}")
    if step["met_by"] == "requests":
        reports = [line["witness"] for line in evidence.journal if line["fault"] == fault and line.get("witness")]
        if evidence.run.get("rehearse"):
            return _Traffic(1, "rehearsal", len(reports), "nothing was injected, so no request had to meet the fault")
        changed = max((int(report["observed"]) for report in reports if report["unit"] == "requests"), default=0)
        advice = "give the fault's rule an API, a topic and a client that the workloads use, and a longer duration"
        return _Traffic(changed, "requests", len(reports), "changed by the rule of the fault", advice)
    if TRANSACTIONS_TOPIC in targets.get("topics", ()):
        return _transactions(evidence, facts, fault, targets)
    if step["met_by"] in ("topics", "clients"):
        names, records = targets.get(step["met_by"], ()), 0
        for client in evidence.clients:
            exposed = {side for side in client.topics if {*names}.intersection(client.workers(side))}
            exposed |= {"produce"} if not {*names}.isdisjoint(client.produces_to) else set()
            if COORDINATED & {*names}:
                exposed |= {"commit"} if client.commits_to else {"consume"} if group_of(evidence, client) else set()
            for side in sorted(exposed):
                records += facts.distribution(f"{side}.latency", client.key, f"fault/{fault}").n
        return _Traffic(records, "records", records, f"of {_some(names)} in the fault's window")
    if any(link.startswith("replication_") for link in links):
        records = facts.produced_in(f"fault/{fault}", crossing_of(evidence, fault))
        return _Traffic(records, "records", records, f"produced to partitions replicated over {_some(links)}")
    advice = "read the fault's witness instead: traffic over controller links can't be counted from outside"
    return _Traffic(0, "bytes", 0, f"counted over {_some(links)}", advice)


def _transactions(evidence: Evidence, facts: Facts, fault: str, targets: Mapping[str, Any]) -> _Traffic:
    """Return the transactions of a moved coordinator; of services, of whose transactions nobody tells, the outputs."""
    window, number = f"fault/{fault}", targets["roles"]["partition"]
    partitions = int(settings_of(evidence).get(TRANSACTIONS_PARTITIONS) or PARTITIONS_DEFAULT)
    loads = {workload["name"]: workload for workload in evidence.timeline["workloads"]}
    counts = {"transactions": 0, "outputs of transactional services": 0}
    for client in evidence.clients:
        for side, metric, unit in (
            ("produce", "produce.transaction", "transactions"),
            ("pipe", "pipe.latency", "outputs of transactional services"),
        ):
            load = loads[client.workload].get(side) or {}
            known = load.get("transaction") or (load.get("transactional") and client.pipe)
            own = {key_partition(worker, partitions) for worker in client.workers(side)}
            if known and (number in own or _has_own_id(loads[client.workload]["arms"][client.arm])):
                counts[unit] += facts.distribution(metric, client.key, window).n
    unit = next((unit for unit, count in counts.items() if count), "transactions")
    where = f"of the coordinator of {targets['roles']['transactional_id']} in the fault's window"
    advice = "name the transactional id of a producer that has transactions at that time"
    return _Traffic(counts[unit], unit, counts[unit], where, advice)


def _has_own_id(arm: Mapping[str, Any]) -> bool:
    """Return True if nobody knows the transactional ids of an arm, which is then taken to be affected."""
    return arm["client"] in ("service", "exec")


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_NAMES_MAX]) or "nothing"
    return listed if len(names) <= _NAMES_MAX else f"{listed} and {len(names) - _NAMES_MAX} more"
