"""Whether two runs may be compared at all, and what differs between them that may be the reason of a difference.

Rules: what a plan says must be the same, its name, load, topics, timing, cluster and faults: else a difference would be
the plan's. What a comparison is made for may differ, and is noted: Kafka's version, an arm's settings, our revision;
and so is what it suffers from, as another host.

Comparisons from what judged runs have left: all arms of one run in pairs, or the same arms in two runs.

Rules. The control stands on the other side of its pairs: an arm called ``baseline`` or ``control``, else the first by
name. A block whose fault was not witnessed, or that nobody met, is no trial: it is left out, on both sides, and said.
Under a harness that is not to be trusted everything is inconclusive. Blocks of one run share their night: between two
runs whatever differs between the nights counts as a difference, unless a control arm of both is divided by.

Comparisons as text for a terminal, as Markdown, and as a JSON document.

Rules: the terminal's lines are at most 80 columns; a ratio stands with its interval, and what is not shown has a dash.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from textwrap import fill
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.compare.blocks import Block, Blocks, Measure, standing
from aftershock.results.compare.blocks import stored as blocks_of
from aftershock.results.compare.comparison import MARGIN, Question, Row, Word, rows, worst
from aftershock.results.evidence.stored import JudgedRun, read_judged_run
from aftershock.results.text import cell, printable, table


def refuse_unlike(base: JudgedRun, changed: JudgedRun) -> None:
    """Raises EvidenceError where the two can't be compared, with every reason."""
    reasons = list(_unlike(base, changed))
    if reasons:
        said = "; ".join(reasons)
        raise EvidenceError(f"{changed.run_id} can't be compared with {base.run_id}: {said}; compare runs of one plan")


def notes(base: JudgedRun, changed: JudgedRun) -> tuple[str, ...]:
    """What else may be the reason of a difference."""
    told = _told(base), _told(changed)
    names = dict.fromkeys([*told[0], *told[1]])
    pairs = ((name, *(each.get(name) for each in told)) for name in names)
    return tuple(f"{name}: {one} there, {other} here" for name, one, other in pairs if one != other)


def _unlike(base: JudgedRun, changed: JudgedRun) -> Iterator[str]:
    one, other = base.timeline, changed.timeline
    if one["name"] != other["name"]:
        yield f"one is of the plan {one['name']}, the other of {other['name']}"
        return
    yield from _differing("timing", one["timing"], other["timing"])
    yield from _differing("cluster", _cluster(one), _cluster(other))
    for what, of in (("the topics", _topics), ("the load", _load)):
        if of(one) != of(other):
            yield f"{what} of the plan differ{'s' if what.endswith('load') else ''}"
    if _faults(base, changed) != _faults(changed, base):
        yield "the faults of the plan differ"
    if bool(base.run.get("rehearse")) != bool(changed.run.get("rehearse")):
        yield "one is a rehearsal, in which nothing was injected"


def _differing(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            yield f"{what}: {key} was {one.get(key)} and is {other.get(key)}"


def _cluster(timeline: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in timeline["cluster"].items() if key != "kafka"}


def _topics(timeline: Mapping[str, Any]) -> Any:
    return timeline["topics"]


def _load(timeline: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in workload.items() if key != "arms"} for workload in timeline["workloads"]]


def _faults(run: JudgedRun, beside: JudgedRun) -> Any:
    """With one seed and as many blocks, every word and draw; else which faults there are, for draws decide the rest."""
    steps = run.timeline["steps"]
    if run.run.get("seed") == beside.run.get("seed") and _blocks(run) == _blocks(beside):
        return steps
    return {(step.get("entry", step["id"]), step["kind"]) for step in steps}


def _blocks(run: JudgedRun) -> int:
    return max((int(step.get("block", 0)) for step in run.timeline["steps"]), default=0)


def _told(run: JudgedRun) -> dict[str, Any]:
    """What may differ, by name."""
    versions = {f"version of {name}": version for name, version in (run.run.get("versions") or {}).items()}
    host = {f"host's {name}": said for name, said in (run.run.get("host") or {}).items()}
    arms = {
        f"arm {workload['name']}/{name}": arm
        for workload in run.timeline["workloads"]
        for name, arm in workload["arms"].items()
    }
    return {"seed": run.run.get("seed"), "revision": run.run.get("git"), **versions, **host, **arms}


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
    run, asked = read_judged_run(home), asked or Asked()
    return tuple(_pair(run, workload, pair, asked) for workload, pair in _pairs(run))


def between(base: Path, changed: Path, asked: Asked) -> tuple[Comparison, ...]:
    """Each arm of the changed run against the same arm of the base. Raises EvidenceError where runs aren't alike."""
    runs = read_judged_run(base), read_judged_run(changed)
    refuse_unlike(*runs)
    found = tuple(_across(*runs, workload, arm, asked) for workload, arm in _in_both(*runs, asked))
    if not found:
        raise AftershockError(f"{changed} and {base} have no arm in common that can be compared; name two other runs")
    return found


def _pairs(run: JudgedRun) -> Iterator[tuple[Mapping[str, Any], tuple[str, str]]]:
    for workload in run.timeline["workloads"]:
        for theirs, ours in combinations(run.arms(workload), 2):
            yield workload, (ours, theirs)


