"""The run on one time axis: lanes of what happened when, and charts of latency and lag.

::

    phases        | warm-up     | steady   |      | recovery  |
    kill-leader                            |######|
    stopped                                 |===|
    orders/0      | broker 2               | broker 3         |
    ms            .__._._._.__.__._.__.__._###.__._._.__.___.

Lanes are plain HTML: a span of time is a box with its text, placed by two custom properties in seconds (``--a``,
``--b``) on an axis that is two more of its container (``--from``, ``--len``). So a lane is complete without scripts,
and ``report.js`` zooms all of them by changing two numbers. Charts are drawn by uPlot (``uplot/``) from numbers alone
(``Timeline.data``); each has its sentence (``reading.py``) and a table of the same figures for readers without them.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from aftershock.results.checks.findings.ownership import tenures
from aftershock.results.evidence.absences import absences, unplanned_absences
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.explain.chapter import AFTERMATH, ERRORS, longest_ownerless_us, rebalances_of
from aftershock.results.explain.events import event, forces, parameters_text
from aftershock.results.explain.leaders import Reign, reigns
from aftershock.results.explain.record import Tale
from aftershock.results.model.text import milliseconds
from aftershock.results.report import reading
from aftershock.results.report.svg import CALM, FAILED, GREY, LINES, SLOW, WORST, colours

LANES_MAX, SPANS_MAX = 60, 300
"""Lanes of a group, and spans of a lane; a note says how many are left out."""
PANELS_MAX, POINTS_MAX, LAG_POINTS_MAX, ROWS_MAX = 8, 1000, 2000, 24
"""Charts of a metric, points of a chart, points of all lines of a chart of lag, and rows of the table of a chart."""
OPEN_LANES_MAX = 12
"""Lanes of a group that is unfolded at first."""
BUCKETS = 200
"""Parts of the axis; the events of a client in one of them share a mark."""
METRICS = {
    "produce.latency": ("Produce latency", "producer"),
    "consume.latency": ("End-to-end latency", "consumer"),
    "pipe.latency": ("Latency to the output", "service"),
    "commit.latency": ("Commit latency", "committer"),
}
_TOLD = {*ERRORS, *AFTERMATH, "hint_accepted", "replica_switched", "rebootstrapped", "restarted", "stalled"}

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Span:
    """Span of time of a lane, in seconds of the run, with its text; ``kind`` is its style (``page.css``).

    ``colour`` is one of the constants of ``svg.py``; ``story`` is the id of the element of the page that tells more.
    """

    start_s: float
    end_s: float
    text: str
    kind: str = ""
    colour: str = ""
    story: str = ""
    row: int = 0


@dataclass(frozen=True)
class Lane:
    """Lane of spans; if they overlap each other, each has a ``row`` of its own in a lane of several ``rows``."""

    name: str
    spans: Sequence[Span]
    left_out: int = 0
    rows: int = 1


@dataclass(frozen=True)
class Chart:
    """Chart of one client; ``number`` is its place in ``Timeline.data``, ``rows`` the table of the same figures."""

    name: str
    number: int
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Group:
    """Lanes and charts with one title; ``reading`` is a sentence about the run, ``caption`` explains the marks.

    ``legend`` has the colour and the name of each line of the charts or colour of the lanes.
    """

    title: str
    lanes: Sequence[Lane] = ()
    charts: Sequence[Chart] = ()
    reading: str = ""
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()
    open: bool = True
    texts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Timeline:
    """Groups of lanes and charts from 0 to ``end_s``; ``data`` is what the script draws, as JSON for ``<script>``."""

    end_s: float
    groups: Sequence[Group]
    data: Markup


@dataclass
class _Charts:
    """Numbers of the charts, in the order of their places in the page."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **chart: Any) -> int:
        self.rows.append(chart)
        return len(self.rows) - 1


