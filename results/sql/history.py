"""A history: what judging made of many runs, in folders that one query reads, a year of nights as soon as one.

::

    gold/checks/run_date=2026-11-21/plan=demo/run_id=20261121-101500-demo-831f/part.parquet
    silver/latency_hist/run_date=…                                             part-0.parquet, …

Rules: the folders' names are columns, so that a query of last month opens no other files; a run that is archived again
replaces its own; files appear under their names only when they are whole. Nothing here needs Spark, but to read.
"""

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, StringType, StructField, StructType

from aftershock.errors import EvidenceError
from aftershock.results.files import read_object
from aftershock.results.sql.views import JUDGED

_FOLDERS = {"latency_hist": "silver/latency_hist", "checks": "gold/checks"}
_PARTITIONS = [
    StructField("run_date", DateType()),
    StructField("plan", StringType()),
    StructField("run_id", StringType()),
]
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{}[]^ ") | {chr(code) for code in range(32)}


def archive(run_dir: Path, to: Path) -> list[Path]:
    """Copies what judging made of a run into the history at ``to``; the files written. EvidenceError if not judged."""
    place = _place(run_dir)
    sources = {name: run_dir / file for name, (file, _) in JUDGED.items()}
    for source in sources.values():
        if not source.exists():
            raise EvidenceError(f"{source}: missing; judge the run first: aftershock verdict {run_dir}")
    try:
        return [path for name, source in sources.items() for path in _copied(source, to / _FOLDERS[name] / place)]
    except OSError as error:
        raise EvidenceError(f"can't write to {to}: {error.strerror}; choose another --to") from error


def create_views(spark: SparkSession, history: Path) -> None:
    """The views ``checks`` and ``latency_hist`` of the history, with ``run_date``, ``plan`` and ``run`` besides."""
    for name, (_, schema) in JUDGED.items():
        folder = history / _FOLDERS[name]
        if not folder.is_dir():
            raise EvidenceError(f"{folder}: missing; no history yet: aftershock runs archive RUN --to {history}")
        columns = [field for field in schema if field.name != "run"]
        rows = spark.read.schema(StructType([*columns, *_PARTITIONS])).parquet(str(folder.resolve()))
        kept = [f"`{field.name}`" for field in columns]
        rows.selectExpr("run_id as run", "run_date", "plan", *kept).createOrReplaceTempView(name)


def _place(run_dir: Path) -> Path:
    run = read_object(run_dir / "run.json")
    try:
        night = datetime.fromisoformat(run["started_at"]).date()
        return Path(f"run_date={night}", f"plan={_escaped(run['plan'])}", f"run_id={_escaped(run['run_id'])}")
    except (KeyError, TypeError, ValueError) as broken:
        raise EvidenceError(f"{run_dir / 'run.json'}: {broken}; restore the file or run the plan again") from broken


def _escaped(value: str) -> str:
    """As Hive writes a value into a folder's name, and as Spark reads it."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in value)


def _copied(source: Path, folder: Path) -> Iterator[Path]:
    """One file, or those of a folder that Spark wrote; the ones from before go when the new ones are there."""
    files = sorted(source.glob("[!._]*.parquet")) if source.is_dir() else [source]
    folder.mkdir(parents=True, exist_ok=True)
    before, written = set(folder.glob("[!._]*.parquet")), set()
    for number, file in enumerate(files):
        draft, path = folder / f".part-{number}.inprogress", folder / f"part-{number}.parquet"
        shutil.copyfile(file, draft)
        written.add(draft.replace(path))
    for old in before - written:
        old.unlink()
    yield from sorted(written)
