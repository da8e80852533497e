"""Run of a trial part by part, with resumption after an interrupt."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from markupsafe import Markup

from aftershock.errors import ClusterError, EngineError, EvidenceError
from aftershock.harness.labs.kip import output, runner
from aftershock.harness.labs.kip.output import read_result
from aftershock.harness.labs.kip.runner import home_of, plan_within_budget, run_missing
from aftershock.harness.labs.kip.trials import TRIALS, Planned, Trial
from aftershock.harness.run.run import Request
from aftershock.results.trials.claim import Claim, Parts, Registration
from aftershock.results.trials.mechanism import mechanism
from aftershock.results.trials.statement import Measured, Plot, Rule
from aftershock.tests.unit.results.trials.made import part, written


def measured(name: str, parts: Parts) -> Measured:
    return Measured(parts[name].ratio("w/new", "w/old", "produce.latency max in fault"))


def claim(name: str) -> Claim:
    rule = Rule("below", (0.6,), 1.0, ratio=True)
    return Claim(name, f"what {name} claims", (name,), partial(measured, name), "claim", rule, "blocks", 8)


ONE, OTHER = (
    Planned(name, "kips/951-move", 60.0, (f"timing.steady={s}s",), 8, 6.0, off=("timing.steady=9s",))
    for name, s in (("a", 5), ("b", 6))
)
REGISTRATION = Registration(3, (replace(claim("a"), headline=True), claim("b")))
TRIAL = Trial(951, "made up", REGISTRATION, (ONE, OTHER), lambda _: ())


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
        home = home_of(TRIAL, tmp_path)
        stored = runner.read(home, TRIAL, seed).stored(TRIAL, home)
        plan = plan_within_budget([TRIAL], budget_s, stored)
        return run_missing(TRIAL, plan, tmp_path, seed, fake, lambda _: None)

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
    assert ["a"] == list(runner.read(home_of(TRIAL, tmp_path), TRIAL).parts)
    then = Fake()
    go(then)
    assert [("timing.steady=6s", "blocks=8")] == [request.changes for request in then.requests]


def test_a_failed_part_is_tried_again_the_next_time(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """The other parts run, and the failed part's claim has the reason why it is open."""
    go(Fake(ClusterError("broker 2 did not come up\nsee its log")))
    told = read_result(TRIAL, home_of(TRIAL, tmp_path))
    assert ("undecided", "confirmed") == tuple(each.word for each in told.statements)
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
    changed = replace(TRIAL, parts=(ONE, Planned("b", OTHER.plan, 60.0, (), 8, 6.0)))
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


