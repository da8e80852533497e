"""Evidence on any Hadoop filesystem (``hdfs://``, ``s3a://``, ``file:/``), read by Spark itself.

Rules: no client of ours for any filesystem: what Spark can reach, with its jars and its credentials, we can judge. The
documents, a handful of small files, come here in one job and stay; of the tables only names and columns do. A URI is
written as Hadoop writes it, not percent-encoded.
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
    """The run directory at ``uri``."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark, self._uri = spark, uri.rstrip("/")
        rows = _files(spark, self._uri, "{" + ",".join(DOCUMENTS) + "}", ["path", "content"])
        self._documents = {row["path"].rsplit("/", 1)[1]: bytes(row["content"]) for row in rows}
        self._parts: dict[str, str] | None = None

    def where(self, name: str) -> str:
        """Its URI."""
        return f"{self._uri}/{name}"

    def content(self, name: str) -> bytes | None:
        """What the one job brought."""
        return self._documents.get(name)

    def parquet_names(self) -> list[str]:
        """By one listing of all folders below."""
        if self._parts is None:
            rows = _files(self._spark, self._uri, "*.parquet", ["path"], below=True)
            self._parts = {"/".join(row["path"].split("/")[-2:]): row["path"] for row in rows}
        return sorted(self._parts)

    def part(self, name: str, columns: Mapping[str, str], required: Collection[str]) -> Part:
        """Checked by what Spark makes of its footer."""
        path = (self._parts or {})[name]
        try:
            schema = self._spark.read.parquet(literal(path)).schema
        except (PySparkException, *JVM_LOST) as broken:
            raise files.truncated(self.where(name), reason(broken)) from None
        found = [(field.name, field.dataType.simpleString()) for field in schema]
        files.check_columns(self.where(name), found, columns, required)
        return path

    def keep(self, home: Path) -> None:
        """Copies the documents to ``home``, all but the manifest of what is not there: reports are made from them."""
        home.mkdir(parents=True, exist_ok=True)
        for name, content in self._documents.items():
            if name != "manifest.json" and not (home / name).exists():
                files.write_whole(home / name, content)


def read_at(
    spark: SparkSession, uri: str, out: Path, columns: Mapping[str, Mapping[str, str]], wanted: str | None = None
) -> Evidence:
    """The evidence at ``uri``; its results belong in a folder of ``out`` named for the run. Raises EvidenceError.

    Where the id of the ``wanted`` run is told, ``uri`` may also be the folder that holds it.
    """
    source = Remote(spark, uri)
    if wanted and not source.has("run.json"):
        source = Remote(spark, f"{uri.rstrip('/')}/{wanted}")
    found = source.object("run.json").get("run_id")
    if not isinstance(found, str) or found in ("", ".", "..") or "/" in found:
        raise EvidenceError(f"{source.where('run.json')}: {found!r} can't name a run; restore the file")
    if wanted not in (None, found):
        raise EvidenceError(f"{source.where('run.json')}: that is run {found}, not {wanted}; mend one of them")
    evidence = read_from(source, out / found, columns)
    source.keep(evidence.home)
    return evidence


def _files(spark: SparkSession, uri: str, pattern: str, columns: list[str], *, below: bool = False) -> list[Row]:
    """The files at ``uri`` whose names are of ``pattern``, also those in folders ``below``."""
    reader = spark.read.format("binaryFile").option("pathGlobFilter", pattern)
    try:
        return reader.option("recursiveFileLookup", str(below).lower()).load(literal(uri)).select(*columns).collect()
    except (PySparkException, *JVM_LOST) as broken:
        raise EvidenceError(f"{uri}: Spark can't read there: {reason(broken)}; mend the URI, or Spark's jars") from None