def timeline(
    evidence: Evidence,
    analysis: Mapping[str, Any],
    labels: Mapping[str, str],
    *,
    chapters: Mapping[str, str],
    slowest: Sequence[tuple[Tale, str]],
    failed: Sequence[tuple[int, str, str]],
) -> Timeline:
    """Return the timeline of a judged run.

    ``labels`` maps clients to their names, in the order of the charts; ``chapters`` maps faults to the id of their
    story; ``slowest`` has records with that of theirs; ``failed`` has the time in us, the text and the id of each check
    that did not pass and is about one moment.
    """
    marks = evidence.run.get("marks") or {}
    ends_us = [phase.end_us for phase in evidence.phases] + [line["t_us"] for line in evidence.journal]
    end_us = max([1_000_000, marks.get("load_end_us") or 0, *ends_us])
    charts = _Charts()
    groups = [
        _what_happened(evidence, analysis, labels, end_us, chapters, slowest, failed),
        *latencies(evidence, analysis, labels, charts),
        *lag(analysis, labels, charts),
        *stable_offsets(analysis, labels, charts),
        *owners(evidence, analysis, labels, end_us),
        *leaders(evidence, end_us),
    ]
    painted = colours(evidence)
    bands = [
        [force.window_us[0] / 1e6, force.window_us[1] / 1e6, painted.get(force.fault, GREY)]
        for force in forces(evidence)
        if force.window_us
    ]
    data = {"end_s": end_us / 1e6, "bands": bands[:SPANS_MAX], "charts": charts.rows}
    return Timeline(end_us / 1e6, [group for group in groups if group.lanes or group.charts], script_data(data))


