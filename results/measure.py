"""Runs the Spark jobs of a verdict, few and grouped, and brings their answers home. The only place that collects.

Rules: the records are shuffled once, into the ledger, which everything else is read off; what comes back is small
(clients x windows x metrics, or bins of the plot), never records.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aftershock.results import flows, integrity, latency, recovery
from aftershock.results.evidence import Client, Evidence
from aftershock.results.exposure import crossing_of, passages
from aftershock.results.facts import (
    MAX,
    Bin,
    Crossed,
    Distribution,
    Facts,
    Failed,
    Finding,
    Host,
    Longest,
    Recovered,
    Stall,
)
from aftershock.results.held import FROZEN, KILLED, held
from aftershock.results.ledger import ledger
from aftershock.results.obligations import stalls
from aftershock.results.phases import RUN, Windows, windows_of, with_windows
from aftershock.results.slo import Recovery
from aftershock.results.tables import Tables, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

TABLE_QS = (0.5, 0.9, 0.95, 0.99, 0.999, MAX)
YARDSTICK_Q = 0.95
YARDSTICK_N = Recovery("", None, (), "<", 1, "").needs()
BIN_US = 1_000_000
STALL_US = 1_000_000  # shorter silences are nobody's obligation, and there are many
BINS_MAX, BINS_OF_ALL_MAX, BINS_OF_ALL_WITH_COMMITS_MAX = 600, 2400, 900  # of a plot; commits add a third one
_BY_WINDOW = ("metric", "client", "window")
_BY_BIN = ("metric", "client", "rack", "bin")


def measure(spark: "SparkSession", evidence: Evidence, qs: Sequence[float]) -> Facts:
    """Every measurement that the checks and the report need; ``qs`` are the quantiles that SLOs ask for."""
    windows, read = windows_of(evidence.phases), tables(spark, evidence)
    readers = [client for client in evidence.clients if client.consumes_from]
    with _kept(ledger(read.outcomes, read.log, readers)) as book:
        samples = _samples(book, read, evidence, readers, _judged_from_us(windows))
        # the first job fills the ledger; the rest only read it, and half of each is planning, on one core
        distributions = _distributions(samples, windows, sorted({*TABLE_QS, *qs}))
        bin_us = _bin_us(evidence)
        with ThreadPoolExecutor(max_workers=2) as pool:
            findings = pool.submit(_findings, book, read, evidence, readers, _judged_from_us(windows))
            successes = _successes(book, read, evidence, readers)
            longest = pool.submit(_longest, successes, windows, distributions)
            recoveries = pool.submit(_recoveries, book, evidence, windows, distributions)
            crossed = pool.submit(_crossed, read, evidence)
            produced = pool.submit(_produced, read, evidence, windows)
            bins = pool.submit(_bins, samples, bin_us)
            host = pool.submit(_host, read, windows)
            waits = pool.submit(_waits, book, read, evidence, readers, windows)
            stalled, failed = waits.result()
        return Facts(
            distributions=distributions,
            longest=longest.result(),
            recoveries=recoveries.result(),
            findings=findings.result(),
            crossed=crossed.result(),
            produced=produced.result(),
            host=host.result(),
            bins=bins.result(),
            bin_us=bin_us,
            stalls=stalled,
            failures=failed,
        )


@contextmanager
def _kept(rows: "DataFrame") -> "Iterator[DataFrame]":
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _judged_from_us(windows: Windows) -> int:
    """When warm-up ended; without phases nothing is judged by time, and any moment does."""
    return windows[RUN][0][0] if windows.get(RUN) else 0


def _samples(
    book: "DataFrame", read: Tables, evidence: Evidence, readers: Sequence[Client], judged_from_us: int
) -> "DataFrame":
    """Of records and of commits. Without a client that commits the plan is spared the scan for them."""
    samples = latency.samples(book, readers, judged_from_us)
    if _commits(evidence):
        samples = samples.unionByName(latency.commit_samples(read.outcomes))
    return latency.excused(samples, held(evidence, KILLED, FROZEN))


def _successes(book: "DataFrame", read: Tables, evidence: Evidence, readers: Sequence[Client]) -> "DataFrame":
    of_records = recovery.successes(book, readers)
    return of_records.unionByName(recovery.commit_successes(read.outcomes)) if _commits(evidence) else of_records


def _commits(evidence: Evidence) -> bool:
    return any(client.commits_to for client in evidence.clients)


def _distributions(
    samples: "DataFrame", windows: Windows, qs: Sequence[float]
) -> dict[tuple[str, str, str], Distribution]:
    hist = latency.histogram(latency.by_window(with_windows(samples, "intended_us", windows)), _BY_WINDOW)
    rows = latency.quantiles(hist, _BY_WINDOW, qs).collect()
    return {(row["metric"], row["client"], row["window"]): _distribution(row, qs) for row in rows}


def _distribution(row: Any, qs: Sequence[float]) -> Distribution:
    at = {q: row[f"q{index}"] for index, q in enumerate(qs)}
    return Distribution(row["n"], row["censored"], row["slowest_us"], at)


def _bin_us(evidence: Evidence) -> int:
    """A second, or as much longer as keeps a long run's plot at 600 points, and fewer where there are many clients."""
    end_us = max((phase.end_us for phase in evidence.phases), default=0)
    most = BINS_OF_ALL_WITH_COMMITS_MAX if _commits(evidence) else BINS_OF_ALL_MAX
    bins = min(BINS_MAX, most // max(1, len(evidence.clients)))
    return max(1, -(-end_us // (bins * BIN_US))) * BIN_US


def _bins(samples: "DataFrame", bin_us: int) -> tuple[Bin, ...]:
    hist = latency.histogram(latency.by_bin(samples, bin_us), _BY_BIN)
    rows = latency.quantiles(hist, _BY_BIN, (0.5, 0.99)).collect()
    return tuple(sorted((_bin(row, bin_us) for row in rows), key=_panel_and_time))


def _panel_and_time(one: Bin) -> tuple[str, str, str, int]:
    return one.metric, one.client, one.rack or "", one.start_us


def _bin(row: Any, bin_us: int) -> Bin:
    seen = (row["n"], row["censored"], row["q0"], row["q1"], row["slowest_us"])
    return Bin(row["metric"], row["client"], row["rack"], row["bin"] * bin_us, *seen)


def _longest(
    successes: "DataFrame",
    windows: Windows,
    distributions: Mapping[tuple[str, str, str], Distribution],
) -> dict[tuple[str, str, str], Longest]:
    if not windows:
        return {}
    rows = recovery.gaps(successes, windows).collect()
    found = {(row["metric"], row["client"], row["window"]): _whole(row, windows) for row in rows}
    return _silent(distributions, windows) | found


def _silent(
    distributions: Mapping[tuple[str, str, str], Distribution], windows: Windows
) -> dict[tuple[str, str, str], Longest]:
    """The gaps that windows have in which records were due and none succeeded: as long as the window."""
    due = {(f"{metric.split('.')[0]}.gap", client, window) for metric, client, window in distributions}
    return {key: Longest(0, max(end - start for start, end in windows[key[2]])) for key in due}


def _whole(row: Any, windows: Windows) -> Longest:
    """An interval of the window without any success is a gap from its start to its end."""
    silent = [end - start for start, end in windows[row["window"]] if start not in row["starts"]]
    return Longest(row["n"], max([row["longest_us"], *silent]))


def _recoveries(
    book: "DataFrame",
    evidence: Evidence,
    windows: Windows,
    distributions: Mapping[tuple[str, str, str], Distribution],
) -> dict[tuple[str, str], Recovered]:
    begun = {step["id"]: evidence.window_of(step["id"]) for step in evidence.steps}
    injects_us = {fault: window.start_us for fault, window in begun.items() if window}
    yardsticks = {
        client.key: steady.at[YARDSTICK_Q]
        for client in evidence.clients
        if (steady := distributions.get(("produce.latency", client.key, "steady"))) and steady.n >= YARDSTICK_N
    }
    known_us = {key: p95 for key, p95 in yardsticks.items() if p95 is not None}
    if not injects_us or not known_us:
        return {}
    end_us = windows[RUN][-1][1]
    rows = recovery.recoveries(book, injects_us, known_us, end_us).collect()
    return {(row["fault"], row["client"]): _recovered(row, end_us - injects_us[row["fault"]]) for row in rows}


def _recovered(row: Any, after_us: int) -> Recovered:
    return Recovered(row["n"], row["recovered_us"], max(0, after_us - recovery.CALM_US))


def _findings(
    book: "DataFrame", read: Tables, evidence: Evidence, readers: Sequence[Client], judged_from_us: int
) -> dict[tuple[str, str, str], Finding]:
    lossy = [c.key for c in evidence.clients if not c.acks_all or evidence.excused(c.produces_to, "lost")]
    assigned = {reader.key: evidence.assigned_us(reader.arm, reader.workload) for reader in readers}
    counted = integrity.findings(book, readers, lossy, judged_from_us)
    placed = integrity.positions(read.outcomes, read.log, evidence.producers, assigned)
    found = [_finding(row) for row in counted.unionByName(placed).collect()]
    return {(one.rule, one.side, one.client): one for one in found}


def _finding(row: Any) -> Finding:
    samples = tuple((record["producer_id"], record["seq"]) for record in row["samples"] or ())
    return Finding(row["rule"], row["side"], row["client"], row["examined"], row["broken"], samples)


def _crossed(read: Tables, evidence: Evidence) -> dict[str, Crossed]:
    counted = passages(evidence)
    if not counted:
        return {}
    return {
        row["fault"]: Crossed(int(row["bytes"]), row["n"]) for row in flows.crossed(read.metrics, counted).collect()
    }


def _produced(read: Tables, evidence: Evidence, windows: Windows) -> dict[tuple[str, str, int], int]:
    if not any(crossing_of(evidence, step["id"]) for step in evidence.steps):
        return {}
    rows = flows.produced(read.outcomes, windows).where("partition is not null").collect()
    return {(row["window"], row["topic"], row["partition"]): row["n"] for row in rows}


def _waits(
    book: "DataFrame", read: Tables, evidence: Evidence, readers: Sequence[Client], windows: Windows
) -> tuple[tuple[Stall, ...], dict[tuple[str, str], tuple[Failed, ...]]]:
    """Stalls and failures. A stall is as rare as a second is short: what comes back is bounded by the run's length."""
    if RUN not in windows:
        return (), {}
    from_us, end_us = windows[RUN][0][0], windows[RUN][-1][1]
    rows = stalls.wanted(book, readers, from_us, end_us)
    rows = rows.unionByName(stalls.wanted_commits(read.outcomes, end_us)) if _commits(evidence) else rows
    found = [Stall(**row.asDict()) for row in stalls.stalls(rows, STALL_US).collect()]
    failed: dict[tuple[str, str], list[Failed]] = {}
    for row in stalls.failures(rows).collect():
        one = Failed(row["from_s"] * stalls.SECOND_US, (row["to_s"] + 1) * stalls.SECOND_US, row["n"])
        failed.setdefault((row["side"], row["client"]), []).append(one)
    return tuple(found), {key: tuple(some) for key, some in failed.items()}


def _host(read: Tables, windows: Windows) -> Host:
    if RUN not in windows:
        return Host()
    row = flows.host(read.metrics, windows[RUN][0][0], windows[RUN][-1][1]).collect()[0]
    return Host(row["ticks"], row["late_ticks"], row["cpu_busy"], row["steal"])
