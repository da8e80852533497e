"""The torture experiments at a small scale, and planted defects that each of them must report."""

import json
import os
import random
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from aftershock.errors import EvidenceError
from aftershock.faults.plan import check as plan_check
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.safety.journal import open_faults
from aftershock.results.evidence.evidence import read
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.model.check import Verdict
from aftershock.results.spark.tables import columns
from aftershock.tests.torture import (
    e1_mutated_plans,
    e2_mutated_evidence,
    e3_killed_runner,
    e4a_torn_journal,
    e4b_full_disk,
    e5_killed_engine,
    e6_stopped_workers,
    e8_soak,
    e9_clean_runs,
    e14_planted_secrets,
    e15_hostile_hosts,
    run,
    runner,
)
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


def test_no_trial_starts_that_the_budget_does_not_cover(tmp_path: Path) -> None:
    """A soak of two hours would overrun a short night; a trial that is named starts in any case."""
    long = experiment(on_seed_1(lambda: None), takes_s=7200.0)
    assert {} == run_experiment(long, tmp_path, lambda _: None, seconds=7100.0)
    assert {5} == run_experiment(long, tmp_path, lambda _: None, seconds=7100.0, seeds=[5]).keys()


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
    assert "| 1 | Mutated plans through seven commands with all options | 1 | 10 | 1 | 0 |  | 2026-11-25 |" in changed
    assert "Figures: valid 2, p50 2 s, p99 2.98 s." in changed


def test_every_experiment_has_its_file() -> None:
    """And a module docstring, which is the description on the page."""
    modules = {path.stem for path in Path(runner.__file__).parent.glob("e*.py")}
    assert modules == {*run.MODULES.values()} == {run.load(number).name for number in run.MODULES}
    assert all(
        (sys.modules[f"aftershock.tests.torture.{name}"].__doc__ or "").startswith("Hypothesis: ") for name in modules
    )


