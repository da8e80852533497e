"""`aftershock compare` and `aftershock trend`: streams, exit codes, and errors."""

import json
import sys
from pathlib import Path

import pytest

from aftershock.harness.cli import __main__
from aftershock.tests.stored_runs import documents, write

WAVES = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0]
BASE = [40_000 * wave for wave in WAVES]
QUICK = [9_000 * wave for wave in reversed(WAVES)]


def aftershock(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["aftershock", *words])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    return int(ended.value.code or 0)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    quick = documents({"kip951": QUICK, "baseline": BASE})
    slow = documents({"kip951": BASE, "baseline": BASE}, run_id="r2")
    write(tmp_path / "r1", quick)
    write(tmp_path / "r2", slow)
    write(tmp_path / "alone", documents({"baseline": BASE}, run_id="alone"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("r1",), 0, "improved: orders/kip951 against orders/baseline"),
        (("r1", "r2"), 2, "inconclusive: orders/kip951 in r2 against r1"),
        (("r1", "r2", "--control", "baseline"), 1, "all values are divided by those of baseline"),
        (("r1", "--metric", "produce.latency p99 in recovery"), 2, "has no values of this metric by block"),
        (("r2", "--margin", "10%"), 0, "equivalent: orders/kip951 against orders/baseline"),
        (("r1", "--format", "md"), 0, "### improved: orders/kip951 against orders/baseline"),
    ],
)
def test_compare(
    runs: Path, words: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch  # noqa: E501
) -> None:  # fmt: skip
    """Exit 0 for improved or equivalent, 1 for regressed, 2 for inconclusive; the result is on stdout."""
    assert code == aftershock("compare", *words, "--out", str(runs), monkeypatch=monkeypatch)
    assert says in " ".join(capsys.readouterr().out.split())


def test_compare_prints_json(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is one JSON document with every number of every pair."""
    assert 0 == aftershock("compare", str(runs / "r1"), "--json", monkeypatch=monkeypatch)
    (pair,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert ("improved", ["recovery", "produce.latency p95 in fault"]) == (pair["verdict"], [row["metric"] for row in pair["rows"]])  # fmt: skip # noqa: E501


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("alone",), "has no workload with two arms to compare"),
        (("r1", "r2", "alone"), "compare takes one run, or two"),
        (("r1", "--control", "baseline"), "--control needs two"),
        (("r1", "r2", "--control", "nobody"), "have no arm in common that can be compared"),
        (("r1", "--margin", "0%"), "--margin 0% is not valid"),
        (("r1", "--margin", "some"), "--margin some is not valid"),
        (("r1", "--metric", "p95"), "'p95' can't be compared"),
        (("r9",), "no run at"),
    ],
)
def test_compare_refuses_incomparable_runs(
    runs: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 and a message on stderr only."""
    assert 3 == aftershock("compare", *words, "--out", str(runs), monkeypatch=monkeypatch)
    told = capsys.readouterr()
    assert says in told.err
    assert "" == told.out


def test_trend_adds_runs_once_and_judges_the_series(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CSV is written; a single night is inconclusive, as is a broken line."""
    words = ("trend", "--ledger", str(runs), "--add", "r1", "--out", str(runs), "--csv", str(runs / "otava.csv"))
    assert 2 == aftershock(*words, monkeypatch=monkeypatch)
    told = capsys.readouterr()
    assert "r1: 16 lines added" in told.err
    assert "16 series: 16 inconclusive" in told.out
    assert (runs / "otava.csv").read_text().startswith("time,run,commit,rotation/orders/baseline/")
    assert 2 == aftershock(*words, "--json", monkeypatch=monkeypatch)
    told = capsys.readouterr()
    assert "r1: not added: the ledger already has this run" in told.err
    assert 16 == len(json.loads(told.out)["series"])
    with (runs / "ledger.jsonl").open("a") as ledger:
        ledger.write("{}\n")
    assert 2 == aftershock("trend", "--ledger", str(runs / "ledger.jsonl"), monkeypatch=monkeypatch)
    assert "ledger.jsonl:17: not a line of a ledger" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "the nightly ledger is empty; add judged runs: aftershock trend --add RUN"),
        (("--since", "2027-01-01"), 2, "the nightly ledger is empty"),
        (("--since", "tomorrow"), 3, "--since tomorrow is not a date; write it like 2026-11-21"),
    ],
)
def test_trend_without_runs_never_exits_0(
    tmp_path: Path, words: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch  # noqa: E501
) -> None:  # fmt: skip
    assert code == aftershock("trend", "--ledger", str(tmp_path), *words, monkeypatch=monkeypatch)
    told = capsys.readouterr()
    assert says in told.out + told.err
