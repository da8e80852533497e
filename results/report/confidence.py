"""The confidence band of a check's quantile, as far as drawing samples goes: between which order statistics it lies.

Only of SLOs on a quantile of latency: a count has no band, and a gap or a recovery is one event, not a sample.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from aftershock.results.check import Check
from aftershock.results.phases import RUN
from aftershock.results.shown import milliseconds

CONFIDENCE = 0.95
_QUANTILE = re.compile(r"slo/(?P<metric>[a-z]+\.(?:latency|service))-p(?P<q>\d+(?:\.\d+)?)(?:-(?P<rest>.+))?")

Key = tuple[str, str, str]


def confidences(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[Key, list[Mapping[str, Any]]]:
    """The bands by (metric, client's label, window); empty where an older version judged the run."""
    return {
        (row["metric"], labels.get(row["client"], row["client"]), row["window"]): row.get("bands", [])
        for row in analysis["distributions"]
    }


def band_of(check: Check, bands: Mapping[Key, list[Mapping[str, Any]]]) -> str:
    """``38 to 45.1 ms``; ``from 38 ms`` where its upper end is censored; nothing where none is known."""
    slo = _QUANTILE.fullmatch(check.id)
    if not slo:
        return ""
    rows = bands.get((slo["metric"], check.subject, _window(check, slo["rest"] or "")), ())
    for row in rows:
        if math.isclose(row["q"], float(slo["q"]) / 100) and row["confidence"] == CONFIDENCE:
            return _said(row["low_us"], row["high_us"])
    return ""


def _window(check: Check, rest: str) -> str:
    """The check's window; none for one that is cut further, whose quantile is another."""
    return "" if rest.startswith("every") or "each-" in rest else check.phase or RUN


def _said(low_us: int | None, high_us: int | None) -> str:
    if low_us is None:
        return ""
    low = milliseconds(low_us)
    return f"from {low} ms" if high_us is None else f"{low} to {milliseconds(high_us)} ms"
