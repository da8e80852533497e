"""Evidence on any Hadoop filesystem (``hdfs://``, ``s3a://``, ``file:/``), read by Spark itself.

Aftershock has no client for remote filesystems; Spark reads the files with its own jars and credentials. One Spark job
reads the documents of a run, a handful of small files. A URI is not percent-encoded, as usual in Hadoop.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from aftershock.errors import EvidenceError
from aftershock.results.evidence import files
from aftershock.results.evidence.evidence import Evidence, Part, Source, read_from
from aftershock.results.spark.session import JVM_LOST, reason
from aftershock.results.spark.tables import literal

DOCUMENTS = (
    *("plan.yaml", "run.json", "timeline.json", "phases.json", "manifest.json"),
    *("journal.jsonl", "events.jsonl", "expectations.jsonl"),
)


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
            self._parts = {"/".join(row["path"].split("/")[-2:]): row["path"] for row in rows}
        return sorted(self._parts)

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
    spark: SparkSession, uri: str, out: Path, columns: Mapping[str, Mapping[str, str]], run_id: str | None = None
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
    evidence = read_from(source, out / name, columns)
    source.keep(evidence.home)
    return evidence


def _files(spark: SparkSession, uri: str, pattern: str, columns: list[str], *, below: bool = False) -> list[Row]:
    """Return the files at ``uri`` whose names match ``pattern``; with ``below`` also files in subfolders."""
    reader = spark.read.format("binaryFile").option("pathGlobFilter", pattern)
    try:
        return reader.option("recursiveFileLookup", str(below).lower()).load(literal(uri)).select(*columns).collect()
    except (PySparkException, *JVM_LOST) as error:
        why = f"{uri}: Spark can't read this URI: {reason(error)}; correct the URI, or Spark's jars"
        raise EvidenceError(why) from None
