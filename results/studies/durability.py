"""Costs of power cuts: acknowledged records that are gone, by failure domain and configuration.

The figures are computed from stored runs of the plan ``durability``, each of which repeats one power cut. A run says
itself what lost power (``steps``), whether the cluster keeps eligible leader replicas (KIP-966) and whether its file
systems are mounted with ``sync`` (``cluster``); a topic says how many replicas must be in sync and whether brokers
flush each record.

A record is lost if its producer had its acknowledgement and no partition has it at the end of the run. It counts for
the first cut after its acknowledgement. Its age is the time from the acknowledgement until the fault was in force,
which is up to 0.7 s after the power was cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aftershock.results.evidence.files import read_lines
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import share_bounds

ELR = "eligible.leader.replicas.version"
_ENTRY = "cut"
_US = 1_000_000


class Setup(NamedTuple):
    """A cell of the matrix: what loses power (``where``), and the configuration.

    ``flush`` says when a record is written to the disk: by ``kernel``, at ``each record``, or by ``mount`` with sync.
    """

    where: str
    acks: str
    min_isr: int
    flush: str
    elr: bool


@dataclass(frozen=True)
class Cut:
    """A power cut: when it was in force, when the power came back, and when all nodes were in service again."""

    injected_us: int
    restored_us: int
    healed_us: int


@dataclass(frozen=True)
class Loss:
    """What one cut cost one producer; ages and times in seconds, None if nothing was lost or acknowledged later.

    ``silent_s`` is the time without an acknowledgement from the cut on, ``recovered_s`` that from the return of power.
    ``cut`` names the cut, which all producers of a run share.
    """

    acknowledged: int
    lost: int
    oldest_s: float | None
    youngest_s: float | None
    silent_s: float | None
    recovered_s: float | None
    cut: str = ""


@dataclass(frozen=True)
class Cell:
    """All cuts of a setup, and the records that the log has twice."""

    setup: Setup
    losses: tuple[Loss, ...]
    duplicates: int

    @property
    def lost(self) -> int:
        return sum(loss.lost for loss in self.losses)

    @property
    def acknowledged(self) -> int:
        return sum(loss.acknowledged for loss in self.losses)

    @property
    def share(self) -> float:
        return self.lost / self.acknowledged if self.acknowledged else 0.0

    @property
    def cuts(self) -> int:
        return len({loss.cut for loss in self.losses})

    @property
    def cuts_with_loss(self) -> int:
        return len({loss.cut for loss in self.losses if loss.lost})

    def oldest_s(self) -> float | None:
        return max((loss.oldest_s for loss in self.losses if loss.oldest_s is not None), default=None)

    def youngest_s(self) -> float | None:
        return min((loss.youngest_s for loss in self.losses if loss.youngest_s is not None), default=None)

    def median_s(self, name: str) -> float | None:
        """Return the median over the cuts of a time of `Loss`, None without values."""
        values = [value for loss in self.losses if (value := getattr(loss, name)) is not None]
        return float(np.median(values)) if values else None


def cells_of(part: Part) -> list[Cell]:
    """Return the cells that a run of the plan ``durability`` fills, one for each of its producers."""
    timeline = part.run.timeline
    topics = {topic["name"]: topic.get("config") or {} for topic in timeline["topics"]}
    cells = []
    for workload in timeline["workloads"]:
        topic = workload["produce"]["topic"]
        (arm,) = workload["arms"]
        kept = _keys(part.log(topic, ("producer_id", "seq")).drop_null())
        setup = setup_of(timeline, workload, topics[topic])
        found = losses(part, f"{workload['name']}/{arm}", topic, _ENTRY)
        cells.append(Cell(setup, tuple(found), len(kept) - len(np.unique(kept))))
    return cells


def setup_of(timeline: Mapping[str, Any], workload: Mapping[str, Any], config: Mapping[str, Any]) -> Setup:
    cluster, fault = timeline["cluster"], timeline["steps"][0]["parameters"]
    where = "one node" if fault.get("broker") else "one rack" if fault.get("rack") else "all nodes"
    synchronous = (cluster.get("block_device") or {}).get("sync")
    flush = "mount" if synchronous else "each record" if str(config.get("flush.messages")) == "1" else "kernel"
    elr = (cluster.get("features") or {}).get(ELR, 1) > 0
    return Setup(where, str(workload["produce"]["acks"]), int(config["min.insync.replicas"]), flush, elr)


def losses(part: Part, client: str, topic: str, entry: str) -> list[Loss]:
    """Return what each cut cost a producer to one topic; the cuts are the faults of the plan's ``entry``."""
    cuts = _cuts(part, entry)
    rows = part.outcomes("produce", ("producer_id", "seq", "done_us", "status"), client)
    acked = rows.filter(pc.equal(rows["status"], "ok")).sort_by("done_us")
    kept = _keys(part.log(topic, ("producer_id", "seq")).drop_null())
    done_us = acked["done_us"].to_numpy().astype(np.int64)
    lost = ~np.isin(_keys(acked), kept)
    times_us = [-1, *(cut.injected_us for cut in cuts), np.iinfo(np.int64).max]
    return [
        replace(_loss(done_us, lost, before_us, cut, after_us), cut=f"{part.run.run_id}@{cut.injected_us}")
        for before_us, cut, after_us in zip(times_us[:-2], cuts, times_us[2:], strict=True)
    ]


