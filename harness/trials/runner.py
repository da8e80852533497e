"""Runs the parts of a trial that are missing, one after the other, through the same code as ``aftershock run``.

Rules. Each part is judged before the next begins, and only then recorded. A part whose cluster, fault or client failed
is left out with the reason, and the others go on; without an engine, or with a plan that is none, nothing does.
"""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from aftershock.errors import ClusterError, FaultError, WorkloadError
from aftershock.faults.plans import find
from aftershock.harness.run import Request
from aftershock.harness.trials import record
from aftershock.harness.trials.budget import Allotted
from aftershock.harness.trials.record import Record
from aftershock.harness.trials.trial import Planned, Trial

Perform: TypeAlias = Callable[[Request], Path]
"""Runs and judges a plan, and gives its run directory."""


def home_of(trial: Trial, out: Path) -> Path:
    """Where a trial's runs and its record are."""
    return out / "kips" / str(trial.kip)


def run_missing(
    trial: Trial, allotted: Allotted, out: Path, seed: int, perform: Perform, say: Callable[[str], None]
) -> Record:
    """Run what the budget pays for and has no run yet; the record afterwards, which is on disk as well."""
    home = home_of(trial, out)
    home.mkdir(parents=True, exist_ok=True)
    found = replace(record.read(home, trial.kip), left_out=_left_out(trial, allotted), seed=seed)
    record.write(home, found)
    due = [part for part in trial.parts if part in allotted.blocks]
    for number, part in enumerate(due, 1):
        blocks = allotted.blocks[part]
        what = f"KIP-{trial.kip}, part {number} of {len(due)}: {part.name}"
        if found.done(part, blocks, home):
            say(f"{what}: was run before")
            continue
        say(f"{what}: {_length(part, blocks)}")
        found = _with(found, part, blocks, home, perform, say)
        record.write(home, found)
    return found


def _with(
    found: Record, part: Planned, blocks: int | None, home: Path, perform: Perform, say: Callable[[str], None]
) -> Record:
    """The record with one more part, or with why it failed."""
    try:
        run = perform(_request(part, blocks, home, found.seed))
    except (ClusterError, FaultError, WorkloadError) as error:
        why = f"it failed: {str(error).splitlines()[0]}"
        say(f"{part.name} is left out: {why}")
        return replace(found, left_out={**found.left_out, part.name: why})
    return found.having(part, blocks, run.name)


def _request(part: Planned, blocks: int | None, home: Path, seed: int) -> Request:
    return Request(
        find(part.plan),
        part.settings(blocks),
        seed,
        home,
        part.kafka,
        keep=False,
        rehearse=False,
        allow_exec=False,
        spark=None,
        command=shlex.join(["aftershock", *sys.argv[1:]]),
    )


def _left_out(trial: Trial, allotted: Allotted) -> Mapping[str, str]:
    return {part.name: allotted.left_out[part] for part in trial.parts if part in allotted.left_out}


def _length(part: Planned, blocks: int | None) -> str:
    seconds = part.around_s + part.block_s * (blocks or 0)
    said = f"about {seconds / 60:.0f} min"
    return said if blocks is None else f"{blocks} of {part.blocks} blocks, {said}"
