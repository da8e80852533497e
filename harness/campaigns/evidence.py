"""Reduction of a campaign's runs to what its figures are computed from, small enough for a repository.

Only what the campaign reads of a run is kept: the rows and columns of outcomes, the samples, the events, and the fields
of documents that campaigns use. Reduced files are not the run's own, so the manifest is written again, with the digests
of the original files under ``reduced_from``. It also covers the verdict and the measurements, which can't be repeated.
The reduced runs are judged again, and must give the same figures.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from aftershock.errors import AftershockError
from aftershock.redaction import PLACE
from aftershock.results.compare.blocks import Block, parse
from aftershock.results.evidence import manifest
from aftershock.results.evidence.evidence import Folder, leaders_in
from aftershock.results.evidence.files import read_lines, read_object
from aftershock.results.model.facts import RecoveryCriterion
from aftershock.results.studies.part import Latencies, Part

_RUN = (
    "schema_version",
    "run_id",
    "plan",
    "seed",
    "started_at",
    "status",
    "why",
    "versions",
    "git",
    "profile",
    "topics",
    "recovery_definition",
)
_ANALYSIS = ("schema_version", "gaps", "recovery_definition", "recoveries")
_TIMELINE = ("schema_version", "name", "seed", "cluster", "timing", "topics", "workloads", "steps")
_CHECKS = ("harness", "witness", "exposure", "integrity")
_JUDGED = ("verdict.json", "analysis.json")
"""Results that reduced evidence can't be judged for again, so that its manifest has their digests, too."""
_JOURNAL = ("t_us", "fault", "state", "targets")


@dataclass(frozen=True)
class Observed(Part):
    """Part of a trial that records what is read of it."""

    cuts: set[tuple[str, str, str]] = field(default_factory=set)
    distributions: set[tuple[str, str, str]] = field(default_factory=set)
    rows: set[tuple[str, str | None]] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    event_names: set[str] = field(default_factory=set)
    logs: set[str] = field(default_factory=set)
    log_columns: set[str] = field(default_factory=set)
    transacting: set[str] = field(default_factory=set)
    batched: set[str] = field(default_factory=set)
    slow: list[dict[str, Any]] = field(default_factory=list)
    by_latency: dict[tuple[str, int], Latencies] = field(default_factory=dict)
    calms: set[RecoveryCriterion] = field(default_factory=set)

    def latencies(self, client: str, first: int) -> Latencies:
        # the counts are kept, not the rows from which they are counted
        found = self.by_latency[client, first] = Part(self.name, self.run).latencies(client, first)
        return found

    def slowest(self, client: str) -> list[dict[str, Any]]:
        groups = super().slowest(client)
        self.slow.extend(group for group in groups if group not in self.slow)
        return groups

    def blocks(self, client: str, measure: str) -> dict[int, Block]:
        parsed = parse(measure)
        self.cuts.add((parsed.metric, parsed.window, client))
        if not parsed.recovered.is_default:
            self.calms.add(parsed.recovered)
        return super().blocks(client, measure)

    def quantile_us(self, client: str, metric: str, window: str, q: float) -> tuple[int | None, int]:
        self.distributions.add((metric, client, window))
        return super().quantile_us(client, metric, window, q)

    def events(self, event: str) -> list[dict[str, Any]]:
        self.event_names.add(event)
        return super().events(event)

    def outcomes(self, op: str, columns: Sequence[str], client: str | None = None) -> pa.Table:
        self.rows.add((op, client))
        self.columns.update(columns)
        return super().outcomes(op, columns, client)

    def log(self, topic: str, columns: Sequence[str]) -> pa.Table:
        self.logs.add(topic)
        self.log_columns.update(columns)
        return super().log(topic, columns)

    def transactions(self, client: str) -> list[dict[str, Any]]:
        self.transacting.add(client)
        return super().transactions(client)

    def batches(self, topic: str) -> list[dict[str, Any]]:
        self.batched.add(topic)
        return super().batches(topic)

    def samples(self, name: str) -> pa.Table:
        self.names.add(name)
        return super().samples(name)


