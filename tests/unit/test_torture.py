"""The torture experiments at a small scale, and planted defects that each of them must report."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.faults.plan import check as plan_check
from aftershock.harness.safety.journal import open_faults
from aftershock.tests.torture import e1_mutated_plans, e4a_torn_journal, run, runner
from aftershock.tests.torture.runner import Experiment, Outcome, figure_of, read_rows, run_experiment

# Python 3.12 and later warn of a fork in a process with threads; the child of the runner starts none before it ends
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def experiment(trial: runner.Trial, **limits: float) -> Experiment:
    return Experiment("planted", "Planted", "defects", "0", 3, trial, **({"wall_s": 60.0, "batch": 9} | limits))


def outcomes(trial: runner.Trial, folder: Path, **limits: float) -> dict[int, list[str]]:
    rows = run_experiment(experiment(trial, **limits), folder, lambda _: None, seconds=60.0)
    return {seed: row["bad"] for seed, row in rows.items()}


def on_seed_1(action: Callable[[], object]) -> runner.Trial:
    def trial(seed: int, scratch: Path) -> Outcome:
        (scratch / "input").write_text(str(seed))
        if seed == 1:
            action()
        return Outcome(counts={"good": 1})

    return trial


def spin() -> None:
    while True:
        try:
            sum(range(1_000))
        except BaseException:  # noqa: BLE001, S112 -- as code under test might
            continue


@pytest.mark.parametrize(
    ("action", "limits", "why"),
    [
        (lambda: {}["missing"], {}, "traceback: "),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), {}, "crash: the process was ended by SIGKILL"),
        (lambda: os._exit(7), {}, "crash: the process ended with exit code 7"),
        (spin, {"cpu_s": 0.1}, "time-out: more than 0.1 s of CPU time"),
        (lambda: time.sleep(60), {"wall_s": 0.5}, "time-out: more than 0.5 s"),
        (lambda: bytearray(1 << 46), {"memory_bytes": 1 << 45}, "out of memory"),
    ],
    ids=["exception", "crash", "exit", "CPU", "wait", "memory"],
)
def test_a_trial_that_fails_is_an_outcome(
    tmp_path: Path, action: Callable[[], object], limits: dict[str, float], why: str
) -> None:
    """The trials before and after it count, and its inputs are kept."""
    bad = outcomes(on_seed_1(action), tmp_path, **limits)
    assert [[], []] == [bad[0], bad[2]]
    assert bad[1][0].startswith(why)
    assert ["planted-1", "planted.jsonl"] == sorted(path.name for path in tmp_path.iterdir())
    assert "1" == (tmp_path / "planted-1" / "input").read_text()


def test_trials_add_up_and_failed_seeds_are_repeated(tmp_path: Path) -> None:
    """A seed that failed comes first in the next run, and its last outcome counts."""
    assert {0: [], 1: ["traceback"], 2: []} == {
        seed: [why[:9] for why in bad] for seed, bad in outcomes(on_seed_1(lambda: 1 / 0), tmp_path).items()
    }
    assert {seed: [] for seed in range(6)} == outcomes(on_seed_1(lambda: None), tmp_path)
    lines = (tmp_path / "planted.jsonl").read_text().splitlines()
    assert [0, 1, 2, 1, 3, 4, 5] == [json.loads(line)["seed"] for line in lines]
    figure = figure_of(read_rows(experiment(on_seed_1(spin)), tmp_path).values())
    assert (6, 6, 0, {"good": 6}) == tuple(figure[name] for name in ("trials", "cases", "bad", "counts"))


def test_no_trial_starts_after_the_budget(tmp_path: Path) -> None:
    assert {} == run_experiment(experiment(on_seed_1(spin)), tmp_path, lambda _: None, seconds=0.0)


def test_the_page_is_what_the_figures_say(tmp_path: Path) -> None:
    """docs/RELIABILITY.md was written by the program; a figure that is added replaces its row only."""
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    figures.write_bytes(runner.FIGURES.read_bytes())
    run.update_page(figures, page, {})
    assert runner.PAGE.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    row = {"seed": 0, "at": "2026-11-25T12:00:00", "version": "9.9", "bad": ["why"], "cases": 10, "seconds": [1.0, 3.0]}
    figure = figure_of([row | {"counts": {"valid": 2}}])
    run.update_page(figures, page, {"e1_mutated_plans": figure})
    changed = page.read_text(encoding="utf-8")
    assert "| 1 | Mutated plans through `plan check` | 1 | 10 | 1 | 0 |  | 2026-11-25 |" in changed
    assert "Figures: valid 2, p50 2 s, p99 2.98 s." in changed


def test_every_experiment_has_its_file() -> None:
    """And a module docstring, which is the description on the page."""
    modules = {path.stem for path in Path(runner.__file__).parent.glob("e*.py")}
    assert modules == {*run.MODULES.values()} == {run.load(number).name for number in run.MODULES}
    assert all(
        (sys.modules[f"aftershock.tests.torture.{name}"].__doc__ or "").startswith("Hypothesis: ") for name in modules
    )


def test_1_mutated_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan of 20 fails, and a plan check that raises something else is reported."""
    limits = replace(e1_mutated_plans.EXPERIMENT, memory_bytes=None, trials=20)
    rows = run_experiment(limits, tmp_path, lambda _: None, seconds=60.0)
    assert ([], 20) == ([why for row in rows.values() for why in row["bad"]], len(rows))
    assert {"valid", "refused"} == {name for row in rows.values() for name in row["counts"]}
    monkeypatch.setattr(plan_check, "_problems", lambda _: {}["planted"])
    rows = run_experiment(limits, tmp_path / "planted", lambda _: None, seconds=60.0)
    assert any("KeyError: 'planted'" in why for row in rows.values() for why in row["bad"])


def test_4a_torn_journal(tmp_path: Path) -> None:
    """A reader that leaves out the lines it can't parse is reported."""
    number = next(number for number, (_, checksummed) in enumerate(e4a_torn_journal.journals()) if checksummed)
    path, source = tmp_path / "journal.jsonl", random.Random(1)  # noqa: S311
    assert () == tuple(e4a_torn_journal.survey(number, 1, path, source).bad)

    def lenient(journal: Path) -> set[str]:
        rows = list[dict[str, str]]()
        for line in journal.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
        return {row["fault"] for row in open_faults(row for row in rows if {"fault", "state"} <= row.keys())}

    assert e4a_torn_journal.survey(number, 0, path, source, lenient).bad

    def nameless(_: Path) -> set[str]:
        raise EvidenceError("damaged")

    assert e4a_torn_journal.survey(number, 0, path, source, nameless).bad
