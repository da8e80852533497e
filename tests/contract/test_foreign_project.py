"""The plugin in a foreign project: a wheel in a fresh environment, a suite with its own `results/`."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_OURS = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__")
TESTS = """
import importlib.metadata
import results

def test_own_packages():
    assert "mine" == results.MINE

def test_ours_beside_them():
    import aftershock.results.slo
    assert aftershock.results.slo.__file__ != results.__file__
    assert "site-packages" in aftershock.__file__

def test_chaos(chaos):
    run = chaos.run("plan.yaml")
    run.expect("duplicate == 0")
"""
PLAN = """
name: theirs
topics: [{name: orders, partitions: 3, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 200, deadline: 15s}
    consume: {topic: orders}
timing: {warmup: {min: 2s, max: 30s}, steady: 3s, fault: 2s, recovery: 2s}
slo: ["lost == 0"]
"""


@dataclass(frozen=True)
class Project:
    """A foreign project, the interpreter of its environment, and our wheel, which is installed in it."""

    folder: Path
    python: Path
    wheel: Path

    def pytest(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", "pytest", *options]
        # The project must not inherit coverage, import paths and options of this session.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
        done = subprocess.run(
            command, cwd=self.folder, env=clean, capture_output=True, text=True, timeout=300, check=False
        )
        print(done.stdout, done.stderr)
        return done


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Aftershock's wheel in a separate environment; our environment provides its dependencies, which can't be
    downloaded.
    """
    folder = tmp_path_factory.mktemp("foreign")
    fresh = folder / "venv"
    venv.create(fresh, with_pip=False)
    python = fresh / "bin" / "python"
    site = fresh / sysconfig.get_path("purelib", vars={"base": "."})
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wheel = _wheel(folder)
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    home = folder / "project"
    for package in ("results", "tests"):
        (home / package).mkdir(parents=True)
    (home / "results" / "__init__.py").write_text('MINE = "mine"\n')
    (home / "tests" / "__init__.py").touch()
    (home / "tests" / "test_theirs.py").write_text(TESTS)
    (home / "tests" / "plan.yaml").write_text(PLAN)
    return Project(home, python, wheel)


def _wheel(folder: Path) -> Path:
    """Build the wheel from a copy: setuptools writes its build files beside the sources."""
    shutil.copytree(ROOT, folder / "copy", ignore=NOT_OURS)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(folder / "copy"))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert 0 == done.returncode, done.stdout


def test_a_suite_with_our_package_names_runs(project: Project) -> None:
    """Their `results` and `tests` are theirs, ours are in our package, and no file of ours remains."""
    done = project.pytest("-k", "not chaos")
    assert (0, True) == (done.returncode, "2 passed" in done.stdout)
    assert not (project.folder / "runs").exists()


def test_a_version_of_a_client_is_built_from_the_wheel(project: Project, tmp_path: Path) -> None:
    """The programs around client libraries are in the wheel."""
    command = [project.python.with_name("aftershock"), "clients", "build", "kafka-python@3.0.6"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, env=clean | {"XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert (0, "kafka-python@3.0.6 is built in ") == (done.returncode, done.stdout[:31]), done.stderr


def test_the_plugin_is_registered_by_an_entry_point(project: Project) -> None:
    assert "--aftershock-keep={failed}" in project.pytest("--help").stdout


def test_collecting_starts_nothing(project: Project) -> None:
    """Chaos tests are listed without an engine and without a session."""
    done = project.pytest("--collect-only", "-q", "-p", "no:xdist")
    assert (0, True) == (done.returncode, "tests/test_theirs.py::test_chaos" in done.stdout)
    assert not (project.folder / "runs").exists()


def test_the_wheel_has_every_file_of_the_package(project: Project) -> None:
    """Plans, recipes of images, Java programs, templates and scripts are in it, and every module."""
    parts = ("faults", "harness", "results", "workloads")
    files = [path.relative_to(ROOT) for part in parts for path in (ROOT / part).rglob("*") if path.is_file()]
    needed = {f"aftershock/{path.as_posix()}" for path in files if "__pycache__" not in path.parts}
    assert needed
    assert set() == needed - {*zipfile.ZipFile(project.wheel).namelist()}


@pytest.mark.nightly
@pytest.mark.engine
def test_an_environment_of_ones_own(project: Project, tmp_path: Path) -> None:
    """The wheel with its dependencies from the index, then two commands in an empty folder: init, and the demo."""
    home = tmp_path / "mine"
    home.mkdir()
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    _pip("--python", str(python), "install", str(project.wheel))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for arguments in (["init"], ["plan", "check", "chaos/leader-lost.yaml"], ["run", "demo"]):
        command = [str(python.with_name("aftershock")), *arguments]
        done = subprocess.run(command, cwd=home, env=clean, capture_output=True, text=True, timeout=400, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr
    assert list((home / "runs").glob("*demo*/report.html"))


@pytest.mark.nightly
@pytest.mark.engine
def test_a_chaos_test_runs(project: Project) -> None:
    """Their plan, a cluster of ours, a verdict in their terminal."""
    done = project.pytest("-k", "chaos")
    assert 0 == done.returncode
    assert "1 passed" in done.stdout
    assert "PASS         tests/test_theirs.py::test_chaos  runs/" in done.stdout
