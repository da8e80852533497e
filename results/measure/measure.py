"""Spark jobs that measure runs; the same jobs measure one run or a hundred runs together.

The first Spark jobs compare fingerprints of blocks of 2,048 records (``tables/gate.py``), and list the records of
unequal blocks. The latency histogram (*silver*) is counted once, and every latency figure is derived from the
histogram. The results of Spark jobs are small (distinct latencies, bins of a plot, seconds), never records.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property, reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from aftershock.results.checks.explanations.causes import explanations
from aftershock.results.checks.explanations.model import Explanation
from aftershock.results.checks.findings.deliveries import deliveries, of_lanes, redelivered
from aftershock.results.checks.findings.groups import commits, offsets, replicas
from aftershock.results.checks.findings.pipes import pipes
from aftershock.results.checks.findings.records import of_blocks, of_ledger, places, shared, summed
from aftershock.results.checks.findings.sequences import in_doubt, sequences
from aftershock.results.checks.findings.transactions import of_transactions
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.phases import RUN, overlap_us
from aftershock.results.evidence.transactions import STABLE_OFFSETS, written_in_transactions
from aftershock.results.measure import answers, cuts, gaps, latency, write_cycles
from aftershock.results.measure import samples as sampled
from aftershock.results.measure.answers import Answers, Distributions, Key, by_run, criteria_of
from aftershock.results.measure.cuts import sliced
from aftershock.results.measure.exposure import crossing_of, passages
from aftershock.results.measure.lag import FollowUpJobs, Lags, measure_lags
from aftershock.results.measure.latency import Histogram, bins, drawn, of_silver, silver_of
from aftershock.results.measure.load import measure_load
from aftershock.results.measure.rebalances import ownerless_waits, reads, rebalances, waits_of
from aftershock.results.measure.recovery import recoveries
from aftershock.results.measure.samples import samples as samples_of
from aftershock.results.measure.samples import transactions, without
from aftershock.results.measure.stable_offsets import lag_of_client, sampled_offsets, stable_offsets
from aftershock.results.model.facts import (
    MAX,
    Bin,
    Distribution,
    Facts,
    Host,
    Lag,
    MeasurementRequest,
    ProxyTraffic,
    RackFlow,
    Recovered,
    RecoveryCriterion,
    SentRows,
)
from aftershock.results.spark.conf import Load, load_of
from aftershock.results.spark.tables import Tables, files_removed, store, stores_tables, tables
from aftershock.results.tables.dims import Dims, LeftOut, Scene, dims, parted
from aftershock.results.tables.gate import open_gate
from aftershock.results.tables.names import with_names
from aftershock.results.tables.settled import settle

TABLE_QS = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, MAX)
BIN_US = 1_000_000
BINS_MAX, BINS_OF_ALL_MAX, BINS_OF_ALL_WITH_COMMITS_MAX = 600, 2400, 900  # of a plot; commits add a third plot
JOBS_AT_ONCE = 2  # half of each job is planning, on one core

Keep = Callable[[int, pa.Table], None]
"""Callback that receives the number of a run and its silver table, and stores the table."""


def measure(
    spark: SparkSession,
    runs: Sequence[Evidence],
    requests: Mapping[str, MeasurementRequest],
    *,
    exhaustive: bool = False,
    keep: Keep | None = None,
    left_out: Mapping[str, LeftOut] | None = None,
) -> dict[str, Facts]:
    """Return every measurement that the checks and the report need, by run id.

    If ``exhaustive``, every record is examined individually. In a second measurement, ``left_out`` holds the suspect
    times to leave out, by run id.
    """
    in_order = [requests.get(str(run.run["run_id"]), MeasurementRequest()) for run in runs]
    causes, stores = [explanations(evidence) for evidence in runs], stores_tables(spark)
    with files_removed(spark), ThreadPoolExecutor(JOBS_AT_ONCE) as pool, ExitStack() as resources:
        recorded, small = tables(spark, runs), dims(spark, runs, left_out)

        def persist(rows: DataFrame) -> DataFrame:
            if stores:
                return store(rows)
            resources.callback(rows.persist().unpersist)
            return rows

        def stored(rows: DataFrame) -> DataFrame:
            """Store a table that Spark computes as fast as it reads it, unless the evidence is large."""
            return persist(rows) if stores else rows

        def proxy_bytes() -> DataFrame | None:
            rows = [(run, *astuple(passage)) for run, evidence in enumerate(runs) for passage in passages(evidence)]
            return sampled.proxy_bytes(read.metrics, small.table(rows, sampled.PASSAGES)) if rows else None

        def explained(rows: DataFrame | None) -> DataFrame | None:
            return None if rows is None else summed(rows, spark, causes)

        settled = settle(recorded, runs, persist)
        read = settled.tables
        # jobs that need only recorded rows run at the same time as the gate
        delivered = stored(deliveries(read, small))
        lanes = None if exhaustive else pool.submit(lambda: in_doubt(read, small, delivered).collect())
        early = {
            "host": pool.submit(_rows, lambda: sampled.host(read.metrics, small)),
            "crossed": pool.submit(_rows, proxy_bytes),
        }
        sampling = any(evidence.run.get(STABLE_OFFSETS) for evidence in runs)
        stable = pool.submit(lambda: sampled_offsets(read.metrics).toArrow()) if sampling else None
        early["groups"] = pool.submit(_rows, lambda: explained(findings_of_groups(read, small, delivered, settled.log)))
        early["pipes"] = pool.submit(_rows, lambda: explained(pipes(read, small, persist, settled.fates)))
        if (fates := settled.fates) is not None:
            early["transactions"] = pool.submit(
                _rows, lambda: explained(of_transactions(recorded, fates, small, persist))
            )
        transacting = settled.fates is not None and left_out is None  # a second measurement has the same log
        cycles = pool.submit(lambda: write_cycles.of_runs(read, small)) if transacting else None
        lags = pool.submit(measure_lags, read, small, [request.members for request in in_order])
        gate = open_gate(read, small, persist, exhaustive=exhaustive)
        screened = None if lanes is None else [row.asDict() for row in lanes.result()]
        early["orders"] = pool.submit(_rows, lambda: explained(sequences(read, small, delivered, screened)))
        sent = pool.submit(measure_load, read, small, gate.sent)
        all_samples = samples_of(_as_sent(recorded, read), small, gate.blocks, gate.ledger)
        if (piped := sampled.of_pipes(recorded, small)) is not None:
            all_samples = all_samples.unionByName(persist(piped))  # slower to compute than to read
        all_samples = stored(all_samples)
        samples = stored(without(all_samples, small)) if left_out else all_samples
        early["records"] = pool.submit(
            _rows, lambda: explained(findings_of_records(read, small, delivered, gate.blocks, gate.ledger))
        )
        endings = None if settled.fates is None else transactions(recorded)
        if endings is not None and left_out:
            endings = without(endings, small)
        study = _Study(read, small, in_order, delivered, causes, all_samples, samples, endings, pool)
        facts = study.facts(early, lags, sent, keep)
        if stable is not None:
            offsets = parted(stable.result(), "run", len(runs))
            facts = [_with_stable(of_run, *rest) for of_run, *rest in zip(facts, small.scenes, offsets, strict=True)]
        if cycles is not None:
            facts = [replace(of_run, write_cycles=own) for of_run, own in zip(facts, cycles.result(), strict=True)]
    return {str(run.run["run_id"]): of_run for run, of_run in zip(runs, facts, strict=True)}


def _as_sent(recorded: Tables, settled: Tables) -> Tables:
    """Return what clients sent, committed or not, and deliveries without those of uncommitted records."""
    if recorded is settled:
        return recorded
    delivered = F.col("op") == "consume"
    outcomes = recorded.outcomes.where(~delivered).unionByName(settled.outcomes.where(delivered))
    return replace(recorded, outcomes=outcomes)


def _with_stable(facts: Facts, scene: Scene, rows: pa.Table) -> Facts:
    """Add the last stable offsets of a run, and their lag without suspect times."""
    stable = stable_offsets(rows)
    clients = [client for client in scene.evidence.clients if written_in_transactions(scene.evidence, client)]
    lag = {
        client.key: _trusted(lag_of_client(scene.evidence, client, stable), scene, client.key, "produce")
        for client in clients
    }
    return replace(facts, stable=stable, stable_lag=lag)


def findings_of_records(
    read: Tables, dims: Dims, delivered: DataFrame, blocks: DataFrame, ledger: DataFrame | None
) -> DataFrame:
    """Return the findings about records as in ``summed``; they need the gate.

    Further findings are only reported: ``in_doubt`` (records in doubt; broken if in the log), ``redelivered``
    (delivered repeatedly), and of the lost records ``delivered`` (not in the log, but delivered to a reader). Not lost
    but ``unreached`` are records beyond the position at which a reader gave up (event ``drain_incomplete``).
    """
    clean = of_blocks(blocks, dims)
    if ledger is None:
        return clean.unionByName(shared(read.log))
    tables = (of_ledger(ledger, read.log, dims), places(read, delivered, ledger, dims), redelivered(ledger, dims))
    return reduce(DataFrame.unionByName, tables, clean)


def findings_of_groups(read: Tables, dims: Dims, delivered: DataFrame, log: DataFrame) -> DataFrame | None:
    """Return the findings about owners, commits and replicas as in ``summed``; None if the runs have none of them.

    ``log`` has everything that replicas have, also markers and records of aborted transactions.
    """
    with_replicas = any(evidence.parquet["replicas"] for evidence in dims.evidences)
    tables = [
        of_lanes(delivered, dims),
        commits(read.log, delivered, dims),
        offsets(read, dims),
        replicas(read.replicas, log, dims) if with_replicas else None,
    ]
    present = [rows for rows in tables if rows is not None]
    return reduce(DataFrame.unionByName, present) if present else None


@dataclass(frozen=True)
class _Results:
    """Results of all jobs, each in the order of the runs; ``rows`` are by job and run."""

    histograms: Sequence[Mapping[Key, Histogram]]
    distributions: Sequence[Distributions]
    bins: Sequence[tuple[Bin, ...]]
    racks: Sequence[tuple[RackFlow, ...]]
    rows: Mapping[str, Answers]
    calms: Sequence[Mapping[tuple[RecoveryCriterion, str], Recovered]]
    lags: Sequence[Lags]
    sent: Sequence[tuple[SentRows, ...]]


@dataclass(frozen=True)
class _Study:
    """Tables of all runs and the Spark jobs on these tables; ``causes`` are the explanations of each run.

    Latencies are measured from ``samples``, successes and waits from ``recorded``; they differ in a second measurement.
    ``endings`` are the samples of transactions, None without any.
    """

    read: Tables
    dims: Dims
    requests: Sequence[MeasurementRequest]
    delivered: DataFrame
    causes: Sequence[Sequence[Explanation]]
    recorded: DataFrame
    samples: DataFrame
    endings: DataFrame | None
    pool: ThreadPoolExecutor

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
        """Return the quantiles to compute for one run, so that its facts do not depend on other runs judged with it."""
        return {*TABLE_QS, *self.requests[run].qs, *(criterion.q for criterion in self.criteria[run])}

    @cached_property
    def load(self) -> Load:
        return load_of([part for run in self.dims.evidences for part in run.parquet["outcomes"]])

    @property
    def many(self) -> bool:
        """True if there are too many records to collect their latencies; Spark then first counts them in groups."""
        return self.load.long

    def facts(
        self,
        early: dict[str, Future[Answers]],
        lags: Future[list[Lags]],
        sent: Future[list[tuple[SentRows, ...]]],
        keep: Keep | None,
    ) -> list[Facts]:
        pool = self.pool
        widths = self.dims.table([(run, bin_us(scene.evidence)) for run, scene in enumerate(self.scenes)], latency.BINS)
        counted = pool.submit(
            lambda: self._collected(
                latency.silver(self.samples, self.dims, None if self.many else widths, self.endings)
            )
        )
        binned = None
        if self.many:
            binned = pool.submit(lambda: self._collected(latency.by_bin(self.samples, self.dims, widths)))
        own = None if self.endings is None else self.read.transactions
        stalled = pool.submit(FollowUpJobs(self.dims, self.recorded, self.read.outcomes, own).stalls_and_failures)
        jobs = dict(early)
        silver = counted.result()
        histograms_of = [silver_of(rows) for rows in silver]
        histograms = [rows.by_window(scene) for rows, scene in zip(histograms_of, self.scenes, strict=True)]
        spread = [
            {key: self._distribution(run, key, histogram) for key, histogram in of_run.items()}
            for run, of_run in enumerate(histograms)
        ]
        recovered = pool.submit(recoveries, self.samples, self.dims, self.criteria, spread)
        jobs["slowest"] = pool.submit(_rows, lambda: self._slowest(spread))
        # slots of a millisecond are counted only if they have more than one record on average
        load_us = sum(scene.end_us for scene in self.scenes)
        dense = self.many and self.load.rows * gaps.GAP_SLOT_US > load_us
        gap_slot_us = gaps.GAP_SLOT_US if dense else None
        jobs["stretches"] = pool.submit(
            lambda: by_run(
                self._named(gaps.success_stretches(gaps.successes(self.recorded, self.dims, gap_slot_us))).to_pylist()
            )
        )
        # the thread that runs a job also builds it: building is half of the work
        jobs["reads"] = pool.submit(_rows, lambda: reads(self.read, self.dims, self.delivered))
        jobs["latencies"] = pool.submit(_rows, lambda: self._cuts(of_gaps=False))
        jobs["cut_gaps"] = pool.submit(_rows, lambda: self._cuts(of_gaps=True))
        if any(crossing_of(run, step["id"]) for run in self.dims.evidences for step in run.steps):
            jobs["produced"] = pool.submit(_rows, lambda: sampled.produced(self.samples, self.dims))
        if keep:
            for run, rows in enumerate(silver):
                keep(run, rows)
        plotted = binned.result() if binned else map(of_silver, silver)
        results = _Results(
            histograms,
            spread,
            # while the jobs run
            bins=[bins(rows, bin_us(scene.evidence)) for rows, scene in zip(plotted, self.scenes, strict=True)],
            racks=[rows.rack_flows(scene) for rows, scene in zip(histograms_of, self.scenes, strict=True)],
            rows={name: job.result() for name, job in jobs.items()} | stalled.result(),
            calms=recovered.result(),
            lags=lags.result(),
            sent=sent.result(),
        )
        return [self._facts_of(run, results) for run in range(len(self.scenes))]

    def _facts_of(self, run: int, results: _Results) -> Facts:
        rows = {name: of_runs.get(run, []) for name, of_runs in results.rows.items()}
        scene, request = self.scenes[run], self.requests[run]
        distributions, histograms, lags = results.distributions[run], results.histograms[run], results.lags[run]
        stalls, calms = answers.stalls(rows["stalls"]), results.calms[run]
        stalled = answers.stalled_in(stalls, scene)
        group_rows = [
            (client, [row for row in rows["reads"] if row["client"] == client.key])
            for client in scene.readers
            if client.members > 1
        ]
        return Facts(
            distributions=distributions,
            longest=answers.longest(rows["stretches"], stalled, scene, distributions),
            findings=answers.findings(
                [
                    *(row for name in ("records", "orders", "groups", "pipes") for row in rows[name]),
                    *rows.get("transactions", ()),
                ],
                self.causes[run],
            ),
            crossed={row["fault"]: ProxyTraffic(row["bytes"], row["n"]) for row in rows["crossed"]},
            produced={(row["window"], row["topic"], row["partition"]): row["n"] for row in rows.get("produced", ())},
            host=next((Host(*[row[field.name] for field in fields(Host)]) for row in rows["host"]), Host()),
            bin_us=bin_us(scene.evidence),
            stalls=stalls,
            failures=answers.failures(rows["failures"]),
            given_up=answers.given_up(rows["given_up"]),
            cuts=sliced(request.cuts, rows, scene, self.qs, self.qs_of(run)),
            spectra={key: histogram.points() for key, histogram in histograms.items() if drawn(key, scene)},
            slowest=answers.slowest(rows["slowest"]),
            unavailable=answers.unavailable(stalled, distributions),
            perf=answers.perf(histograms, rows["stretches"], scene),
            backwards=answers.backwards(histograms, scene),
            load=results.sent[run],
            bins=results.bins[run],
            racks=results.racks[run],
            lag={key: _trusted(seconds, scene, key) for key, seconds in lags.clients.items()},
            member_lag={
                (key, member): _trusted(seconds, scene, key) for (key, member), seconds in lags.members.items()
            },
            left_out=scene.left_out,
            rebalances={group.key: rebalances(scene.evidence, group, of_group) for group, of_group in group_rows},
            unowned={
                group.key: ownerless_waits(scene.evidence, group, waits_of(group, of_group, stalls))
                for group, of_group in group_rows
            },
            calms=calms,
            recovery_definition=scene.evidence.recovery_definition,
            recoveries={
                (criterion.fault, client): value for (criterion, client), value in calms.items() if criterion.is_default
            },
        )

    def _named(self, counted: DataFrame) -> pa.Table:
        return with_names(counted.toArrow(), self.samples, self.dims)

    def _collected(self, job: DataFrame) -> list[pa.Table]:
        return parted(self._named(job), "run", len(self.scenes))

    def _distribution(self, run: int, key: Key, histogram: Histogram) -> Distribution:
        """Return a latency distribution, with confidence bands unless it is the lateness of the load generator."""
        distribution, request = histogram.distribution(sorted(self.qs_of(run))), self.requests[run]
        if key[0].endswith(".lateness"):
            return distribution
        return answers.banded(distribution, histogram, request.qs, request.confidences)

    def _slowest(self, spread: Sequence[Distributions]) -> DataFrame:
        limits = []
        for run, of_run in enumerate(spread):
            for (metric, client, window), distribution in of_run.items():
                if window == RUN and metric.endswith(".latency"):
                    # the highest known quantile that at least ten records reach
                    reached = [
                        at_us
                        for q, at_us in distribution.at.items()
                        if at_us is not None and distribution.n * (1 - q) > sampled.SLOWEST_MAX
                    ]
                    limits.append((run, metric.split(".")[0], client, max(reached, default=0)))
        return sampled.slowest(self.samples, limits, self.dims)

    def _cuts(self, *, of_gaps: bool) -> DataFrame | None:
        requested = [
            (run, number, cut)
            for run, request in enumerate(self.requests)
            for number, cut in enumerate(request.cuts)
            if cut.metric.endswith(".gap") == of_gaps
        ]
        if not requested:
            return None
        of_cuts, parts = cuts.tables_of(requested, self.dims)
        if of_gaps:
            return cuts.gaps(self.recorded, of_cuts, parts)
        return latency.quantiles(cuts.latencies(self.samples, of_cuts, parts, self.dims), cuts.SLICE, self.qs)


def _trusted(seconds: Sequence[Lag], scene: Scene, client: str, side: str = "consume") -> tuple[Lag, ...]:
    """Return the seconds whose end is not in a suspect time of the client's ``side``, by default its consumer."""
    spans = scene.left_out.get((side, client), ())
    return tuple(lag for lag in seconds if not overlap_us(spans, lag.at_us, lag.at_us + 1))


def _rows(build: Callable[[], DataFrame | None]) -> Answers:
    job = build()
    return by_run(job.collect() if job is not None else [])


def bin_us(evidence: Evidence) -> int:
    """Return the width of a latency plot's bins, which is a second, or more if the run is long or has many clients."""
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    commits = any(client.commits_to for client in evidence.clients)
    most = BINS_OF_ALL_WITH_COMMITS_MAX if commits else BINS_OF_ALL_MAX
    bins = min(BINS_MAX, most // max(1, len(evidence.clients)))
    return max(1, -(-end_us // (bins * BIN_US))) * BIN_US
