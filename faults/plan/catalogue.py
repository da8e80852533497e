"""Reference of fault kinds (``plan faults``, ``docs/FAULTS.md``) and JSON Schema of the plan format.

All texts about a fault kind come from its code (docstring, fields and class variables). ``make docs`` writes
``docs/FAULTS.md``, and ``make bench`` measures the faults and saves tables that ``docs/FAULTS.md`` includes.
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

from aftershock.faults.kinds.fault import FAMILIES, Fault, OnLink
from aftershock.faults.kinds.registry import BUILT_IN, EXTERNAL, KINDS, kind_of
from aftershock.faults.plan.model import STEPS_MAX, Plan, Ranged
from aftershock.faults.sections.units import (
    BANDWIDTH_EXAMPLES,
    DURATION_EXAMPLES,
    PERCENT_EXAMPLES,
    RANGE_SCHEMA,
    RANGES_MAX,
    RATE_EXAMPLES,
    SHIFT_EXAMPLES,
    SIZE_EXAMPLES,
    format_duration,
)
from aftershock.faults.targets.links import GRAMMAR as LINK
from aftershock.faults.targets.roles import GRAMMAR as ROLE

MEASUREMENTS_FILE = "measured.json"


def save_measurements(section: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Save a table of measurements, with the day and the host, in place of the previous measurements."""
    path = Path(__file__).with_name(MEASUREMENTS_FILE)
    host = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {datetime.now(UTC).date()}"
    table = {"measured": host, "columns": [*columns], "rows": [[*row] for row in rows]}
    sections = _load_measurements() | {section: table}
    path.write_text(json.dumps(dict(sorted(sections.items())), indent=1) + "\n", encoding="utf-8")


def measurement_tables() -> Iterator[str]:
    for title, table in _load_measurements().items():
        columns = table["columns"]
        yield f"### {title}\n\n{table['measured']}.\n\n"
        yield from (f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *table["rows"]))
        yield "\n"


def _load_measurements() -> dict[str, Any]:
    file = resources.files(__package__).joinpath(MEASUREMENTS_FILE)
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


WIDTH = 100
_FOR_RULES = {
    "needed": "needed: the duration of the fault",
    "optional": "optional: with a duration, the heal restores the previous state; without a duration, the change stays",
    "refused": "refused: the fault is a single action, which has no duration",
}
WORDS = {
    "LINK": LINK,
    "ROLE": ROLE,
    "DURATION": DURATION_EXAMPLES,
    "SHIFT": SHIFT_EXAMPLES,
    "PERCENT": PERCENT_EXAMPLES,
    "RATE": RATE_EXAMPLES,
    "SIZE": SIZE_EXAMPLES,
    "BANDWIDTH": BANDWIDTH_EXAMPLES,
}
"""Names of parameter types in the catalogue, with their explanations."""
_PLAIN_TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true | false", "object": "map"}


@dataclass(frozen=True)
class Entry:
    """Catalogue entry of one fault kind; ``rows`` has facts such as the heal; a built-in kind has no ``package``."""

    kind: str
    family: str
    summary: str
    parameters: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, str], ...]
    package: str | None = None


def entries(kinds: Iterable[type[Fault]]) -> list[Entry]:
    result = []
    for kind in kinds:
        schema = kind.model_json_schema(by_alias=True)
        name = str(kind_of(kind))
        required = schema.get("required", ())
        parameters = tuple(
            (key, _parameter(field, schema, required=key in required))
            for key, field in schema["properties"].items()
            if key not in ("kind", "id", "at", "for")
        )
        summary = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
        target = kind.exposure_target
        exposure = "requests that the fault changes" if target == "requests" else f"traffic to its {target}"
        if kind.drops_traffic:
            exposure = f"{exposure}, including right before the fault, because the fault stops all traffic"
        rows = [("for", _FOR_RULES[kind.for_rule]), ("proof", kind.proof), ("heal", kind.remedy)]
        if kind.permanent_effect is not None:
            rows.append(("leaves", kind.permanent_effect))
        rows.append(("met by", exposure))
        result.append(Entry(name, kind.family, summary, parameters, tuple(rows), EXTERNAL.packages.get(name)))
    return result


