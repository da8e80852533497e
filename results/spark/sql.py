"""``aftershock sql``: one query of Spark SQL on runs, on evidence elsewhere, or on a history.

**Queries only.** Evidence is never changed. Spark executes a command as soon as it parses the text, so commands must be
detected before that: by the first word of the statement. A statement that starts with WITH may be an INSERT, so its
EXPLAIN plan decides.

**Views.** The tables of runs are temporary views: their evidence, the results of judging, and the documents. Every view
begins with ``run``, the run's id, for one run or a hundred; a table that a run lacks has no rows. Nothing is copied.

**Output** as a table for people, JSON or CSV for programs. Rows are fetched one by one, never all at once. A table
needs the width of its cells, so it shows the first thousand rows and says so.

**History.** The results of many runs in folders that one query reads::

    gold/checks/run_date=2026-11-21/plan=demo/run_id=20261121-101500-demo-831f/part.parquet
    silver/latency_hist/run_date=…                                             part-0.parquet, …

The folders' names are columns, so a query of last month opens no other files. A run that is archived again replaces its
files. Files appear under their names only when complete. Archiving needs no Spark.

The Spark session begins and ends with the query. Its log is kept only after an error, which names it.
"""

import csv
import io
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.evidence.evidence import Evidence, read, require_distinct_ids
from aftershock.results.evidence.files import read_object
from aftershock.results.evidence.schema import CHECKS, LATENCY_HIST
from aftershock.results.spark.conf import UNKNOWN, load_of
from aftershock.results.spark.remote import read_at
from aftershock.results.spark.session import JVM_LOST, reason, session
from aftershock.results.spark.tables import columns, literal, small, tables

QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC")

_IGNORED = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_CHANGES = re.compile(r"\b(?:InsertInto|DeleteFrom|Update|MergeInto)\w*")


def answered(spark: SparkSession, text: str) -> DataFrame:
    """Return the rows of the query ``text``. Raises AftershockError if it is no query or Spark refuses it."""
    text = text.strip().removesuffix(";")
    try:
        if first_word(text) == "WITH" and _CHANGES.search(_plan(spark, text)):
            raise AftershockError("this WITH changes a table; end it with SELECT")
        return spark.sql(text)
    except (PySparkException, *JVM_LOST) as error:
        raise refused(error) from None


def first_word(text: str) -> str:
    """Return the first word after spaces, comments and brackets. Raises AftershockError if no query begins with it."""
    ignored = _IGNORED.match(text)
    word = re.compile(r"\w*").match(text, ignored.end() if ignored else 0)
    first = word[0].upper() if word else ""
    if first not in QUERIES:
        raise AftershockError(f"{first or 'nothing'} is no query: begin with one of {', '.join(QUERIES)}")
    return first


def refused(error: Exception) -> AftershockError:
    """Return Spark's error about a query as a sentence. The session must be open."""
    return AftershockError(f"Spark refuses the query: {reason(error)}")


def _plan(spark: SparkSession, text: str) -> str:
    """Return the parsed statement, before anything is resolved or executed."""
    explained = str(spark.sql(f"EXPLAIN EXTENDED {text}").collect()[0][0])
    return explained.split("== Analyzed Logical Plan ==", 1)[0]


JUDGED = {"latency_hist": ("silver/latency.parquet", LATENCY_HIST), "checks": ("gold/checks.parquet", CHECKS)}
"""The views of the results in a run directory, each with its file and columns."""

PHASES = "run string, name string, fault string, block int, start_us bigint, end_us bigint"
JOURNAL = (
    "run string, t_us bigint, fault string, kind string, state string, why string, "
    "targets string, undo string, witness string"
)
EVENTS = "run string, t_us bigint, arm string, workload string, event string, detail string"


def create_views(spark: SparkSession, runs: Sequence[Evidence]) -> None:
    """Create every view of these runs."""
    for name, rows in _views(spark, runs):
        rows.createOrReplaceTempView(name)


