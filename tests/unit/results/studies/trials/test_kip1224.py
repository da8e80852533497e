"""Statements about commits with known latencies: coordinators with a linger, on brokers of different speed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.part import STEADY_SLICE_US, Part, steady_slices
from aftershock.results.studies.trials import kip1224_commits
from aftershock.results.studies.trials.claim import Parts
from aftershock.results.studies.trials.kip1224 import (
    FAULT,
    IDLE,
    REGISTRATION,
    SHARE,
    later_ms,
    lost_commits,
    plots,
    survived,
)
from aftershock.tests.unit.results.studies.trials import on_disk
from aftershock.tests.unit.results.studies.trials.made import judge, measure

SQUARE = (("-1", "5", "0"), ("0", "-1", "5"), ("5", "0", "-1"))
BROKER_MS = (0.0, 2.0, 9.0)
"""What each broker needs more than the first: more than what is looked for, but the same in every run."""
LINGER_MS = {"-1": 0.0, "5": 5.0, "0": 0.0}
A_SLICE = 11
KINDS = (("commits", "plain", 1), ("transactions", "transactional", 0), ("shares", "acknowledging", 1))
"""By workload and arm; a transaction doesn't linger."""


def idle(home: Path, lingers: tuple[str, ...], linger_ms: Mapping[str, float], failed: str = "") -> Part:
    """Write one run with a group per broker and kind; a commit takes its broker's time, its linger, and its own
    time.
    """
    outcomes, offsets = [], []
    for broker, setting in enumerate(lingers, 1):
        for workload, arm, lingering in KINDS:
            group = f"{workload}-{broker}"
            offsets.append(entry(broker, group, 0, 0, transactional=not lingering))
            took_ms = 2.0 + BROKER_MS[broker - 1] + lingering * linger_ms[setting]
            for number in range(8 * A_SLICE):
                at_us = number * STEADY_SLICE_US // A_SLICE
                own_us = number % A_SLICE * 10 + number // A_SLICE % 3
                ok = "failed" if setting == failed else "ok"
                outcomes.append(commit(workload, arm, group, at_us, at_us + int(took_ms * 1000) + own_us, status=ok))
    brokers = {str(broker): {kip1224_commits.LINGER: setting} for broker, setting in enumerate(lingers, 1)}
    cluster = {"racks": {"a": 1, "b": 1, "c": 1}, "config": {}, "brokers": brokers}
    return on_disk.part(home, cluster=cluster, outcomes=outcomes, offsets=offsets)


def square(home: Path, linger_ms: Mapping[str, float] = LINGER_MS, failed: str = "") -> Parts:
    runs = zip(IDLE, SQUARE, strict=True)
    return {name: idle(home / name, lingers, linger_ms, failed) for name, lingers in runs}


def commit(
    workload: str, arm: str, group: str, at_us: int, done_us: int, *, status: str = "ok", offset: int = 0
) -> dict[str, Any]:
    row = {"op": "commit", "workload": workload, "arm": arm, "group": group, "intended_us": at_us, "sent_us": at_us}
    return row | {"done_us": done_us, "status": status, "offset": offset}


def entry(broker: int, group: str, offset: int, batch: int, committed: int | None = 0, **more: Any) -> dict[str, Any]:
    place = {"broker_id": broker, "partition": broker - 1, "offset": offset, "batch": batch, "transactional": False}
    return place | {"group": group, "committed": committed} | more


def test_differences_of_brokers_cancel(tmp_path: Path) -> None:
    """Brokers differ by more than the linger; over the Latin square only the linger remains, slice by slice."""
    parts = square(tmp_path)
    result = later_ms([parts[name] for name in IDLE], "commits/plain", "5", "-1")
    assert (pytest.approx(5.0), 8, "ms") == (result.value, result.n, result.unit)
    words = [judge(REGISTRATION, claim, parts).word for claim in ("idle-saved", "idle-as-none", "transactions")]
    assert ["confirmed"] * 3 == words


def test_one_run_does_not_cancel_differences_of_brokers(tmp_path: Path) -> None:
    """The Latin square is needed for that."""
    (first, *_), parts = IDLE, square(tmp_path)
    assert later_ms([parts[first]], "commits/plain", "5", "-1").value == pytest.approx(7.0)


@pytest.mark.parametrize(("fixed_ms", "word"), [(4.5, "confirmed"), (2.0, "undecided"), (-2.0, "contradicted")])
def test_saved(fixed_ms: float, word: str, tmp_path: Path) -> None:
    """Savings are confirmed from 4 ms on; a smaller saving is not seen, and a faster fixed linger contradicts
    the claim.
    """
    assert word == judge(REGISTRATION, "idle-saved", square(tmp_path, LINGER_MS | {"5": fixed_ms})).word


@pytest.mark.parametrize(("fixed_ms", "word"), [(5.0, "confirmed"), (2.0, "undecided")])
def test_share_groups(fixed_ms: float, word: str, tmp_path: Path) -> None:
    """Share groups have a Latin square of their own, over acknowledgements."""
    parts = square(tmp_path, LINGER_MS | {"5": fixed_ms})
    assert word == judge(REGISTRATION, "share", dict(zip(SHARE, parts.values(), strict=True))).word


def test_an_adaptive_linger_that_waits(tmp_path: Path) -> None:
    """An adaptive linger of 3 ms is not equivalent to no linger."""
    assert "contradicted" == judge(REGISTRATION, "idle-as-none", square(tmp_path, LINGER_MS | {"-1": 3.0})).word


