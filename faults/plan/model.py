"""Model of a plan, that is the validated content of a YAML plan, and of its composed faults.

The models of a plan's sections are defined in ``faults/sections``.

Rules of composition. Elements nest. The ``at`` of a nested fault counts from the start of the ``together``, or of the
round of ``repeat``, that contains the fault; inside ``then``, from the end of the previous element. A composed element
ends when its last fault ends by its ``for`` (healing may take longer, for which a plan can add a ``wait``) or, without
``for``, after the time reserved for its kind. No round of a ``repeat`` starts at or after ``until``, which counts from
the same moment as the ``at`` of the ``repeat``. A fault's value may be a range (``sections/units.py``). ``expand.py``
turns composed elements into single faults.

::

    - {at: 5s, together: [{for: 4s, kind: kill, broker: 1}, {at: 1s, for: 2s, kind: pause, broker: 2}]}
    - then: [{for: 4s, kind: kill, broker: 1}, {wait: 2s}, {for: 4s, kind: pause, broker: 2}]
    - {repeat: 3, every: 5s, fault: {for: 2s, kind: pause, broker: 3}}
    - {every: 5s, until: 40s, fault: {for: 2s, kind: pause, broker: 3}}
    - choose: [{weight: 3, fault: {for: 2s, kind: pause, broker: 3}}, {weight: 1, fault: {wait: 0s}}]
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    Tag,
    ValidationError,
    model_validator,
)

from aftershock.faults.kinds.fault import Fault, FaultId
from aftershock.faults.kinds.registry import KINDS, AnyFault
from aftershock.faults.runtime.abort import ConditionText
from aftershock.faults.sections.cluster import Cluster, Part
from aftershock.faults.sections.document import Location
from aftershock.faults.sections.units import Duration, Moment, Range, corners, ranges_in
from aftershock.faults.sections.workloads import Timing, Topic, Workload, WorkloadName

STEPS_MAX = 500


class Ranged(BaseModel):
    """Fault with ranges of values, from which the compiler draws."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str
    id: FaultId | None = None

    @model_validator(mode="after")
    def _valid_at_every_corner(self) -> Self:
        try:
            self.corners()
        except (ValidationError, ValueError, KeyError) as error:
            raise ValueError(str(error)) from error
        return self

    def data(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def corners(self) -> list[Fault]:
        """Return one copy of the fault for each combination of the lower and upper ends of its ranges."""
        return [KINDS[self.kind].model_validate(data) for data in corners(self.data())]


class _Composed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wait(_Composed):
    """A pause between two elements of `then`, or an alternative of `choose` without a fault."""

    wait: Moment


class Together(_Composed):
    """Faults or composed elements that run concurrently; each `at` counts from one common moment."""

    at: Moment = 0
    together: Annotated[tuple["AnyElement", ...], Field(min_length=1)]


class Then(_Composed):
    """Faults or composed elements that run one after the other."""

    at: Moment = 0
    then: Annotated[tuple["AnyElement", ...], Field(min_length=1)]


class Repeat(_Composed):
    """A fault or composed element that is repeated `repeat` times, or at the interval `every` until `until`."""

    at: Moment = 0
    repeat: Annotated[StrictInt, Field(ge=1, le=STEPS_MAX)] | None = None
    every: Annotated[Duration, Field(ge=1)] | None = None
    until: Duration | None = None
    fault: "AnyElement"

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if (self.repeat is None) == (self.until is None):
            raise ValueError("give the number of rounds by either `repeat: 3` or `every: 5s, until: 40s`")
        if self.until is not None and self.every is None:
            raise ValueError("`until` needs `every`: give the interval between rounds, like `every: 5s`")
        if self.rounds(int(self.at.high) if isinstance(self.at, Range) else self.at) == 0:
            raise ValueError("`until` counts from the same moment as `at` and must be later, or no round starts")
        return self

    def rounds(self, at_ms: int) -> int:
        """Return the number of rounds of a `repeat` whose first round starts at ``at_ms``."""
        if self.until is None or self.every is None:
            return self.repeat or 0
        return max(0, -(-(self.until - at_ms) // self.every))


class Choice(_Composed):
    """An alternative of `choose`, drawn `weight` times as often as an alternative of weight 1."""

    weight: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    fault: "AnyElement"


class Choose(_Composed):
    """Alternatives (faults or composed elements), of which the compiler draws one."""

    at: Moment = 0
    choose: Annotated[tuple[Choice, ...], Field(min_length=2)]


MODEL_BY_KEY: Mapping[str, type[_Composed]] = {
    "together": Together,
    "then": Then,
    "choose": Choose,
    "wait": Wait,
    **dict.fromkeys(("repeat", "every", "until", "fault"), Repeat),
}
"""Models of composed elements, by the keys that distinguish them from a fault."""


def element_model(element: object) -> type[BaseModel] | None:
    """Return the model class of a fault or composed element; None for data without a key of any model."""
    if isinstance(element, BaseModel):
        return Fault if isinstance(element, Fault) else type(element)
    if not isinstance(element, Mapping):
        return None
    if "kind" in element:
        return Ranged if any(ranges_in(element)) else Fault
    return next((model for key, model in MODEL_BY_KEY.items() if key in element), None)


if TYPE_CHECKING:
    AnyElement: TypeAlias = Fault | Ranged | Wait | Together | Then | Repeat | Choose
else:
    AnyElement = Annotated[
        Annotated[AnyFault, Tag("Fault")]
        | Annotated[Ranged, Tag("Ranged")]
        | Annotated[Wait, Tag("Wait")]
        | Annotated[Together, Tag("Together")]
        | Annotated[Then, Tag("Then")]
        | Annotated[Repeat, Tag("Repeat")]
        | Annotated[Choose, Tag("Choose")],
        Discriminator(lambda element: getattr(element_model(element), "__name__", None)),
    ]

for model in (Together, Then, Repeat, Choice, Choose):
    model.model_rebuild()


def children(element: AnyElement) -> Iterator[tuple[Location, AnyElement]]:
    """Yield the elements directly inside a composed element, each with its location relative to ``element``."""
    match element:
        case Together():
            yield from ((("together", index), child) for index, child in enumerate(element.together))
        case Then():
            yield from ((("then", index), child) for index, child in enumerate(element.then))
        case Choose():
            yield from ((("choose", index, "fault"), choice.fault) for index, choice in enumerate(element.choose))
        case Repeat():
            yield ("fault",), element.fault


def walk(element: AnyElement, loc: Location) -> Iterator[tuple[Location, AnyElement]]:
    """Yield a composed element and everything inside it, in the order of the document."""
    yield loc, element
    for step, child in children(element):
        yield from walk(child, (*loc, *step))


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
