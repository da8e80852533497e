"""Drawings of what each KIP changes: who sends what to whom, without and with the KIP (``mechanisms.toml``).

A drawing is a sequence of messages between clients and brokers, from top to bottom. It is narrow enough for a phone.
"""

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from matplotlib.axes import Axes

from aftershock.results.report.svg import GREY, LINES, drawing, rendered
from aftershock.results.studies.statement import Plot

_OLD, _NEW = LINES[1][0], LINES[0][0]
_WIDTH_IN, _ROW_IN = 4.3, 0.27
_STEP = re.compile(r"(\+ )?([^:>]+?)(?: -> ([^:]+))?: (.+)")


class Step(NamedTuple):
    """Message from one lane to another; within a lane, a time of waiting. ``new`` marks what the KIP changes."""

    source: int
    target: int
    text: str
    new: bool


def step_of(text: str, lanes: Sequence[str]) -> Step:
    """Parse a step such as ``+ producer -> leader: Produce``. Raises ValueError for any other text."""
    match = _STEP.fullmatch(text)
    if not match or not {match[2], match[3] or match[2]} <= {*lanes}:
        raise ValueError(f"mechanisms.toml: {text!r} is no step between the lanes {', '.join(lanes)}")
    return Step(lanes.index(match[2]), lanes.index(match[3] or match[2]), match[4], bool(match[1]))


def mechanism(kip: int) -> Plot:
    """Return the drawing of what a KIP changes."""
    text = (resources.files(__package__) / "mechanisms.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)[str(kip)]
    lanes = document["lanes"]
    panels = {panel["title"]: [step_of(text, lanes) for text in panel["steps"]] for panel in document["panels"]}
    rows = [len(steps) + 2 for steps in panels.values()]
    title = "What the KIP changes"
    with drawing(_WIDTH_IN, _ROW_IN * sum(rows)) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
        for axis, (name, steps) in zip(axes, panels.items(), strict=True):
            _draw(axis, name, lanes, steps)
        words = [f"{name}: {'; '.join(step.text for step in steps)}" for name, steps in panels.items()]
        svg = rendered(figure, f"kip{kip}-mechanism", title, ". ".join(words))
    return Plot(title, svg, f"{document['reading']} Blue is what the KIP changes.")


def _draw(axis: Axes, title: str, lanes: Sequence[str], steps: Sequence[Step]) -> None:
    last = len(lanes) - 1
    axis.set_title(title, loc="left", fontsize=9.5, fontweight="bold", pad=14, parse_math=False)
    axis.set_xlim(-0.05 * last, 1.05 * last)
    axis.set_ylim(len(steps) + 0.3, 0)
    axis.axis("off")
    for lane, name in enumerate(lanes):
        side = "left" if lane == 0 else "right" if lane == last else "center"
        axis.text(lane, -0.05, name, ha=side, va="bottom", fontsize=9)
        axis.plot([lane, lane], [0, len(steps) + 0.3], color=GREY, linewidth=1, alpha=0.4)
    for number, step in enumerate(steps, 1):
        colour = _NEW if step.new else _OLD
        left, right = sorted((step.source, step.target))
        if step.source == step.target:
            axis.plot([left, left], [number - 0.75, number + 0.15], color=colour, linewidth=5, solid_capstyle="butt")
            axis.text(left + 0.03 * last, number - 0.3, step.text, ha="left", va="center", fontsize=9)
            continue
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (step.target, number), (step.source, number), arrowprops=arrow)
        at, side = ((left + right) / 2, "center") if right - left == last else (left + 0.03 * last, "left")
        if right == last and left > 0:
            at, side = right - 0.03 * last, "right"
        axis.text(at, number - 0.06, step.text, ha=side, va="bottom", fontsize=9, parse_math=False)
