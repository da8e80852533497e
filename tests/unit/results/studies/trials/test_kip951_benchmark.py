"""KIP-951's own benchmark: p99.9 of launches in pairs, a tool whose figures must agree, and missing units."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftershock.results.compare import statistics
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.studies.part import Latencies, Part
from aftershock.results.studies.statement import Statement
from aftershock.results.studies.trials.claim import Parts, state_claims
from aftershock.results.studies.trials.kip951 import REGISTRATION
from aftershock.results.studies.trials.kip951_benchmark import CLIENT, MEASURES, disagreement, name_of, orders
from aftershock.tests.unit.results.studies.trials import made
from aftershock.tests.unit.results.studies.trials.rows import part_of

CLAIMS = [claim for claim in REGISTRATION.claims if claim.id in MEASURES]
WARMUP = 50
SETTINGS = {"num-records": 10_050, "warmup-records": WARMUP}
WORKLOAD = {"name": "moves", "arms": {"perf": {"client": "java", "settings": SETTINGS}}}


def line(n: int, mean_ms: float, max_ms: float) -> str:
    """Return the last line of the tool, whose percentiles are those of a sample."""
    return (
        f"{n} steady state records sent, 2999.875005 records/sec (2.86 MB/sec), {mean_ms:.2f} ms avg latency, "
        f"{max_ms:.2f} ms max latency, 6 ms 50th, 8 ms 95th, 15 ms 99th, 346 ms 99.9th."
    )


def launch(home: Path, slow_ms: int, text: str | None = None, *, failed: int = 0, slow: int = 20) -> Part:
    """Return a launch of 10,000 records, ``slow`` of which wait for ``slow_ms`` and the others for 6 ms.

    Records of the warm-up are slower than any.
    """
    rows: list[dict[str, Any]] = []
    latencies_ms = [9_000] * WARMUP + [slow_ms] * slow + [6] * (10_000 - slow)
    for seq, latency_ms in enumerate(latencies_ms):
        sent_us = 1_000_000 + 333 * seq
        status = "failed" if WARMUP <= seq < WARMUP + failed else "ok"
        times = {"intended_us": sent_us - 900, "sent_us": sent_us, "done_us": sent_us + 1000 * latency_ms + 999}
        rows.append({"workload": "moves", "arm": "perf", "op": "produce", "seq": seq, "status": status, **times})
    counted = [ms for row, ms in zip(rows, latencies_ms, strict=True) if row["status"] == "ok"][WARMUP:]
    text = line(len(counted), sum(counted) / len(counted), max(counted)) if text is None else text
    events = [{"t_us": 1, "event": "summary", "text": text}]
    windows = {"treatment-1": (0, 9), "busy-1": (1, 4), "move-1": (2, 3)}
    found = part_of(home, rows, windows, events=events)
    return Part(home.name, replace(found.run, timeline={**found.run.timeline, "workloads": [WORKLOAD]}))


def stated(parts: Parts, claim: str) -> Statement:
    return next(entry for entry in state_claims(CLAIMS, parts, {}) if entry.id == claim)


def counted(name: str, slow_ms: int, *, checks: Mapping[str, str] | None = None) -> Part:
    """Return a reduced launch, which has counts instead of rows; ``checks`` are faults without proof."""
    counts = [[6, 9_980], [slow_ms, 20]]
    row = {"client": CLIENT, "first": WARMUP, "counts": counts, "failed": 0}
    unproven = [made.doubted(f"witness/{fault}", "witness") for fault in checks or ()]
    run = {"run_id": name, "status": "complete", "why": None}
    timeline = {"cluster": {}, "workloads": [WORKLOAD], "steps": []}
    home = Path(name)
    return Counted(name, JudgedRun(home, run, timeline, {"latencies": [row]}, made.verdict(name, unproven)))


class Counted(Part):
    def phases(self, entry: str) -> list[dict[str, Any]]:
        return [{"entry": entry, "fault": f"{entry}"}]

    def events(self, event: str) -> list[dict[str, Any]]:
        found = self.latencies(CLIENT, WARMUP)
        return [{"event": event, "text": line(found.n, found.mean(), found.quantile(1))}]


@pytest.fixture(autouse=True)
def _few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sign-flip test short: no word depends on its p-value."""
    monkeypatch.setattr(statistics, "FLIPS", 1_000)


def units(count: int, whole_ms: int, stripped_ms: int, capped_ms: int) -> dict[str, Part]:
    """Return launches of the first ``count`` units, a tenth apart from one to the next."""
    values = {"whole": whole_ms, "stripped": stripped_ms, "capped": capped_ms}
    return {
        name: counted(name, round(values[arm] * (1 + unit / 10)))
        for unit, order in orders()[:count]
        for arm in order
        for name in [name_of(unit, arm)]
    }


