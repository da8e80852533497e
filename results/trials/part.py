"""A run without blocks, cut into slices of time: the unit of what flows or drifts, where records are no unit at all.

Rules. A slice is as long as its neighbours, whole, and as many records long as the load makes it; its figure is one
number. Intervals are Student's, over slices. Neighbours are alike where a queue grows, so a mean over slices speaks of
this run's time, and a quantile of the whole is drawn again slice by slice (a block bootstrap), never record by record.

A part of a trial: one judged run of one of the KIP's plans, and the figures that statements are made of.

Rules: from stored evidence alone, so that judging the run again gives the same. A block whose fault was not witnessed,
or that nobody met, is left out on both sides. Rows are read by pyarrow, only the columns asked for.

The steady part of a run, cut into slices of six seconds: the unit of whatever is measured without a fault.

The worst latency in spans of time that are no window of ``phases.json``: from SIGTERM to exit, say.

Rules: a record belongs to the span of its intended time; one that did not succeed is slower than any; a span that no
record was due in is no block.
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
    """Start inclusive, end exclusive, in microseconds of the run."""

    start_us: int
    end_us: int


def slices(start_us: int, end_us: int, every_us: int = SLICE_US) -> tuple[Slice, ...]:
    """The whole slices of a span; what is left over at its end is left out."""
    starts = range(start_us, end_us - every_us + 1, every_us)
    return tuple(Slice(start, start + every_us) for start in starts)


def mean(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """The mean over slices, with Student's interval where there are two."""
    if len(values) < _PAIR:
        return Estimate(values[0] if values else None, None, None, len(values), unit, confidence)
    known = np.asarray(values, float)
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    return _around(float(known.mean()), error, len(known) - 1, len(known), unit, confidence)


def ratio(ours: Floats, theirs: Floats, confidence: float = 0.95) -> Estimate:
    """Ours by theirs, slice by slice: the geometric mean. No value is 0 or less."""
    found = mean(list(np.log(ours) - np.log(theirs)), "times", confidence)
    value, low, high = (None if each is None else math.exp(each) for each in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n, "times", confidence)


def slope(values: Sequence[float], unit: str, confidence: float = 0.95) -> Estimate:
    """How much the figure grows from one slice to the next, by least squares."""
    if len(values) < _LINE:
        return Estimate(None, None, None, len(values), unit, confidence)
    times, known = np.arange(len(values), dtype=float), np.asarray(values, float)
    off = times - times.mean()
    steep = float(off @ known / (off @ off))
    left = known - known.mean() - steep * off
    error = math.sqrt(float(left @ left) / (len(known) - 2) / float(off @ off))
    return _around(steep, error, len(known) - 2, len(known), unit, confidence)


def drawn_again(
    groups: Sequence[Sequence[Floats]],
    figure: Callable[[Sequence[Floats]], float | None],
    unit: str,
    seed: str,
    confidence: float = 0.95,
) -> Estimate:
    """A figure of several clients' records, whose interval comes from drawing whole slices again (percentiles).

    ``groups``: for each client the records of each slice, the same slices for all; ``figure`` of each client's records.
    """
    count = min(map(len, groups), default=0)
    value = figure([np.concatenate(group) for group in groups]) if count else None
    if value is None or count < _PAIR:
        return Estimate(value, None, None, count, unit, confidence)
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]))
    found = [_resampled(groups, figure, random.integers(0, count, count)) for _ in range(RESAMPLES)]
    known = [each for each in found if each is not None]
    tail = (1 - confidence) / 2
    low, high = (float(np.quantile(known, q)) for q in (tail, 1 - tail))
    return Estimate(value, low, high, count, unit, confidence)


