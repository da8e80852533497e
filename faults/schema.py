"""JSON Schema 2020-12 of the YAML document, for editors; units are in the patterns.

A fault's values may be ranges, which its model knows nothing of: here every value of every kind may be one.
"""

from typing import Any

from aftershock.faults import ranges
from aftershock.faults.compose import Ranged
from aftershock.faults.kinds import KINDS
from aftershock.faults.plan import Plan

_FIXED = ("kind", "id")
_RANGE = {"$ref": "#/$defs/Range"}


def plan_schema() -> dict[str, Any]:
    """The schema."""
    schema = Plan.model_json_schema(by_alias=True, mode="validation")
    definitions = schema["$defs"] | {"Range": ranges.SCHEMA}
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
