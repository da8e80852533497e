"""What consumers had still to read: records at the end of each second, and the age of the oldest, over the bands."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.report.bands import Band
from aftershock.results.report.chart import backdrop, name_bands
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered

Seconds = Sequence[Sequence[int]]

_SIZE_INCHES = (10.0, 4.2)
_POINTS_MAX = 2000  # of all lines together


def lag_svg(name: str, words: tuple[str, str], lines: Mapping[str, Seconds], bands: Sequence[Band]) -> Markup:
    """``lines`` map a client to its seconds: (at_us, records, oldest_us)."""
    with drawing(*_SIZE_INCHES) as figure:
        lag, freshness = figure.subplots(2, 1, sharex=True)
        for index, (label, seconds) in enumerate(lines.items()):
            colour, dash = LINES[index % len(LINES)]
            kept = _thinned(seconds, _POINTS_MAX // len(lines))
            at_s = [row[0] / 1e6 for row in kept]
            lag.plot(at_s, [row[1] for row in kept], color=colour, linestyle=dash, linewidth=1.2, label=label)
            freshness.plot(at_s, [(row[2] or 0) / 1e6 for row in kept], color=colour, linestyle=dash, linewidth=1.2)
        for axis in (lag, freshness):
            backdrop(axis, bands, ())
        _titled(lag, freshness, name_bands(lag, bands))
        legend(figure, lag, 4)
        return rendered(figure, name, *words)


def _titled(lag: Axes, freshness: Axes, levels: int) -> None:
    plain(lag, "lag: acknowledged and not yet delivered", 4 + 11 * levels)
    plain(freshness, "freshness: age of the oldest of them")
    lag.set_ylabel("records")
    freshness.set_ylabel("s")
    freshness.set_xlabel("seconds of the run")
    freshness.margins(x=0.01)


def _thinned(seconds: Seconds, points_max: int) -> Seconds:
    """The worst second of each stretch, where there are more than a line can show."""
    stretch = max(1, -(-len(seconds) // points_max))
    return [max(seconds[at : at + stretch], key=lambda row: row[1]) for at in range(0, len(seconds), stretch)]
