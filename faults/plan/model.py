"""Model of a plan, that is the validated content of a YAML plan.

The models of a plan's sections are defined in ``faults/sections`` and ``composition.py``.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictInt

from aftershock.faults.plan.composition import AnyElement
from aftershock.faults.runtime.abort import ConditionText
from aftershock.faults.sections.cluster import Cluster, Part
from aftershock.faults.sections.workloads import Timing, Topic, Workload, WorkloadName

BLOCKS_MAX = 100
Gate = Literal["verdict", "report"]


class SloEntry(Part):
    """An SLO; the run's verdict depends on it if its gate is ``verdict``, but not if its gate is ``report``.

    ``advice`` is shown if the SLO is violated: the usual cause, and what to do.
    """

    slo: str
    gate: Gate = "verdict"
    advice: str = ""


Conditions = Annotated[
    tuple[ConditionText, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class Plan(Part):
    """A whole plan; ``blocks`` is the number of repetitions of all faults, each followed by ``timing.recovery``."""

    name: WorkloadName
    why: str = ""
    cluster: Cluster = Cluster()
    topics: Annotated[tuple[Topic, ...], Field(min_length=1)]
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)]
    timing: Timing = Timing()
    blocks: Annotated[StrictInt, Field(ge=1, le=BLOCKS_MAX)] = 1
    faults: tuple[AnyElement, ...] = ()
    abort: Conditions = ()
    slo: tuple[str | SloEntry, ...] = ()

    @property
    def objectives(self) -> tuple[SloEntry, ...]:
        """The SLOs of the plan, each with its gate."""
        return tuple(entry if isinstance(entry, SloEntry) else SloEntry(slo=entry) for entry in self.slo)


def dump(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data with YAML's keys, without defaults, which ``Plan.model_validate`` reads back."""
    return plan.model_dump(mode="json", by_alias=True, exclude_defaults=True)
