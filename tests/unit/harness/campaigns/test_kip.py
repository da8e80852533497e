"""Run of a trial part by part, with resumption after an interrupt."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from markupsafe import Markup

from aftershock.errors import ClusterError, EngineError, EvidenceError
from aftershock.harness.campaigns import kip as output
from aftershock.harness.campaigns import kip_pages, store
from aftershock.harness.campaigns.kip import home_of, read_result, record_of, run_missing, stored_parts
from aftershock.harness.campaigns.kip_budget import plan_within_budget
from aftershock.harness.campaigns.kip_trials import TRIALS, Trial
from aftershock.harness.campaigns.store import Planned
from aftershock.results.studies.statement import Measured, Plot, Rule
from aftershock.results.studies.trials.claim import Claim, Parts, Registration
from aftershock.results.studies.trials.mechanism import mechanism
from aftershock.tests.unit.results.studies.trials.made import part, written


def measured(name: str, parts: Parts) -> Measured:
    return Measured(parts[name].ratio("w/new", "w/old", "produce.latency max in fault"))


def claim(name: str) -> Claim:
    rule = Rule("below", (0.6,), 1.0, ratio=True)
    return Claim(name, f"what {name} claims", (name,), partial(measured, name), "claim", rule, "blocks", 8)


ONE, OTHER = (
    Planned(name, "kips/951-move", 60.0, (f"timing.steady={s}s",), 8, 6.0, off=("timing.steady=9s",))
    for name, s in (("a", 5), ("b", 6))
)
REGISTRATION = Registration(3, (replace(claim("a"), headline=True, statistic="not the KIP's own"), claim("b")))
TRIAL = Trial(951, "made up", REGISTRATION, (ONE, OTHER), lambda _: ())


class Fake:
    """Writes the documents of a judged run below ``home``; raises each of ``troubles`` once instead."""

    def __init__(self, *troubles: BaseException | None, home: Path = Path(), ratio: float = 0.5) -> None:
        self.home = home
        self.planned: list[Planned] = []
        self.troubles = list(troubles)
        self.ratio = ratio

    def __call__(self, planned: Planned) -> Path:
        self.planned.append(planned)
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble:
            raise trouble
        old = [100.0 + number for number in range(planned.blocks or 0)]
        values = {"w/new": [ms * self.ratio * (1.01 if ms % 2 else 0.99) for ms in old], "w/old": old}
        number = len([entry for entry in self.home.iterdir() if entry.is_dir()])
        return written(part(str(number), values), self.home)


Go = Callable[..., None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return home_of(TRIAL, tmp_path)


@pytest.fixture
def go(home: Path) -> Go:
    def run(fake: Fake, budget_s: float | None = None, seed: int = 1, trial: Trial = TRIAL) -> None:
        fake.home = home
        allotted = plan_within_budget([trial], budget_s, stored_parts(trial, home, seed))
        run_missing(trial, allotted, home, seed, fake, lambda _: None)

    return run


def test_all_parts_are_run_once(go: Go, home: Path) -> None:
    """Parts run in order with their changes and blocks; a second call runs nothing and has the same result."""
    first, again = Fake(), Fake()
    go(first)
    before = output.text(read_result(TRIAL, home))
    go(again)
    assert [("timing.steady=5s", "blocks=8"), ("timing.steady=6s", "blocks=8")] == [
        planned.settings for planned in first.planned
    ]
    assert [] == again.planned
    assert before == output.text(read_result(TRIAL, home))
    assert "CONFIRMED" in before


def test_an_interrupted_trial_continues_with_the_open_part(go: Go, home: Path) -> None:
    """Judged parts are kept, and the part that was interrupted isn't recorded."""
    with pytest.raises(KeyboardInterrupt):
        go(Fake(None, KeyboardInterrupt()))
    assert ["a"] == list(record_of(TRIAL, home).runs)
    then = Fake()
    go(then)
    assert [("timing.steady=6s", "blocks=8")] == [planned.settings for planned in then.planned]


