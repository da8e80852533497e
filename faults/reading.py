"""Reading a plan's data part by part: what can be read is given, what can't is a problem with its place."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from aftershock.faults.complaints import complaints
from aftershock.faults.problem import Loc, Problem

M = TypeVar("M", bound=BaseModel)


@dataclass
class Reading:
    """The data being read, and the problems met so far."""

    data: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def listed(self, key: str) -> list[Any]:
        """The entries of one of the plan's lists; none where it is no list."""
        items = self.data.get(key)
        return items if isinstance(items, list) else []

    def wrong(self, loc: Loc, sentence: str) -> None:
        """One more problem."""
        self.problems.append(Problem(loc, sentence))

    def read(self, item: object, model: type[M], loc: Loc) -> M | None:
        """The part; without its misspelt keys, if only these are wrong with it; else None."""
        try:
            return model.model_validate(item)
        except ValidationError as error:
            self.problems += complaints(error, model, item, loc)
            unknown = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
            return _without(unknown, item, model) if unknown else None


def _without(unknown: list[Loc], item: object, model: type[M]) -> M | None:
    """The part as it would read if only its misspelt keys were taken away, so that the rest of it is judged as well."""
    pruned = deepcopy(item)
    for *path, key in unknown:
        here: Any = pruned
        for step in path:
            here = here[step]
        del here[key]
    try:
        return model.model_validate(pruned)
    except ValidationError:
        return None
