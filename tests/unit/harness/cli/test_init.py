"""`aftershock init`: what it writes is valid, fits the action, and replaces nothing."""

import io
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from aftershock.errors import AftershockError
from aftershock.faults.plan.check import load_plan
from aftershock.harness.cli.init import FILES, SERVICE_FILE, init

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


START, TOPICS = "python3 billing.py", "orders billed biller"


@pytest.mark.parametrize(
    ("start", "variable", "mark"),
    [
        (START, "KAFKA", "$.order.id"),
        (START, "KAFKA", "key"),
        ("java -cp lib/* Billing {bootstrap} {from} {to}", None, "header"),
        ("image acme/billing:2 --kafka={bootstrap}", None, "header"),
    ],
)
def test_the_plan_of_a_service_is_valid_without_warnings(
    tmp_path: Path, start: str, variable: str | None, mark: str
) -> None:
    """The address is in the environment or in the command line, and only the first needs a variable."""
    assert 0 == init(tmp_path, service=True, start=start, topics=TOPICS, variable=variable, mark=mark)
    checked = load_plan(tmp_path / SERVICE_FILE)
    assert () == tuple(checked.warnings)
    arm = checked.plan.workloads[0].arms["ours"]
    assert ({variable: "{bootstrap}"} if variable else {}) == arm.env


@pytest.mark.parametrize(
    ("start", "topics", "variable", "message"),
    [
        (START, "orders billed", "KAFKA", "`orders billed` is not its input topic, output topic and group"),
        ("'", TOPICS, "KAFKA", "`'` is no command line"),
        (START, TOPICS, None, r"no terminal to ask; give them: --variable KAFKA$"),
        (START, TOPICS, "-", "^the answers make no valid plan, so nothing was written: this name must match"),
    ],
)
def test_unusable_answers_write_nothing(
    tmp_path: Path, start: str, topics: str, variable: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(AftershockError, match=message):
        init(tmp_path, service=True, start=start, topics=topics, variable=variable, mark="header")
    assert [] == list(tmp_path.rglob("*"))
