"""Minimisation with fake runs: flaky failures, budgets, kills and the cache."""

import json
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError
from aftershock.faults.search.sequential_test import RUNS_MAX, Repeats
from aftershock.harness.search.minimise import Word
from aftershock.tests.unit.faults.search.following import ids
from aftershock.tests.unit.harness.search.pretend import STEPS, Killed, Pretend, culprit, search


def test_one_fault_of_twelve_is_isolated(tmp_path: Path) -> None:
    """The failure is repeated first, then reduced, then repeated; each reduction is written, so that a kill loses
    nothing.
    """
    pretend = Pretend(culprit("f7"))
    found, _, improved = search(tmp_path, pretend)
    assert ("minimal", 0, (STEPS, 1)) == (found.ending, found.exit_code, found.faults)
    assert {"f7"} == ids(found.document)
    assert (Repeats(2, 2), Repeats(2, 2)) == (found.before, found.after)
    assert [STEPS, STEPS, 0] == [len(ids(document)) for document in pretend.ran[:3]]
    sizes = [each.faults[1] for each in improved]
    assert sorted(sizes, reverse=True) == sizes
    assert found.last_failing == f"run-{len(pretend.ran)}"


@pytest.mark.parametrize(("outcomes", "runs"), [(["passes"], 2), (["fails", "passes"], RUNS_MAX)])
def test_a_flaky_failure_is_not_minimised(outcomes: list[Word], runs: int, tmp_path: Path) -> None:
    """A failure that doesn't recur, or in half of the runs, is reported: no smaller plan could be trusted."""
    turn = cycle(outcomes)
    pretend = Pretend(lambda _: next(turn))
    found, _, improved = search(tmp_path, pretend)
    assert ("flake", 2, False) == (found.ending, found.exit_code, found.is_smaller)
    assert (runs, []) == (len(pretend.ran), improved)


def test_undecided_repetitions_are_abandoned(tmp_path: Path) -> None:
    """The host is starved each time, or the cluster never comes up: three runs, then advice to fix the host."""
    found, _, _ = search(tmp_path, Pretend(lambda _: "undecided"))
    assert ("undecided", 2, 3) == (found.ending, found.exit_code, len(found.tried))


def test_a_small_plan_that_failed_by_chance_is_not_reported_as_failing(tmp_path: Path) -> None:
    once: Iterator[Word] = iter(["fails"])

    def rule(document: Mapping[str, Any]) -> Word:
        return "fails" if len(ids(document)) == STEPS else next(once, "passes")

    found, _, _ = search(tmp_path, Pretend(rule))
    assert ("unsteady", 2, Repeats(0, 2)) == (found.ending, found.exit_code, found.after)


def test_a_rarer_failure_gets_more_runs_per_candidate(tmp_path: Path) -> None:
    """At a rate of 3 in 4, a candidate is dropped after three passes, not after one; the culprit is isolated."""
    words: list[Word] = ["fails", "passes", "fails"]
    turns = cycle(words)

    def rule(document: Mapping[str, Any]) -> Word:
        return next(turns) if "f7" in ids(document) else "passes"

    found, _, _ = search(tmp_path, Pretend(rule), budget_s=36_000)
    assert Repeats(3, 4) == found.before
    assert {"f7"} == ids(found.document)


def test_an_undecided_candidate_gets_a_second_run(tmp_path: Path) -> None:
    """The first candidate is undecided once, and then fails: the failure counts."""
    words: list[Word] = ["fails", "fails", "undecided", "fails"]
    found, _, _ = search(tmp_path, Pretend(lambda _: words.pop(0) if words else "fails"))
    assert ["undecided", "fails"] == [each.word for each in found.tried if each.change == "without any fault"]
    assert (STEPS, 0) == found.faults


@pytest.mark.parametrize(
    ("budget_s", "ending", "code"), [(80, "unchanged", 2), (300, "unchanged", 2), (400, "smaller", 0)]
)
def test_the_budget_is_kept(budget_s: float, ending: str, code: int, tmp_path: Path) -> None:
    """No run starts that would end after the budget; time remains to repeat the best plan; the result is reported."""
    pretend = Pretend(culprit("f7"))
    found, _, _ = search(tmp_path, pretend, budget_s)
    assert pretend.now_s <= budget_s
    assert (ending, code, code == 0) == (found.ending, found.exit_code, found.is_smaller)
    assert Repeats(2, 2) == found.after or not found.is_smaller


def test_a_budget_for_no_run_at_all_is_refused(tmp_path: Path) -> None:
    """The error names the time of one run."""
    with pytest.raises(AftershockError, match=r"a budget of 20 s is too small: one run of this plan takes \d+ s"):
        search(tmp_path, Pretend(culprit("f7")), 20.0)


def test_a_killed_search_continues(tmp_path: Path) -> None:
    """Whichever run the process dies in: the next search repeats no finished run, and gets the same plan."""
    (tmp_path / "whole").mkdir()
    whole = Pretend(culprit("f2", "f9"))
    expected, _, _ = search(tmp_path / "whole", whole)
    for kill_at in range(1, len(whole.ran) + 1, 5):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        with pytest.raises(Killed):
            search(folder, Pretend(culprit("f2", "f9"), kill_at=kill_at))
        second = Pretend(culprit("f2", "f9"))
        found, _, _ = search(folder, second)
        assert expected.document == found.document
        assert len(whole.ran) == kill_at - 1 + len(second.ran)
    third = Pretend(culprit("f2", "f9"))
    found, _, _ = search(tmp_path / "whole", third, 1.0)
    assert (expected.document, 0) == (found.document, len(third.ran))


def test_a_broken_line_of_the_cache_is_reported_and_skipped(tmp_path: Path) -> None:
    """Garbage, another program's line and a torn last line cost the runs of these lines and nothing else."""
    whole = Pretend(culprit("f7"))
    expected, _, _ = search(tmp_path, whole)
    path = tmp_path / "cache.jsonl"
    lines = path.read_text().splitlines()
    lines[3], lines[5], lines[-1] = "{", '{"digest": "x"}', lines[-1][:20]
    path.write_text("\n".join(lines))
    second = Pretend(culprit("f7"))
    found, said, _ = search(tmp_path, second)
    assert 3 == len(second.ran)
    assert expected.document == found.document
    assert [f"{path}:{number}" for number in (4, 6, len(lines))] == [
        line.split(": ")[0] for line in said if "skipped" in line
    ]
    _, said, _ = search(tmp_path, Pretend(culprit("f7")))
    assert 3 == len([line for line in said if "skipped" in line])  # no more of them, and all else is known


def test_the_keys_of_the_cache_stay_the_same(tmp_path: Path) -> None:
    """Caches of earlier versions stay readable: the reduction is stored as `said`."""
    search(tmp_path, Pretend(culprit("f7")))
    first = json.loads((tmp_path / "cache.jsonl").read_text().splitlines()[0])
    assert {"digest", "said", "word", "why", "run", "took_s"} == set(first)
    assert "as it is" == first["said"]


def test_a_broken_run_is_repeated_by_a_later_search(tmp_path: Path) -> None:
    """The run counts against its candidate in this search only."""
    broken: list[Word] = ["fails", "fails", "passes", "broke"]
    first = Pretend(lambda document: broken.pop(0) if broken else culprit("f1")(document))
    search(tmp_path, first)
    second = Pretend(culprit("f1"))
    search(tmp_path, second)
    assert len(ids(second.ran[0])) == len(ids(first.ran[3]))