def _pair(run: JudgedRun, workload: Mapping[str, Any], pair: tuple[str, str], asked: Asked) -> Comparison:
    clients = [f"{workload['name']}/{arm}" for arm in pair]
    measures = asked.metrics or standing(run.sides(workload))
    trials, left_out = run.trials()
    ours, theirs = ([_blocks_arms(run, one, client, trials) for one in measures] for client in clients)
    questions = [Question(*each) for each in zip(measures, ours, theirs, strict=True)]
    answers = rows(questions, asked.margin, _seed(run.run_id))
    return Comparison(clients[0], clients[1], _doubted(answers, run), left_out)


def _in_both(base: JudgedRun, changed: JudgedRun, asked: Asked) -> Iterator[tuple[Mapping[str, Any], str]]:
    arms = {workload["name"]: set(workload["arms"]) for workload in base.timeline["workloads"]}
    for workload in changed.timeline["workloads"]:
        both = [arm for arm in changed.arms(workload) if arm in arms.get(workload["name"], ())]
        if asked.control in (None, *both):
            yield from ((workload, arm) for arm in both if arm != asked.control)


def _across(base: JudgedRun, changed: JudgedRun, workload: Mapping[str, Any], arm: str, asked: Asked) -> Comparison:
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


def _by_control(run: JudgedRun, measure: Measure, client: str, control: str | None, trials: set[int] | None) -> Blocks:
    """A client's blocks; with a control as multiples of its. A block in which the control has no value is none."""
    ours = _blocks_arms(run, measure, client, trials)
    if control is None:
        return ours
    theirs = _blocks_arms(run, measure, control, trials)
    return {
        number: Block(None if block.value_us is None else block.value_us / other, min(block.n, theirs[number].n))
        for number, block in ours.items()
        if number in theirs and (other := theirs[number].value_us)
    }


def _blocks_arms(run: JudgedRun, measure: Measure, client: str, trials: set[int] | None) -> Blocks:
    found = blocks_of(run.analysis, run.timeline["steps"], measure, client)
    return {number: block for number, block in found.items() if trials is None or number in trials}


def _doubted(answers: Sequence[Row], *runs: JudgedRun) -> tuple[Row, ...]:
    """Whatever was found, where the harness can't be trusted it is not shown."""
    doubt = next((doubt for run in runs if (doubt := run.doubt())), None)
    if doubt is None:
        return tuple(answers)
    return tuple(
        replace(row, verdict="inconclusive", why=doubt, next="mend what it says, and run again") for row in answers
    )


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


SCHEMA_VERSION = 1
WIDTH = 80
EXIT_CODES = {"improved": 0, "equivalent": 0, "regressed": 1, "inconclusive": 2}
_HEAD = ("verdict", "ratio", "95 % interval", "p", "signs", "metric")
_COLUMNS = (13, 7, 15, 8, 8, 28)


def exit_code(found: Sequence[Comparison]) -> int:
    """1 where anything regressed, else 2 where anything is inconclusive or there is nothing, else 0."""
    codes = {EXIT_CODES[one.verdict] for one in found}
    return 1 if 1 in codes else 2 if 2 in codes or not codes else 0  # noqa: PLR2004 - inconclusive, as design 5.1 has it


def text(found: Sequence[Comparison]) -> str:
    """For a terminal, without a newline at its end."""
    return "\n\n".join("\n".join(_pair_compared(one)) for one in found)


def markdown(found: Sequence[Comparison]) -> str:
    """A heading and a table each, for a pull request."""
    return "\n".join("".join(_marked(one)) for one in found)


def document(found: Sequence[Comparison]) -> dict[str, Any]:
    """What ``--json`` prints."""
    pairs = [asdict(one) | {"verdict": one.verdict} for one in found]
    return {"schema_version": SCHEMA_VERSION, "comparisons": pairs}


def _pair_compared(one: Comparison) -> Iterator[str]:
    yield fill(printable(f"{one.verdict}: {one.ours} against {one.theirs}"), WIDTH)
    yield ""
    yield _line(_HEAD)
    for row in one.rows:
        yield _line(_cells(row))
    unsure = [row for row in one.rows if row.verdict == "inconclusive"]
    for why in dict.fromkeys(map(_why, unsure)):
        yield from _said(f"{', '.join(row.metric for row in unsure if _why(row) == why)}: {why}")
    for note in one.notes:
        yield from _said(note)


def _said(sentence: str) -> Iterator[str]:
    yield fill(printable(sentence), WIDTH, initial_indent="  ", subsequent_indent="    ")


def _marked(one: Comparison) -> Iterator[str]:
    yield f"### {one.verdict}: {cell(one.ours)} against {cell(one.theirs)}\n\n"
    yield from table((*_HEAD, "blocks", "why"), [(*_cells(row), str(row.blocks), _why(row)) for row in one.rows])
    yield "".join(f"\n* {cell(note)}" for note in one.notes) + ("\n" if one.notes else "")


def _why(row: Row) -> str:
    return f"{row.why}; next: {row.next}" if row.next else row.why


def _cells(row: Row) -> tuple[str, ...]:
    interval = "-" if row.low is None or row.high is None else f"{row.low:.3g} .. {row.high:.3g}"
    return (row.verdict, _number(row.ratio), interval, _number(row.p), _number(row.p_flip), row.metric)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if 0.001 <= value < 10 else f"{value:.2g}"  # noqa: PLR2004 - digits


def _line(cells: Sequence[str]) -> str:
    *fixed, last = cells
    line = "".join(printable(text).ljust(width) for text, width in zip(fixed, _COLUMNS, strict=False)) + printable(last)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "~"