def test_1_mutated_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan of 12 fails, and a plan check that raises something else is reported."""
    limits = replace(e1_mutated_plans.EXPERIMENT, memory_bytes=None, trials=12)
    rows = run_experiment(limits, tmp_path, lambda _: None, seconds=600.0)
    assert ([], 12) == ([why for row in rows.values() for why in row["bad"]], len(rows))
    seen = {name for row in rows.values() for name in row["counts"]}
    assert {"valid", "refused", "plan show done", "run refused"} <= seen
    monkeypatch.setattr(plan_check, "_problems", lambda _: {}["planted"])
    rows = run_experiment(limits, tmp_path / "planted", lambda _: None, seconds=60.0)
    assert any("KeyError: 'planted'" in why for row in rows.values() for why in row["bad"])
    answers = [(0, "", ""), (1, "", "x"), (3, "", ""), (3, "", "Traceback (most"), (3, "", "a\x1bb")]
    assert [1] * 5 == [len(e1_mutated_plans.problems(["run"], *answer, refused=True)) for answer in answers]
    assert [] == e1_mutated_plans.problems(["run"], 3, "", "plan.yaml:1:1: no", refused=True)


@pytest.mark.parametrize("spelling", ["plain", "JSON in JSON"])
def test_14_planted_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    """Every place hides a secret that was read, also one that line ends split; a place that writes it is reported."""
    secret, planted = 'x7 Q"\\&<y', e14_planted_secrets.planted
    monkeypatch.setattr(e14_planted_secrets.redaction, "_known", {})
    e14_planted_secrets.redaction.remember(secret)
    text = e14_planted_secrets.SPELLINGS[spelling](secret)
    places = enumerate(e14_planted_secrets.PLACES.items())
    found = {name: planted(plant, text, secret, tmp_path / f"{number}") for number, (name, plant) in places}
    assert {} == {name: leaks for name, leaks in found.items() if leaks}

    def wrapped(text: str, home: Path) -> None:
        (home / "file").write_text(text.replace(" ", "\n"))

    assert ["plain in file"] == planted(wrapped, secret, secret, tmp_path / "wrapped")
    assert ["nothing was written"] == planted(lambda *_: None, secret, secret, tmp_path / "nothing")


def test_14_secrets_that_are_recognised(tmp_path: Path) -> None:
    unread = string.ascii_letters + string.digits
    for number, (name, plant) in enumerate(e14_planted_secrets.UNREAD.items()):
        assert [] == e14_planted_secrets.planted(plant, unread, unread, tmp_path / f"{number}"), name


def test_15_hostile_hosts(tmp_path: Path) -> None:
    """Two leases at once, a silent fallback, an error without a cause and other verdicts are reported."""
    told = ["until then, runs of other users may disturb this one"]
    answers = [(1, 0.0, 1.0, told), (1, 1.0, 2.0, told), (2, 0.5, 1.5, told)]
    assert [] == e15_hostile_hosts.lease_problems("a file", answers)
    assert 2 == len(e15_hostile_hosts.lease_problems("shared", answers))
    assert 1 == len(e15_hostile_hosts.lease_problems("a file", [*answers, (2, 1.0, 3.0, told)]))
    assert 1 == len(e15_hostile_hosts.lease_problems("a file", [*answers, (3, 2.0, 3.0, [])]))
    assert 1 == len(e15_hostile_hosts.lease_problems("shared", [(1, 0.0, 0.0, ["LeaseError()"])]))
    wrong = [(0, "", ""), (3, "", "no engine"), (3, "", "Traceback at tcp://x")]
    assert [1] * 3 == [len(e15_hostile_hosts.unnamed("heal", answer, (3,), "tcp://x")) for answer in wrong]
    assert [] == e15_hostile_hosts.unnamed("heal", (3, "", "no engine at tcp://x"), (3,), "tcp://x")
    assert [] == [*e15_hostile_hosts.jumping_clock(random.Random(1), tmp_path).bad]  # noqa: S311


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


def test_2_mutated_evidence_is_refused(tmp_path: Path) -> None:
    """Each kind of file, damaged in several ways, differs from its digest or is itself invalid; none is overlooked."""
    overlooked = []
    for number, kind in enumerate(e2_mutated_evidence.KINDS * 3):
        home = e2_mutated_evidence.base_copy("demo", tmp_path / f"{number}")
        before = manifest_of(home)
        what = e2_mutated_evidence.mutate(home, kind, random.Random(number))  # noqa: S311
        try:
            read(home, columns())
        except EvidenceError:
            continue
        if before != manifest_of(home):  # some damage replaces a value by the same value
            overlooked.append(f"{kind}: {what}")
    assert [] == overlooked


def test_2_mutated_evidence_plants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that crashes, one that changes its verdict, and a reader that crashes are reported."""
    same = e2_mutated_evidence.base_copy("demo", tmp_path / "same")
    mutated = e2_mutated_evidence.base_copy("demo", tmp_path / "mutated")
    (mutated / "run.json").write_text("{}")
    homes = {same: "nothing", mutated: "values of run.json"}

    class Planted:
        def __init__(self, error: Exception | None = None) -> None:
            self.error = error

        def many(self, run_dirs: Sequence[Path]) -> dict[Path, Verdict]:
            if self.error:
                raise self.error
            return {home: Verdict("same", "demo", 1, (), ()) for home in run_dirs}

    crashing, changing = Planted(KeyError("planted")), Planted()

    def bad_of(judge: Planted) -> list[str]:
        judges = e2_mutated_evidence.Judges(judge, judge, {"demo": "another verdict"})  # type: ignore[arg-type]
        outcome = e2_mutated_evidence.examine(homes, "demo", judges)
        assert (2, 1) == (outcome.cases, outcome.counts["refused"])
        return [*outcome.bad]

    raised = "the judge raised KeyError('planted')"
    assert [f"same: nothing: {raised}"] * 2 + [f"mutated: values of run.json: {raised}"] == sorted(
        bad_of(crashing), reverse=True
    )
    assert ["same: nothing: the verdict changed without an error; it is INCONCLUSIVE"] == bad_of(changing)
    monkeypatch.setattr(e2_mutated_evidence, "read", lambda *_: {}["reader"])
    judges = e2_mutated_evidence.Judges(changing, changing, {"demo": ""})  # type: ignore[arg-type]
    bad = e2_mutated_evidence.examine(homes, "demo", judges).bad
    assert 2 == sum("reading the evidence raised KeyError('reader')" in why for why in bad)


