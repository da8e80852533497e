"""The night's story, its commands told apart by a stand-in that notes them."""

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
from aftershock.harness.labs import corpus
from aftershock.harness.labs.corpus import Origin, keep, read
from aftershock.harness.labs.explore import search
from aftershock.harness.labs.nightly import night as record
from aftershock.harness.labs.nightly import night as regression
from aftershock.harness.labs.nightly.night import (
    CLOSING_S,
    COMPARED,
    STEPS,
    SUMMARY,
    Night,
    Step,
    allot,
    patch,
    run_night,
    worst,
    write_summary,
)

TODAY = date(2026, 11, 22)
ALL = allot(STEPS, None)


class Commands:
    """Notes what is run; ``codes``: exit codes by the word that tells a command."""

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


def test_a_step_that_fails_ends_nothing(tmp_path: Path) -> None:
    """All are run, then trend and pruning; the worst is the night's. The trend's 2 is no concern of a young ledger."""
    (tmp_path / "kips" / "951").mkdir(parents=True)
    run, said = Commands({"explore": 1, "kip": 2, "trend": 2}), []
    assert 1 == run_night(night(tmp_path), ALL, run, said.append)
    steps = ["explore", "run", "run", "kip", "run", "run", "run", "run", "-m"]
    assert [*steps, "trend", "runs", "runs"] == run.seen
    assert said[0].startswith("explore: about 20 m 00 s of ")


def test_an_interrupted_night_goes_on(tmp_path: Path) -> None:
    """What was done is not done again, and its exit code still counts; another seed begins anew."""
    with pytest.raises(KeyboardInterrupt):
        run_night(night(tmp_path), ALL, Commands({"explore": 1, "kip": 130}), print)
    assert {"explore": 1, "leader-rotation": 0, "demo": 0} == record.read_finished(night(tmp_path))
    rest = Commands({})
    assert 1 == run_night(night(tmp_path), ALL, rest, print)
    assert ["kip", "run"] == rest.seen[:2]
    assert {} == record.read_finished(Night(tmp_path, TODAY, 8))


NIGHT = """
import sys
from aftershock.harness.labs.nightly.night import run_command
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


def test_an_interrupted_step_tidies_up() -> None:
    """However long that takes, and though the signal was for us alone."""
    with subprocess.Popen([sys.executable, "-c", NIGHT, STEP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "begun\n" == process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert "tidied up\nnight over\n" == process.stdout.read()


def test_a_broken_record_begins_anew(tmp_path: Path) -> None:
    """Nothing of tonight is known then, so all is done."""
    (tmp_path / record.NAME).write_text("[]")
    assert {} == record.read_finished(night(tmp_path))


def test_the_summary_is_a_matrix(tmp_path: Path) -> None:
    """Steps with the line that repeats each; fault by client with verdict and recovery; what was never seen."""
    cell = Cell("kill", "leader", "steady", "confluent produce acks=all")
    line = CoverageLine(TODAY, "r1", 7, 0, cell, exercised=True, why="", verdict="PASS", recovered_s=3.25)
    search.append(tmp_path / search.NAME, [line])
    run_night(night(tmp_path), ALL, Commands({"explore": 1}), print)
    told = (tmp_path / SUMMARY).read_text()
    assert f"| explore | 1 | `aftershock explore --budget 1200s --seed 7 --out {tmp_path}` |" in told
    assert "| fault | confluent | reference |" in told
    assert "| `kill` | PASS, 3.2 s (n=1) | NEVER |" in told
    assert "2915 NEVER (add_partitions / topic / overlapping / " in told


def run_of(out: Path, number: int, seed: int, blocks: int = 8, **more: object) -> Path:
    """A judged run of the plan that nights are compared by."""
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
def test_tonight_beside_other_nights(nights: int, codes: tuple[int, ...], word: str, code: int, tmp_path: Path) -> None:
    """Worse than each of three is an alarm. No night is what was rehearsed, ran in other blocks, or comes later."""
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
    assert f"* leader-rotation beside each of the last three nights: {word}\n" in told
    assert f"* of {nights + 4} runs in {tmp_path}: {nights + 4} PASS\n" in told


def test_github_is_told_where_it_asks(tmp_path: Path) -> None:
    """And nobody else."""
    page = tmp_path / "page"
    write_summary("night\n", tmp_path, {"GITHUB_STEP_SUMMARY": str(page)})
    assert not page.exists()
    write_summary("night\n", tmp_path, {"GITHUB_STEP_SUMMARY": str(page), "GITHUB_ACTIONS": "true"})
    assert "night\n" == page.read_text()


def test_a_red_night_offers_a_patch(tmp_path: Path) -> None:
    """Of what failed tonight, and of no other night; a green one leaves none."""
    folder, said = tmp_path / corpus.NAME, list[str]()
    corpus.keep(folder, find("broker-loss").read_text(), Origin(1, "2026-11-01", ("integrity/lost",), "run"))
    (tmp_path / regression.REGRESSION_PATCH).write_text("of another night")
    run_night(night(tmp_path), ALL, Commands({}), said.append)
    assert not (tmp_path / regression.REGRESSION_PATCH).exists()
    corpus.keep(folder, find("demo").read_text(), Origin(1, TODAY.isoformat(), ("integrity/lost",), "run"))
    run_night(night(tmp_path), ALL, Commands({}), said.append)
    patch = (tmp_path / regression.REGRESSION_PATCH).read_text()
    assert "+name: demo" in patch
    assert "+name: broker-loss" not in patch
    assert f"git apply {tmp_path / regression.REGRESSION_PATCH}" in said[-1]


FOUND = Origin(7, "2026-11-22", ("integrity/lost", "obligation/produce"), "runs/x")


def test_nothing_failed_is_no_patch() -> None:
    """An empty text, so nothing is offered."""
    assert "" == patch([])


def test_git_applies_it_and_its_test_runs(tmp_path: Path) -> None:
    """In a repository of its own: the plan as it failed, and a test that holds it to the timeline that it had.

    A plan that strikes somebody else makes that test fail.
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