def _cuts(part: Part, entry: str) -> list[Cut]:
    """Return the cuts that took effect, in order of time."""
    faults = {step["id"] for step in part.run.timeline["steps"] if step.get("entry") == entry}
    times: dict[str, dict[str, int]] = {}
    for line in read_lines(part.home / "journal.jsonl"):
        times.setdefault(line["fault"], {}).setdefault(line["state"], line["t_us"])
    unproven = part.run.unproven()
    return sorted(
        (
            Cut(states["injected"], states["healing"], states["healed"])
            for fault, states in times.items()
            if fault in faults - unproven.keys() and {"injected", "healing", "healed"} <= states.keys()
        ),
        key=lambda cut: cut.injected_us,
    )


def _loss(done_us: NDArray[np.int64], lost: NDArray[np.bool_], start_us: int, cut: Cut, next_us: int) -> Loss:
    before = (done_us > start_us) & (done_us <= cut.injected_us)
    ages_s = (cut.injected_us - done_us[before & lost]) / _US
    after_us = done_us[(done_us > cut.injected_us) & (done_us <= next_us)]
    back_us = after_us[after_us >= cut.restored_us]
    return Loss(
        int(before.sum()),
        len(ages_s),
        float(ages_s.max()) if len(ages_s) else None,
        float(ages_s.min()) if len(ages_s) else None,
        float(after_us[0] - cut.injected_us) / _US if len(after_us) else None,
        float(back_us[0] - cut.restored_us) / _US if len(back_us) else None,
    )


def _keys(rows: pa.Table) -> NDArray[np.int64]:
    """Return a number for each record, from the ids of its producer and the record."""
    producer, seq = (rows[name].to_numpy().astype(np.int64) for name in ("producer_id", "seq"))
    keys: NDArray[np.int64] = (producer << 40) + seq
    return keys


def merged(cells: Iterable[Cell]) -> list[Cell]:
    """Return one cell for each setup, with the cuts of all runs, in the order of the matrix."""
    by_setup: dict[Setup, list[Cell]] = {}
    for cell in cells:
        by_setup.setdefault(cell.setup, []).append(cell)
    return [
        Cell(setup, tuple(loss for cell in group for loss in cell.losses), sum(cell.duplicates for cell in group))
        for setup, group in sorted(by_setup.items(), key=lambda entry: _ORDER.index(entry[0].where))
    ]


_ORDER = ("one node", "one rack", "all nodes")


