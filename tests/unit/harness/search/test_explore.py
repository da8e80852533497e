"""The search with fake runs, in which every fault takes effect at its planned time unless the test says otherwise."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError, ClusterError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.expand import window_ms
from aftershock.faults.plans import find
from aftershock.faults.search.coverage import tally_cells, workers_of
from aftershock.faults.search.swarm import Frame, draw_plan, frame_of
from aftershock.harness.run.job import Job
from aftershock.harness.search import corpus
from aftershock.harness.search import explore as ledger
from aftershock.harness.search.corpus import Corpus, Origin
from aftershock.harness.search.explore import (
    ERRORS_MAX,
    Budget,
    Ledger,
    Search,
    SearchRequest,
    document,
    exit_code,
    require_budget_for_first_run,
    text,
)
from aftershock.results.model.check import Check, Status, Verdict

TODAY = date(2026, 11, 22)
RUN_S = 100.0
Verdicts = Callable[[Job], tuple[Status, ...]]


@cache
def frame() -> Frame:
    return frame_of(load_plan(find("explore")))


def passes(_: Job) -> tuple[Status, ...]:
    return (Status.PASS,)


class Stage:
    """Writes the files of a judged run. ``verdicts``: results of the integrity check; ``unmet``: kinds without
    exposure.
    """

    def __init__(self, out: Path, verdicts: Verdicts = passes, unmet: tuple[str, ...] = ()) -> None:
        self.out, self.verdicts, self.unmet = out, verdicts, unmet
        self.now_s = 0.0
        self.jobs: list[Job] = []

    def run(self, job: Job) -> tuple[Path, Verdict]:
        self.now_s += RUN_S
        self.jobs.append(job)
        home = self.out / f"run-{len(list(self.out.glob('run-*')))}"
        home.mkdir(parents=True)
        checks = [_check("integrity/lost", "integrity", status) for status in self.verdicts(job)]
        for step in job.timeline.steps:
            met = Status.INCONCLUSIVE if step.kind in self.unmet else Status.PASS
            checks += [_check(f"witness/{step.id}", "witness"), _check(f"exposure/{step.id}", "exposure", met)]
        verdict = Verdict(home.name, job.timeline.name, job.timeline.seed, (), tuple(checks))
        for name, made in self._documents(job, verdict).items():
            (home / f"{name}.json").write_text(json.dumps(made))
        return home, verdict

    def _documents(self, job: Job, verdict: Verdict) -> dict[str, Any]:
        plan, steps = job.checked.plan, job.timeline.steps
        rows = [
            {"metric": f"{w.op}.latency", "client": f"{w.workload}/{w.arm}", "window": f"fault/{step.id}", "n": 9}
            | {"censored": 0, "slowest_us": 9, "at": {}}
            for w in workers_of(plan)
            for step in steps
        ]
        windows = [_window(step.id, step.at_ms, step.fault(), plan.timing) for step in steps]
        return {
            "run": {"run_id": verdict.run_id, "status": "complete", "started_at": f"{TODAY}T02:00:00+00:00"},
            "timeline": json.loads(job.timeline.to_json()),
            "phases": [{"name": "steady", "fault": None, "start_us": 0, "end_us": 1}, *windows],
            "analysis": {"schema_version": 2, "distributions": rows, "gaps": [], "recoveries": []},
            "verdict": verdict.to_json(),
        }


def _window(fault_id: str, at_ms: int, fault: Fault, timing: Any) -> dict[str, Any]:
    end_ms = at_ms + window_ms(fault, timing) + fault.allowance_ms
    return {"name": "fault", "fault": fault_id, "start_us": at_ms * 1000, "end_us": end_ms * 1000}


def _check(name: str, kind: str, status: Status = Status.PASS) -> Check:
    return Check(id=name, kind=kind, subject="log", status=status, n=1, minimum=1, unit="", why="seen")


def search(stage: Stage, total_s: float, said: list[str], seed: int = 7) -> Search:
    asked = SearchRequest(frame(), seed, stage.out, TODAY, allow_exec=False)
    return Search(asked, Budget(total_s, lambda: stage.now_s), stage.run, said.append)


def read(out: Path) -> Ledger:
    return ledger.read(out / ledger.NAME)


def test_the_search_stops_when_no_run_fits_the_budget(tmp_path: Path) -> None:
    """No run starts that may end after the budget; the remaining time is reported. The ledger has all runs."""
    stage, said = Stage(tmp_path), []
    one = search(stage, 1_000, said)
    found = one.go(Ledger(), Corpus())
    assert 5 <= len(one.runs) <= 10
    assert stage.now_s <= 1_000
    assert said[-1].startswith("the search ends: ")
    assert any("enough for about" in line for line in said)
    assert found == read(tmp_path)
    assert len(one.runs) == found.drawn(7)
    goals = {
        draw_plan(frame(), tally_cells([line for line in found.lines if (line.number or 0) < n], TODAY), 7, n).goal
        for n in range(len(one.runs))
    }
    assert goals <= {line.cell for line in found.lines if line.exercised}


def test_a_search_continues_an_earlier_search(tmp_path: Path) -> None:
    """Two searches of half the time run the same plans as one search of the whole time."""
    whole, halves = Stage(tmp_path / "whole"), Stage(tmp_path / "halves")
    search(whole, 700, []).go(Ledger(), Corpus())
    while len(halves.jobs) < len(whole.jobs):
        search(halves, 300, []).go(read(halves.out), Corpus())
    both = [[job.checked.text for job in stage.jobs] for stage in (whole, halves)]
    assert both[0] == both[1][: len(both[0])]


def test_a_failing_plan_is_added_to_the_corpus_and_runs_first(tmp_path: Path) -> None:
    """The corpus has the plan's seed and evidence; the next search starts with the plan, whatever its own seed is."""
    stage, said = Stage(tmp_path, lambda job: (Status.FAIL if "-7-1" in job.timeline.name else Status.PASS,)), []
    one = search(stage, 700, said)
    found = one.go(Ledger(), Corpus())
    (kept,) = corpus.read(tmp_path / corpus.NAME).entries
    failed = next(ran for ran in one.runs if ran.status is Status.FAIL)
    assert (kept.path, ("integrity/lost",), str(failed.home)) == (failed.plan, kept.origin.failed, kept.origin.evidence)
    assert 1 == exit_code(one.runs)
    assert f"repeat it with: aftershock run {kept.path} --seed 7" in text(one.request, found, one.runs)

    later = search(Stage(tmp_path), 700, said, seed=9)
    after = later.go(read(tmp_path), corpus.read(tmp_path / corpus.NAME))
    assert ("explore-7-1", Status.PASS, kept.path) == (later.runs[0].name, later.runs[0].status, later.runs[0].plan)
    assert 0 == exit_code(later.runs)
    assert f"{kept.path}, which failed earlier, passed this time" in text(later.request, after, later.runs)
    assert len(later.runs) - 1 == after.drawn(9)


