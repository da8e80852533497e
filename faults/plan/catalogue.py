"""What faults were measured to do, for the page of the catalogue: tables that the benches write beside this file.

Figures are of one host and one day, and say so. ``make bench`` takes them again, ``make docs`` puts them on the page.

The fault catalogue: what each kind does, its words, what proves it, what its heal brings back and what stays.

All of it comes from the kinds themselves (their docstrings, fields and class variables), so nothing here can go stale.
``catalogue`` is the text of ``plan faults``; the page of the docs is made of the same entries (``catalogue_page.py``).

``docs/FAULTS.md``: the catalogue as a page, with what holds for every fault told first.

``make docs`` writes it; a test holds it to what this prints. Only our own kinds are on it.

JSON Schema 2020-12 of the YAML document, for editors; units are in the patterns.

A fault's values may be ranges, which its model knows nothing of: here every value of every kind may be one.
"""

import json
import os
import platform
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from aftershock.faults.kinds.fault import FAMILIES, Fault
from aftershock.faults.kinds.registry import BROUGHT, KINDS, OURS, kind_of
from aftershock.faults.plan import units
from aftershock.faults.plan.composition import STEPS_MAX, Ranged
from aftershock.faults.plan.model import Plan
from aftershock.faults.plan.units import (
    BANDWIDTH_SAID,
    DURATION_SAID,
    RANGES_MAX,
    RATE_SAID,
    SIZE_SAID,
    format_duration,
)
from aftershock.faults.targets.links import GRAMMAR as LINK
from aftershock.faults.targets.roles import GRAMMAR as ROLE

NAME = "measured.json"


def keep(section: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes a section's table in the place of the one before, with the day and the host."""
    path = Path(__file__).with_name(NAME)
    where = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {datetime.now(UTC).date()}"
    kept = _kept() | {section: {"measured": where, "columns": [*columns], "rows": [[*row] for row in rows]}}
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")


def tables() -> Iterator[str]:
    """The sections as Markdown."""
    for title, table in _kept().items():
        columns = table["columns"]
        yield f"### {title}\n\n{table['measured']}.\n\n"
        yield from (f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *table["rows"]))
        yield "\n"


def _kept() -> dict[str, Any]:
    found = resources.files(__package__).joinpath(NAME)
    return dict(json.loads(found.read_text(encoding="utf-8"))) if found.is_file() else {}


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