def script_data(data: object) -> Markup:
    """Return JSON that is safe inside a ``<script>``, which ends at ``</script`` and changes its rules at ``<!--``."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # only ASCII
    for special in "<>&":
        text = text.replace(special, f"\\u{ord(special):04x}")
    return Markup(text)  # noqa: S704 - escaped above


def _times(start_us: float, end_us: float) -> str:
    return f"{start_us / 1e6:.1f} to {end_us / 1e6:.1f} s"


def _lane(name: str, spans: Iterable[Span]) -> Lane:
    """Return a lane of the longest spans, in order of time."""
    found = sorted(spans, key=lambda span: span.start_s - span.end_s)
    kept = sorted(found[:SPANS_MAX], key=lambda span: span.start_s)
    return Lane(name, kept, len(found) - len(kept))


def _what_happened(
    evidence: Evidence,
    analysis: Mapping[str, Any],
    labels: Mapping[str, str],
    end_us: int,
    chapters: Mapping[str, str],
    slowest: Sequence[tuple[Tale, str]],
    failed: Sequence[tuple[int, str, str]],
) -> Group:
    """Return the lanes of faults, phases, brokers away, stalls, groups, slow records, failed checks and events."""
    painted, steps = colours(evidence), {step["id"]: step for step in evidence.steps}
    by_entry: dict[str, list[Span]] = {}
    for force in forces(evidence):
        if force.window_us is None:
            continue
        start_us, end_of_us = force.window_us
        step = steps.get(force.fault, {})
        what = ", ".join(filter(None, (force.kind, parameters_text(step))))
        text = f"{force.fault}: {what}, {_times(start_us, end_of_us)}"
        span = Span(start_us / 1e6, end_of_us / 1e6, text, "fault", painted.get(force.fault, GREY))
        span = Span(**vars(span) | {"story": chapters.get(force.fault, "")})
        by_entry.setdefault(str(step.get("entry") or force.fault), []).append(span)
    lanes = [_lane(entry if len(spans) == 1 else f"{entry} x{len(spans)}", spans) for entry, spans in by_entry.items()]
    lanes = lanes[:LANES_MAX]

    quiet = [phase for phase in evidence.phases if phase.fault is None]
    phases = [
        Span(p.start_us / 1e6, p.end_us / 1e6, f"{p.name}, {_times(p.start_us, p.end_us)}", f"phase {p.name}")
        for p in quiet
        if p.name in ("warmup", "steady", "recovery")
    ]
    lanes.append(_lane("phases", phases))

    by_itself = set(unplanned_absences(evidence))
    away = [
        Span(
            absence.left_us / 1e6,
            (absence.back_us or end_us) / 1e6,
            str(absence) if absence in by_itself else f"broker {absence.broker} was away while a fault touched it",
            "away alarm" if absence in by_itself else "away",
        )
        for absence in absences(evidence)
    ]
    lanes.append(_lane("brokers away", away))
    lanes += _stalls(analysis, labels)
    lanes += _group_events(evidence, analysis, labels)
    ticks = [
        Span(
            tale.record.intended_us / 1e6,
            (tale.record.done_us if tale.record.done_us is not None else end_us) / 1e6,
            f"{tale.record.name} {tale.record.op}: "
            + ("never ended" if tale.record.latency_us is None else f"{milliseconds(tale.record.latency_us)} ms"),
            "slow" if tale.record.status == "ok" else "slow alarm",
            story=story,
            row=row,
        )
        for row, (tale, story) in enumerate(sorted(slowest, key=lambda pair: pair[0].record.intended_us))
    ]
    lanes.append(Lane("slowest records", ticks, rows=len(ticks)))
    at_once = [Span(at_us / 1e6, at_us / 1e6, text, "mark alarm", story=story) for at_us, text, story in failed]
    lanes.append(_lane("checks not passed", at_once))
    lanes += _events(evidence, labels, end_us)
    caption = (
        "A fault lasts from inject to healed. A client or partition stopped if records waited for a second or longer "
        "and none succeeded; dark spans are the client as a whole, light ones single partitions."
    )
    return Group("What happened when", [lane for lane in lanes if lane.spans], caption=caption)


def _short(labels: Mapping[str, str], client: str) -> str:
    return labels.get(client, client).replace("arm=", "").replace("workload=", "")


def _stalls(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Lane]:
    by_lane: dict[tuple[str, str], list[Span]] = {}
    for row in analysis.get("stalls", ()):
        who = f"{labels.get(row['client'], row['client'])} {row['side']}"
        where = "" if row["partition"] is None else f", {row.get('topic') or 'partition'}/{row['partition']}"
        length_s = (row["end_us"] - row["start_us"]) / 1e6
        text = f"{length_s:.1f} s without a success: {who}{where}, {_times(row['start_us'], row['end_us'])}"
        kind = "stall" if row["partition"] is None else "stall part"
        by_lane.setdefault((row["client"], row["side"]), []).append(
            Span(row["start_us"] / 1e6, row["end_us"] / 1e6, text, kind)
        )
    for (client, side), spans in sorted(by_lane.items()):
        yield _lane(f"{side} stopped: {_short(labels, client)}", spans)


def _group_events(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Lane]:
    for client in evidence.clients:
        spans = []
        for row in rebalances_of(analysis, client):
            changes = f"{len(row['moved'])} partitions moved, {row['returned']} returned"
            text = f"rebalance: {changes}, {_times(row['start_us'], row['end_us'])}"
            spans.append(Span(row["start_us"] / 1e6, row["end_us"] / 1e6, text, "rebalance"))
        yield _lane(f"rebalances: {_short(labels, client.key)}", spans)


def _events(evidence: Evidence, labels: Mapping[str, str], end_us: int) -> Iterator[Lane]:
    """Yield a lane of marks for each side of each client that reported errors or decisions."""
    width_us = max(1, end_us // BUCKETS)
    buckets: dict[tuple[str, str], dict[int, list[Mapping[str, Any]]]] = {}
    for line in evidence.events:
        if line.get("event") in _TOLD and line.get("op") and isinstance(line.get("t_us"), int | float):
            who = f"{line.get('workload')}/{line.get('arm')}", str(line["op"])
            buckets.setdefault(who, {}).setdefault(int(line["t_us"] // width_us), []).append(line)
    for (client, side), of_lane in sorted(buckets.items()):
        spans = []
        for lines in of_lane.values():
            first = min(lines, key=lambda line: line["t_us"])
            more = f", and {len(lines) - 1} more events" if len(lines) > 1 else ""
            alarm = " alarm" if any(line["event"] in ERRORS for line in lines) else ""
            at_s = first["t_us"] / 1e6
            spans.append(Span(at_s, at_s, f"{at_s:.3f} s: {event(first)}{more}", f"mark{alarm}"))
        yield _lane(f"{side} events: {_short(labels, client)}", spans)


def worst(rows: Sequence[Any], most: int, worse: Any) -> list[Any]:
    """Return at most ``most`` rows: of each stretch of equal length the worst."""
    stretch = max(1, -(-len(rows) // most))
    return [max(rows[at : at + stretch], key=worse) for at in range(0, len(rows), stretch)]


def panels(bins: Rows, labels: Mapping[str, str], role: str) -> Mapping[str, Rows]:
    """Group a chart's bins of time by panel, which is named like ``arm=a, producer in rack b``."""
    by_panel: dict[str, list[Mapping[str, Any]]] = {}
    for key, label in labels.items():
        for row in (row for row in bins if row["client"] == key):
            where = f", {role} in rack {row['rack']}" if row.get("rack") else ""
            by_panel.setdefault(f"{label}{where}", []).append(row)
    return by_panel


