"""Measurement of what power cuts cost, for each cell of a matrix of failures and configurations.

A run of the plan ``durability`` repeats one power cut, and its producers fill eight cells of the matrix side by side.
Further runs change what loses power, whether eligible leader replicas are kept (KIP-966), and whether file systems are
mounted with ``sync``.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aftershock.errors import AftershockError
from aftershock.harness.campaigns import store
from aftershock.harness.campaigns.evidence import Observed, replacement, size_of, write_run
from aftershock.harness.campaigns.store import Planned, Record
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.stored import read_judged_run
from aftershock.results.report.page import filled
from aftershock.results.studies.durability import (
    ELR,
    SETTINGS,
    Cell,
    broken,
    cells_of,
    matrix,
    meaning,
    merged,
    percent,
)
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import share_bounds

NAME = PLAN = "durability"
PAGE = "durability.html"
CUTS = 6
SCHEMA_VERSION = 1
BYTES_MAX = 4_000_000
_WIDTH = 80
_AROUND_S, _CUT_S = 55.0, 27.0
_CUT = "faults.0={{id: cut, at: 0s, for: 5s, kind: power_loss, {}}}"
_WHERE: Mapping[str, tuple[str, ...]] = {
    "node": (_CUT.format("broker: 1"),),
    "rack": (_CUT.format("rack: a"), "cluster.racks={a: 2, b: 2}"),
    "all": (),
}
_KEEPS_ELR: Mapping[str, tuple[str, ...]] = {"elr": (), "no-elr": (f"cluster.features={{{ELR}: 0}}",)}
_MOUNTS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "sync": ("cluster.block_device={size: 1024MiB, sync: true}",),
}
RUNS = tuple(
    Planned(
        f"{where}-{elr}-{mount}", PLAN, _AROUND_S, (*_WHERE[where], *_KEEPS_ELR[elr], *_MOUNTS[mount]), CUTS, _CUT_S
    )
    for mount in _MOUNTS
    for elr in _KEEPS_ELR
    for where in _WHERE
)


@dataclass(frozen=True)
class Result:
    """Cells of all runs that can be trusted; ``doubts`` says why others are left out."""

    cells: tuple[Cell, ...]
    parts: Mapping[str, Part]
    doubts: Mapping[str, str]

    @property
    def about(self) -> str:
        runs = [part.run.run for part in self.parts.values()]
        kafka = ", ".join(sorted({str((run.get("versions") or {}).get("kafka", "unknown")) for run in runs}))
        return f"{len(runs)} runs with Kafka {kafka or 'unknown'}"

    @property
    def exit_code(self) -> int:
        """0 if all cells are measured and no promise is broken, 1 if one is, 2 if cells are missing."""
        return 1 if broken(self.cells) else 2 if self.doubts else 0


def read_result(record: Record, home: Path, *, current: bool = False) -> Result:
    """Read the runs of the record below ``home``, with ``current`` only those of today's plans and seed.

    Raises EvidenceError for a damaged run.
    """
    parts, doubts, cells = dict[str, Part](), dict[str, str](), list[Cell]()
    for planned in RUNS:
        name = planned.name
        run = record.finished(planned, home) if current else record.stored(name)
        if run is None:
            doubts[name] = record.left_out.get(name, "it has not run")
            continue
        part = Part(name, read_judged_run(home / run))
        if doubt := part.doubt():
            doubts[name] = doubt
            continue
        parts[name] = part
        cells += cells_of(part)
    return Result(tuple(merged(cells)), parts, doubts)


def _setting(min_isr: int, *, elr: bool) -> str:
    return f"min {min_isr}{'' if elr else ', no ELR'}"


def text(result: Result) -> str:
    """Return the matrix as text: lost records of acknowledged ones, by configuration."""
    lines = [
        f"Acknowledged records lost in power cuts: {result.about}, {CUTS} cuts each",
        "(min: min.insync.replicas; ELR: eligible leader replicas, KIP-966)",
        "",
    ]
    for where, rows in matrix(result.cells).items():
        lines.append(f"power lost by {where}")
        lines.append(
            "  " + f"{'acks, flush':<22}" + "".join(f"{_setting(min_isr, elr=elr):>14}" for min_isr, elr in SETTINGS)
        )
        for row in rows:
            short = row.flush.partition(" (")[0].removesuffix(", when it likes")
            figures = ["-" if cell is None else f"{cell.lost:,}/{cell.acknowledged:,}" for cell in row.cells]
            lines.append("  " + f"{row.acks + ', ' + short:<22}" + "".join(f"{figure:>14}" for figure in figures))
        lines.append("")
    for heading, sentences in meaning(result.cells).items():
        lines += [heading, *textwrap.wrap(sentences, _WIDTH, initial_indent="  ", subsequent_indent="  "), ""]
    lines += [f"not measured: {name}: {why}" for name, why in result.doubts.items()]
    return "\n".join(lines).rstrip()


def document(result: Result) -> dict[str, object]:
    """Return the JSON document that ``aftershock durability --json`` prints."""
    cells = [
        {**cell.setup._asdict(), "duplicates": cell.duplicates, "cuts": [asdict(loss) for loss in cell.losses]}
        for cell in result.cells
    ]
    runs = {name: part.run.run_id for name, part in result.parts.items()}
    return {"schema_version": SCHEMA_VERSION, "cells": cells, "runs": runs, "not_measured": dict(result.doubts)}


def write_page(result: Result, home: Path) -> Path:
    page = filled(
        PAGE,
        matrix=matrix(result.cells),
        headings=[(_setting(min_isr, elr=elr), "figure") for min_isr, elr in SETTINGS],
        bounds=lambda cell: share_bounds(cell.cuts_with_loss, cell.cuts),
        meaning=meaning(result.cells),
        broken=broken(result.cells),
        percent=percent,
        cells=result.cells,
        about=result.about,
        cuts=CUTS,
        doubts=result.doubts,
    )
    return write_whole(home / PAGE, page)


def reduce(home: Path, target: Path) -> int:
    """Write the evidence of the runs below ``home`` to ``target``; return its size in bytes.

    Raises AftershockError if the evidence is too large, names a place of this machine, or gives other figures.
    """
    record = store.read(home, NAME)
    result = read_result(record, home)
    kept = replace(record, runs={name: record.runs[name] for name in result.parts}, left_out={})
    with replacement(target, BYTES_MAX) as draft:
        for name, part in result.parts.items():
            observed = Observed(name, part.run)
            cells_of(observed)
            write_run(observed, draft / part.home.name)
        store.write(draft, kept)
        if read_result(kept, draft).cells != result.cells:
            raise AftershockError(f"{target}: the reduced evidence gives other figures")
    return size_of(target)


def markdown(result: Result) -> str:
    """Return the matrix and its meaning for ``docs/DURABILITY.md``."""
    none = f"In a cell without a loss, {share_bounds(0, CUTS, ' of such cuts lose records')}."
    lines = [f"{result.about}, {CUTS} cuts each. min: `min.insync.replicas`; ELR: eligible leader replicas. {none}", ""]
    lines += [f"* **{heading}.** {sentences}" for heading, sentences in meaning(result.cells).items()]
    heads = ["acks", "flushed", *(_setting(min_isr, elr=elr) for min_isr, elr in SETTINGS)]
    for where, rows in matrix(result.cells).items():
        lines += ["", f"### Power lost by {where}", "", f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
        for row in rows:
            figures = ["-" if cell is None else _figure(cell) for cell in row.cells]
            lines.append(f"| {' | '.join([row.acks, row.flush, *figures])} |")
    lines += ["", *(f"* not measured: {name}: {why}" for name, why in result.doubts.items())]
    return "\n".join(lines).rstrip()


def _figure(cell: Cell) -> str:
    of = f"of {cell.acknowledged:,}"
    return f"**{cell.lost:,}** {of} ({percent(cell.share)})" if cell.lost else f"0 {of}"
