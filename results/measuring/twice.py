"""The jobs that ask twice: first for counts of the whole run, then, where these leave it open, for its records.

Like ``measure.py`` it collects. What comes back first is bounded by how long the runs are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from aftershock.results.facts import Lag, Recovered
from aftershock.results.measuring import lag, recovery
from aftershock.results.measuring.answers import Answers, Spread, by_run
from aftershock.results.measuring.calms import Look, Pace, Slots, Sought, recovered, slot_us_of, sought, where_to_look
from aftershock.results.measuring.columns import longs, parted
from aftershock.results.measuring.dims import Dims
from aftershock.results.measuring.hulls import due_in, open_in
from aftershock.results.obligations import stalls
from aftershock.results.obligations.silences import SILENCES, Silence, silences
from aftershock.results.spark.tables import Tables
from aftershock.results.wanted import Calm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STALL_US = 1_000_000  # shorter silences are nobody's obligation, and there are many


def lags(read: Tables, dims: Dims) -> list[dict[str, tuple[Lag, ...]]]:
    """Positions, and the ages of what lay beyond them, for each run."""
    scenes = dims.scenes
    if not any(one.readers for one in scenes):
        return [{} for _ in scenes]
    tops = parted(lag.reached(read, dims).toArrow(), "run", len(scenes))
    found = [list(lag.behind(some, scene)) for some, scene in zip(tops, scenes, strict=True)]
    number = count()
    probes = [
        (run, next(number), *one.place, *asked)
        for run, some in enumerate(found)
        for one in some
        for asked in zip(*(column.tolist() for column in (one.second, one.position, one.at_us)), strict=True)
    ]
    since_us = np.full(len(probes), lag.UNKNOWN_US)
    if probes:
        oldest = lag.oldest(read, dims.table(probes, lag.PROBES)).toArrow()
        since_us[longs(oldest["probe"])] = longs(oldest["since_us"])
    each = iter(np.split(since_us, np.cumsum([len(one.at_us) for some in found for one in some])))
    return [lag.lags([(one, next(each)) for one in some], scene) for some, scene in zip(found, scenes, strict=True)]


@dataclass(frozen=True)
class Twice:
    """The samples of all runs, that are asked."""

    dims: Dims
    samples: "DataFrame"

    def waited(self) -> dict[str, Answers]:
        """``stalls`` and ``failures``. Most runs have few: no more than seconds for each partition, and none."""
        waits = stalls.waits(self.samples, self.dims)
        told = stalls.slots(waits, STALL_US).toArrow()
        failed = pc.sum(told["failed"]).as_py()
        return {
            "stalls": self._stalls(list(silences(told, STALL_US))),
            "failures": by_run(stalls.failures(waits).collect() if failed else []),
        }

    def _stalls(self, silent: Sequence[Silence]) -> Answers:
        if not silent:
            return {}
        near = self.samples.where(open_in((since_us, until_us) for *_, since_us, until_us in silent))
        waiting = stalls.during(stalls.waits(near, self.dims), self.dims.table(silent, SILENCES))
        if any(delivered for _, _, delivered, *_ in silent):
            waiting = stalls.acknowledged(waiting, self.samples)
        return by_run(stalls.stalls(waiting, STALL_US).collect())

    def recoveries(
        self, calms: Sequence[Sequence[Calm]], spread: Sequence[Spread]
    ) -> list[dict[tuple[Calm, str], Recovered]]:
        """How long each calm of each run took to come; two jobs for each length of calm."""
        wanted = sought(self.dims.scenes, calms, spread)
        looked: list[list[tuple[Sought, int | None]]] = [[] for _ in self.dims.scenes]
        slots: dict[Pace, Slots] = {}
        for for_us in sorted({one.calm.for_us for one in wanted}):
            some = [one for one in wanted if one.calm.for_us == for_us]
            slots |= self._pace_slots(list(dict.fromkeys(one.pace for one in some)))
            for one, us in self._first_calm([(one, where_to_look(one, slots.get(one.pace))) for one in some], for_us):
                looked[one.pace.run].append((one, us))
        return [recovered(some, slots, scene) for some, scene in zip(looked, self.dims.scenes, strict=True)]

    def _pace_slots(self, paces: Sequence[Pace]) -> dict[Pace, Slots]:
        rows = [(one.run, number, *one.row[:3]) for number, one in enumerate(paces)]
        told, slot_us = self.dims.table(rows, recovery.PACES), slot_us_of(paces[0].for_us)
        counted = recovery.pace_slots(self.samples, told, self.dims, slot_us).toArrow()
        return {
            pace: Slots(*[longs(part[name], null=-1) for name in ("segment", "slot", "n", "failed", "slow")])
            for pace, part in zip(paces, parted(counted, "pace", len(paces)), strict=True)
            if part.num_rows
        }

    def _first_calm(
        self, looks: Sequence[tuple[Sought, Sequence[Look]]], for_us: int
    ) -> Iterator[tuple[Sought, int | None]]:
        each = [(number, one, look) for number, (one, some) in enumerate(looks) for look in some]
        found: dict[int, int] = {}
        if each:
            rows = [(one.pace.run, number, *one.pace.row, one.at_us, *astuple(look)) for number, one, look in each]
            near = self.samples.where(due_in((look.look_us, look.until_us + for_us) for _, _, look in each))
            job = recovery.first_calm(near, self.dims.table(rows, recovery.LOOKS), for_us)
            found = {row["calm"]: row["recovered_us"] for row in job.collect()}
        return ((one, found.get(number)) for number, (one, _) in enumerate(looks))
