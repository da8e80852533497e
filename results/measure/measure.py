"""The Spark jobs of a judgement: few, grouped, and the same for one run or a hundred.

Order of the jobs: the gate first (``gate.py``), then the ledger of the records that the gate could not clear, if there
are any. The latency histogram (*silver*) is counted once, and every latency figure is read from it. Jobs that need only
recorded rows run at the same time as the gate. Results are small (distinct latencies, bins of a plot, seconds), never
records. Rows are collected here, in ``lag.py`` and in ``names.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from aftershock.results.checks.findings import findings
from aftershock.results.checks.witness import crossing_of, passages
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN
from aftershock.results.measure import answers, cuts, latency, recovery
from aftershock.results.measure import samples as sampled
from aftershock.results.measure.answers import Answers, Distributions, Key, by_run, criteria_of, is_default
from aftershock.results.measure.cuts import sliced
from aftershock.results.measure.facts import (
    MAX,
    Distribution,
    Facts,
    Host,
    MeasurementRequest,
    ProxyTraffic,
    RecoveryCriterion,
)
from aftershock.results.measure.gate import Gate, open_gate
from aftershock.results.measure.lag import FollowUpJobs, measure_lags
from aftershock.results.measure.latency import Histogram, bins, drawn, of_silver, silver_of
from aftershock.results.measure.names import with_names
from aftershock.results.measure.samples import samples as samples_of
from aftershock.results.measure.tables import Dims, Scene, dims, parted
from aftershock.results.spark.conf import load_of
from aftershock.results.spark.tables import Tables, tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


TABLE_QS = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, MAX)
BIN_US = 1_000_000
BINS_MAX, BINS_OF_ALL_MAX, BINS_OF_ALL_WITH_COMMITS_MAX = 600, 2400, 900  # of a plot; commits add a third plot
JOBS_AT_ONCE = 2  # half of each job is planning, on one core

Keep = Callable[[int, "pa.Table"], None]
"""Callback for the silver table of a run: called with the run's number and the table."""


def measure(
    spark: "SparkSession",
    runs: Sequence[Evidence],
    requests: Mapping[str, MeasurementRequest],
    *,
    exhaustive: bool = False,
    keep: Keep | None = None,
) -> dict[str, Facts]:
    """Return every measurement that the checks and the report need, by run id.

    ``requests`` maps each run id to the measurements that its SLOs need. ``exhaustive`` switches the gate off, so that
    every record is examined.
    """
    in_order = [requests.get(str(run.run["run_id"]), MeasurementRequest()) for run in runs]
    read, small = tables(spark, runs), dims(spark, runs)
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool, ExitStack() as resources:

        def persist(rows: "DataFrame") -> "DataFrame":
            resources.callback(rows.persist().unpersist)
            return rows

        early = _EarlyJobs(read, small, pool, exhaustive=exhaustive)
        gate = open_gate(read, small, persist, exhaustive=exhaustive)
        lanes = early.lanes.result()
        suspects = None if lanes is None else small.table(map(tuple, lanes), findings.PRINTS)
        samples = samples_of(read, small, gate.blocks, gate.ledger)
        facts = _Study(read, small, in_order, gate, suspects, samples).facts(early, pool, keep)
    return {str(run.run["run_id"]): of_run for run, of_run in zip(runs, facts, strict=True)}


class _EarlyJobs:
    """Jobs that need only recorded rows, and therefore run at the same time as the gate."""

    def __init__(self, read: Tables, small: Dims, pool: ThreadPoolExecutor, *, exhaustive: bool) -> None:
        self._read, self._dims = read, small
        self.lanes = pool.submit(lambda: None if exhaustive else findings.in_doubt(read, small).collect())
        self.jobs = {
            "host": pool.submit(_rows, lambda: sampled.host(read.metrics, small)),
            "crossed": pool.submit(_rows, self._proxy_bytes),
        }
        self.lags = pool.submit(measure_lags, read, small)

    def _proxy_bytes(self) -> "DataFrame | None":
        rows = [
            (run, passage.fault, passage.proxies, passage.from_us, passage.to_us)
            for run, evidence in enumerate(self._dims.evidences)
            for passage in passages(evidence)
        ]
        return sampled.proxy_bytes(self._read.metrics, self._dims.table(rows, sampled.PASSAGES)) if rows else None


