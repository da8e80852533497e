"""Figures as ``<svg>`` elements: small, the same bytes for the same figure, and read aloud by their title and words.

Rules: text stays text; greys and lines are chosen to be read on light and on dark; what a path needs is written as
tightly as the eye allows; of matplotlib's ids only those stay that something refers to, under the figure's own name, so
that several figures can stand in one page.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
"""A colour and a dash for each line that is told apart from others, also in print and by colour-blind eyes."""

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
    """A figure of so many inches, drawn in the report's style."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def rendered(figure: Figure, name: str, title: str, words: str) -> Markup:
    """The figure as an ``<svg>``; ``name`` is unique in the page, ``title`` and ``words`` stand for it without eyes."""
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
    """No frame but the two axes, faint lines across, the title as it is written."""
    axis.grid(visible=True, axis="y", color=GREY, alpha=0.2, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, loc="left", fontsize=9, pad=pad, parse_math=False)


def short(text: str, chars_max: int) -> str:
    """``text``, or its beginning and an ellipsis."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def legend(figure: Figure, axis: Axes, columns: int) -> None:
    """Below the panels; names are shown as they are."""
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
    """The text with its frequent styles as classes, and the sheet that says them."""
    frequent = [style for style, count in Counter(_STYLED.findall(text)).items() if count >= _OFTEN]
    classes = {style: f"{name}-{number}" for number, style in enumerate(frequent)}
    sheet = "".join(f".{said}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, said in classes.items())

    def known(style: re.Match[str]) -> str:
        return f' class="{classes[style[1]]}"' if style[1] in classes else style[0]

    return _STYLED.sub(known, text), f"<style>{sheet}</style>" if sheet else ""


def _tight(path: re.Match[str]) -> str:
    """To a tenth of a point; lines as steps from the point before, which are shorter (SVG 1.1, 8.3.2)."""
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
    """``12.5``, ``-.5``; after another number with a space before it, where there is no sign to part them."""
    said = (
        f"{tenths / TENTHS:g}".replace("0.", ".", 1)
        if -TENTHS < tenths < TENTHS and tenths
        else f"{tenths / TENTHS:.10g}"
    )
    return f" {said}" if after and not said.startswith("-") else said
