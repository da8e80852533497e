"""Charts of the report (latency over time and by percentile, lag and freshness, and comparisons of arms).

The percentile spectrum draws the latency at quantile q over ``1/(1-q)`` on a log axis, so that p90, p99 and p99.9 are
equally spaced. The spectrum's curve is grey at quantiles that fewer than ten records exceed, because no SLO is decided
by so few records. A curve of the spectrum ends at a red mark where the quantile is a failed record. Each chart has a
sentence about the run (``reading.py``) and a caption that explains the chart's marks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from aftershock.results.checks.findings.ownership import Tenure, tenures
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.explain.chapter import longest_ownerless_us, rebalances_of
from aftershock.results.model.check import Check
from aftershock.results.report import reading
from aftershock.results.report.svg import (
    BANDS_DRAWN_MAX,
    BANDS_NAMED_MAX,
    FAILED,
    GREY,
    LEVEL_POINTS,
    LINES,
    ON_COLOUR,
    Band,
    Bins,
    backdrop,
    bands,
    drawing,
    latency_svg,
    legend,
    ms,
    name_bands,
    plain,
    rendered,
    short,
    time_axis,
)

COLOURS = {"improved": "#2a9d5c", "regressed": FAILED, "equivalent": "#3b82c4"}
PANELS_MAX = 8
LINES_MAX = 8
ENOUGH_BEYOND = 10
NINES = {2: "p50", 10: "p90", 100: "p99", 1_000: "p99.9", 10_000: "p99.99", 100_000: "p99.999"}
METRICS = {
    "produce.latency": ("Produce latency", "producer"),
    "consume.latency": ("End-to-end latency", "consumer"),
    "commit.latency": ("Commit latency", "committer"),
}


@dataclass(frozen=True)
class Plot:
    """Chart with an ``<svg>``, a sentence about the run (``reading``), and the meaning of the marks (``caption``)."""

    svg: Markup
    reading: str
    caption: str


@dataclass(frozen=True)
class Metric:
    """Charts of one metric; there is no ``spectrum`` if an older Aftershock judged the run."""

    title: str
    over_time: Plot
    spectrum: Plot | None


def metrics(
    evidence: Evidence, checks: Sequence[Check], analysis: Mapping[str, Any], labels: Mapping[str, str]
) -> list[Metric]:
    """Return the charts of each observed metric; ``labels`` maps clients to their names, in the order of the panels."""
    return [
        Metric(
            title,
            _over_time(evidence, analysis, labels, metric, by_panel),
            _spectrum(checks, analysis, labels, metric),
        )
        for metric, (title, role) in METRICS.items()
        if (by_panel := panels([row for row in analysis["bins"] if row["metric"] == metric], labels, role))
    ]


def panels(bins: Sequence[Mapping[str, Any]], labels: Mapping[str, str], role: str) -> Mapping[str, Bins]:
    """Group a chart's bins of time by panel, which is named like ``arm=a, producer in rack b``."""
    by_panel: dict[str, list[Mapping[str, Any]]] = {}
    for key, label in labels.items():
        for row in (row for row in bins if row["client"] == key):
            where = f", {role} in rack {row['rack']}" if row.get("rack") else ""
            by_panel.setdefault(f"{label}{where}", []).append(row)
    return by_panel


def _over_time(
    evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str], metric: str, bins: Mapping[str, Bins]
) -> Plot:
    title, _ = METRICS[metric]
    marks_s = [phase.end_us / 1e6 for phase in evidence.phases if phase.name == "warmup"]
    bin_s, drawn = analysis["bin_us"] / 1e6, bands(evidence)
    sentence = reading.over_time(analysis, metric, labels, [step["id"] for step in evidence.steps])
    named = [f"{band.fault} {band.start_s:.1f} to {band.end_s:.1f} s" for band in drawn[:BANDS_NAMED_MAX]]
    windows = ", ".join([*named, *([f"{len(drawn) - len(named)} more"] if len(drawn) > len(named) else [])])
    description = f"Panels: {'; '.join(bins)}. Fault bands: {windows or 'none'}. {sentence}"
    shown = dict(list(bins.items())[:PANELS_MAX])
    words = (f"{title} over time", description)
    svg = latency_svg(metric.replace(".", "-"), words, shown, drawn, bin_s, marks_s)
    caption = (
        f"Each point covers the records due in {bin_s:g} s (intended send time). {faults_caption(drawn)} "
        "A red tick marks a failed record; the dotted line is the end of warm-up."
    )
    left_out = len(bins) - len(shown)
    return Plot(svg, sentence, f"{caption} {left_out} more panels are in analysis.json." if left_out else caption)


