"""A part of a trial: one judged run of one of the KIP's plans, and the figures that statements are made of.

Rules: from stored evidence alone, so that judging the run again gives the same. A block whose fault was not witnessed,
or that nobody met, is left out on both sides. Rows are read by pyarrow, only the columns asked for.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from aftershock.results.comparing.blocks import Block, parse
from aftershock.results.comparing.blocks import stored as blocks_of
from aftershock.results.comparing.comparison import MARGIN
from aftershock.results.comparing.stats import paired
from aftershock.results.comparing.stored import Stored
from aftershock.results.files import read_json, read_lines
from aftershock.results.trials.statement import Estimate, ratio_of

_PAIRS_MIN = 2


@dataclass(frozen=True)
class Part:
    """One judged run. Clients are named ``workload/arm``, measures as in ``aftershock compare --metric``."""

    name: str
    run: Stored

    @property
    def home(self) -> Path:
        """Its run directory."""
        return self.run.home

    def doubt(self) -> str | None:
        """Why nothing of it is evidence."""
        return self.run.doubted()

    def blocks(self, client: str, measure: str) -> dict[int, Block]:
        """One number a block, of the blocks whose faults all took hold."""
        trials, _ = self.run.trials()
        found = blocks_of(self.run.analysis, self.run.timeline["steps"], parse(measure), client)
        return {number: block for number, block in found.items() if trials is None or number in trials}

    def ratio(self, ours: str, theirs: str, measure: str, confidence: float = 0.95) -> Estimate:
        """Ours by theirs, paired by block: the geometric mean with Student's interval, and the p of flipped signs."""
        return ratio(self.blocks(ours, measure), self.blocks(theirs, measure), confidence, self.run.run_id)

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


def ratio(ours: Mapping[int, Block], theirs: Mapping[int, Block], confidence: float, seed: str) -> Estimate:
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
