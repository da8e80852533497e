"""Real programs behind real pipes: their output, their end, and no remaining process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.exec_child import BACKLOG_BYTES_MAX, LINE_BYTES_MAX, Child

LIMIT_S = 20.0

HOLDER = """
import sys, time
from aftershock.workloads.adapters.exec_child import Child
child = Child([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""

Start = Callable[[str], Child]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def python(code: str) -> Child:
        children.append(Child([sys.executable, "-c", code]))
        return children[-1]

    yield python
    for child in children:
        child.kill()


def hear(child: Child, count: int) -> list[bytes]:
    """Return ``count`` lines of output."""
    lines: list[bytes] = []
    until = time.monotonic() + LIMIT_S
    while len(lines) < count:
        assert time.monotonic() < until, f"{lines} after {LIMIT_S} s"
        lines += child.hear(0.1)
    return lines


def death(child: Child) -> str:
    """Return the error of a program's end, after it has ended."""
    with pytest.raises(WorkloadError) as caught:
        hear(child, sys.maxsize)
    return str(caught.value)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int) -> None:
    until = time.monotonic() + LIMIT_S
    while runs(pid):
        assert time.monotonic() < until, f"process {pid} lives on"
        time.sleep(0.02)


def test_lines_come_whole(start: Start) -> None:
    """A line that is written in pieces is one line; several lines in one write are several."""
    child = start(
        "import os, time\n"
        "for piece in (b'on', b'e\\ntwo\\nthr', b'ee\\n'):\n"
        "    os.write(1, piece); time.sleep(0.05)\n"
        "input()"
    )
    assert hear(child, 3) == [b"one", b"two", b"three"]


def test_written_data_arrives_in_order(start: Start) -> None:
    """More data than a pipe holds is written without waiting, and the program reads all of it."""
    child = start(
        "import sys\nprint(sum(len(line) for line in iter(sys.stdin.readline, 'end\\n')), flush=True)\ninput()"
    )
    lines = [b"%d %s\n" % (n, b"x" * 99_990) for n in range(80)]
    assert all(child.write(line) for line in lines)
    assert child.write(b"end\n")
    assert hear(child, 1) == [b"%d" % sum(map(len, lines))]


def test_the_backlog_of_a_program_that_does_not_read_is_bounded(start: Start) -> None:
    """Beyond the limit a write is refused, and takes no memory."""
    child = start("import time; time.sleep(600)")
    line = b"x" * 2**20
    written = 0
    while child.write(line):
        written += len(line)
        assert written <= BACKLOG_BYTES_MAX + 2 * 2**20, "the pipe itself holds a MiB"
    assert written >= BACKLOG_BYTES_MAX


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import sys; sys.exit('no such topic')", "ended with exit status 1"),
        ("import sys; print('no such topic', file=sys.stderr)", "ended with exit status 0"),
        ("import os, sys; print('no such topic', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)", "signal 11"),
        (
            "import os, sys, time; print('no such topic', file=sys.stderr, flush=True); os.close(1); time.sleep(600)",
            "closed its standard output without ending",
        ),
    ],
)
def test_an_unexpected_end_is_reported_with_stderr(
    start: Start, capfd: pytest.CaptureFixture[str], code: str, how: str
) -> None:
    """The error names the command, how it ended and its last standard error output, which is passed on as well."""
    child = start(code)
    told = death(child)
    assert how in told
    assert "no such topic" in told.rpartition("last lines")[2]
    assert sys.executable in told
    assert "no such topic" in capfd.readouterr().err
    assert not runs(child.pid)
    assert told == death(child), "asked again it says so again"
    with pytest.raises(WorkloadError, match="no such topic"):
        child.write(b"order")


def test_output_before_the_end_is_read_first(start: Start) -> None:
    """The last reports of a program that dies are not lost."""
    child = start("print('acked 1'); print('acked 2')")
    assert hear(child, 2) == [b"acked 1", b"acked 2"]
    assert "exit status 0" in death(child)


def test_the_end_is_noticed_while_a_child_holds_the_pipes(start: Start) -> None:
    """A process that the program started keeps its standard output open: the program's end counts."""
    child = start("import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)")
    (grandchild,) = hear(child, 1)
    assert "exit status 0" in death(child)
    wait_gone(int(grandchild))


def test_a_missing_command_is_an_error() -> None:
    """The error names the command."""
    child = Child(["no-such-program-at-all"])
    assert "cannot start 'no-such-program-at-all': No such file" in death(child)
    with pytest.raises(WorkloadError, match="no program to start"):
        Child([])


def test_a_line_without_end_is_an_error(start: Start) -> None:
    """A program that never writes a newline costs at most the limit of one line."""
    child = start("import os\nwhile True: os.write(1, b'x' * 65536)")
    with pytest.raises(WorkloadError, match=f"more than {LINE_BYTES_MAX} bytes"):
        hear(child, 1)


def test_close_waits_then_kills_the_program(start: Start) -> None:
    """A program that ends keeps its exit status; after the wait it is killed, with its children."""
    assert start("input()\nimport sys; sys.exit(3)").write(b"\n")
    polite = start("import sys; sys.exit(3)")
    assert polite.end(LIMIT_S) == 3
    stubborn = start(
        "import subprocess, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "while True: signal.pause()"
    )
    (grandchild,) = hear(stubborn, 1)
    assert stubborn.end(0) == -signal.SIGKILL
    wait_gone(int(grandchild))
    assert not runs(stubborn.pid)


def test_a_program_dies_with_its_worker() -> None:
    """SIGKILL of the worker: no process is left to end the program, but it ends."""
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        program = int(holder.stdout.readline())
        assert runs(program)
        os.kill(holder.pid, signal.SIGKILL)
        wait_gone(program)
