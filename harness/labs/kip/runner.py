"""Execution of KIP trials within a time budget, which selects, executes and records the missing runs.

A part of a trial is one run of a plan, always with the registered number of blocks (repetitions of the plan's faults):
a shorter run decides nothing. A budget selects claims, with all parts that a claim, its controls and its assays need:
the headline of each KIP first, and then the claims that need the least time each. Stored runs cost nothing, so a trial
continues where an earlier budget ended. ``trial.json`` is written after each run, so an interrupted trial can continue.
If the cluster, a fault or a client of a run fails, the trial continues without the run.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from aftershock.errors import ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find
from aftershock.harness.labs.kip.trials import Planned, Trial
from aftershock.harness.run.run import Request
from aftershock.results.evidence.files import read_object, write_whole
from aftershock.results.trials.claim import Claim, requirements
from aftershock.results.trials.statement import DECIDING, UNITS_MIN


@dataclass(frozen=True)
class Allotted:
    """Trial parts that fit a time budget, and the claims that these parts, with stored runs, can decide.

    ``left_out`` maps each omitted trial part to the reason. ``open`` holds the claims that do not fit, with the time
    that each needs; ``undecidable`` the claims that the trial's design gives too few units.
    """

    parts: tuple[Planned, ...]
    left_out: Mapping[Planned, str]
    takes_s: float
    decides: Sequence[tuple[int, str]]
    open: Sequence[tuple[int, str, float]]
    undecidable: Sequence[tuple[int, str]]

    def forecast(self) -> list[str]:
        """Return lines, one for each KIP, that say beforehand which claims can be decided."""
        needs = [(kip, f"{claim} ({_minutes(needs_s)})") for kip, claim, needs_s in self.open]
        return [
            *(f"can decide {claims}" for claims in _by_kip(self.decides)),
            *(f"not in this budget: {claims}" for claims in _by_kip(needs)),
            *(
                f"undecided by design, fewer than {UNITS_MIN} independent units: {claims}"
                for claims in _by_kip(self.undecidable)
            ),
        ]


def _by_kip(claims: Iterable[tuple[int, str]]) -> list[str]:
    by_kip: dict[int, list[str]] = {}
    for kip, claim in claims:
        by_kip.setdefault(kip, []).append(claim)
    return [f"KIP-{kip}: {', '.join(names)}" for kip, names in by_kip.items()]


def plan_within_budget(trials: Sequence[Trial], budget_s: float | None, stored: Collection[Planned] = ()) -> Allotted:
    """Select the parts of the trials that fit ``budget_s``, if given; parts in ``stored`` have their runs already."""
    queues, later, production = (list[list[tuple[Trial, Claim]]]() for _ in range(3))
    for trial in trials:
        worded = [claim for claim in trial.claims if claim.rule and claim.role in DECIDING[:-1]]
        queues.append([(trial, claim) for claim in sorted(worded, key=lambda claim: not claim.headline)])
        later.append([(trial, claim) for claim in trial.claims if claim.role != "production"])
        production.append([(trial, claim) for claim in trial.claims if claim.role == "production"])
    selected, takes_s = list[Planned](), 0.0
    decides, undecidable = list[tuple[int, str]](), list[tuple[int, str]]()
    left = list[tuple[int, str, float]]()

    def missing(trial: Trial, claim: Claim) -> list[Planned]:
        names = {name for other in requirements(claim, trial.claims) for name in other.needs}
        return [part for part in trial.parts if part.name in names and part not in (*selected, *stored)]

    def turn(entry: tuple[Trial, Claim]) -> tuple[bool, float]:
        """Order headlines by the time of their missing parts, other claims by that time per claim that it decides."""
        trial, claim = entry
        parts = missing(trial, claim)
        names = {part.name for part in parts}
        of_trial = [other for of, other in waiting if of is trial]
        decided = sum({part.name for part in missing(trial, other)} <= names for other in of_trial)
        return not claim.headline, sum(part.takes_s for part in parts) / (1 if claim.headline else decided)

    # Claims that the design can't decide, and then figures and lone controls, get what the decidable claims leave.
    # The headlines under Kafka's default settings come last.
    for first, entries in ((True, queues), (False, later), (True, production)):
        waiting = [entry for group in zip_longest(*entries) for entry in group if entry is not None]
        while waiting:
            trial, claim = entry = min(waiting, key=turn) if first else waiting[0]
            waiting.remove(entry)
            too_few = any(other.rule and other.n < UNITS_MIN for other in requirements(claim, trial.claims))
            if first and too_few:
                undecidable.append((trial.kip, claim.id))
                continue
            parts = missing(trial, claim)
            needs_s = sum(part.takes_s for part in parts)
            fits = budget_s is None or takes_s + needs_s <= budget_s
            if first:
                if fits:
                    decides.append((trial.kip, claim.id))
                else:
                    left.append((trial.kip, claim.id, needs_s))
            if fits:
                selected += parts
                takes_s += needs_s
    every = [part for trial in trials for part in trial.parts]
    left_out = {
        part: f"budget {_minutes(budget_s or 0)}" for part in every if part not in selected and part not in stored
    }
    return Allotted(tuple(selected), left_out, takes_s, decides, left, undecidable)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g} min"


NAME = "trial.json"
SEED = 1
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class FinishedPart:
    digest: str
    blocks: int | None
    run: str


@dataclass(frozen=True)
class Record:
    """Content of ``trial.json``; ``left_out`` maps the parts omitted by the latest execution to their reasons.

    ``version`` is the version of the trial's registration by which the runs were designed. ``claims`` has the results
    of the claims whose evidence is stored if the runs are reduced (see ``reduce.py``), else None.
    """

    kip: int
    version: int
    parts: Mapping[str, FinishedPart] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    seed: int = SEED
    claims: Mapping[str, str] | None = None

    def finished(self, part: Planned, home: Path) -> FinishedPart | None:
        """Return the stored run of a trial part; None if the run must be repeated.

        A run is repeated if the plan, seed, Kafka version or number of blocks of the part has changed, or if the run
        directory has no verdict.
        """
        part_run = self.parts.get(part.name)
        if part_run is None or self.stale(part) or not (home / part_run.run / "verdict.json").is_file():
            return None
        return part_run if part_run.blocks == part.blocks else None

    def stored(self, trial: Trial, home: Path) -> list[Planned]:
        return [part for part in trial.parts if self.finished(part, home)]

    def stale(self, part: Planned) -> bool:
        return part.name in self.parts and self.parts[part.name].digest != digest(part, self.seed)

    def with_run(self, part: Planned, run: str) -> "Record":
        finished = FinishedPart(digest(part, self.seed), part.blocks, run)
        return replace(self, parts={**self.parts, part.name: finished})


def digest(part: Planned, seed: int) -> str:
    """Return a hash of a trial part's seed, Kafka version and plan without the plan's number of blocks.

    The order of keys counts, because clients send in the order of the plan's arms, and racks number the brokers.
    """
    plan = dump(load_plan(find(part.plan), part.changes).plan)
    document = {**plan, "blocks": None, "why": None, "seed": seed, "kafka": part.kafka}
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]


def read(home: Path, trial: Trial, seed: int | None = None) -> Record:
    """Return the record of a trial's runs; raise EvidenceError for a damaged one or one of another trial version."""
    path, version = home / NAME, trial.registration.version
    if not path.exists():
        return Record(trial.kip, version, seed=SEED if seed is None else seed)
    try:
        document = read_object(path)
        parts = {name: FinishedPart(**values) for name, values in document["parts"].items()}
        stored_seed = document.get("seed", SEED) if seed is None else seed
        left_out, claims = dict(document["left_out"]), document.get("claims")
        # Records before version 2 name no version.
        record = Record(document["kip"], document.get("version", 1), parts, left_out, stored_seed, claims)
    except (KeyError, TypeError, EvidenceError) as error:
        raise EvidenceError(
            f"{path}: the record of a trial is damaged ({error}); remove the file, and the parts of the trial run again"
        ) from error
    if (record.kip, record.version) != (trial.kip, version):
        raise EvidenceError(
            f"{path}: the runs are evidence of version {record.version} of the trial of KIP-{record.kip}, and cannot "
            f"decide version {version} of the trial of KIP-{trial.kip}, whose claims were registered later; judge them "
            "with the Aftershock that ran them, or run the trial with another --out"
        )
    return record


