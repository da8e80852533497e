"""Comparisons of judged runs (all arms of one run in pairs, or the same arms in two runs), and their output as text.

**Pairs.** The control arm is the second client of each pair; it is the arm called ``baseline`` or ``control``, else the
first arm by name. A block (repetition of the plan's faults) in which a fault was not witnessed or met no traffic is
excluded for both clients, with a note. If a run's harness checks failed, every result of the comparison is
inconclusive. All blocks of one run were measured on the same host at the same time. Between two runs, a difference
between hosts or nights looks like a difference between clients: two runs of one client are called different in 33 to
73 % of comparisons, however many blocks they have, because the sample of nights is one on each side. Two runs are
therefore inconclusive in every metric, unless both values are divided by those of a control arm of the same run.

**Comparable runs.** Two runs can be compared if their plans have the same name, load, topics, timing, cluster and
faults. Two compared runs may differ in Kafka's version, settings of arms, Aftershock's revision and host, and the
comparison lists these differences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from textwrap import fill
from typing import Any

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.compare.blocks import RECOVERY, Block, Blocks, Measure, proven_blocks, standing
from aftershock.results.compare.comparison import ALL_EQUAL, MARGIN, Question, Row, Word, rows, worst
from aftershock.results.compare.statistics import seed_of
from aftershock.results.evidence.stored import JudgedRun, read_judged_run
from aftershock.results.model.text import cell, printable, table


def refuse_unlike(base: JudgedRun, changed: JudgedRun) -> None:
    """Raise EvidenceError with every reason why two runs can't be compared."""
    before, after = ({"name": "", "timing": {}, "topics": []} | dict(run.timeline) for run in (base, changed))
    if before["name"] != after["name"]:
        reasons = [f"the plans are {before['name']} and {after['name']}"]
    else:
        reasons = [
            f"{section}: {key} was {before[section].get(key)} and is {after[section].get(key)}"
            for section in ("timing", "cluster")
            for key in sorted({*before[section], *after[section]} - {"kafka"})
            if before[section].get(key) != after[section].get(key)
        ]
        if before["topics"] != after["topics"]:
            reasons.append("the plans have different topics")
        loads = [[row | {"arms": None} for row in timeline["workloads"]] for timeline in (before, after)]
        if loads[0] != loads[1]:
            reasons.append("the plans have different loads")
        # If seeds or block counts differ, only ids and kinds are compared, because the other properties are then drawn.
        blocks = [max((int(step.get("block", 0)) for step in t["steps"]), default=0) for t in (before, after)]
        if base.run.get("seed") == changed.run.get("seed") and blocks[0] == blocks[1]:
            faults: list[Any] = [before["steps"], after["steps"]]
        else:
            faults = [
                {(step.get("entry", step["id"]), step.get("kind")) for step in t["steps"]} for t in (before, after)
            ]
        if faults[0] != faults[1]:
            reasons.append("the plans have different faults")
        if bool(base.run.get("rehearse")) != bool(changed.run.get("rehearse")):
            reasons.append("one run is a rehearsal, in which nothing was injected")
    if reasons:
        raise EvidenceError(
            f"{changed.run_id} can't be compared with {base.run_id}: {'; '.join(reasons)}; compare runs of one plan"
        )