def test_a_failed_part_is_tried_again_the_next_time(go: Go, home: Path) -> None:
    """The other parts run, and the failed part's claim has the reason why it is open."""
    go(Fake(ClusterError("broker 2 did not come up\nsee its log")))
    told = read_result(TRIAL, home)
    assert ("undecided", "confirmed") == tuple(each.word for each in told.statements)
    assert "not run: it failed: broker 2 did not come up" == told.statements[0].why
    then = Fake()
    go(then)
    assert {} == record_of(TRIAL, home).left_out
    assert 1 == len(then.planned)


def test_a_missing_engine_ends_the_trial(go: Go) -> None:
    with pytest.raises(EngineError):
        go(Fake(EngineError("no engine")))


def test_a_run_with_other_settings_does_not_count(go: Go, home: Path) -> None:
    """Neither does a run whose folder was removed."""
    go(Fake())
    changed = replace(TRIAL, parts=(ONE, Planned("b", OTHER.plan, 60.0, (), 8, 6.0)))
    told = read_result(changed, home)
    assert {"b": "the plan or seed of this part of the trial has changed since the part ran"} == told.left_out
    (home / told.parts["a"].run.run_id / "verdict.json").unlink()
    then = Fake()
    go(then, trial=changed)
    assert 2 == len(then.planned)


def test_another_seed_runs_all_parts_again(go: Go, home: Path) -> None:
    """The record has the new runs; the old runs are left to ``runs prune``."""
    go(Fake())
    then = Fake()
    go(then, seed=2)
    assert (2, 2) == (len(then.planned), record_of(TRIAL, home).seed)
    assert {"run-2", "run-3"} == {each.run.run_id for each in read_result(TRIAL, home).parts.values()}


def test_a_larger_budget_continues_with_omitted_parts(go: Go, home: Path) -> None:
    """A part runs with all its blocks or not at all; stored runs cost nothing, and a smaller budget keeps them."""
    first, later, less = Fake(), Fake(), Fake()
    go(first, 110)
    assert [8] == [planned.blocks for planned in first.planned]
    told = read_result(TRIAL, home)
    assert {"b": "budget 1.83 min"} == told.left_out
    assert "UNDECIDED" in output.text(told)
    go(later, 110)
    go(less, 1)
    assert (1, 0) == (len(later.planned), len(less.planned))
    assert {} == read_result(TRIAL, home).left_out


def test_evidence_of_another_version_is_refused(go: Go, home: Path) -> None:
    """The error names both versions, and nothing is run."""
    go(Fake())
    revised = replace(TRIAL, registration=Registration(4, TRIAL.claims))
    with pytest.raises(EvidenceError, match=r"campaign.json: .* version 3 of kip-951, .* decide version 4 of kip-951"):
        read_result(revised, home)
    then = Fake()
    with pytest.raises(EvidenceError, match="evidence of version 3"):
        go(then, trial=revised)
    assert [] == then.planned


def test_runs_of_an_older_version_decide_what_has_not_changed_since(go: Go, home: Path) -> None:
    """A claim that is newer than its run is undecided until its part has run again, which decides both."""
    go(Fake())
    claims = (TRIAL.claims[0], replace(TRIAL.claims[1], since=4))
    revised = replace(TRIAL, registration=Registration(4, claims, 3))
    told = read_result(revised, home)
    assert ["confirmed", "undecided"] == [entry.word for entry in told.statements]
    assert "not run: b ran before version 4 of the trial" in told.statements[1].why
    then = Fake()
    go(then, trial=revised)
    assert ["b"] == [planned.name for planned in then.planned]
    assert ["confirmed", "confirmed"] == [entry.word for entry in read_result(revised, home).statements]
    assert {"a": 3, "b": 4} == {name: run.version for name, run in record_of(revised, home).runs.items()}


def test_a_sabotaged_trial_has_runs_of_its_own(tmp_path: Path) -> None:
    """Every part runs with the KIP off, apart from the honest runs, and without the effect nothing is confirmed."""
    sabotaged = TRIAL.sabotage()
    home = home_of(sabotaged, tmp_path)
    fake = Fake(home=home, ratio=1.0)
    run_missing(sabotaged, plan_within_budget([sabotaged], None), home, 1, fake, lambda _: None)
    assert {"timing.steady=9s"} == {planned.changes[-1] for planned in fake.planned}
    assert home_of(TRIAL, tmp_path) != home
    told = read_result(sabotaged, home)
    assert {"undecided"} == {entry.word for entry in told.statements}
    assert "KIP-951 made up (sabotage: the KIP is off): UNDECIDED" in output.text(told)


