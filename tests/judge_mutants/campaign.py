"""A campaign: many seeds, each an edit of a corpus run, judged in batches and scored against the unedited runs.

A seed decides everything: whether the edit is a defect (five of six) or harmless, its kind, run and place. Batches are
judged in several processes, each with a Spark session of its own: planning a batch's queries occupies one core, and
one set of queries judges all runs of a batch.
"""

import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
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
BATCH = 90
"""Mutants judged together. Measuring any number of runs takes about 110 s of CPU to plan and compile the queries, and
each run adds 1 to 2 s in the JVM and nearly 1 s in Python. With 180 mutants the JVM ran out of memory.
"""
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


def _slice(
    seeds: range, share: int, jobs: int, until_s: float, only: Sequence[str], path: Path
) -> tuple[dict[str, Statuses], list[Outcome]]:
    """Judge every ``jobs``-th batch of the seeds, until a time of ``time.time()``."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="judge-mutants-") as folder:
        out = Path(folder)
        runs = corpus(out / "packs", path)
        with Judge(out / "spark.log", None, lambda _: None) as judge:
            before: dict[str, Statuses] = {}
            for first in range(seeds.start + share * BATCH, seeds.stop, jobs * BATCH):
                if time.time() > until_s:
                    break
                batch = range(first, min(first + BATCH, seeds.stop))
                mutants = [each for seed in batch if (each := mutant(seed, runs, only)) is not None]
                judgements, found = judge_batch(judge, mutants, {} if before else runs, out / "batch")
                before |= found
                outcomes += [
                    outcome(each, before[each.run], judgement)
                    for each, judgement in zip(mutants, judgements, strict=True)
                ]
                shutil.rmtree(out / "batch")
                print(f"{len(outcomes)} judged by process {share + 1}", flush=True)
    return before, outcomes


def campaign(
    seeds: range, jobs: int, seconds: float, only: Sequence[str] = (), path: Path = CORPUS
) -> tuple[dict[str, Statuses], list[Outcome]]:
    """Judge seeds in ``jobs`` processes; return the statuses of the unedited runs and the outcomes by seed."""
    until_s = time.time() + seconds
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        slices = [pool.submit(_slice, seeds, share, jobs, until_s, only, path) for share in range(jobs)]
        results = [each.result() for each in slices]
    outcomes = sorted((each for _, part in results for each in part), key=lambda each: each.seed)
    return results[0][0], outcomes


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
