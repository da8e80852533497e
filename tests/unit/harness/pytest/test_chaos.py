"""The ``chaos`` fixture: which plan it runs, which lease a run needs, and which expectations it accepts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import Plan
from aftershock.harness.pytest.chaos import Chaos, Origin
from aftershock.harness.run import run as running
from aftershock.harness.run.job import Job, prepare
from aftershock.harness.run.session import Entry, Suite
from aftershock.harness.safety.rundir import RunDir

PLAN = """
name: leader
topics: [{name: orders, partitions: 6, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s}
    consume: {topic: orders}
    arms: {only: {}}
timing: {steady: 10s}
faults: [{id: dead, at: 0s, for: 8s, kind: kill, broker: leader of orders/0}]
"""
COUNTS = PLAN + 'slo: ["lost == 0"]\n'
LATENCY = PLAN + 'slo: ["produce.latency p50 < 50ms in steady"]\n'


class Errand(NamedTuple):
    job: Job
    kind: str


@pytest.fixture
def errands(monkeypatch: pytest.MonkeyPatch) -> list[Errand]:
    """Return the list of runs that would have been driven; only the run directory is created."""
    asked: list[Errand] = []

    def drive(job: Job, kind: str, _suite: Suite, _test: str, begin: Callable[[], RunDir], _console: Console) -> RunDir:
        asked.append(Errand(job, kind))
        return begin()

    monkeypatch.setattr(running, "drive_leased", drive)
    return asked


class Asking:
    """A test of a project in its own folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tests = root / "tests"
        self.tests.mkdir()
        self.suite = Suite.new(root / "runs", keep_failed=False)
        self.finished: list[str] = []

    def chaos(self, *, session_seed: int = 3, mark: pytest.MarkDecorator | None = None) -> Chaos:
        file = self.tests / "test_a.py"
        origin = Origin("tests/test_a.py::test_a", file, self.root, mark.mark if mark else None, session_seed)
        return Chaos(self.suite, origin, self.finished.append)


@pytest.fixture
def asking(tmp_path: Path, errands: list[Errand]) -> Asking:  # noqa: ARG001 - nothing here may be driven
    return Asking(tmp_path)


def test_a_rate_that_the_host_cannot_drive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `aftershock run`: before a cluster is leased, and without a run directory."""
    job = prepare(PLAN.replace("60/s", "900000/s"), (), 1, print)
    for name, value in {"connect": lambda: None, "volumes_folder": lambda _: None}.items():
        monkeypatch.setattr(running.engine, name, value)
    monkeypatch.setattr(running, "sweep", lambda *_: None)
    suite = Suite.new(tmp_path, keep_failed=False)
    with pytest.raises(PlanError, match="900,000/s"):
        running.drive_leased(job, "latency", suite, "test_a", lambda: pytest.fail("it has begun"), Console())


def test_a_plan_is_found_beside_the_test_first(asking: Asking, errands: list[Errand]) -> None:
    """Then in pytest's rootdir, then among the shipped plans."""
    (asking.root / "plan.yaml").write_text(COUNTS.replace("leader\n", "at-root\n", 1))
    asking.chaos().run("plan.yaml")
    (asking.tests / "plan.yaml").write_text(COUNTS)
    asking.chaos().run("plan.yaml")
    asking.chaos().run("broker-loss")
    assert ["at-root", "leader", "broker-loss"] == [errand.job.timeline.name for errand in errands]


def test_a_missing_plan_is_a_clear_error(asking: Asking, errands: list[Errand]) -> None:
    """The error names the searched places and the existing plans, and no run starts."""
    with pytest.raises(PlanError, match=r"demmo: no such file beside test_a\.py or in .* did you mean `demo`"):
        asking.chaos().run("demmo")
    assert [] == errands


def test_a_plan_may_be_text_or_an_object(asking: Asking, errands: list[Errand]) -> None:
    """An object becomes the YAML that the evidence keeps, and reads back as an equal plan."""
    plan = load_plan(LATENCY).plan
    asking.chaos().run(LATENCY)
    asking.chaos().run(plan)
    assert plan == errands[0].job.checked.plan == errands[1].job.checked.plan
    assert plan == load_plan(errands[1].job.checked.text).plan


def test_a_bad_object_names_its_part(asking: Asking) -> None:
    """A plan built in Python has no lines: the error names the expression that leads to the problem."""
    plan = Plan.model_validate(load_plan(COUNTS).plan.model_copy(update={"slo": ("lost == 0", "lost = 0")}))
    with pytest.raises(PlanError, match=r"plan\.slo\[1\]: invalid SLO at column 6"):
        asking.chaos().run(plan)


def test_the_nearest_seed_wins(asking: Asking, errands: list[Errand]) -> None:
    """The call's seed comes first, then the mark's, then the session's."""
    asking.chaos().run(COUNTS)
    asking.chaos(session_seed=5).run(COUNTS)
    asking.chaos(mark=pytest.mark.chaos(seed=9)).run(COUNTS)
    asking.chaos(mark=pytest.mark.chaos(seed=9)).run(COUNTS, seed=11)
    assert [3, 5, 9, 11] == [errand.job.timeline.seed for errand in errands]


@pytest.mark.parametrize(
    ("plan", "judged", "kind"),
    [
        (COUNTS, None, "integrity"),
        (LATENCY, None, "latency"),
        (PLAN, None, "latency"),
        (COUNTS, "latency", "latency"),
        (PLAN, "integrity", "integrity"),
    ],
    ids=["counts", "time", "no SLO", "counts, marked", "no SLO, marked"],
)
def test_only_plans_without_time_slos_share_the_host(
    asking: Asking, errands: list[Errand], plan: str, judged: str | None, kind: str
) -> None:
    """By the plan's SLOs, unless the mark asks for an exclusive lease, or for a shared lease where no SLO forbids
    it.
    """
    asking.chaos(mark=pytest.mark.chaos(judged=judged) if judged else None).run(plan)
    assert kind == errands[0].kind


def test_a_mark_can_not_share_a_run_with_a_time_slo(asking: Asking) -> None:
    """The plan's SLO would be judged on a busy host."""
    with pytest.raises(PlanError, match="has SLOs on latency or other times"):
        asking.chaos(mark=pytest.mark.chaos(judged="integrity")).run(LATENCY)


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.chaos(sed=7),
        pytest.mark.chaos(seed="7"),
        pytest.mark.chaos(judged="time"),
        pytest.mark.chaos(7),
    ],
    ids=lambda mark: str((mark.args, mark.kwargs)),
)
def test_an_invalid_mark_is_a_clear_error(asking: Asking, mark: pytest.MarkDecorator) -> None:
    """The error shows a valid mark."""
    with pytest.raises(PlanError, match=r"tests/test_a\.py::test_a: .*write the mark as @pytest\.mark\.chaos"):
        asking.chaos(mark=mark)


