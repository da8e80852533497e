"""Drawing of charts as ``<svg>`` elements (style, fault bands, and latency over time).

The same figure always gives the same bytes of ``<svg>``, with a title and description for accessibility. Greys and
lines of charts are readable on light and dark backgrounds. A page can contain several charts.

Each fault of the plan has its own colour, in the order of the timeline, from the eight colours of Okabe and Ito, which
colour-blind readers can distinguish; the ninth fault has the first colour again.
"""

import io
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.model.text import xml_text

PALETTE = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999")


@dataclass(frozen=True)
class Band:
    fault: str
    colour: str
    start_s: float
    end_s: float
    entry: str = ""


def colours(evidence: Evidence) -> Mapping[str, str]:
    """Map faults to colours; the repetitions of a fault of the plan have one colour."""
    entries = {step["id"]: step.get("entry") or step["id"] for step in evidence.steps}
    painted = {entry: PALETTE[index % len(PALETTE)] for index, entry in enumerate(dict.fromkeys(entries.values()))}
    return {fault: painted[entry] for fault, entry in entries.items()}


def bands(evidence: Evidence) -> list[Band]:
    painted = colours(evidence)
    return [
        Band(
            phase.fault,
            painted.get(phase.fault, PALETTE[-1]),
            phase.start_us / 1e6,
            phase.end_us / 1e6,
            phase.entry or phase.fault,
        )
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
"""Colour and dash of a chart's first to eighth line, distinguishable also in print and by colour-blind readers."""
ON_COLOUR = "on-colour"
"""Group id of a text that stands on one of the colours of ``LINES``; the page writes it in black instead of grey."""

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
_POINT = re.compile(r"([ML])\s+(-?[\d.]+)\s+(-?[\d.]+)\s*")
_REFERENCE = re.compile(r"((?<=^#)[^)]+|(?<=url\(#)[^)]+)")
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
TENTHS = 10


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def rendered(figure: Figure, name: str, title: str, words: str) -> Markup:
    """Return a chart as an ``<svg>``; ``name`` is unique in the page, ``title`` and ``words`` describe the chart."""
    out = io.StringIO()
    for label in figure.findobj(Text):
        if (text := xml_text(label.get_text())) != label.get_text():
            label.set_text(text)
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    # Labels come from plans and evidence of others: only attributes of elements are rewritten, never a label's text.
    root = ET.fromstring(out.getvalue())  # noqa: S314 - matplotlib wrote the XML
    elements = list(root.iter())
    for element in elements:
        element.tag = str(element.tag).rpartition("}")[2]
        element.text, element.tail = (element.text if (element.text or "").strip() else None), None
    # A style that occurs three times or more is shorter as a class.
    styles = Counter(element.get("style", "") for element in elements)
    frequent = [style for style, count in styles.items() if style and count >= 3]  # noqa: PLR2004
    classes = {style: f"{name}-{number}" for number, style in enumerate(frequent)}
    used = {found for element in elements for value in element.attrib.values() for found in _REFERENCE.findall(value)}
    for element in elements:
        attributes = dict(element.attrib)
        element.attrib.clear()
        for key, value in attributes.items():
            if key == "d":
                element.set(key, _compact_path(value))
            elif (key, value) == ("id", ON_COLOUR):
                element.set("class", ON_COLOUR)
            elif key == "id":  # an id without a reference is removed, another is prefixed by the figure's name
                element.attrib |= {key: f"{name}-{value}"} if value in used else {}
            elif key == "style" and value in classes:
                element.set("class", classes[value])
            elif key == f"{{{_XLINK}}}href":
                element.set("xlink:href", f"#{name}-{value.removeprefix('#')}")
            else:
                element.set(key, _REFERENCE.sub(rf"{name}-\1", value))
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    root.attrib |= {"xmlns": _SVG, "xmlns:xlink": _XLINK, "role": "img"}
    root.set("aria-labelledby", f"{name}-title {name}-words")
    rules = [f".{rule}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, rule in classes.items()]
    head = [("title", title), ("desc", words), *([("style", "".join(rules))] if rules else [])]
    for place, (tag, content) in enumerate(head):
        element = ET.Element(tag, {} if tag == "style" else {"id": f"{name}-{'title' if tag == 'title' else 'words'}"})
        element.text = xml_text(content)
        root.insert(place, element)
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 - ElementTree escapes all text


def _compact_path(path: str) -> str:
    """Round the numbers of an SVG path to tenths of a point; write lines as relative steps (SVG 1.1, 8.3.2)."""
    points, remainder = _POINT.findall(path), _POINT.sub("", path).strip()
    if remainder not in ("", "z"):  # curves
        rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path)
        return " ".join(rounded.split())
    steps = ""
    at_x = at_y = 0
    previous = ""
    for move, *point in points:
        x, y = (round(float(number) * TENTHS) for number in point)
        if move == "M":
            steps += f"M{_coordinate(x)}{_coordinate(y, after=True)}"
        else:
            verb = "l" if previous == "M" else ""
            steps += f"{verb}{_coordinate(x - at_x, after=not verb)}{_coordinate(y - at_y, after=True)}"
        at_x, at_y, previous = x, y, move
    return f"{steps}{remainder}"


def _coordinate(tenths: int, *, after: bool = False) -> str:
    """Format a coordinate for SVG, such as ``12.5`` or ``-.5``; a space separates it from the number ``after``."""
    below_one = -TENTHS < tenths < TENTHS and tenths
    text = f"{tenths / TENTHS:g}".replace("0.", ".", 1) if below_one else f"{tenths / TENTHS:.10g}"
    return f" {text}" if after and not text.startswith("-") else text


def plain(axis: Axes, title: str, pad: float = 4) -> None:
    """Style the axes of a chart with two axis lines, a faint grid, and the title without markup."""
    axis.grid(visible=True, axis="y", color=GREY, alpha=0.2, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, loc="left", fontsize=9, pad=pad, parse_math=False)


def short(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def legend(figure: Figure, axis: Axes, columns: int) -> None:
    """Draw the legend below the panels of a chart, with names without markup."""
    handles, labels = axis.get_legend_handles_labels()
    drawn = figure.legend(handles, [short(label, 60) for label in labels], loc="outside lower left", ncols=columns)
    drawn.set_frame_on(False)
    for text in drawn.get_texts():
        text.set_parse_math(False)


Bins = Sequence[Mapping[str, Any]]

CALM, SLOW, WORST, FAILED = "#2a9d5c", "#3b82c4", "#8f959e", "#e03131"
_TITLE_CHARS_MAX = 80
LEVEL_POINTS = 11
"""Height in points of one line of fault names above a chart."""
BANDS_NAMED_MAX, BANDS_DRAWN_MAX = 12, 60
"""Number of faults with a name of their own, and with a band that is as high as the panel."""
TICKS_MAX, SECONDS_SHOWN_MAX = 9, 600
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200, 86_400)
PANEL_POINTS = 100


def latency_svg(
    name: str,
    words: tuple[str, str],
    panels: Mapping[str, Bins],
    bands: Sequence[Band],
    bin_s: float,
    marks_s: Sequence[float],
) -> Markup:
    """Draw p50, p99 and maximum latency per bin of time, with a panel per client.

    ``words`` are the chart's title and description; ``panels`` maps panel titles to bins of time; ``marks_s`` are the
    times of vertical lines.
    """
    with drawing(10.0, 0.7 + 1.9 * len(panels)) as figure:
        axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axis, (label, bins) in zip(axes, panels.items(), strict=True):
            middles_s = [row["start_us"] / 1e6 + bin_s / 2 for row in bins]
            axis.set_yscale("log")
            for key, line, colour, width in (
                ("slowest_us", "max", WORST, 0.8),
                ("p99_us", "p99", SLOW, 1.2),
                ("p50_us", "p50", CALM, 1.6),
            ):
                axis.plot(middles_s, [ms(row[key]) for row in bins], color=colour, linewidth=width, label=line)
            # A red tick at the top for each bin with failures, all as one path to keep the file small.
            failed_s = [at_s for at_s, row in zip(middles_s, bins, strict=True) if row["censored"]]
            ticks = [point for at_s in failed_s for point in (at_s, at_s, float("nan"))]
            heights = [1.0, 0.9, float("nan")] * len(failed_s)
            top = axis.get_xaxis_transform()
            axis.plot(ticks, heights, color=FAILED, linewidth=2, transform=top, label="failed")
            axis.set_ylabel("ms")
            axis.yaxis.set_major_formatter("{x:.10g}")
            axis.minorticks_off()
            axis.margins(x=0.01)
            plain(axis, short(label, _TITLE_CHARS_MAX))
            backdrop(axis, bands, marks_s)
        levels = name_bands(axes[0], bands)
        plain(axes[0], short(next(iter(panels)), _TITLE_CHARS_MAX), 4 + LEVEL_POINTS * levels)
        time_axis(axes[-1], " (intended send time)")
        legend(figure, axes[0], 4)
        return rendered(figure, name, *words)


def backdrop(axis: Axes, bands: Sequence[Band], marks_s: Sequence[float]) -> None:
    for band in bands if len(bands) <= BANDS_DRAWN_MAX else ():
        axis.axvspan(band.start_s, band.end_s, color=band.colour, alpha=0.22, linewidth=0)
    for mark in marks_s:
        axis.axvline(mark, color=GREY, linewidth=0.8, linestyle=":")


def name_bands(axis: Axes, bands: Sequence[Band]) -> int:
    """Write fault names above a panel, and return the number of lines.

    A few names stand above their bands, each on the lowest free line. Of many faults, each fault of the plan has a line
    of marks, one for each repetition, which are at least as wide as a pixel.
    """
    left_s, right_s = axis.get_xlim()
    top = axis.get_xaxis_transform()
    if len(bands) > BANDS_NAMED_MAX:
        rows: dict[str, list[Band]] = {}
        for band in bands:
            rows.setdefault(band.entry or band.fault, []).append(band)
        if len(rows) > len(PALETTE):
            rows = {"faults": [replace(band, colour=GREY) for band in bands]}
        for level, (name, repeated) in enumerate(reversed(rows.items())):
            low, high = (1 + (3 + LEVEL_POINTS * level + offset) / PANEL_POINTS for offset in (0, LEVEL_POINTS - 3))
            corners: list[tuple[float, float]] = []
            for band in repeated:
                end_s = max(band.end_s, band.start_s + (right_s - left_s) / 1000)
                corners += [(band.start_s, low), (band.start_s, high), (end_s, high), (end_s, low)]
            codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO] * len(repeated)
            marks = PathPatch(Path(corners, codes), color=repeated[0].colour, linewidth=0, transform=top, clip_on=False)
            axis.add_patch(marks)
            label = short(name, 20) if len(repeated) == 1 else f"{short(name, 20)}, {len(repeated)} times"
            axis.text(1.005, low, label, transform=axis.transAxes, fontsize=8.5, parse_math=False)
        axis.set_xlim(left_s, right_s)
        return len(rows)
    ends_s: list[float] = []
    for band in bands:
        name = short(band.fault, 24)
        across_s = (len(name) + 1) * (right_s - left_s) / 125  # characters of this size fit beside each other
        start_s = min(band.start_s, right_s - across_s)
        level = next((at for at, end_s in enumerate(ends_s) if end_s <= start_s), len(ends_s))
        ends_s[level : level + 1] = [start_s + across_s]
        axis.annotate(
            name,
            (start_s, 1.0),
            xycoords=top,
            xytext=(0, 3 + LEVEL_POINTS * level),
            textcoords="offset points",
            fontsize=8.5,
            parse_math=False,
        )
    return len(ends_s)


