"""Parts of a trial: one judged run of one of the KIP's plans, and the figures from which statements are made.

Figures come from stored evidence only, so judging the run again gives the same ones. A block whose fault was not
witnessed or not exposed is left out on both sides. Rows are read by pyarrow, with the needed columns only.

A run without blocks is cut into slices of time. Rules: all slices have the same full length, and each gives one figure.
Intervals are Student's, over slices. Neighbouring slices are correlated where a queue grows, so a mean over slices
describes the time of this run, and the interval of a quantile comes from resampling whole slices (a block bootstrap),
never records.

``worst_in`` measures spans of time that are no window of ``phases.json``, from SIGTERM to exit for example: a record
belongs to the span of its intended time, a record that failed is slower than any, and a span in which no record was due
is left out.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray
from scipy.special import stdtrit

from aftershock.results.compare.blocks import Block, parse
from aftershock.results.compare.blocks import stored as blocks_of
from aftershock.results.compare.comparison import MARGIN, paired
from aftershock.results.evidence.files import read_json, read_lines
from aftershock.results.evidence.stored import JudgedRun
from aftershock.results.trials.statement import Estimate, ratio_of

SLICE_US = 10_000_000
RESAMPLES = 2_000
_PAIR = 2
_LINE = 3

Floats = NDArray[np.float64]


class Slice(NamedTuple):
    """Slice of time: start inclusive, end exclusive, in microseconds of the run."""

    start_us: int
    end_us: int


def slices(start_us: int, end_us: int, every_us: int = SLICE_US) -> tuple[Slice, ...]:
    """Return the whole slices of a span; a remainder at its end is left out."""
    starts = range(start_us, end_us - every_us + 1, every_us)
    return tuple(Slice(start, start + every_us) for start in starts)


def mean(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """Return the mean over slices, with Student's interval if there are two."""
    if len(values) < _PAIR:
        return Estimate(values[0] if values else None, None, None, len(values), unit, confidence)
    known = np.asarray(values, float)
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    return _around(float(known.mean()), error, len(known) - 1, len(known), unit, confidence)


def ratio(ours: Floats, theirs: Floats, confidence: float = 0.95) -> Estimate:
    """Return the geometric mean of ours / theirs, paired by slice. All values must be above 0."""
    log = mean(list(np.log(ours) - np.log(theirs)), "times", confidence)
    value, low, high = (None if number is None else math.exp(number) for number in (log.value, log.low, log.high))
    return Estimate(value, low, high, log.n, "times", confidence)


def slope(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """Return the growth of a figure per slice, by least squares."""
    if len(values) < _LINE:
        return Estimate(None, None, None, len(values), unit, confidence)
    times, known = np.arange(len(values), dtype=float), np.asarray(values, float)
    off = times - times.mean()
    growth = float(off @ known / (off @ off))
    residuals = known - known.mean() - growth * off
    error = math.sqrt(float(residuals @ residuals) / (len(known) - 2) / float(off @ off))
    return _around(growth, error, len(known) - 2, len(known), unit, confidence)


def drawn_again(
    groups: Sequence[Sequence[Floats]],
    figure: Callable[[Sequence[Floats]], float | None],
    unit: str,
    seed: str,
    confidence: float = 0.95,
) -> Estimate:
    """Return a figure of several clients' records with a bootstrap interval: whole slices are resampled.

    ``groups``: per client the records of each slice, the same slices for all; ``figure`` takes each client's records.
    """
    count = min(map(len, groups), default=0)
    value = figure([np.concatenate(group) for group in groups]) if count else None
    if value is None or count < _PAIR:
        return Estimate(value, None, None, count, unit, confidence)
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]))
    figures = [_resampled(groups, figure, random.integers(0, count, count)) for _ in range(RESAMPLES)]
    known = [number for number in figures if number is not None]
    tail = (1 - confidence) / 2
    low, high = (float(np.quantile(known, q)) for q in (tail, 1 - tail))
    return Estimate(value, low, high, count, unit, confidence)


def quantile(values: Floats, q: float) -> float:
    """Return the nearest-rank quantile: infinity if it is censored, NaN without values."""
    if not len(values):
        return math.nan
    return float(np.sort(values)[max(0, math.ceil(q * len(values)) - 1)])


def _resampled(
    groups: Sequence[Sequence[Floats]], figure: Callable[[Sequence[Floats]], float | None], places: NDArray[np.int64]
) -> float | None:
    return figure([np.concatenate([group[place] for place in places]) for group in groups])


def _around(value: float, error: float, freedom: int, n: int, unit: str, confidence: float) -> Estimate:
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return Estimate(value, value - reach, value + reach, n, unit, confidence)


_PAIRS_MIN = 2


