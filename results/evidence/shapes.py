"""Check of stored documents when they are read (``files.py``), so that no command meets a value of another type."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from aftershock.results.evidence.documents import Campaign, Event, Moment, Run, Timeline, Window
from aftershock.results.evidence.judged import Analysis, StoredVerdict
from aftershock.results.evidence.leadership import Leadership

SHAPES: Mapping[str, TypeAdapter[Any]] = {
    "run.json": TypeAdapter(Run),
    "timeline.json": TypeAdapter(Timeline),
    "phases.json": TypeAdapter(list[Window]),
    "journal.jsonl": TypeAdapter(Moment),
    "events.jsonl": TypeAdapter(Event),
    "leaders.jsonl": TypeAdapter(Leadership),
    "verdict.json": TypeAdapter(StoredVerdict),
    "analysis.json": TypeAdapter(Analysis),
    "campaign.json": TypeAdapter(Campaign),
}
"""Shape of a document, or of each line of it, by the name of its file."""


def misfit(where: str, value: Any) -> str | None:
    """Return which field of the parsed document ``where``, or of a line of it, has a wrong type; None if all fit."""
    shape = SHAPES.get(where.rpartition("/")[2])
    if shape is None:
        return None
    try:
        shape.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            return f"field {field!r} is missing"
        what = first["msg"].removeprefix("Value error, ").replace("dictionary", "object").replace("list", "array")
        return f"field {field!r}: {what[0].lower()}{what[1:]}" if field else "not a JSON object"
    return None
