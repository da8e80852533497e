"""Runs the Spark jobs of a judgement, few and grouped; answers are collected here, in ``twice.py`` and ``names.py``.

Rules: however many runs, the jobs are the same. The gate comes first; the ledger is made of what it could not clear, if
there is any. Silver (the exact histogram) is counted once, and what is asked of latency is read off it. What comes
back is small (different latencies, bins of a plot, seconds), never records.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aftershock.results.checks.findings import findings
from aftershock.results.checks.witness import crossing_of, passages
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure import answers, cuts, gate, latency, recovery
from aftershock.results.measure import samples as flows
from aftershock.results.measure import samples as slow
from aftershock.results.measure.answers import Answers, Key, Spread, by_run, calms_of, usual
from aftershock.results.measure.cuts import sliced
from aftershock.results.measure.facts import MAX, Calm, Crossed, Distribution, Facts, Host, Wanted
from aftershock.results.measure.gate import ledger
from aftershock.results.measure.lag import Twice, measure_lags
from aftershock.results.measure.latency import Histogram, bins, drawn, of_silver, silver_of
from aftershock.results.measure.names import named
from aftershock.results.measure.samples import samples
from aftershock.results.measure.tables import Dims, Scene, dims, parted
from aftershock.results.spark.conf import load_of
from aftershock.results.spark.tables import Tables, tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


TABLE_QS = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, MAX)
BIN_US = 1_000_000
BINS_MAX, BINS_OF_ALL_MAX, BINS_OF_ALL_WITH_COMMITS_MAX = 600, 2400, 900  # of a plot; commits add a third one
JOBS_AT_ONCE = 2  # half of each is planning, on one core

Keep = Callable[[int, "pa.Table"], None]
"""What is done with the silver table of the run of that number."""


def measure(
    spark: "SparkSession",
    runs: Sequence[Evidence],
    wanted: Mapping[str, Wanted],
    *,
    exhaustive: bool = False,
    keep: Keep | None = None,
) -> dict[str, Facts]:
    """Every measurement that the checks and the report need, by run id; ``wanted`` is what the SLOs of each ask for.

    ``exhaustive``: every record is looked at, whatever the gates would clear.
    """
    asked = [wanted.get(str(one.run["run_id"]), Wanted()) for one in runs]
    read, small = tables(spark, runs), dims(spark, runs)
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        early = _Early(read, small, pool, exhaustive=exhaustive)
        with _study(read, small, asked, early, exhaustive=exhaustive) as study:
            found = study.facts(early, pool, keep)
    return {str(one.run["run_id"]): facts for one, facts in zip(runs, found, strict=True)}


@contextmanager
def _study(
    read: Tables, small: Dims, asked: Sequence[Wanted], early: "_Early", *, exhaustive: bool
) -> "Iterator[_Study]":
    """With what several jobs read kept for as long as they do."""
    with ExitStack() as until:

        def kept(rows: "DataFrame") -> "DataFrame":
            until.callback(rows.persist().unpersist)
            return rows

        blocks = kept(gate.blocks(read, small, exhaustive=exhaustive))
        doubted = blocks.where("not clean").limit(1).collect()
        book = kept(ledger(read, blocks)) if doubted else None
        lanes = early.lanes.result()
        tangled = None if lanes is None else small.table(map(tuple, lanes), findings.PRINTS)
        yield _Study(read, small, asked, blocks, book, tangled, samples(read, small, blocks, book))


class _Early:
    """The jobs that need nothing but what was recorded: they are run while the gate is."""

    def __init__(self, read: Tables, small: Dims, pool: ThreadPoolExecutor, *, exhaustive: bool) -> None:
        self._read, self._dims = read, small
        self.lanes = pool.submit(lambda: None if exhaustive else findings.in_doubt(read, small).collect())
        self.jobs = {
            "host": pool.submit(_rows, lambda: flows.host(read.metrics, small)),
            "crossed": pool.submit(_rows, self._crossed),
        }
        self.lags = pool.submit(measure_lags, read, small)

    def _crossed(self) -> "DataFrame | None":
        rows = [
            (run, one.fault, one.proxies, one.from_us, one.to_us)
            for run, evidence in enumerate(self._dims.evidences)
            for one in passages(evidence)
        ]
        return flows.crossed(self._read.metrics, self._dims.table(rows, flows.PASSAGES)) if rows else None


@dataclass(frozen=True)
class _Study:
    """The tables of all runs, and the jobs on them.

    ``book`` is None where the gate cleared all, ``tangled`` where all sequences are looked at.
    """

    read: Tables
    dims: Dims
    asked: Sequence[Wanted]
    blocks: "DataFrame"
    book: "DataFrame | None"
    tangled: "DataFrame | None"
    samples: "DataFrame"

    @property
    def scenes(self) -> Sequence[Scene]:
        """The runs in the order of their numbers."""
        return self.dims.scenes

    @cached_property
    def calms(self) -> list[list[Calm]]:
        """What recovery is looked for, by run."""
        return [calms_of(scene, asked) for scene, asked in zip(self.scenes, self.asked, strict=True)]

    @cached_property
    def qs(self) -> list[float]:
        """Every quantile that some run needs."""
        return sorted({q for run in range(len(self.scenes)) for q in self.qs_of(run)})

    def qs_of(self, run: int) -> set[float]:
        """Those that one run needs, so that a run's facts are the same whoever is judged with it."""
        return {*TABLE_QS, *self.asked[run].qs, *(calm.q for calm in self.calms[run])}

    def facts(self, early: _Early, pool: ThreadPoolExecutor, keep: Keep | None) -> list[Facts]:
        """The facts of every run, in order."""
        apart = None if self.many else self._bins
        counted = pool.submit(lambda: self._counted(latency.silver(self.samples, self.dims, apart)))
        binned = pool.submit(lambda: self._counted(self._by_bin())) if self.many else None
        twice = Twice(self.dims, self.samples)
        waited = pool.submit(twice.waited)
        jobs = early.jobs | {"findings": pool.submit(_rows, self._findings)}
        silver = counted.result()
        read = [silver_of(rows) for rows in silver]
        seen = [one.by_window(scene) for one, scene in zip(read, self.scenes, strict=True)]
        spread = [{key: self._told(run, key, one) for key, one in some.items()} for run, some in enumerate(seen)]
        calm = pool.submit(twice.recoveries, self.calms, spread)
        jobs["slowest"] = pool.submit(_rows, lambda: self._slowest(spread))
        jobs["stretches"] = pool.submit(lambda: by_run(self._named(self._stretches()).to_pylist()))
        jobs |= {name: pool.submit(_rows, build) for name, build in self._jobs().items()}
        if keep:
            for run, rows in enumerate(silver):
                keep(run, rows)
        told = binned.result() if binned else map(of_silver, silver)
        plots = [bins(rows, bin_us(one.evidence)) for rows, one in zip(told, self.scenes, strict=True)]
        racks = [answers.rack_flows(one.rack_flows(scene)) for one, scene in zip(read, self.scenes, strict=True)]
        got = {name: job.result() for name, job in jobs.items()} | waited.result()
        return [
            replace(
                self._facts(run, spread[run], seen[run], {name: some.get(run, []) for name, some in got.items()}),
                bins=plots[run],
                racks=racks[run],
                lag=early.lags.result()[run],
                calms=calm.result()[run],
                recoveries={(one.fault, key): us for (one, key), us in calm.result()[run].items() if usual(one)},
            )
            for run in range(len(self.scenes))
        ]

    def _named(self, counted: "DataFrame") -> "pa.Table":
        return named(counted.toArrow(), self.samples, self.dims)

    def _counted(self, job: "DataFrame") -> "list[pa.Table]":
        """The rows of a histogram, by run."""
        return parted(self._named(job), "run", len(self.scenes))

    def _told(self, run: int, key: Key, seen: Histogram) -> Distribution:
        """A generator's punctuality has no bands."""
        told = seen.distribution(sorted(self.qs_of(run)))
        asked = self.asked[run]
        return told if key[0].endswith(".lateness") else answers.banded(told, seen, asked.qs, asked.confidences)

    def _jobs(self) -> "dict[str, Callable[[], DataFrame | None]]":
        """Those that are short. Each is built by the thread that runs it: that is half of the work."""
        return {
            "latencies": lambda: self._cuts(of_gaps=False),
            "cut_gaps": lambda: self._cuts(of_gaps=True),
            "produced": self._produced,
        }

    def _slowest(self, spread: Sequence[Spread]) -> "DataFrame":
        limits = [
            (run, metric.split(".")[0], client, _slow_us(seen))
            for run, one in enumerate(spread)
            for (metric, client, window), seen in one.items()
            if window == RUN and metric.endswith(".latency")
        ]
        return slow.slowest(self.samples, limits, self.dims)

    @cached_property
    def many(self) -> bool:
        """Whether it pays to count records together before they are sorted, or sent home."""
        return load_of([part for one in self.dims.evidences for part in one.parquet["outcomes"]]).long

    @property
    def _bins(self) -> "DataFrame":
        return self.dims.table([(run, bin_us(one.evidence)) for run, one in enumerate(self.scenes)], latency.BINS)

    def _by_bin(self) -> "DataFrame":
        return latency.by_bin(self.samples, self.dims, self._bins)

    def _stretches(self) -> "DataFrame":
        slot_us = recovery.GAP_SLOT_US if self.many else None
        return recovery.stretches(recovery.successes(self.samples, self.dims, slot_us))

    def _findings(self) -> "DataFrame":
        return findings.findings(self.read, self.dims, self.blocks, self.book, self.tangled)

    def _produced(self) -> "DataFrame | None":
        crossing = (crossing_of(one, step["id"]) for one in self.dims.evidences for step in one.steps)
        return flows.produced(self.samples, self.dims) if any(crossing) else None

    def _cuts(self, *, of_gaps: bool) -> "DataFrame | None":
        asked = {run: one.cuts for run, one in enumerate(self.asked)}
        rows = list(cuts.asked(asked, of_gaps=of_gaps))
        if not rows:
            return None
        told = self.dims.table(rows, cuts.ASKED), self.dims.table(cuts.slots(asked, self.scenes), cuts.PARTS)
        if of_gaps:
            return cuts.gaps(self.samples, *told)
        return latency.quantiles(cuts.latencies(self.samples, *told, self.dims), cuts.SLICE, self.qs)

    def _facts(
        self, run: int, spread: Spread, seen: Mapping[Key, Histogram], rows: Mapping[str, Sequence[Any]]
    ) -> Facts:
        scene, stood = self.scenes[run], answers.stalls(rows["stalls"])
        return Facts(
            distributions=spread,
            longest=answers.longest(rows["stretches"], scene, spread),
            findings=answers.findings(rows["findings"]),
            crossed={row["fault"]: Crossed(row["bytes"], row["n"]) for row in rows["crossed"]},
            produced={(row["window"], row["topic"], row["partition"]): row["n"] for row in rows["produced"]},
            host=next((answers.host(row) for row in rows["host"]), Host()),
            bin_us=bin_us(scene.evidence),
            stalls=stood,
            failures=answers.failures(rows["failures"]),
            cuts=sliced(self.asked[run].cuts, rows, scene, self.qs, self.qs_of(run)),
            spectra={key: one.points() for key, one in seen.items() if drawn(key, scene)},
            slowest=answers.slowest(rows["slowest"]),
            unavailable=answers.unavailable(stood, scene, spread),
            perf=answers.perf(seen, rows["stretches"], scene),
            backwards=answers.backwards(seen, scene),
        )


def _rows(build: "Callable[[], DataFrame | None]") -> Answers:
    job = build()
    return by_run(job.collect() if job is not None else [])


def _slow_us(seen: Distribution) -> int:
    """A latency that at least ten are as slow as, or slower: the highest that is known without another look."""
    known = [at_us for q, at_us in seen.at.items() if at_us is not None and seen.n * (1 - q) > slow.SLOWEST_MAX]
    return max(known, default=0)


def bin_us(evidence: Evidence) -> int:
    """A second, or as much longer as keeps a long run's plot at 600 points, and fewer where there are many clients."""
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    commits = any(client.commits_to for client in evidence.clients)
    most = BINS_OF_ALL_WITH_COMMITS_MAX if commits else BINS_OF_ALL_MAX
    bins = min(BINS_MAX, most // max(1, len(evidence.clients)))
    return max(1, -(-end_us // (bins * BIN_US))) * BIN_US
