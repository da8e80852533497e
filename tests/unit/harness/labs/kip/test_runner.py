"""Run of a trial part by part, with resumption after an interrupt."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aftershock.errors import ClusterError, EngineError, EvidenceError
from aftershock.harness.labs.kip import output, runner
from aftershock.harness.labs.kip.output import read_result
from aftershock.harness.labs.kip.runner import home_of, plan_within_budget, run_missing
from aftershock.harness.labs.kip.trials import Planned, Trial
from aftershock.harness.run.run import Request
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.statement import Judged, below
from aftershock.tests.unit.results.trials.made import part, written


def judged(name: str, parts: Parts) -> Judged:
    return below(parts[name].ratio("w/new", "w/old", "produce.latency max in fault"), 0.6)


def claim(name: str) -> Claim:
    return Claim(name, f"what {name} claims", "below 0.6", (name,), partial(judged, name))


ONE, OTHER = (
    Planned(name, "kips/951-move", 60.0, (f"timing.steady={s}s",), 8, 6.0) for name, s in (("a", 5), ("b", 6))
)
TRIAL = Trial(951, "made up", (claim("a"), claim("b")), (ONE, OTHER), lambda _: ())


class Fake:
    """Writes the documents of a judged run; raises each of ``troubles`` once instead."""

    def __init__(self, *troubles: BaseException | None, ratio: float = 0.5) -> None:
        self.requests: list[Request] = []
        self.troubles = list(troubles)
        self.ratio = ratio

    def __call__(self, request: Request) -> Path:
        self.requests.append(request)
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble:
            raise trouble
        blocks = int(request.changes[-1].removeprefix("blocks="))
        old = [100.0 + number for number in range(blocks)]
        values = {"w/new": [ms * self.ratio * (1.01 if ms % 2 else 0.99) for ms in old], "w/old": old}
        number = len([each for each in request.out.iterdir() if each.is_dir()])
        return written(part(str(number), values), request.out)


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., runner.Record]:
    def run(fake: Fake, budget_s: float | None = None, seed: int = 1) -> runner.Record:
        return run_missing(TRIAL, plan_within_budget([TRIAL], budget_s), tmp_path, seed, fake, lambda _: None)

    return run


def test_all_parts_are_run_once(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Parts run in order with their changes and blocks; a second call runs nothing and has the same result."""
    first, again = Fake(), Fake()
    go(first)
    before = output.text(read_result(TRIAL, home_of(TRIAL, tmp_path)))
    go(again)
    assert [("timing.steady=5s", "blocks=8"), ("timing.steady=6s", "blocks=8")] == [r.changes for r in first.requests]
    assert [] == again.requests
    assert before == output.text(read_result(TRIAL, home_of(TRIAL, tmp_path)))
    assert "CONFIRMED" in before


def test_an_interrupted_trial_continues_with_the_open_part(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Judged parts are kept, and the part that was interrupted isn't recorded."""
    with pytest.raises(KeyboardInterrupt):
        go(Fake(None, KeyboardInterrupt()))
    assert ["a"] == list(runner.read(home_of(TRIAL, tmp_path), 951).parts)
    then = Fake()
    go(then)
    assert [("timing.steady=6s", "blocks=8")] == [request.changes for request in then.requests]


def test_a_failed_part_is_tried_again_the_next_time(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """The other parts run, and the failed part's claim has the reason why it is open."""
    go(Fake(ClusterError("broker 2 did not come up\nsee its log")))
    told = read_result(TRIAL, home_of(TRIAL, tmp_path))
    assert ("inconclusive", "confirmed") == tuple(each.word for each in told.statements)
    assert "not run: it failed: broker 2 did not come up" == told.statements[0].why
    then = Fake()
    assert {} == go(then).left_out
    assert 1 == len(then.requests)


def test_a_missing_engine_ends_the_trial(go: Callable[..., runner.Record]) -> None:
    with pytest.raises(EngineError):
        go(Fake(EngineError("no engine")))


def test_a_run_with_other_settings_does_not_count(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Neither does a run whose folder was removed."""
    go(Fake())
    changed = Trial(951, "made up", TRIAL.claims, (ONE, Planned("b", OTHER.plan, 60.0, (), 8, 6.0)), TRIAL.plots)
    told = read_result(changed, home_of(TRIAL, tmp_path))
    assert {"b": "the plan or seed of this part of the trial has changed since the part ran"} == told.left_out
    (home_of(TRIAL, tmp_path) / told.parts["a"].run.run_id / "verdict.json").unlink()
    then = Fake()
    run_missing(changed, plan_within_budget([changed], None), tmp_path, 1, then, lambda _: None)
    assert 2 == len(then.requests)


def test_another_seed_runs_all_parts_again(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """The record has the new runs; the old runs are left to ``runs prune``."""
    go(Fake())
    then = Fake()
    go(then, seed=2)
    assert [2, 2] == [request.seed for request in then.requests]
    assert {"run-2", "run-3"} == {
        each.run.run_id for each in read_result(TRIAL, home_of(TRIAL, tmp_path)).parts.values()
    }


def test_a_larger_budget_runs_shortened_and_omitted_parts(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Shortened and omitted parts are reported; a smaller budget runs nothing."""
    go(Fake(), 100)
    told = read_result(TRIAL, home_of(TRIAL, tmp_path))
    assert ("a: 6 of 8 blocks",) == told.shortened
    assert {"b": "budget 1.67m"} == told.left_out
    said = output.text(told)
    assert "INCONCLUSIVE" in said
    assert "a: 6 of 8 blocks were run, so the confidence interval is wider" in said
    later, less = Fake(), Fake()
    go(later)
    go(less, 200)
    assert (2, 0) == (len(later.requests), len(less.requests))


def test_a_broken_record_is_an_error(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """The error names the file and the remedy, and no part runs."""
    home = home_of(TRIAL, tmp_path)
    home.mkdir(parents=True)
    (home / runner.NAME).write_text("{")
    fake = Fake()
    with pytest.raises(EvidenceError, match=r"trial.json.*remove the file"):
        go(fake)
    assert [] == fake.requests


def test_the_result_in_every_format(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Text of 80 columns, JSON with every figure, HTML without script, and one table row for each claim."""
    go(Fake(ratio=1.5))
    home = home_of(TRIAL, tmp_path)
    told = read_result(TRIAL, home)
    assert 80 >= max(map(len, output.text(told).splitlines()))
    document = json.loads(json.dumps(output.document([told])))["trials"][0]
    assert ("contradicted", 8) == (document["verdict"], document["statements"][0]["ours"]["n"])
    shown = output.write(TRIAL, told, home).read_text(encoding="utf-8")
    assert "<script" not in shown
    assert "KIP-951, made up: contradicted" in shown
    rows = [line for line in output.table([told]).splitlines() if line.startswith("| claim | what ")]
    assert 2 == len(rows)
    assert "| contradicted: 0 of 2 claims confirmed |" in output.digest([told])


def test_only_the_text_between_the_markers_is_replaced() -> None:
    page = f"before\n{output.BEGIN}\nold\n{output.END}\nafter"
    assert f"before\n{output.BEGIN}\n\nnew\n\n{output.END}\nafter" == output.replace_results(page, "new")