def test_the_corpus_gets_half_of_the_budget(tmp_path: Path) -> None:
    """The newest plans run first; plans that don't fit wait, and new plans still get their time."""
    for number in range(8):
        drawn = draw_plan(frame(), {}, 3, number)
        corpus.keep(tmp_path / corpus.NAME, drawn.text, Origin(3, f"2026-11-0{number + 1}", ("x",), "run"))
    stage, said = Stage(tmp_path), []
    one = search(stage, 1_000, said)
    one.go(Ledger(), corpus.read(tmp_path / corpus.NAME))
    first = [ran.name for ran in one.runs if ran.name.startswith("explore-3-")]
    assert first == [f"explore-3-{number}" for number in range(7, 7 - len(first), -1)]
    assert 1 <= len(first) < 8
    assert any(ran.name.startswith("explore-7-") for ran in one.runs)
    assert any("have used half of the time budget" in line for line in said)


def test_the_newest_corpus_plan_runs_in_a_short_search(tmp_path: Path) -> None:
    """Also if it takes more than half of the budget; the next plans wait."""
    for number in range(2):
        drawn = draw_plan(frame(), {}, 3, number)
        corpus.keep(tmp_path / corpus.NAME, drawn.text, Origin(3, f"2026-11-0{number + 1}", ("x",), "run"))
    one = search(Stage(tmp_path), 260, [])
    one.go(Ledger(), corpus.read(tmp_path / corpus.NAME))
    assert "explore-3-1" == one.runs[0].name
    assert "explore-3-0" not in {ran.name for ran in one.runs}