@contextmanager
def replacement(target: Path, bytes_max: int) -> Iterator[Path]:
    """Yield a folder for reduced evidence, which replaces ``target`` after the ``with`` block.

    Raises AftershockError if the evidence is larger than ``bytes_max``, or names a place of this machine; after an
    error, ``target`` stays as it was.
    """
    draft = target.with_name(f".{target.name}.inprogress")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        files = [path for path in sorted(draft.rglob("*")) if path.is_file()]
        refuse_places(files, draft)
        if (size := size_of(draft)) > bytes_max:
            largest = max(files, key=lambda path: path.stat().st_size).relative_to(draft)
            raise AftershockError(
                f"{target}: the reduced evidence has {size} bytes, more than {bytes_max}; the largest file is {largest}"
            )
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write_run(
    part: Observed, folder: Path, check_kinds: Collection[str] | None = _CHECKS, *, all_witnesses: bool = True
) -> None:
    """Write the reduced documents, tables and manifest of one run, with its checks of ``check_kinds``, or (None) all.

    Without ``all_witnesses`` the journal keeps the first and the last witness of each fault.
    """
    folder.mkdir(parents=True)
    run, home = part.run, part.home
    host = {key: value for key, value in (run.run.get("host") or {}).items() if key != "hostname"}
    brokers = [{"id": broker["id"], "rack": broker["rack"]} for broker in run.run.get("brokers", ())]
    series = ("metric", "window", "client")
    documents: dict[str, Any] = {
        "run": {key: run.run[key] for key in _RUN if key in run.run} | {"host": host, "brokers": brokers},
        "timeline": {key: run.timeline[key] for key in _TIMELINE if key in run.timeline}
        | {"workloads": [*map(_without_commands, run.timeline["workloads"])]},
        "verdict": replace(
            run.verdict,
            checks=tuple(one for one in run.verdict.checks if check_kinds is None or one.kind in check_kinds),
        ).to_json(),
        "analysis": {key: run.analysis[key] for key in _ANALYSIS if key in run.analysis}
        | {
            "cuts": [
                row
                for row in run.analysis.get("cuts", ())
                if row["each"] == "block" and tuple(row[key] for key in series) in part.cuts
            ],
            "distributions": [
                row
                for row in run.analysis["distributions"]
                if (row["metric"], row["client"], row["window"]) in part.distributions
                or tuple(row[key] for key in series) in part.cuts
            ],
        }
        | ({"slowest": part.slow} if part.slow else {})
        | ({"latencies": [*map(_latency_row, part.by_latency.items())]} if part.by_latency else {})
        | ({"calms": [row for row in run.analysis["calms"] if _criterion(row) in part.calms]} if part.calms else {}),
    }
    if (home / "phases.json").exists():
        documents["phases"] = part.windows()
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    journal = read_lines(home / "journal.jsonl")
    if not all_witnesses:
        journal = _first_and_last_witnesses(journal)
    lines = {
        "journal": [{key: line[key] for key in _JOURNAL if key in line} for line in journal],
        "events": [line for line in read_lines(home / "events.jsonl") if line.get("event") in part.event_names],
    }
    if part.logs and (leaders := leaders_in(Folder(home))) is not None:
        lines["leaders"] = [leadership.to_json() for leadership in leaders if leadership.topic in part.logs]
    for name, rows in lines.items():
        content = "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(content, encoding="utf-8")
    _write_tables(part, folder)
    own = read_object(home / manifest.NAME) if (home / manifest.NAME).exists() else {}
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = (*manifest.DOCUMENTS, manifest.LEADERS, *manifest.TABLES, *_JUDGED)
    names = [name for name in names if name.split("/")[0] in kept]
    digests = {name: asdict(digest) for name in names if (digest := manifest.digest_of(folder / name))}
    reduced = {"schema_version": manifest.SCHEMA_VERSION, "files": names, "digests": digests}
    reduced["reduced_from"] = own.get("reduced_from") or own.get("digests", {})  # a reduced run may be reduced again
    (folder / manifest.NAME).write_text(json.dumps(reduced, indent=1) + "\n", encoding="utf-8")


