"""Random plans from the whole catalogue: any kind, with any parameters and composition. Seeded.

A fault starts from the parameters of a case of its kind (``tests/chaos/kinds/*_cases.py``), with the topic and group
of the random plan; a kind without cases starts without parameters. Then each parameter may be replaced by a draw from
the kind's schema. Plans that the plan check refuses are drawn again, so new kinds need no change here.
"""

import importlib
import random
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from aftershock.errors import PlanError
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import load_plan
from aftershock.faults.sections.document import dump_yaml, load
from aftershock.faults.timeline.compile import compile_plan

TRIES = 60
PLACINGS = 4  # attempts to place the same faults before new faults are drawn
TOPIC, RACKS, ARM = "orders", ("a", "b", "c"), "baseline"
GROUP = f"readers-{ARM}"
TRANSACTIONAL = f"ledger-{ARM}-produce"
"""Transactional id of the workload `ledger`, if a frame has one with transactions."""
ROLES = (
    "1",
    "2",
    "3",
    "controller",
    "any broker except controller",
    f"leader of {TOPIC}/0",
    f"replica of {TOPIC}/1 in rack b",
    f"coordinator of {GROUP}",
)
LINKS = (
    "client(a) -> broker",
    "client(*) <-> broker(2)",
    f"client(b) -> broker(leader of {TOPIC}/0)",
    "replication(a) -> broker",
    "rack(a) <-> rack(b)",
)
DURATIONS = ("50ms", "300ms", "1s", "2s")
_CASES = Path(__file__).parent / "chaos" / "kinds"


def random_plan(
    seed: int,
    frame: Mapping[str, Any],
    kinds: Collection[str],
    *,
    musts: Collection[str] = (),
    most: int = 3,
    longest_ms: int = 600_000,
) -> str:
    """Return a plan as YAML with up to ``most`` entries, and one more of each kind in ``musts``.

    The plan passes the check, compiles with this seed, and lasts at most ``longest_ms`` after steady.
    """
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    for _ in range(TRIES):
        drawn = [_element(source, frame, sorted(kinds), 2) for _ in range(source.randint(1, most))]
        elements = [*(fault_parameters(source, frame, kind) for kind in musts), *drawn]
        for _ in range(PLACINGS):
            faults = [_placed(source, element) for element in elements]
            text = dump_yaml({**frame, "name": f"random-{seed}", "faults": faults})
            if (length_ms := _length_ms(text, seed)) is not None and length_ms <= longest_ms:
                return text
    raise AssertionError(f"no valid plan in {TRIES} tries with seed {seed}")


def drawable(frame: Mapping[str, Any]) -> list[str]:
    """Return the kinds that a plan of this frame may use."""
    return [kind for kind in sorted(KINDS) if _can_be_drawn(frame, kind)]


def _can_be_drawn(frame: Mapping[str, Any], kind: str) -> bool:
    try:
        return bool(fault_parameters(random.Random(0), frame, kind))  # noqa: S311 -- repeatable on purpose
    except AssertionError:
        return False


def _length_ms(text: str, seed: int) -> int | None:
    """Return the plan's length, or None if the plan is invalid."""
    try:
        checked = load_plan(text)
        return compile_plan(checked.plan, seed, checked.source, checked.slo_positions).length_ms
    except PlanError:
        return None


def _placed(source: random.Random, element: dict[str, Any]) -> dict[str, Any]:
    return {"at": f"{source.randrange(0, 20_000, 500)}ms"} | element


def _element(source: random.Random, frame: Mapping[str, Any], kinds: list[str], depth: int) -> dict[str, Any]:
    """Return a fault or a composition of faults."""
    shape = source.choice(("fault", "fault", "together", "then", "repeat", "choose")) if depth else "fault"
    if shape == "fault":
        return fault_parameters(source, frame, source.choice(kinds))
    parts = [_element(source, frame, kinds, depth - 1) for _ in range(source.randint(2, 3))]
    match shape:
        case "together":
            return {"together": parts}
        case "then":
            return {"then": [part for each in parts for part in (each, {"wait": {"range": ["9s", "12s"]}})]}
        case "repeat":
            return {"repeat": source.randint(2, 3), "every": "25s", "fault": parts[0]}
        case _:
            return {"choose": [{"weight": source.randint(1, 3), "fault": part} for part in parts]}