def latencies(
    evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str], charts: _Charts
) -> Iterator[Group]:
    """Yield a group for each observed metric, with a chart for each client and its rack."""
    bin_s = analysis["bin_us"] / 1e6
    for metric, (title, role) in METRICS.items():
        of_metric = panels([row for row in analysis["bins"] if row["metric"] == metric], labels, role)
        drawn = []
        for name, rows in list(of_metric.items())[:PANELS_MAX]:
            bins = worst(rows, POINTS_MAX, _slowness)
            points = list(_with_gaps(bins, 2.5 * analysis["bin_us"] * max(1, len(rows) // POINTS_MAX)))
            number = charts.add(
                log=True,
                family=metric,
                x=[round(row["start_us"] / 1e6 + bin_s / 2, 3) for row in points],
                y=[[_ms(row[key]) for row in points] for key in ("slowest_us", "p99_us", "p50_us")],
                names=["max", "p99", "p50"],
                colours=[WORST, SLOW, CALM],
                n=[row["n"] for row in points],
                failed=[row["censored"] for row in points],
            )
            table = [
                (
                    f"{row['start_us'] / 1e6:.0f}",
                    *(str(row[key]) for key in ("n", "censored")),
                    *(milliseconds(row[key]) for key in ("p50_us", "p99_us", "slowest_us")),
                )
                for row in worst(bins, ROWS_MAX, _slowness)
            ]
            drawn.append(Chart(name, number, ("from, s", "records", "failed", "p50, ms", "p99, ms", "max, ms"), table))
        if drawn:
            left_out = len(of_metric) - len(drawn)
            caption = (
                f"Each point covers the records due in {bin_s:g} s (intended send time). Coloured bands are faults. "
                "A red tick at the top marks records that failed; p99 has a gap there if more than 1 in 100 did."
            )
            caption += f" {left_out} more panels are in analysis.json." if left_out else ""
            sentence = reading.over_time(analysis, metric, labels, [step["id"] for step in evidence.steps])
            legend = ((CALM, "p50"), (SLOW, "p99"), (WORST, "max"), (FAILED, "failed"))
            yield Group(f"{title}, in ms", (), drawn, sentence, caption, legend)


def _with_gaps(bins: Rows, apart_us: float) -> Iterator[Mapping[str, Any]]:
    """Yield the bins of a chart, and an empty one between two that are further apart, for want of records."""
    before_us = None
    for row in bins:
        if before_us is not None and row["start_us"] - before_us > apart_us:
            empty = dict.fromkeys(("slowest_us", "p99_us", "p50_us"))
            yield {"start_us": (row["start_us"] + before_us) / 2, "n": 0, "censored": 0, **empty}
        before_us = row["start_us"]
        yield row


def _slowness(row: Mapping[str, Any]) -> tuple[int, float]:
    return row["censored"], row["slowest_us"] or 0


def _ms(value_us: int | None) -> float | None:
    """Return a latency in ms, at least 1 us for the log axis; None if censored, which leaves a gap in the line."""
    return None if value_us is None else float(f"{max(value_us, 1) / 1e3:.4g}")


def lag(analysis: Mapping[str, Any], labels: Mapping[str, str], charts: _Charts) -> Iterator[Group]:
    """Yield the charts of consumer lag and freshness; none if an older version judged the run."""
    # By client, its seconds: (at_us, records, oldest_us).
    lines: dict[str, Sequence[Sequence[int]]] = {
        labels.get(row["client"], row["client"]): row["seconds"] for row in analysis.get("lag", ()) if row["seconds"]
    }
    if not lines:
        return
    shown = dict(list(lines.items())[:PANELS_MAX])
    drawn = []
    for label, seconds in shown.items():
        points = worst(seconds, max(1, LAG_POINTS_MAX // len(shown)), lambda row: row[1])
        at_s = [round(row[0] / 1e6, 3) for row in points]
        records, ages_s = [row[1] for row in points], [round((row[2] or 0) / 1e6, 3) for row in points]
        table = [
            (f"{row[0] / 1e6:.0f}", str(row[1]), f"{(row[2] or 0) / 1e6:.3g}")
            for row in worst(points, ROWS_MAX, lambda row: row[1])
        ]
        columns = ("at, s", "records", "oldest, s")
        for number, (what, values) in enumerate((("records", records), ("age of the oldest, s", ages_s))):
            place = charts.add(log=False, family=what, x=at_s, y=[values], names=[what], colours=[LINES[number][0]])
            drawn.append(Chart(f"{label}: {what}", place, columns, () if number else table))
    caption = (
        "Lag and freshness are measured at the end of each second: how many records were acknowledged and not yet "
        "delivered, and the age of the oldest of them."
    )
    caption += f" {len(lines) - len(shown)} more consumers are in analysis.json." if len(lines) > len(shown) else ""
    yield Group("Lag and freshness", (), drawn, reading.lag(lines), caption)


def stable_offsets(analysis: Mapping[str, Any], labels: Mapping[str, str], charts: _Charts) -> Iterator[Group]:
    """Yield the charts of how far readers of committed records are behind; none without transactions."""
    lines: dict[str, Sequence[Sequence[int]]] = {
        labels.get(row["client"], row["client"]): row["seconds"] for row in analysis.get("stable_lag", ())
    }
    lines = {label: seconds for label, seconds in lines.items() if seconds}
    drawn = []
    for label, seconds in list(lines.items())[:PANELS_MAX]:
        points = worst(seconds, max(1, LAG_POINTS_MAX // min(len(lines), PANELS_MAX)), lambda row: row[2])
        x, y = [round(row[0] / 1e6, 3) for row in points], [round(row[2] / 1e6, 3) for row in points]
        what = "age of the oldest, s"
        place = charts.add(log=False, family=what, x=x, y=[y], names=[what], colours=[LINES[1][0]])
        table = [
            (f"{at_us / 1e6:.0f}", str(records), f"{age_us / 1e6:.3g}")
            for at_us, records, age_us in worst(points, ROWS_MAX, lambda row: row[2])
        ]
        drawn.append(Chart(f"{label}: {what}", place, ("at, s", "offsets", "oldest, s"), table))
    if drawn:
        caption = (
            "For how long the oldest record above a last stable offset has been in the log, in the worst partition of "
            "the client's transactions: readers of committed records can't read it yet."
        )
        yield Group("Last stable offsets", (), drawn, reading.stable_offsets(lines), caption)


def owners(evidence: Evidence, analysis: Mapping[str, Any], labels: Mapping[str, str], end_us: int) -> Iterator[Group]:
    """Yield the lanes of each consumer group of several members: who owned each partition when."""
    for client in evidence.clients:
        if client.consumes_from and client.members > 1 and (group := _owners_of(evidence, client, labels, end_us)):
            sentence = reading.ownership(rebalances_of(analysis, client), longest_ownerless_us(analysis, client))
            yield Group(**vars(group) | {"reading": sentence})


def _owners_of(evidence: Evidence, client: Client, labels: Mapping[str, str], end_us: int) -> Group | None:
    members = {worker: index for index, worker in enumerate(client.workers("consume"))}
    by_place: dict[tuple[str, int], list[Span]] = {}
    for tenure in tenures(evidence, client):
        if tenure.start_us < end_us:
            number, until_us = members[tenure.worker], min(tenure.end_us, end_us)
            place = "/".join(map(str, tenure.place))
            how = f", then {tenure.ended}" if tenure.ended else ""
            text = f"{number + 1}: member {number + 1} owned {place} {_times(tenure.start_us, until_us)}{how}"
            colour = LINES[number % len(LINES)][0]
            by_place.setdefault(tenure.place, []).append(
                Span(tenure.start_us / 1e6, until_us / 1e6, text, "owner", colour)
            )
    if not by_place:
        return None
    places = sorted(by_place)
    lanes = [_lane(f"{topic}/{partition}", by_place[topic, partition]) for topic, partition in places[:LANES_MAX]]
    left_out = len(places) - len(lanes)
    caption = (
        "A lane is coloured, and numbered, by the member that owns the partition, from `assigned` to `revoked`, `lost` "
        "or its death; a gap has no owner."
    )
    return Group(
        f"Owners of the partitions, {labels.get(client.key, client.key)}",
        lanes,
        caption=caption + (f" {left_out} more partitions are in events.jsonl." if left_out else ""),
        legend=[(LINES[index % len(LINES)][0], f"member {index + 1}") for index in members.values()],
        open=len(lanes) <= OPEN_LANES_MAX,
        texts=[(lane.name, "; ".join(span.text.partition(": ")[2] for span in lane.spans)) for lane in lanes],
    )


def leaders(evidence: Evidence, end_us: int) -> Iterator[Group]:
    """Yield the lanes of the partitions' leaders, with the times in which a replica was out of sync."""
    found = reigns(evidence)
    brokers = sorted({reign.leader for of_place in found.values() for reign in of_place if reign.leader is not None})
    painted = {broker: LINES[index % len(LINES)][0] for index, broker in enumerate(brokers)}
    out = _out_of_sync(evidence, end_us)
    # if not all partitions are shown, those whose leader changed come first
    order = sorted(found, key=lambda place: len(found) > LANES_MAX and len(found[place]) == 1)[:LANES_MAX]
    lanes, texts = [], []
    for place in order:
        name = "/".join(map(str, place))
        during = [reign for reign in found[place] if reign.start_us < end_us and reign.end_us > 0]
        led = [
            Span(
                max(reign.start_us, 0) / 1e6,
                min(reign.end_us, end_us) / 1e6,
                f"{reign.leader if reign.leader is not None else '-'}: {reign}, "
                + _times(max(reign.start_us, 0), min(reign.end_us, end_us)),
                "leader" if reign.leader is not None else "leader none",
                painted.get(reign.leader, "") if reign.leader is not None else "",
            )
            for reign in during
        ]
        lanes.append(_lane(name, [*led, *out.get(name, ())]))
        texts.append((name, _told(during)))
    left_out = len(found) - len(lanes)
    caption = (
        "A lane is coloured, and numbered, by the broker that leads the partition; a red line below marks the time in "
        "which a replica was out of sync. Leaders are those of leaders.jsonl; replicas are watched twice a second."
    )
    yield Group(
        "Leaders of the partitions",
        lanes,
        caption=caption + (f" {left_out} more partitions are in leaders.jsonl." if left_out else ""),
        legend=[(painted[broker], f"broker {broker}") for broker in brokers],
        open=len(lanes) <= OPEN_LANES_MAX,
        texts=texts,
    )


def _told(of_place: Sequence[Reign]) -> str:
    return "; ".join(
        f"{f'from {reign.start_us / 1e6:.1f} s ' if reign.start_us > 0 else ''}{reign}"
        for reign in of_place[:SPANS_MAX]
    )


def _out_of_sync(evidence: Evidence, end_us: int) -> dict[str, list[Span]]:
    """Return, by partition (``orders/3``), the times in which a replica was out of sync.

    An event names at most twenty partitions (``harness/kafka/membership.py``).
    """
    spans: dict[str, list[Span]] = {}
    joined: dict[tuple[str, int], list[int]] = {}
    lines = sorted(
        (line for line in evidence.events if line.get("event") in ("isr_left", "isr_joined")),
        key=lambda line: line["t_us"],
    )
    for line in lines:
        if line["event"] == "isr_joined":
            for place in line.get("places") or ():
                joined.setdefault((str(place), line["broker"]), []).append(line["t_us"])
    for line in lines:
        if line["event"] == "isr_left":
            for place in map(str, line.get("places") or ()):
                times = joined.get((place, line["broker"]), [])
                at = bisect_right(times, line["t_us"])
                until_us = times[at] if at < len(times) else max(end_us, line["t_us"])
                text = f"broker {line['broker']} out of sync, {_times(line['t_us'], until_us)}"
                spans.setdefault(place, []).append(Span(line["t_us"] / 1e6, until_us / 1e6, text, "out"))
    return spans
