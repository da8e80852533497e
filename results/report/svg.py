"""Drawing of charts as ``<svg>`` elements: style, fault bands, and latency over time.

An element is small, has the same bytes for the same figure, and is accessible by its title and description. Text stays
text. Greys and lines are readable on light and dark backgrounds. Path coordinates are rounded to what is visible. Of
matplotlib's ids only those that are referenced stay, prefixed by the figure's own name, so that several figures can be
in one page.

Fault bands have one colour per fault, in the order of the timeline, from the eight of Okabe and Ito, which colour-blind
readers can distinguish; more faults start over. Latency over time has a panel per client with p50, p99 and max per bin,
with marks for failures, and coloured bands for faults in the background.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from aftershock.results.evidence.evidence import Evidence

PALETTE = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999")


@dataclass(frozen=True)
class Band:
    """Window of a fault, in seconds of the run."""

    fault: str
    colour: str
    start_s: float
    end_s: float


def colours(evidence: Evidence) -> Mapping[str, str]:
    """Return each fault's colour by its id."""
    return {step["id"]: PALETTE[index % len(PALETTE)] for index, step in enumerate(evidence.steps)}


def bands(evidence: Evidence) -> list[Band]:
    """Return the bands of all fault windows, in order of time."""
    painted = colours(evidence)
    return [
        Band(phase.fault, painted.get(phase.fault, PALETTE[-1]), phase.start_us / 1e6, phase.end_us / 1e6)
        for phase in evidence.phases
        if phase.fault is not None
    ]


GREY = "#808080"
LINES = (
    ("#3b82c4", "-"),
    ("#d9822b", "--"),
    ("#2a9d5c", "-."),
    ("#b05fc9", ":"),
    ("#d1495b", (0, (5, 1))),
    ("#0f9fae", (0, (3, 1, 1, 1))),
    ("#a3861f", (0, (1, 1))),
    ("#7d8a97", (0, (8, 2))),
)
"""Colour and dash of each line, distinguishable also in print and by colour-blind readers."""

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
_PATH, _INDENT = re.compile(r' d="([^"]*)"'), re.compile(r">\n\s*<")
_POINT = re.compile(r"([ML])\s+(-?[\d.]+)\s+(-?[\d.]+)\s*")
_NUMBER = re.compile(r"-?\d+\.\d+")
_STYLED = re.compile(r' style="([^"]*)"')
_ID, _USED = re.compile(r' id="([^"]*)"'), re.compile(r"(url\(#|href=\"#)([^\")]+)")
TENTHS = 10
_OFTEN = 3  # a style that is written so often is shorter as a class


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Create a figure of this size in inches in the report's style."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def rendered(figure: Figure, name: str, title: str, words: str) -> Markup:
    """Return the figure as an ``<svg>``; ``name`` is unique in the page, ``title`` and ``words`` describe it."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(_UNTOLD))
    text = out.getvalue()
    text = _PATH.sub(_tight, text[text.index("<svg") :].replace("<metadata>", ""))
    text, classes = _classed(_named(_INDENT.sub("><", text), name), name)
    head, _, rest = text.partition(">")
    spoken = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-words">{escape(words)}</desc>'
    label = f' role="img" aria-labelledby="{name}-title {name}-words">'
    return Markup(head + label + spoken + classes + rest)  # noqa: S704 - matplotlib and we escape all text


def plain(axis: Axes, title: str, pad: float = 4) -> None:
    """Style an axis: two axis lines, a faint grid, and the title without markup."""
    axis.grid(visible=True, axis="y", color=GREY, alpha=0.2, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, loc="left", fontsize=9, pad=pad, parse_math=False)


def short(text: str, chars_max: int) -> str:
    """Return ``text``, or its beginning and an ellipsis."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def legend(figure: Figure, axis: Axes, columns: int) -> None:
    """Draw the legend below the panels, with names without markup."""
    handles, labels = axis.get_legend_handles_labels()
    drawn = figure.legend(handles, [short(label, 60) for label in labels], loc="outside lower left", ncols=columns)
    drawn.set_frame_on(False)
    for text in drawn.get_texts():
        text.set_parse_math(False)


def _named(text: str, name: str) -> str:
    used = {found[1] for found in _USED.findall(text)}
    text = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    return _USED.sub(lambda found: f"{found[1]}{name}-{found[2]}", text)


def _classed(text: str, name: str) -> tuple[str, str]:
    """Return the text with frequent styles replaced by classes, and the style sheet."""
    frequent = [style for style, count in Counter(_STYLED.findall(text)).items() if count >= _OFTEN]
    classes = {style: f"{name}-{number}" for number, style in enumerate(frequent)}
    sheet = "".join(f".{said}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, said in classes.items())

    def known(style: re.Match[str]) -> str:
        return f' class="{classes[style[1]]}"' if style[1] in classes else style[0]

    return _STYLED.sub(known, text), f"<style>{sheet}</style>" if sheet else ""


def _tight(path: re.Match[str]) -> str:
    """Round to a tenth of a point; write lines as relative steps, which are shorter (SVG 1.1, 8.3.2)."""
    points, rest = _POINT.findall(path[1]), _POINT.sub("", path[1]).strip()
    if rest not in ("", "z"):  # curves
        said = _NUMBER.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[1])
        return f' d="{" ".join(said.split())}"'
    return f' d="{"".join(_steps(points))}{rest}"'


def _steps(points: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    at_x = at_y = 0
    verb = ""
    for move, *where in points:
        x, y = (round(float(number) * TENTHS) for number in where)
        if move == "M":
            yield f"M{_number(x)}{_number(y, after=True)}"
        else:
            step = "l" if verb == "M" else ""
            yield f"{step}{_number(x - at_x, after=not step)}{_number(y - at_y, after=True)}"
        at_x, at_y, verb = x, y, move


def _number(tenths: int, *, after: bool = False) -> str:
    """Format a number as ``12.5`` or ``-.5``; add a leading space if it follows a number and has no minus sign."""
    said = (
        f"{tenths / TENTHS:g}".replace("0.", ".", 1)
        if -TENTHS < tenths < TENTHS and tenths
        else f"{tenths / TENTHS:.10g}"
    )
    return f" {said}" if after and not said.startswith("-") else said


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
    """Draw latency over time. ``words``: title, description; ``panels``: bins by label; ``marks_s``: vertical lines."""
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
    """Draw a red tick at the top for each bin with failures, as one path to keep the file small."""
    ticks = [point for moment in at_s for point in (moment, moment, float("nan"))]
    heights = [1.0, 0.9, float("nan")] * len(at_s)
    axis.plot(ticks, heights, color=FAILED, linewidth=2, transform=axis.get_xaxis_transform(), label="failed")


def backdrop(axis: Axes, bands: Sequence[Band], marks_s: Sequence[float]) -> None:
    """Draw the fault windows as bands of colour, and vertical lines."""
    for band in bands:
        axis.axvspan(band.start_s, band.end_s, color=band.colour, alpha=0.22, linewidth=0)
    for mark in marks_s:
        axis.axvline(mark, color=GREY, linewidth=0.8, linestyle=":")


def name_bands(axis: Axes, bands: Sequence[Band]) -> int:
    """Write names above their bands, on the lowest level without overlap, and return the number of levels."""
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
    """Return NaN for a censored bin, which leaves a hole in the line; at least 1 us, as a log axis has no zero."""
    return float("nan") if value_us is None else max(value_us, 1) / 1e3