SETTINGS = tuple((min_isr, elr) for min_isr in (1, 2) for elr in (True, False))
"""Columns of the matrix: in-sync replicas at least, and whether eligible leader replicas are kept."""
_FLUSHES = {
    "kernel": "by the kernel, when it likes (Kafka's default)",
    "each record": "at each record (flush.messages=1)",
    "mount": "at each write (file system mounted with sync)",
}


@dataclass(frozen=True)
class Line:
    """Row of the matrix; ``cells`` are in the order of ``SETTINGS``, None if not measured."""

    where: str
    acks: str
    flush: str
    cells: tuple[Cell | None, ...]


def matrix(cells: Iterable[Cell]) -> dict[str, list[Line]]:
    """Return the rows of the matrix, by what loses power."""
    found = {cell.setup: cell for cell in merged(cells)}
    return {
        where: [
            Line(
                where,
                acks,
                text,
                tuple(found.get(Setup(where, acks, min_isr, flush, elr)) for min_isr, elr in SETTINGS),
            )
            for acks in ("all", "1")
            for flush, text in _FLUSHES.items()
        ]
        for where in _ORDER
        if any(setup.where == where for setup in found)
    }


def is_promised(setup: Setup) -> bool:
    """Return True if Kafka promises that acknowledged records survive the cut.

    With acks=all a record is on all in-sync replicas. It survives if one of them keeps power, or had it flushed.
    """
    return setup.acks == "all" and (setup.where != "all nodes" or setup.flush != "kernel")


def broken(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells in which records were lost that Kafka promises to keep."""
    return [cell for cell in cells if cell.lost and is_promised(cell.setup)]


def meaning(cells: Sequence[Cell]) -> dict[str, str]:
    """Return what the figures mean for deployments in one, two and three failure domains, by heading."""

    def of(where: str, acks: str, *flushes: str) -> list[Cell]:
        return [c for c in cells if (c.setup.where, c.setup.acks) == (where, acks) and c.setup.flush in flushes]

    one = of("all nodes", "all", "kernel")
    ages = [age for cell in one if (age := cell.oldest_s()) is not None]
    oldest = f"; the oldest had been acknowledged {max(ages):.0f} s before" if ages else ""
    flushed, synchronous = (_lost(of("all nodes", "all", flush)) for flush in ("each record", "mount"))
    rack, node = ([_lost(of(where, acks, *_FLUSHES)) for acks in ("all", "1")] for where in ("one rack", "one node"))
    return {
        "One failure domain: all nodes share a power supply": (
            f"acks=all {_lost(one)}{oldest}. More replicas do not help, because none has the records on its disk. "
            f"With a flush of each record, acks=all {flushed}; on file systems mounted with sync, it {synchronous}."
        ),
        "Two failure domains: one of two racks loses power": (
            f"acks=all {rack[0]}. Of three replicas, the dead rack has one or two; where it has two, partitions with "
            f"min.insync.replicas=2 take no records until the power is back. acks=1 {rack[1]}."
        ),
        "Three failure domains: one node of three loses power": f"acks=all {node[0]}. acks=1 {node[1]}.",
    }


def _lost(cells: Sequence[Cell]) -> str:
    """Return the losses of several configurations as the end of a sentence."""
    count, acknowledged = sum(cell.lost for cell in cells), sum(cell.acknowledged for cell in cells)
    losses = [loss for cell in cells for loss in cell.losses]
    # a cut counts once, because its producers meet the same event
    cuts, hits = len({loss.cut for loss in losses}), len({loss.cut for loss in losses if loss.lost})
    if not cuts:
        return "was not measured"
    bounds = share_bounds(hits, cuts, " of such cuts lose records")
    if not count:
        return f"lost none of {acknowledged:,} acknowledged records in {cuts} cuts: {bounds}"
    share = f"{count:,} of {acknowledged:,} acknowledged records ({percent(count / acknowledged)})"
    return f"lost {share}, in {hits} of {cuts} cuts: {bounds}"


def percent(share: float) -> str:
    """Return a share such as ``82.8%`` or, below a tenth of a percent, ``0.03%``."""
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}"  # noqa: PLR2004
