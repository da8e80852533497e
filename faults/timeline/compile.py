"""Plan + seed -> timeline. Pure: no I/O, no clock, no unseeded random; the same arguments give the same bytes.

What faults come to, and which stream each draws from, is ``expand.py``'s. Where draws decide, what ``plan check``
could not judge is judged here: faults that fight, SLOs that can't be fed, for this seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.cluster import Cluster
from aftershock.faults.plan.conflicts import conflicts
from aftershock.faults.plan.document import Location, Places, Problem, PythonPlaces, worded
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.parsing import Draft, draft_of
from aftershock.faults.plan.references import OFFSETS_PARTITIONS, ids_twice, too_long
from aftershock.faults.plan.sample_size import objectives
from aftershock.faults.plan.workloads import Arm, Commit, Consume, Produce, Timing, Topic, Workload
from aftershock.faults.timeline.expand import Expansion, expand, fault_ids, length_ms, random_of
from aftershock.faults.timeline.timeline import Objective, Step, Timeline, TimelineTiming


def compile_plan(
    plan: Plan, seed: int, source: str, slo_positions: Sequence[str], places: Places | None = None
) -> Timeline:
    """Compile a *checked* plan. ``source`` is the plan file's name; ``slo_positions``: where each SLO stands in it.

    Raises PlanError for what only the draws of this seed make wrong; ``places`` says where that is.
    """
    draft = draft_of(plan)
    expansion = expand(draft.faults.elements, draft.faults.ids, seed, plan.blocks, plan.timing)
    problems = [] if draft.faults.expansion.certain else list(_of_the_draws(draft, expansion))
    if problems:
        said = [replace(problem, sentence=f"with seed {seed} {problem.sentence}") for problem in problems]
        raise PlanError(worded(said, places or PythonPlaces()))
    attach = plan.cluster.attach
    first_rack = attach.rack if attach else next(iter(plan.cluster.racks))
    return Timeline(
        name=plan.name,
        why=plan.why,
        plan_source=source,
        seed=seed,
        cluster=_cluster(plan.cluster),
        topics=tuple(_topic(topic) for topic in plan.topics),
        workloads=tuple(_workload(workload, first_rack, plan) for workload in plan.workloads),
        timing=_timing(plan.timing),
        steps=tuple(sorted(_steps(expansion, seed), key=lambda step: step.at_ms)),
        length_ms=length_ms((each.fault for each in expansion.placed), plan.timing),
        slo=tuple(Objective(each.slo, at, each.gate) for each, at in zip(plan.objectives, slo_positions, strict=True)),
        abort=plan.abort,
        blocks_ms=expansion.blocks_ms,
    )


def step_of(fault: Fault, seed: int) -> Step:
    """One fault alone as a step, its choices drawn."""
    loc: Location = ("faults", 0)
    (step,) = _steps(expand({loc: fault}, fault_ids([(loc, fault.kind, fault.id)]), seed), seed)
    return step


def _of_the_draws(draft: Draft, expansion: Expansion) -> Iterator[Problem]:
    drawn = replace(draft, faults=replace(draft.faults, expansion=expansion))
    yield from expansion.problems
    yield from ids_twice(drawn)
    yield from too_long(drawn)
    yield from conflicts(drawn)
    yield from objectives(drawn)


def _steps(expansion: Expansion, seed: int) -> Iterator[Step]:
    for each in expansion.placed:
        fault = each.fault
        draws = fault.draw(random_of(seed, each.stream))
        words = (each.id, fault.kind, fault.at, fault.for_, fault.parameters(), draws)
        means = fault.meeting(), fault.severs, fault.takes(), fault.told
        yield Step(*words, *means, entry=each.entry, block=each.block)


def _cluster(cluster: Cluster) -> dict[str, Any]:
    attached = {"attach"} if cluster.attach else None  # the rest says how one is launched
    return cluster.model_dump(mode="json", exclude_none=True, include=attached)


def _topic(topic: Topic) -> dict[str, Any]:
    return topic.model_dump(mode="json")


def _workload(workload: Workload, first_rack: str, plan: Plan) -> dict[str, Any]:
    commit = workload.commit
    return {
        "name": workload.name,
        "produce": _produce(workload.produce, first_rack) if workload.produce else None,
        "consume": _consume(workload.consume, first_rack) if workload.consume else None,
        **({"commit": _commit(commit, first_rack, plan)} if commit else {}),
        "arms": {name: _arm(arm) for name, arm in workload.arms.items()},
    }


def _produce(produce: Produce, first_rack: str) -> dict[str, Any]:
    return {
        "topic": produce.topic,
        "rate_per_s": produce.rate,
        "record_size_min": produce.record_size.min,
        "record_size_max": produce.record_size.max,
        "keys": produce.keys,
        "acks": produce.acks,
        "idempotence": produce.idempotence,
        "rack": produce.rack or first_rack,
        "linger_ms": produce.linger,
        "deadline_ms": produce.deadline,
    }


def _consume(consume: Consume, first_rack: str) -> dict[str, Any]:
    return {
        "topic": consume.topic,
        "group": consume.group,
        "from": consume.from_,
        "rack": consume.rack or first_rack,
    }


def _commit(commit: Commit, first_rack: str, plan: Plan) -> dict[str, Any]:
    partitions = {"offsets_partitions": int(plan.cluster.config[OFFSETS_PARTITIONS])} if commit.by_coordinator else {}
    return {
        "topic": commit.topic or plan.topics[0].name,
        "groups": commit.groups,
        **({"rate_per_s": commit.rate} if commit.in_flight is None else {"in_flight": commit.in_flight}),
        **partitions,
        "rack": commit.rack or first_rack,
        "deadline_ms": commit.deadline,
    }


def _arm(arm: Arm) -> dict[str, Any]:
    said: dict[str, Any] = {"client": arm.client, "settings": dict(arm.settings), "client_rack": arm.client_rack}
    if arm.switches:
        said["switches"] = arm.switches
    if arm.command:
        said["command"] = list(arm.command)
    return said


def _timing(timing: Timing) -> TimelineTiming:
    return TimelineTiming(
        warmup_min_ms=timing.warmup.min,
        warmup_max_ms=timing.warmup.max,
        steady_ms=timing.steady,
        fault_ms=timing.fault,
        recovery_ms=timing.recovery,
    )
