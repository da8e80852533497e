"""Runs of a campaign: which of them are finished, and the execution of those that are missing.

A campaign is a list of planned runs, kept in one folder, and a judge of these runs. ``campaign.json`` in the folder
names the run of each plan; it is written after each run, so an interrupted campaign continues where it ended. A run is
repeated if its plan, seed, Kafka version or number of blocks has changed, if it has no verdict, or if a check of the
harness says that it can't be trusted.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from aftershock.errors import ClusterError, EvidenceError, FaultError, PlanError, WorkloadError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find
from aftershock.results.evidence.files import NEWEST_VERSIONS, read_object, write_whole
from aftershock.results.evidence.stored import read_judged_run

NAME = "campaign.json"
SEED = 1


@dataclass(frozen=True)
class Planned:
    """Run of a campaign: a bundled plan that ``aftershock run`` accepts, with changes as for ``--set``.

    ``around_s`` is the duration of the run from launch to verdict, without its blocks (repetitions of the plan's
    faults), and ``block_s`` the duration of a block. ``blocks`` is the number of blocks, None for a plan without
    blocks. ``off`` are the changes that sabotage the run: they switch off what the campaign tests.
    """

    name: str
    plan: str
    around_s: float
    changes: tuple[str, ...] = ()
    blocks: int | None = None
    block_s: float = 0.0
    kafka: str | None = None
    off: tuple[str, ...] = ()

    @property
    def takes_s(self) -> float:
        return self.around_s + self.block_s * (self.blocks or 0)

    @property
    def settings(self) -> tuple[str, ...]:
        return self.changes if self.blocks is None else (*self.changes, f"blocks={self.blocks}")


def digest(planned: Planned, seed: int) -> str:
    """Return a hash of a run's seed, Kafka version and plan without the plan's number of blocks.

    The order of keys counts, because clients send in the order of the plan's arms, and racks number the brokers.
    """
    plan = dump(load_plan(find(planned.plan), planned.changes).plan)
    return hash_of({**plan, "blocks": None, "why": None, "seed": seed, "kafka": planned.kafka})


def hash_of(document: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that stand for a document; the order of its keys counts."""
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Finished:
    """A finished run: the digest of its plan and seed, its number of blocks, and the name of its directory.

    ``version`` is the version of the campaign at which the run was made. ``claims`` are those whose evidence a reduced
    run holds, None for a whole run.
    """

    digest: str
    blocks: int | None
    run: str
    version: int = 1
    claims: Sequence[str] | None = None


@dataclass(frozen=True)
class Record:
    """Content of ``campaign.json``.

    ``version`` is the version of the campaign that judges the runs. ``left_out`` has the reason for each run
    that was omitted. ``claims`` has the results of the claims whose evidence is stored if the runs are reduced (see
    ``evidence.py``), else None. ``launches`` has the directories of earlier runs of the headline's plans, by plan, one
    entry for each launch.
    """

    campaign: str
    version: int = 1
    seed: int = SEED
    runs: Mapping[str, Finished] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] | None = None
    launches: Sequence[Mapping[str, str]] = ()

    def stored(self, name: str) -> str | None:
        """Return the name of the stored run of a plan, whatever has changed since; None if there is none."""
        return self.runs[name].run if name in self.runs else None

    def stale(self, planned: Planned) -> bool:
        """Return True if a run is stored whose plan, seed or Kafka version has changed since."""
        return planned.name in self.runs and self.runs[planned.name].digest != digest(planned, self.seed)

    def with_run(self, planned: Planned, run: str) -> "Record":
        """Return the record with the directory ``run`` of a finished run, which is no longer left out."""
        finished = Finished(digest(planned, self.seed), planned.blocks, run, self.version)
        left_out = {name: why for name, why in self.left_out.items() if name != planned.name}
        return replace(self, runs={**self.runs, planned.name: finished}, left_out=left_out)

    def finished(self, planned: Planned, home: Path) -> str | None:
        """Return the name of the stored run of a plan; None if the run must be repeated."""
        run = self.runs.get(planned.name)
        if run is None or run.blocks != planned.blocks or self.stale(planned):
            return None
        return run.run if (home / run.run / "verdict.json").is_file() else None

    def trusted(self, planned: Planned, home: Path) -> bool:
        """Return whether the run of a plan is finished, and all checks of the harness passed."""
        run = self.finished(planned, home)
        return run is not None and read_judged_run(home / run).doubt() is None


