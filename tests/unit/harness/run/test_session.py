"""The ledger of a session: many processes write it, one process reads it."""

import subprocess
import sys
from pathlib import Path

from aftershock.harness.run.session import Entry, Suite

ENTER = """
import sys
from pathlib import Path
from aftershock.harness.run.session import Entry, Suite
suite = Suite(Path(sys.argv[1]), 1, False)
for number in range(200):
    suite.enter(Entry(f"{sys.argv[2]}-{number}", "test_x.py::test_" + "x" * 300))
"""


def test_nothing_is_written_before_the_first_run(tmp_path: Path) -> None:
    """A suite without chaos tests creates no file."""
    suite = Suite.new(tmp_path, keep_failed=False)
    assert [] == suite.entries()
    assert [] == list(tmp_path.iterdir())


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    """Three workers write at once: every line is whole, and none is lost."""
    suite = Suite.new(tmp_path, keep_failed=False)
    workers = [subprocess.Popen([sys.executable, "-c", ENTER, str(suite.folder), name]) for name in "abc"]
    assert [0, 0, 0] == [worker.wait(60) for worker in workers]
    entered = [entry.run_id for entry in suite.entries()]
    assert sorted(f"{name}-{number}" for name in "abc" for number in range(200)) == sorted(entered)
    assert [f"a-{number}" for number in range(200)] == [run_id for run_id in entered if run_id.startswith("a")]


def test_a_worker_gets_the_session_of_the_controller(tmp_path: Path) -> None:
    """The session survives serialisation; its runs are beside its folder."""
    suite = Suite.new(tmp_path, keep_failed=True)
    told = Suite.from_json(suite.to_json())
    assert suite == told
    assert tmp_path == told.out
    told.enter(Entry("run-1", "test_x.py::test_a[ü]"))
    assert [Entry("run-1", "test_x.py::test_a[ü]")] == suite.entries()
