"""Makes the class-data archive: judges a run once more in a JVM that writes down, when it ends, what classes it used.

Started by ``class_data.py: make_later`` and waited for by nobody, so: of the lowest priority, one at a time, and quiet.
Rules: the run's own files are only read; the archive appears when it is whole; a Java that makes none is asked once.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.results.evidence import read
from aftershock.results.judge import judge_in
from aftershock.results.session import session
from aftershock.results.spark.class_data import quoted, refusal_of
from aftershock.results.spark.conf import SMALL
from aftershock.results.spark.tables import columns

DUMP_DEADLINE_S = 1800.0


def main(archive: Path, run_dir: Path) -> None:
    """The archive at ``archive`` from judging ``run_dir``, unless it is there, or being made."""
    _yield_to_everybody()
    with _alone(archive.with_suffix(".lock")) as alone:
        if alone and not archive.exists():
            _make(archive, run_dir)


def _make(archive: Path, run_dir: Path) -> None:
    draft, log = archive.with_suffix(".draft"), archive.with_suffix(".log")
    draft.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    options = (quoted("-XX:ArchiveClassesAtExit", draft),)
    with tempfile.TemporaryDirectory(prefix="class-data-", dir=archive.parent) as results:
        evidence = replace(read(run_dir, columns()), home=Path(results))
        shutil.copy(run_dir / "run.json", results)
        with session(log, "local[2]", SMALL, options, DUMP_DEADLINE_S) as spark:
            judge_in(spark, [evidence])
    if draft.exists():
        draft.replace(archive)
    else:
        refusal_of(archive).touch()


def _yield_to_everybody() -> None:
    """A run that is measured meanwhile must not feel this."""
    os.nice(19)
    with suppress(AttributeError, OSError):  # not everywhere, and not everybody may
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def _alone(lock: Path) -> Iterator[bool]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    with suppress(AftershockError, OSError):  # the run may be gone by now; the next judgement tries again
        main(Path(sys.argv[1]), Path(sys.argv[2]))