def _write_tables(part: Observed, folder: Path) -> None:
    """Write the rows and columns of the outcomes, metrics, offsets and logs that ``part`` names."""
    home = part.home
    conditions = []
    for op, client in part.rows:
        condition = ds.field("op") == op
        if client is not None:
            workload, arm = client.split("/")
            condition &= (ds.field("workload") == workload) & (ds.field("arm") == arm)
        conditions.append(condition)
    keys = ("op", "workload", "arm") if any(client for _, client in part.rows) else ("op",)
    if conditions:
        columns = sorted({*keys, *part.columns})
        outcomes = ds.dataset(home / "outcomes", format="parquet")
        _write_table(outcomes.to_table(columns=columns, filter=reduce(or_, conditions)), folder / "outcomes")
    if part.names:
        samples = ds.dataset(home / "metrics", format="parquet")
        of_names = ds.field("name").isin(sorted(part.names))
        _write_table(samples.to_table(["t_us", "broker_id", "name", "value"], filter=of_names), folder / "metrics")
    if "commit" in {op for op, _ in part.rows} and (home / "offsets").exists():
        _write_table(pq.read_table(home / "offsets"), folder / "offsets")
    if part.logs:
        log = ds.dataset(home / "log", format="parquet")
        of_topics = ds.field("topic").isin(sorted(part.logs))
        columns = ["topic", "producer_id", "seq"]
        columns += sorted(part.log_columns - {*columns})
        _write_table(log.to_table(columns, filter=of_topics), folder / "log")
    if part.transacting:
        arms = [client.split("/")[1] for client in sorted(part.transacting)]
        transactions = ds.dataset(home / "transactions", format="parquet")
        _write_table(transactions.to_table(filter=ds.field("arm").isin(arms)), folder / "transactions")
    if part.batched:
        batches = ds.dataset(home / "batches", format="parquet")
        _write_table(batches.to_table(filter=ds.field("topic").isin(sorted(part.batched))), folder / "batches")


def _first_and_last_witnesses(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a journal without the witnesses of a fault between its first and its last one."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, line in enumerate(lines):
        if line["state"] == "witnessed":
            first.setdefault(line["fault"], place)
            last[line["fault"]] = place
    kept = {*first.values(), *last.values()}
    return [line for place, line in enumerate(lines) if line["state"] != "witnessed" or place in kept]


def _latency_row(entry: tuple[tuple[str, int], Latencies]) -> dict[str, Any]:
    (client, first), found = entry
    return {"client": client, "first": first, "counts": sorted(found.counts.items()), "failed": found.failed}


def _without_commands(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload without the commands of its programs, which name places of this machine."""
    arms = {
        name: {key: value for key, value in arm.items() if key != "command"} for name, arm in workload["arms"].items()
    }
    return {**workload, "arms": arms}


def _criterion(row: Mapping[str, Any]) -> RecoveryCriterion:
    return RecoveryCriterion("", row["q"], row["factor"], row["for_us"])


def _write_table(table: pa.Table, folder: Path) -> None:
    """Write a table in its order of rows, as small as Parquet can: deltas of integers, dictionaries of words."""
    folder.mkdir()
    integers = [column.name for column in table.schema if pa.types.is_integer(column.type)]
    words = [column.name for column in table.schema if pa.types.is_string(column.type)]
    encodings = dict.fromkeys(integers, "DELTA_BINARY_PACKED")
    options: Mapping[str, Any] = {"compression": "zstd", "compression_level": 19, "write_statistics": False}
    path = folder / "part-0.parquet"
    pq.write_table(table.combine_chunks(), path, use_dictionary=words, column_encoding=encodings, **options)


def refuse_places(files: Sequence[Path], home: Path) -> None:
    for path in files:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            columns = [column for column in table.columns if pa.types.is_string(column.type)]
            content = "\n".join(str(value) for column in columns for value in pc.unique(column).to_pylist())
        else:
            content = path.read_text(encoding="utf-8")
        if found := PLACE.search(content):
            raise AftershockError(
                f"{path.relative_to(home)}: the evidence has {found[0]!r}, a path of this machine or a host name, "
                "which must not be published; leave the field out in harness/campaigns/evidence.py"
            )