def faults_caption(drawn: Sequence[Band]) -> str:
    if len(drawn) <= BANDS_DRAWN_MAX:
        return "Coloured bands are the faults, from inject to heal."
    return f"The marks above the chart are the {len(drawn)} faults, from inject to heal."


@dataclass(frozen=True)
class Spectrum:
    """A panel of the percentile spectrum (latency by percentile).

    ``lines`` maps a client to its points (quantile, latency) and number of records; ``thresholds_ms`` maps a quantile
    to the threshold of the SLO on that quantile.
    """

    title: str
    lines: Mapping[str, tuple[Sequence[Sequence[Any]], int]]
    thresholds_ms: Mapping[float, float]


def _spectrum(
    checks: Sequence[Check], analysis: Mapping[str, Any], labels: Mapping[str, str], metric: str
) -> Plot | None:
    """Draw latency spectra of the steady phase, of windows with an SLO, and of all faults; else of the whole run."""
    thresholds: dict[str, dict[float, float]] = {}  # by window; for each quantile the strictest
    for check in checks:
        slo = reading.SLO_QUANTILE.fullmatch(check.id)
        if slo and slo["metric"] == metric and check.threshold is not None and check.unit == "ms":
            of_window, q = thresholds.setdefault(check.phase or "run", {}), float(slo["q"]) / 100
            of_window[q] = min(check.threshold, of_window.get(q, check.threshold))

    rows = [row for row in analysis.get("spectra", ()) if row["metric"] == metric and row["points"]]
    measured = {row["window"] for row in rows}
    phases = [window for window in ("steady", "fault", "run") if window in measured]
    with_slo = [window for window in thresholds if window in measured - {"steady"}]
    windows = [*dict.fromkeys([*phases[:1], *with_slo, *phases[:2]])][:3]
    if not windows:
        return None
    counts = {(row["client"], row["window"]): row["n"] for row in analysis["distributions"] if row["metric"] == metric}
    keys = [*labels][:LINES_MAX]
    drawn = [
        Spectrum(
            "after warm-up" if window == "run" else window,
            {
                labels[row["client"]]: (row["points"], counts.get((row["client"], window), 0))
                for row in rows
                if row["window"] == window and row["client"] in keys
            },
            thresholds.get(window, {}),
        )
        for window in windows
    ]
    sentence = reading.spectrum(analysis, metric, labels)
    clients = [labels[key] for key in keys]
    words = (f"{METRICS[metric][0]} by percentile", f"{', '.join(windows)}: {', '.join(clients)}. {sentence}")
    caption = (
        "A curve shows the latency that a share of the records exceeds; this share falls tenfold from tick to tick. "
        "A curve is grey where fewer than ten records are slower, because no SLO is decided there. Red steps are the "
        "window's SLOs; a red mark at the top shows failed records, which count as slower than any latency."
    )
    caption += f" {len(labels) - len(keys)} more clients are in analysis.json." if len(labels) > len(keys) else ""
    svg = spectrum_svg(f"{metric.replace('.', '-')}-spectrum", words, drawn, clients)
    return Plot(svg, sentence, caption)


def spectrum_svg(name: str, words: tuple[str, str], panels: Sequence[Spectrum], labels: Sequence[str]) -> Markup:
    """Draw the panels of a spectrum side by side on one scale; a client has the same colour and dash in each panel."""
    styles = {label: LINES[index % len(LINES)] for index, label in enumerate(labels)}
    with drawing(10.0, 3.6) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_spectrum(axis, panel, styles)
        axes[0].set_ylabel("ms")
        longest = max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
        legend(figure, longest, 4)
        return rendered(figure, name, *words)


