"""Statements about coordinators that are busy in turn: rounds at a known rate, on brokers of different speed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aftershock.results.studies.part import STEADY_SLICE_US, Part
from aftershock.results.studies.trials import kip1224_commits
from aftershock.results.studies.trials.claim import Parts
from aftershock.results.studies.trials.kip1224 import (
    BUSY,
    FLUSHED,
    OPEN,
    REGISTRATION,
    by_fixed,
    plots,
)
from aftershock.results.studies.trials.kip1224_commits import bouts
from aftershock.tests.unit.results.studies.trials import on_disk
from aftershock.tests.unit.results.studies.trials.made import judge, measure

SQUARE = (("-1", "5", "0"), ("0", "-1", "5"), ("5", "0", "-1"))
OF_EACH, IN_FLIGHT = 40, 4
GROUPS = 3 * OF_EACH
BUSY_CLAIMS = ("busy-throughput", "busy-p50", "busy-p99")
BROKER = (1.0, 1.3, 0.8)
"""By how much each broker is slower: more than what is looked for, but the same in every run."""
US = 15_000
ROUNDS = 10
Factors = Mapping[str, float]
ALIKE: Factors = {"-1": 1.0, "5": 1.0, "0": 1.0}


def busy(
    home: Path,
    lingers: tuple[str, ...],
    factors: Factors,
    tail: Factors = ALIKE,
    a_flush: int = 4,
    failed: str = "",
    *,
    closed: bool = True,
) -> Part:
    """Write one run of rounds of three bouts; commits have a fixed interval and take as long as the commits in
    flight.
    """
    outcomes: list[dict[str, Any]] = []
    at_us = 0
    for seq in range(ROUNDS * GROUPS):
        broker = seq % GROUPS // OF_EACH
        setting, first_us = lingers[broker], BROKER[broker] * US
        every_us = int(first_us * factors[setting])
        slow = tail[setting] if seq % 20 == 0 else 1.0
        row = {"op": "commit", "seq": seq, "group": f"g{seq % GROUPS}", "intended_us": at_us, "sent_us": at_us}
        row |= {"done_us": at_us + int(IN_FLIGHT * every_us * slow), "status": "failed" if setting == failed else "ok"}
        outcomes.append(row)
        at_us += every_us
    offsets = [_entry(number, number // OF_EACH + 1, number // a_flush * a_flush) for number in range(GROUPS)]
    brokers = {str(broker): {kip1224_commits.LINGER: setting} for broker, setting in enumerate(lingers, 1)}
    cluster = {"racks": {"a": 1, "b": 1, "c": 1}, "config": {}, "brokers": brokers}
    load = {"name": "commits", "commit": {"groups": GROUPS, **({"in_flight": IN_FLIGHT} if closed else {})}}
    slices = at_us // STEADY_SLICE_US
    return on_disk.part(home, cluster=cluster, workloads=[load], slices=slices, outcomes=outcomes, offsets=offsets)


def _entry(number: int, broker: int, batch: int) -> dict[str, Any]:
    place = {"broker_id": broker, "partition": broker - 1, "offset": number, "batch": batch, "transactional": False}
    return place | {"group": f"g{number}", "committed": 0}


def square(home: Path, factors: Factors = ALIKE, **changes: Any) -> Parts:
    runs = zip(BUSY, SQUARE, strict=True)
    return {name: busy(home / name, lingers, factors, **changes) for name, lingers in runs}


def test_bouts(tmp_path: Path) -> None:
    """Rate and latencies of a bout are those of its coordinator; a round cut off by the end of steady is not used."""
    result = bouts(busy(tmp_path / "run", SQUARE[0], ALIKE))
    assert {"-1", "5", "0"} == set(result)
    assert all(each.per_s == pytest.approx(1e6 / US) and each.p50_ms == IN_FLIGHT * US / 1000 for each in result["-1"])
    assert all(each.per_s == pytest.approx(1e6 / US / 1.3) for each in result["5"])
    assert {ROUNDS - 1} == {len(each) for each in result.values()}


def test_the_plot_over_load(tmp_path: Path) -> None:
    """A busy run adds a point per setting, at the rate of its bouts and the size of its batches."""
    (load,) = plots(square(tmp_path))
    assert "adaptive (-1): 60.0 ms and 4.0 a batch at 67/s" in load.reading


def test_differences_of_brokers_cancel(tmp_path: Path) -> None:
    """Brokers differ by half; over the Latin square the difference cancels, and equal lingers are equivalent."""
    parts = square(tmp_path)
    assert ["confirmed"] * 3 == [judge(REGISTRATION, claim, parts).word for claim in BUSY_CLAIMS]
    one = by_fixed([parts[BUSY[0]]], "per_s").value
    assert one == pytest.approx(1.3, rel=0.01)
    assert "commits/s" == measure(REGISTRATION, "busy", parts).ours.unit


def test_slower(tmp_path: Path) -> None:
    """A fifth slower is worse, and so are commit latencies in a closed loop, but within the limit of the tail."""
    parts = square(tmp_path, {"-1": 1.2, "5": 1.0, "0": 2.0})
    assert ["contradicted", "contradicted", "confirmed"] == [
        judge(REGISTRATION, claim, parts).word for claim in BUSY_CLAIMS
    ]
    flushed = dict(zip(FLUSHED, parts.values(), strict=True))
    result = judge(REGISTRATION, "busy-none", flushed)
    assert ("confirmed", pytest.approx(0.5, rel=0.01)) == (result.word, result.ours.value)


def test_faster(tmp_path: Path) -> None:
    """A figure better than claimed contradicts nothing."""
    parts = square(tmp_path, {"-1": 0.8, "5": 1.0, "0": 1.0})
    assert ["confirmed"] * 3 == [judge(REGISTRATION, claim, parts).word for claim in BUSY_CLAIMS]


def test_a_longer_tail(tmp_path: Path) -> None:
    """Only the slowest commits show the difference."""
    parts = square(tmp_path, tail={"-1": 1.5, "5": 1.0, "0": 1.0})
    assert ["confirmed", "confirmed", "contradicted"] == [
        judge(REGISTRATION, claim, parts).word for claim in BUSY_CLAIMS
    ]


def test_no_batching(tmp_path: Path) -> None:
    """Two commits per flush prove no linger, so the statement is inconclusive; so it is without the log."""
    parts = square(tmp_path / "two", a_flush=2)
    result = [judge(REGISTRATION, claim, parts) for claim in BUSY_CLAIMS]
    assert [
        ("undecided", "the coordinators batched no commits: 2.00 commits per flush, and more than 2 are needed")
    ] * 3 == [(each.word, each.why) for each in result]
    assert "5: 2.00" in measure(REGISTRATION, "busy-batched", parts).why
    unread = square(tmp_path / "gone")
    (unread[BUSY[0]].home / "offsets" / "part-0.parquet").unlink()
    assert "undecided" == judge(REGISTRATION, "busy-throughput", unread).word


def test_below_capacity(tmp_path: Path) -> None:
    """The report gives the rate as a share of the closed loop's; the edges of bouts are excluded."""
    parts = square(tmp_path, {"-1": 0.7, "5": 0.7, "0": 0.7})
    tail = {"-1": 1.0, "5": 2.0, "0": 1.0}
    parts = {**parts, OPEN: busy(tmp_path / OPEN, SQUARE[0], ALIKE, tail, closed=False)}
    result = [measure(REGISTRATION, claim, parts).ours.value for claim in ("open-p50", "open-p99")]
    assert [pytest.approx(1 / 1.3, rel=0.01), pytest.approx(0.5 / 1.3, rel=0.01)] == result
    assert "of the closed loop's throughput" in measure(REGISTRATION, "open-p50", parts).why
    assert "one run" in measure(REGISTRATION, "open-p50", parts).why


def test_failures_leave_no_figure(tmp_path: Path) -> None:
    """A median that is a failed commit is equivalent to nothing."""
    result = judge(REGISTRATION, "busy-p50", square(tmp_path, failed="-1"))
    assert (None, "undecided") == (result.ours.value, result.word)