def notes(base: JudgedRun, changed: JudgedRun) -> tuple[str, ...]:
    """List differences between two runs (such as host or Kafka version) that may explain the result of a comparison."""
    properties = []
    for run in (base, changed):
        versions = {f"version of {name}": version for name, version in (run.run.get("versions") or {}).items()}
        host = {f"host's {name}": value for name, value in (run.run.get("host") or {}).items()}
        arms = {
            f"arm {workload['name']}/{name}": arm
            for workload in run.timeline["workloads"]
            for name, arm in workload["arms"].items()
        }
        properties.append({"seed": run.run.get("seed"), "revision": run.run.get("git"), **versions, **host, **arms})
    before, after = properties
    return tuple(
        f"{name}: {before.get(name)} in {base.run_id}, {after.get(name)} in {changed.run_id}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


@dataclass(frozen=True)
class Options:
    """Options of ``aftershock compare``; without metrics the default measures (``blocks.standing``) are compared."""

    metrics: tuple[Measure, ...] = ()
    margin: float = MARGIN
    control: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Comparison of two clients, ``ours`` against ``theirs``, metric by metric, with notes for the reader."""

    ours: str
    theirs: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Word:
        return worst(self.rows)


def arms_of(home: Path, options: Options | None = None) -> tuple[Comparison, ...]:
    """Compare every pair of arms of each workload of the run; a workload with one arm has no pair."""
    run, options = read_judged_run(home), options or Options()
    _, left_out = run.trials()
    comparisons = []
    for workload in run.timeline["workloads"]:
        measures = options.metrics or standing(run.sides(workload))
        for their_arm, our_arm in combinations(run.arms(workload), 2):
            clients = [f"{workload['name']}/{arm}" for arm in (our_arm, their_arm)]
            ours, theirs = ([proven_blocks(run, measure, client) for measure in measures] for client in clients)
            questions = [Question(*parts) for parts in zip(measures, ours, theirs, strict=True)]
            answers = rows(questions, options.margin, seed_of(run.run_id))
            comparisons.append(Comparison(clients[0], clients[1], _doubted(answers, run), (*run.notes(), *left_out)))
    return tuple(comparisons)


def between(base: Path, changed: Path, options: Options) -> tuple[Comparison, ...]:
    """Compare each arm of a run with the same arm of another run. Raises EvidenceError if the plans differ."""
    runs = base_run, changed_run = read_judged_run(base), read_judged_run(changed)
    refuse_unlike(*runs)
    arms = {workload["name"]: set(workload["arms"]) for workload in base_run.timeline["workloads"]}
    comparisons = []
    for workload in changed_run.timeline["workloads"]:
        common = [arm for arm in changed_run.arms(workload) if arm in arms.get(workload["name"], ())]
        if options.control in (None, *common):
            comparisons += [_across(*runs, workload, arm, options) for arm in common if arm != options.control]
    if not comparisons:
        raise AftershockError(f"{changed} and {base} have no arm in common that can be compared; name two other runs")
    return tuple(comparisons)


def _across(base: JudgedRun, changed: JudgedRun, workload: Mapping[str, Any], arm: str, options: Options) -> Comparison:
    client = f"{workload['name']}/{arm}"
    measures = options.metrics or standing(changed.sides(workload))
    control = options.control and f"{workload['name']}/{options.control}"
    definitions = {run.analysis.get("recovery_definition", 1): run.run_id for run in (base, changed)}
    unlike = []
    if len(definitions) > 1 and any(measure.metric == RECOVERY for measure in measures):
        measures = tuple(measure for measure in measures if measure.metric != RECOVERY)
        older = definitions[min(definitions)]
        unlike = [f"recovery is not compared: {older} was recorded before recovery was defined by the calm that lasts"]
    questions = []
    for measure in measures:
        here, there = (_by_control(run, measure, client, control) for run in (changed, base))
        questions.append(Question(measure, here, there, alike=here.keys() == there.keys()))
    answers = rows(questions, options.margin, seed_of(base.run_id + changed.run_id))
    if control:
        answers = tuple(replace(row, ours_ms=None, theirs_ms=None) for row in answers)
        caution = f"all values are divided by those of {options.control}, so an effect on both arms is not visible"
    else:
        answers = tuple(map(_without_control, answers))
        caution = "a difference between hosts or nights looks like a difference between clients; use --control ARM"
    all_notes = (
        *changed.notes(),
        *base.notes(),
        *changed.trials()[1],
        *base.trials()[1],
        *notes(base, changed),
        *unlike,
        caution,
    )
    return Comparison(f"{client} in {changed.run_id}", f"{base.run_id}", _doubted(answers, changed, base), all_notes)


def _without_control(row: Row) -> Row:
    """Make a decided row of two runs inconclusive, but keep its figures: no control arm shows what the nights did."""
    if row.verdict == "inconclusive":
        return row
    why = f"{row.why}, which two nights or hosts may explain (by blocks alone: {row.verdict})"
    advice = "give --control ARM, with an arm that did not change, or run both versions as two arms of one plan"
    return replace(row, verdict="inconclusive", why=why, next=advice)


def _by_control(run: JudgedRun, measure: Measure, client: str, control: str | None) -> Blocks:
    """Map each block of the plan to a client's value divided by the value of arm ``control``, if that is known."""
    ours = proven_blocks(run, measure, client)
    if control is None:
        return ours
    theirs = proven_blocks(run, measure, control)
    return {
        number: Block(None if block.value_us is None else block.value_us / divisor, min(block.n, theirs[number].n))
        for number, block in ours.items()
        if number in theirs and (divisor := theirs[number].value_us)
    }


def _doubted(answers: Sequence[Row], *runs: JudgedRun) -> tuple[Row, ...]:
    """Make every result row inconclusive if the harness of a run can't be trusted."""
    doubt = next((doubt for run in runs if (doubt := run.doubt())), None)
    if doubt is None:
        return tuple(answers)
    advice = "fix the cause of the failed check, and run the plan again"
    return tuple(replace(row, verdict="inconclusive", why=doubt, next=advice) for row in answers)


SCHEMA_VERSION = 1
WIDTH = 80
EXIT_CODES = {"improved": 0, "equivalent": 0, "regressed": 1, "inconclusive": 2}
_HEAD = ("verdict", "ratio", "95 % interval", "p", "signs", "metric")
_COLUMN_WIDTHS = (13, 7, 15, 8, 8)


def exit_code(comparisons: Sequence[Comparison]) -> int:
    """Return exit code 1 if a metric regressed, 2 if a metric is inconclusive or none was compared, else 0."""
    codes = {EXIT_CODES[comparison.verdict] for comparison in comparisons}
    return 1 if 1 in codes else 2 if 2 in codes or not codes else 0  # noqa: PLR2004 - inconclusive, as design 5.1 has it


def text(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons for a terminal with at most 80 columns, without a final newline."""
    blocks = []
    for comparison in comparisons:
        title = f"{comparison.verdict}: {comparison.ours} against {comparison.theirs}"
        lines = [fill(printable(title), WIDTH), ""]
        for *fixed, last in (_HEAD, *map(_cells, comparison.rows)):
            widths = zip(fixed, _COLUMN_WIDTHS, strict=True)
            line = "".join(printable(value).ljust(width) for value, width in widths) + printable(last)
            lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "~")
        metrics_by_reason: dict[str, list[str]] = {}
        for row in comparison.rows:
            if row.verdict == "inconclusive":
                metrics_by_reason.setdefault(_why(row), []).append(row.metric)
        reasons = [f"{', '.join(metrics)}: {why}" for why, metrics in metrics_by_reason.items()]
        lines += [
            fill(printable(sentence), WIDTH, initial_indent="  ", subsequent_indent="    ")
            for sentence in (*reasons, *comparison.notes)
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def markdown(comparisons: Sequence[Comparison]) -> str:
    blocks = []
    for comparison in comparisons:
        title = f"### {comparison.verdict}: {cell(comparison.ours)} against {cell(comparison.theirs)}\n\n"
        cells = [(*_cells(row), str(row.blocks), _why(row)) for row in comparison.rows]
        lines = [title, *table((*_HEAD, "blocks", "why"), cells)]
        lines += [*(f"\n* {cell(note)}" for note in comparison.notes), "\n" if comparison.notes else ""]
        blocks.append("".join(lines))
    return "\n".join(blocks)


def document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    pairs = [asdict(comparison) | {"verdict": comparison.verdict} for comparison in comparisons]
    return {"schema_version": SCHEMA_VERSION, "comparisons": pairs}


def _why(row: Row) -> str:
    return f"{row.why}; next: {row.next}" if row.next else row.why


def _cells(row: Row) -> tuple[str, ...]:
    interval = "-"
    if row.low is not None and row.high is not None:
        interval = ALL_EQUAL if math.isclose(row.low, row.high) else f"{row.low:.3g} .. {row.high:.3g}"
    return (row.verdict, _number(row.ratio), interval, _number(row.p), _number(row.p_flip), row.metric)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if 0.001 <= value < 10 else f"{value:.2g}"  # noqa: PLR2004 - digits
