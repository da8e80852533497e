"""Measurements that consist of several runs: which runs are finished, and the execution of those that are missing.

The record of a measurement is written after each run, so an interrupted measurement can continue. A run counts as
finished if its plan and seed are those of today.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path

from aftershock.errors import ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.harness.labs.kip.runner import digest
from aftershock.harness.labs.kip.trials import Planned
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.evidence.stored import read_judged_run

SEED = 1
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Stored:
    """A finished run, with the digest of its plan and seed."""

    digest: str
    run: str


@dataclass(frozen=True)
class Measurement:
    """Record of a measurement: its finished runs by the names of their plans."""

    seed: int = SEED
    runs: Mapping[str, Stored] = field(default_factory=dict)

    def finished(self, planned: Planned, home: Path) -> str | None:
        """Return the name of the run of a plan; None if the plan has not run, or has changed since."""
        stored = self.runs.get(planned.name)
        if stored is None or stored.digest != digest(planned, self.seed):
            return None
        return stored.run if (home / stored.run / "verdict.json").is_file() else None

    def trusted(self, planned: Planned, home: Path) -> bool:
        """Return whether the run of a plan is finished, and can be trusted: all checks of the harness passed."""
        run = self.finished(planned, home)
        return run is not None and read_judged_run(home / run).doubt() is None


def read(path: Path, seed: int = SEED) -> Measurement:
    """Return the record of a measurement; raise EvidenceError for a damaged file."""
    if not path.exists():
        return Measurement(seed)
    try:
        document = read_object(path)
        return Measurement(document["seed"], {name: Stored(**run) for name, run in document["runs"].items()})
    except (KeyError, TypeError, EvidenceError) as error:
        raise EvidenceError(f"{path}: the file is damaged ({error}); remove it, and all runs are repeated") from error


def write(path: Path, measurement: Measurement) -> None:
    document = {"schema_version": SCHEMA_VERSION, **asdict(measurement)}
    write_whole(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def run_missing(
    path: Path,
    runs: Sequence[Planned],
    seed: int,
    perform: Callable[[Planned], Path],
    log: Callable[[str], None],
    budget_s: float | None = None,
) -> None:
    """Run what has no trusted run beside the record ``path`` and fits ``budget_s``, if given, in the order of ``runs``.

    A run whose cluster, fault or client failed is left out, with its reason in the log.
    """
    home = path.parent
    home.mkdir(parents=True, exist_ok=True)
    measurement = read(path, seed)
    if measurement.seed != seed:
        measurement = Measurement(seed)
    missing = [planned for planned in runs if not measurement.trusted(planned, home)]
    log(f"{len(missing)} of {len(runs)} runs are missing, about {sum(run.takes_s for run in missing) / 60:.0f} min")
    if budget_s is not None:
        ends_s = accumulate(planned.takes_s for planned in missing)
        fitting = [planned for planned, end_s in zip(missing, ends_s, strict=True) if end_s <= budget_s]
        left = ", ".join(planned.name for planned in missing[len(fitting) :])
        log(f"{len(fitting)} of them fit into the budget" + (f"; left for later: {left}" if left else ""))
        missing = fitting
    for number, planned in enumerate(missing, 1):
        log(f"run {number} of {len(missing)}: {planned.name}")
        try:
            name = perform(planned).name
        except (ClusterError, FaultError, WorkloadError) as error:
            log(f"{planned.name} is left out: {str(error).splitlines()[0]}")
            continue
        measurement = Measurement(seed, {**measurement.runs, planned.name: Stored(digest(planned, seed), name)})
        write(path, measurement)
