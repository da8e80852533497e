"""Provisional verdicts on stored evidence that is cut in the middle, as the runner had saved it at that time."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from aftershock.errors import AftershockError
from aftershock.harness.run import so_far
from aftershock.harness.run.so_far import judge_so_far
from aftershock.harness.safety.ownership import owner
from aftershock.results.model.check import Status, Verdict
from aftershock.results.report.verdict_formats import summary

pytestmark = pytest.mark.spark

STORED = Path(__file__).parents[3] / "data" / "evidence" / "demo"


def cut(home: Path, share: float, process: str, *, saved: bool = True, slo: str | None = None) -> int:
    """Write the evidence that a run had at a ``share`` of its load; return that time in microseconds.

    The files are as a move leaves them that began at that time, and lasted for a second: consumers' rows were written
    at its end. Records in flight have no result.
    """
    run = json.loads((STORED / "run.json").read_text())
    marks = run.pop("marks")
    at_us = int(marks["load_start_us"] + share * (marks["load_end_us"] - marks["load_start_us"]))
    (home / "outcomes").mkdir(parents=True)
    shutil.copytree(STORED / "metrics", home / "metrics")
    (home / "run.json").write_text(json.dumps(run | {"status": "running", "owner": process}))
    timeline = json.loads((STORED / "timeline.json").read_text())
    for workload in timeline["workloads"]:
        workload["produce"]["deadline_ms"] = 2_000  # else nothing but the warm-up were over halfway
    timeline["slo"] += [{"at": "x:1:1", "gate": "verdict", "text": slo}] if slo else []
    (home / "timeline.json").write_text(json.dumps(timeline))
    for name in ("events.jsonl", "journal.jsonl"):
        every = (STORED / name).read_text().splitlines()
        lines = [line for line in every if json.loads(line)["t_us"] < at_us + 500_000]
        if name == "events.jsonl":
            start = {"start_us": marks["load_start_us"]}
            lines = [
                json.dumps(event | start) if (event := json.loads(line)).get("phase") == "warmup" else line
                for line in lines
            ]
        if saved and name == "events.jsonl":
            lines.append(json.dumps({"t_us": at_us + 1_000_000, "arm": None, "event": "saved", "before_us": at_us}))
        (home / name).write_text("".join(f"{line}\n" for line in lines))
    for path in (STORED / "outcomes").iterdir():
        rows = pq.read_table(path)
        if "consume" in path.name:
            rows = rows.filter(pc.less(rows["done_us"], at_us + 1_000_000))
        else:
            rows = rows.filter(pc.less(rows["sent_us"], at_us))
            flying = pc.fill_null(pc.greater_equal(rows["done_us"], at_us), True)
            for name, value in (("status", "in_doubt"), *((name, None) for name in ("done_us", "offset", "error"))):
                kind = rows.schema.field(name).type
                column = pc.if_else(flying, pa.scalar(value, kind), rows[name])
                rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        pq.write_table(rows, home / "outcomes" / path.name)
    return at_us


def contents(home: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in home.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> tuple[Verdict, dict[str, tuple[int, bytes]], Path, list[str]]:
    home = tmp_path_factory.mktemp("runs") / "run"
    cut(home, 0.95, owner(), slo="produce.latency p50 < 1us")
    before, said = contents(home), list[str]()
    verdict = judge_so_far(home, None, said.append)
    return verdict, before, home, said


def test_a_run_in_progress_does_not_fail_because_it_is_not_over(
    halfway: tuple[Verdict, dict[str, tuple[int, bytes]], Path, list[str]],
) -> None:
    """Records in flight, unread topics, later faults and open windows fail no check; finished faults are judged."""
    verdict, *_ = halfway
    assert [] == [check.id for check in verdict.checks if check.status is Status.FAIL]
    assert verdict.provisional is not None
    omitted = verdict.provisional["not_judged"]
    assert {"harness/complete", "integrity/lost", "slo/lost"} <= {*omitted}
    passed = {check.id for check in verdict.checks if check.status is Status.PASS}
    assert {"slo/produce.latency-p95-steady", "harness/clock", "integrity/order"} <= passed
    assert any(name.startswith("witness/") for name in passed)


def test_a_limit_that_is_exceeded_so_far_is_inconclusive(
    halfway: tuple[Verdict, dict[str, tuple[int, bytes]], Path, list[str]],
) -> None:
    """The median of all records may still fall; the reason has what was measured."""
    (check,) = {c.id: c for c in halfway[0].checks if c.id == "slo/produce.latency-p50"}.values()
    assert check.status is Status.INCONCLUSIVE
    assert check.why.startswith("so far p50 in the time after warm-up is ")
    assert check.why.endswith(", and the run is not over")
    assert check.observed is not None
    assert check.observed > 0


def test_the_run_is_not_touched(halfway: tuple[Verdict, dict[str, tuple[int, bytes]], Path, list[str]]) -> None:
    """Neither its files nor its folder change, and nothing stays beside it."""
    _, before, home, _ = halfway
    assert before == contents(home)
    assert [home] == [*home.parent.iterdir()]


def test_the_verdict_says_that_it_is_provisional(
    halfway: tuple[Verdict, dict[str, tuple[int, bytes]], Path, list[str]],
) -> None:
    verdict, _, home, said = halfway
    assert f"{home}: the run is in progress" in said
    assert "PROVISIONAL: the run is in progress. Records were judged up to " in summary(verdict)
    document = json.loads(verdict.text())
    assert "the run is in progress" == document["provisional"]["state"]
    assert document["provisional"]["until_us"] > 0


def test_a_killed_runner_and_a_wrong_record(tmp_path: Path) -> None:
    """The process of the run is dead, which the verdict says; a record delivered out of order still fails it."""
    home = tmp_path / "run"
    cut(home, 0.95, dead_owner())
    path = next(path for path in (home / "outcomes").iterdir() if "consume" in path.name)
    rows = pq.read_table(path)
    first = [number for number, partition in enumerate(rows["partition"].to_pylist()) if partition == 0]
    order = [*range(len(rows))]
    order[first[100]], order[first[50]] = first[50], first[100]
    swapped = rows.take(order)
    pq.write_table(swapped.set_column(rows.schema.get_field_index("done_us"), "done_us", rows["done_us"]), path)
    verdict = judge_so_far(home, None, lambda _: None)
    assert verdict.provisional is not None
    assert "the run's process has died" in verdict.provisional["state"]
    assert "aftershock heal --run run" in verdict.provisional["state"]
    assert "integrity/order" in {check.id for check in verdict.checks if check.status is Status.FAIL}
    assert 1 == verdict.exit_code


def dead_owner() -> str:
    """Return the owner label of a process that has ended: this one, started at another time."""
    pid, _, *rest = owner().split(":")
    return ":".join((pid, "1", *rest))


def test_nothing_saved_yet(tmp_path: Path) -> None:
    """In its first minute a run has saved nothing; the error says when it will."""
    home = tmp_path / "run"
    cut(home, 0.5, owner(), saved=False)
    with pytest.raises(AftershockError, match="has saved no rows yet, which it does every minute; try again later"):
        judge_so_far(home, None, print)


@pytest.mark.parametrize("disappearing", [1])
def test_a_file_that_the_runner_replaces_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disappearing: int
) -> None:
    """The snapshot begins anew, with the files that count then."""
    home = tmp_path / "run"
    cut(home, 0.95, owner())
    real: Callable[..., None] = so_far.os.link
    left = [disappearing]

    def link(source: Path, target: Path) -> None:
        if left[0]:
            left[0] -= 1
            source.rename(source.with_name(source.name.replace(".parquet", "~00000.parquet")))
        real(source, target)

    monkeypatch.setattr(so_far.os, "link", link)
    so_far._snapshot(home, tmp_path / "copy")
    assert 1 == sum("~00000" in path.name for path in (tmp_path / "copy" / "outcomes").iterdir())
    assert len([*(home / "outcomes").iterdir()]) == len([*(tmp_path / "copy" / "outcomes").iterdir()])