def pytested(home: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "still_the_one", str(home)]
    return subprocess.run(command, cwd=home, check=False, capture_output=True).returncode


SHORT, LONG, FIXED = (
    Step(name, ("x",), least, most) for name, least, most in (("a", 100, 200), ("b", 300, 900), ("c", 250, 250))
)


def test_without_a_budget_all_is_done() -> None:
    """Each as long as it wants."""
    found = allot(STEPS, None)
    assert list(STEPS) == list(found.seconds)
    assert {step: step.most_s for step in STEPS} == found.seconds
    assert not found.left_out


def test_what_is_left_over_lengthens_those_that_can_use_it() -> None:
    """In proportion to what they want, so that nobody waits for the last one; never past it."""
    found = allot([SHORT, LONG, FIXED], 650 + 350 + CLOSING_S)
    assert {SHORT: 150, LONG: 600, FIXED: 250} == found.seconds
    assert 650 + 350 + CLOSING_S == found.takes_s
    assert {SHORT: 200, LONG: 900, FIXED: 250} == allot([SHORT, LONG, FIXED], 9_000).seconds


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    """And those after it are still tried."""
    found = allot([SHORT, LONG, FIXED], 350 + CLOSING_S)
    assert [SHORT, FIXED] == list(found.seconds)
    assert {LONG: "a budget of 7 m 50 s"} == found.left_out


def test_half_an_hour_is_worth_its_while() -> None:
    """It searches, runs what the trend is made of, and puts the KIPs on trial, within the half hour."""
    found = allot(STEPS, 1_800)
    assert {"explore", "leader-rotation", "demo", "trials"} <= {step.name for step in found.seconds}
    assert found.takes_s <= 1_800


def test_a_budget_too_small_is_a_sentence() -> None:
    """It says what to give."""
    with pytest.raises(
        AftershockError, match="a budget of 1 m 00 s is too small for any step of a night: use --budget 5m or more"
    ):
        allot(STEPS, 60)


def test_words() -> None:
    """A step's command with the night's folder, seed and time."""
    explore = STEPS[0]
    words = explore.words("runs", 7, 300.9)
    assert ["explore", "--budget", "300s", "--seed", "7", "--out", "runs"] == words[2:]


@pytest.mark.parametrize(("codes", "code"), [([], 0), ([0, 2], 2), ([2, 1, 0], 1), ([1, 3], 3), ([0, 137], 3)])
def test_the_worst(codes: list[int], code: int) -> None:
    """ERROR over FAIL over INCONCLUSIVE; what nobody knows is an ERROR."""
    assert code == worst(codes)
