"""The nightly run with a fake for its commands, the time allotted to its steps, and the patch offered after a
failure.
"""

import ast
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.search.coverage import Cell, CoverageLine
from aftershock.faults.search.swarm import draw_plan, frame_of
from aftershock.harness.nightly import (
    CLOSING_S,
    COMPARED,
    NAME,
    REGRESSION_PATCH,
    STEPS,
    SUMMARY,
    Night,
    Step,
    allot,
    patch,
    read_finished,
    run_night,
    worst,
    write_summary,
)
from aftershock.harness.search import corpus
from aftershock.harness.search import explore as search
from aftershock.harness.search.corpus import Origin, keep, read

TODAY = date(2026, 11, 22)
ALL = allot(STEPS, None)


class Commands:
    """Records the commands; ``codes`` maps a word of a command to its exit code."""

    def __init__(self, codes: Mapping[str, int]) -> None:
        self.codes, self.seen = codes, list[str]()

    def __call__(self, words: Sequence[str]) -> int:
        self.seen.append(words[2])
        code = self.codes.get(words[2], 0)
        if code == 130:
            raise KeyboardInterrupt
        return code


def night(out: Path) -> Night:
    return Night(out, TODAY, 7)


def test_a_failed_step_does_not_end_the_night(tmp_path: Path) -> None:
    """All steps run, then trend and pruning; the worst exit code is the night's. The trend's 2 doesn't count while
    the ledger is young.
    """
    (tmp_path / "kips" / "951").mkdir(parents=True)
    run, said = Commands({"explore": 1, "kip": 2, "trend": 2}), []
    assert 1 == run_night(night(tmp_path), ALL, run, said.append)
    steps = ["explore", "run", "run", "kip", "run", "zoo", "run", "run", "run", "run", "-m", "--rotate"]
    assert [*steps, "trend", "runs", "runs"] == run.seen
    assert said[0].startswith("the step explore takes about 20 m 00 s, the remaining night ")


def test_an_interrupted_night_continues(tmp_path: Path) -> None:
    """Finished steps are not repeated, and their exit codes count; another seed starts anew."""
    with pytest.raises(KeyboardInterrupt):
        run_night(night(tmp_path), ALL, Commands({"explore": 1, "kip": 130}), print)
    assert {"explore": 1, "leader-rotation": 0, "demo": 0} == read_finished(night(tmp_path))
    rest = Commands({})
    assert 1 == run_night(night(tmp_path), ALL, rest, print)
    assert ["kip", "run"] == rest.seen[:2]
    assert {} == read_finished(Night(tmp_path, TODAY, 8))


NIGHT = """
import sys
from aftershock.harness.nightly import run_command
try:
    run_command(["-c", sys.argv[1]])
except KeyboardInterrupt:
    print("night over")
"""
STEP = """
import sys, time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    print("tidied up", flush=True)
    sys.exit(130)
"""