def test_a_sabotaged_broker_is_judged_as_if_its_setting_were_on(home: Path) -> None:
    """A trial that reads a broker's setting from the plan must not learn from the plan that the setting is off."""
    linger = "group.coordinator.append.linger.ms"
    off = replace(ONE, plan="kips/1224-failover", changes=(), off=(f"cluster.config.{linger}=5",))
    sabotaged = replace(TRIAL, parts=(off,)).sabotage()
    fake = Fake(home=home, ratio=1.0)
    run_missing(sabotaged, plan_within_budget([sabotaged], None), home, 1, fake, lambda _: None)
    told = read_result(sabotaged, home)
    assert "-1" == told.parts["a"].run.timeline["cluster"]["config"][linger]


def test_a_broken_record_is_an_error(go: Go, home: Path) -> None:
    """The error names the file and the remedy, and no part runs."""
    home.mkdir(parents=True)
    (home / store.NAME).write_text("{")
    fake = Fake()
    with pytest.raises(EvidenceError, match=r"campaign.json: not readable as JSON .*; restore the file"):
        go(fake)
    assert [] == fake.planned


def test_the_result_in_every_format(go: Go, home: Path) -> None:
    """Text of 80 columns, JSON with every figure, HTML without script, and one table row for each claim."""
    go(Fake(ratio=1.5))
    told = read_result(TRIAL, home)
    assert 80 >= max(map(len, output.text(told).splitlines()))
    document = json.loads(json.dumps(output.document([told])))["trials"][0]
    assert ("contradicted", 8) == (document["verdict"], document["statements"][0]["ours"]["n"])
    shown = output.write(TRIAL, told, home).read_text(encoding="utf-8")
    assert "<script" not in shown
    assert "KIP-951, made up: contradicted" in shown
    for texts in (shown, output.text(told), kip_pages.digest([(told, [])])):
        assert re.search(r"statistic:? +not the KIP(&#39;|')s own", texts)
    rows = kip_pages.rows_of(told, "")
    lines = [line for line in kip_pages.section(told, rows, ()).splitlines() if line.startswith("| <a")]
    assert ['<a id="a"></a>a<br>claim, headline', '<a id="b"></a>b<br>claim'] == [
        row.split(" | ")[0][2:] for row in lines
    ]
    assert "<br>claim, headline | contradicted | what a claims | 1.5 times, " in lines[0]
    assert lines[0].endswith(" | - | below 0.6 times; 8 blocks |")
    assert "p = 0.0078 | - | claims: 2 contradicted |" in kip_pages.digest([(told, rows)])
    production = replace(told.statements[1], role="production", word="confirmed")
    beside = kip_pages.digest([(replace(told, statements=(told.statements[0], production)), rows)])
    assert ("| contradicted: 1.5 times, " in beside, "| confirmed: 1.5 times, " in beside) == (True, True)


def test_the_page_opens_with_the_mechanism(go: Go, home: Path) -> None:
    """Then come the charts, all claims, and the runs."""
    go(Fake())
    chart = Plot("A chart", Markup("<svg></svg>"), "how to read it")
    shown = output.write(replace(TRIAL, plots=lambda _: (chart,)), read_result(TRIAL, home), home).read_text()
    sections = ["What the KIP changes", "without KIP-951", "A chart", "All claims", "what b claims", "<h2>Runs"]
    assert sorted(map(shown.index, sections)) == list(map(shown.index, sections))


@pytest.mark.parametrize("kip", TRIALS)
def test_the_documentation_has_the_drawings_of_the_mechanisms(kip: int) -> None:
    """`make kips` writes them; the drawing of each KIP is on the page."""
    docs = Path(output.__file__).parents[2] / "docs"
    assert (docs / "kips" / f"kip{kip}.svg").read_text(encoding="utf-8") == f"{mechanism(kip).svg}\n"
    assert f"](kip{kip}.svg)" in (docs / "kips" / f"kip{kip}.md").read_text(encoding="utf-8")
