"""The fault catalogue as text: what each kind does, its words, what proves it and what its heal brings back.

All of it comes from the kinds themselves (their docstrings, fields and class variables), so nothing here can go stale.
"""

from collections.abc import Iterator
from typing import Any

from aftershock.faults.fault import Fault
from aftershock.faults.kinds import KINDS
from aftershock.faults.links import GRAMMAR as LINK
from aftershock.faults.roles import GRAMMAR as ROLE
from aftershock.faults.units import format_duration

_COMMON = ("kind", "id", "at", "for")
_FOR = {
    "needed": "needed: how long it lasts",
    "optional": "may be given: then its heal restores what was; without, it stays",
    "refused": "refused: the action is the whole fault",
}
DURATION = "50ms, 4s, 1.5s, 2m"
_KNOWN = {LINK: "LINK", ROLE: "ROLE", DURATION: "DURATION"}
_INDENT = 12


def catalogue() -> str:
    """Every kind, without a newline at the end."""
    words = [f"{word} is {grammar.replace('`', '')}" for grammar, word in _KNOWN.items()]
    return "\n\n".join([*("\n".join(_entry(kind)) for kind in KINDS.values()), "\n".join(words)])


def _entry(kind: type[Fault]) -> Iterator[str]:
    summary = (kind.__doc__ or "").splitlines()[0]
    schema = kind.model_json_schema(by_alias=True)
    yield f"{schema['properties']['kind']['const']}: {summary}"
    for name, field in schema["properties"].items():
        if name not in _COMMON:
            yield _row(name, _parameter(field, schema, needed=name in schema["required"]))
    yield _row("for", _FOR[kind.for_rule])
    yield _row("proof", kind.proof)
    yield _row("heal", kind.remedy)


def _row(name: str, text: str) -> str:
    return f"  {name:<{_INDENT - 2}}{text}"


def _parameter(field: dict[str, Any], schema: dict[str, Any], *, needed: bool) -> str:
    default = field.get("default")
    usual = "needed" if needed else "optional" if default is None else f"default {_default(field, default)}"
    said = _described(field)
    return "; ".join([_type(field, schema), usual, *([said] if said and said not in _KNOWN else [])])


def _described(field: dict[str, Any]) -> str:
    """What the field's own description says, also where it may be left out."""
    inner = field.get("anyOf", [{}])[0]
    return str(field.get("description") or inner.get("description", ""))


def _type(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """The type of a parameter in the words of a plan."""
    if _described(field) in _KNOWN:
        return _KNOWN[_described(field)]
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if "anyOf" in field:
        return " | ".join(_type(each, schema) for each in field["anyOf"] if each.get("type") != "null")
    if "$ref" in field:
        return _nested(schema["$defs"][field["$ref"].rpartition("/")[2]], schema)
    bounds = [f"{word} {field[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in field]
    return " ".join([{"string": "name", "integer": "number"}[field["type"]], *bounds])


def _nested(model: dict[str, Any], schema: dict[str, Any]) -> str:
    inner = ", ".join(f"{name}: {_type(field, schema)}" for name, field in model["properties"].items())
    return f"{{{inner}}}"


def _default(field: dict[str, Any], default: Any) -> str:
    """Durations are ms once parsed; a plan writes them with their unit."""
    is_duration = isinstance(default, int) and _described(field) == DURATION
    return format_duration(default) if is_duration else str(default)
