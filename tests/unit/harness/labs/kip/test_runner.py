"""A trial is run part by part, and goes on where it stopped."""

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
    Planned(name, "kips/951-move", 8, 6.0, 60.0, (f"timing.steady={s}s",)) for name, s in (("a", 5), ("b", 6))
)
TRIAL = Trial(951, "made up", (claim("a"), claim("b")), (ONE, OTHER), lambda _: ())


class Fake:
    """Performs by writing the documents of a judged run; ``troubles`` are raised instead, one a call."""

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
    """Each in its order, with its changes and blocks; asked again, nothing is run, and the answer is the same."""
    first, again = Fake(), Fake()
    go(first)
    before = output.text(read_result(TRIAL, home_of(TRIAL, tmp_path)))
    go(again)
    assert [("timing.steady=5s", "blocks=8"), ("timing.steady=6s", "blocks=8")] == [r.changes for r in first.requests]
    assert [] == again.requests
    assert before == output.text(read_result(TRIAL, home_of(TRIAL, tmp_path)))
    assert "CONFIRMED" in before


def test_interrupted(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """What was judged is kept, the part in hand isn't recorded, and the trial goes on with it."""
    with pytest.raises(KeyboardInterrupt):
        go(Fake(None, KeyboardInterrupt()))
    assert ["a"] == list(runner.read(home_of(TRIAL, tmp_path), 951).parts)
    then = Fake()
    go(then)
    assert [("timing.steady=6s", "blocks=8")] == [request.changes for request in then.requests]


def test_a_part_that_fails(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """The others go on, its claim says why it is open, and it has another chance the next time."""
    go(Fake(ClusterError("broker 2 did not come up\nsee its log")))
    told = read_result(TRIAL, home_of(TRIAL, tmp_path))
    assert ("inconclusive", "confirmed") == tuple(each.word for each in told.statements)
    assert "not run: it failed: broker 2 did not come up" == told.statements[0].why
    then = Fake()
    assert {} == go(then).left_out
    assert 1 == len(then.requests)


def test_without_an_engine(go: Callable[..., runner.Record]) -> None:
    """What no part can do without ends the trial."""
    with pytest.raises(EngineError):
        go(Fake(EngineError("no engine")))


def test_another_plan_is_another_part(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """A run of other settings doesn't count; neither does one whose folder was taken away."""
    go(Fake())
    changed = Trial(951, "made up", TRIAL.claims, (ONE, Planned("b", OTHER.plan, 8, 6.0, 60.0)), TRIAL.plots)
    told = read_result(changed, home_of(TRIAL, tmp_path))
    assert {"b": "its plan or seed has changed since"} == told.left_out
    (home_of(TRIAL, tmp_path) / told.parts["a"].run.run_id / "verdict.json").unlink()
    then = Fake()
    run_missing(changed, plan_within_budget([changed], None), tmp_path, 1, then, lambda _: None)
    assert 2 == len(then.requests)


def test_another_seed_is_another_trial(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """All is run again, and the record is of the new runs; the old ones are left to ``runs prune``."""
    go(Fake())
    then = Fake()
    go(then, seed=2)
    assert [2, 2] == [request.seed for request in then.requests]
    assert {"run-2", "run-3"} == {
        each.run.run_id for each in read_result(TRIAL, home_of(TRIAL, tmp_path)).parts.values()
    }


def test_budget(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Shorter parts are said to be, left-out ones too; more time later runs what is short, and less runs nothing."""
    go(Fake(), 100)
    told = read_result(TRIAL, home_of(TRIAL, tmp_path))
    assert ("a: 6 of 8 blocks",) == told.shortened
    assert {"b": "budget 1.67m"} == told.left_out
    said = output.text(told)
    assert "INCONCLUSIVE" in said
    assert "a: 6 of 8 blocks, so the interval is wider" in said
    later, less = Fake(), Fake()
    go(later)
    go(less, 200)
    assert (2, 0) == (len(later.requests), len(less.requests))


def test_a_record_that_is_none(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """It is named, with what to do, and nothing is run."""
    home = home_of(TRIAL, tmp_path)
    home.mkdir(parents=True)
    (home / runner.NAME).write_text("{")
    fake = Fake()
    with pytest.raises(EvidenceError, match=r"trial.json.*remove the file"):
        go(fake)
    assert [] == fake.requests


def test_what_is_shown(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """80 columns, one document with every figure, a page without a script, a row a statement in the table."""
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


def test_put() -> None:
    """Only what stands between the marks is replaced."""
    page = f"before\n{output.BEGIN}\nold\n{output.END}\nafter"
    assert f"before\n{output.BEGIN}\n\nnew\n\n{output.END}\nafter" == output.replace_results(page, "new")