_TOP = """\
# Faults

<!-- written by `make docs` from the code: change faults/kinds/ or faults/plan/catalogue.py, not this file -->

Every kind says how it is *witnessed*: seen to be in force through another channel than the one that injected it, while
it lasts. A witness that is missing or vanishes makes the run INCONCLUSIVE. Every kind says what its *heal* brings back;
each heal is verified, harmless when repeated, and can be done by another process. `aftershock plan faults` prints this
list, with the kinds of other packages; [EXTEND.md](EXTEND.md) tells how to write one.

## In a plan

```yaml
faults:
  - {id: slow-a, at: 0s, for: 7s, kind: latency, link: "client(a) <-> broker", delay: 50ms}
  - {at: 9s, for: 6s, kind: kill, broker: leader of orders/0}
```

`at` counts from the end of `steady`; `for` is how long the fault lasts; `id` is what SLOs call it, `<kind>-<n>` by
default. Faults may overlap, but for two that need the same thing for themselves (a kill and a pause of one node).

Targets are resolved when the fault strikes, and recorded. A fault that finds nothing to hit says so in the journal; the
rest of the plan goes on. Nodes of one rack talk directly: they have no link to break, and a plan that asks is refused.
A SIGKILL keeps the page cache: a killed broker loses nothing that it had written. `kill` tests no durability of disks.

"""
_COMPOSITION = """\
## Composition

```yaml
faults:
  - {at: 5s, together: [{for: 4s, kind: kill, broker: 1}, {at: 1s, for: 2s, kind: pause, broker: 2}]}
  - {at: 20s, then: [{for: 4s, kind: kill, broker: 1}, {wait: 2s}, {for: 4s, kind: pause, broker: 2}]}
  - {at: 40s, repeat: 3, every: 10s, fault: {id: nap, for: 2s, kind: pause, broker: 3}}
  - {at: 80s, every: 10s, until: 120s, fault: {for: 2s, kind: pause, broker: 3}}
  - at: 130s
    choose:
      - {weight: 3, fault: {for: 4s, kind: kill, broker: any broker except controller}}
      - {weight: 1, fault: {wait: 0s}}
```

* Elements nest. `at` counts from where the container puts its element: the start of `together` or of a round, its turn
  in `then`; left out, it is 0s.
* `then` goes on when the `for` of the one before is over, not when it is healed: `wait` leaves room. What has no `for`
  is over after its allowance.
* `repeat` needs no `every`: then a round begins when the last one is over. `until` counts from the same moment as the
  container's `at`, and no round begins then or later.
* `choose` draws one alternative by weight; `{wait: 0s}` is one in which nothing happens. Each round draws anew.
* A round adds its number to the fault's id: `nap-2`. Ids depend on no draw: every alternative counts.
* Any value but `kind` and `id` may be a range, `{range: [20ms, 200ms]}`, both ends included; RANGES_MAX at most in
  one fault. `at` and `wait` of what is composed may be one, too.
* The compiler draws everything from the seed. An entry added to the list moves no draw of another; within one entry, an
  `id` keeps a fault's draws. What only the draws make wrong (a fight, an SLO about a fault that was not drawn) is
  refused by `run` and `plan show` for that seed, with its place; all else by `plan check`.
* A plan has at most STEPS_MAX steps.

"""
_MEASURED = """\
## Measured

`make bench` takes these figures again. *In force* is the time from the journal's `intended` until the fault was said to
be in force; *witnessed* until another channel had seen it; *healed* how long the undo took, and its check.

"""


def page() -> str:
    """The whole page."""
    found = entries(OURS.values())
    families = [family for family in FAMILIES if any(entry.family == family for entry in found)]
    composition = _COMPOSITION.replace("RANGES_MAX", str(RANGES_MAX)).replace("STEPS_MAX", str(STEPS_MAX))
    parts = [_TOP, *_words(), "\n", composition]
    for family in families:
        own = [entry for entry in found if entry.family == family]
        parts += [f"## {family[0].upper()}{family[1:]}\n\n", *("".join(_section(entry)) for entry in own)]
    parts += [_MEASURED, *tables()]
    return "".join(parts).rstrip() + "\n"


def _words() -> Iterator[str]:
    yield "In the lists below:\n\n"
    yield from (f"* {word}: {meaning}\n" for word, meaning in WORDS.items())


def _section(entry: Entry) -> Iterator[str]:
    yield f"### `{entry.kind}`\n\n{entry.summary}\n\n"
    yield from (f"* `{name}`: {text}\n" for name, text in entry.parameters)
    yield from (f"* *{name}*: {text}\n" for name, text in entry.rows)
    yield "\n"


_FIXED = ("kind", "id")
_RANGE = {"$ref": "#/$defs/Range"}


def plan_schema() -> dict[str, Any]:
    """The schema."""
    schema = Plan.model_json_schema(by_alias=True, mode="validation")
    definitions = schema["$defs"] | {"Range": units.SCHEMA}
    del definitions[Ranged.__name__]
    for definition in definitions.values():
        properties = definition.get("properties", {})
        if properties.get("kind", {}).get("const") in KINDS:
            properties |= {name: _or_range(value) for name, value in properties.items() if name not in _FIXED}
    plain = _without({"$ref": f"#/$defs/{Ranged.__name__}"}, {**schema, "$defs": definitions})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **plain, "title": "Aftershock plan"}


def _or_range(value: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [value, _RANGE]}


def _without(unwanted: dict[str, Any], schema: Any) -> Any:
    """The schema with one alternative taken out wherever it stands."""
    if isinstance(schema, dict):
        return {key: _without(unwanted, value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_without(unwanted, value) for value in schema if value != unwanted]
    return schema
