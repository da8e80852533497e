"""The lanes and charts of the report's timeline: what they say, what they leave out, and that they stay readable."""

import json
import re
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.leadership import Leadership
from aftershock.results.explain.leaders import leader_changes, leaders_between, reigns
from aftershock.results.report.svg import LINES
from aftershock.results.report.timeline import (
    LAG_POINTS_MAX,
    LANES_MAX,
    POINTS_MAX,
    ROWS_MAX,
    SPANS_MAX,
    Group,
    Span,
    leaders,
    owners,
    script_data,
    timeline,
)
from aftershock.tests.unit.results.checks.slo.stage import S, Stage, client
from aftershock.tests.unit.results.checks.test_ownership import event, group

CONTRAST_MIN = 4.5
"""Least contrast of text (WCAG 2.2, 1.4.3)."""
MEMBERS, PARTITIONS = 8, 24
EMPTY: dict[str, Any] = {"bins": (), "bin_us": S, "distributions": (), "recoveries": (), "gaps": ()}


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as ``#3b82c4`` or ``#000`` (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("partitions", [PARTITIONS, LANES_MAX + 1])
def test_each_lane_is_numbered_by_its_owners(partitions: int) -> None:
    """Of a group of eight members the first gives partition 0 up for the last; the text of a span begins with its
    member's number, and the table tells the same.
    """
    members = replace(client("a"), members=MEMBERS)
    workers = members.workers("consume")
    owned = [range(number, partitions, MEMBERS) for number in range(MEMBERS)]
    events = [event(1, worker, "assigned", *own) for worker, own in zip(workers, owned, strict=True)]
    events += [event(20, workers[0], "revoked", 0), event(21, workers[-1], "assigned", 0)]
    (found,) = owners(replace(group(*events), clients=(members,)), {}, {}, 40 * S)
    assert (partitions > LANES_MAX) == ("more partitions are in events.jsonl" in found.caption)
    numbers = [int(span.text.partition(":")[0]) for lane in found.lanes for span in lane.spans]
    expected = [partition % MEMBERS + 1 for partition in range(min(partitions, LANES_MAX))]
    assert sorted([*expected, MEMBERS]) == sorted(numbers)
    assert [(1.0, 20.0), (21.0, 40.0)] == [(span.start_s, span.end_s) for span in found.lanes[0].spans]
    assert "member 1 owned orders/0 1.0 to 20.0 s, then revoked; member 8 owned orders/0" in found.texts[0][1]


def test_the_numbers_are_readable_on_each_colour() -> None:
    css = resources.files("aftershock.results.report").joinpath("page.css").read_text()
    (fill,) = re.findall(
        r"^\.seg:is\(\.owner, \.leader\) \{ background: var\(--c\); color: (#\w+); \}", css, re.MULTILINE
    )
    for colour, _ in LINES:
        low, high = sorted([_luminance(fill), _luminance(colour)])
        assert (high + 0.05) / (low + 0.05) >= CONTRAST_MIN, colour


def led(partition: int, epoch: int, leader: int | None, by_s: float, topic: str = "orders") -> Leadership:
    by_us = int(by_s * S)
    return Leadership(topic, "t1", partition, epoch, leader, (1, 2, 3), False, 0, by_us - 1, by_us, ("polled",))


def led_run(*lines: Leadership, events: tuple[dict[str, Any], ...] = ()) -> Evidence:
    return replace(Stage().evidence(), leaders=lines, events=events)


def test_leaders_follow_each_other_and_replicas_fall_behind() -> None:
    """A lane has a span for each epoch, one without a leader, and a line while a replica is out of sync; a replica that
    never came back is out of sync until the end. Partitions and brokers of which nothing is said have neither.
    """
    events = (
        {"t_us": 21 * S, "event": "isr_left", "broker": 1, "n": 2, "places": ["orders/0", "orders/1"]},
        {"t_us": 30 * S, "event": "isr_joined", "broker": 1, "n": 1, "places": ["orders/0"]},
        {"t_us": 31 * S, "event": "isr_joined", "broker": 2, "n": 1, "places": ["orders/1"]},
    )
    evidence = led_run(
        led(0, 3, 1, -5), led(0, 4, None, 20), led(0, 5, 2, 22), led(1, 0, 2, 0), led(0, 0, 3, 0, "__consumer_offsets"),
        events=events,
    )  # fmt: skip
    (found,) = leaders(evidence, 40 * S)
    first, second, internal = found.lanes
    assert [(0.0, 20.0, "leader"), (20.0, 22.0, "leader none"), (21.0, 30.0, "out"), (22.0, 40.0, "leader")] == [
        (span.start_s, span.end_s, span.kind) for span in first.spans
    ]
    assert first.spans[0].text == "1: broker 1 leads (epoch 3, in sync: 1, 2, 3), 0.0 to 20.0 s"
    assert [(21.0, 40.0)] == [(span.start_s, span.end_s) for span in second.spans if span.kind == "out"]
    assert "__consumer_offsets/0" == internal.name
    assert 1 == len(internal.spans)
    (unknown,) = leaders(Stage().evidence(), 40 * S)
    assert not unknown.lanes