@dataclass(frozen=True)
class Part:
    """Judged run. Clients are named ``workload/arm``, measures as in ``aftershock compare --metric``."""

    name: str
    run: JudgedRun

    @property
    def home(self) -> Path:
        """The run directory."""
        return self.run.home

    def doubt(self) -> str | None:
        """Return the reason why the whole run can't be used as evidence, or None."""
        return self.run.doubt()

    def blocks(self, client: str, measure: str) -> dict[int, Block]:
        """Return one number per block, for the blocks whose faults all took effect."""
        trials, _ = self.run.trials()
        blocks = blocks_of(self.run.analysis, self.run.timeline["steps"], parse(measure), client)
        return {number: block for number, block in blocks.items() if trials is None or number in trials}

    def ratio(self, ours: str, theirs: str, measure: str, confidence: float = 0.95) -> Estimate:
        """Return the geometric mean of ours / theirs, paired by block, with Student's interval and a sign-flip p."""
        return ratio_of_blocks(self.blocks(ours, measure), self.blocks(theirs, measure), confidence, self.run.run_id)

    def quantile_us(self, client: str, metric: str, window: str, q: float) -> tuple[int | None, int]:
        """Return a quantile of the window's records (None: censored or not measured) and the number of records."""
        for row in self.run.analysis["distributions"]:
            if (row["metric"], row["client"], row["window"]) == (metric, client, window):
                return row["at"].get(repr(q)), row["n"]
        return None, 0

    def counters(self, client: str, op: str) -> Mapping[str, int]:
        """Return the counters that the client keeps of its decisions, summed over restarts."""
        total: dict[str, int] = {}
        for line in self.events("counters"):
            if f"{line.get('workload')}/{line.get('arm')}" == client and line.get("op") == op:
                for name, count in (line.get("counters") or {}).items():
                    total[name] = total.get(name, 0) + count
        return total

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of ``events.jsonl`` of one kind, in order."""
        return [line for line in read_lines(self.home / "events.jsonl") if line.get("event") == event]

    def phases(self, entry: str) -> list[dict[str, Any]]:
        """Return the windows of a fault, block by block: rows of ``phases.json``, in microseconds of the run."""
        return [row for row in read_rows(self.home / "phases.json") if row.get("entry") == entry]

    def outcomes(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """Return outcome rows with these columns; ``where`` may use any column of the outcome row (design 5.3)."""
        return _rows(self.home / "outcomes", columns, where)

    def samples(self, name: str) -> pa.Table:
        """Return a metric's samples: ``t_us broker_id value``, in order of time."""
        return _rows(self.home / "metrics", ["t_us", "broker_id", "value"], ds.field("name") == name).sort_by("t_us")


def ratio_of_blocks(ours: Mapping[int, Block], theirs: Mapping[int, Block], confidence: float, seed: str) -> Estimate:
    """Return the ratio as `Part.ratio` does, for the given blocks.

    ``seed`` seeds the sign-flip test, which samples random signs if there are too many combinations to enumerate.
    """
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < _PAIRS_MIN:
        return Estimate(None, None, None, len(both), "times", confidence)
    left, right = ([side[number].value_us for number in both] for side in (ours, theirs))
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])
    return ratio_of(paired(left, right, MARGIN, confidence=confidence, seed=number), len(both), confidence)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a JSON list of objects. Raises EvidenceError if the file is missing or damaged."""
    return [dict(row) for row in read_json(path)]


def _rows(folder: Path, columns: Sequence[str], where: pc.Expression | None) -> pa.Table:
    return ds.dataset(folder, format="parquet").to_table(columns=list(columns), filter=where)


STEADY_SLICE_US = 6_000_000
STEADY = "steady"


def steady(part: Part) -> tuple[Slice, ...]:
    """Return the whole slices of the steady phase, none if the run has no steady phase."""
    spans = [row for row in read_rows(part.home / "phases.json") if row["name"] == STEADY]
    return slices(spans[0]["start_us"], spans[0]["end_us"], STEADY_SLICE_US) if spans else ()


_BEFORE_US = 50_000
_COLUMNS = ("intended_us", "done_us", "status")

Spans = Mapping[int, tuple[int, int]]
"""Microseconds of the run, by block."""


def struck(part: Part, entry: str) -> Spans:
    """Return, by block, the span from 50 ms before inject began until the fault was in force.

    For the fault ``stop`` the span is the time from SIGTERM to exit. Only blocks whose faults all took effect are
    included.
    """
    times = {(line["fault"], line["state"]): line["t_us"] for line in read_lines(part.home / "journal.jsonl")}
    trials, _ = part.run.trials()
    spans = {
        step["block"]: (times[step["id"], "intended"] - _BEFORE_US, times[step["id"], "injected"])
        for step in part.run.timeline["steps"]
        if step.get("entry") == entry and {(step["id"], "intended"), (step["id"], "injected")} <= times.keys()
    }
    return {block: span for block, span in spans.items() if trials is None or block in trials}


def worst_in(part: Part, client: str, spans: Spans) -> dict[int, Block]:
    """Return the worst produce latency of each span."""
    if not spans:
        return {}
    workload, _, arm = client.partition("/")
    condition = (ds.field("op") == "produce") & (ds.field("workload") == workload) & (ds.field("arm") == arm)
    rows = part.outcomes(_COLUMNS, condition)
    blocks = {number: _worst(rows, *span) for number, span in spans.items()}
    return {number: block for number, block in blocks.items() if block.n}


def _worst(rows: pa.Table, start_us: int, end_us: int) -> Block:
    intended_us = rows["intended_us"]
    due = rows.filter(pc.and_(pc.greater_equal(intended_us, start_us), pc.less(intended_us, end_us)))
    failed = pc.any(pc.not_equal(due["status"], "ok")).as_py()
    if failed or not due.num_rows:
        return Block(None, due.num_rows)
    return Block(pc.max(pc.subtract(due["done_us"], due["intended_us"])).as_py(), due.num_rows)
