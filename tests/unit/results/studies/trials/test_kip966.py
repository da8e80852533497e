"""KIP-966: records that survive the power loss of the last in-sync replica, with and without eligible replicas."""

from pathlib import Path

import pytest

from aftershock.results.studies.part import Part
from aftershock.results.studies.trials import kip966
from aftershock.results.studies.trials.claim import Parts
from aftershock.tests.unit.results.studies.test_durability import run
from aftershock.tests.unit.results.studies.trials.made import judge

CUTS_S = [10.0 + 30 * number for number in range(6)]


def part(home: Path, lost_s: float = 0.0) -> Part:
    """Return a run of six cuts, each of which destroys the records of these seconds before it."""
    lost = [round(cut_s - after) for cut_s in CUTS_S for after in range(round(lost_s))]
    return run(home, lost, names=("writes", "orders", "last"), cuts_s=CUTS_S)


def parts(folder: Path, *, elr: float = 0.0, no_elr: float = 5.0, killed: float = 0.0) -> Parts:
    seconds = {kip966.ELR: elr, kip966.NO_ELR: no_elr, kip966.KILLED: killed}
    return {name: part(folder / name, lost_s) for name, lost_s in seconds.items()}


@pytest.mark.parametrize(
    ("claim", "seconds", "word"),
    [
        ("kept", {}, "confirmed"),
        ("kept", {"elr": 1.0}, "contradicted"),
        ("lost", {}, "confirmed"),
        ("lost", {"no_elr": 0.0}, "undecided"),
        ("killed", {}, "confirmed"),
        ("killed", {"killed": 1.0}, "contradicted"),
    ],
)
def test_words(tmp_path: Path, claim: str, seconds: dict[str, float], word: str) -> None:
    assert word == judge(kip966.REGISTRATION, claim, parts(tmp_path, **seconds)).word


def test_a_cut_before_which_nothing_was_acknowledged_is_no_unit(tmp_path: Path) -> None:
    """The second cut comes before the first acknowledgement after the first cut, so five of six cuts remain."""
    cuts_s = [CUTS_S[0], CUTS_S[0] + 1, *CUTS_S[2:]]
    made = run(tmp_path, names=("writes", "orders", "last"), cuts_s=cuts_s)
    judged = judge(kip966.REGISTRATION, "kept", {**parts(tmp_path / "others"), kip966.ELR: made})
    assert ("undecided", 5) == (judged.word, judged.ours.n)


def test_the_time_until_a_record_is_acknowledged_is_compared(tmp_path: Path) -> None:
    judged = judge(kip966.REGISTRATION, "lost", parts(tmp_path))
    assert "30 of" in judged.why
    (figure,) = [claim for claim in kip966.REGISTRATION.claims if claim.id == "silent"]
    measured = figure.measure(parts(tmp_path / "again"))
    assert (0.0, 6) == (measured.ours.value, measured.ours.n)
    assert "8.0 s and 8.0 s" in measured.why


def test_the_chart_has_a_point_for_each_cut(tmp_path: Path) -> None:
    (plot,) = kip966.plots(parts(tmp_path))
    assert "power lost, with ELR: 0, 0, 0, 0, 0, 0 %" in plot.svg
    assert () == kip966.plots({})
