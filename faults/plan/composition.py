"""What faults are composed of: together, one after the other, again and again, or one of several.

::

    - {at: 5s, together: [{for: 4s, kind: kill, broker: 1}, {at: 1s, for: 2s, kind: pause, broker: 2}]}
    - then: [{for: 4s, kind: kill, broker: 1}, {wait: 2s}, {for: 4s, kind: pause, broker: 2}]
    - {repeat: 3, every: 5s, fault: {for: 2s, kind: pause, broker: 3}}
    - {every: 5s, until: 40s, fault: {for: 2s, kind: pause, broker: 3}}
    - choose: [{weight: 3, fault: {for: 2s, kind: pause, broker: 3}}, {weight: 1, fault: {wait: 0s}}]

Rules. Elements nest. ``at`` counts from where the container puts its element: the start of ``together`` or of a round,
its turn in ``then``. An element is over when its last ``for`` is (not yet healed: ``wait`` leaves room for that), and
one without ``for`` after its allowance. ``until`` counts from the same moment as the container's own ``at``; no round
begins then or later. A value may be a range (``ranges.py``). ``expand.py`` makes steps of all that.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictInt, Tag, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from aftershock.faults.kinds.fault import Fault, FaultId
from aftershock.faults.kinds.registry import KINDS, AnyFault
from aftershock.faults.plan.document import Location
from aftershock.faults.plan.units import Duration, Moment, Range, corners, ranges_in

STEPS_MAX = 500


class Ranged(BaseModel):
    """A fault some of whose values are ranges, so that only the compiler can tell which fault it is: its words."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str
    id: FaultId | None = None

    @model_validator(mode="after")
    def _good_at_every_corner(self) -> Self:
        try:
            self.corners()
        except (ValidationError, ValueError, KeyError) as error:
            raise _refused(str(error)) from error
        return self

    def words(self) -> dict[str, Any]:
        """The fault as the plan says it."""
        return self.model_dump(exclude_none=True)

    def corners(self) -> list[Fault]:
        """The fault at each combination of the ends of its ranges."""
        return [KINDS[self.kind].model_validate(words) for words in corners(self.words())]


class _Composed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wait(_Composed):
    """Nothing, for a while: between two of `then`, or as an alternative of `choose`."""

    wait: Moment


class Together(_Composed):
    """Elements that all count their `at` from one moment."""

    at: Moment = 0
    together: Annotated[tuple["AnyElement", ...], Field(min_length=1)]


class Then(_Composed):
    """Elements one after the other, each when the one before is over."""

    at: Moment = 0
    then: Annotated[tuple["AnyElement", ...], Field(min_length=1)]


class Repeat(_Composed):
    """One element several times: `repeat` times or `until` a moment, `every` so often or when the last one is over."""

    at: Moment = 0
    repeat: Annotated[StrictInt, Field(ge=1, le=STEPS_MAX)] | None = None
    every: Annotated[Duration, Field(ge=1)] | None = None
    until: Duration | None = None
    fault: "AnyElement"

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if (self.repeat is None) == (self.until is None):
            raise _refused("say how often, by `repeat: 3` or by `every: 5s, until: 40s`; one of the two")
        if self.until is not None and self.every is None:
            raise _refused("`until` needs `every`: say how often a round begins, like `every: 5s`")
        if self.rounds(int(self.at.high) if isinstance(self.at, Range) else self.at) == 0:
            raise _refused("`until` counts from where `at` does and is not after it, so nothing happens: make it later")
        return self

    def rounds(self, at_ms: int) -> int:
        """How many there are when the first begins ``at_ms`` after the moment that `at` counts from."""
        if self.until is None or self.every is None:
            return self.repeat or 0
        return max(0, -(-(self.until - at_ms) // self.every))


class Choice(_Composed):
    """One alternative: drawn `weight` times as often as one of weight 1."""

    weight: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    fault: "AnyElement"


class Choose(_Composed):
    """One of several elements, drawn by the compiler."""

    at: Moment = 0
    choose: Annotated[tuple[Choice, ...], Field(min_length=2)]


BY_WORD: Mapping[str, type[_Composed]] = {
    "together": Together,
    "then": Then,
    "choose": Choose,
    "wait": Wait,
    **dict.fromkeys(("repeat", "every", "until", "fault"), Repeat),
}
"""What is composed, by the keys that tell it from a fault."""


def sort_of(said: object) -> type[BaseModel] | None:
    """What an element is, by its keys; an object, by its class. None: nothing that belongs among faults."""
    if isinstance(said, BaseModel):
        return Fault if isinstance(said, Fault) else type(said)
    if not isinstance(said, Mapping):
        return None
    if "kind" in said:
        return Ranged if any(ranges_in(said)) else Fault
    return next((model for word, model in BY_WORD.items() if word in said), None)


def _tag(said: object) -> str | None:
    found = sort_of(said)
    return found.__name__ if found else None


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
        Discriminator(_tag),
    ]

for model in (Together, Then, Repeat, Choice, Choose):
    model.model_rebuild()


def children(element: AnyElement) -> Iterator[tuple[Location, AnyElement]]:
    """What it is composed of, each with its place in it."""
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
    """It and everything in it, in the order of the document."""
    yield loc, element
    for step, child in children(element):
        yield from walk(child, (*loc, *step))


def _refused(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
