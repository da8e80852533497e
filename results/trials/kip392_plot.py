"""The plot of KIP-392: which broker a consumer's bytes came from, second by second."""

import numpy as np

from aftershock.results.report.svg import GREY, LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Parts
from aftershock.results.trials.kip392_near import RACK, bytes_by_broker
from aftershock.results.trials.part import Part, read_rows
from aftershock.results.trials.plot import Plot
from aftershock.results.trials.slices import slices

_ARMS = {"near": ("closest", "leader", "rackless"), "lease": ("closest", "leader")}
_BIN_US = 2_000_000
_SIZE = (8.5, 2.9)
_READING = {
    "near": "All leaders are in rack a. The reader of the closest replica fetches in its own rack, the others from a.",
    "lease": "Bands: the replica lags, it dies, the leader dies. Each time the reader goes where the records are.",
}


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One of each part that was run."""
    return tuple(_plot(parts[name], name) for name in _ARMS if name in parts)


def _plot(part: Part, name: str) -> Plot:
    rows = read_rows(part.home / "phases.json")
    bins = slices(min(row["start_us"] for row in rows), max(row["end_us"] for row in rows), _BIN_US)
    racks = {int(broker["id"]): broker["rack"] for broker in part.run.run["brokers"]}
    with drawing(*_SIZE) as figure:
        axes = figure.subplots(1, len(_ARMS[name]), sharey=True)
        for axis, arm in zip(axes, _ARMS[name], strict=True):
            found = bytes_by_broker(part, arm, bins)
            for number, (broker, values) in enumerate(found.items()):
                colour, dash = LINES[number]
                kilobytes_s = values / _BIN_US * 1e3
                label = f"from k{broker}, rack {racks[broker]}"
                times_s = np.array([each.start_us for each in bins]) / 1e6
                axis.plot(times_s, kilobytes_s, color=colour, linestyle=dash, linewidth=1.2, label=label)
            for row in rows:
                if row["name"] == "fault":
                    axis.axvspan(row["start_us"] / 1e6, row["end_us"] / 1e6, color=GREY, alpha=0.15, linewidth=0)
            plain(axis, f"{arm}, in rack {RACK}")
            axis.set_xlabel("s of the run")
        axes[0].set_ylabel("kB/s")
        legend(figure, axes[0], len(racks))
        svg = rendered(figure, f"kip392-{name}", f"KIP-392, {name}", _READING[name])
    return Plot("Where the bytes came from" if name == "near" else "When the replica is no good", svg, _READING[name])
