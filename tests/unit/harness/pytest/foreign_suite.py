"""A suite of chaos tests without real runs: prepared evidence is copied into the place of each run.

Everything else is real: pytest's processes, xdist's workers, the judge and its Spark session.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made, clean_run

PLAN = """
name: passing
topics: [{name: orders, partitions: 6, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, rack: a}
    consume: {topic: orders, rack: b}
    arms: {baseline: {}, patient: {}}
timing: {steady: 10s}
faults:
  - {at: 0s, for: 8s, kind: latency, link: "client(a) -> broker", delay: 50ms}
slo: ["lost == 0"]
"""
CONFTEST = """
import os
import shutil
from pathlib import Path
from aftershock.errors import ClusterError
from aftershock.harness.run import run as running
from aftershock.results.evidence.files import read_json

MADE = Path(__file__).parent / "made"
OURS = ("run_id", "plan", "seed", "test", "command", "repeats")

def drive(job, kind, suite, test, begin, console):
    home = begin()
    name = job.timeline.name
    if name == "dying":
        os._exit(9)
    if name == "refused":
        home.update(status="failed", why="k2 did not come back")
        raise ClusterError("k2 did not come back")
    ours = {key: home.facts[key] for key in OURS if key in home.facts}
    shutil.copytree(MADE / (f"{name}-again" if "repeats" in ours else name), home.path, dirs_exist_ok=True)
    (home.path / "plan.yaml").write_text(job.checked.text)
    home.update(**{**read_json(home.path / "run.json"), **ours})
    home.seal()
    return home

running.drive_leased = drive
"""


def _losing(made: Made) -> None:
    del made.consume[1000]


def _unwitnessed(made: Made) -> None:
    for line in made.journal:
        if "witness" in line and line["fault"] == "kill-1":
            line["witness"] = {**line["witness"], "ok": False}


def _starved(made: Made) -> None:
    for row in made.metrics:
        if row["name"] == "host.tick_late_us":
            row["value"] = 200_000.0


SPOILT: dict[str, Callable[[Made], None]] = {
    "losing": _losing,
    "unwitnessed": _unwitnessed,
    "starved": _starved,
}
GOOD = ("passing", "starved-again")
TRUNCATED = "broken"


def project(folder: Path, tests: str, evidence: Collection[str] = (TRUNCATED,)) -> None:
    """Write a project with a suite, a plan, and evidence for each name that the plan may be given."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "plan.yaml").write_text(PLAN)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_suite.py").write_text(tests)
    _make(folder / "made", evidence)


def _make(folder: Path, names: Collection[str]) -> None:
    clean = clean_run(columns(), ("lost == 0",))
    for name in names:
        made = clean.copy()
        if name == TRUNCATED:
            for table in ("produce", "consume", "log", "metrics"):
                setattr(made, table, [])
        if name in SPOILT:
            SPOILT[name](made)
        made.write(folder / name)
    if TRUNCATED in names:
        (folder / TRUNCATED / "outcomes" / "produce-0.parquet").write_bytes(b"PAR1 and no more")


@dataclass(frozen=True)
class Told:
    """Output of a pytest session on every channel."""

    folder: Path
    code: int
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @cached_property
    def junit(self) -> ET.Element:
        """The suite's element in the JUnit file."""
        suite = ET.parse(self.folder / "junit.xml").getroot().find("testsuite")  # noqa: S314 - pytest wrote it
        assert suite is not None
        return suite

    @property
    def cases(self) -> dict[str, ET.Element]:
        """Return the testcases by name; each test must occur once."""
        cases = [case for case in self.junit.iter("testcase") if case.get("classname") == "test_suite"]
        named = {str(case.get("name")): case for case in cases}
        assert len(named) == len(cases)
        return named

    @property
    def last_failed(self) -> set[str]:
        """Return the tests that `--lf` would run."""
        path = self.folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
        return {name.split("::")[1] for name in json.loads(path.read_text())}

    @property
    def session(self) -> dict[str, Any]:
        (path,) = (self.folder / "runs").glob("session-*/session.json")
        return dict(json.loads(path.read_text()))

    def section(self, title: str) -> list[str]:
        """Return the lines below a headline of the terminal report, up to the next headline."""
        start = next(i for i, line in enumerate(self.lines) if line.strip("= ") == title and line.startswith("=="))
        rest = self.lines[start + 1 :]
        return rest[: next(i for i, line in enumerate(rest) if line.startswith("=="))]


def run_suite(folder: Path, *options: str, deadline_s: float = 500, **environment: str) -> Told:
    """Run pytest on the suite in ``folder``, in its own process, with variables added to our environment."""
    command = [sys.executable, "-m", "pytest", "--junitxml=junit.xml", "-ra", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    print(done.stdout)
    return Told(folder, done.returncode, done.stdout)