async def test_an_async_test_is_refused(asking: Asking, errands: list[Errand]) -> None:
    """Before a cluster is launched, with a clearer error than asyncio's own."""
    with pytest.raises(PlanError, match="make the test a plain function"):
        asking.chaos().run(COUNTS)
    assert [] == errands


def test_a_run_is_in_the_ledger_from_its_beginning(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies is listed under its test; only a complete run counts as finished."""

    def dies(*arguments: Any) -> RunDir:
        arguments[4]()
        raise OSError("a broken pipe")

    monkeypatch.setattr(running, "drive_leased", dies)
    with pytest.raises(OSError, match="a broken pipe"):
        asking.chaos().run(COUNTS)
    (entry,) = asking.suite.entries()
    assert (entry.test, []) == ("tests/test_a.py::test_a", asking.finished)
    facts = json.loads((asking.suite.out / entry.run_id / "run.json").read_text())
    assert "pytest tests/test_a.py::test_a --aftershock-seed=3" == facts["command"]


def test_a_finished_run_has_folder_id_and_facts(asking: Asking) -> None:
    """Before there is any verdict."""
    run = asking.chaos().run(COUNTS)
    assert [run.run_id] == asking.finished == [run.home.name]
    assert [Entry(run.run_id, "tests/test_a.py::test_a")] == asking.suite.entries()
    assert ("leader", 3) == (run.facts["plan"], run.facts["seed"])


def test_an_expectation_is_written_with_its_line(asking: Asking, request: pytest.FixtureRequest) -> None:
    """Beside the evidence, in the format that the judge reads, and listed in the manifest."""
    origin = Origin("test_chaos.py::test_x", request.path, request.path.parent, None, 3)
    run = Chaos(asking.suite, origin, asking.finished.append).run(LATENCY)
    run.expect("lost == 0")
    run.expect("recovery < 5s after dead for only", gate="report")
    lines = [json.loads(line) for line in (run.home / "expectations.jsonl").read_text().splitlines()]
    assert ["lost == 0", "recovery < 5s after dead for only"] == [line["text"] for line in lines]
    assert ["verdict", "report"] == [line["gate"] for line in lines]
    first, second = (line["at"].split(":") for line in lines)
    assert ("test_chaos.py", int(first[1]) + 1) == (second[0], int(second[1]))
    assert "expectations.jsonl" in json.loads((run.home / "manifest.json").read_text())["files"]


@pytest.mark.parametrize(
    ("slo", "sentence"),
    [
        ("lost = 0", "invalid SLO at column 6"),
        ("produce.latency p50 < 9ms for onyl", "no arm `onyl`; did you mean `only`"),
        ("recovery < 5s after daed", "no fault `daed`; did you mean `dead`"),
        ("produce.latency p99.9 < 9ms in steady", "needs 10000 records in steady"),
    ],
)
def test_an_expectation_that_can_not_be_judged_is_refused_at_once(asking: Asking, slo: str, sentence: str) -> None:
    """Grammar, arms, faults and feed are checked like the plan's; the line of the test replaces the plan's."""
    run = asking.chaos().run(LATENCY)
    with pytest.raises(PlanError, match=rf"^test_chaos\.py:\d+: .*{sentence}"):
        run.expect(slo)
    assert not (run.home / "expectations.jsonl").exists()


def test_a_run_that_shared_the_host_takes_no_time_expectation(asking: Asking) -> None:
    """A latency measured beside other runs proves nothing; the error names the remedy."""
    run = asking.chaos().run(COUNTS)
    with pytest.raises(PlanError, match=r'shared the host.*@pytest\.mark\.chaos\(judged="latency"\)'):
        run.expect("produce.gap < 5s")
    run.expect("duplicate == 0")
