"""Evidence on any Hadoop filesystem (``hdfs://``, ``s3a://``, ``file:/``), read by Spark itself.

Aftershock has no client for remote filesystems; Spark reads the files with its own jars and credentials. One Spark job
reads the documents of a run, a handful of small files. URIs are not percent-encoded, as usual in Hadoop.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, Row, SparkSession
from pyspark.sql import functions as F

from aftershock.errors import EvidenceError
from aftershock.results.evidence import files
from aftershock.results.evidence.evidence import Evidence, Part, Source, Trust, read_from
from aftershock.results.evidence.manifest import Digest
from aftershock.results.spark.session import JVM_LOST, LOCAL_SPARK, master_of, reason, session
from aftershock.results.spark.tables import literal

DOCUMENTS = (
    *("plan.yaml", "run.json", "timeline.json", "phases.json", "manifest.json"),
    *("journal.jsonl", "events.jsonl", "expectations.jsonl", "leaders.jsonl"),
)
HASHED_BYTES_MAX = 256 << 20
"""Spark holds a file in memory to hash it; of a larger Parquet file only the size is compared with the manifest."""


class Remote(Source):
    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark, self._uri = spark, uri.rstrip("/")
        rows = _files(spark, self._uri, "{" + ",".join(DOCUMENTS) + "}", ["path", "content"])
        self._documents = {row["path"].rsplit("/", 1)[1]: bytes(row["content"]) for row in rows}
        self._parts: dict[str, str] | None = None

    def where(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def content(self, name: str) -> bytes | None:
        return self._documents.get(name)

    def parquet_names(self) -> list[str]:
        if self._parts is None:
            rows = _files(self._spark, self._uri, "*.parquet", ["path"], below=True)
            self._parts = {_name_of(row["path"]): row["path"] for row in rows}
        return sorted(self._parts)

    def digests(self, names: Collection[str]) -> dict[str, Digest]:
        found = {
            name: Digest(len(content), hashlib.sha256(content).hexdigest())
            for name, content in self._documents.items()
            if name in names
        }
        small = F.col("length") <= HASHED_BYTES_MAX
        for files_of_size, sha256 in ((small, F.sha2("content", 256)), (~small, F.lit(None).cast("string"))):
            wanted: list[str | Column] = ["path", "length", sha256.alias("sha256")]
            for row in _files(self._spark, self._uri, "*.parquet", wanted, files_of_size, below=True):
                if (name := _name_of(row["path"])) in names:
                    found[name] = Digest(row["length"], row["sha256"])
        return found

    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """Check the schema of a Parquet file, as Spark reads it, and return the file's path."""
        path = (self._parts or {})[name]
        try:
            schema = self._spark.read.parquet(literal(path)).schema
        except (PySparkException, *JVM_LOST) as error:
            raise files.truncated(self.where(name), reason(error)) from None
        present = [(field.name, field.dataType.simpleString()) for field in schema]
        files.check_columns(self.where(name), present, columns, required)
        return path

    def keep(self, home: Path) -> None:
        """Copy the documents of a run to ``home`` for reports, except the manifest, whose files are not copied."""
        home.mkdir(parents=True, exist_ok=True)
        for name, content in self._documents.items():
            if name != "manifest.json" and not (home / name).exists():
                files.write_whole(home / name, content)


def read_at(
    spark: SparkSession,
    uri: str,
    out: Path,
    columns: Mapping[str, Mapping[str, str]],
    run_id: str | None = None,
    trust: Trust = (),
) -> Evidence:
    """Read a run's evidence at ``uri``; results go to folder ``out/<run id>``. Raises EvidenceError for bad evidence.

    With ``run_id``, ``uri`` may also be the folder that contains the run directory.
    """
    source = Remote(spark, uri)
    if run_id and not source.has("run.json"):
        source = Remote(spark, f"{uri.rstrip('/')}/{run_id}")
    name = source.object("run.json").get("run_id")
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        raise EvidenceError(f"{source.where('run.json')}: the run_id {name!r} can't name a run; restore the file")
    if run_id not in (None, name):
        why = f"the document belongs to run {name}, not {run_id}; correct the run id or the URI"
        raise EvidenceError(f"{source.where('run.json')}: {why}")
    evidence = read_from(source, out / name, columns, trust)
    source.keep(evidence.home)
    return evidence


def fetch(uri: str, folder: Path) -> Path:
    """Copy the file at ``uri`` to ``folder``; return its path. Raises EvidenceError if Spark can't read the URI."""
    with session(folder / "spark.log", master_of(None, LOCAL_SPARK)) as spark:
        rows = _files(spark, uri, "*", ["content"])
    if len(rows) != 1:
        raise EvidenceError(f"{uri}: not a file; correct the URI")
    path = folder / uri.rsplit("/", 1)[1]
    path.write_bytes(rows[0]["content"])
    return path


def _name_of(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def _files(
    spark: SparkSession,
    uri: str,
    pattern: str,
    columns: Sequence[str | Column],
    condition: Column | None = None,
    *,
    below: bool = False,
) -> list[Row]:
    """Return the files at ``uri`` whose names match ``pattern``; with ``below`` also files in subfolders."""
    reader = spark.read.format("binaryFile").option("pathGlobFilter", pattern)
    try:
        rows = reader.option("recursiveFileLookup", str(below).lower()).load(literal(uri))
        return (rows if condition is None else rows.where(condition)).select(*columns).collect()
    except (PySparkException, *JVM_LOST) as error:
        why = f"{uri}: Spark can't read this URI: {reason(error)}; correct the URI, or Spark's jars"
        raise EvidenceError(why) from None
