"""The plot of KIP-1224: how long commits take at a low rate, by the linger of their coordinator."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials import commits
from aftershock.results.trials.claim import Parts
from aftershock.results.trials.commits import ADAPTIVE, FIXED, NONE
from aftershock.results.trials.kip1224 import IDLE, PLAIN, TRANSACTIONAL
from aftershock.results.trials.part import Part
from aftershock.results.trials.plot import Plot
from aftershock.results.trials.slices import Floats, quantile
from aftershock.results.trials.steady import steady

_SIZE = (8.5, 3.2)
_LABELS = {ADAPTIVE: "adaptive (-1)", FIXED: "fixed 5 ms", NONE: "none (0)"}
_PANELS = {PLAIN: "commits", TRANSACTIONAL: "transactional commits (control)"}
_SHOWN_Q = 0.98
_TITLE = "How long a commit takes, by its coordinator's linger"


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One of the idle runs together, if any was run."""
    runs = [parts[name] for name in IDLE if name in parts]
    if not runs:
        return ()
    said = _reading(_pooled(runs, PLAIN))
    with drawing(*_SIZE) as figure:
        for axis, (client, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
            _panel(axis, _pooled(runs, client), title)
        legend(figure, figure.axes[0], len(_LABELS))
        svg = rendered(figure, "kip1224-idle", _TITLE, said)
    return (Plot(_TITLE, svg, said),)


def _pooled(runs: Sequence[Part], client: str) -> dict[str, Floats]:
    """By setting, all latencies of all runs, in order."""
    found = [commits.latencies_ms(run, client, steady(run)) for run in runs]
    return {name: np.sort(np.concatenate([each for of in found for each in of.get(name, ())])) for name in _LABELS}


def _panel(axis: Axes, found: dict[str, Floats], title: str) -> None:
    """The share of commits that took at most so long."""
    for number, (name, label) in enumerate(_LABELS.items()):
        colour, dash = LINES[number]
        took = found[name]
        shares = 100 * np.arange(1, len(took) + 1) / max(1, len(took))
        axis.plot(took, shares, color=colour, linestyle=dash, linewidth=1.3, label=label)
    plain(axis, f"{title}, % answered")
    axis.set_xlabel("within so many ms of the intended time")
    axis.set_xlim(0, max((quantile(took, _SHOWN_Q) for took in found.values() if len(took)), default=1.0))
    axis.set_ylim(0, 100)


def _reading(found: dict[str, Floats]) -> str:
    known = [f"{_LABELS[name]} {quantile(took, 0.5):.2f} ms" for name, took in found.items() if len(took)]
    return f"p50 of plain commits: {', '.join(known)}. On the right are commits that never linger."