@pytest.mark.parametrize(
    ("count", "figures", "word"),
    [
        (6, (200, 1_600, 1_200), "confirmed"),
        (6, (1_600, 200, 200), "contradicted"),
        (5, (200, 1_600, 1_200), "undecided"),
        (2, (200, 1_600, 1_200), "undecided"),
    ],
)
def test_words(count: int, figures: tuple[int, int, int], word: str) -> None:
    """Cases are the KIP's own figures, the opposite, and too few units, which have a figure nevertheless."""
    for arm, theirs_ms in zip(("stripped", "capped"), figures[1:], strict=True):
        entry = stated(units(count, *figures), f"benchmark-{arm}")
        assert (word, count) == (entry.word, entry.ours.n), entry.why
        assert figures[0] / theirs_ms == pytest.approx(entry.ours.value, rel=0.01)
        assert f"{count} of 6 pairs" in entry.why


def test_one_pair_has_a_figure_and_no_interval() -> None:
    """The arm of a unit that is still missing takes no part in the pair of the two others."""
    parts = units(1, 200, 1_600, 1_200)
    del parts[name_of(1, "capped")]
    entry = stated(parts, "benchmark-stripped")
    assert (0.125, None, 1, "undecided") == (entry.ours.value, entry.ours.interval, entry.ours.n, entry.word)
    assert "no pair of launches is complete" in stated(parts, "benchmark-capped").why
    assert "not run" in stated({}, "benchmark-stripped").why


def test_figures() -> None:
    """The outage adds 0.4 s to p99.9; the median is that of the records that do not wait."""
    parts = units(1, 200, 1_600, 1_200)
    found = {name: stated(parts, f"benchmark-stripped-{name}").ours.value for name in ("outage", "max", "mean", "p50")}
    mean = {ms: (6 * 9_980 + 20 * ms) / 10_000 for ms in (220, 1_760)}
    assert {"outage": 620 / 2_160, "max": 0.125, "mean": mean[220] / mean[1_760], "p50": 1.0} == pytest.approx(
        found, rel=0.001
    )


def test_rows_give_the_counts(tmp_path: Path) -> None:
    """From the sending to the acknowledgement in whole ms, without the warm-up; a failed record is slower than any."""
    whole = launch(tmp_path / "a", 346)
    assert Latencies({6: 9_980, 346: 20}, 0) == whole.latencies(CLIENT, WARMUP)
    assert 346 == whole.latencies(CLIENT, WARMUP).quantile(0.999)
    some = launch(tmp_path / "b", 346, failed=9).latencies(CLIENT, WARMUP)
    assert (Latencies({6: 9_980, 346: 11}, 9), 346, float("inf")) == (some, some.quantile(0.999), some.quantile(1))
    assert float("inf") == launch(tmp_path / "c", 346, failed=20).latencies(CLIENT, WARMUP).quantile(0.999)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (line(9_999, 6.68, 346), "counts 9999 records, and the rows have 10000"),
        (line(10_000, 9.68, 346), "counts 9.68 ms on average, and the rows have 6.68"),
        (line(10_000, 6.68, 546), "counts 546.00 ms at most, and the rows have 346"),
        ("", "the tool ended with the line ''"),
    ],
)
def test_a_tool_that_disagrees_leaves_its_launch_out(tmp_path: Path, text: str, why: str) -> None:
    """Planted: another number of records, another mean, another maximum, no summary."""
    assert disagreement(launch(tmp_path / "honest", 346)) is None
    wrong = launch(tmp_path / "wrong", 346, text)
    assert why in str(disagreement(wrong))
    parts = {name_of(1, "whole"): wrong, name_of(1, "stripped"): launch(tmp_path / "other", 1_600)}
    entry = stated(parts, "benchmark-stripped")
    assert (None, "undecided", True) == (entry.ours.value, entry.word, why in entry.why)


@pytest.mark.parametrize("fault", ["treatment", "busy", "move"])
def test_a_launch_whose_fault_is_not_proven_is_left_out(fault: str) -> None:
    """Five of six pairs decide nothing, whatever they say."""
    name = name_of(3, "whole")
    parts = {**units(6, 200, 1_600, 1_200), name: counted(name, 200, checks={fault: ""})}
    entry = stated(parts, "benchmark-stripped")
    assert ("undecided", 5) == (entry.word, entry.ours.n)
    assert f"{name}: {fault}: the host was starved" in entry.why


def test_sabotage_confirms_nothing() -> None:
    """Without hints in both arms, as the sabotaged trial runs them."""
    assert "confirmed" not in {entry.word for entry in state_claims(CLAIMS, units(6, 1_600, 1_600, 1_600), {})}


def test_a_stored_launch_gives_the_same_figures(tmp_path: Path) -> None:
    """The counts that replace the rows are written and read as JSON."""
    whole = launch(tmp_path / "a", 346)
    found = whole.latencies(CLIENT, WARMUP)
    row = {"client": CLIENT, "first": WARMUP, "counts": sorted(found.counts.items()), "failed": found.failed}
    analysis = {**whole.run.analysis, "latencies": json.loads(json.dumps([row]))}
    assert found == Part("a", replace(whole.run, analysis=analysis, home=tmp_path / "none")).latencies(CLIENT, WARMUP)