def test_a_larger_budget_continues_with_omitted_parts(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """A part runs with all its blocks or not at all; stored runs cost nothing, and a smaller budget keeps them."""
    first, later, less = Fake(), Fake(), Fake()
    go(first, 110)
    assert ["blocks=8"] == [request.changes[-1] for request in first.requests]
    told = read_result(TRIAL, home_of(TRIAL, tmp_path))
    assert {"b": "budget 1.83 min"} == told.left_out
    assert "UNDECIDED" in output.text(told)
    go(later, 110)
    go(less, 1)
    assert (1, 0) == (len(later.requests), len(less.requests))
    assert {} == read_result(TRIAL, home_of(TRIAL, tmp_path)).left_out


def test_evidence_of_another_version_is_refused(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """The error names both versions; so does evidence from before versions were recorded, which is version 1."""
    go(Fake())
    home = home_of(TRIAL, tmp_path)
    revised = replace(TRIAL, registration=Registration(4, TRIAL.claims))
    with pytest.raises(EvidenceError, match=r"trial.json: .* version 3 of the trial of KIP-951, .* decide version 4"):
        read_result(revised, home)
    document = json.loads((home / runner.NAME).read_text())
    del document["version"]
    (home / runner.NAME).write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match="evidence of version 1 of the trial"):
        run_missing(TRIAL, plan_within_budget([TRIAL], None), tmp_path, 1, Fake(), lambda _: None)


def test_a_sabotaged_trial_has_runs_of_its_own(tmp_path: Path) -> None:
    """Every part runs with the KIP off, apart from the honest runs, and without the effect nothing is confirmed."""
    sabotaged, fake = TRIAL.sabotage(), Fake(ratio=1.0)
    run_missing(sabotaged, plan_within_budget([sabotaged], None), tmp_path, 1, fake, lambda _: None)
    assert {"timing.steady=9s"} == {request.changes[-2] for request in fake.requests}
    assert home_of(sabotaged, tmp_path) != home_of(TRIAL, tmp_path)
    told = read_result(sabotaged, home_of(sabotaged, tmp_path))
    assert {"undecided"} == {entry.word for entry in told.statements}
    assert "KIP-951 made up (sabotage: the KIP is off): UNDECIDED" in output.text(told)


def test_a_sabotaged_broker_is_judged_as_if_its_setting_were_on(tmp_path: Path) -> None:
    """A trial that reads a broker's setting from the plan must not learn from the plan that the setting is off."""
    linger = "group.coordinator.append.linger.ms"
    off = replace(ONE, plan="kips/1224-failover", changes=(), off=(f"cluster.config.{linger}=5",))
    sabotaged = replace(TRIAL, parts=(off,)).sabotage()
    run_missing(sabotaged, plan_within_budget([sabotaged], None), tmp_path, 1, Fake(ratio=1.0), lambda _: None)
    told = read_result(sabotaged, home_of(sabotaged, tmp_path))
    assert "-1" == told.parts["a"].run.timeline["cluster"]["config"][linger]


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
    rows = [line for line in output.table([told]).splitlines() if line.startswith("| claim")]
    assert ["| claim, headline | what a claims |", "| claim | what b claims |"] == [
        "|".join(row.split("|")[:3]) + "|" for row in rows
    ]
    assert "| below 0.6 times; 8 blocks | contradicted |" in rows[0]
    assert "p = 0.0078 | - | 0 confirmed / 2 contradicted / 0 undecided of 2 |" in output.digest([told])
    production = replace(told.statements[1], role="production", word="confirmed")
    beside = replace(told, statements=(told.statements[0], production))
    assert "| contradicted: 1.5 times, " in output.digest([beside])
    assert "| confirmed: 1.5 times, " in output.digest([beside])


def test_the_page_opens_with_the_mechanism(go: Callable[..., runner.Record], tmp_path: Path) -> None:
    """Then come the charts, all claims, and the runs."""
    go(Fake())
    home = home_of(TRIAL, tmp_path)
    chart = Plot("A chart", Markup("<svg></svg>"), "how to read it")
    shown = output.write(replace(TRIAL, plots=lambda _: (chart,)), read_result(TRIAL, home), home).read_text()
    sections = ["What the KIP changes", "without KIP-951", "A chart", "All claims", "what b claims", "<h2>Runs"]
    assert sorted(map(shown.index, sections)) == list(map(shown.index, sections))


@pytest.mark.parametrize("kip", TRIALS)
def test_the_documentation_has_the_drawings_of_the_mechanisms(kip: int) -> None:
    """`make kips` writes them; the drawing of each KIP is on the page."""
    docs = Path(output.__file__).parents[3] / "docs"
    assert (docs / "kips" / f"kip{kip}.svg").read_text(encoding="utf-8") == f"{mechanism(kip).svg}\n"
    assert f"](kips/kip{kip}.svg)" in (docs / "KIPS.md").read_text(encoding="utf-8")


def test_only_the_text_between_the_markers_is_replaced() -> None:
    page = f"before\n{output.BEGIN}\nold\n{output.END}\nafter"
    assert f"before\n{output.BEGIN}\n\nnew\n\n{output.END}\nafter" == output.replace_results(page, "new")


def test_what_has_not_run_stays_as_published() -> None:
    """Sections of a page and rows of a digest; a KIP that was never published gets the new one."""
    published = "### KIP-951, leaders: confirmed\n\n| claim |\n\n### KIP-227, fetch: undecided\n\n* old\n"
    results = "### KIP-951, leaders: not run\n### KIP-227, fetch: confirmed\n\n* new\n### KIP-5, more: not run\n"
    merged = output.keep_published(results, published, {951, 5})
    assert merged.startswith("### KIP-951, leaders: confirmed\n\n| claim |\n\n### KIP-227, fetch: confirmed\n\n* new\n")
    assert merged.endswith("### KIP-5, more: not run\n")
    rows = "| KIP | claim |\n| 951, leaders | 24 |\n| 227, fetch | 6 |"
    assert "| KIP | claim |\n| 951, leaders | 24 |\n| 227, fetch | 9 |" == output.keep_published(
        "| KIP | claim |\n| 951, leaders | - |\n| 227, fetch | 9 |", rows, {951}
    )
