"""Compiler of a plan and a seed to a timeline; equal plans and seeds give equal bytes.

From the plan's file to the timeline there are five steps, and no step calls back an earlier one:

1. ``sections/document.py`` reads the file as plain data, with the position of each value.
2. ``plan/parsing.py`` validates each part of the data by the models in ``plan/model.py`` and ``sections``.
3. ``plan/check.py`` applies the rules about several parts, and yields a ``CheckedPlan``.
4. ``plan/expand.py`` makes the draws of the seed, then gives each fault its time.
5. This file checks what only the draws decide, fills in defaults, and writes faults as steps of ``timeline.py``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.check import CheckedPlan, check_draws
from aftershock.faults.plan.expand import Expansion, expand, fault_ids, length_ms, members_in_reserve, random_of
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import Draft, draft_of
from aftershock.faults.plan.references import OFFSETS_PARTITIONS
from aftershock.faults.sections.document import Location, PythonSourceMap, SourceMap
from aftershock.faults.sections.services import Pipe
from aftershock.faults.sections.workloads import Consume, Produce, Workload
from aftershock.faults.timeline.timeline import Objective, Step, Timeline, TimelineTiming


def compile_checked(checked: CheckedPlan, seed: int) -> Timeline:
    """Compile a plan that was read from a file or text; raise PlanError if the seed's draws make the plan invalid."""
    positions, source_map = checked.slo_positions, checked.source_map
    return compile_plan(checked.plan, seed, checked.source, positions, source_map, draft=checked.draft)


def compile_plan(
    plan: Plan,
    seed: int,
    source: str,
    slo_positions: Sequence[str],
    source_map: SourceMap | None = None,
    *,
    draft: Draft | None = None,
) -> Timeline:
    """Compile a plan that has passed all checks; raise PlanError if the seed's draws make the plan invalid.

    ``source`` is the name of the plan file, ``slo_positions`` has the position of each SLO in the file, and
    ``source_map`` the positions for error messages, by default those of a plan built in Python.
    """
    draft = draft or draft_of(plan)
    expansion = expand(draft.faults.elements, draft.faults.ids, seed, plan.blocks, plan.timing)
    check_draws(draft, expansion, seed, source_map or PythonSourceMap())
    attach = plan.cluster.attach
    first_rack = attach.rack if attach else next(iter(plan.cluster.racks))
    return Timeline(
        name=plan.name,
        why=plan.why,
        plan_source=source,
        seed=seed,
        # of an attached cluster only `attach` is meaningful: the other fields describe a launch
        cluster=plan.cluster.model_dump(mode="json", exclude_none=True, include={"attach"} if attach else None),
        topics=tuple(_declared(plan)),
        workloads=tuple(_workload(workload, first_rack, plan, expansion) for workload in plan.workloads),
        timing=TimelineTiming(
            warmup_min_ms=plan.timing.warmup.min,
            warmup_max_ms=plan.timing.warmup.max,
            steady_ms=plan.timing.steady,
            fault_ms=plan.timing.fault,
            recovery_ms=plan.timing.recovery,
        ),
        steps=tuple(sorted(_steps(expansion, seed), key=lambda step: step.at_ms)),
        length_ms=length_ms((scheduled.fault for scheduled in expansion.schedule), plan.timing),
        slo=tuple(
            Objective(entry.slo, position, entry.gate, entry.advice)
            for entry, position in zip(plan.objectives, slo_positions, strict=True)
        ),
        abort=plan.abort,
        blocks_ms=expansion.blocks_ms,
    )


def step_of(fault: Fault, seed: int) -> Step:
    """Return a single fault as a step of the timeline, with its random choices drawn."""
    loc: Location = ("faults", 0)
    (step,) = _steps(expand({loc: fault}, fault_ids([(loc, fault.kind, fault.id)]), seed), seed)
    return step


def _steps(expansion: Expansion, seed: int) -> Iterator[Step]:
    for scheduled in expansion.schedule:
        fault = scheduled.fault
        yield Step(
            id=scheduled.id,
            kind=fault.kind,
            at_ms=fault.at,
            for_ms=fault.for_,
            parameters=fault.parameters(),
            draws=fault.draw(random_of(seed, scheduled.stream)),
            met_by=fault.effective_exposure_target(),
            severs=fault.drops_traffic,
            takes=fault.impact(),
            told=fault.silence() is None,
            silence=fault.silence(),
            delay_ms=fault.delay_ms(),
            entry=scheduled.entry,
            block=scheduled.block,
        )


def _reserve(workload: Workload, op: str, expansion: Expansion) -> dict[str, int]:
    """Return the number of members in reserve of each arm that has any."""
    counts = {arm: members_in_reserve(workload.name, arm, op, expansion) for arm in workload.arms}
    return {arm: count for arm, count in counts.items() if count}


