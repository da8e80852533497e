"""The ledger: the figures kept of a run, runs that are refused, and that the file only grows."""

from copy import deepcopy
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.compare import history
from aftershock.results.compare.history import NAME, add, ledger_in, lines_of, night_of, read_ledger
from aftershock.results.compare.trend import points, series
from aftershock.results.evidence.stored import JudgedRun, read_judged_run
from aftershock.tests.stored_runs import documents, spoilt, write

P95 = {"kip951": [20_000.0] * 3, "baseline": [40_000.0] * 3}


def run(tmp_path: Path, name: str = "r1") -> JudgedRun:
    return read_judged_run(write(tmp_path / name, documents(P95, run_id=name)))


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    """A run's line has p50 and p99 by window with enough records, gap and recovery under faults, and the
    control's values.
    """
    kept = {(line.arm, line.metric, line.window): line for line in lines_of(run(tmp_path))}
    assert 2 * (2 * 3 + 1 + 1) == len(kept)
    recovery = kept["kip951", "recovery", "fault/kill-1"]
    assert (0.5, 1.0, "s", 900) == (recovery.value, recovery.ratio_to, recovery.unit, recovery.n)
    assert (60.0, 60.0, "ms") == tuple(getattr(kept["kip951", "produce.latency p99", "fault"], name) for name in ("value", "ratio_to", "unit"))  # fmt: skip # noqa: E501
    control = kept["baseline", "produce.gap", "fault"]
    assert (0.002, None) == (control.value, control.ratio_to)
    assert ("2026-11-21", "r1", "rotation", "orders", "ci-1", "4.3.1", "abc") == (
        control.night.isoformat(), control.run_id, control.plan, control.workload,
        control.host, control.kafka, control.git,
    )  # fmt: skip


def test_quantiles_with_too_few_records_are_omitted(tmp_path: Path) -> None:
    """800 records have a p50 and no p99."""
    home = write(tmp_path / "r1", documents(P95, n=100))
    assert {"produce.latency p50", "produce.gap", "recovery"} == {
        line.metric for line in lines_of(read_judged_run(home))
    }


def test_censored_figures_are_null(tmp_path: Path) -> None:
    """A block without recovery makes the run's recovery null; a gap without end makes the gap null."""
    made = documents(P95, {"kip951": [1e6, None, 1e6], "baseline": [1e6] * 3})
    made["analysis"]["gaps"][0]["n"] = 0
    kept = {(line.arm, line.metric): line for line in lines_of(read_judged_run(write(tmp_path / "r1", made)))}
    assert None is kept["kip951", "recovery"].value
    assert None is kept["kip951", "produce.gap"].value


def test_a_ledger_only_grows(tmp_path: Path) -> None:
    """A run is added once, existing bytes are unchanged, and added lines read back."""
    path = ledger_in(tmp_path)
    assert tmp_path / NAME == path
    one, two = run(tmp_path), run(tmp_path, "r2")
    assert ["r1: 16 lines added"] == add(path, [one])
    before = path.read_bytes()
    assert [
        "r1: not added: the ledger already has this run",
        "r2: 16 lines added",
        "r2: not added: the ledger already has this run",
    ] == add(path, [one, two, two])
    assert path.read_bytes().startswith(before)
    assert (*sorted(lines_of(one), key=repr), *sorted(lines_of(two), key=repr)) == tuple(
        sorted(read_ledger(path).lines, key=lambda line: (line.run_id, repr(line)))
    )


def test_doubtful_and_incomplete_runs_are_refused(tmp_path: Path) -> None:
    """A run with a doubtful harness measures the harness, and an incomplete run has partial measurements."""
    path = tmp_path / "new" / "ledger.jsonl"
    starved = spoilt(documents(P95), "harness/host", "the host was starved")
    broken = deepcopy(documents(P95, run_id="r2"))
    broken["run"] |= {"status": "failed", "why": "its runner died"}
    runs = [read_judged_run(write(tmp_path / name, made)) for name, made in (("r1", starved), ("r2", broken))]
    assert ["r1: not added: r1: harness/host: the host was starved", "r2: not added: r2 did not finish: its runner died"] == add(path, runs)  # fmt: skip # noqa: E501
    assert not path.exists()


def test_a_torn_line_does_not_affect_other_lines(tmp_path: Path) -> None:
    """The torn line is reported, and the next line starts on a line of its own."""
    path = tmp_path / "ledger.jsonl"
    add(path, [run(tmp_path)])
    path.write_bytes(path.read_bytes()[:-40])
    add(path, [run(tmp_path, "r2")])
    ledger = read_ledger(path)
    assert 31 == len(ledger.lines)
    assert [f"{path}:16:"] == [sentence.split(" ")[0] for sentence in ledger.broken]


def test_a_folder_in_place_of_the_ledger_is_an_error(tmp_path: Path) -> None:
    """Reading and writing both report the error."""
    (tmp_path / "x").mkdir()
    with pytest.raises(EvidenceError, match="can't be read"):
        history.read_ledger(tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(EvidenceError, match=r"can't be (read|written)"):
        add(tmp_path / "file" / "ledger.jsonl", [run(tmp_path)])


def test_a_run_on_changed_evidence_is_not_added(tmp_path: Path) -> None:
    """A line of the ledger could not say that the run was judged with --trust."""
    judged = run(tmp_path)
    altered = replace(judged, verdict=replace(judged.verdict, trusted=("run.json: changed after the run",)))
    assert add(tmp_path / NAME, [altered]) == [
        "r1: not added: r1 was judged with --trust: run.json: changed after the run"
    ]
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("started_at", "night"),
    [
        ("2026-11-21T02:00:00+00:00", "2026-11-21"),
        ("2026-11-20T23:50:00+00:00", "2026-11-21"),
        ("2026-11-21T00:20:00+00:00", "2026-11-21"),
        ("2026-11-21T11:59:59+00:00", "2026-11-21"),
        ("2026-11-21T12:00:00+00:00", "2026-11-22"),
        ("2026-11-21T01:30:00+09:00", "2026-11-21"),
        ("2026-11-20T20:00:00-05:00", "2026-11-21"),
        ("2026-11-21T02:00:00", "2026-11-21"),
    ],
)
def test_a_night_lasts_from_noon_to_noon(started_at: str, night: str) -> None:
    """Runs before and after midnight UTC are of one night, whatever the zone of the time; noon begins another."""
    assert date.fromisoformat(night) == night_of(datetime.fromisoformat(started_at))


def test_two_runs_around_midnight_are_one_night(tmp_path: Path) -> None:
    """Their geometric mean is the value of the night; a run of the next evening is another night."""
    ledger = tmp_path / "ledger.jsonl"
    for number, started_at in enumerate(("2026-11-20T23:50:00+00:00", "2026-11-21T00:20:00+00:00", "2026-11-21T23:50:00+00:00")):  # fmt: skip # noqa: E501
        made = documents({"baseline": [1.0, 2.0]}, run_id=f"r{number}")
        made["run"]["started_at"] = started_at
        add(ledger, [read_judged_run(write(tmp_path / f"r{number}", made))])
    (of_metric, *_) = series(read_ledger(ledger).lines)
    assert [3, 2] == [len(of_metric), len(points(of_metric)[0])]  # lines and nights