def quantile(values: Floats, q: float) -> float:
    """Nearest rank, as everywhere here; infinity where that one is censored, not a number where there is none."""
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
    """One judged run. Clients are named ``workload/arm``, measures as in ``aftershock compare --metric``."""

    name: str
    run: JudgedRun

    @property
    def home(self) -> Path:
        """Its run directory."""
        return self.run.home

    def doubt(self) -> str | None:
        """Why nothing of it is evidence."""
        return self.run.doubt()

    def blocks(self, client: str, measure: str) -> dict[int, Block]:
        """One number a block, of the blocks whose faults all took hold."""
        trials, _ = self.run.trials()
        found = blocks_of(self.run.analysis, self.run.timeline["steps"], parse(measure), client)
        return {number: block for number, block in found.items() if trials is None or number in trials}

    def ratio(self, ours: str, theirs: str, measure: str, confidence: float = 0.95) -> Estimate:
        """Ours by theirs, paired by block: the geometric mean with Student's interval, and the p of flipped signs."""
        return ratio_of_blocks(self.blocks(ours, measure), self.blocks(theirs, measure), confidence, self.run.run_id)

    def quantile_us(self, client: str, metric: str, window: str, q: float) -> tuple[int | None, int]:
        """A quantile of all the window's records, and their number; None where it is censored or was not measured."""
        for row in self.run.analysis["distributions"]:
            if (row["metric"], row["client"], row["window"]) == (metric, client, window):
                return row["at"].get(repr(q)), row["n"]
        return None, 0

    def counters(self, client: str, op: str) -> Mapping[str, int]:
        """What the client counted of its own decisions; summed where it had several lives."""
        total: dict[str, int] = {}
        for line in self.events("counters"):
            if f"{line.get('workload')}/{line.get('arm')}" == client and line.get("op") == op:
                for name, count in (line.get("counters") or {}).items():
                    total[name] = total.get(name, 0) + count
        return total

    def events(self, event: str) -> list[dict[str, Any]]:
        """The lines of ``events.jsonl`` of one kind, in order."""
        return [line for line in read_lines(self.home / "events.jsonl") if line.get("event") == event]

    def phases(self, entry: str) -> list[dict[str, Any]]:
        """The windows of a fault, block by block: rows of ``phases.json``, whose times are microseconds of the run."""
        return [row for row in read_rows(self.home / "phases.json") if row.get("entry") == entry]

    def outcomes(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """Rows of the records, with these columns; ``where`` over any column of the outcome row (design 5.3)."""
        return _rows(self.home / "outcomes", columns, where)

    def samples(self, name: str) -> pa.Table:
        """A metric's samples: ``t_us broker_id value``, in order of time."""
        found = _rows(self.home / "metrics", ["t_us", "broker_id", "value"], ds.field("name") == name)
        return found.sort_by("t_us")


def ratio_of_blocks(ours: Mapping[int, Block], theirs: Mapping[int, Block], confidence: float, seed: str) -> Estimate:
    """As ``Part.ratio``, of blocks in hand; ``seed``: of the signs that are drawn where there are too many to try."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < _PAIRS_MIN:
        return Estimate(None, None, None, len(both), "times", confidence)
    one, other = ([side[number].value_us for number in both] for side in (ours, theirs))
    drawn = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8])
    return ratio_of(paired(one, other, MARGIN, confidence=confidence, seed=drawn), len(both), confidence)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A JSON list of objects. Raises EvidenceError where the file is missing or broken."""
    return [dict(row) for row in read_json(path)]


def _rows(folder: Path, columns: Sequence[str], where: pc.Expression | None) -> pa.Table:
    return ds.dataset(folder, format="parquet").to_table(columns=list(columns), filter=where)


STEADY_SLICE_US = 6_000_000
STEADY = "steady"


def steady(part: Part) -> tuple[Slice, ...]:
    """Its whole slices; none where the run has no steady part."""
    spans = [row for row in read_rows(part.home / "phases.json") if row["name"] == STEADY]
    return slices(spans[0]["start_us"], spans[0]["end_us"], STEADY_SLICE_US) if spans else ()


_BEFORE_US = 50_000
_COLUMNS = ("intended_us", "done_us", "status")

Spans = Mapping[int, tuple[int, int]]
"""Microseconds of the run, by block."""


def struck(part: Part, entry: str) -> Spans:
    """From 50 ms before a fault was asked for until it was in force: of a ``stop``, from SIGTERM to exit.

    Of the blocks whose faults all took hold.
    """
    times = {(line["fault"], line["state"]): line["t_us"] for line in read_lines(part.home / "journal.jsonl")}
    trials, _ = part.run.trials()
    found = {
        step["block"]: (times[step["id"], "intended"] - _BEFORE_US, times[step["id"], "injected"])
        for step in part.run.timeline["steps"]
        if step.get("entry") == entry and {(step["id"], "intended"), (step["id"], "injected")} <= times.keys()
    }
    return {block: span for block, span in found.items() if trials is None or block in trials}


def worst_in(part: Part, client: str, spans: Spans) -> dict[int, Block]:
    """One number a span, of what the client produced."""
    if not spans:
        return {}
    workload, _, arm = client.partition("/")
    whose = (ds.field("op") == "produce") & (ds.field("workload") == workload) & (ds.field("arm") == arm)
    rows = part.outcomes(_COLUMNS, whose)
    found = {block: _worst(rows, *span) for block, span in spans.items()}
    return {block: one for block, one in found.items() if one.n}


def _worst(rows: pa.Table, start_us: int, end_us: int) -> Block:
    intended_us = rows["intended_us"]
    due = rows.filter(pc.and_(pc.greater_equal(intended_us, start_us), pc.less(intended_us, end_us)))
    failed = pc.any(pc.not_equal(due["status"], "ok")).as_py()
    if failed or not due.num_rows:
        return Block(None, due.num_rows)
    return Block(pc.max(pc.subtract(due["done_us"], due["intended_us"])).as_py(), due.num_rows)