def test_the_story_names_changes_of_leaders() -> None:
    """Changes between the same brokers are told together; an epoch without another leader is none."""
    found = reigns(led_run(led(0, 3, 1, 0), led(0, 4, 2, 20), led(1, 7, 1, 0), led(1, 8, 2, 21), led(1, 9, 2, 22)))
    (change,) = leader_changes(found, 10 * S, 30 * S)
    assert "broker 2 leads orders/0 (epoch 4), orders/1 (epoch 8), after broker 1" == change.text
    assert 20 * S == change.at_us
    assert [] == [*leader_changes(found, 30 * S, 40 * S)]
    words = leaders_between(found["orders", 0], 19 * S, 21 * S)
    assert (
        "broker 1 leads (epoch 3, in sync: 1, 2, 3); from 20.000 s broker 2 leads (epoch 4, in sync: 1, 2, 3)" == words
    )
    assert "broker 2 leads (epoch 4, in sync: 1, 2, 3)" == leaders_between(found["orders", 0], 25 * S, 26 * S)


def test_data_can_not_end_its_script() -> None:
    hostile = {"a": "</script><!-- <script>\u2028&", "b": [None, 1.5]}
    text = script_data(hostile)
    assert hostile == json.loads(text)
    assert not re.search(r"[<>&\u2028]", text)
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_data(float("nan"))


def staged(end_s: int = 40) -> Evidence:
    evidence = Stage(end_s=end_s).evidence()
    steps = [step | {"kind": "kill"} for step in evidence.steps]
    return replace(evidence, timeline={**evidence.timeline, "steps": steps})


def _drawn(seconds: int, every_s: int = 1, gap: range = range(0)) -> tuple[dict[str, Any], Group, Group]:
    """Return the numbers and the groups of latency and of lag of a run of this length; no record is due in the gap."""
    bins = [
        {"metric": "produce.latency", "client": "orders/a", "rack": "a", "start_us": at * S, "n": 60, "censored": 0}
        | {"p50_us": 5000, "p99_us": 9000, "slowest_us": 700_000 if at == 77 else 12_000}
        for at in range(0, seconds, every_s)
        if at not in gap
    ]
    lag = [{"client": "orders/a", "seconds": [[at * S, 500 if at == 77 else 1, 10] for at in range(seconds)]}]
    measured = EMPTY | {"bins": bins, "bin_us": every_s * S, "lag": lag}
    drawn = timeline(staged(seconds), measured, {"orders/a": "arm=a"}, chapters={}, slowest=(), failed=())
    by_title = {group.title: group for group in drawn.groups}
    return json.loads(drawn.data), by_title["Produce latency, in ms"], by_title["Lag and freshness"]


def test_long_runs_keep_their_worst_moments() -> None:
    """Two hours have as many points as a chart shows and as many rows as a reader reads; the peaks are among them."""
    data, latency, lag = _drawn(7200)
    produced, records, ages = data["charts"]
    assert len(produced["x"]) <= POINTS_MAX
    assert len(records["x"]) == len(ages["x"]) <= LAG_POINTS_MAX
    assert 700.0 == max(produced["y"][0])
    assert 500 == max(records["y"][0])
    assert 7200 == data["end_s"]
    for chart in (latency.charts[0], lag.charts[0]):
        assert 0 < len(chart.rows) <= ROWS_MAX
    assert "700" in {row[-1] for row in latency.charts[0].rows}
    assert "500" in {row[1] for row in lag.charts[0].rows}
    assert len(json.dumps(data)) < 150_000


def test_a_time_without_records_is_a_gap() -> None:
    """Between the two points around it there is one without a value; evenly spaced points have none between."""
    (whole, *_), (gap, *_) = (_drawn(100, gap=range(*ends))[0]["charts"] for ends in ((0, 0), (40, 50)))
    assert None not in whole["y"][0]
    assert [44.75 + 0.25] == [at for at, value in zip(gap["x"], gap["y"][0], strict=True) if value is None]


def test_spans_that_are_left_out_are_counted() -> None:
    """The longest stay, in order of time."""
    stalls = [
        {"side": "produce", "client": "orders/a", "partition": at % 3, "start_us": at * S, "end_us": at * S + 1000 * at}
        for at in range(SPANS_MAX + 10)
    ]
    drawn = timeline(staged(), EMPTY | {"stalls": stalls}, {}, chapters={}, slowest=(), failed=())
    (lane,) = [lane for lane in drawn.groups[0].lanes if lane.name.startswith("produce stopped")]
    assert (SPANS_MAX, 10) == (len(lane.spans), lane.left_out)
    assert [*range(10, SPANS_MAX + 10)] == [span.start_s for span in lane.spans]


def test_a_fault_and_a_failed_check_lead_to_their_story() -> None:
    failed = [(25 * S, "FAIL: slo/x", "check-7")]
    drawn = timeline(staged(), EMPTY, {}, chapters={"kill-1": "story-1"}, slowest=(), failed=failed)
    by_name = {lane.name: lane.spans for lane in drawn.groups[0].lanes}
    (fault,), (check,) = by_name["kill-1"], by_name["checks not passed"]
    assert (20.0, 30.0, "story-1") == (fault.start_s, fault.end_s, fault.story)
    assert Span(25.0, 25.0, "FAIL: slo/x", "mark alarm", story="check-7") == check
