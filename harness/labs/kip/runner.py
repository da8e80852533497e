"""Execution of KIP trials within a time budget, which selects, executes and records the missing runs.

A part of a trial is one run of a plan. A time budget shortens runs to at least six blocks (repetitions of the plan's
faults), because a statistical test with fewer blocks can't decide. Trial parts that a claim about the KIP needs are
selected first, from each KIP in turn; the same budget always selects the same parts. ``trial.json`` is written after
each run, so an interrupted trial can continue. If the cluster, a fault or a client of a run fails, the trial continues
without the run.
"""

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from aftershock.errors import AftershockError, ClusterError, EvidenceError, FaultError, WorkloadError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find
from aftershock.harness.labs.kip.trials import Planned, Trial
from aftershock.harness.run.run import Request
from aftershock.results.compare.comparison import BLOCKS_MIN
from aftershock.results.evidence.files import read_object, write_whole

_STEPS = 200


@dataclass(frozen=True)
class Allotted:
    """Trial parts that fit a time budget, with their number of blocks (repetitions of the plan's faults).

    ``left_out`` maps each omitted trial part to the reason for its omission.
    """

    blocks: Mapping[Planned, int | None]
    left_out: Mapping[Planned, str]
    takes_s: float


def plan_within_budget(trials: Sequence[Trial], budget_s: float | None) -> Allotted:
    """Select the parts of the trials that fit ``budget_s``, if given; raise AftershockError if no part fits."""
    decisive = _round_robin([[part for part in trial.parts if trial.decides_on(part)] for trial in trials])
    reported = _round_robin([[part for part in trial.parts if not trial.decides_on(part)] for trial in trials])
    decisive_share = _useful_parts(trials, decisive, budget_s)
    reported_share = _useful_parts(
        trials, reported, None if budget_s is None else budget_s - decisive_share.takes_s, decisive_share.blocks
    )
    blocks = {**decisive_share.blocks, **reported_share.blocks}
    if budget_s is not None and not blocks:
        least_s = min(_duration_s([part], 0.0) for part in [*decisive, *reported])
        raise AftershockError(
            f"a budget of {_minutes(budget_s)} is too small for any run of a trial, even with the minimum of "
            f"{BLOCKS_MIN} blocks (repetitions of the plan's faults); use --budget {math.ceil(least_s / 60)}m or more"
        )
    left_out = {part: f"budget {_minutes(budget_s or 0)}" for part in [*decisive, *reported] if part not in blocks}
    return Allotted(blocks, left_out, decisive_share.takes_s + reported_share.takes_s)


def _useful_parts(
    trials: Sequence[Trial], parts: Sequence[Planned], budget_s: float | None, available: Collection[Planned] = ()
) -> Allotted:
    """Select trial parts by `allot`, then drop each part whose claims all lack another part."""
    allotted = allot(parts, budget_s)
    selected = {*available, *allotted.blocks}
    useless = {part for part in allotted.blocks if not any(trial.is_readable(part, selected) for trial in trials)}
    if not useless:
        return allotted
    return _useful_parts(trials, [part for part in parts if part not in useless], budget_s, available)


def allot(parts: Sequence[Planned], budget_s: float | None) -> Allotted:
    """Select in order the trial parts whose shortest run fits the budget; spend the remaining time on longer runs."""
    selected: list[Planned] = []
    for part in parts:
        if budget_s is None or _duration_s([*selected, part], 0.0) <= budget_s:
            selected.append(part)
    shares = (step / _STEPS for step in range(_STEPS, -1, -1))
    fitting = (share for share in shares if budget_s is None or _duration_s(selected, share) <= budget_s)
    share = next(fitting, 0.0)
    return Allotted({part: _blocks(part, share) for part in selected}, {}, _duration_s(selected, share))


def _round_robin(parts_by_trial: Sequence[Sequence[Planned]]) -> list[Planned]:
    return [part for group in zip_longest(*parts_by_trial) for part in group if part is not None]


def _blocks(part: Planned, share: float) -> int | None:
    """Return a trial part's number of fault repetitions (blocks); ``share`` 0 gives the minimum, 1 the full number."""
    if part.blocks is None:
        return None
    blocks_min = min(part.blocks, BLOCKS_MIN)
    return blocks_min + math.floor((part.blocks - blocks_min) * share)