def test_failed_commits_leave_no_figure(tmp_path: Path) -> None:
    """If most commits fail there is no median, so the statement is inconclusive."""
    result = judge(REGISTRATION, "idle-saved", square(tmp_path, failed="5"))
    assert (None, "undecided") == (result.ours.value, result.word)


def test_coordinators_are_read_from_the_log(tmp_path: Path) -> None:
    """The broker that the client last contacted is not used; without the log the coordinator is unknown."""
    run = square(tmp_path)[IDLE[0]]
    assert {"commits-1": 1, "transactions-3": 3}.items() <= kip1224_commits.coordinators(run).items()
    (run.home / "offsets" / "part-0.parquet").unlink()
    assert {} == kip1224_commits.coordinators(run)
    assert all(
        math.isnan(medians_m) for medians_m in kip1224_commits.medians_ms(run, "commits/plain", steady_slices(run))["5"]
    )


def test_linger_settings_are_read_from_the_plan(tmp_path: Path) -> None:
    """A broker's setting precedes the cluster's, and Kafka's default applies if the plan has none."""
    own = {"2": {kip1224_commits.LINGER: "5"}}
    cluster = {"racks": {"a": 2}, "config": {kip1224_commits.LINGER: "0"}, "brokers": own}
    assert {1: "0", 2: "5"} == kip1224_commits.lingers(on_disk.part(tmp_path / "set", cluster=cluster))
    shares = {"racks": {"a": 1}, "config": {kip1224_commits.SHARE_LINGER: -1}}
    assert {1: "-1"} == kip1224_commits.lingers(on_disk.part(tmp_path / "shares", cluster=shares))
    plain = {"racks": {"a": 1}, "config": {}}
    assert {1: kip1224_commits.DEFAULT} == kip1224_commits.lingers(on_disk.part(tmp_path / "not", cluster=plain))


def test_batches(tmp_path: Path) -> None:
    """Commits with equal base offsets were flushed together; transactional commits are excluded."""
    log = [entry(1, "a", 0, 0), entry(1, "b", 1, 0), entry(1, "a", 2, 2), entry(1, "t", 3, 3, transactional=True)]
    run = on_disk.part(tmp_path / "run", offsets=log)
    assert {kip1224_commits.DEFAULT: 1.5} == kip1224_commits.commits_per_flush(run)
    assert "-1: " in measure(REGISTRATION, "batched", square(tmp_path / "square")).why


@pytest.mark.parametrize(
    ("rule", "kills", "violations"),
    [("lost", 2, 1), ("backward", 2, 0), ("lost", 0, 1)],
)
def test_commits_survive_a_killed_coordinator(rule: str, kills: int, violations: int, tmp_path: Path) -> None:
    """The run's checks of commits decide, not those of records; without a kill the statement is inconclusive."""
    checked = (("lost", "commit", 1.0), ("backward", "commit", 0.0), ("backward", "consume", 1.0))
    checks = [
        Check(f"integrity/{name}", "integrity", f"arm=a {op}", Status.PASS, 9, 1, "", "", observed)
        for name, op, observed in checked
    ]
    rows = [commit("w", "a", "a", 0, 10), commit("w", "a", "late", 999_990, 1_500_000, status="in_doubt")]
    faults = {FAULT: [1_000_000, 2_000_000][:kills]}
    result = survived(on_disk.part(tmp_path, faults=faults, outcomes=rows, checks=checks), rule)
    assert (violations, kills) == (result.violations, result.ours.n)
    assert f"{min(kills, 1)} were in flight" in result.why


@pytest.mark.parametrize(
    ("written", "first_done_us", "lost"),
    [
        ([(0, 0), (0, 10), (1, 20)], 5, 0),
        ([(0, 0), (1, 20)], 5, 1),  # the commit of 10 is gone, though a later one hides it
        ([(1, 20)], 5, 2),  # the whole log of the first epoch is gone
        ([(0, 0), (0, 10)], 5, 1),  # the last acknowledged commit is not there
        ([(0, 10), (1, 20)], 15, 0),  # the client replaced the commit of 0 by that of 10, and both were acknowledged
        ([], 5, 3),
    ],
)
def test_a_lost_commit_is_not_hidden_by_later_ones(
    written: list[tuple[int, int]], first_done_us: int, lost: int, tmp_path: Path
) -> None:
    """Three commits are acknowledged one after the other; the log has these offsets, each of a leader epoch."""
    done_us = {0: first_done_us, 10: 15, 20: 25}
    rows = [commit("w", "a", "g", at_us, done, offset=at_us) | {"partition": 0} for at_us, done in done_us.items()]
    log = [
        entry(1, "g", place, place, committed, leader_epoch=epoch, topic_partition=0)
        for place, (epoch, committed) in enumerate(written)
    ]
    other = entry(2, "other", 0, 0, 7, leader_epoch=0, topic_partition=0)
    assert lost == lost_commits(on_disk.part(tmp_path, outcomes=rows, offsets=[*log, other]))


def test_plot(tmp_path: Path) -> None:
    """The plot shows three settings by name with their medians; without a run there is no plot."""
    load, drawn = plots(square(tmp_path))
    assert all(name in drawn.svg for name in ("adaptive (-1)", "fixed 5 ms", "none (0)"))
    assert "fixed 5 ms: 9.1 ms and 2.0 a batch at 2/s" in load.reading
    assert "fixed 5 ms 9.05 ms" in drawn.reading
    assert () == plots({})