def time_axis(axis: Axes, what: str = "") -> None:
    """Label the x axis, in seconds of the run, with at most ``TICKS_MAX`` times in seconds, minutes or hours."""
    left_s, right_s = axis.get_xlim()
    unit = "seconds" if right_s <= SECONDS_SHOWN_MAX else "minutes:seconds" if right_s <= 3600 else "hours:minutes"  # noqa: PLR2004
    step_s = next((step for step in STEPS_S if (right_s - left_s) / step <= TICKS_MAX), 86_400)
    while (right_s - left_s) / step_s > TICKS_MAX:
        step_s *= 2
    ticks = [step_s * number for number in range(math.ceil(left_s / step_s), math.floor(right_s / step_s) + 1)]
    divisor = {"seconds": 0, "minutes:seconds": 60, "hours:minutes": 3600}[unit]
    labels = [f"{at // divisor}:{at % divisor * 60 // divisor:02}" if divisor else f"{at}" for at in ticks]
    axis.set_xticks(ticks, labels)
    axis.set_xlim(left_s, right_s)
    axis.set_xlabel(f"{unit} of the run{what}")


def ms(value_us: int | None) -> float:
    """Return a latency in ms, at least 1 us for the log axis; NaN if censored, which leaves a hole in the line."""
    return float("nan") if value_us is None else max(value_us, 1) / 1e3
