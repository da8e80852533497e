"""Conversion of manual injections (``aftershock inject``) into a plan that can run.

A fault keeps the target that its ``inject`` command names, so a role stays a role. In the converted plan, ``at`` counts
from the first injection, and ``for`` is the actual duration of a fault (both to 0.1 s). Idle time between faults is
limited to ``IDLE_MS_MAX``, because load without faults tests nothing. All other parts of the converted plan come from
the run's plan, or, without a plan, from the run's cluster, the topics that the faults name, one workload and basic
SLOs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.conflicts import conflicting_pairs
from aftershock.faults.plan.expand import end_ms, expand
from aftershock.faults.plan.parsing import Draft, read_draft
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import dump_yaml
from aftershock.faults.sections.units import format_duration
from aftershock.faults.sections.workloads import Workload
from aftershock.faults.targets import roles
from aftershock.faults.timeline.timeline import Marks

IDLE_MS_MAX = 60_000
EVENT = "injected_by_hand"
_STEP_MS = 100
_RESOLVE_MS = 500  # generous limit from a fault's start to the journal's first line about it
_ARM = "baseline"  # the arm of a workload without explicit arms
_TIMING = {"warmup": {"min": "5s", "max": "60s"}, "steady": "10s", "fault": "5s", "recovery": "10s"}
_SLO = ["lost == 0", "produce.success >= 99%", "produce.latency p95 < 500ms in steady"]

FaultData = Mapping[str, Any]


@dataclass(frozen=True)
class WrittenPlan:
    """Converted plan as YAML; ``omitted`` has the ids of the manual injections that were never in force."""

    text: str
    omitted: tuple[str, ...]


@dataclass(frozen=True)
class _Injection:
    """Manual injection that was in force; ``topics`` are the cluster's topics at the time of the injection."""

    data: FaultData
    topics: Sequence[FaultData]
    start_us: int
    healing_us: int | None


def plan_from_run(
    run_id: str,
    run_plan: FaultData,
    events: Iterable[FaultData],
    journal: Iterable[FaultData],
    marks: Marks | None,
    seed: int = 0,
) -> WrittenPlan:
    """Return a plan that repeats the manual injections of a run.

    ``run_plan`` is the run's ``plan.yaml``, a whole plan or only a cluster with its topics. ``marks`` has start and end
    of the run's load, if the run had load. ``seed`` determines the random choices of the faults of the run's plan.
    Raises EvidenceError if no manual injection of the run was in force.
    """
    manual = [event for event in events if event.get("event") == EVENT]
    lines = list(journal)
    injections = []
    for event in manual:
        times = {line["state"]: line["t_us"] for line in lines if line["fault"] == event["fault"]["id"]}
        if "injected" in times:
            injections.append(_Injection(event["fault"], event["topics"], times["intended"], times.get("healing")))
    injections.sort(key=lambda injection: injection.start_us)
    ids = {injection.data["id"] for injection in injections}
    omitted = tuple(event["fault"]["id"] for event in manual if event["fault"]["id"] not in ids)
    if not injections:
        why = f"{', '.join(omitted)} never took effect" if omitted else "use `aftershock inject`"
        raise EvidenceError(f"run {run_id} has no manual injections, so there is no plan to write: {why}")
    own_data = list(run_plan.get("faults") or ())
    draft, _ = read_draft({"faults": own_data})
    own_faults = [scheduled.fault for scheduled in expand(draft.faults.elements, draft.faults.ids, seed).schedule]
    # `at: 0s` is the end of steady for injections under load, else the first injection. Injections after the load
    # follow the plan's own faults.
    first_us = injections[0].start_us
    if marks is not None and first_us < marks.load_end_us:
        origin_us = marks.faults_start_us
    else:
        origin_us = first_us - max(map(end_ms, own_faults), default=0) * 1000
    faults = [*own_faults, *_with_times(injections, origin_us)]
    cluster = Cluster.model_validate(run_plan.get("cluster") or {})
    # allowances and rounding may create conflicts: then the later fault starts at the end of the earlier one
    while pair := next(conflicting_pairs(faults, Draft(cluster)), None):
        earlier, later, _ = pair
        faults[later] = faults[later].model_copy(update={"at": end_ms(faults[earlier])})
    manual_faults = faults[len(own_faults) :]
    topics = _topics(run_plan, injections, cluster)
    topic = topics[0]["name"]
    load = {"name": "load", "produce": {"topic": topic, "rate": "60/s"}, "consume": {"topic": topic}}
    workloads = list(run_plan.get("workloads") or [load])
    group_workloads = list(_group_workloads(manual_faults, workloads, [entry["name"] for entry in topics]))
    manual_data = []
    for fault in manual_faults:
        data = {"at": "0s"} | fault.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        ordered = {key: data[key] for key in ("id", "at", "for", "kind") if key in data} | data
        manual_data.append(_with_arm_names(ordered, group_workloads))
    plan = {
        "name": f"{run_plan['name'][:31]}-by-hand" if "name" in run_plan else "by-hand",
        "why": f"{run_plan.get('why') or ''} Manual injections into {run_id}.".strip(),
        "cluster": cluster.model_dump(mode="json", exclude_none=True),
        "topics": topics,
        "workloads": [*workloads, *group_workloads],
        "timing": run_plan.get("timing") or _TIMING,
        "faults": [*own_data, *manual_data],
        "slo": list((run_plan.get("slo") or ()) if "workloads" in run_plan else _SLO),
    }
    return WrittenPlan(dump_yaml(plan), omitted)