def _topics(section: Produce | Consume, plan: Plan) -> dict[str, Any]:
    """Return a section's topics: ``topic``, the first, and ``topics`` if there are several or a ``pattern`` matches."""
    names = section.topic_names(topic.name for topic in plan.topics)
    data: dict[str, Any] = {"topic": names[0]}
    pattern = section.pattern if isinstance(section, Consume) else None
    data |= {"topics": list(names)} if len(names) > 1 or pattern else {}
    return data | ({"pattern": pattern} if pattern else {})


def _declared(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the plan's topics; that of the outputs of several arms is a topic for each arm."""
    outputs = {load.pipe.to: load for load in plan.workloads if load.pipe}
    for topic in plan.topics:
        data, owner = topic.model_dump(mode="json"), outputs.get(topic.name)
        if owner is None or owner.pipe is None:
            yield data
            continue
        # the broker's clock dates outputs, whatever the service writes
        data["config"] = {"message.timestamp.type": "LogAppendTime"} | data["config"]
        yield from (data | {"name": owner.pipe.named(topic.name, arm, len(owner.arms))} for arm in owner.arms)


def _pipe(workload: Workload, pipe: Pipe, first_rack: str) -> dict[str, Any]:
    arms = workload.arms
    least, most = pipe.outputs
    return {
        "from": pipe.from_,
        "to": {arm: pipe.named(pipe.to, arm, len(arms)) for arm in arms},
        "groups": {arm: pipe.named(pipe.group, arm, len(arms)) for arm in arms} if pipe.group else {},
        "members": pipe.members,
        "rack": pipe.rack or first_rack,
        "mark": pipe.mark,
        "outputs_min": least,
        "outputs_max": most,
        "restart_ms": pipe.restart,
    } | ({"transactional": True} if pipe.transactional else {})


def _workload(workload: Workload, first_rack: str, plan: Plan, expansion: Expansion) -> dict[str, Any]:
    produce, consume, commit = workload.produce, workload.consume, workload.commit
    sections: dict[str, Any] = {"name": workload.name, "produce": None, "consume": None}
    if produce:
        sections["produce"] = {
            **_topics(produce, plan),
            "rate_per_s": produce.rate,
            "record_size_min": produce.record_size.min,
            "record_size_max": produce.record_size.max,
            "keys": produce.keys,
            "acks": produce.acks,
            "idempotence": produce.idempotence,
            "rack": produce.rack or first_rack,
            "linger_ms": produce.linger,
            "deadline_ms": produce.deadline,
        } | ({"producers": produce.producers} if produce.producers > 1 else {})
        if produce.transaction:
            sections["produce"]["transaction"] = produce.transaction.settings()
        if produce.value is not None:
            sections["produce"]["value"] = produce.value
        if any(
            load.pipe and load.pipe.mark == "key" and load.pipe.from_ in produce.topic_names(())
            for load in plan.workloads
        ):
            sections["produce"]["mark_is_key"] = True
    if consume:
        sections["consume"] = {
            **_topics(consume, plan),
            "group": consume.group,
            "from": consume.from_,
            "rack": consume.rack or next(iter(consume.racks), first_rack),
        }
        every = consume.commit
        grouping = {
            "members": consume.members if consume.members > 1 else None,
            "racks": list(consume.racks),
            "protocol": consume.protocol,
            "assignor": consume.assignor,
            "static": consume.static,
            "commit": every and {"every_ms": every.every_ms, "every_records": every.every_records},
            "processing_ms": consume.processing,
            "isolation": consume.isolation,
            "reserve": _reserve(workload, "consume", expansion),
        }
        sections["consume"] |= {key: value for key, value in grouping.items() if value}
    if commit:
        load = {"rate_per_s": commit.rate} if commit.in_flight is None else {"in_flight": commit.in_flight}
        if commit.by_coordinator:
            load["offsets_partitions"] = int(plan.cluster.config[OFFSETS_PARTITIONS])
        sections["commit"] = {
            "topic": commit.topic or plan.topics[0].name,
            "groups": commit.groups,
            **load,
            "rack": commit.rack or first_rack,
            "deadline_ms": commit.deadline,
        }
    if workload.pipe:
        sections["pipe"] = _pipe(workload, workload.pipe, first_rack)
        if reserve := _reserve(workload, "pipe", expansion):
            sections["pipe"]["reserve"] = reserve
    if on := workload.run_on:
        pods = on.kubernetes and on.kubernetes.model_dump(mode="json", exclude={"workers"}, exclude_none=True)
        sections["run_on"] = {"workers": on.count} | ({"kubernetes": pods} if pods is not None else {})
    sections["arms"] = {}
    for name, arm in workload.arms.items():
        data: dict[str, Any] = {"client": arm.client, "settings": dict(arm.settings), "client_rack": arm.client_rack}
        data |= {"switches": arm.switches} if arm.switches else {}
        data |= {"version": arm.version} if arm.version else {}
        data |= {"command": list(arm.command)} if arm.command else {}
        if arm.client == "service":
            service = {"image": arm.image, "env": dict(arm.env), "file": arm.file}
            data |= {key: value for key, value in service.items() if value}
            data |= {"ready": arm.ready.model_dump(exclude_none=True)} if arm.ready else {}
        sections["arms"][name] = data
    return sections
