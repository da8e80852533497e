"""Which plots a report has, what they show, and how to read them: over time, by nines, lag, comparisons."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from aftershock.results.check import Check
from aftershock.results.evidence import Evidence
from aftershock.results.report import reading
from aftershock.results.report.bands import Band, bands
from aftershock.results.report.chart import Bins, latency_svg
from aftershock.results.report.forest import Compared, forest_svg
from aftershock.results.report.lag import lag_svg
from aftershock.results.report.spectrum import Spectrum, Step, spectrum_svg

PANELS_MAX = 8
LINES_MAX = 8
BANDS_TOLD_MAX = 12
METRICS = {
    "produce.latency": ("Produce latency", "producer"),
    "consume.latency": ("End-to-end latency", "consumer"),
    "commit.latency": ("Commit latency", "committer"),
}
_SPECTRA = ("steady", "fault", "run")
_SPECTRA_MAX = 3
_STEP = re.compile(r"slo/(?P<metric>[a-z]+\.[a-z]+)-p(?P<q>\d+(?:\.\d+)?)(?:-(?P<rest>.+))?")


@dataclass(frozen=True)
class Plot:
    """An ``<svg>``, what it says (``reading``, of this run) and what its marks mean (``caption``)."""

    svg: Markup
    reading: str
    caption: str


@dataclass(frozen=True)
class Metric:
    """What is shown of one metric; ``spectrum`` None where it was not measured, or by an older version."""

    title: str
    over_time: Plot
    spectrum: Plot | None


def metrics(
    evidence: Evidence, checks: Sequence[Check], analysis: Mapping[str, Any], labels: Mapping[str, str]
) -> list[Metric]:
    """A section for each metric that was seen; ``labels`` names clients by their key, in the order of the panels."""
    found = []
    for metric, (title, role) in METRICS.items():
        seen = panels([row for row in analysis["bins"] if row["metric"] == metric], labels, role)
        if seen:
            over = _over_time(evidence, analysis, labels, metric, seen)
            found.append(Metric(title, over, _spectrum(checks, analysis, labels, metric)))
    return found


def panels(bins: Sequence[Mapping[str, Any]], labels: Mapping[str, str], role: str) -> Mapping[str, Bins]:
    """Bins by the title of their panel: whose they are and where that client stood, ``arm=a, producer in rack b``."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for key, label in labels.items():
        for row in (row for row in bins if row["client"] == key):
            where = f", {role} in rack {row['rack']}" if row.get("rack") else ""
            found.setdefault(f"{label}{where}", []).append(row)
    return found


def _over_time(
    evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str], metric: str, seen: Mapping[str, Bins]
) -> Plot:
    title, _ = METRICS[metric]
    marks_s = [phase.end_us / 1e6 for phase in evidence.phases if phase.name == "warmup"]
    bin_s, drawn, struck = analysis["bin_us"] / 1e6, bands(evidence), [step["id"] for step in evidence.steps]
    said = reading.over_time(analysis, metric, labels, struck)
    words = (f"{title} over time", f"{_drawn(seen, drawn)} {said}")
    shown = dict(list(seen.items())[:PANELS_MAX])
    svg = latency_svg(metric.replace(".", "-"), words, shown, _told(drawn), bin_s, marks_s)
    caption = (
        f"Each point is {bin_s:g} s of records, by when they were meant to be sent. Bands are the faults, from inject "
        "to healed; red ticks are bins in which a record failed; the dotted line is the end of warm-up."
    )
    left_out = len(seen) - len(shown)
    return Plot(svg, said, f"{caption} {left_out} more panels are in analysis.json." if left_out else caption)


def _told(drawn: Sequence[Band]) -> Sequence[Band]:
    """Of very many bands (blocks, rounds) the names would fill the page: those of one fault have its name once."""
    if len(drawn) <= BANDS_TOLD_MAX:
        return drawn
    return [Band(band.fault if number == 0 else "", *_rest(band)) for number, band in _numbered(drawn)]


def _rest(band: Band) -> tuple[str, float, float]:
    return band.colour, band.start_s, band.end_s


