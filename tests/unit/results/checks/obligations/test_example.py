"""The worked example of docs/OBLIGATIONS.md, computed."""

import re
from dataclasses import replace
from pathlib import Path

from aftershock.results.checks.obligations.lanes import Lane, lanes
from aftershock.results.evidence.leadership import Leadership
from aftershock.results.model.check import percent
from aftershock.tests.unit.results.checks.obligations.plays import Fault, Play, S

PAGE = Path(__file__).parents[5] / "docs" / "OBLIGATIONS.md"
PARTITIONS = 6
LED = (4, 5)
"""Partitions that the killed broker leads."""
KILLED_S, HEALING_S, HEALED_S, FENCED_S, BACK_S = 28.4, 48.4, 51.2, 31.6, 52.3


def leadership(partition: int, epoch: int, leader: int, by_s: float) -> Leadership:
    after_us, by_us = (0, 0) if epoch == 0 else (round((by_s - 1) * S), round(by_s * S))
    return Leadership("orders", "t1", partition, epoch, leader, (), None, None, after_us, by_us, (), {})


def example(*, recorded: bool) -> Lane:
    """Return the producer's lane, with the leaders or without."""
    killed = Fault("kill", KILLED_S, KILLED_S, HEALING_S, HEALED_S, brokers=(3,), controller=False)
    settings = {"reconnect.backoff.max.ms": 1000}
    replicas = {number: [1, 2, 3] for number in range(PARTITIONS)}
    evidence = Play([killed], settings=settings, assignment=replicas, end_s=70).evidence()
    leaders = [leadership(number, 0, 3 if number in LED else 1 + number % 2, 0) for number in range(PARTITIONS)]
    for number in LED:
        leaders += [leadership(number, 1, 1, FENCED_S), leadership(number, 2, 3, BACK_S)]
    (lane, *_) = lanes(replace(evidence, leaders=tuple(leaders) if recorded else None))
    return lane


def pauses(lane: Lane, partition: int) -> list[tuple[float, float]]:
    """Return the times within the load in which no progress is due, adjacent ones joined."""
    found: list[tuple[float, float]] = []
    for span in lane.of(partition):
        if not span.required and span.start_us < lane.end_us:
            start_s, end_s = span.start_us / S, span.end_us / S
            found = (
                [*found[:-1], (found[-1][0], end_s)]
                if found and found[-1][1] == start_s
                else [*found, (start_s, end_s)]
            )
    return found


def test_the_example_of_the_page() -> None:
    lane = example(recorded=True)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())

    assert pauses(lane, 0) == [(KILLED_S, FENCED_S)]
    assert pauses(lane, LED[0]) == [(KILLED_S, KILLED_S + 12.4), (BACK_S, BACK_S + 3.2)]
    for at_s in (KILLED_S, FENCED_S, KILLED_S + 12.4, HEALING_S, BACK_S):
        assert f"{at_s:.1f} s " in page
    shares = re.search(r"required for (\d+ %) of the 60 s .*? any replica may lead.*?: (\d+ %),", page)
    assert shares is not None
    assert shares.groups() == (percent(lane.share), percent(example(recorded=False).share))
