"""DuckDB, a second engine with other SQL, computes the same figures of latency and integrity from the same files.

Spark's measurements are compared with a few plain queries, short enough to be checked by eye: no gate, no ledger, no
segments. Integers and nearest-rank quantiles must be exactly equal.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.evidence.phases import Interval, windows_of
from aftershock.results.measure.facts import MAX, Facts
from aftershock.results.measure.gaps import GAP_SLOT_US
from aftershock.results.spark.tables import columns
from aftershock.tests.bench.evidence_generator import generate
from aftershock.tests.unit.results.evidence_factory import Made
from aftershock.tests.unit.results.measuring import apart, measured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ruff: noqa: S608 - the queries are put together from numbers and names of our own


pytestmark = pytest.mark.spark

QS = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, MAX)


class Oracle:
    """The evidence as DuckDB tables, and the oracle's figures."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._db = duckdb.connect()
        for table in ("outcomes", "log"):
            files = [str(part) for part in evidence.parquet[table]]
            self._db.read_parquet(files).create_view(table)

    def latencies(self, metric: str, spans: Sequence[Interval]) -> dict[str, tuple[int, int, dict[float, int | None]]]:
        """Return ``n``, censored count and quantiles by client, of records intended in these spans."""
        op, what = metric.split(".")
        since = {"latency": "intended_us", "service": "sent_us"}[what]
        inside = " or ".join(f"(intended_us >= {start} and intended_us < {end})" for start, end in spans) or "false"
        ranks = ", ".join(self._at_rank(q) for q in QS)
        rows = self._db.sql(f"""
            with samples as ({self._samples(op, since)}),
                 ranked as (select client, us, row_number() over (partition by client order by us nulls last) as rank,
                                   count(*) over (partition by client) as n from samples where {inside})
            select client, max(n), count(*) filter (us is null), {ranks} from ranked group by client""").fetchall()
        return {client: (n, censored, dict(zip(QS, at, strict=True))) for client, n, censored, *at in rows}

    def _at_rank(self, q: float) -> str:
        """Compute the rank with integers, because 0.07 * 100 is more than 7 as a float."""
        parts = round(q * 10_000)
        return f"min(us) filter (rank = (n * {parts} + 9999) // 10000)"

    def _samples(self, op: str, since: str) -> str:
        client = "workload || '/' || arm"
        if op == "produce":
            took = f"case when status = 'ok' then done_us - {since} end"
            return f"select {client} as client, intended_us, {took} as us from outcomes where op = 'produce'"
        readers = " union all ".join(
            f"select '{one.key}' as reader, '{topic}' as topic"
            for one in self._evidence.clients
            for topic in one.consumes_from
        )
        return f"""
            select reader as client, sent.intended_us, first_us - sent.intended_us as us
            from outcomes as sent join ({readers}) using (topic)
            left join (select {client} as reader, producer_id, seq, min(done_us) as first_us
                       from outcomes where op = 'consume' group by all) using (reader, producer_id, seq)
            where sent.op = 'produce' and sent.status = 'ok'"""

    def counts(self) -> dict[str, int]:
        """Count records of the whole run: lost from the log or for readers, duplicated, foreign, in doubt."""
        questions = {
            "lost/produce": """select count(*) from outcomes as sent where op = 'produce' and status = 'ok'
                and not exists (select 1 from log where log.producer_id = sent.producer_id and log.seq = sent.seq)""",
            "lost/consume": f"select count(*) from ({self._samples('consume', 'intended_us')}) where us is null",
            "phantom/consume": """select count(*) from (select producer_id, seq from log union all
                select producer_id, seq from outcomes where op = 'consume') as seen where not exists
                (select 1 from outcomes as sent where op = 'produce'
                 and sent.producer_id = seen.producer_id and sent.seq = seen.seq)""",
            "in_doubt/produce": """select count(*) from outcomes as sent where op = 'produce' and status = 'in_doubt'
                and exists (select 1 from log where log.producer_id = sent.producer_id and log.seq = sent.seq)""",
            "redelivered/consume": """select count(*) from (select 1 from outcomes where op = 'consume'
                group by workload, arm, producer_id, seq having count(*) > 1)""",
        }
        return {name: self._one(text) for name, text in questions.items()}

    def longest_gap_us(self, start: int, end: int) -> dict[str, int]:
        """Return the longest time without an acknowledgement in one interval by client."""
        rows = self._db.sql(f"""
            with moments as (
                select workload || '/' || arm as client, done_us from outcomes
                where op = 'produce' and status = 'ok' and done_us >= {start} and done_us < {end}
                union all select distinct workload || '/' || arm, unnest([{start}, {end}]) from outcomes
                where op = 'produce')
            select client, max(gap) from (
                select client, done_us - lag(done_us) over (partition by client order by done_us) as gap from moments)
            group by client""").fetchall()
        return dict(rows)

    def _one(self, text: str) -> int:
        ((count,),) = self._db.sql(text).fetchall()
        return int(count)


