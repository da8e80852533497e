"""Latency over time as SVG: a panel a client, p50, p99 and max a bin, failures marked, the faults' bands behind."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.report.bands import Band
from aftershock.results.report.svg import GREY, drawing, legend, plain, rendered, short

Bins = Sequence[Mapping[str, Any]]

CALM, SLOW, WORST, FAILED = "#2a9d5c", "#3b82c4", "#8f959e", "#e03131"
_SIZE_INCHES = (10.0, 1.9)  # of one panel
_LABEL_CHARS_MAX, _TITLE_CHARS_MAX = 24, 80
_LABEL_POINTS, _LEVEL_POINTS = 8.5, 11
_CHARS_ACROSS = 125  # labels of that size beside each other, in one panel


def latency_svg(
    name: str,
    words: tuple[str, str],
    panels: Mapping[str, Bins],
    bands: Sequence[Band],
    bin_s: float,
    marks_s: Sequence[float],
) -> Markup:
    """``words``: title and description; ``panels`` maps labels to bins; ``marks_s`` are thin lines (warm-up's end)."""
    width, height = _SIZE_INCHES
    with drawing(width, 0.7 + height * len(panels)) as figure:
        axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axis, (label, bins) in zip(axes, panels.items(), strict=True):
            _panel(axis, label, bins, bin_s)
            backdrop(axis, bands, marks_s)
        levels = name_bands(axes[0], bands)
        plain(axes[0], short(next(iter(panels)), _TITLE_CHARS_MAX), 4 + _LEVEL_POINTS * levels)
        axes[-1].set_xlabel("seconds of the run (intended send time)")
        legend(figure, axes[0], 4)
        return rendered(figure, name, *words)


def _panel(axis: Axes, label: str, bins: Bins, bin_s: float) -> None:
    at = [row["start_us"] / 1e6 + bin_s / 2 for row in bins]
    axis.set_yscale("log")
    for key, name, colour, width in (
        ("slowest_us", "max", WORST, 0.8),
        ("p99_us", "p99", SLOW, 1.2),
        ("p50_us", "p50", CALM, 1.6),
    ):
        axis.plot(at, [ms(row[key]) for row in bins], color=colour, linewidth=width, label=name)
    _failures(axis, [moment for moment, row in zip(at, bins, strict=True) if row["censored"]])
    axis.set_ylabel("ms")
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.minorticks_off()
    axis.margins(x=0.01)
    plain(axis, short(label, _TITLE_CHARS_MAX))


def _failures(axis: Axes, at_s: Sequence[float]) -> None:
    """A red tick at the top for each bin in which something failed; one path for all of them, to stay small."""
    ticks = [point for moment in at_s for point in (moment, moment, float("nan"))]
    heights = [1.0, 0.9, float("nan")] * len(at_s)
    axis.plot(ticks, heights, color=FAILED, linewidth=2, transform=axis.get_xaxis_transform(), label="failed")


def backdrop(axis: Axes, bands: Sequence[Band], marks_s: Sequence[float]) -> None:
    """The faults' windows as bands of colour, and thin lines."""
    for band in bands:
        axis.axvspan(band.start_s, band.end_s, color=band.colour, alpha=0.22, linewidth=0)
    for mark in marks_s:
        axis.axvline(mark, color=GREY, linewidth=0.8, linestyle=":")


def name_bands(axis: Axes, bands: Sequence[Band]) -> int:
    """Names stand above their bands, each on the lowest level where it meets no other; returns how many there are."""
    left_s, right_s = axis.get_xlim()
    ends_s: list[float] = []
    for band in bands:
        name = short(band.fault, _LABEL_CHARS_MAX)
        across_s = (len(name) + 1) * (right_s - left_s) / _CHARS_ACROSS
        start_s = min(band.start_s, right_s - across_s)
        level = next((at for at, end_s in enumerate(ends_s) if end_s <= start_s), len(ends_s))
        ends_s[level : level + 1] = [start_s + across_s]
        axis.annotate(
            name,
            (start_s, 1.0),
            xycoords=axis.get_xaxis_transform(),
            xytext=(0, 3 + _LEVEL_POINTS * level),
            textcoords="offset points",
            fontsize=_LABEL_POINTS,
            parse_math=False,
        )
    return len(ends_s)


def ms(value_us: int | None) -> float:
    """Censored bins leave a hole in their line; a log axis has no zero, so that less than a microsecond is one."""
    return float("nan") if value_us is None else max(value_us, 1) / 1e3
