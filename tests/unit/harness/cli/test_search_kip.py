"""`aftershock kip`: streams, exit codes, and errors. No run starts: all parts have their runs already."""

import json
import sys
from pathlib import Path

import pytest

from aftershock.harness.cli import __main__
from aftershock.harness.labs.kip import runner
from aftershock.harness.labs.kip.runner import Record, home_of
from aftershock.harness.labs.kip.trials import KIP_951
from aftershock.results.checks.check import Check
from aftershock.tests.unit.results.trials.made import doubted, part, written

WINDOWS = {"delay-0": "fault", "kill": "fault/dead"}
WAVES = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0]


def aftershock(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["aftershock", *words])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    return int(ended.value.code or 0)


def kept(out: Path, both_ms: float, checks: tuple[Check, ...] = ()) -> Path:
    """Write runs of every part, in which the clients without the KIP take 500 ms, and all clients 3 s after a kill."""
    found = Record(951)
    for planned in KIP_951.parts:
        alike = planned.name == "kill"
        ms = {"both": both_ms, "hints": both_ms, "retry": 500.0, "neither": 500.0}
        values = {f"moves/{arm}": [(3000.0 if alike else one) * wave for wave in WAVES * 5] for arm, one in ms.items()}
        window = WINDOWS.get(planned.name, "fault/move")
        made = part(planned.name, values, window=window, checks=checks)
        found = found.with_run(planned, planned.blocks, written(made, home_of(KIP_951, out)).name)
    runner.write(home_of(KIP_951, out), found)
    return out


@pytest.mark.parametrize(
    ("both_ms", "code", "word"), [(100.0, 0, "CONFIRMED"), (400.0, 2, "NOT SEEN"), (900.0, 1, "CONTRADICTED")]
)
def test_exit_codes(
    both_ms: float,
    code: int,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 0 for confirmed, 1 for contradicted, 2 for not seen; the table is on stdout, the report's path on stderr."""
    assert code == aftershock("kip", "951", "--out", str(kept(tmp_path, both_ms)), monkeypatch=monkeypatch)
    said = capsys.readouterr()
    assert f"KIP-951 leader discovery: {word}" in said.out
    assert "kip-951.html" in said.err


def test_a_starved_host_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with the reason, whatever the figures are."""
    out = kept(tmp_path, 100, (doubted("harness/host", "harness"),))
    assert 2 == aftershock("kip", "951", "--json", "--out", str(out), monkeypatch=monkeypatch)
    (told,) = json.loads(capsys.readouterr().out)["trials"]
    assert ("inconclusive", {"inconclusive"}) == (told["verdict"], {each["word"] for each in told["statements"]})
    assert "the host was starved" in told["why"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("952",), "there is no trial of `952`: use one of"),
        (("951", "--budget", "soon"), "--budget soon is not a duration"),
        (("951", "--budget", "30s"), "use --budget 2m or more"),
    ],
)
def test_an_impossible_request_is_refused(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 3, and no file is created."""
    assert 3 == aftershock("kip", *words, "--out", str(tmp_path), monkeypatch=monkeypatch)
    assert says in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
