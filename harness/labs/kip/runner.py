"""Which parts a budget pays for, and how long each may be. Pure.

Rules. Only blocks are saved, and never below six: with fewer no test can say anything. The parts that decide a trial
come first, the most telling of each KIP before the second of any, and they are lengthened up to what is wanted before
anything is spent on what is only reported. A part that is read only beside one that was left out is left out as well.
A part that doesn't fit at its shortest is left out, and those after it are still tried; what is left over lengthens all
that were taken alike. The same budget gives the same answer, whatever was already run.

``trial.json``: which judged run each part of a trial has, so that what was run isn't run again.

Rules. It is written whole after each part, and only once that is judged: a trial that was interrupted goes on with the
part it was in. A run counts for a part while its plan, changes, seed and version are the same (``digest``) and its
folder is there; take the folder away to have the part run again. What has more blocks than were asked for counts, too.

Runs the parts of a trial that are missing, one after the other, through the same code as ``aftershock run``.

Rules. Each part is judged before the next begins, and only then recorded. A part whose cluster, fault or client failed
is left out with the reason, and the others go on; without an engine, or with a plan that is none, nothing does.
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
from typing import Any, TypeAlias

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
    """``blocks`` of each part that is run; ``left_out``: why others are not."""

    blocks: Mapping[Planned, int | None]
    left_out: Mapping[Planned, str]
    takes_s: float


def afforded(trials: Sequence[Trial], budget_s: float | None) -> Allotted:
    """What to run of these trials within ``budget_s``; None: all of it. AftershockError where no part fits."""
    deciding = _in_turn([[part for part in trial.parts if trial.hangs_on(part)] for trial in trials])
    others = _in_turn([[part for part in trial.parts if not trial.hangs_on(part)] for trial in trials])
    first = _worth_it(trials, deciding, budget_s)
    then = _worth_it(trials, others, None if budget_s is None else budget_s - first.takes_s, first.blocks)
    blocks = {**first.blocks, **then.blocks}
    if budget_s is not None and not blocks:
        raise AftershockError(_too_small(budget_s, [*deciding, *others]))
    left_out = {part: f"budget {_minutes(budget_s or 0)}" for part in [*deciding, *others] if part not in blocks}
    return Allotted(blocks, left_out, first.takes_s + then.takes_s)


def _worth_it(
    trials: Sequence[Trial], parts: Sequence[Planned], budget_s: float | None, there: Collection[Planned] = ()
) -> Allotted:
    """As ``allot``, without those that no claim could read beside what is ``there``; their time is the others'."""
    found = allot(parts, budget_s)
    taken = {*there, *found.blocks}
    idle = {part for part in found.blocks if not any(trial.reads(part, taken) for trial in trials)}
    return _worth_it(trials, [part for part in parts if part not in idle], budget_s, there) if idle else found


def allot(parts: Sequence[Planned], budget_s: float | None) -> Allotted:
    """The same of parts that are alike in what hangs on them, in order."""
    if budget_s is None:
        return _allotted(parts, 1.0)
    taken: list[Planned] = []
    for part in parts:
        if _takes_s([*taken, part], 0.0) <= budget_s:
            taken.append(part)
    shares = (step / _STEPS for step in range(_STEPS, -1, -1))
    return _allotted(taken, next((share for share in shares if _takes_s(taken, share) <= budget_s), 0.0))


def _in_turn(of_trials: Sequence[Sequence[Planned]]) -> list[Planned]:
    """The first of each, then the second of each, and so on."""
    return [part for each in zip_longest(*of_trials) for part in each if part is not None]


def _allotted(taken: Sequence[Planned], share: float) -> Allotted:
    return Allotted({part: _blocks(part, share) for part in taken}, {}, _takes_s(taken, share))


def _blocks(part: Planned, share: float) -> int | None:
    """From the fewest that can tell (share 0) to all that the trial wants (1)."""
    if part.blocks is None:
        return None
    fewest = min(part.blocks, BLOCKS_MIN)
    return fewest + math.floor((part.blocks - fewest) * share)


def _takes_s(parts: Iterable[Planned], share: float) -> float:
    return sum(part.around_s + part.block_s * (_blocks(part, share) or 0) for part in parts)


def _too_small(budget_s: float, parts: Sequence[Planned]) -> str:
    least_s = min(_takes_s([part], 0.0) for part in parts)
    what = f"a budget of {_minutes(budget_s)} pays for no part with {BLOCKS_MIN} blocks, and fewer can't tell anything"
    return f"{what}: give --budget {math.ceil(least_s / 60)}m or more"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g}m"


NAME = "trial.json"
SEED = 1
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Done:
    """A part that was run. ``run``: the name of its folder, beside ``trial.json``."""

    digest: str
    blocks: int | None
    run: str


@dataclass(frozen=True)
class Record:
    """``left_out``: why parts were not run when the trial was last asked for; ``seed``: with which one that was."""

    kip: int
    parts: Mapping[str, Done] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    seed: int = SEED

    def done(self, part: Planned, blocks: int | None, home: Path) -> Done | None:
        """The run that the part has with at least so many blocks, if it counts."""
        found = self.parts.get(part.name)
        if found is None or self.stale(part) or not (home / found.run / "verdict.json").is_file():
            return None
        return found if (found.blocks or 0) >= (blocks or 0) else None

    def stale(self, part: Planned) -> bool:
        """Whether what it has is of another plan, or of another seed."""
        return part.name in self.parts and self.parts[part.name].digest != digest(part, self.seed)

    def having(self, part: Planned, blocks: int | None, run: str) -> "Record":
        """With this run of the part."""
        return replace(self, parts={**self.parts, part.name: Done(digest(part, self.seed), blocks, run)})


def digest(part: Planned, seed: int) -> str:
    """Of all that decides what the part is, but for its number of blocks."""
    plan = dump(load_plan(find(part.plan), part.changes).plan)
    told = {**plan, "blocks": None, "why": None, "seed": seed, "kafka": part.kafka}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def read(home: Path, kip: int) -> Record:
    """The record in ``home``; an empty one where there is none. EvidenceError where it can't be read."""
    path = home / NAME
    if not path.exists():
        return Record(kip)
    try:
        return _record(read_object(path))
    except (KeyError, TypeError, EvidenceError) as broken:
        raise EvidenceError(f"{path}: not as it was written ({broken}); remove it, and the parts run again") from broken


def write(home: Path, record: Record) -> None:
    """Keep it."""
    told = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    write_whole(home / NAME, json.dumps(told, indent=1, sort_keys=True) + "\n")


def _record(told: Mapping[str, Any]) -> Record:
    parts = {name: Done(**done) for name, done in told["parts"].items()}
    return Record(told["kip"], parts, dict(told["left_out"]), told.get("seed", SEED))


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
    found = replace(read(home, trial.kip), left_out=_left_out(trial, allotted), seed=seed)
    write(home, found)
    due = [part for part in trial.parts if part in allotted.blocks]
    for number, part in enumerate(due, 1):
        blocks = allotted.blocks[part]
        what = f"KIP-{trial.kip}, part {number} of {len(due)}: {part.name}"
        if found.done(part, blocks, home):
            say(f"{what}: was run before")
            continue
        say(f"{what}: {_length(part, blocks)}")
        found = _with(found, part, blocks, home, perform, say)
        write(home, found)
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