def _draw_spectrum(axis: Axes, panel: Spectrum, styles: Mapping[str, Any]) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    reach = 10.0
    for label, (all_points, n) in panel.lines.items():
        colour, dash = styles[label]
        points = [(q, us) for q, us in all_points if n * (1 - q) >= 1]  # beyond that there is only the slowest record
        solid = [(nines(q), ms(us)) for q, us in points if n * (1 - q) >= ENOUGH_BEYOND]
        grey = solid[-1:] + [(nines(q), ms(us)) for q, us in points if n * (1 - q) < ENOUGH_BEYOND]
        axis.plot(
            [x for x, _ in solid], [y for _, y in solid], color=colour, linestyle=dash, linewidth=1.4, label=label
        )
        axis.plot([x for x, _ in grey], [y for _, y in grey], color=GREY, linestyle=dash, linewidth=0.8, alpha=0.7)
        censored = [nines(q) for q, us in points if us is None]
        if censored:
            axis.plot(censored[:1], [0.97], "v", color=FAILED, markersize=4, transform=axis.get_xaxis_transform())
        reach = max([reach, *(nines(q) for q, _ in points)])
    if panel.thresholds_ms:
        # Each threshold is drawn up to its quantile, then the next threshold.
        quantiles = sorted(panel.thresholds_ms)
        ends, values = [min(nines(q), reach) for q in quantiles], [panel.thresholds_ms[q] for q in quantiles]
        axis.stairs(values, [1.0, *ends], color=FAILED, linewidth=1, label="SLO", baseline=None)
        for end, value in zip(ends, values, strict=True):
            axis.plot([end], [value], "|", color=FAILED, markersize=9)
    ticks = [tick for tick in NINES if tick <= reach * 1.01]
    axis.set_xticks(ticks, [NINES[tick] for tick in ticks])
    axis.set_xlim(1, reach * 1.05)
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.minorticks_off()
    plain(axis, short(panel.title, 60))


def nines(q: float) -> float:
    """Return the position of a quantile on the spectrum's axis, such as 10 for p90 and 100 for p99."""
    return 1 / (1 - q) if q < 1 else 1e12