def write(home: Path, record: Record) -> None:
    document = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    write_whole(home / NAME, json.dumps(document, indent=1, sort_keys=True) + "\n")


Perform: TypeAlias = Callable[[Request], Path]
"""Function that runs a plan, judges the run, and returns the run directory."""


def home_of(trial: Trial, out: Path) -> Path:
    return out / "kips" / (f"{trial.kip}-sabotage" if trial.sabotaged else str(trial.kip))


def run_missing(
    trial: Trial, allotted: Allotted, out: Path, seed: int, perform: Perform, log: Callable[[str], None]
) -> Record:
    """Run the selected trial parts that have no stored run; return the new content of ``trial.json``."""
    home = home_of(trial, out)
    home.mkdir(parents=True, exist_ok=True)
    left_out = {part.name: allotted.left_out[part] for part in trial.parts if part in allotted.left_out}
    record = replace(read(home, trial, seed), left_out=left_out)
    write(home, record)
    parts = [part for part in trial.parts if part in allotted.parts]
    for number, part in enumerate(parts, 1):
        label = f"KIP-{trial.kip}, part {number} of {len(parts)}: {part.name}"
        if record.finished(part, home):
            log(f"{label}: finished earlier")
            continue
        log(f"{label}: {f'{part.blocks} blocks, ' if part.blocks else ''}about {part.takes_s / 60:.0f} min")
        command = shlex.join(["aftershock", *sys.argv[1:]])
        request = Request(find(part.plan), part.settings, seed, home, command, part.kafka)
        try:
            record = record.with_run(part, perform(request).name)
        except (ClusterError, FaultError, WorkloadError) as error:
            why = f"it failed: {str(error).splitlines()[0]}"
            log(f"{part.name} is left out: {why}")
            record = replace(record, left_out={**record.left_out, part.name: why})
        write(home, record)
    return record
