"""The fault catalogue: what each kind does, its words, what proves it, what its heal brings back and what stays.

All of it comes from the kinds themselves (their docstrings, fields and class variables), so nothing here can go stale.
``catalogue`` is the text of ``plan faults``; the page of the docs is made of the same entries (``catalogue_page.py``).
"""

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aftershock.faults.fault import FAMILIES, Fault
from aftershock.faults.kinds import BROUGHT, KINDS, kind_of
from aftershock.faults.links import GRAMMAR as LINK
from aftershock.faults.roles import GRAMMAR as ROLE
from aftershock.faults.units import BANDWIDTH_SAID, DURATION_SAID, RATE_SAID, SIZE_SAID, format_duration

WIDTH = 100
_COMMON = ("kind", "id", "at", "for")
_FOR = {
    "needed": "needed: how long it lasts",
    "optional": "may be given: then its heal restores what was; without, it stays",
    "refused": "refused: the action is the whole fault",
}
WORDS = {
    "LINK": LINK,
    "ROLE": ROLE,
    "DURATION": DURATION_SAID,
    "RATE": RATE_SAID,
    "SIZE": SIZE_SAID,
    "BANDWIDTH": BANDWIDTH_SAID,
}
"""The words that parameters are described with."""
_PLAIN = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true | false", "object": "map"}


@dataclass(frozen=True)
class Entry:
    """One kind. ``rows``: what there is to say of it, by a word each; ``package``: whose it is, None for ours."""

    kind: str
    family: str
    summary: str
    parameters: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, str], ...]
    package: str | None = None


def entries(kinds: Iterable[type[Fault]]) -> list[Entry]:
    """An entry for each."""
    return [_entry(kind) for kind in kinds]


def catalogue() -> str:
    """Every kind, family by family, what can't be used, and the words explained; without a newline at the end."""
    found = entries(KINDS.values())
    blocks = []
    for family in FAMILIES:
        own = [entry for entry in found if entry.family == family]
        blocks += [_heading(f"{family} faults")] * bool(own) + ["\n".join(_lines(entry)) for entry in own]
    broken = ["\n".join(_wrapped(why)) for why in BROUGHT.refused.values()]
    blocks += [_heading("can't be used"), *broken] if broken else []
    words = [line for word, meaning in WORDS.items() for line in _wrapped(f"{word} is {meaning.replace('`', '')}")]
    return "\n\n".join([*blocks, _heading("words"), "\n".join(words)])


def _entry(kind: type[Fault]) -> Entry:
    schema = kind.model_json_schema(by_alias=True)
    word = str(kind_of(kind))
    needed = schema.get("required", ())
    parameters = [
        (name, _parameter(field, schema, needed=name in needed))
        for name, field in schema["properties"].items()
        if name not in _COMMON
    ]
    return Entry(word, kind.family, _summary(kind), tuple(parameters), tuple(_rows(kind)), BROUGHT.packages.get(word))


def _summary(kind: type[Fault]) -> str:
    """The first paragraph of its docstring."""
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def _rows(kind: type[Fault]) -> Iterator[tuple[str, str]]:
    yield "for", _FOR[kind.for_rule]
    yield "proof", kind.proof
    yield "heal", kind.remedy
    if kind.leaves is not None:
        yield "leaves", kind.leaves
    met = "requests that it does something to" if kind.met_by == "requests" else f"traffic to its {kind.met_by}"
    yield "met by", met + (", also right before it, as it ends it" if kind.severs else "")


def _lines(entry: Entry) -> Iterator[str]:
    rows = [*entry.parameters, *entry.rows, *([("from", entry.package)] if entry.package else [])]
    column = max(10, *(len(name) + 2 for name, _ in rows))
    yield from _wrapped(f"{entry.kind}: {entry.summary}")
    for name, text in rows:
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=f"  {name:<{column}}", subsequent_indent=" " * (column + 2)
        )


def _heading(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}\n{'=' * len(text)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _parameter(field: dict[str, Any], schema: dict[str, Any], *, needed: bool) -> str:
    default = field.get("default")
    usual = "needed" if needed else "optional" if default in (None, []) else f"default {_default(field, default)}"
    said = _described(field)
    return "; ".join([type_of(field, schema), usual, *([said] if said and said not in WORDS.values() else [])])


def _described(field: dict[str, Any]) -> str:
    """What the field's own description says, also where it may be left out."""
    inner = field.get("anyOf", [{}])[0]
    return str(field.get("description") or inner.get("description", ""))


def type_of(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """The type of a parameter in the words of a plan."""
    if word := field.get("x-word"):
        return str(word)
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if "anyOf" in field:
        return " | ".join(dict.fromkeys(type_of(each, schema) for each in field["anyOf"] if each.get("type") != "null"))
    return _composite(field, schema) or " ".join([_PLAIN.get(field.get("type", ""), "value"), *_bounds(field)])


def _composite(field: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """What holds other values; None: it is none of these."""
    if "$ref" in field:
        return _nested(schema["$defs"][field["$ref"].rpartition("/")[2]], schema)
    if field.get("type") == "array":
        return f"[{type_of(field.get('items', {}), schema)}, …]"
    if isinstance(field.get("additionalProperties"), dict):
        return f"{{NAME: {type_of(field['additionalProperties'], schema)}, …}}"
    return None


def _bounds(field: dict[str, Any]) -> Iterator[str]:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    yield from (f"{word} {field[key]}" for key, word in words.items() if key in field)


def _nested(model: dict[str, Any], schema: dict[str, Any]) -> str:
    inner = ", ".join(f"{name}: {type_of(field, schema)}" for name, field in model.get("properties", {}).items())
    return f"{{{inner}}}" if inner else " | ".join(map(str, model.get("enum", ["value"])))


def _default(field: dict[str, Any], default: Any) -> str:
    """Durations are ms once parsed; a plan writes them with their unit."""
    if isinstance(default, bool):
        return str(default).lower()
    is_duration = isinstance(default, int) and type_of(field, {}) == "DURATION"
    return format_duration(default) if is_duration else str(default)
