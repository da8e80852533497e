"""A fault kind of an external package: installed, listed, validated, run on a real cluster."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PASS, INCONCLUSIVE = 0, 2
PACKAGE = Path(__file__).parent / "example_fault"
PLAN = """
name: dozing
topics: [{name: orders, partitions: 3, replication: 3, config: {min.insync.replicas: 2}}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, deadline: 15s}
    consume: {topic: orders}
timing: {warmup: {min: 2s, max: 30s}, steady: 3s, recovery: 2s}
faults:
  - {at: 0s, for: 3s, kind: doze, broker: leader of orders/0, nap: 400ms, every: 1s}
slo: ["lost == 0"]
"""
BROKEN = """
[project]
name = "broken-fault"
version = "0.1.0"
[project.entry-points."aftershock.faults"]
gremlin = "gremlin:Gremlin"
[tool.setuptools]
py-modules = ["gremlin"]
"""


@dataclass(frozen=True)
class Installed:
    """A folder with packages, as in an environment with external packages beside ours."""

    site: Path
    home: Path

    def aftershock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from aftershock.harness.cli.__main__ import main; main()", *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            command,
            cwd=self.home,
            env=clean | {"PYTHONPATH": str(self.site)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        print(done.stdout, done.stderr)
        return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The example, and a package whose kind can't be loaded."""
    folder = tmp_path_factory.mktemp("packages")
    broken = folder / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text(BROKEN)
    (broken / "gremlin.py").write_text("import a_module_that_is_not_there\n")
    shutil.copytree(PACKAGE, folder / "example")  # setuptools writes its build files beside the sources.
    site = folder / "site"
    for package in (folder / "example", broken):
        _pip("install", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), str(package))
    home = folder / "home"
    home.mkdir()
    (home / "plan.yaml").write_text(PLAN)
    return Installed(site, home)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert 0 == done.returncode, done.stdout


def test_an_external_kind_is_listed(installed: Installed) -> None:
    """`plan faults` has it in its family with its parameters and its package, and names the broken package."""
    listed = installed.aftershock("plan", "faults").stdout
    (entry,) = [block for block in listed.split("\n\n") if block.startswith("doze: ")]
    assert "doze: Pause a node for a moment, repeatedly." == entry.splitlines()[0]
    assert ["broker", "nap", "every", "for", "proof", "heal", "met", "from"] == [
        line.split()[0] for line in entry.splitlines()[1:]
    ]
    assert "example-fault 0.1.0" in entry
    (broken,) = [block for block in listed.split("\n\n") if "gremlin" in block]
    assert "the package broken-fault 0.1.0 has a kind `gremlin` that can't be used" in broken
    assert "No module named 'a_module_that_is_not_there'" in " ".join(broken.split())


def test_an_external_kind_is_not_in_our_documentation(installed: Installed) -> None:
    """Whatever is installed where the page is generated."""
    assert "doze" not in installed.aftershock("plan", "faults", "--markdown").stdout


def test_an_external_kind_is_validated(installed: Installed) -> None:
    """Its parameters are checked like ours, and the broken package affects only a plan that uses it."""
    done = installed.aftershock("plan", "check", "plan.yaml")
    assert 0 == done.returncode
    assert done.stdout.startswith("plan.yaml: dozing is a valid plan: ")
    (installed.home / "wrong.yaml").write_text(PLAN.replace("nap: 400ms", "nap: 3s, snore: 1"))
    wrong = installed.aftershock("plan", "check", "wrong.yaml")
    assert "unknown key `snore`" in wrong.stderr
    assert "`nap` must be at most" in wrong.stderr
    (installed.home / "gremlin.yaml").write_text(PLAN.replace("kind: doze", "kind: gremlin"))
    refused = installed.aftershock("plan", "check", "gremlin.yaml").stderr
    assert "the package broken-fault 0.1.0 has a kind `gremlin`" in refused


@pytest.mark.engine
def test_an_external_kind_runs(installed: Installed) -> None:
    """On a real cluster: witnessed in each pause, healed, and every check that a busy host can decide is a PASS."""
    done = installed.aftershock("run", "plan.yaml", "--json")
    assert done.returncode in (PASS, INCONCLUSIVE)  # On a starved host latency checks are undecided.
    judged = [check for check in json.loads(done.stdout)["checks"] if check["kind"] in ("slo", "integrity", "witness")]
    assert [] == [(check["id"], check["why"]) for check in judged if check["status"] != "PASS"]
    assert "witness" in {check["kind"] for check in judged}
    (run,) = (installed.home / "runs").iterdir()
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    assert {"doze"} == {line["kind"] for line in journal}
    witnesses = [line["witness"]["ok"] for line in journal if line["state"] == "witnessed"]
    assert [True, True, True] == witnesses
    assert "healed" == journal[-1]["state"]
