"""The picture that KIP-951's authors would have wanted: the slowest record after each move, arm by arm, by delay."""

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Parts
from aftershock.results.trials.kip951 import BOTH, DELAYS_MS, HINTS, NEITHER, RETRY, worst
from aftershock.results.trials.part import Part
from aftershock.results.trials.plot import Plot

ARMS = {BOTH: "both: the KIP", HINTS: "hints alone", RETRY: "retry alone: rejected", NEITHER: "neither: before"}
_WIDTH, _HEIGHT = 10.0, 3.6
_READING = (
    "Each point is one move: the slowest record that was due from when the move was asked for to a second after it. A "
    "line is a median. If hints do what the KIP says, the two clouds on the left stay where they are as Metadata "
    "gets later, and the others rise with it."
)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One figure, a panel a delay; none where no part with moves was run."""
    moved = {name: parts[name] for name in DELAYS_MS if name in parts}
    if not moved:
        return ()
    title = "The slowest record after each move, by how late Metadata is"
    return (Plot(title, _drawn(moved, title), _READING),)


def _drawn(moved: Parts, title: str) -> Markup:
    with drawing(_WIDTH, _HEIGHT) as figure:
        axes = figure.subplots(1, len(moved), sharey=True, squeeze=False)[0]
        for axis, (name, part) in zip(axes, moved.items(), strict=True):
            _panel(axis, part, name)
        axes[0].set_ylabel("ms")
        legend(figure, axes[0], len(ARMS))
        return rendered(figure, "moves", title, _words(moved))


def _panel(axis: Axes, part: Part, name: str) -> None:
    """One cloud an arm, side by side; in the order of the moves from left to right."""
    axis.set_yscale("log")
    for place, (arm, label) in enumerate(ARMS.items()):
        values = _values_ms(part, arm, name)
        colour = LINES[place][0]
        spread = [place + 0.5 * (number / max(len(values) - 1, 1) - 0.5) for number in range(len(values))]
        axis.plot(spread, values, ".", color=colour, markersize=5, label=label)
        if values:
            axis.hlines(sorted(values)[len(values) // 2], place - 0.35, place + 0.35, color=colour, linewidth=2)
    axis.set_xticks(range(len(ARMS)), [arm.partition("/")[2] for arm in ARMS])
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.yaxis.set_minor_formatter("{x:.10g}")
    plain(axis, f"Metadata {DELAYS_MS[name]} ms late")


def _values_ms(part: Part, arm: str, name: str) -> list[float]:
    """In order of the moves; one without a value has no point."""
    blocks = part.blocks(arm, worst(name))
    return [value_us / 1e3 for _, block in sorted(blocks.items()) if (value_us := block.value_us) is not None]


def _words(moved: Parts) -> str:
    said = []
    for name, part in moved.items():
        for arm in ARMS:
            values = sorted(_values_ms(part, arm, name))
            if values:
                said.append(f"{DELAYS_MS[name]} ms, {arm.partition('/')[2]}: median {values[len(values) // 2]:.0f} ms")
    return "; ".join(said)
