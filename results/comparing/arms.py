"""Comparisons from what judged runs have left: all arms of one run in pairs, or the same arms in two runs.

Rules. The control stands on the other side of its pairs: an arm called ``baseline`` or ``control``, else the first by
name. A block whose fault was not witnessed, or that nobody met, is no trial: it is left out, on both sides, and said.
Under a harness that is not to be trusted everything is inconclusive. Blocks of one run share their night: between two
runs whatever differs between the nights counts as a difference, unless a control arm of both is divided by.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.results.comparing.blocks import Block, Blocks, Measure, standing
from aftershock.results.comparing.blocks import stored as blocks_of
from aftershock.results.comparing.comparable import notes, refuse_unlike
from aftershock.results.comparing.comparison import MARGIN, Question, Row, Word, rows, worst
from aftershock.results.comparing.stored import Stored, stored


@dataclass(frozen=True)
class Asked:
    """What to compare. No metrics: those that comparisons are made of unless asked otherwise."""

    metrics: tuple[Measure, ...] = ()
    margin: float = MARGIN
    control: str | None = None


@dataclass(frozen=True)
class Comparison:
    """One pair: ``ours`` against ``theirs``, metric by metric, and what a reader should know besides."""

    ours: str
    theirs: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Word:
        """The worst of its rows."""
        return worst(self.rows)


def arms_of(home: Path, asked: Asked | None = None) -> tuple[Comparison, ...]:
    """Every pair of arms of each workload of the run; none where a workload has one arm."""
    run, asked = stored(home), asked or Asked()
    return tuple(_pair(run, workload, pair, asked) for workload, pair in _pairs(run))


def between(base: Path, changed: Path, asked: Asked) -> tuple[Comparison, ...]:
    """Each arm of the changed run against the same arm of the base. Raises EvidenceError where runs aren't alike."""
    runs = stored(base), stored(changed)
    refuse_unlike(*runs)
    found = tuple(_across(*runs, workload, arm, asked) for workload, arm in _in_both(*runs, asked))
    if not found:
        raise AftershockError(f"{changed} and {base} have no arm in common that can be compared; name two other runs")
    return found


def _pairs(run: Stored) -> Iterator[tuple[Mapping[str, Any], tuple[str, str]]]:
    for workload in run.timeline["workloads"]:
        for theirs, ours in combinations(run.arms(workload), 2):
            yield workload, (ours, theirs)


def _pair(run: Stored, workload: Mapping[str, Any], pair: tuple[str, str], asked: Asked) -> Comparison:
    clients = [f"{workload['name']}/{arm}" for arm in pair]
    measures = asked.metrics or standing(run.sides(workload))
    trials, left_out = run.trials()
    ours, theirs = ([_blocks(run, one, client, trials) for one in measures] for client in clients)
    questions = [Question(*each) for each in zip(measures, ours, theirs, strict=True)]
    answers = rows(questions, asked.margin, _seed(run.run_id))
    return Comparison(clients[0], clients[1], _doubted(answers, run), left_out)


def _in_both(base: Stored, changed: Stored, asked: Asked) -> Iterator[tuple[Mapping[str, Any], str]]:
    arms = {workload["name"]: set(workload["arms"]) for workload in base.timeline["workloads"]}
    for workload in changed.timeline["workloads"]:
        both = [arm for arm in changed.arms(workload) if arm in arms.get(workload["name"], ())]
        if asked.control in (None, *both):
            yield from ((workload, arm) for arm in both if arm != asked.control)


def _across(base: Stored, changed: Stored, workload: Mapping[str, Any], arm: str, asked: Asked) -> Comparison:
    client = f"{workload['name']}/{arm}"
    measures = asked.metrics or standing(changed.sides(workload))
    trials = {run.run_id: run.trials() for run in (changed, base)}
    questions = []
    for one in measures:
        control = asked.control and f"{workload['name']}/{asked.control}"
        here, there = (_by_control(run, one, client, control, trials[run.run_id][0]) for run in (changed, base))
        questions.append(Question(one, here, there, alike=here.keys() == there.keys()))
    answers = rows(questions, asked.margin, _seed(base.run_id + changed.run_id))
    if asked.control:
        answers = tuple(replace(row, ours_ms=None, theirs_ms=None) for row in answers)
    said = (*(note for _, left_out in trials.values() for note in left_out), *notes(base, changed), _caution(asked))
    return Comparison(f"{client} in {changed.run_id}", f"{base.run_id}", _doubted(answers, changed, base), said)


def _caution(asked: Asked) -> str:
    if asked.control:
        return f"every block is divided by {asked.control}'s in the same block, so what slows both is not seen"
    return "what differs between the two nights counts as a difference; --control ARM divides it out"


def _by_control(run: Stored, measure: Measure, client: str, control: str | None, trials: set[int] | None) -> Blocks:
    """A client's blocks; with a control as multiples of its. A block in which the control has no value is none."""
    ours = _blocks(run, measure, client, trials)
    if control is None:
        return ours
    theirs = _blocks(run, measure, control, trials)
    return {
        number: Block(None if block.value_us is None else block.value_us / other, min(block.n, theirs[number].n))
        for number, block in ours.items()
        if number in theirs and (other := theirs[number].value_us)
    }


def _blocks(run: Stored, measure: Measure, client: str, trials: set[int] | None) -> Blocks:
    found = blocks_of(run.analysis, run.timeline["steps"], measure, client)
    return {number: block for number, block in found.items() if trials is None or number in trials}


def _doubted(answers: Sequence[Row], *runs: Stored) -> tuple[Row, ...]:
    """Whatever was found, where the harness can't be trusted it is not shown."""
    doubt = next((doubt for run in runs if (doubt := run.doubted())), None)
    if doubt is None:
        return tuple(answers)
    return tuple(
        replace(row, verdict="inconclusive", why=doubt, next="mend what it says, and run again") for row in answers
    )


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