def compare(facts: Facts, evidence: Evidence) -> None:
    oracle, windows = Oracle(evidence), windows_of(evidence.phases)
    for window, spans in windows.items():
        for metric in ("produce.latency", "produce.service", "consume.latency"):
            for client, (n, censored, at) in oracle.latencies(metric, spans).items():
                seen = facts.distribution(metric, client, window)
                assert (seen.n, seen.censored) == (n, censored), (metric, client, window)
                assert {q: seen.at[q] for q in QS} == at, (metric, client, window)
    broken = dict(counted(facts))
    assert {name: n for name, n in oracle.counts().items() if broken.get(name, 0) != n} == {}
    for window in ("steady", "fault/kill-1"):
        (span,) = windows[window]
        for client, gap_us in oracle.longest_gap_us(*span).items():
            seen_us = facts.longest["produce.gap", client, window].longest_us
            assert seen_us is not None
            assert max(seen_us, GAP_SLOT_US) == max(gap_us, GAP_SLOT_US), (
                client,
                window,
            )  # gaps are exact from the length of a slot on


def counted(facts: Facts) -> Iterator[tuple[str, int]]:
    """Return the violations found by the integrity rules, summed over all clients."""
    for rule, side in {(finding.rule, finding.side) for finding in facts.findings.values()}:
        same = (finding.broken for finding in facts.findings.values() if (finding.rule, finding.side) == (rule, side))
        yield f"{rule}/{side}", sum(same)


def test_duckdb_agrees_on_a_run_with_defects(spark: "SparkSession", made: Made, tmp_path: Path) -> None:
    """The run has lost, duplicated, foreign, failed and doubtful records."""
    spoiled = made.copy()
    del spoiled.consume[1000:1003]
    spoiled.consume += [dict(row) for row in spoiled.consume[2000:2005]]
    lost = spoiled.log.pop(3333)
    record = lost["producer_id"], lost["seq"]
    spoiled.consume = [row for row in spoiled.consume if (row["producer_id"], row["seq"]) != record]
    spoiled.consume.append(spoiled.consume[-1] | {"seq": 99_999})
    for row in spoiled.produce[40:44]:
        row.update(status="in_doubt", done_us=None)
    for row in spoiled.produce[2000:2100]:
        row.update(status="failed", error="REQUEST_TIMED_OUT")
    evidence = read(spoiled.write(tmp_path / "run"), columns())
    compare(measured(spark, evidence.home, QS), evidence)


@pytest.mark.nightly
def test_duckdb_agrees_on_ten_million_outcomes(tmp_path: Path) -> None:
    """The benchmark's generator writes four producers, a hundred partitions, stalls and doubtful records."""
    home = generate(tmp_path / "run", 10_000_000)
    compare(apart(partial(measured, qs=QS), home), read(home, columns()))
