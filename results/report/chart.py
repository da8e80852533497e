"""Latency over time as SVG: a panel a client, p50, p99 and max a bin, failures marked, the faults' bands behind.

Rules: the same measurements give the same bytes; text stays text; names are drawn as they are, never as mathematics.
Greys and lines are chosen to be read on light and on dark. Points are written as tightly as the eye allows.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from aftershock.results.report.bands import Band

Bins = Sequence[Mapping[str, Any]]

GREY, CALM, SLOW, WORST, FAILED = "#808080", "#2a9d5c", "#3b82c4", "#8f959e", "#e03131"
_STYLE: Any = {
    "svg.hashsalt": "aftershock",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
_UNTOLD = ("Date", "Creator", "Format", "Type")
_SIZE_INCHES = (10.0, 1.9)  # of one panel
_LABEL_CHARS_MAX, _TITLE_CHARS_MAX = 24, 80
_LABEL_POINTS, _LEVEL_POINTS = 8.5, 11
_CHARS_ACROSS = 125  # labels of that size beside each other, in one panel
_PATH, _NUMBER, _INDENT = re.compile(r' d="([^"]*)"'), re.compile(r"-?\d+\.\d+"), re.compile(r">\n\s+<")


def latency_svg(panels: Mapping[str, Bins], bands: Sequence[Band], bin_s: float, marks_s: Sequence[float]) -> str:
    """An ``<svg>`` element; ``panels`` maps labels to bins, ``marks_s`` are thin lines (the end of warm-up)."""
    with mpl.rc_context(_STYLE):
        width, height = _SIZE_INCHES
        figure = Figure(figsize=(width, 0.7 + height * len(panels)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axis, (label, bins) in zip(axes, panels.items(), strict=True):
            _panel(axis, label, bins, bin_s)
            _backdrop(axis, bands, marks_s)
        levels = _name_bands(axes[0], bands)
        _title(axes[0], next(iter(panels)), levels)
        axes[-1].set_xlabel("seconds of the run (intended send time)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=len(labels), frameon=False)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(_UNTOLD))
    text = out.getvalue()
    return _INDENT.sub(">\n<", _PATH.sub(_tight, text[text.index("<svg") :]))


def _tight(path: re.Match[str]) -> str:
    """A path of a tenth of a point's precision; numbers after a point are a line to there (SVG 1.1, 8.3.4)."""
    points = _NUMBER.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[1])
    points = " ".join(points.split())
    return f' d="{points.replace(" L ", " ") if set("CQ").isdisjoint(points) else points}"'


def _panel(axis: Axes, label: str, bins: Bins, bin_s: float) -> None:
    at = [row["start_us"] / 1e6 + bin_s / 2 for row in bins]
    axis.set_yscale("log")
    for key, name, colour, width in (
        ("slowest_us", "max", WORST, 0.8),
        ("p99_us", "p99", SLOW, 1.2),
        ("p50_us", "p50", CALM, 1.6),
    ):
        axis.plot(at, [_ms(row[key]) for row in bins], color=colour, linewidth=width, label=name)
    _failures(axis, [moment for moment, row in zip(at, bins, strict=True) if row["censored"]])
    axis.set_ylabel("ms")
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.minorticks_off()
    axis.margins(x=0.01)
    _title(axis, label, 0)
    axis.grid(visible=True, axis="y", color=GREY, alpha=0.2, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def _title(axis: Axes, text: str, levels: int) -> None:
    """Above as many levels of the bands' names."""
    title = _short(text, _TITLE_CHARS_MAX)
    axis.set_title(title, loc="left", fontsize=9, pad=4 + _LEVEL_POINTS * levels, parse_math=False)


def _failures(axis: Axes, at_s: Sequence[float]) -> None:
    """A red tick at the top for each bin in which something failed; one path for all of them, to stay small."""
    ticks = [point for moment in at_s for point in (moment, moment, float("nan"))]
    heights = [1.0, 0.9, float("nan")] * len(at_s)
    axis.plot(ticks, heights, color=FAILED, linewidth=2, transform=axis.get_xaxis_transform(), label="failed")


def _backdrop(axis: Axes, bands: Sequence[Band], marks_s: Sequence[float]) -> None:
    for band in bands:
        axis.axvspan(band.start_s, band.end_s, color=band.colour, alpha=0.22, linewidth=0)
    for mark in marks_s:
        axis.axvline(mark, color=GREY, linewidth=0.8, linestyle=":")


def _name_bands(axis: Axes, bands: Sequence[Band]) -> int:
    """Names stand above their bands, each on the lowest level where it meets no other; returns how many there are."""
    left_s, right_s = axis.get_xlim()
    ends_s: list[float] = []
    for band in bands:
        name = _short(band.fault, _LABEL_CHARS_MAX)
        level = next((at for at, end_s in enumerate(ends_s) if end_s <= band.start_s), len(ends_s))
        ends_s[level : level + 1] = [band.start_s + (len(name) + 1) * (right_s - left_s) / _CHARS_ACROSS]
        axis.annotate(
            name,
            (band.start_s, 1.0),
            xycoords=axis.get_xaxis_transform(),
            xytext=(0, 3 + _LEVEL_POINTS * level),
            textcoords="offset points",
            fontsize=_LABEL_POINTS,
            parse_math=False,
        )
    return len(ends_s)


def _short(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _ms(value_us: int | None) -> float:
    """Censored bins leave a hole in their line; a log axis has no zero, so that less than a microsecond is one."""
    return float("nan") if value_us is None else max(value_us, 1) / 1e3