def unjudged(runs: Sequence[Evidence], text: str) -> list[str]:
    """Return the views in a query that a run lacks because it was not judged: ``checks of 20261121-…``."""
    named = [(name, file) for name, (file, _) in JUDGED.items() if name in text]
    return [f"{name} of {run.home.name}" for name, file in named for run in runs if not (run.home / file).exists()]


def _views(spark: SparkSession, runs: Sequence[Evidence]) -> Iterator[tuple[str, DataFrame]]:
    ids = [(number, run_id(one)) for number, one in enumerate(runs)]
    named = F.broadcast(small(spark, ids, "run int, id string"))
    for name, rows in vars(tables(spark, runs)).items():
        columns = [column for column in rows.columns if column != "run"]
        yield name, rows.join(named, "run").select(F.col("id").alias("run"), *columns)
    for name, (file, schema) in JUDGED.items():
        yield name, _judged(spark, [(run_id(one), one.home / file) for one in runs], schema)
    yield "phases", small(spark, [row for one in runs for row in _phases(one)], PHASES)
    yield "journal", small(spark, [row for one in runs for row in _journal(one)], JOURNAL)
    yield "events", small(spark, [row for one in runs for row in _events(one)], EVENTS)


def run_id(one: Evidence) -> str:
    """The run's id."""
    return str(one.run["run_id"])


def _judged(spark: SparkSession, files: Iterable[tuple[str, Path]], schema: StructType) -> DataFrame:
    """Read each run separately: these tables are small, and many runs are usually archived."""
    fields = [field for field in schema if field.name != "run"]
    columns = [field.name for field in fields]
    rows = spark.createDataFrame([], StructType([StructField("run", StringType()), *fields]))
    for run, file in files:
        if file.exists():
            read = spark.read.schema(schema).parquet(literal(str(file.resolve())))
            rows = rows.unionByName(read.select(F.lit(run).alias("run"), *columns))
    return rows


def _phases(one: Evidence) -> Iterator[Sequence[Any]]:
    for phase in one.phases:
        yield run_id(one), phase.name, phase.fault, phase.block, phase.start_us, phase.end_us


def _journal(one: Evidence) -> Iterator[Sequence[Any]]:
    for line in one.journal:
        told = [line.get(name) for name in ("t_us", "fault", "kind", "state", "why")]
        yield run_id(one), *told, *(_text(line.get(name)) for name in ("targets", "undo", "witness"))


def _events(one: Evidence) -> Iterator[Sequence[Any]]:
    known = ("t_us", "arm", "workload", "event")
    for line in one.events:
        rest = {name: value for name, value in line.items() if name not in known}
        yield run_id(one), *(line.get(name) for name in known), _text(rest)


def _text(told: Mapping[str, Any] | None) -> str | None:
    """Return a part of a document as JSON, for ``get_json_object``."""
    return json.dumps(told) if told else None


TABLE_ROWS_MAX = 1000
CELL_MAX = 80


