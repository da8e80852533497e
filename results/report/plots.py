"""Charts of the report that have no axis of time: latency by percentile, and comparisons of arms.

The percentile spectrum draws the latency at quantile q over ``1/(1-q)`` on a log axis, so that p90, p99 and p99.9 are
equally spaced. The spectrum's curve is grey at quantiles that fewer than ten records exceed, because no SLO is decided
by so few records. A curve of the spectrum ends at a red mark where the quantile is a failed record. Each chart has a
sentence about the run (``reading.py``) and a caption that explains the chart's marks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.model.check import Check
from aftershock.results.report import reading
from aftershock.results.report.svg import FAILED, GREY, LINES, drawing, legend, ms, plain, rendered, short
from aftershock.results.report.timeline import METRICS

COLOURS = {"improved": "#2a9d5c", "regressed": FAILED, "equivalent": "#3b82c4"}
LINES_MAX = 8
ENOUGH_BEYOND = 10
NINES = {2: "p50", 10: "p90", 100: "p99", 1_000: "p99.9", 10_000: "p99.99", 100_000: "p99.999"}


@dataclass(frozen=True)
class Plot:
    """Chart with an ``<svg>``, a sentence about the run (``reading``), and the meaning of the marks (``caption``)."""

    svg: Markup
    reading: str
    caption: str


def spectra(checks: Sequence[Check], analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[tuple[str, Plot]]:
    """Return the title and the spectrum of each observed metric; none if an older version judged the run."""
    return [
        (title, plot) for metric, (title, _) in METRICS.items() if (plot := _spectrum(checks, analysis, labels, metric))
    ]


@dataclass(frozen=True)
class Spectrum:
    """A panel of the percentile spectrum (latency by percentile).

    ``lines`` maps a client to its points (quantile, latency) and number of records; ``thresholds_ms`` maps a quantile
    to the threshold of the SLO on that quantile.
    """

    title: str
    lines: Mapping[str, tuple[Sequence[Sequence[Any]], int]]
    thresholds_ms: Mapping[float, float]


def _spectrum(
    checks: Sequence[Check], analysis: Mapping[str, Any], labels: Mapping[str, str], metric: str
) -> Plot | None:
    """Draw latency spectra of the steady phase, of windows with an SLO, and of all faults; else of the whole run."""
    thresholds: dict[str, dict[float, float]] = {}  # by window; for each quantile the strictest
    for check in checks:
        slo = reading.SLO_QUANTILE.fullmatch(check.id)
        if slo and slo["metric"] == metric and check.threshold is not None and check.unit == "ms":
            of_window, q = thresholds.setdefault(check.phase or "run", {}), float(slo["q"]) / 100
            of_window[q] = min(check.threshold, of_window.get(q, check.threshold))

    rows = [row for row in analysis.get("spectra", ()) if row["metric"] == metric and row["points"]]
    measured = {row["window"] for row in rows}
    phases = [window for window in ("steady", "fault", "run") if window in measured]
    with_slo = [window for window in thresholds if window in measured - {"steady"}]
    windows = [*dict.fromkeys([*phases[:1], *with_slo, *phases[:2]])][:3]
    if not windows:
        return None
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
            thresholds.get(window, {}),
        )
        for window in windows
    ]
    sentence = reading.spectrum(analysis, metric, labels)
    clients = [labels[key] for key in keys]
    words = (f"{METRICS[metric][0]} by percentile", f"{', '.join(windows)}: {', '.join(clients)}. {sentence}")
    caption = (
        "A curve shows the latency that a share of the records exceeds; this share falls tenfold from tick to tick. "
        "A curve is grey where fewer than ten records are slower, because no SLO is decided there. Red steps are the "
        "window's SLOs; a red mark at the top shows failed records, which count as slower than any latency."
    )
    caption += f" {len(labels) - len(keys)} more clients are in analysis.json." if len(labels) > len(keys) else ""
    svg = spectrum_svg(f"{metric.replace('.', '-')}-spectrum", words, drawn, clients)
    return Plot(svg, sentence, caption)


def spectrum_svg(name: str, words: tuple[str, str], panels: Sequence[Spectrum], labels: Sequence[str]) -> Markup:
    """Draw the panels of a spectrum side by side on one scale; a client has the same colour and dash in each panel."""
    styles = {label: LINES[index % len(LINES)] for index, label in enumerate(labels)}
    with drawing(10.0, 3.6) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_spectrum(axis, panel, styles)
        axes[0].set_ylabel("ms")
        longest = max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
        legend(figure, longest, 4)
        return rendered(figure, name, *words)


def _draw_spectrum(axis: Axes, panel: Spectrum, styles: Mapping[str, Any]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    reach = 10.0
    for label, (all_points, n) in panel.lines.items():
        colour, dash = styles[label]
        points = [(q, us) for q, us in all_points if n * (1 - q) >= 1]  # beyond that there is only the slowest record
        solid = [(nines(q), ms(us)) for q, us in points if n * (1 - q) >= ENOUGH_BEYOND]
        grey = solid[-1:] + [(nines(q), ms(us)) for q, us in points if n * (1 - q) < ENOUGH_BEYOND]
        axis.plot(
            [x for x, _ in solid], [y for _, y in solid], color=colour, linestyle=dash, linewidth=1.4, label=label
        )
        axis.plot([x for x, _ in grey], [y for _, y in grey], color=GREY, linestyle=dash, linewidth=0.8, alpha=0.7)
        censored = [nines(q) for q, us in points if us is None]
        if censored:
            axis.plot(censored[:1], [0.97], "v", color=FAILED, markersize=4, transform=axis.get_xaxis_transform())
        reach = max([reach, *(nines(q) for q, _ in points)])
    if panel.thresholds_ms:
        # Each threshold is drawn up to its quantile, then the next threshold.
        quantiles = sorted(panel.thresholds_ms)
        ends, values = [min(nines(q), reach) for q in quantiles], [panel.thresholds_ms[q] for q in quantiles]
        axis.stairs(values, [1.0, *ends], color=FAILED, linewidth=1, label="SLO", baseline=None)
        for end, value in zip(ends, values, strict=True):
            axis.plot([end], [value], "|", color=FAILED, markersize=9)
    ticks = [tick for tick in NINES if tick <= reach * 1.01]
    axis.set_xticks(ticks, [NINES[tick] for tick in ticks])
    axis.set_xlim(1, reach * 1.05)
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.minorticks_off()
    plain(axis, short(panel.title, 60))


def nines(q: float) -> float:
    """Return the position of a quantile on the spectrum's axis, such as 10 for p90 and 100 for p99."""
    return 1 / (1 - q) if q < 1 else 1e12


@dataclass(frozen=True)
class Compared:
    """Ratio of two arms with its name; ``low`` and ``high`` are the ends of the confidence interval, if known."""

    name: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str


def forest(rows: Sequence[Compared]) -> Plot | None:
    """Return the forest plot of ratios of arms, one row per ratio and the first on top; None without ratios."""
    if not rows:
        return None
    sentence = reading.forest([row.verdict for row in rows])
    with drawing(10.0, 0.9 + 0.34 * len(rows)) as figure:
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
        axis.set_xlabel("ratio of two arms; below 1 the first arm has the lower value")
        plain(axis, "")
        axis.grid(visible=True, axis="x", color=GREY, alpha=0.2, linewidth=0.5)
        values = "; ".join(f"{row.name}: {row.ratio:.3g}, {row.verdict}" for row in rows)
        svg = rendered(figure, "comparisons", "Comparisons of arms", f"{values}. {sentence}")
    caption = (
        "Each square is the ratio of two arms, with its confidence interval as a line; the dotted line is a ratio of 1."
    )
    return Plot(svg, sentence, caption)
