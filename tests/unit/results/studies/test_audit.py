"""Cells of a report card: marks from checks, figures from stored measurements."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftershock.harness.campaigns.card import figures
from aftershock.results.compare.blocks import Block
from aftershock.results.model.check import Check, Status
from aftershock.results.studies.audit import Cell, Spread, cells_of, changes_of, spread, upgrades
from aftershock.results.studies.part import Part
from aftershock.tests.unit.results.studies.trials.on_disk import part as part_on_disk

S = 1_000_000
CALM = {"q": 0.95, "factor": 10, "for_us": 2 * S}
STEPS = [{"id": f"crash-{n}", "entry": "crash", "block": n} for n in range(1, 7)]
GOOD = Check("integrity/lost", "integrity", "arm=java produce", Status.PASS, 9, 1, "records", "none", 0.0, arm="java")


def run(home: Path, *checks: Check, steps: list[dict[str, Any]] = STEPS, never: int = 0) -> Part:
    """Return a run of two clients: java needs 3.1 s to 3.6 s after each crash, other as many.

    The client other fails twice, does not recover from the first ``never`` crashes, and succeeds in nothing in the
    sixth block.
    """
    rows = [
        {"op": "produce", "workload": "orders", "arm": arm, "producer_id": 0, "seq": n, "status": status}
        for arm in ("java", "other")
        for n, status in enumerate(["ok"] * 8 + (["failed"] * 2 if arm == "other" else []))
    ]
    made = part_on_disk(home, outcomes=rows, checks=checks)
    series = {"metric": "produce.latency", "client": "orders/java"}
    analysis = {
        "recoveries": [],
        "calms": [
            {"fault": f"crash-{n}", "client": f"orders/{arm}", "n": 9, "observed_us": 9 * S, **CALM}
            | {"recovered_us": None if arm == "other" and n <= never else round((3 + n / 10) * S)}
            for arm in ("java", "other")
            for n in range(1, 7)
        ],
        "cuts": [
            {"metric": "produce.gap", "window": "run", "each": "block", "client": f"orders/{arm}"}
            | {"every_us": None, "slices": [_slice(n, each[n - 1]) for n in range(1, 7)]}
            for arm, each in (("java", [9] * 6), ("other", [9] * 5 + [0]))
        ],
        "distributions": [
            {**series, "window": window, "n": 400, "censored": 0, "slowest_us": p95, "at": {"0.95": p95}}
            for window, p95 in (("steady", 10), ("fault", 35))
        ],
        "gaps": [],
    }
    workload = {
        "name": "orders",
        "produce": {"topic": "orders"},
        "arms": {"java": {"client": "java"}, "other": {"client": "exec", "command": ["/root/other"]}},
    }
    timeline = {"cluster": {}, "timing": {"fault_ms": 1}, "workloads": [workload], "steps": steps}
    return replace(made, run=replace(made.run, analysis=analysis, timeline=timeline))


def _slice(block: int, n: int) -> dict[str, Any]:
    seen = {"n": n, "censored": 0, "slowest_us": block * S, "at": {}}
    return seen | {"subject": f"block={block}", "start_us": None}


def cell(part: Part, client: str = "java") -> Cell:
    (found,) = (found for found in cells_of("leader-crashes", part) if found.client == client)
    return found


def test_the_figures_of_a_client(tmp_path: Path) -> None:
    made = cell(run(tmp_path / "run", GOOD))
    assert ("kept", "") == (made.mark, made.reason)
    assert Spread(pytest.approx(3.35), 3.1, 3.6, 6) == made.recovery
    assert (6.0, 0, 0, 0, 3.5) == (made.gap_s, made.failed, made.duplicates, made.lost, made.slowdown)
    assert made.before_heal is None, "stored by an older version"
    other = cell(run(tmp_path / "other", GOOD), "other")
    assert (2, None, None) == (other.failed, other.slowdown, other.gap_s)


FAIL, OPEN = Status.FAIL, Status.INCONCLUSIVE
SLOW = Check("slo/recovery-crash", "slo", "arm=java", FAIL, 6, 1, "s", "late", 7.0, 6.0, arm="java", gate=False)


@pytest.mark.parametrize(
    ("checks", "mark", "reason"),
    [
        ([], "kept", ""),
        ([SLOW], "slow", "recovery-crash: 7 s, limit 6 s"),
        ([replace(SLOW, observed=None)], "slow", "recovery-crash: never, limit 6 s"),
        (
            [SLOW, replace(GOOD, status=FAIL, observed=2.0, why="2 of 9 records")],
            "broken",
            "integrity/lost: 2 of 9 records",
        ),
        ([replace(GOOD, status=FAIL, arm="other")], "kept", ""),
        ([replace(SLOW, status=OPEN, why="few records")], "open", "slo/recovery-crash: few records"),
        ([Check("harness/generator", "harness", "run", OPEN, 0, 1, "", "late")], "open", "harness/generator: late"),
        (
            [Check("witness/crash-3", "witness", "fault=crash-3", OPEN, 0, 1, "", "not seen")],
            "open",
            "5 of at least 6 blocks took effect",
        ),
    ],
)
def test_marks_come_from_the_clients_own_checks(tmp_path: Path, checks: list[Check], mark: str, reason: str) -> None:
    """The worst mark counts; a broken promise is named even if the client was slow too."""
    made = cell(run(tmp_path / "run", GOOD, *checks))
    assert (mark, True) == (made.mark, reason in made.reason)
    assert bool(reason) == bool(made.reason)


def test_a_client_that_never_recovers(tmp_path: Path) -> None:
    """The median of six with two that never came is known, the end of its interval is not."""
    made = cell(run(tmp_path / "run", never=2), "other")
    assert Spread(pytest.approx(3.55), 3.3, None, 6) == made.recovery


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], Spread(None, None, None, 0)),
        ([5], Spread(5, 5, 5, 1)),
        ([1, 2, 3, 4, 5, 6], Spread(3.5, 1, 6, 6)),
        (list(range(1, 13)), Spread(6.5, 3, 10, 12)),
        ([1, None, None], Spread(None, 1, None, 3)),
    ],
)
def test_intervals_of_medians(seconds: list[float | None], expected: Spread) -> None:
    """Order statistics: of 12 values, the third and the tenth enclose the median with 96 % (Conover, table A3)."""
    assert expected == spread([Block(None if value is None else value * S, 1) for value in seconds])


def test_the_repetitions_before_the_heal_are_counted(tmp_path: Path) -> None:
    part = run(tmp_path / "run", GOOD)
    for row in part.run.analysis["calms"]:
        row["before_heal"] = row["recovered_us"] <= round(3.2 * S)
    assert cell(part).before_heal == 2
    assert "(3.1 to 3.6), 2 of 6 before the heal" in figures(cell(part))


def upgraded(
    home: Path, recovery_s: list[float | None], *checks: Check, gap_s: float = 0.0, failed: int = 0, steps: int = 6
) -> Part:
    """Return a run of two versions of librdkafka: the older one needs 3.1 s to 3.6 s after each crash, and fails once.

    The newer one needs ``recovery_s``, has gaps that are ``gap_s`` longer, and gives up ``failed`` records in each
    block.
    """
    arms = {"old": [3 + n / 10 for n in range(1, 7)], "new": recovery_s}
    rows = [
        {"op": "produce", "workload": "orders", "arm": arm, "producer_id": 0, "seq": 10 * block + n}
        | {"status": "failed" if n < count else "ok", "intended_us": block * 10 * S + n}
        for arm, count in (("old", 1), ("new", failed))
        for block in range(1, 7)
        for n in range(10)
    ]
    made = part_on_disk(home, outcomes=rows, checks=checks, faults={"crash": [n * 10 * S for n in range(1, 7)]})
    calms = [
        {"fault": f"crash-{n}", "client": f"orders/{arm}", "n": 9, "observed_us": 9 * S, **CALM}
        | {"recovered_us": None if value is None else round(value * S)}
        for arm, values in arms.items()
        for n, value in enumerate(values[:steps], 1)
    ]
    cut = {"metric": "produce.gap", "window": "run", "each": "block", "every_us": None}
    cuts = [
        cut | {"client": f"orders/{arm}"} | {"slices": [_long(n, n + more) for n in range(1, steps + 1)]}
        for arm, more in (("old", 0.0), ("new", gap_s))
    ]
    analysis = {"recoveries": [], "calms": calms, "cuts": cuts, "distributions": [], "gaps": []}
    versions = {"old": "2.2.0", "new": "2.3.0"}
    workload = {
        "name": "orders",
        "produce": {"topic": "orders"},
        "arms": {name: {"client": "librdkafka", "version": version} for name, version in versions.items()},
    }
    timeline = {"cluster": {}, "timing": {"fault_ms": 1}, "workloads": [workload], "steps": STEPS[:steps]}
    return replace(made, run=replace(made.run, analysis=analysis, timeline=timeline))


def _long(block: int, gap_s: float) -> dict[str, Any]:
    return {
        "n": 9,
        "censored": 0,
        "slowest_us": round(gap_s * S),
        "at": {},
        "subject": f"block={block}",
        "start_us": None,
    }


SAME = [3.2, 3.1, 3.4, 3.3, 3.6, 3.5]
BROKEN = replace(GOOD, status=Status.FAIL, arm="new", why="2 records")


@pytest.mark.parametrize(
    ("recovery_s", "changes", "expected"),
    [
        (SAME, {"failed": 1}, "no difference: recovery "),
        ([3.5, 3.6, 3.7, 3.8, 3.9, 4.0], {"failed": 1}, "no difference: recovery 0.4 s longer"),
        ([5.1, 5.2, 5.3, 5.4, 5.5, 5.6], {"failed": 1}, "worse: recovery 2.0 s longer (2.0 to 2.0, n = 6)"),
        ([1.1, 1.2, 1.3, 1.4, 1.5, 1.6], {"failed": 1}, "better: recovery 2.0 s shorter (2.0 to 2.0, n = 6)"),
        # five of six repetitions are not enough: the interval reaches 0
        ([3.1, 5.2, 5.3, 5.4, 5.5, 5.6], {"failed": 1}, "no difference: recovery 2.0 s longer (0.0 to 2.0, n = 6)"),
        ([None] * 6, {"failed": 1}, "worse: recovery comes to an end only before the upgrade (n = 6)"),
        (SAME, {"failed": 1, "gap_s": 3.0}, "worse: produce gap 3.0 s longer (3.0 to 3.0, n = 6)"),
        (SAME, {"failed": 9}, "worse: failed 8 records more (8 to 8, n = 6)"),
        (SAME, {"failed": 0}, "better: failed 1 records fewer (1 to 1, n = 6)"),
        (SAME, {"failed": 0, "gap_s": 3.0}, "mixed: produce gap 3.0 s longer"),
        (SAME, {"failed": 1, "steps": 5}, "undecided: fewer than 6 repetitions"),
    ],
)
def test_an_upgrade_in_a_word(
    tmp_path: Path, recovery_s: list[float | None], changes: dict[str, Any], expected: str
) -> None:
    made = upgraded(tmp_path / "run", recovery_s, GOOD, **changes)
    (change,) = changes_of("leader-crashes", made, cells_of("leader-crashes", made))
    assert ("old", "new") == (change.before, change.after)
    assert change.text.startswith(expected)


def test_a_broken_promise_decides_before_any_figure(tmp_path: Path) -> None:
    faster = [1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    made = upgraded(tmp_path / "run", faster, replace(GOOD, arm="old"), BROKEN, failed=1)
    (change,) = changes_of("leader-crashes", made, cells_of("leader-crashes", made))
    assert "worse" == change.word
    assert "integrity/lost: 2 records" in change.text
    older = replace(BROKEN, arm="old")
    mended = upgraded(tmp_path / "mended", SAME, older, replace(GOOD, arm="new"), failed=1)
    assert "better" == changes_of("leader-crashes", mended, cells_of("leader-crashes", mended))[0].word


def test_only_versions_of_one_client_are_an_upgrade(tmp_path: Path) -> None:
    arms = {"a": {"client": "java"}, "b": {"client": "sarama", "version": "1"}, "c": {"client": "java", "version": "2"}}
    assert [] == upgrades(arms)
    arms |= {"d": {"client": "sarama", "version": "2"}, "d-advised": {"client": "sarama", "version": "2"}}
    arms |= {"e": {"client": "sarama", "version": "3"}}
    assert [("b", "d"), ("d", "e")] == upgrades(arms)
    versions = ("2.16.0", "2.2.0", "2.3.0", "2.3.0rc1")
    numbered = {version: {"client": "librdkafka", "version": version} for version in versions}
    assert [("2.2.0", "2.3.0rc1"), ("2.3.0rc1", "2.3.0"), ("2.3.0", "2.16.0")] == upgrades(numbered)
    plain = run(tmp_path / "run", GOOD)
    assert [] == changes_of("leader-crashes", plain, cells_of("leader-crashes", plain))