def test_3_killed_runner(tmp_path: Path) -> None:
    """A fault that is not healed by the journal, and a kept cluster that is not as new, are reported."""
    lines = [("slow", "intended"), ("slow", "healed"), ("dead", "intended"), ("dead", "injected")]
    text = "".join(json.dumps({"fault": fault, "state": state}) + "\n" for fault, state in lines)
    (tmp_path / "journal.jsonl").write_text(text + '{"fault": "de')
    assert ["dead"] == e3_killed_runner.in_force(tmp_path)
    clean = {"states": ["running"] * 3, "topic": {"min.insync.replicas": "2"}, "writable": [[True], [True]]}
    clean |= {"toxics": {}, "disabled": [], "rules": None}
    assert [] == e3_killed_runner.unlike_new(clean)
    planted = {"states": ["running", "paused"], "topic": {"retention.ms": "9"}, "writable": [[True, False]]}
    planted |= {"toxics": {"k1": ["latency"]}, "disabled": ["k2"], "rules": ["r"]}
    for name, value in planted.items():
        assert [name] == [why.split(" ")[0] for why in e3_killed_runner.unlike_new(clean | {name: value})]


def test_4b_full_disk() -> None:
    """A traceback, remains and unreadable evidence are reported."""
    judged = [subprocess.CompletedProcess([], code, "", text) for code, text in ((0, ""), (3, "x"), (1, "Traceback"))]
    assert [0, 1, 1] == [len(e4b_full_disk.problems("the disk is full", "", evidence)) for evidence in judged]
    assert ["the run ended in a traceback", "left: k1"] == e4b_full_disk.problems("Traceback (most", "k1", None)


def test_5_killed_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another exit code, a message without the engine, and remains are reported; a foreign engine is left alone."""
    assert [] == e5_killed_engine.problems(3, "the Docker engine stopped answering", "")
    assert 3 == len(e5_killed_engine.problems(1, "no space left", "k1"))
    monkeypatch.setattr(e5_killed_engine, "PID_FILE", tmp_path / "pid")
    with pytest.raises(RuntimeError, match="names no dockerd"):
        e5_killed_engine.engine_process()
    (tmp_path / "pid").write_text(f"{os.getpid()}")
    with pytest.raises(RuntimeError, match="names no dockerd"):
        e5_killed_engine.engine_process()


def test_6_and_9_failed_checks() -> None:
    """A failed check is reported with its id; an INCONCLUSIVE one is not."""
    checks = [{"id": f"slo/{status}", "status": status, "why": "x"} for status in ("PASS", "INCONCLUSIVE", "FAIL")]
    assert ["slo/FAIL FAIL: x"] == e6_stopped_workers.blamed({"checks": checks})
    assert e9_clean_runs.blamed is e6_stopped_workers.blamed


def test_8_soak() -> None:
    """Growth of 5 % after ten minutes, too much memory and a slow judgement are reported; growth before is not."""
    rising = [80.0 + number / 10 for number in range(60)]
    steady = rising + [86.0] * 660
    assert [] == e8_soak.problems({"runner": steady, "orders-produce": steady}, 120, 30.0)
    growing = [*steady[:360], *(86.0 + 8 * number / 360 for number in range(360))]
    bad = e8_soak.problems({"runner": [*growing[:-1], 260.0]}, 120, 61.0)
    assert ["the memory of runner grew by 9%", "runner had 260 MiB", "the run was judged in 61 s"] == [
        why.partition(",")[0] for why in bad
    ]
    for minutes in (2, 120, 1440):
        assert 0.6 * minutes < compile_checked(load_plan(e8_soak.plan(minutes)), 1).length_ms / 60_000 <= minutes


@pytest.mark.parametrize("module", [e4b_full_disk, e6_stopped_workers, e9_clean_runs])
def test_the_plans_are_valid(module: ModuleType) -> None:
    load_plan(module.PLAN)