def as_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table with its head; numbers are aligned right, null is empty."""
    shown = list(islice(iter(rows), TABLE_ROWS_MAX + 1))
    cells = [[_cell(value) for value in row] for row in shown[:TABLE_ROWS_MAX]]
    widths = [max(len(cell) for cell in column) for column in zip(names, *cells, strict=True)]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for row, texts in zip(shown, cells, strict=False):
        yield "  ".join(map(_aligned, row, texts, widths)).rstrip()
    if len(shown) > TABLE_ROWS_MAX:
        yield f"… the first {TABLE_ROWS_MAX} rows; --csv or --json gives all"


def as_json(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a JSON array, an object per row."""
    before = "["
    for row in rows:
        yield before + json.dumps(dict(zip(names, map(_plain, row), strict=True)), default=str)
        before = ","
    yield "]" if before == "," else "[]"


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of CSV with a head; null is an empty field, an array is JSON."""
    yield _csv_line(names)
    for row in rows:
        yield _csv_line([_cell_text(value) for value in row])


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _aligned(value: Any, text: str, width: int) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return text.rjust(width) if number else text.ljust(width)


def _cell(value: Any) -> str:
    text = " ".join(_cell_text(value).split())
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    plain = _plain(value)
    return json.dumps(plain, default=str) if isinstance(plain, (list, dict)) else str(value)


def _plain(value: Any) -> Any:
    """Convert Spark's rows to objects, recursively; arrays and maps stay as they are."""
    if hasattr(value, "asDict"):
        return {name: _plain(part) for name, part in value.asDict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return {str(key): _plain(part) for key, part in value.items()} if isinstance(value, dict) else value


_FOLDERS = {"latency_hist": "silver/latency_hist", "checks": "gold/checks"}
_PARTITIONS = [
    StructField("run_date", DateType()),
    StructField("plan", StringType()),
    StructField("run_id", StringType()),
]
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{}[]^ ") | {chr(code) for code in range(32)}


def archive(run_dir: Path, to: Path) -> list[Path]:
    """Copy a run's results into the history at ``to``; return the files. Raises EvidenceError if it was not judged."""
    place = _place(run_dir)
    sources = {name: run_dir / file for name, (file, _) in JUDGED.items()}
    for source in sources.values():
        if not source.exists():
            raise EvidenceError(f"{source}: missing; judge the run first: aftershock verdict {run_dir}")
    try:
        return [path for name, source in sources.items() for path in _copied(source, to / _FOLDERS[name] / place)]
    except OSError as error:
        raise EvidenceError(f"can't write to {to}: {error.strerror}; choose another --to") from error


def create_history_views(spark: SparkSession, history: Path) -> None:
    """Create the views ``checks`` and ``latency_hist`` of a history, with ``run_date``, ``plan`` and ``run``."""
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
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{run_dir / 'run.json'}: {error}; restore the file or run the plan again") from error


def _escaped(value: str) -> str:
    """Escape a value in a folder's name as Hive does, and as Spark reads it."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in value)


def _copied(source: Path, folder: Path) -> Iterator[Path]:
    """Copy a file, or the files of a folder written by Spark; older files are removed after the new ones exist."""
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


Log = Callable[[str], None]
Show = Callable[[DataFrame], None]


@dataclass(frozen=True)
class Question:
    """A query on run directories, on evidence at a URI, or on a history. ``out``: folder for results."""

    text: str
    runs: Sequence[Path]
    evidence: str | None
    history: Path | None
    out: Path


def ask(question: Question, master: str | None, log: Log, show: Show) -> None:
    """Run the query and show its rows. Raises AftershockError for bad evidence, or if Spark refuses the query."""
    first_word(question.text)  # refuse a command before a JVM is started for it
    runs = [read(run, columns()) for run in question.runs]
    require_distinct_ids(runs)
    parts = [part for one in runs for parts in one.parquet.values() for part in parts]
    load = load_of(parts) if runs else UNKNOWN
    with _spark_log() as spark_log, session(spark_log, master, load) as spark:
        if question.history:
            create_history_views(spark, question.history)
        else:
            _create_views(spark, question, runs, log)
        rows = answered(spark, question.text)
        try:
            show(rows)
        except (PySparkException, *JVM_LOST) as error:
            raise refused(error) from None


def _create_views(spark: SparkSession, question: Question, runs: Sequence[Evidence], log: Log) -> None:
    if question.evidence:
        runs = [read_at(spark, question.evidence, question.out, columns())]
    create_views(spark, runs)
    for missing in unjudged(runs, question.text):
        log(f"{missing}: none yet; judge the run first: aftershock verdict")


@contextmanager
def _spark_log() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aftershock-sql-"))
    log = folder / "spark.log"
    try:
        yield log
    except AftershockError as error:
        if log.exists():
            error.add_note(f"Spark's log: {log}")
        raise
    log.unlink(missing_ok=True)
    folder.rmdir()