def _duration_s(parts: Iterable[Planned], share: float) -> float:
    return sum(part.around_s + part.block_s * (_blocks(part, share) or 0) for part in parts)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g}m"


NAME = "trial.json"
SEED = 1
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class FinishedPart:
    digest: str
    blocks: int | None
    run: str


@dataclass(frozen=True)
class Record:
    """Content of ``trial.json``; ``left_out`` maps the parts omitted by the latest execution to their reasons."""

    kip: int
    parts: Mapping[str, FinishedPart] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    seed: int = SEED

    def finished(self, part: Planned, blocks: int | None, home: Path) -> FinishedPart | None:
        """Return the stored run of a trial part; None if the run must be repeated.

        A run is repeated if the plan, seed or Kafka version of the part has changed, if the run had fewer than
        ``blocks`` repetitions of its faults, or if the run directory has no verdict.
        """
        part_run = self.parts.get(part.name)
        if part_run is None or self.stale(part) or not (home / part_run.run / "verdict.json").is_file():
            return None
        return part_run if (part_run.blocks or 0) >= (blocks or 0) else None

    def stale(self, part: Planned) -> bool:
        return part.name in self.parts and self.parts[part.name].digest != digest(part, self.seed)

    def with_run(self, part: Planned, blocks: int | None, run: str) -> "Record":
        return replace(self, parts={**self.parts, part.name: FinishedPart(digest(part, self.seed), blocks, run)})


def digest(part: Planned, seed: int) -> str:
    """Return a hash of a trial part's seed, Kafka version and plan without the plan's number of blocks."""
    plan = dump(load_plan(find(part.plan), part.changes).plan)
    document = {**plan, "blocks": None, "why": None, "seed": seed, "kafka": part.kafka}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def read(home: Path, kip: int) -> Record:
    path = home / NAME
    if not path.exists():
        return Record(kip)
    try:
        document = read_object(path)
        parts = {name: FinishedPart(**values) for name, values in document["parts"].items()}
        return Record(document["kip"], parts, dict(document["left_out"]), document.get("seed", SEED))
    except (KeyError, TypeError, EvidenceError) as error:
        raise EvidenceError(
            f"{path}: the record of a trial is damaged ({error}); remove the file, and the parts of the trial run again"
        ) from error


def write(home: Path, record: Record) -> None:
    document = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    write_whole(home / NAME, json.dumps(document, indent=1, sort_keys=True) + "\n")


Perform: TypeAlias = Callable[[Request], Path]
"""Function that runs a plan, judges the run, and returns the run directory."""


def home_of(trial: Trial, out: Path) -> Path:
    return out / "kips" / str(trial.kip)


def run_missing(
    trial: Trial, allotted: Allotted, out: Path, seed: int, perform: Perform, log: Callable[[str], None]
) -> Record:
    """Run the selected trial parts that have no stored run; return the new content of ``trial.json``."""
    home = home_of(trial, out)
    home.mkdir(parents=True, exist_ok=True)
    left_out = {part.name: allotted.left_out[part] for part in trial.parts if part in allotted.left_out}
    record = replace(read(home, trial.kip), left_out=left_out, seed=seed)
    write(home, record)
    parts = [part for part in trial.parts if part in allotted.blocks]
    for number, part in enumerate(parts, 1):
        blocks = allotted.blocks[part]
        label = f"KIP-{trial.kip}, part {number} of {len(parts)}: {part.name}"
        if record.finished(part, blocks, home):
            log(f"{label}: finished earlier")
            continue
        duration = f"about {(part.around_s + part.block_s * (blocks or 0)) / 60:.0f} min"
        log(f"{label}: {duration if blocks is None else f'{blocks} of {part.blocks} blocks, {duration}'}")
        command = shlex.join(["aftershock", *sys.argv[1:]])
        request = Request(find(part.plan), part.settings(blocks), seed, home, command, part.kafka)
        try:
            record = record.with_run(part, blocks, perform(request).name)
        except (ClusterError, FaultError, WorkloadError) as error:
            why = f"it failed: {str(error).splitlines()[0]}"
            log(f"{part.name} is left out: {why}")
            record = replace(record, left_out={**record.left_out, part.name: why})
        write(home, record)
    return record