def catalogue() -> str:
    """Return the text of ``plan faults``, without a final newline."""
    all_entries = entries(KINDS.values())
    blocks = []
    for family in FAMILIES:
        of_family = [entry for entry in all_entries if entry.family == family]
        blocks += [_heading(f"{family} faults")] if of_family else []
        for entry in of_family:
            rows = [*entry.parameters, *entry.rows, *([("from", entry.package)] if entry.package else [])]
            column = max(10, *(len(name) + 2 for name, _ in rows))
            lines = _wrapped(f"{entry.kind}: {entry.summary}")
            for name, text in rows:
                first, later = f"  {name:<{column}}", " " * (column + 2)
                lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later)
            blocks.append("\n".join(lines))
    if EXTERNAL.refused:
        blocks += [_heading("can't be used"), *("\n".join(_wrapped(why)) for why in EXTERNAL.refused.values())]
    words = [line for word, meaning in WORDS.items() for line in _wrapped(f"{word} is {meaning.replace('`', '')}")]
    return "\n\n".join([*blocks, _heading("words"), "\n".join(words)])


def _heading(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}\n{'=' * len(text)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _parameter(field: dict[str, Any], schema: dict[str, Any], *, required: bool) -> str:
    default = field.get("default")
    if required:
        presence = "needed"
    elif default in (None, []):
        presence = "optional"
    elif isinstance(default, int) and not isinstance(default, bool) and type_of(field, {}) == "DURATION":
        presence = f"default {format_duration(default)}"  # parsed durations are ms
    else:
        presence = f"default {str(default).lower() if isinstance(default, bool) else default}"
    description = str(field.get("description") or field.get("anyOf", [{}])[0].get("description", ""))
    parts = [type_of(field, schema), presence]
    if description and description not in WORDS.values():
        parts.append(description)
    return "; ".join(parts)


def type_of(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the type of a fault's parameter in a plan's notation."""
    if word := field.get("x-word"):
        return str(word)
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if "anyOf" in field:
        types = (type_of(option, schema) for option in field["anyOf"] if option.get("type") != "null")
        return " | ".join(dict.fromkeys(types))
    if "$ref" in field:
        model = schema["$defs"][field["$ref"].rpartition("/")[2]]
        properties = model.get("properties", {}).items()
        inner = ", ".join(f"{name}: {type_of(nested, schema)}" for name, nested in properties)
        return f"{{{inner}}}" if inner else " | ".join(map(str, model.get("enum", ["value"])))
    if field.get("type") == "array":
        return f"[{type_of(field.get('items', {}), schema)}, …]"
    if isinstance(field.get("additionalProperties"), dict):
        return f"{{NAME: {type_of(field['additionalProperties'], schema)}, …}}"
    bound_words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    bounds = [f"{word} {field[key]}" for key, word in bound_words.items() if key in field]
    return " ".join([_PLAIN_TYPES.get(field.get("type", ""), "value"), *bounds])


_TOP = """\
# Faults

<!-- written by `make docs` from the code: change faults/kinds/ or faults/plan/catalogue.py, not this file -->

Every kind documents its *witness*: an observation that the fault is in force, through a channel other than the one that
injected it. A missing or lost witness makes the run INCONCLUSIVE. Every kind documents what its *heal* restores; each
heal is verified, idempotent, and can be performed by another process. `aftershock plan faults` prints this list,
including the kinds of other packages; [EXTEND.md](EXTEND.md) explains how to write one.

## In a plan

```yaml
faults:
  - {id: slow-a, at: 0s, for: 7s, kind: latency, link: "client(a) <-> broker", delay: 50ms}
  - {at: 9s, for: 6s, kind: kill, broker: leader of orders/0}
```

`at` counts from the end of `steady`; `for` is the duration of the fault; `id` is its name in SLOs, by default
`<kind>-<n>`. Faults may overlap, unless both need the same target exclusively (a kill and a pause of one node).

Targets are resolved and recorded when the fault is injected. A fault without a target records that in the journal, and
the rest of the plan continues. Nodes of one rack talk directly: they have no link, and a plan that targets one is
refused. A SIGKILL keeps the page cache, so a killed broker keeps everything it had written: `kill` does not test the
durability of disks, `power_loss` does.

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

* Elements nest. `at` counts from the moment at which the container starts its element: the start of `together` or of a
  round, or its turn in `then`; the default is 0s.
* `then` continues when the `for` of the previous element ends, not when it is healed: `wait` leaves room for that. An
  element without `for` ends after its allowance.
* Without `every`, a round of `repeat` starts when the previous one ends. `until` counts from the same moment as the
  container's `at`, and no round starts then or later.
* `choose` draws one alternative by weight; `{wait: 0s}` is an alternative without a fault. Each round draws again.
* A round appends its number to the fault's id: `nap-2`. Ids do not depend on draws: every alternative counts.
* Any value except `kind` and `id` may be a range, `{range: [20ms, 200ms]}`, both ends included; at most RANGES_MAX in
  one fault. `at` and `wait` of composed elements may be ranges, too.
* The compiler draws everything from the seed. An entry added to the list changes no draw of other entries; within an
  entry, an explicit `id` preserves a fault's draws. Problems that only the draws cause (a conflict, an SLO about a
  fault that was not drawn) are reported by `run` and `plan show` for that seed, with their position; all others by
  `plan check`.
* A plan has at most STEPS_MAX steps, of which a `wait` is one.

"""
_LINKS_COMPARED = """\
These faults on links differ in what happens to connections and data (`cut` is described under rack and group faults):

| kind | established connections | new connections | data in flight | a client sees |
|---|---|---|---|---|
"""
_LINKS_CHOICE = """
Which kind for silent connections: if connections must survive the fault, use `stall`; if they must be half-open and die
with the heal, use `cut`. A link with `->` affects only data from the source to the target, for example requests but no
responses; `<->` affects both directions. `refuse` and `flap` affect the connections that the source
opens. A `pause` of a broker resembles `stall`: connections stay open and silent, but the broker stops as well.

"""
_MEASURED = """\
## Measured

`make bench` repeats these measurements. *In force* is the time from the journal's `intended` line until the fault was
reported as injected; *witnessed* until another channel observed it; *healed* is the duration of the undo and its check.

"""


def page() -> str:
    """Return ``docs/FAULTS.md``."""
    own_entries = entries(BUILT_IN.values())
    composition = _COMPOSITION.replace("RANGES_MAX", str(RANGES_MAX)).replace("STEPS_MAX", str(STEPS_MAX))
    words = [f"* {word}: {meaning}\n" for word, meaning in WORDS.items()]
    parts = [_TOP, "In the lists below:\n\n", *words, "\n", composition]
    for family in FAMILIES:
        of_family = [entry for entry in own_entries if entry.family == family]
        if not of_family:
            continue
        parts.append(f"## {family[0].upper()}{family[1:]}\n\n")
        parts += [_LINKS_COMPARED, *_links_compared(), _LINKS_CHOICE] if family == "link" else []
        for entry in of_family:
            parts.append(f"### `{entry.kind}`\n\n{entry.summary}\n\n")
            parts += [f"* `{name}`: {text}\n" for name, text in entry.parameters]
            parts += [f"* *{name}*: {text}\n" for name, text in entry.rows]
            parts.append("\n")
    parts += [_MEASURED, *measurement_tables()]
    return "".join(parts).rstrip() + "\n"


def _links_compared() -> Iterator[str]:
    """Yield a row for all kinds with equal effects on a link."""
    kinds: dict[OnLink, list[str]] = {}
    for kind, fault in BUILT_IN.items():
        if fault.on_link:
            kinds.setdefault(fault.on_link, []).append(f"`{kind}`")
    for effect, names in kinds.items():
        yield f"| {' | '.join([', '.join(names), *effect])} |\n"


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of plan files, for editors."""
    schema = Plan.model_json_schema(by_alias=True, mode="validation")
    definitions = schema["$defs"] | {"Range": RANGE_SCHEMA}
    del definitions[Ranged.__name__]
    for definition in definitions.values():
        properties = definition.get("properties", {})
        if properties.get("kind", {}).get("const") in KINDS:
            for name in properties.keys() - {"kind", "id"}:  # the models of fault kinds do not contain ranges
                properties[name] = {"anyOf": [properties[name], {"$ref": "#/$defs/Range"}]}
    plain = _without({"$ref": f"#/$defs/{Ranged.__name__}"}, {**schema, "$defs": definitions})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **plain, "title": "Aftershock plan"}


def _without(unwanted: dict[str, Any], schema: Any) -> Any:
    """Return a copy of ``schema`` (JSON Schema) in which no ``anyOf`` contains the alternative ``unwanted``."""
    if isinstance(schema, dict):
        return {key: _without(unwanted, value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_without(unwanted, value) for value in schema if value != unwanted]
    return schema
