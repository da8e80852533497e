"""The plot of KIP-227: what a fetch costs, against how many partitions it is for."""

from collections.abc import Mapping, Sequence

import numpy as np

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Parts
from aftershock.results.trials.fetches import FULL, INCREMENTAL
from aftershock.results.trials.kip227 import BYTES, SIZES, costs
from aftershock.results.trials.plot import Plot

_SIZE = (8.5, 3.2)
_LABELS = {FULL: "no session: every fetch names all", INCREMENTAL: "session: every fetch names what changed"}
_TITLE = "Bytes a fetch, records not counted"


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One, if the sizes were run."""
    if BYTES not in parts:
        return ()
    found = {kind: costs(parts[BYTES], kind) for kind in _LABELS}
    said = _reading(found)
    with drawing(*_SIZE) as figure:
        axis = figure.subplots()
        for number, (kind, label) in enumerate(_LABELS.items()):
            colour, dash = LINES[number]
            medians = [float(np.median(found[kind][size])) for size in SIZES]
            axis.plot(SIZES, medians, color=colour, linestyle=dash, marker="o", markersize=4, label=label)
            axis.annotate(
                f"{medians[-1]:,.0f} B", (SIZES[-1], medians[-1]), (6, 0), textcoords="offset points", va="center"
            )
        plain(axis, "bytes a request and its response, both scales logarithmic")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(SIZES, [str(size) for size in SIZES])
        axis.minorticks_off()
        axis.set_xlim(right=SIZES[-1] * 1.4)
        axis.set_xlabel("partitions followed, one in a hundred active")
        legend(figure, axis, len(_LABELS))
        svg = rendered(figure, "kip227-bytes", _TITLE, said)
    return (Plot(_TITLE, svg, said),)


def _reading(found: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    few, many = SIZES[0], SIZES[-1]
    full, changed = ([float(np.median(found[kind][size])) for size in (few, many)] for kind in (FULL, INCREMENTAL))
    return (
        f"From {few} to {many} partitions a full fetch grows from {full[0]:,.0f} to {full[1]:,.0f} B, an incremental "
        f"one from {changed[0]:,.0f} to {changed[1]:,.0f} B, most of it for the partitions that are active."
    )
