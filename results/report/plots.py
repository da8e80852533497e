"""The forest plot of comparisons: each ratio with its interval on a log axis, and the line of no difference at 1.

What consumers had still to read: records at the end of each second, and the age of the oldest, over the bands.

The percentile spectrum: latency over nines, ``x = 1/(1-q)`` on a log axis, arms overlaid, SLOs as steps.

Rules: where fewer than ten records lie beyond a quantile its line is grey: no SLO is decided there; a censored quantile
has no height, and its line ends at the red mark.

Which plots a report has, what they show, and how to read them: over time, by nines, lag, comparisons.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.checks.check import Check
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.report import reading
from aftershock.results.report.svg import (
    FAILED,
    GREY,
    LINES,
    Band,
    Bins,
    backdrop,
    bands,
    drawing,
    latency_svg,
    legend,
    ms,
    name_bands,
    plain,
    rendered,
    short,
)

IMPROVED, REGRESSED, EQUIVALENT = "#2a9d5c", "#e03131", "#3b82c4"
COLOURS = {"improved": IMPROVED, "regressed": REGRESSED, "equivalent": EQUIVALENT}
_WIDTH, _ROW = 10.0, 0.34


@dataclass(frozen=True)
class Compared:
    """One ratio; ``low`` and ``high`` are None where no interval is known, ``verdict`` in the comparison's own word."""

    name: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str


def forest_svg(name: str, words: tuple[str, str], rows: Sequence[Compared]) -> Markup:
    """A row each, the first on top."""
    with drawing(_WIDTH, 0.9 + _ROW * len(rows)) as figure:
        axis = figure.subplots()
        axis.set_xscale("log")
        axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        for index, row in enumerate(rows):
            colour = COLOURS.get(row.verdict, GREY)
            if row.low is not None and row.high is not None:
                axis.plot([row.low, row.high], [index, index], color=colour, linewidth=2)
            axis.plot([row.ratio], [index], "s", color=colour, markersize=5)
        axis.set_yticks(range(len(rows)), [short(row.name, 70) for row in rows], parse_math=False)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.xaxis.set_major_formatter("{x:.3g}")
        axis.xaxis.set_minor_formatter("{x:.3g}")
        axis.set_xlabel("ratio; left of 1 the first is lower")
        plain(axis, "")
        axis.grid(visible=True, axis="x", color=GREY, alpha=0.2, linewidth=0.5)
        return rendered(figure, name, *words)


Seconds = Sequence[Sequence[int]]

_SIZE_INCHES = (10.0, 4.2)
_POINTS_MAX = 2000  # of all lines together