def test_an_interrupted_step_may_clean_up() -> None:
    """However long the clean-up takes, and although the signal reached this process only."""
    with subprocess.Popen([sys.executable, "-c", NIGHT, STEP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "begun\n" == process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert "tidied up\nnight over\n" == process.stdout.read()


def test_a_broken_record_starts_the_night_anew(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[]")
    assert {} == read_finished(night(tmp_path))


def test_the_summary_is_a_matrix(tmp_path: Path) -> None:
    """Steps with the command that repeats each; faults by clients with verdict and recovery; cells never covered."""
    cell = Cell("kill", "leader", "steady", "confluent produce acks=all")
    line = CoverageLine(TODAY, "r1", 7, 0, cell, exercised=True, why="", verdict="PASS", recovered_s=3.25)
    search.append(tmp_path / search.NAME, [line])
    run_night(night(tmp_path), ALL, Commands({"explore": 1}), print)
    told = (tmp_path / SUMMARY).read_text()
    assert f"| explore | 1 | `aftershock explore --budget 1200s --seed 7 --out {tmp_path}` |" in told
    assert "| fault | confluent | reference |" in told
    assert "| `kill` | PASS, 3.2 s (n=1) | NEVER |" in told
    cells = len(frame_of(load_plan(find("explore"))).cells)
    assert f"{cells - 1} NEVER (add_partitions / topic / overlapping / " in told


def run_of(out: Path, number: int, seed: int, blocks: int = 8, **more: object) -> Path:
    """Write a judged run of the plan that the nights are compared by."""
    home = out / f"r{number}"
    home.mkdir(parents=True)
    started = datetime(TODAY.year, TODAY.month, TODAY.day, number, tzinfo=UTC).isoformat()
    facts = {"schema": 1, "run_id": home.name, "plan": "leader-rotation", "started_at": started, "seed": seed}
    (home / "run.json").write_text(json.dumps(facts | {"status": "finished"} | more))
    (home / "timeline.json").write_text(json.dumps({"blocks_ms": list(range(blocks))}))
    (home / "verdict.json").write_text(json.dumps({"status": "PASS"}))
    return home


@pytest.mark.parametrize(
    ("nights", "codes", "word", "code"),
    [
        (3, (1, 1, 1), "worse", 1),
        (3, (1, 2, 1), "not worse", 0),
        (3, (1, 3, 1), "not comparable", 0),
        (2, (), "only 2 earlier nights", 0),
    ],
)
def test_the_trend_compares_tonight_with_earlier_nights(
    nights: int, codes: tuple[int, ...], word: str, code: int, tmp_path: Path
) -> None:
    """Worse than each of three nights is an alarm. A rehearsal, a night with other blocks, and a later night don't
    count.
    """
    before = [run_of(tmp_path, number, number) for number in range(1, 1 + nights)]
    run_of(tmp_path, 8, 8, rehearse=True)
    run_of(tmp_path, 9, 9, blocks=1)
    tonight = run_of(tmp_path, 10, 7)
    run_of(tmp_path, 11, 11)
    answers, asked = iter(codes), []

    def run(words: Sequence[str]) -> int:
        if words[2] != "compare":
            return 0
        asked.append(words[3:])
        return next(answers)

    assert code == run_night(night(tmp_path), ALL, run, print)
    by = ["--control", "metadata", *(word for metric in COMPARED for word in ("--metric", metric))]
    assert [[str(one), str(tonight), *by] for one in reversed(before)][: len(codes)] == asked
    told = (tmp_path / SUMMARY).read_text()
    assert f"* leader-rotation compared with each of the last three nights: {word}\n" in told
    assert f"* of {nights + 4} runs in {tmp_path}: {nights + 4} PASS\n" in told


def test_the_github_summary_is_written_if_requested(tmp_path: Path) -> None:
    page = tmp_path / "page"
    write_summary("night\n", tmp_path, {"GITHUB_STEP_SUMMARY": str(page)})
    assert not page.exists()
    write_summary("night\n", tmp_path, {"GITHUB_STEP_SUMMARY": str(page), "GITHUB_ACTIONS": "true"})
    assert "night\n" == page.read_text()


def test_a_failed_night_offers_a_patch(tmp_path: Path) -> None:
    """The patch has tonight's failures only; a night without failure leaves no patch."""
    folder, said = tmp_path / corpus.NAME, list[str]()
    corpus.keep(folder, find("broker-loss").read_text(), Origin(1, "2026-11-01", ("integrity/lost",), "run"))
    (tmp_path / REGRESSION_PATCH).write_text("of another night")
    run_night(night(tmp_path), ALL, Commands({}), said.append)
    assert not (tmp_path / REGRESSION_PATCH).exists()
    corpus.keep(folder, find("demo").read_text(), Origin(1, TODAY.isoformat(), ("integrity/lost",), "run"))
    run_night(night(tmp_path), ALL, Commands({}), said.append)
    patch = (tmp_path / REGRESSION_PATCH).read_text()
    assert "+name: demo" in patch
    assert "+name: broker-loss" not in patch
    assert f"git apply {tmp_path / REGRESSION_PATCH}" in said[-1]


FOUND = Origin(7, "2026-11-22", ("integrity/lost", "obligation/produce"), "runs/x")


def test_no_failure_gives_an_empty_patch() -> None:
    assert "" == patch([])


def test_git_applies_the_patch_and_its_test_runs(tmp_path: Path) -> None:
    """The patch adds the failing plan, and a test that compares its timeline with the original.

    A plan that hits another target makes that test fail.
    """
    drawn = draw_plan(frame_of(load_plan(find("explore"))), {}, 7, 3)
    keep(tmp_path / "corpus", drawn.text, FOUND)
    (entry,) = read(tmp_path / "corpus").entries
    (tmp_path / "regression.patch").write_text(patch([entry]))
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "regression.patch"], cwd=tmp_path, check=True)
    (home,) = (tmp_path / "tests" / "regressions").iterdir()
    assert drawn.text == (home / "plan.yaml").read_text()
    assert 0 == pytested(home)
    plan = home / "plan.yaml"
    plan.write_text(plan.read_text().replace("at: 0s", "at: 1s") + "- {kind: kill, at: 70s, for: 3s, broker: 1}\n")
    assert 1 == pytested(home)


def test_words_of_a_corpus_do_not_become_code(tmp_path: Path) -> None:
    """Check ids with quotes and line ends are constants, and a plan's program needs the reader's permission."""
    evil = ('"""\nimport os; os.abort()\n"""', "\u2028x = 1", "{seed}", "\\")
    text = find("demo").read_text()
    arm = next(line for line in text.splitlines() if "client:" in line)
    text = text.replace(arm, f"{arm}\n      own: {{client: exec, command: [evil]}}", 1)
    keep(tmp_path / "corpus", text, Origin(7, "2026-11-22", evil, 'runs/"""'))
    (entry,) = read(tmp_path / "corpus").entries
    assert evil == entry.origin.failed
    added = [line[1:] for line in patch([entry]).split("+++ b/")[3].split("\n") if line.startswith("+")]
    tree = ast.parse("\n".join(added))
    constants = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert ("2026-11-22", 7, evil) == tuple(ast.literal_eval(constants[name]) for name in ("NIGHT", "SEED", "FAILED"))
    assert {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef} == {type(node) for node in tree.body}
    assert "abort" not in {getattr(node, "attr", None) for node in ast.walk(tree)}
    assert "allow_exec" not in {getattr(node, "arg", None) for node in ast.walk(tree)}
    assert any("add allow_exec=True if you trust it" in line for line in added)


def test_a_corpus_with_another_date_is_skipped(tmp_path: Path) -> None:
    keep(tmp_path, find("demo").read_text(), Origin(7, '"""', (), "run"))
    assert ["Invalid isoformat string"] == [why.split(": ")[2] for why in read(tmp_path).skipped]


def pytested(home: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "still_the_one", str(home)]
    return subprocess.run(command, cwd=home, check=False, capture_output=True).returncode


SHORT, LONG, FIXED = (
    Step(name, ("x",), least, most) for name, least, most in (("a", 100, 200), ("b", 300, 900), ("c", 250, 250))
)


def test_without_budget_every_step_runs_in_full() -> None:
    found = allot(STEPS, None)
    assert list(STEPS) == list(found.seconds)
    assert {step: step.most_s for step in STEPS} == found.seconds
    assert not found.left_out


def test_spare_time_lengthens_steps() -> None:
    """In proportion to the wanted time, and never beyond it."""
    found = allot([SHORT, LONG, FIXED], 650 + 350 + CLOSING_S)
    assert {SHORT: 150, LONG: 600, FIXED: 250} == found.seconds
    assert 650 + 350 + CLOSING_S == found.takes_s
    assert {SHORT: 200, LONG: 900, FIXED: 250} == allot([SHORT, LONG, FIXED], 9_000).seconds


def test_a_step_that_does_not_fit_is_left_out_with_its_reason() -> None:
    """The steps after it are still considered."""
    found = allot([SHORT, LONG, FIXED], 350 + CLOSING_S)
    assert [SHORT, FIXED] == list(found.seconds)
    assert {LONG: "a budget of 7 m 50 s"} == found.left_out


def test_half_an_hour_pays_for_search_trend_and_trials() -> None:
    found = allot(STEPS, 1_800)
    assert {"explore", "leader-rotation", "demo", "trials"} <= {step.name for step in found.seconds}
    assert found.takes_s <= 1_800


def test_a_budget_too_small_is_refused() -> None:
    """The error names a budget that would do."""
    with pytest.raises(
        AftershockError, match="a budget of 1 m 00 s is too small for any step of a night; use --budget 5m or more"
    ):
        allot(STEPS, 60)


def test_a_step_command_has_folder_seed_and_time() -> None:
    explore = STEPS[0]
    words = explore.words("runs", 7, 300.9)
    assert ["explore", "--budget", "300s", "--seed", "7", "--out", "runs"] == words[2:]


@pytest.mark.parametrize(("codes", "code"), [([], 0), ([0, 2], 2), ([2, 1, 0], 1), ([1, 3], 3), ([0, 137], 3)])
def test_the_worst_exit_code(codes: list[int], code: int) -> None:
    """ERROR comes before FAIL, FAIL before INCONCLUSIVE; an unknown code is an ERROR."""
    assert code == worst(codes)
