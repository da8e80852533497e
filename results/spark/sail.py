"""Sail, the engine of verdicts on this host: a Spark Connect server that runs PySpark's queries without a JVM.

Sail gets a process of its own, so that a crash, its memory and its log are not those of the judge. It listens on a
loopback port as long as a ``with`` block lasts, and ends when its standard input does, so also if the judge is killed.
"""

import importlib.metadata
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, cast

from aftershock.errors import EvidenceError

LOOPBACK = "127.0.0.1"
START_DEADLINE_S, EXIT_DEADLINE_S = 60.0, 5.0
_PLAIN = re.compile(r"[\w/.-]+", re.ASCII)


@contextmanager
def sail(scratch: Path, log: Path) -> Iterator[tuple[str, Path]]:
    """Run Sail for the length of a ``with`` block; yield its URL, and the folder for tables, under a name it can read.

    Sail spills to ``scratch``, in which the folder for tables is; its output goes to ``log``. Raises EvidenceError,
    with the name of the log, if Sail does not start.
    """
    with tempfile.TemporaryDirectory(prefix="aftershock-", ignore_cleanup_errors=True) as plain:
        alias = Path(plain) / "scratch"
        if not _PLAIN.fullmatch(plain):  # Sail takes other characters for wildcards, and finds no files
            raise EvidenceError(
                f"{plain}: Sail can't read this path; set TMPDIR to a folder with letters and digits only"
            )
        alias.symlink_to(scratch)
        tables = alias / "tables"
        tables.mkdir()
        settings = {"SAIL_RUNTIME__TEMPORARY_FILES__PATHS": f'["{alias}"]', "RUST_LOG": "error"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, plain],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={name: value for name, value in os.environ.items() if not name.startswith("SAIL_")} | settings,
                start_new_session=True,  # Ctrl-C in a terminal is for the judge, which ends Sail
            )
        stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            ready, _, _ = select.select([stdout], [], [], START_DEADLINE_S)
            port = stdout.readline().decode().strip() if ready else ""
            if not port:
                raise EvidenceError(f"Sail, the engine of the judge's queries, did not start; see {log}")
            yield f"sc://{LOOPBACK}:{port}", tables
        finally:
            stdin.close()
            try:
                process.wait(EXIT_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            stdout.close()


def _serve() -> None:
    """Serve until the standard input ends, then remove the folder of the link, which a judge that is killed leaves.

    A user of this host could have Sail run functions in Python, for which Sail imports PySpark's modules. Sail finds
    none: of PySpark, it needs only the version to serve queries.
    """
    only_version = ModuleType("pyspark")
    only_version.__dict__.update(__version__=importlib.metadata.version("pyspark"), __path__=[])
    sys.modules["pyspark"] = only_version
    from pysail.spark import SparkConnectServer  # noqa: PLC0415 - only this process needs it

    server = SparkConnectServer(LOOPBACK, 0)
    server.start(background=True)
    _, port = cast("tuple[str, int]", server.listening_address)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    _serve()
