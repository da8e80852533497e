"""Which plots a report has, and what their panels show: latency over time, a panel for each client and rack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from aftershock.results.evidence import Evidence
from aftershock.results.report.bands import bands
from aftershock.results.report.chart import Bins, latency_svg

PANELS_MAX = 8
_PLOTS = {
    "produce.latency": ("Produce latency", "producer"),
    "consume.latency": ("End-to-end latency", "consumer"),
    "commit.latency": ("Commit latency", "committer"),
}


@dataclass(frozen=True)
class Plot:
    """An ``<svg>`` with its title, the length of its bins, and how many panels there was no room for."""

    title: str
    svg: Markup
    bin_s: float
    left_out: int


def plots(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[Plot]:
    """A plot for each metric that was seen; ``labels`` names clients by their key, in the order of the panels."""
    marks_s = [phase.end_us / 1e6 for phase in evidence.phases if phase.name == "warmup"]
    bin_s = analysis["bin_us"] / 1e6
    drawn = []
    for metric, (title, role) in _PLOTS.items():
        seen = panels([row for row in analysis["bins"] if row["metric"] == metric], labels, role)
        if seen:
            svg = latency_svg(dict(list(seen.items())[:PANELS_MAX]), bands(evidence), bin_s, marks_s)
            left_out = max(0, len(seen) - PANELS_MAX)
            drawn.append(Plot(title, Markup(svg), bin_s, left_out))  # noqa: S704 - matplotlib escapes its text
    return drawn


def panels(bins: Sequence[Mapping[str, Any]], labels: Mapping[str, str], role: str) -> Mapping[str, Bins]:
    """Bins by the title of their panel: whose they are and where that client stood, ``arm=a, producer in rack b``."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for key, label in labels.items():
        for row in (row for row in bins if row["client"] == key):
            where = f", {role} in rack {row['rack']}" if row.get("rack") else ""
            found.setdefault(f"{label}{where}", []).append(row)
    return found
