"""Drawing of charts as ``<svg>`` elements, and the colours of all charts and lanes.

The same figure always gives the same bytes of ``<svg>``, with a title and description for accessibility. Greys and
lines of charts are readable on light and dark backgrounds. A page can contain several charts.

Each fault of the plan has its own colour, in the order of the timeline, from the eight colours of Okabe and Ito, which
colour-blind readers can distinguish; the ninth fault has the first colour again.
"""

import io
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.model.text import xml_text

PALETTE = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999")


def colours(evidence: Evidence) -> Mapping[str, str]:
    """Map faults to colours; the repetitions of a fault of the plan have one colour."""
    entries = {step["id"]: step.get("entry") or step["id"] for step in evidence.steps}
    painted = {entry: PALETTE[index % len(PALETTE)] for index, entry in enumerate(dict.fromkeys(entries.values()))}
    return {fault: painted[entry] for fault, entry in entries.items()}


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
    """Return a label of at most ``chars_max`` characters that a font can draw: names come from plans of others."""
    text = xml_text(text)
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def legend(figure: Figure, axis: Axes, columns: int) -> None:
    """Draw the legend below the panels of a chart, with names without markup."""
    handles, labels = axis.get_legend_handles_labels()
    drawn = figure.legend(handles, [short(label, 60) for label in labels], loc="outside lower left", ncols=columns)
    drawn.set_frame_on(False)
    for text in drawn.get_texts():
        text.set_parse_math(False)


CALM, SLOW, WORST, FAILED = "#2a9d5c", "#3b82c4", "#8f959e", "#e03131"


def ms(value_us: int | None) -> float:
    """Return a latency in ms, at least 1 us for the log axis; NaN if censored, which leaves a hole in the line."""
    return float("nan") if value_us is None else max(value_us, 1) / 1e3
