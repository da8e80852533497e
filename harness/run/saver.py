"""Process that writes to the disk what a run has recorded so far: ``python -m aftershock.harness.run.saver``.

The runner starts the process about once a minute and writes one JSON object to its standard input, with the keys of
`save`. The process has a low priority. In the runner's own process, the conversion to Parquet would take memory for
good, and delay the timers that the run depends on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from aftershock.errors import EvidenceError
from aftershock.workloads.load.outcomes import move, write_whole

SAMPLES_A_FILE = 32_768
_SCHEMA = pa.schema([("t_us", pa.int64()), ("broker_id", pa.int32()), ("name", pa.string()), ("value", pa.float64())])


class Sample(NamedTuple):
    t_us: int
    broker_id: int | None
    name: str
    value: float


def save(metrics: Path, samples: Sequence[Sample], spool: Path | None = None, outcomes: Path | None = None) -> int:
    """Start the process, and wait until it has added ``samples`` to ``metrics``, and moved the rows in ``spool``.

    Return the number of rows in ``outcomes``, which includes the rows that are still open.
    Raises EvidenceError if the files can't be written.
    """
    paths = {"metrics": metrics, "spool": spool, "outcomes": outcomes}
    request = {name: str(path) for name, path in paths.items() if path} | {"samples": samples}
    command = [sys.executable, "-P", "-m", "aftershock.harness.run.saver"]
    # in a session of its own, so that Ctrl-C does not end the process
    done = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise EvidenceError(f"the evidence so far can't be written ({why}); free disk space, or choose another --out")
    return int(done.stdout or 0)


def store(folder: Path, samples: Sequence[Sample]) -> None:
    """Add samples to the latest of the files ``samples.parquet``, ``samples-00001.parquet`` … or to a new file."""
    number = max((int(path.stem[8:] or 0) for path in folder.glob("samples*.parquet")), default=0)
    path = folder / (f"samples-{number:05}.parquet" if number else "samples.parquet")
    extending = path if path.exists() else None
    if extending and not samples:
        return
    if extending and pq.read_metadata(path).num_rows >= SAMPLES_A_FILE:
        path, extending = folder / f"samples-{number + 1:05}.parquet", None
    columns = [dict(zip(Sample._fields, zip(*samples, strict=True), strict=True))] if samples else []
    write_whole(path, _SCHEMA, columns, extending=extending)


if __name__ == "__main__":
    os.nice(10)
    request = json.load(sys.stdin)
    try:
        store(Path(request["metrics"]), request["samples"])
        if "spool" in request:
            outcomes = Path(request["outcomes"])
            move(Path(request["spool"]), outcomes)
            rows = sum(pq.read_metadata(path).num_rows for path in outcomes.glob("part-*.parquet"))
            sys.stdout.write(f"{rows}\n")
    except OSError as failure:
        sys.exit(f"{failure.filename or request['metrics']}: {failure.strerror or failure}")
