"""Stored measurements of the clean run (``evidence_factory``), so that pure judging is tested without Spark.

``tests/data/facts/clean_run.json`` is an ``analysis.json`` with the parts that checks read.
``measure/test_stored_facts.py`` compares it with Spark's current measurements; after a deliberate change of a
measurement, replace the file with ``text_of(facts)``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aftershock.results.evidence.stored import analysis_document
from aftershock.results.model.facts import (
    Distribution,
    Explained,
    Facts,
    FailureSpan,
    Finding,
    Host,
    Lag,
    LongestGap,
    MissingRows,
    Outage,
    ProxyTraffic,
    Recovered,
    SentRows,
    Stall,
)

CLEAN_RUN = Path(__file__).parents[2] / "data" / "facts" / "clean_run.json"
UNREAD = ("bin_us", "bins", "spectra", "racks", "slowest", "perf", "cuts", "calms")
"""Parts that only reports and comparisons read."""

Row = Mapping[str, Any]


def text_of(facts: Facts) -> str:
    """Return the JSON text, with a line per row."""
    parts = []
    for name, value in analysis_document(facts).items():
        if name not in UNREAD:
            rows = ",\n".join(map(json.dumps, value)) if isinstance(value, list) else json.dumps(value)
            parts.append(f'"{name}": ' + (f"[\n{rows}\n]" if isinstance(value, list) else rows))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def clean_facts() -> Facts:
    """Return the stored measurements in the form in which the judge receives them."""
    stored = json.loads(CLEAN_RUN.read_text())
    failures: dict[tuple[str, str], tuple[FailureSpan, ...]] = {}
    for row in stored["failures"]:
        key = (row["side"], row["client"])
        failures[key] = (*failures.get(key, ()), FailureSpan(**_without(row, "side", "client")))
    return Facts(
        distributions={_series(row): _distribution(row) for row in stored["distributions"]},
        longest={_series(row): LongestGap(row["n"], row["longest_us"]) for row in stored["gaps"]},
        recoveries={
            (row["fault"], row["client"]): Recovered(**_without(row, "fault", "client", "before_heal", "after_heal_us"))
            for row in stored["recoveries"]
        },
        recovery_definition=stored["recovery_definition"],
        findings={(row["rule"], row["side"], row["client"]): _finding(row) for row in stored["findings"]},
        crossed={fault: ProxyTraffic(**row) for fault, row in stored["crossed"].items()},
        host=Host(**stored["host"]),
        load=tuple(
            SentRows(**{**row, "missing": tuple(MissingRows(**part) for part in row["missing"]), "contradictions": ()})
            for row in stored["load"]
        ),
        stalls=tuple(Stall(**row) for row in stored["stalls"]),
        failures=failures,
        unavailable={
            (row["side"], row["client"], row["window"]): tuple(Outage(**part) for part in row["partitions"])
            for row in stored["unavailable"]
        },
        lag={row["client"]: tuple(Lag(*second) for second in row["seconds"]) for row in stored["lag"]},
    )


def _series(row: Row) -> tuple[str, str, str]:
    return row["metric"], row["client"], row["window"]


def _without(row: Row, *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _finding(row: Row) -> Finding:
    samples = tuple((producer, seq) for producer, seq in row["samples"])
    return Finding(**{**row, "samples": samples, "explained": tuple(Explained(**part) for part in row["explained"])})


def _distribution(row: Row) -> Distribution:
    at = {float(q): value for q, value in row["at"].items()}
    bands = {(band["q"], band["confidence"]): (band["low_us"], band["high_us"]) for band in row["bands"]}
    return Distribution(**{**_without(row, "metric", "client", "window"), "at": at, "bands": bands})