def lag(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> Plot | None:
    """Return the chart of consumer lag and freshness; None without consumers, or if an older version judged the run."""
    # By client, its seconds: (at_us, records, oldest_us).
    lines: dict[str, Sequence[Sequence[int]]] = {
        labels.get(row["client"], row["client"]): row["seconds"] for row in analysis.get("lag", ()) if row["seconds"]
    }
    if not lines:
        return None
    sentence = reading.lag(lines)
    drawn, shown = bands(evidence), list(lines.items())[:LINES_MAX]
    with drawing(10.0, 4.2) as figure:
        records_axis, freshness_axis = figure.subplots(2, 1, sharex=True)
        for (label, seconds), (colour, dash) in zip(shown, LINES, strict=False):
            # Of each stretch the worst second, if there are more seconds than a line can show: 2000 of all lines.
            stretch = max(1, -(-len(seconds) // (2000 // len(shown))))
            points = [max(seconds[at : at + stretch], key=lambda row: row[1]) for at in range(0, len(seconds), stretch)]
            at_s = [row[0] / 1e6 for row in points]
            records, ages_s = [row[1] for row in points], [(row[2] or 0) / 1e6 for row in points]
            records_axis.plot(at_s, records, color=colour, linestyle=dash, linewidth=1.2, label=label)
            freshness_axis.plot(at_s, ages_s, color=colour, linestyle=dash, linewidth=1.2)
        for axis in (records_axis, freshness_axis):
            backdrop(axis, drawn, ())
        freshness_axis.margins(x=0.01)
        pad = 4 + LEVEL_POINTS * name_bands(records_axis, drawn)
        plain(records_axis, "lag: records acknowledged and not yet delivered", pad)
        plain(freshness_axis, "freshness: age of the oldest undelivered record")
        records_axis.set_ylabel("records")
        freshness_axis.set_ylabel("s")
        time_axis(freshness_axis)
        legend(figure, records_axis, 4)
        svg = rendered(figure, "lag", "Lag and freshness of consumers", sentence)
    caption = "Lag and freshness are measured at the end of each second, over the records acknowledged until then."
    caption += f" {len(lines) - len(shown)} more consumers are in analysis.json." if len(lines) > len(shown) else ""
    return Plot(svg, sentence, caption)


@dataclass(frozen=True)
class Compared:
    """Ratio of two arms with its name; ``low`` and ``high`` are the ends of the confidence interval, if known."""

    name: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str


def forest(rows: Sequence[Compared]) -> Plot | None:
    """Return the forest plot of ratios of arms, one row per ratio and the first on top; None without ratios."""
    if not rows:
        return None
    sentence = reading.forest([row.verdict for row in rows])
    with drawing(10.0, 0.9 + 0.34 * len(rows)) as figure:
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
        axis.set_xlabel("ratio of two arms; below 1 the first arm has the lower value")
        plain(axis, "")
        axis.grid(visible=True, axis="x", color=GREY, alpha=0.2, linewidth=0.5)
        values = "; ".join(f"{row.name}: {row.ratio:.3g}, {row.verdict}" for row in rows)
        svg = rendered(figure, "comparisons", "Comparisons of arms", f"{values}. {sentence}")
    caption = (
        "Each square is the ratio of two arms, with its confidence interval as a line; the dotted line is a ratio of 1."
    )
    return Plot(svg, sentence, caption)


LANES_MAX = 60
"""Lanes of a chart; the page says how many partitions are left out."""
_NUMBERED_SHARE_MIN = 0.03
"""Share of the chart's width from which a member's number is written on its lane."""


def ownership(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[Plot]:
    """Return a chart for each group of several members; ``labels`` maps clients to their names."""
    groups = [client for client in evidence.clients if client.consumes_from and client.members > 1]
    return [
        _ownership_chart(evidence, client, owned, labels.get(client.key, client.key), sentence, number)
        for number, client in enumerate(groups)
        if (owned := tenures(evidence, client))
        and (sentence := reading.ownership(rebalances_of(analysis, client), longest_ownerless_us(analysis, client)))
    ]


def _ownership_chart(
    evidence: Evidence,
    client: Client,
    owned: Sequence[Tenure],
    label: str,
    sentence: str,
    number: int,
) -> Plot:
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    places = sorted({tenure.place for tenure in owned})
    shown = places[:LANES_MAX]
    height = {place: index for index, place in enumerate(shown)}
    members = {worker: index for index, worker in enumerate(client.workers("consume"))}
    drawn = bands(evidence)
    with drawing(10.0, 1.3 + 0.19 * len(shown)) as figure:
        axis = figure.subplots()
        axis.set_xlim(0, max(end_us, 1) / 1e6)
        for tenure in owned:
            if tenure.place in height and tenure.start_us < end_us:
                lane, member = height[tenure.place], members[tenure.worker]
                start_s, end_s = tenure.start_us / 1e6, min(tenure.end_us, end_us) / 1e6
                axis.hlines(lane, start_s, end_s, colors=LINES[member % len(LINES)][0], linewidth=10)
                if end_s - start_s >= _NUMBERED_SHARE_MIN * axis.get_xlim()[1]:
                    beside: Any = {"xytext": (2, 0), "textcoords": "offset points"}
                    text = f"{member + 1}"
                    axis.annotate(text, (start_s, lane), **beside, fontsize=8, va="center_baseline", gid=ON_COLOUR)
                else:
                    axis.plot([start_s], [lane], "|", color=GREY, markersize=8)
        backdrop(axis, drawn, ())
        names = [f"{topic}/{partition}" for topic, partition in shown]
        axis.set_yticks(range(len(shown)), [short(name, 30) for name in names], parse_math=False, fontsize=8)
        axis.set_ylim(len(shown) - 0.4, -0.6)
        plain(axis, short(f"owners of the partitions, {label}", 80), 4 + LEVEL_POINTS * name_bands(axis, drawn))
        axis.grid(visible=False)
        time_axis(axis)
        handles = [Line2D([], [], color=LINES[index % len(LINES)][0], linewidth=6) for index in members.values()]
        texts = [f"member {index + 1}" for index in members.values()]
        figure.legend(handles, texts, loc="outside lower left", ncols=8, frameon=False, handlelength=1.2)
        svg = rendered(figure, f"ownership-{number}", f"Owners of the partitions, {label}", sentence)
    caption = (
        "A lane is coloured, and numbered, by the member that owns the partition, from `assigned` to `revoked`, `lost` "
        f"or its death; a gap has no owner. {faults_caption(drawn)}"
    )
    left_out = len(places) - len(shown)
    return Plot(svg, sentence, f"{caption} {left_out} more partitions are in events.jsonl." if left_out else caption)
