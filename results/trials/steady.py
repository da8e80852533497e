"""The steady part of a run, cut into slices of six seconds: the unit of whatever is measured without a fault."""

from aftershock.results.trials.part import Part, read_rows
from aftershock.results.trials.slices import Slice, slices

STEADY_SLICE_US = 6_000_000
STEADY = "steady"


def steady(part: Part) -> tuple[Slice, ...]:
    """Its whole slices; none where the run has no steady part."""
    spans = [row for row in read_rows(part.home / "phases.json") if row["name"] == STEADY]
    return slices(spans[0]["start_us"], spans[0]["end_us"], STEADY_SLICE_US) if spans else ()
