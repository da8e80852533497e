"""`aftershock init`: what it writes is valid, fits the action, and replaces nothing."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.harness.cli.init import FILES, init

ROOT = Path(__file__).parents[4]


def test_the_plan_is_valid_without_warnings(tmp_path: Path) -> None:
    """The test beside it names the plan and one of its faults."""
    assert 0 == init(tmp_path)
    checked = load_plan(tmp_path / "chaos" / "leader-lost.yaml")
    assert () == tuple(checked.warnings)
    test = (tmp_path / "chaos" / "test_leader_lost.py").read_text()
    assert 'chaos.run("leader-lost.yaml"' in test
    assert "slow" in [fault.id for fault in checked.plan.faults if f"fault/{fault.id}" in test]


def test_the_workflow_fits_the_action(tmp_path: Path) -> None:
    """Inputs that workflows pass exist in action.yml, whose scripts exist in this repository."""
    init(tmp_path)
    yaml = YAML(typ="safe")
    action = yaml.load(ROOT / "action.yml")
    for workflow in (tmp_path, ROOT):
        (job,) = yaml.load(workflow / ".github" / "workflows" / "chaos.yml")["jobs"].values()
        step = job["steps"][-1]
        assert step["uses"] == "./" + job["steps"][1]["with"]["path"]
        assert step["with"].keys() <= action["inputs"].keys()
    scripts = "\n".join(step["run"] for step in action["runs"]["steps"] if "run" in step)
    assert "$GITHUB_ACTION_PATH/ci/bootstrap" in scripts
    assert (ROOT / "ci" / "bootstrap").is_file()


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_replaced(tmp_path: Path, name: str) -> None:
    """If one of the files exists, none is written."""
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(AftershockError, match=f"{name} already, so nothing was written"):
        init(tmp_path)
    assert [tmp_path / name] == [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "mine" == (tmp_path / name).read_text()


def test_a_wrong_folder(tmp_path: Path) -> None:
    with pytest.raises(AftershockError, match=r"nowhere is not a folder; name the root of your repository"):
        init(tmp_path / "nowhere")
