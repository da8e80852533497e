"""The forest plot of comparisons: each ratio with its interval on a log axis, and the line of no difference at 1."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from aftershock.results.report.svg import GREY, drawing, plain, rendered, short

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
