"""A new repository: what `aftershock init` writes runs as the GitHub action runs it, and passes."""

import os
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from aftershock.harness.cli.init import init

ROOT = Path(__file__).parents[2]


@pytest.mark.engine
@pytest.mark.nightly
def test_the_first_test_passes(tmp_path: Path) -> None:
    """The scripts of action.yml get ready and run the test; its run is in runs/, which the action keeps."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    init(tmp_path)
    yaml = YAML(typ="safe")
    workflow = yaml.load(tmp_path / ".github" / "workflows" / "chaos.yml")
    command = workflow["jobs"]["chaos"]["steps"][-1]["with"]["command"]
    environment = {**os.environ, "GITHUB_ACTION_PATH": str(ROOT), "AFTERSHOCK_COMMAND": command}
    for step in yaml.load(ROOT / "action.yml")["runs"]["steps"]:
        if "run" in step:
            script = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=580
            )
            assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "junit.xml").is_file()
    assert list((tmp_path / "runs").glob("*leader-lost*/verdict.json"))