def test_a_cell_without_exposure_is_not_exercised(tmp_path: Path) -> None:
    """The ledger has the reason, and the search draws other plans."""
    everything = tuple({cell.fault for cell in frame().cells})
    stage = Stage(tmp_path, unmet=everything)
    one = search(stage, 700, [])
    found = one.go(Ledger(), Corpus())
    assert {(False, "seen")} == {(line.exercised, line.why) for line in found.lines}
    assert len(one.runs) == len({job.checked.text for job in stage.jobs})
    assert len(frame().cells) == len(document(one.request, found, one.runs)["never"])


def test_three_errors_in_a_row_end_the_search(tmp_path: Path) -> None:
    """Each is in the ledger as tried, so no plan runs twice; the host is at fault, and the exit code is 3."""

    def breaks(_: Job) -> tuple[Status, ...]:
        raise ClusterError("node 2 did not come up\nand more")

    one = search(Stage(tmp_path, breaks), 5_000, [])
    found = one.go(Ledger(), Corpus())
    assert [Status.ERROR] * ERRORS_MAX == [ran.status for ran in one.runs]
    assert {("ERROR", False, "node 2 did not come up")} == {(x.verdict, x.exercised, x.why) for x in found.lines}
    assert 3 == exit_code(one.runs)


def test_a_corpus_plan_that_starts_programs_is_skipped(tmp_path: Path) -> None:
    """Unless programs are allowed; the plan is named, and the search continues."""
    own = (
        find("explore").read_text().replace("reference: {client: reference}", "reference: {client: exec, command: [x]}")
    )
    path = corpus.keep(tmp_path / corpus.NAME, own, Origin(1, "2026-11-01", ("x",), "run"))
    said: list[str] = []
    one = search(Stage(tmp_path), 400, said)
    one.go(Ledger(), corpus.read(tmp_path / corpus.NAME))
    assert said[0].startswith(f"{path}: skipped: ")
    assert "--allow-exec" in said[0]
    assert one.runs


def test_a_budget_too_small_is_refused(tmp_path: Path) -> None:
    """The error says what the first run may take, and which budget would do."""
    asked = SearchRequest(frame(), 7, tmp_path, TODAY, allow_exec=False)
    with pytest.raises(AftershockError, match=r"a budget of 40 s is too small for the first run.*use --budget .m"):
        require_budget_for_first_run(asked, Ledger(), Budget(40, lambda: 0.0))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 2),
        (["INCONCLUSIVE"], 2),
        (["PASS", "INCONCLUSIVE"], 0),
        (["PASS", "ERROR"], 0),
        (["INCONCLUSIVE", "ERROR"], 2),
        (["ERROR"], 3),
        (["PASS", "ERROR", "ERROR", "ERROR"], 3),
        (["FAIL", "ERROR", "ERROR", "ERROR"], 1),
    ],
)
def test_exit_codes(tmp_path: Path, statuses: list[str], code: int) -> None:
    """A failure comes before everything else; an abandoned search is an error; a search without decided run is
    inconclusive.
    """
    one = search(Stage(tmp_path), 400, [])
    one.go(Ledger(), Corpus())
    assert code == exit_code([replace(one.runs[0], status=Status(status)) for status in statuses])
