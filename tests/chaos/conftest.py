"""The command line on a real cluster, judged by exit code, files and remains."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aftershock.harness.kafka.admin import still_lacking
from aftershock.tests.left import left_of

DEADLINE_S = 300


class Command:
    """One ``aftershock`` process (or another entry point, ``door``), whose stderr is read as it arrives."""

    def __init__(self, arguments: Sequence[str], out: Path, door: str = "aftershock.harness.cli") -> None:
        self.out = out
        self.mark = f"AFTERSHOCK_TEST={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self._lines: list[str] = []
        self._ended = False
        self._said = threading.Condition()
        self._stdout = out.parent / "stdout"
        with self._stdout.open("w") as stdout:
            self.process = subprocess.Popen(
                [sys.executable, "-m", door, *arguments],
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                # Planted failures must not become annotations of the CI run.
                env={**os.environ, name: value, "GITHUB_ACTIONS": "false"},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as stderr:
            for line in stderr:
                print(line, end="")
                with self._said:
                    self._lines.append(line.rstrip("\n"))
                    self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    @property
    def stderr(self) -> str:
        return "\n".join(self._lines)

    def wait_for(self, text: str) -> None:
        """Wait until a line on stderr contains ``text``."""
        with self._said:
            heard = self._said.wait_for(lambda: text in self.stderr or self._ended, DEADLINE_S)
        assert heard, f"{text!r} was not said in time"
        assert text in self.stderr

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self, deadline_s: float = DEADLINE_S) -> tuple[int, str]:
        """Return exit code and stdout."""
        code = self.process.wait(deadline_s)
        self._reader.join()
        stdout = self._stdout.read_text()
        print(stdout)
        return code, stdout

    @property
    def run_dir(self) -> Path:
        (path,) = self.out.iterdir()
        return path

    def facts(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "run.json").read_text()))

    def left_behind(self, within_s: float = 30) -> str:
        """Return the containers, networks, volumes, processes and spools of this run that still exist after a
        moment.

        The moment is for the watchdog, which notices the runner's end and cleans up.
        """
        return still_lacking(lambda: ", ".join(self._still_there()), within_s)

    def _still_there(self) -> list[str]:
        return left_of(self.run_dir.name) + self._processes()

    def _processes(self) -> list[str]:
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark in environment.read_text(errors="replace"):
                    found.append(f"process {(environment.parent / 'cmdline').read_text()[:80]}")
            except OSError:
                continue
        return found


Aftershock = Callable[..., Command]


@pytest.fixture
def aftershock(tmp_path: Path) -> Iterator[Aftershock]:
    """Return a function that starts ``aftershock run`` with a plan; it interrupts the process if the test leaves it
    running.
    """
    started: list[Command] = []

    def start(plan: str, *arguments: str, **door: str) -> Command:
        path = tmp_path / "plan.yaml"
        path.write_text(plan)
        out = tmp_path / "runs"
        started.append(Command(["run", str(path), "--out", str(out), *arguments], out, **door))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.interrupt()
            command.finish()
