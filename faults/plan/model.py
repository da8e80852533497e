"""An entry of a plan's ``slo``: a line of the language, or one with ``gate: report``, which is watched and no more.

The plan: what a YAML document says, as objects; the two are the same thing. Its parts are in ``parts``.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictInt

from aftershock.faults.plan.cluster import Cluster, Disks, Part
from aftershock.faults.plan.composition import AnyElement
from aftershock.faults.plan.workloads import (
    Arm,
    Commit,
    Consume,
    LeaderDiscovery,
    Produce,
    RecordSize,
    Timing,
    Topic,
    Warmup,
    Workload,
    WorkloadName,
)
from aftershock.faults.runtime.abort import ConditionText

Gate = Literal["verdict", "report"]


class SloEntry(Part):
    """``gate``: whether the run's verdict hangs on it, or the report alone shows it."""

    slo: str
    gate: Gate = "verdict"


__all__ = [
    "BLOCKS_MAX",
    "Arm",
    "Cluster",
    "Commit",
    "Consume",
    "Disks",
    "LeaderDiscovery",
    "Plan",
    "Produce",
    "RecordSize",
    "SloEntry",
    "Timing",
    "Topic",
    "Warmup",
    "Workload",
    "dump",
]

BLOCKS_MAX = 100


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Plan(Part):
    """A whole plan. ``blocks``: how often its faults happen, all of them, each time followed by ``timing.recovery``."""

    name: WorkloadName
    why: str = ""
    cluster: Cluster = Cluster()
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)]
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)]
    timing: Timing = Timing()
    blocks: Annotated[StrictInt, Field(ge=1, le=BLOCKS_MAX)] = 1
    faults: tuple[AnyElement, ...] = ()
    abort: Annotated[tuple[ConditionText, ...], BeforeValidator(_one_or_more)] = ()
    slo: tuple[str | SloEntry, ...] = ()

    @property
    def objectives(self) -> tuple[SloEntry, ...]:
        """Its SLOs, each with its gate."""
        return tuple(each if isinstance(each, SloEntry) else SloEntry(slo=each) for each in self.slo)


def dump(plan: Plan) -> dict[str, Any]:
    """The plan as plain data in the words of YAML, defaults left out; ``Plan.model_validate`` reads it back."""
    return plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