def _with_times(injections: Sequence[_Injection], origin_us: int) -> Iterator[Fault]:
    """Yield the manually injected faults with their actual ``at`` and ``for``."""
    skipped_us = 0
    busy_us = injections[0].start_us
    for injection in injections:
        skipped_us += max(0, injection.start_us - busy_us - IDLE_MS_MAX * 1000)
        busy_us = max(busy_us, injection.start_us if injection.healing_us is None else injection.healing_us)
        at_ms = max(0, _rounded_ms(injection.start_us - skipped_us - origin_us))
        duration = {}
        if injection.data.get("for") is not None and injection.healing_us is not None:
            actual_ms = max(_STEP_MS, _rounded_ms(injection.healing_us - injection.start_us))
            requested_ms = _fault({**injection.data, "at": "0s"}).for_ or 0
            if requested_ms - actual_ms > _RESOLVE_MS:  # else it was not cut short
                duration = {"for": format_duration(actual_ms)}
        yield _fault({**injection.data, "at": format_duration(at_ms), **duration})


def _rounded_ms(us: int) -> int:
    return round(us / 1000 / _STEP_MS) * _STEP_MS


def _fault(data: FaultData) -> Fault:
    return KINDS[data["kind"]].model_validate(data)


def _topics(run_plan: FaultData, injections: Sequence[_Injection], cluster: Cluster) -> list[FaultData]:
    """Return the topics of the run's plan and the topics that injections name; without any, one new topic."""
    latest = {topic["name"]: topic for injection in injections for topic in injection.topics}
    topics = {topic["name"]: {**topic, **latest.get(topic["name"], {})} for topic in run_plan.get("topics") or ()}
    names: set[str] = set()
    for injection in injections:
        fault = _fault({**injection.data, "at": "0s"})
        targets = _roles_of(fault)
        names |= {role.topic for role in targets if isinstance(role, roles.Leader | roles.Replica)}
        names |= set(fault.topics().values())
    topics |= {name: dict(latest[name]) for name in sorted(names & latest.keys() - topics.keys())}
    replication = min(3, len(cluster.broker_racks))
    return list(topics.values()) or [{"name": "orders", "partitions": 6, "replication": replication}]


def _roles_of(fault: Fault) -> list[roles.Role]:
    return [roles.innermost(roles.parse(text)) for text in fault.roles().values()]


def _group_workloads(
    faults: Sequence[Fault], workloads: Sequence[FaultData], topics: Sequence[str]
) -> Iterator[FaultData]:
    """Yield a workload for each consumer group that only faults name, so that the group has a coordinator."""
    parsed = [Workload.model_validate(workload) for workload in workloads]
    existing = {group for workload in parsed for group in workload.consumer_groups}
    parts = (part for workload in parsed for part in (workload.consume, workload.produce) if part)
    topic = next(name for part in parts for name in part.topic_names(topics))
    targets = [role for fault in faults for role in _roles_of(fault)]
    groups = {role.group for role in targets if isinstance(role, roles.Coordinator)}
    for number, group in enumerate(sorted({group.removesuffix(f"-{_ARM}") for group in groups - existing}), 1):
        yield {"name": f"group-{number}", "consume": {"topic": topic, "group": group}}


def _with_arm_names(data: Any, group_workloads: Sequence[FaultData]) -> Any:
    """Replace the names of consumer groups in a fault's data by the names of the running groups, ``<group>-<arm>``."""
    if isinstance(data, Mapping):
        return {key: _with_arm_names(value, group_workloads) for key, value in data.items()}
    if isinstance(data, str):
        for group in (workload["consume"]["group"] for workload in group_workloads):
            data = re.sub(rf"coordinator of {re.escape(group)}(?![\w.-])", f"coordinator of {group}-{_ARM}", data)
    return data