@dataclass(frozen=True)
class _Study:
    """The tables of all runs and the jobs on them.

    ``suspects`` are the sequences to examine exactly, None if all are examined.
    """

    read: Tables
    dims: Dims
    requests: Sequence[MeasurementRequest]
    gate: Gate
    suspects: "DataFrame | None"
    samples: "DataFrame"

    @property
    def scenes(self) -> Sequence[Scene]:
        return self.dims.scenes

    @cached_property
    def criteria(self) -> list[list[RecoveryCriterion]]:
        return [criteria_of(scene, request) for scene, request in zip(self.scenes, self.requests, strict=True)]

    @cached_property
    def qs(self) -> list[float]:
        return sorted({q for run in range(len(self.scenes)) for q in self.qs_of(run)})

    def qs_of(self, run: int) -> set[float]:
        """Return the quantiles of one run, so that its facts do not depend on the runs that are judged with it."""
        return {*TABLE_QS, *self.requests[run].qs, *(criterion.q for criterion in self.criteria[run])}

    @cached_property
    def many(self) -> bool:
        """True if there are so many records that they are counted before they are sorted or collected."""
        return load_of([part for run in self.dims.evidences for part in run.parquet["outcomes"]]).long

    def facts(self, early: _EarlyJobs, pool: ThreadPoolExecutor, keep: Keep | None) -> list[Facts]:
        """Run the jobs and return the facts of every run, in order."""
        widths = self.dims.table([(run, bin_us(scene.evidence)) for run, scene in enumerate(self.scenes)], latency.BINS)
        counted = pool.submit(
            lambda: self._collected(latency.silver(self.samples, self.dims, None if self.many else widths))
        )
        binned = None
        if self.many:
            binned = pool.submit(lambda: self._collected(latency.by_bin(self.samples, self.dims, widths)))
        follow_up = FollowUpJobs(self.dims, self.samples)
        stalled = pool.submit(follow_up.stalls_and_failures)
        gate = self.gate
        jobs = early.jobs | {
            "findings": pool.submit(
                _rows, lambda: findings.findings(self.read, self.dims, gate.blocks, gate.ledger, self.suspects)
            )
        }
        silver = counted.result()
        histograms_of = [silver_of(rows) for rows in silver]
        histograms = [rows.by_window(scene) for rows, scene in zip(histograms_of, self.scenes, strict=True)]
        spread = [
            {key: self._distribution(run, key, histogram) for key, histogram in of_run.items()}
            for run, of_run in enumerate(histograms)
        ]
        recovered = pool.submit(follow_up.recoveries, self.criteria, spread)
        jobs["slowest"] = pool.submit(_rows, lambda: self._slowest(spread))
        gap_slot_us = recovery.GAP_SLOT_US if self.many else None
        jobs["stretches"] = pool.submit(
            lambda: by_run(
                self._named(
                    recovery.success_stretches(recovery.successes(self.samples, self.dims, gap_slot_us))
                ).to_pylist()
            )
        )
        # Each job is built by the thread that runs it: building is half of the work.
        jobs["latencies"] = pool.submit(_rows, lambda: self._cuts(of_gaps=False))
        jobs["cut_gaps"] = pool.submit(_rows, lambda: self._cuts(of_gaps=True))
        if any(crossing_of(run, step["id"]) for run in self.dims.evidences for step in run.steps):
            jobs["produced"] = pool.submit(_rows, lambda: sampled.produced(self.samples, self.dims))
        if keep:
            for run, rows in enumerate(silver):
                keep(run, rows)
        plotted = binned.result() if binned else map(of_silver, silver)
        plots = [bins(rows, bin_us(scene.evidence)) for rows, scene in zip(plotted, self.scenes, strict=True)]
        racks = [
            answers.rack_flows(rows.rack_flows(scene)) for rows, scene in zip(histograms_of, self.scenes, strict=True)
        ]
        results = {name: job.result() for name, job in jobs.items()} | stalled.result()
        facts = []
        for run in range(len(self.scenes)):
            rows = {name: rows_by_run.get(run, []) for name, rows_by_run in results.items()}
            scene, calms, stalls = self.scenes[run], recovered.result()[run], answers.stalls(rows["stalls"])
            facts.append(
                Facts(
                    distributions=spread[run],
                    longest=answers.longest(rows["stretches"], scene, spread[run]),
                    findings=answers.findings(rows["findings"]),
                    crossed={row["fault"]: ProxyTraffic(row["bytes"], row["n"]) for row in rows["crossed"]},
                    produced={
                        (row["window"], row["topic"], row["partition"]): row["n"] for row in rows.get("produced", ())
                    },
                    host=next((answers.host(row) for row in rows["host"]), Host()),
                    bin_us=bin_us(scene.evidence),
                    stalls=stalls,
                    failures=answers.failures(rows["failures"]),
                    cuts=sliced(self.requests[run].cuts, rows, scene, self.qs, self.qs_of(run)),
                    spectra={
                        key: histogram.points() for key, histogram in histograms[run].items() if drawn(key, scene)
                    },
                    slowest=answers.slowest(rows["slowest"]),
                    unavailable=answers.unavailable(stalls, scene, spread[run]),
                    perf=answers.perf(histograms[run], rows["stretches"], scene),
                    backwards=answers.backwards(histograms[run], scene),
                    bins=plots[run],
                    racks=racks[run],
                    lag=early.lags.result()[run],
                    calms=calms,
                    recoveries={
                        (criterion.fault, client): value
                        for (criterion, client), value in calms.items()
                        if is_default(criterion)
                    },
                )
            )
        return facts

    def _named(self, counted: "DataFrame") -> "pa.Table":
        return with_names(counted.toArrow(), self.samples, self.dims)

    def _collected(self, job: "DataFrame") -> "list[pa.Table]":
        """Return the rows of a histogram by run."""
        return parted(self._named(job), "run", len(self.scenes))

    def _distribution(self, run: int, key: Key, histogram: Histogram) -> Distribution:
        """Return the distribution with its bands; the lateness of a generator has no bands."""
        distribution = histogram.distribution(sorted(self.qs_of(run)))
        request = self.requests[run]
        if key[0].endswith(".lateness"):
            return distribution
        return answers.banded(distribution, histogram, request.qs, request.confidences)

    def _slowest(self, spread: Sequence[Distributions]) -> "DataFrame":
        limits = []
        for run, of_run in enumerate(spread):
            for (metric, client, window), seen in of_run.items():
                if window == RUN and metric.endswith(".latency"):
                    # the highest known latency that at least ten records reach: no other query is needed for it
                    reached = [
                        at_us
                        for q, at_us in seen.at.items()
                        if at_us is not None and seen.n * (1 - q) > sampled.SLOWEST_MAX
                    ]
                    limits.append((run, metric.split(".")[0], client, max(reached, default=0)))
        return sampled.slowest(self.samples, limits, self.dims)

    def _cuts(self, *, of_gaps: bool) -> "DataFrame | None":
        requested = {run: request.cuts for run, request in enumerate(self.requests)}
        rows = list(cuts.cut_rows(requested, of_gaps=of_gaps))
        if not rows:
            return None
        of_cuts = self.dims.table(rows, cuts.CUTS)
        parts = self.dims.table(cuts.part_rows(requested, self.scenes), cuts.PARTS)
        if of_gaps:
            return cuts.gaps(self.samples, of_cuts, parts)
        return latency.quantiles(cuts.latencies(self.samples, of_cuts, parts, self.dims), cuts.SLICE, self.qs)


def _rows(build: "Callable[[], DataFrame | None]") -> Answers:
    job = build()
    return by_run(job.collect() if job is not None else [])


def bin_us(evidence: Evidence) -> int:
    """Return the width of a plot's bins: a second, or longer for long runs and many clients, to bound their number."""
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    commits = any(client.commits_to for client in evidence.clients)
    most = BINS_OF_ALL_WITH_COMMITS_MAX if commits else BINS_OF_ALL_MAX
    bins = min(BINS_MAX, most // max(1, len(evidence.clients)))
    return max(1, -(-end_us // (bins * BIN_US))) * BIN_US
