"""One statement of Spark SQL, run if it is a query and nothing else: evidence is looked at, never changed.

Spark runs a command while its text is parsed, so that must be known before: by its first word, and for WITH, which may
also lead an INSERT, by the plan that EXPLAIN tells.

The tables of runs as temporary views: their evidence, what judging made of it, and the documents beside it.

Rules: every view begins with ``run``, the run's id, whether there is one run or a hundred; what a run lacks has no
rows. Nothing is copied: a query reads the files.

An answer's rows as text: a table for people, JSON or CSV for programs. Rows are taken one by one, never all at once.

A table needs to know its widest cells, so it shows the first thousand rows and says so.

A history: what judging made of many runs, in folders that one query reads, a year of nights as soon as one.

::

    gold/checks/run_date=2026-11-21/plan=demo/run_id=20261121-101500-demo-831f/part.parquet
    silver/latency_hist/run_date=…                                             part-0.parquet, …

Rules: the folders' names are columns, so that a query of last month opens no other files; a run that is archived again
replaces its own; files appear under their names only when they are whole. Nothing here needs Spark, but to read.

Asks runs, evidence elsewhere, or a history one question, in a Spark session that begins and ends with it.

Rules: Spark's log is kept only where something went wrong, and is named then.
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
    """The rows that the query ``text`` gives. AftershockError where it is none, or where Spark can't read it."""
    text = text.strip().removesuffix(";")
    try:
        if first_word(text) == "WITH" and _CHANGES.search(_plan(spark, text)):
            raise AftershockError("this WITH changes a table; end it with SELECT")
        return spark.sql(text)
    except (PySparkException, *JVM_LOST) as broken:
        raise refused(broken) from None


def first_word(text: str) -> str:
    """What a query begins with, behind spaces, comments and brackets. AftershockError where no query begins so."""
    begun = _IGNORED.match(text)
    word = re.compile(r"\w*").match(text, begun.end() if begun else 0)
    first = word[0].upper() if word else ""
    if first not in QUERIES:
        raise AftershockError(f"{first or 'nothing'} is no query: begin with one of {', '.join(QUERIES)}")
    return first


def refused(broken: Exception) -> AftershockError:
    """What Spark has against a query, in a sentence. Ask while the session lasts."""
    return AftershockError(f"Spark refuses the query: {reason(broken)}")


def _plan(spark: SparkSession, text: str) -> str:
    """The statement as parsed, before anything is looked up or done."""
    explained = str(spark.sql(f"EXPLAIN EXTENDED {text}").collect()[0][0])
    return explained.split("== Analyzed Logical Plan ==", 1)[0]


JUDGED = {"latency_hist": ("silver/latency.parquet", LATENCY_HIST), "checks": ("gold/checks.parquet", CHECKS)}
"""The views of what judging left in a run's directory, each with its file and its columns."""

PHASES = "run string, name string, fault string, block int, start_us bigint, end_us bigint"
JOURNAL = (
    "run string, t_us bigint, fault string, kind string, state string, why string, "
    "targets string, undo string, witness string"
)
EVENTS = "run string, t_us bigint, arm string, workload string, event string, detail string"


def create_views(spark: SparkSession, runs: Sequence[Evidence]) -> None:
    """Every view of these runs, by its name."""
    for name, rows in _views(spark, runs):
        rows.createOrReplaceTempView(name)


def unjudged(runs: Sequence[Evidence], text: str) -> list[str]:
    """What a query speaks of and a run has not, since it was not judged: ``checks of 20261121-…``."""
    asked = [(name, file) for name, (file, _) in JUDGED.items() if name in text]
    return [f"{name} of {one.home.name}" for name, file in asked for one in runs if not (one.home / file).exists()]


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
    """One read a run: these tables are small, and few look at a hundred runs that were not archived."""
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
    """A document's part as JSON, for ``get_json_object``."""
    return json.dumps(told) if told else None


TABLE_ROWS_MAX = 1000
CELL_MAX = 80


def as_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Lines of a table with its head; numbers stand to the right, null is left empty."""
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
    """Lines of a JSON array, an object a row."""
    before = "["
    for row in rows:
        yield before + json.dumps(dict(zip(names, map(_plain, row), strict=True)), default=str)
        before = ","
    yield "]" if before == "," else "[]"


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Lines of CSV with a head; null is an empty field, an array is JSON."""
    yield _csv_line(names)
    for row in rows:
        yield _csv_line([_text_printed(value) for value in row])


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _aligned(value: Any, text: str, width: int) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return text.rjust(width) if number else text.ljust(width)


def _cell(value: Any) -> str:
    text = " ".join(_text_printed(value).split())
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _text_printed(value: Any) -> str:
    if value is None:
        return ""
    plain = _plain(value)
    return json.dumps(plain, default=str) if isinstance(plain, (list, dict)) else str(value)


def _plain(value: Any) -> Any:
    """Spark's rows as objects, its arrays and maps as they are, down to the last."""
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


def create_history_views(spark: SparkSession, history: Path) -> None:
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


Say = Callable[[str], None]
Show = Callable[[DataFrame], None]


@dataclass(frozen=True)
class Question:
    """A query, and of what: run directories, or the evidence at a URI, or a history. ``out``: where results lie."""

    text: str
    runs: Sequence[Path]
    evidence: str | None
    history: Path | None
    out: Path


def ask(question: Question, master: str | None, say: Say, show: Show) -> None:
    """Has the answer shown. AftershockError where evidence is bad, or where Spark can't do what was asked."""
    first_word(question.text)  # no query: said before a JVM is started for it
    runs = [read(run, columns()) for run in question.runs]
    require_distinct_ids(runs)
    parts = [part for one in runs for parts in one.parquet.values() for part in parts]
    load = load_of(parts) if runs else UNKNOWN
    with _log() as log, session(log, master, load) as spark:
        if question.history:
            create_history_views(spark, question.history)
        else:
            _create_views(spark, question, runs, say)
        _shown(answered(spark, question.text), show)


def _create_views(spark: SparkSession, question: Question, runs: Sequence[Evidence], say: Say) -> None:
    if question.evidence:
        runs = [read_at(spark, question.evidence, question.out, columns())]
    create_views(spark, runs)
    for missing in unjudged(runs, question.text):
        say(f"{missing}: none yet; judge the run first: aftershock verdict")


def _shown(rows: DataFrame, show: Show) -> None:
    try:
        show(rows)
    except (PySparkException, *JVM_LOST) as broken:
        raise refused(broken) from None


@contextmanager
def _log() -> Iterator[Path]:
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
