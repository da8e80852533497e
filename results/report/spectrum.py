"""The percentile spectrum: latency over nines, ``x = 1/(1-q)`` on a log axis, arms overlaid, SLOs as steps.

Rules: where fewer than ten records lie beyond a quantile its line is grey: no SLO is decided there; a censored quantile
has no height, and its line ends at the red mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.report.chart import FAILED, ms
from aftershock.results.report.svg import GREY, LINES, drawing, legend, plain, rendered, short

ENOUGH_BEYOND = 10
NINES = {2: "p50", 10: "p90", 100: "p99", 1_000: "p99.9", 10_000: "p99.99", 100_000: "p99.999"}
_SIZE_INCHES = (10.0, 3.6)


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
    with drawing(*_SIZE_INCHES) as figure:
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
