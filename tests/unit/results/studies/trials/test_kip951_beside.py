"""Reports that accompany KIP-951: the worst latency from SIGTERM to exit, and hints to an unknown broker."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.results.compare.blocks import Block
from aftershock.results.studies.part import Part, onsets, worst_latencies
from aftershock.results.studies.statement import Word
from aftershock.results.studies.trials.kip951 import REGISTRATION
from aftershock.tests.unit.results.studies.trials.made import doubted, judge, measure, part
from aftershock.tests.unit.results.studies.trials.rows import SECOND_US, Row, part_of

BLOCKS = range(1, 7)
WAVES = [1.0, 1.02, 0.99, 1.01, 0.98, 1.0]


def row(arm: str, intended_us: int, took_us: int, status: str = "ok") -> Row:
    told = {"op": "produce", "workload": "all", "arm": arm, "status": status}
    return {**told, "intended_us": intended_us, "done_us": intended_us + took_us}


def shutdowns(home: Path, rows: list[Row], *unproven: str) -> Part:
    """Write six shutdowns, at 1 s, 2 s …, each 0.3 s from SIGTERM to exit."""
    steps = [{"id": f"ended-{at}", "entry": "ended", "block": at} for at in BLOCKS]
    journal = [
        {"t_us": at * SECOND_US + after_us, "fault": f"ended-{at}", "state": state}
        for at in BLOCKS
        for state, after_us in (("intended", 0), ("injected", 300_000), ("healed", 900_000))
    ]
    checks = [doubted(f"witness/{one}", "witness") for one in unproven]
    made = part_of(home, rows, {}, journal=journal, checks=checks)
    return replace(made, run=replace(made.run, timeline={**made.run.timeline, "steps": steps}))


def test_spans(tmp_path: Path) -> None:
    """A span lasts from 50 ms before the request to the exit; an unwitnessed shutdown has no span."""
    result = onsets(shutdowns(tmp_path, [], "ended-2"), "ended")
    assert (950_000, 1_300_000) == result[1]
    assert {1, 3, 4, 5, 6} == result.keys()


def test_worst(tmp_path: Path) -> None:
    """Latencies are by intended time and client; a failure is slower than any, and a span without records has
    no value.
    """
    rows = [
        row("both", 949_999, 900_000),
        row("both", 950_000, 20_000),
        row("both", 1_299_999, 70_000),
        row("both", 1_300_000, 800_000),
        row("neither", 1_100_000, 600_000),
        row("both", 2_100_000, 10_000, "failed"),
    ]
    made = shutdowns(tmp_path, rows)
    assert {1: Block(70_000, 2), 2: Block(None, 1)} == worst_latencies(made, "all/both", onsets(made, "ended"))


def test_restarts_are_reported(tmp_path: Path) -> None:
    """Both arms are compared per shutdown without a decision; without a shutdown there is no figure."""
    took = {"both": 100_000, "neither": 200_000}
    rows = [row(arm, at * SECOND_US, us + at) for arm, us in took.items() for at in BLOCKS]
    result = measure(REGISTRATION, "restart-all", {"restart": shutdowns(tmp_path, rows)})
    assert (pytest.approx(0.5, rel=1e-3), 6) == (result.ours.value, result.ours.n)
    assert "medians 100 ms and 200 ms (the ratio is of pairs), from 6 shutdowns" in result.why
    assert measure(REGISTRATION, "restart-all", {"restart": part("restart", {"all/both": [1.0]})}).ours.value is None


@pytest.mark.parametrize(("refused", "word"), [(5, "confirmed"), (0, "undecided")])
def test_a_broker_that_was_known(tmp_path: Path, refused: int, word: Word) -> None:
    """If no hint named a broker without an address, the figures say nothing about endpoints."""
    values = {arm: [ms * wave for wave in WAVES] for arm, ms in {"moves/merged": 100.0, "moves/ignored": 400.0}.items()}
    made = part("unknown", values, window="fault/back")
    counted = {"workload": "moves", "arm": "ignored", "op": "produce"}
    line = {"t_us": 1, "event": "counters", **counted, "counters": {"hints_refused_unknown_leader": refused}}
    (tmp_path / "events.jsonl").write_text(json.dumps(line))
    result = judge(REGISTRATION, "unknown", {"unknown": replace(made, run=replace(made.run, home=tmp_path))})
    assert (word, True) == (result.word, f"{refused} hints to an unknown broker" in result.why)
