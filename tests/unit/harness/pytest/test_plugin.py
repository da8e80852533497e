"""The plugin in real pytest sessions without judged runs: no chaos tests, crashes, interrupts."""

from pathlib import Path

import pytest

from aftershock.tests.unit.harness.pytest.foreign_suite import Told, project, run_suite

LIGHT = """
import sys

def test_light():
    ours = "aftershock.harness.pytest.chaos"
    heavy = ("docker", "pyspark", "testcontainers", "confluent_kafka", "pydantic", "rich", ours)
    assert [] == [name for name in heavy if name in sys.modules]
"""
CHAOS = """
def test_chaos(chaos): chaos.run("plan.yaml")
"""
BROKEN = 'def test_broken(chaos): chaos.run("plan.yaml", changes=["name=broken"])\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def suite(folder: Path, tests: str, *options: str) -> Told:
    project(folder, tests)
    return run_suite(folder, *options)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_suite_without_chaos_tests_is_unchanged(tmp_path: Path, options: tuple[str, ...]) -> None:
    """No folder, no section, no import of Spark or Docker; no warning even if warnings are errors."""
    (tmp_path / "test_light.py").write_text(LIGHT)
    told = run_suite(tmp_path, "-p", "no:asyncio", "-W", "error", *options)
    assert (0, []) == (told.code, [line for line in told.lines if "aftershock" in line and "plugins:" not in line])
    assert not (tmp_path / "runs").exists()


def test_collecting_starts_nothing(folder: Path) -> None:
    """`--collect-only` lists chaos tests and creates no session."""
    told = suite(folder, CHAOS, "--collect-only", "-q")
    assert (0, True) == (told.code, "test_suite.py::test_chaos" in told.lines)
    assert not (folder / "runs").exists()


def test_options_and_mark_are_documented(folder: Path) -> None:
    """The mark is registered for --strict-markers."""
    told = suite(folder, "import pytest\n@pytest.mark.chaos(seed=1)\ndef test_a(): pass\n", "--strict-markers")
    assert 0 == told.code
    help_text = run_suite(folder, "--help").output
    for option in (
        "--aftershock-seed=N",
        "--aftershock-keep={failed}",
        "--aftershock-out=DIR",
        "--aftershock-spark=MASTER",
    ):
        assert option in help_text
    assert "@pytest.mark.chaos(seed=N, judged='latency'|'integrity')" in run_suite(folder, "--markers").output


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_run_that_could_not_be_driven_fails_its_test_at_once(folder: Path, options: tuple[str, ...]) -> None:
    """With the error's own text; the run is listed with the reason, and Spark doesn't start."""
    told = suite(folder, 'def test_a(chaos): chaos.run("plan.yaml", changes=["name=refused"])\n', *options)
    assert (1, ["test_a"]) == (told.code, list(told.last_failed))
    assert any("ClusterError: k2 did not come back" in line for line in told.section("FAILURES"))
    (line,) = [line for line in told.section("aftershock") if "test_a" in line]
    assert line.startswith("not judged")
    assert line.endswith("k2 did not come back")
    assert [] == list((folder / "runs").glob("session-*/spark.log"))


def test_a_session_ends_after_a_worker_crash(folder: Path) -> None:
    """The test fails as xdist reports it, its run is listed as unjudged, and the following tests run."""
    tests = 'def test_a(chaos): chaos.run("plan.yaml", changes=["name=dying"])\ndef test_b(): pass\n'
    told = suite(folder, tests, "-n", "1")
    assert "1 failed, 1 passed" in told.lines[-1]
    (line,) = [line for line in told.section("aftershock") if "test_a" in line]
    assert line.startswith("not judged")
    assert line.endswith("the process that drove the run died")


def test_an_interrupt_reports_unjudged_tests_as_errors(folder: Path) -> None:
    """A test that was driven but not judged has not passed: the error says how to judge it."""
    told = suite(folder, BROKEN + "def test_b(): raise KeyboardInterrupt\n")
    assert 2 == told.code
    assert "1 error" in told.lines[-1]
    (run,) = told.session["runs"]
    errors = " ".join(told.section("ERRORS"))
    assert f"aftershock verdict {folder / 'runs' / run['run']}" in errors
    assert {"test_broken"} == told.last_failed


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_finished_runs_are_judged_after_a_failure_with_x(folder: Path, options: tuple[str, ...]) -> None:
    """-x ends the loop; existing runs are judged, which a separate line announces, and their verdicts count."""
    told = suite(folder, BROKEN + "def test_b(): assert 0\ndef test_never(): pass\n", "-x", *options)
    assert "aftershock: judging 1 run" in told.lines
    assert "1 failed, 1 error" in told.lines[-1]
    assert "truncated" in " ".join(told.section("ERRORS"))


def test_the_output_option_is_relative_to_the_start_folder(folder: Path) -> None:
    suite(folder, 'def test_a(chaos): chaos.run("plan.yaml", changes=["name=refused"])\n', "--aftershock-out=elsewhere")
    assert not (folder / "runs").exists()
    assert 2 == len(list((folder / "elsewhere").iterdir()))


KEEPING = """
from types import SimpleNamespace
from aftershock.harness.pytest import summary as suite_summary

class Pool:
    asked = []
    def keep(self, run):
        self.asked.append(run)
        if len(self.asked) > 1:
            return None
        return SimpleNamespace(run_id="pool-1-0", bootstrap=lambda rack: "127.0.0.1:9", close=lambda: None)
    def close(self, say):
        pass

suite_summary.pool_of = lambda suite: Pool()
"""


def test_the_clusters_of_failed_tests_are_kept_and_named(folder: Path) -> None:
    """How to inspect and remove them; for a cluster that served a later test, what to do instead."""
    tests = BROKEN + 'def test_again(chaos): chaos.run("plan.yaml", changes=["name=broken"])\n'
    project(folder, tests)
    (folder / "conftest.py").write_text((folder / "conftest.py").read_text() + KEEPING)
    section = "\n".join(run_suite(folder, "--aftershock-keep=failed").section("aftershock"))
    assert "kept: the cluster of test_suite.py::test_broken, bootstrap 127.0.0.1:9" in section
    assert "aftershock cluster status --run pool-1-0" in section
    assert "aftershock cluster down --run pool-1-0" in section
    assert "the cluster of test_suite.py::test_again is not kept: a later test used the cluster; run" in section


def test_a_broken_summary_does_not_affect_pytests_own(folder: Path) -> None:
    """Our section has the traceback; counts and exit status are unchanged."""
    project(folder, BROKEN)
    (folder / "conftest.py").write_text((folder / "conftest.py").read_text() + KEEPING.replace("def close", "def shut"))
    told = run_suite(folder)
    assert any("AttributeError" in line for line in told.section("aftershock"))
    assert (1, True) == (told.code, "1 error" in told.lines[-1])
