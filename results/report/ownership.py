"""Ownership lanes of a consumer group: a lane for each partition, coloured over time by the member that owns it."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D

from aftershock.results.checks.findings.ownership import Tenure, tenures
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.explain.rebalances import Rebalance, longest_ownerless_us, of_client
from aftershock.results.report.plots import Plot, faults_caption
from aftershock.results.report.svg import (
    GREY,
    LEVEL_POINTS,
    LINES,
    ON_COLOUR,
    backdrop,
    bands,
    drawing,
    name_bands,
    plain,
    rendered,
    short,
    time_axis,
)

LANES_MAX = 60
"""Lanes of a chart; the page says how many partitions are left out."""
_NUMBERED_SHARE_MIN = 0.03
"""Share of the chart's width from which a member's number is written on its lane."""


def charts(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> list[Plot]:
    """Return a chart for each group of several members; ``labels`` maps clients to their names."""
    groups = [client for client in evidence.clients if client.consumes_from and client.members > 1]
    return [
        _chart(evidence, client, owned, labels.get(client.key, client.key), sentence, number)
        for number, client in enumerate(groups)
        if (owned := tenures(evidence, client))
        and (sentence := reading(of_client(analysis, client), longest_ownerless_us(analysis, client)))
    ]


def _chart(
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
                _draw(axis, tenure, height[tenure.place], members[tenure.worker], end_us)
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


def _draw(axis: Any, tenure: Tenure, lane: int, member: int, end_us: int) -> None:
    start_s, end_s = tenure.start_us / 1e6, min(tenure.end_us, end_us) / 1e6
    colour = LINES[member % len(LINES)][0]
    axis.hlines(lane, start_s, end_s, colors=colour, linewidth=10)
    if end_s - start_s >= _NUMBERED_SHARE_MIN * axis.get_xlim()[1]:
        beside: Any = {"xytext": (2, 0), "textcoords": "offset points"}
        axis.annotate(f"{member + 1}", (start_s, lane), **beside, fontsize=8, va="center_baseline", gid=ON_COLOUR)
    else:
        axis.plot([start_s], [lane], "|", color=GREY, markersize=8)


def reading(rebalances: Sequence[Rebalance], ownerless_us: int = 0) -> str:
    """Return a sentence about a group's rebalances and its longest wait without a delivering owner."""
    parts = ["The group did not rebalance"]
    if rebalances:
        longest_s = max(row["end_us"] - row["start_us"] for row in rebalances) / 1e6
        parts = [f"{len(rebalances)} rebalances, the longest took {longest_s:.1f} s"]
    kept = [row["kept_us"] for row in rebalances if row["kept_us"] is not None]
    again = sum(change["again"] for row in rebalances for change in row["moved"])
    parts += [f"a record waited up to {ownerless_us / 1e6:.1f} s without a delivering owner"] if ownerless_us else []
    parts += [f"partitions that kept their owner stood still for up to {max(kept) / 1e6:.1f} s"] if kept else []
    parts += [f"{again} records were delivered again"] if again else []
    return "; ".join(parts) + "."
