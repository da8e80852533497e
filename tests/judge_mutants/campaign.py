"""A campaign: many seeds, each an edit of a corpus run, judged in batches and scored against the unedited runs.

A seed decides everything: whether the edit is a defect (five of six) or harmless, its kind, run and place. Batches are
judged in several processes, each with a Spark session of its own: planning a batch's queries occupies one core, and
one set of queries judges all runs of a batch.
"""

import atexit
import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random

from aftershock.errors import EvidenceError
from aftershock.results.evidence.pack import SUFFIX, unpack
from aftershock.results.judge import Judge, Judgement
from aftershock.tests.judge_mutants.anatomy import Anatomy
from aftershock.tests.judge_mutants.draft import Draft, stored
from aftershock.tests.judge_mutants.kinds import Kind, Plant, kinds
from aftershock.tests.judge_mutants.score import Score, Statuses, score, statuses

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus.toml")
BATCH = 40
"""Mutants judged together: Sail takes a second for the queries of any number of runs, and then 0.3 s for each run."""
_HARMLESS_SHARE = 1 / 6


@dataclass(frozen=True)
class Mutant:
    seed: int
    kind: Kind
    run: str
    plant: Plant
    draft: Draft


@dataclass(frozen=True)
class Outcome:
    """The score of one seed, without the evidence."""

    seed: int
    kind: str
    run: str
    place: str
    wanted: str
    score: Score


def corpus(unpacked: Path, path: Path = CORPUS) -> dict[str, Anatomy]:
    """Read the runs that a corpus file lists; packs are unpacked below ``unpacked``."""
    runs = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["run"]:
        home = (path.parent if path != CORPUS else ROOT) / entry["run"]
        folder = unpack(home, unpacked) if home.name.endswith(SUFFIX) else home
        run = stored(entry["name"], folder, tuple(entry.get("bad", ())), entry.get("keep", 1))
        runs[entry["name"]] = Anatomy(run)
    return runs


def mutant(seed: int, runs: Mapping[str, Anatomy], only: Sequence[str] = ()) -> Mutant | None:
    """Plant the edit of a seed, of another kind if no run has a place; None if no kind of ``only`` has a place."""
    dice = Random(seed)  # noqa: S311 - draws that can be repeated
    known = kinds()
    harmless = dice.random() < _HARMLESS_SHARE
    names = [name for name, each in known.items() if (name in only if only else each.harmless == harmless)]
    for name in dice.sample(names, len(names)):
        for run in dice.sample(sorted(runs), len(runs)):
            draft = runs[run].run.draft()
            place = Random(f"{seed}/{name}/{run}")  # noqa: S311 - draws that can be repeated
            plant = known[name].plant(runs[run], draft, place)
            if plant is not None:
                return Mutant(seed, known[name], run, plant, draft)
    return None


def judge_batch(
    judge: Judge, mutants: Sequence[Mutant], unedited: Mapping[str, Anatomy], out: Path
) -> tuple[list[Judgement], dict[str, Statuses]]:
    """Judge mutants and unedited runs, which are written as mutants are, with one set of queries.

    Raises EvidenceError if an unedited run can't be judged.
    """
    homes = [each.draft.write(out / str(each.seed), f"mutant-{each.seed}") for each in mutants]
    bases = {name: run.run.draft().write(out / name, f"unedited-{name}") for name, run in unedited.items()}
    judgements = judge.many([*homes, *bases.values()])
    found: dict[str, Statuses] = {}
    for name, home in bases.items():
        judgement = judgements[home]
        if isinstance(judgement, EvidenceError):
            raise judgement
        found[name] = statuses(judgement.checks)
    return [judgements[home] for home in homes], found


def outcome(each: Mutant, before: Statuses, judgement: Judgement) -> Outcome:
    plant = each.plant
    wanted = f"{plant.status} of {' or '.join(plant.checks)} {plant.arm or ''} {plant.side or ''}".strip()
    result = score(plant, each.kind.harmless, before, judgement)
    return Outcome(
        each.seed, each.kind.name, each.run, plant.place, "no blame" if each.kind.harmless else wanted, result
    )


class _Process:
    """Corpus, Spark session and statuses of the unedited runs, which a process keeps from batch to batch."""

    def __init__(self, path: Path) -> None:
        resources = ExitStack()
        atexit.register(resources.close)
        self.out = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="judge-mutants-")))
        self.runs = corpus(self.out / "packs", path)
        self.judge = resources.enter_context(Judge(self.out / "spark.log", None, lambda _: None))
        self.before: dict[str, Statuses] = {}


_process: _Process


def _begin(path: Path) -> None:
    global _process  # noqa: PLW0603 - a pool gives its tasks no other place
    _process = _Process(path)


def _judged(seeds: range, only: Sequence[str]) -> tuple[dict[str, Statuses], list[Outcome]]:
    here = _process
    mutants = [each for seed in seeds if (each := mutant(seed, here.runs, only)) is not None]
    judgements, found = judge_batch(here.judge, mutants, {} if here.before else here.runs, here.out / "batch")
    here.before |= found
    shutil.rmtree(here.out / "batch")
    return here.before, [
        outcome(each, here.before[each.run], judgement) for each, judgement in zip(mutants, judgements, strict=True)
    ]


def campaign(
    seeds: range, jobs: int, seconds: float, only: Sequence[str] = (), path: Path = CORPUS
) -> Iterator[tuple[dict[str, Statuses], list[Outcome]]]:
    """Judge seeds in ``jobs`` processes; yield the unedited runs' statuses and the outcomes of each batch when it ends.

    No batch begins after ``seconds``.
    """
    until_s = time.monotonic() + seconds
    batches = iter([seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(path,)) as pool:
        running = {pool.submit(_judged, batch, only) for batch in islice(batches, jobs)}
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            if time.monotonic() < until_s:
                running |= {pool.submit(_judged, batch, only) for batch in islice(batches, len(ended))}
            for each in ended:
                yield each.result()


def code_digest() -> str:
    """Return a digest of the judge, the planter and the corpus: counts are only added up if all are the same."""
    return sha256(b"".join(_sources())).hexdigest()[:16]


def _sources() -> Iterator[bytes]:
    for folder in (ROOT / "results", Path(__file__).parent):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml"):
                yield path.read_bytes()
    for entry in tomllib.loads(CORPUS.read_text(encoding="utf-8"))["run"]:
        path = ROOT / entry["run"]
        yield path.read_bytes() if path.is_file() else (path / "manifest.json").read_bytes()