def lag_svg(name: str, words: tuple[str, str], lines: Mapping[str, Seconds], bands: Sequence[Band]) -> Markup:
    """``lines`` map a client to its seconds: (at_us, records, oldest_us)."""
    with drawing(*_SIZE_INCHES) as figure:
        lag, freshness = figure.subplots(2, 1, sharex=True)
        for index, (label, seconds) in enumerate(lines.items()):
            colour, dash = LINES[index % len(LINES)]
            kept = _thinned(seconds, _POINTS_MAX // len(lines))
            at_s = [row[0] / 1e6 for row in kept]
            lag.plot(at_s, [row[1] for row in kept], color=colour, linestyle=dash, linewidth=1.2, label=label)
            freshness.plot(at_s, [(row[2] or 0) / 1e6 for row in kept], color=colour, linestyle=dash, linewidth=1.2)
        for axis in (lag, freshness):
            backdrop(axis, bands, ())
        _titled(lag, freshness, name_bands(lag, bands))
        legend(figure, lag, 4)
        return rendered(figure, name, *words)


def _titled(lag: Axes, freshness: Axes, levels: int) -> None:
    plain(lag, "lag: acknowledged and not yet delivered", 4 + 11 * levels)
    plain(freshness, "freshness: age of the oldest of them")
    lag.set_ylabel("records")
    freshness.set_ylabel("s")
    freshness.set_xlabel("seconds of the run")
    freshness.margins(x=0.01)


def _thinned(seconds: Seconds, points_max: int) -> Seconds:
    """The worst second of each stretch, where there are more than a line can show."""
    stretch = max(1, -(-len(seconds) // points_max))
    return [max(seconds[at : at + stretch], key=lambda row: row[1]) for at in range(0, len(seconds), stretch)]


ENOUGH_BEYOND = 10
NINES = {2: "p50", 10: "p90", 100: "p99", 1_000: "p99.9", 10_000: "p99.99", 100_000: "p99.999"}
_SIZE_INCHES_spectrum = (10.0, 3.6)


@dataclass(frozen=True)
class Step:
    """A quantile's threshold: what an SLO asks for."""

    q: float
    threshold_ms: float


@dataclass(frozen=True)
class Spectrum:
    """One panel: ``lines`` map a client to its points (quantile, latency) and the number of its records."""

    title: str
    lines: Mapping[str, tuple[Sequence[Sequence[Any]], int]]
    steps: Sequence[Step]


def spectrum_svg(name: str, words: tuple[str, str], panels: Sequence[Spectrum], labels: Sequence[str]) -> Markup:
    """Panels side by side on one scale; a client keeps its colour and dash in all of them."""
    styles = {label: LINES[index % len(LINES)] for index, label in enumerate(labels)}
    with drawing(*_SIZE_INCHES_spectrum) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _panel(axis, panel, styles)
        axes[0].set_ylabel("ms")
        longest = max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
        legend(figure, longest, 4)
        return rendered(figure, name, *words)


def _panel(axis: Axes, panel: Spectrum, styles: Mapping[str, Any]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    reach = 10.0
    for label, (all_points, n) in panel.lines.items():
        colour, dash = styles[label]
        points = [(q, us) for q, us in all_points if n * (1 - q) >= 1]  # beyond it there is the slowest record alone
        solid = [(nines(q), ms(us)) for q, us in points if n * (1 - q) >= ENOUGH_BEYOND]
        rest = solid[-1:] + [(nines(q), ms(us)) for q, us in points if n * (1 - q) < ENOUGH_BEYOND]
        _line(axis, solid, color=colour, linestyle=dash, linewidth=1.4, label=label)
        _line(axis, rest, color=GREY, linestyle=dash, linewidth=0.8, alpha=0.7)
        censored = [nines(q) for q, us in points if us is None]
        if censored:
            axis.plot(censored[:1], [0.97], "v", color=FAILED, markersize=4, transform=axis.get_xaxis_transform())
        reach = max([reach, *(nines(q) for q, _ in points)])
    _steps(axis, panel.steps, reach)
    ticks = [tick for tick in NINES if tick <= reach * 1.01]
    axis.set_xticks(ticks, [NINES[tick] for tick in ticks])
    axis.set_xlim(1, reach * 1.05)
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.minorticks_off()
    plain(axis, short(panel.title, 60))


def _line(axis: Axes, points: Sequence[tuple[float, float]], **style: Any) -> None:
    axis.plot([x for x, _ in points], [y for _, y in points], **style)


def _steps(axis: Axes, steps: Sequence[Step], reach: float) -> None:
    """Up to a quantile its own threshold holds, from there on that of the next one."""
    ordered = sorted(steps, key=lambda step: step.q)
    if not ordered:
        return
    edges = [1.0, *(min(nines(step.q), reach) for step in ordered)]
    axis.stairs([step.threshold_ms for step in ordered], edges, color=FAILED, linewidth=1, label="SLO", baseline=None)
    for step in ordered:
        axis.plot([min(nines(step.q), reach)], [step.threshold_ms], "|", color=FAILED, markersize=9)


def nines(q: float) -> float:
    """Where a quantile stands: 10 for p90, 100 for p99."""
    return 1 / (1 - q) if q < 1 else 1e12


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
    told, steps = {row["window"] for row in rows}, _steps_plots(checks, metric)
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


def _steps_plots(checks: Sequence[Check], metric: str) -> dict[str, list[Step]]:
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
