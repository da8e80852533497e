"""Plan + seed -> timeline. Pure: no I/O, no clock, no unseeded random; the same arguments give the same bytes.

Each step draws from a stream of its own, named by its explicit id, else by what it says (canonical JSON) and how many
steps before it said the very same. So adding a step, anywhere, moves no other step's draws.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from aftershock.faults.fault import Fault
from aftershock.faults.plan import Arm, Cluster, Commit, Consume, Plan, Produce, Timing, Topic, Workload
from aftershock.faults.timeline import Objective, Step, Timeline, TimelineTiming


def compile_plan(plan: Plan, seed: int, source: str, slo_positions: Sequence[str]) -> Timeline:
    """Compile a *checked* plan. ``source`` is the plan file's name; ``slo_positions``: where each SLO stands in it."""
    first_rack = next(iter(plan.cluster.racks))
    return Timeline(
        name=plan.name,
        why=plan.why,
        plan_source=source,
        seed=seed,
        cluster=_cluster(plan.cluster),
        topics=tuple(_topic(topic) for topic in plan.topics),
        workloads=tuple(_workload(workload, first_rack, plan.topics[0].name) for workload in plan.workloads),
        timing=_timing(plan.timing),
        steps=tuple(sorted(steps_of(plan.faults, seed), key=lambda step: step.at_ms)),
        length_ms=length_ms(plan.faults, plan.timing),
        slo=tuple(Objective(text, at) for text, at in zip(plan.slo, slo_positions, strict=True)),
    )


def fault_ids(faults: Iterable[Fault]) -> list[str]:
    """The id of each: its own, else ``<kind>-<n>``, the n-th of its kind in the plan."""
    seen: Counter[str] = Counter()
    ids = []
    for fault in faults:
        seen[fault.kind] += 1
        ids.append(fault.id or f"{fault.kind}-{seen[fault.kind]}")
    return ids


def window_ms(fault: Fault, timing: Timing) -> int:
    """How long the fault's window lasts by plan, its allowance for injecting and healing left out."""
    return timing.fault if fault.for_ is None else fault.for_


def length_ms(faults: Iterable[Fault], timing: Timing) -> int:
    """The end of the load: the end of the last fault, with its allowance, and ``recovery`` after it."""
    ends = [fault.at + window_ms(fault, timing) + fault.allowance_ms for fault in faults]
    return max(ends, default=timing.fault) + timing.recovery


def steps_of(faults: Iterable[Fault], seed: int) -> Iterator[Step]:
    """The faults in their order, their ids settled and their choices drawn."""
    faults = list(faults)
    for fault, fault_id, stream in zip(faults, fault_ids(faults), _streams(faults), strict=True):
        draws = fault.draw(_random(seed, stream))
        yield Step(fault_id, fault.kind, fault.at, fault.for_, fault.parameters(), draws, fault.met_by, fault.severs)


def _streams(faults: Iterable[Fault]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for fault in faults:
        if fault.id is not None:
            yield f"id:{fault.id}"
            continue
        said = json.dumps(fault.model_dump(mode="json", by_alias=True), sort_keys=True)
        yield f"said:{said}#{seen[said]}"
        seen[said] += 1


def _random(seed: int, stream: str) -> random.Random:
    digest = hashlib.sha256(f"{seed}\n{stream}".encode()).digest()
    return random.Random(int.from_bytes(digest))  # noqa: S311 -- repeatable on purpose


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return cluster.model_dump(mode="json")


def _topic(topic: Topic) -> dict[str, Any]:
    return topic.model_dump(mode="json")


def _workload(workload: Workload, first_rack: str, first_topic: str) -> dict[str, Any]:
    commit = workload.commit
    return {
        "name": workload.name,
        "produce": _produce(workload.produce, first_rack) if workload.produce else None,
        "consume": _consume(workload.consume, first_rack) if workload.consume else None,
        **({"commit": _commit(commit, first_rack, first_topic)} if commit else {}),
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


def _commit(commit: Commit, first_rack: str, first_topic: str) -> dict[str, Any]:
    return {
        "topic": commit.topic or first_topic,
        "groups": commit.groups,
        "rate_per_s": commit.rate,
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
