"""`plan new` writes valid plans, and changes no file."""

from pathlib import Path

import pytest

from aftershock.errors import AftershockError, PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.harness.cli.plan_new import FEARS, new, plan_of
from aftershock.harness.run.required_progress import share_warnings


@pytest.mark.parametrize("fears", [*([word] for word in FEARS), [*FEARS]], ids="+".join)
@pytest.mark.parametrize("client", ["confluent", "java", "reference"])
def test_each_plan_is_valid(fears: list[str], client: str) -> None:
    """A plan of one fear, or of all, has no error, and no warning from the plan alone."""
    checked = load_plan(plan_of("ours", fears, client, "60/s"))
    assert () == checked.warnings
    assert [*fears] == [fault.id for fault in checked.plan.faults]
    assert len(checked.plan.slo) == 1 + len(fears)


@pytest.mark.parametrize("fear", FEARS)
def test_a_plan_of_one_fear_requires_progress(fear: str) -> None:
    """Most of the time of a first plan is judged, so a client that stands still is found."""
    assert [] == share_warnings(load_plan(plan_of("ours", [fear], "confluent", "60/s")))


def test_a_file_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is written once, and checked; a second time, and with a wrong word, nothing is written."""
    path = tmp_path / "chaos" / "Our Plan.yaml"
    assert 0 == new(path, ["leader-dies", "slow-network"])
    assert "our-plan is a valid plan: " in capsys.readouterr().out
    before = path.read_bytes()
    with pytest.raises(AftershockError, match="is there already, so nothing was written"):
        new(path, ["disk-full"])
    assert before == path.read_bytes()
    for fears, words in ((["leader-dead"], "did you mean `leader-dies`?"), (None, "--fear is missing")):
        with pytest.raises(AftershockError, match=words):
            new(tmp_path / "other.yaml", fears)
    with pytest.raises(PlanError, match="is not a rate"):
        new(tmp_path / "other.yaml", ["leader-dies"], rate="60")
    with pytest.raises(AftershockError, match=r"ends in \.yaml"):
        new(tmp_path / "other.txt", ["leader-dies"])
    assert not (tmp_path / "other.yaml").exists()
