"""The plots of KIP-794: where the bytes went while one broker was slow, and what that cost."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials import kip794_series as series
from aftershock.results.trials.claim import Parts
from aftershock.results.trials.kip794_control import ARMS
from aftershock.results.trials.part import Part
from aftershock.results.trials.placed import Placed
from aftershock.results.trials.plot import Plot
from aftershock.results.trials.slices import Slice, quantile, slices
from aftershock.results.trials.spread import SLOW, THIRD

_SIZE = (8.5, 3.2)
_BIN_US = 5_000_000
_BEFORE_US, _AFTER_US = 5_000_000, 12_000_000


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One of each series."""
    part = parts.get(series.PART)
    return () if part is None else tuple(_plot(part, fault) for fault in (series.SERIES1, series.SERIES2))


def _plot(part: Part, name: str) -> Plot:
    (window,) = part.phases(name)
    spans = slices(window["start_us"] - _BEFORE_US, window["end_us"] + _AFTER_US, _BIN_US)
    found = {arm: series.of(part, arm) for arm in ARMS}
    said = _reading(found, Slice(window["start_us"], window["end_us"]))
    with drawing(*_SIZE) as figure:
        left, right = figure.subplots(1, 2)
        for number, (arm, records) in enumerate(found.items()):
            seen = [records.within(span) for span in spans]
            _line(left, number, arm, spans, [each.share(SLOW) for each in seen])
            _line(right, number, arm, spans, [_p99_ms(each) for each in seen])
        _finish(left, window, "bytes to the slow broker, %")
        left.axhline(THIRD, linewidth=0.6, linestyle=":", color="#808080")
        left.set_ylim(0, 100)
        _finish(right, window, "p99 of produce latency, ms")
        right.set_yscale("log")
        legend(figure, left, len(found))
        svg = rendered(figure, f"kip794-{name}", f"KIP-794, {name}", said)
    return Plot(f"{name}: where bytes went, and how long they took", svg, said)


def _line(axis: Axes, number: int, arm: str, spans: Sequence[Slice], values: Sequence[float]) -> None:
    colour, dash = LINES[number]
    middles_s = [(span.start_us + span.end_us) / 2e6 for span in spans]
    axis.plot(middles_s, values, color=colour, linestyle=dash, linewidth=1.3, label=arm)


def _finish(axis: Axes, window: dict[str, int], title: str) -> None:
    plain(axis, title)
    axis.axvspan(window["start_us"] / 1e6, window["end_us"] / 1e6, color="#fd8d3c", alpha=0.12, linewidth=0)
    axis.set_xlabel("s of the run")


def _p99_ms(records: Placed) -> float:
    """A hole in the line where nothing was sent, or where the p99 failed."""
    found = quantile(records.latency_us, series.P99) / 1e3 if len(records.latency_us) else np.inf
    return found if np.isfinite(found) else np.nan


def _reading(found: dict[str, Placed], window: Slice) -> str:
    shares = ", ".join(f"{arm} {records.within(window).share(SLOW):.0f} %" for arm, records in found.items())
    said = f"While it was slow (the band) the broker got, by partitioner: {shares} of the bytes; a third is the dots."
    return f"{said} A line ends where its p99 had failed."
