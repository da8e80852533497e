"""`aftershock explore`: errors before the first run."""

import sys
from pathlib import Path

import pytest

from aftershock.harness.cli import __main__

OWN = """
name: own
topics: [{name: t, partitions: 2, replication: 3}]
workloads: [{name: w, produce: {topic: t, rate: 50/s}, arms: {mine: {client: exec, command: [mine]}}}]
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--budget", "40s"), "a budget of 40 s is too small for the first run, which may take"),
        (("--budget", "soon"), "--budget soon is not a duration: give a number with its unit"),
        (("nowhere",), "nowhere: there is no such file, and no shipped plan of that name"),
        (("own.yaml",), "add --allow-exec (in Python: allow_exec=True) if you trust it"),
        (("--seed", "x"), "aftershock --help"),
    ],
)
def test_invalid_requests_exit_3(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each error names the problem and the remedy; no file is created in the folder."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN)
    monkeypatch.setattr(sys, "argv", ["aftershock", "explore", *words])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert 3 == ended.value.code
    assert says in capsys.readouterr().err
    assert ["own.yaml"] == [path.name for path in tmp_path.iterdir()]


def test_unreadable_ledger_lines_and_plans_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A corrupted line of the ledger and a plan of another schema are each reported, and the search continues."""
    (tmp_path / "coverage.jsonl").write_text("{half a line\n")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "old.yaml").write_text('# corpus: {"schema_version": 0}\n' + OWN)
    monkeypatch.setattr(sys, "argv", ["aftershock", "explore", "--budget", "40s", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        __main__.main()
    broken, old, last = capsys.readouterr().err.splitlines()
    assert broken.startswith(f"{tmp_path / 'coverage.jsonl'}:1: not a line of the coverage ledger")
    assert old.startswith(f"{tmp_path / 'corpus' / 'old.yaml'}: skipped: the file has schema version 0")
    assert "too small" in last
