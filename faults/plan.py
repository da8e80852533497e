"""The plan: what a YAML document says, as objects; the two are the same thing. Its parts are in ``parts``."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from aftershock.faults.abort import ConditionText
from aftershock.faults.compose import AnyElement
from aftershock.faults.parts import (
    Arm,
    Cluster,
    Commit,
    Consume,
    Disks,
    LeaderDiscovery,
    Part,
    Produce,
    RecordSize,
    Timing,
    Topic,
    Warmup,
    Workload,
    WorkloadName,
)

__all__ = [
    "Arm",
    "Cluster",
    "Commit",
    "Consume",
    "Disks",
    "LeaderDiscovery",
    "Plan",
    "Produce",
    "RecordSize",
    "Timing",
    "Topic",
    "Warmup",
    "Workload",
    "dump",
]


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Plan(Part):
    """A whole plan."""

    name: WorkloadName
    why: str = ""
    cluster: Cluster = Cluster()
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)]
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)]
    timing: Timing = Timing()
    faults: tuple[AnyElement, ...] = ()
    abort: Annotated[tuple[ConditionText, ...], BeforeValidator(_one_or_more)] = ()
    slo: tuple[str, ...] = ()


def dump(plan: Plan) -> dict[str, Any]:
    """The plan as plain data in the words of YAML, defaults left out; ``Plan.model_validate`` reads it back."""
    return plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