def read(home: Path, campaign: str, version: int = 1, seed: int | None = None, oldest: int | None = None) -> Record:
    """Return the record in ``home``, an empty one if there is none; runs of another ``seed`` do not count.

    Raises EvidenceError for a damaged record, and for one of another campaign, of a newer version, or of one before
    ``oldest`` (by default ``version``).
    """
    path = home / NAME
    if not path.exists():
        return Record(campaign, version, SEED if seed is None else seed)
    document = read_object(path)
    first = version if oldest is None else oldest
    if document["campaign"] != campaign or not first <= document["version"] <= version:
        raise EvidenceError(
            f"{path}: the runs are evidence of version {document['version']} of {document['campaign']}, and cannot "
            f"decide version {version} of {campaign}; judge them with the command and the Aftershock that ran them, or "
            "name another folder"
        )
    if seed is not None and seed != document["seed"]:
        return Record(campaign, version, seed)
    kept = None if document["claims"] is None else sorted(document["claims"])
    runs = {
        name: Finished(
            *(run["digest"], run["blocks"], run["run"]),
            run.get("version", document["version"]),
            run.get("claims", kept),
        )
        for name, run in document["runs"].items()
    }
    launches = tuple(document.get("launches", ()))
    return Record(campaign, version, document["seed"], runs, document["left_out"], document["claims"], launches)


def require_record(source: Path, campaign: str) -> None:
    """Raise EvidenceError if the folder that a user names with ``--from`` has no record."""
    if not (source / NAME).is_file():
        raise EvidenceError(f"--from {source}: the folder has no {NAME}; name the folder with the runs of {campaign}")


def write(home: Path, record: Record) -> None:
    home.mkdir(parents=True, exist_ok=True)
    document = {"schema_version": NEWEST_VERSIONS[NAME], **asdict(record)}
    write_whole(home / NAME, json.dumps(document, indent=1, sort_keys=True) + "\n")


Perform: TypeAlias = Callable[[Planned], Path]
"""Function that makes a planned run, judges it, and returns the run directory."""


def run_missing(
    record: Record,
    home: Path,
    runs: Sequence[Planned],
    perform: Perform,
    log: Callable[[str], None],
    budget_s: float | None = None,
) -> Record:
    """Make those of ``runs`` that have no trusted run and fit ``budget_s``, in their order; return the new record.

    The record is written after each run. A run whose cluster, fault or client failed, or that may not start its
    programs, is left out, with its reason in the record.
    """
    missing = [planned for planned in runs if not record.trusted(planned, home)]
    log(f"{len(missing)} of {len(runs)} runs are missing, about {sum(run.takes_s for run in missing) / 60:.0f} min")
    if budget_s is not None:
        ends_s = accumulate(planned.takes_s for planned in missing)
        fitting = [planned for planned, end_s in zip(missing, ends_s, strict=True) if end_s <= budget_s]
        left = ", ".join(planned.name for planned in missing[len(fitting) :])
        log(f"{len(fitting)} of them fit into the budget" + (f"; left for later: {left}" if left else ""))
        missing = fitting
    write(home, record)
    for number, planned in enumerate(missing, 1):
        blocks = f"{planned.blocks} blocks, " if planned.blocks else ""
        label = f"{record.campaign}, run {number} of {len(missing)}"
        log(f"{label}: {planned.name}: {blocks}about {planned.takes_s / 60:.0f} min")
        try:
            record = record.with_run(planned, perform(planned).name)
        except (ClusterError, FaultError, PlanError, WorkloadError) as error:
            why = f"it failed: {str(error).splitlines()[0]}"
            log(f"{planned.name} is left out: {why}")
            record = replace(record, left_out={**record.left_out, planned.name: why})
        write(home, record)
    return record