def fault_parameters(source: random.Random, frame: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return one fault of a kind as a mapping for a plan."""
    told = _case_parameters(kind)
    for _ in range(TRIES):
        base = dict(source.choice(told)) if told else {}
        said = {"kind": kind} | _varied(source, kind, base)
        try:
            load_plan(dump_yaml({**frame, "faults": [{"at": "0s", **said}]}))
        except PlanError:
            continue
        return said
    raise AssertionError(f"no valid words for a {kind} in {TRIES} tries; a case of it would show some")


def _varied(source: random.Random, kind: str, base: dict[str, Any]) -> dict[str, Any]:
    """Replace some parameters by draws, and add others."""
    schema = KINDS[kind].model_json_schema(by_alias=True)
    said = {key: value for key, value in base.items() if key != "kind"}
    needed = schema.get("required", ())
    for name, field in schema["properties"].items():
        chance = 1.0 if name in needed and name not in said else 0.4 if name in said else 0.1
        if name in ("kind", "id", "at", "for") or source.random() >= chance:
            continue
        value = _value(source, name, field, schema)
        if value is not None:
            said[name] = value
    rule = KINDS[kind].for_rule
    if rule != "refused" and "for" not in said and (rule == "needed" or source.random() < 0.5):
        said["for"] = source.choice(("2s", "4s", "12s", {"range": ["2s", "6s"]}))
    return said


def _value(source: random.Random, name: str, field: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """Return a value of a parameter's type, or None if the schema does not determine one."""
    word = field.get("x-word")
    if word == "DURATION" and source.random() < 0.3:
        return {"range": ["50ms", "500ms"]}
    if word is not None:
        pool = {"ROLE": ROLES, "LINK": LINKS, "DURATION": DURATIONS, "SIZE": ("2kB", "64KiB"), "RATE": ("10/s",)}
        return source.choice(pool.get(word, ("50kB/s", "1MB/s")))
    if "anyOf" in field:
        inner = [each for each in field["anyOf"] if each.get("type") != "null"]
        return _value(source, name, source.choice(inner), schema)
    if "$ref" in field:
        model = schema["$defs"][field["$ref"].rpartition("/")[2]]
        return {key: _value(source, key, inner, schema) for key, inner in model.get("properties", {}).items()}
    names = {"topic": (TOPIC,), "rack": RACKS, "client": (ARM,)}
    if name in names:
        return source.choice(names[name])
    return _plain(source, field)


def _plain(source: random.Random, field: Mapping[str, Any]) -> Any:
    if "enum" in field:
        return source.choice(field["enum"])
    if field.get("type") == "boolean":
        return source.random() < 0.5
    if field.get("type") == "integer":
        low = field.get("minimum", 0)
        return source.randint(low, min(field.get("maximum", low + 8), low + 8))
    if field.get("type") == "number":
        return round(source.uniform(field.get("minimum", 0.1), min(field.get("maximum", 1), 1)), 2)
    return None


@cache
def _case_parameters(kind: str) -> tuple[dict[str, Any], ...]:
    """Return the parameters of the kind's cases, with the topic, group and transactional id of the random plan."""
    return tuple(_with_own_topic(words) for words in _cases() if words["kind"] == kind)


@cache
def _cases() -> tuple[dict[str, Any], ...]:
    return tuple(_read_cases())


def _read_cases() -> Iterator[dict[str, Any]]:
    for file in sorted(_CASES.glob("*_cases.py")):
        module = importlib.import_module(f"aftershock.tests.chaos.kinds.{file.stem}")
        for cases in module.CASES.values():
            yield from (dict(load(f"words: {case.words}").data["words"]) for case in cases)


def _with_own_topic(words: dict[str, Any]) -> dict[str, Any]:
    own = {"topic": TOPIC, "group": GROUP, "transactional_id": TRANSACTIONAL}
    return {key: own.get(key) or _with_own_roles(value) for key, value in words.items()}


def _with_own_roles(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"(leader|replica) of [\w.-]+/", rf"\1 of {TOPIC}/", value)
    return {key: _with_own_roles(inner) for key, inner in value.items()} if isinstance(value, dict) else value