def _numbered(drawn: Sequence[Band]) -> list[tuple[int, Band]]:
    """Each band with how many of its colour went before."""
    before: dict[str, int] = {}
    numbered = []
    for band in drawn:
        numbered.append((before.get(band.colour, 0), band))
        before[band.colour] = before.get(band.colour, 0) + 1
    return numbered


def _drawn(seen: Mapping[str, Bins], drawn: Sequence[Band]) -> str:
    windows = ", ".join(f"{band.fault} {band.start_s:.1f} to {band.end_s:.1f} s" for band in drawn[:BANDS_TOLD_MAX])
    return f"Panels: {'; '.join(seen)}. Fault bands: {windows or 'none'}."


def _spectrum(
    checks: Sequence[Check], analysis: Mapping[str, Any], labels: Mapping[str, str], metric: str
) -> Plot | None:
    """Steady, what else has an SLO of its own, and all faults together; a run without them is shown whole."""
    rows = [row for row in analysis.get("spectra", ()) if row["metric"] == metric and row["points"]]
    told, steps = {row["window"] for row in rows}, _steps(checks, metric)
    phases = [window for window in _SPECTRA if window in told]
    own = [window for window in steps if window in told - {"steady"}]
    windows = [*dict.fromkeys([*phases[:1], *own, *phases[:2]])][:_SPECTRA_MAX]
    counts = {(row["client"], row["window"]): row["n"] for row in analysis["distributions"] if row["metric"] == metric}
    keys = [*labels][:LINES_MAX]
    drawn = [
        Spectrum(
            "after warm-up" if window == "run" else window,
            {
                labels[row["client"]]: (row["points"], counts.get((row["client"], window), 0))
                for row in rows
                if row["window"] == window and row["client"] in keys
            },
            steps.get(window, ()),
        )
        for window in windows
    ]
    if not drawn:
        return None
    said = reading.spectrum(analysis, metric, labels)
    words = (
        f"{METRICS[metric][0]} by percentile",
        f"{', '.join(windows)}: {', '.join(labels[key] for key in keys)}. {said}",
    )
    caption = (
        "Each step to the right is ten times rarer; the line says how long the slowest of that share took. Grey: fewer "
        "than ten records lie beyond, so nothing is decided there. Red steps are this window's SLOs; a red mark at the "
        "top is where records failed, slower than anything."
    )
    svg = spectrum_svg(f"{metric.replace('.', '-')}-spectrum", words, drawn, [labels[key] for key in keys])
    return Plot(svg, said, caption)


def _steps(checks: Sequence[Check], metric: str) -> dict[str, list[Step]]:
    """The thresholds of the plan's quantile SLOs by window; of several for one quantile the strictest."""
    found: dict[str, dict[float, float]] = {}
    for check in checks:
        slo = _STEP.fullmatch(check.id)
        if slo and slo["metric"] == metric and check.threshold is not None and check.unit == "ms":
            here, q = found.setdefault(check.phase or "run", {}), float(slo["q"]) / 100
            here[q] = min(check.threshold, here.get(q, check.threshold))
    return {window: [Step(q, threshold) for q, threshold in here.items()] for window, here in found.items()}


def lag(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> Plot | None:
    """What consumers had still to read; None where nobody reads, or an older version judged the run."""
    lines = {
        labels.get(row["client"], row["client"]): row["seconds"] for row in analysis.get("lag", ()) if row["seconds"]
    }
    if not lines:
        return None
    said = reading.lag(lines)
    shown = dict(list(lines.items())[:LINES_MAX])
    svg = lag_svg("lag", ("Lag and freshness of consumers", said), shown, _told(bands(evidence)))
    return Plot(svg, said, "Taken at the end of each second, of the records that were acknowledged by then.")


def forest(rows: Sequence[Compared]) -> Plot | None:
    """The comparisons, where there are any."""
    if not rows:
        return None
    said = reading.forest([(row.name, row.verdict) for row in rows])
    told = "; ".join(f"{row.name}: {row.ratio:.3g}, {row.verdict}" for row in rows)
    svg = forest_svg("comparisons", ("Comparisons of arms", f"{told}. {said}"), rows)
    return Plot(
        svg, said, "Each square is a ratio of two arms, the line its interval; the dotted line is no difference."
    )
