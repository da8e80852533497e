"""What pydantic found wrong, in our words: a sentence that says what to do, and the place it is about."""

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from aftershock.faults.problem import Loc, Problem, did_you_mean

_OURS = frozenset({"unit", "role", "link", "refused"})
_TEMPLATES: dict[str, str] = {
    "int_type": "must be a whole number, and {shown} is none",
    "int_parsing": "must be a whole number, and {shown} is none",
    "bool_type": "must be true or false, and {shown} is neither",
    "string_type": "must be text: put {shown} in quotes, or write a word",
    "greater_than": "must be more than {gt}, and {shown} is not",
    "greater_than_equal": "must be at least {ge}, and {shown} is less",
    "less_than_equal": "must be at most {le}, and {shown} is more",
    "string_pattern_mismatch": "can't be {shown}: it has to look like {pattern}",
    "literal_error": "can't be {shown}: say {expected}",
    "too_short": "needs {min_length} or more in it: add one",
    "too_long": "has more than {max_length} entries: take some away",
    "dict_type": "must be a mapping of keys to values, and {shown} is none",
    "model_type": "must be a mapping of keys to values, and {shown} is none",
    "tuple_type": "must be a list, and {shown} is none",
}


def complaints(error: ValidationError, model: type[BaseModel], data: object, prefix: Loc) -> list[Problem]:
    """The problems of one part of the plan, which stands at ``prefix``; the first for each place only."""
    found: dict[Loc, Problem] = {}
    for detail in error.errors(include_url=False):
        problem = _complaint(detail, model, data)
        found.setdefault(problem.loc, problem)
    return [Problem(prefix + problem.loc, problem.sentence, problem.on_key) for problem in found.values()]


def _complaint(detail: Mapping[str, Any], model: type[BaseModel], data: object) -> Problem:
    loc: Loc = detail["loc"]
    kind: str = detail["type"]
    if kind == "missing":
        return Problem(loc, f"`{loc[-1]}` is missing here: add it")
    if kind == "extra_forbidden":
        return Problem(loc, f"unknown key `{loc[-1]}`; {did_you_mean(loc[-1], keys_at(model, loc[:-1]))}", on_key=True)
    on_key = loc[-1:] == ("[key]",)
    place = _existing(loc, data)
    if kind in _OURS:
        return Problem(place, str(detail["msg"]) if on_key else _named(place, str(detail["msg"]), ": "), on_key)
    template = _TEMPLATES.get(kind)
    facts = {**detail.get("ctx", {}), "shown": _shown(detail["input"])}
    sentence = template.format(**facts) if template else f"is not valid ({detail['msg']}): mend it"
    return Problem(place, f"this name {sentence}" if on_key else _named(place, sentence, " "), on_key)


def keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that the model at ``loc`` knows, as YAML writes them."""
    here: Any = model
    for step in loc:
        here = _model_in(here)
        if isinstance(step, str) and _is_model(here):
            here = next((field.annotation for key, field in _fields(here) if key == step), None)
    here = _model_in(here)
    return [key for key, _ in _fields(here)] if _is_model(here) else []


def _fields(model: type[BaseModel]) -> list[tuple[str, Any]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _is_model(what: Any) -> bool:
    return isinstance(what, type) and issubclass(what, BaseModel)


def _model_in(annotation: Any) -> Any:
    """The model inside Optional, Annotated, tuple or dict; the annotation itself if there is none."""
    if get_origin(annotation) not in (Union, types.UnionType, Annotated, tuple, dict):
        return annotation
    inner: Callable[[Any], Any] = _model_in
    return next((found for found in map(inner, get_args(annotation)) if _is_model(found)), annotation)


def _existing(loc: Loc, data: Any) -> Loc:
    """The longest part of ``loc`` that is in the data: pydantic adds steps of its own to it."""
    here = data
    for count, step in enumerate(loc):
        try:
            here = here[step]
        except (TypeError, LookupError):  # no mapping or list, or nothing of that name in it
            return loc[:count]
    return loc


def _named(loc: Loc, sentence: str, separator: str) -> str:
    name = next((step for step in reversed(loc) if isinstance(step, str)), None)
    return sentence if name is None else f"`{name}`{separator}{sentence}"


def _shown(value: object) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"  # noqa: PLR2004 -- what fits a line
