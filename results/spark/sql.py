"""Command ``aftershock sql``, a query of Spark SQL on runs, on evidence elsewhere, or on a history of many runs.

Spark executes a command as soon as it gets the text, so the plan that Spark's parser makes of the text is checked
before: a query may only read the tables of the run, and can't run programs or write files. A query on runs sees the
evidence, the checks, and the documents as temporary views, which begin with the column ``run``, the run's id.

A history has the results of many runs in folders whose names are columns, so a query of last month opens only files
such as ``gold/checks/run_date=2026-11-21/plan=demo/run_id=20261121-101500-demo-831f/part-0.parquet``.
"""

import csv
import io
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, cast

from py4j.java_gateway import JavaObject, is_instance_of
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.evidence.evidence import SCHEMA_VERSION, Evidence, read, require_distinct_ids
from aftershock.results.evidence.files import read_object, require_schema_version
from aftershock.results.evidence.manifest import refuse_links
from aftershock.results.evidence.schema import CHECKS, LATENCY_HIST, TABLES
from aftershock.results.evidence.stored import trusted_in
from aftershock.results.model.text import printable
from aftershock.results.spark.conf import UNKNOWN, load_of
from aftershock.results.spark.remote import read_at
from aftershock.results.spark.session import JVM_LOST, LOCAL_SPARK, SAIL, master_of, reason, session
from aftershock.results.spark.tables import columns, literal, small, tables

QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC")

_IGNORED = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


VIEWS = (*TABLES, "latency_hist", "checks", "phases", "journal", "events")
_QUERY_PLANS = (
    *("Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "GroupingSets", "Intersect", "Join"),
    *("LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "PipeOperator", "Pivot", "Project"),
    *("Range", "Repartition", "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union", "Unpivot"),
    *("UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedQualify", "UnresolvedRelation"),
    *("UnresolvedSubqueryColumnAliases", "UnresolvedTableValuedFunction", "UnresolvedWith", "Window"),
    *("UnresolvedTVFAliases", "WithWindowDefinition"),
)
_DESCRIPTION_PLANS = (
    *("CurrentNamespace", "DescribeColumn", "DescribeFunction", "DescribeQueryCommand", "DescribeRelation"),
    *("ShowColumns", "ShowFunctions", "ShowTables", "ShowViews", "UnresolvedFunctionName", "UnresolvedTableOrView"),
)
_PLANS = frozenset((*_QUERY_PLANS, *_DESCRIPTION_PLANS))
"""Classes of Spark's logical plans that may read the run's tables and have no effect, unlike commands and scripts."""
_TABLE_FUNCTIONS = frozenset(
    (
        *("explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer"),
        *("range", "stack", "variant_explode", "variant_explode_outer"),
    )
)
_FUNCTION_GROUPS = frozenset(
    f"{group}_funcs"
    for group in (
        *("agg", "array", "bitwise", "collection", "conditional", "conversion", "csv", "datetime", "generator", "hash"),
        *("json", "lambda", "map", "math", "predicate", "sketch", "string", "struct", "url", "variant", "window"),
    )
)
"""Groups of Spark's functions (``ExpressionInfo``) that compute from their arguments alone; XML schemas, Avro, Protobuf
and Java methods reach files and the network."""
_FUNCTIONS = frozenset(("monotonically_increasing_id", "typeof", "uuid", "version"))
"""Functions of the remaining groups that do no harm."""
_LOGICAL_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"


def run_query(spark: SparkSession, text: str) -> DataFrame:
    """Return the rows of the SQL query ``text``.

    Raises AftershockError if the text is not a query of the run's tables, or if Spark refuses it. With Spark Connect
    the caller checks the text by ``refuse_side_effects`` in a session with a JVM.
    """
    text = text.strip().removesuffix(";")
    try:
        if isinstance(spark, SparkSession):
            refuse_side_effects(spark, text)
        rows = spark.sql(text)
        read = {*rows.inputFiles()}
        for view in (name for name in VIEWS if read and spark.catalog.tableExists(name)):
            read -= {*spark.table(view).inputFiles()}
    except (PySparkException, *JVM_LOST) as error:
        raise query_error(error) from None
    if read:
        raise AftershockError(f"the query reads {min(read)}, which is not a file of the run: {_ADVICE}")
    return rows


def refuse_side_effects(spark: SparkSession, text: str) -> None:
    """Raise AftershockError if a SQL text could run a program, or read or write anything but the run's tables.

    Spark's parser does not resolve or execute anything. Every part of the parsed plan is visited, including subqueries
    in expressions, and only known classes of plans pass.
    """
    gateway = cast("Any", spark.sparkContext)._gateway  # noqa: SLF001 - PySpark has no public parser
    parser = cast("Any", spark)._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    kinds: dict[str, tuple[bool, bool, bool]] = {}
    interfaces = (_LOGICAL_PLAN, "scala.collection.Iterable", "scala.Product")
    relations, named = list[tuple[int, str]](), {*VIEWS}
    pending = [parser.parsePlan(text)]
    while pending:
        node = pending.pop()
        if not isinstance(node, JavaObject):
            continue  # a number or a text
        kind = str(node.getClass().getName())
        if kind not in kinds:
            kinds[kind] = cast(
                "tuple[bool, bool, bool]", tuple(is_instance_of(gateway, node, interface) for interface in interfaces)
            )
        is_plan, is_iterable, is_product = kinds[kind]
        name = kind.rpartition(".")[2].removesuffix("$")
        if (is_plan and name not in _PLANS) or name.endswith("UnresolvedIdentifier"):
            raise AftershockError(f"`aftershock sql` does not run a statement with {name}: {_ADVICE}")
        if name in ("UnresolvedRelation", "UnresolvedTableOrView"):
            # the path-based table parquet.`/x` has two parts; a single name may contain a dot
            relations.append((int(node.multipartIdentifier().size()), str(node.multipartIdentifier().mkString("."))))
        elif name == "UnresolvedWith":
            entries = node.cteRelations().iterator()
            while entries.hasNext():
                named.add(str(entries.next().productElement(0)).lower())
        elif name in ("UnresolvedFunction", "UnresolvedTableValuedFunction"):
            scalar = name == "UnresolvedFunction"
            function = str((node.nameParts() if scalar else node.name()).last()).lower()
            if not (_is_harmless(spark, function) if scalar else function in _TABLE_FUNCTIONS):
                raise AftershockError(f"`aftershock sql` does not call the function {function}: {_ADVICE}")
        elif name == "UnresolvedGenerator" and str(node.name().funcName()).lower() not in _TABLE_FUNCTIONS:
            raise AftershockError(f"`aftershock sql` does not call the function {node.name().funcName()}: {_ADVICE}")
        if (is_iterable or is_product) and not kind.startswith("org.apache.spark.sql.types."):
            parts = node.iterator() if is_iterable else node.productIterator()
            while parts.hasNext():
                pending.append(parts.next())
    if unknown := [name for parts, name in relations if parts > 1 or name.lower() not in named]:
        raise AftershockError(f"{unknown[0]} is not a table of the runs: {_ADVICE}")


def _is_harmless(spark: SparkSession, function: str) -> bool:
    """Return True if a function is one of Spark's own that reads nothing but its arguments."""
    registry = cast("Any", spark)._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001 - no public one
    jvm = cast("Any", spark.sparkContext)._jvm  # noqa: SLF001
    place = [jvm.scala.Option.apply(part) for part in ("builtin", "system")]
    info = registry.lookupFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(function, *place))
    own = info.isDefined() and str(info.get().getClassName()).startswith("org.apache.spark.sql.catalyst.")
    return function in _FUNCTIONS or (own and str(info.get().getGroup()) in _FUNCTION_GROUPS)


_ADVICE = f"write a query of {', '.join(VIEWS)}"


def first_word(text: str) -> str:
    """Return a query's first word after comments and brackets. Raises AftershockError if it begins no query."""
    ignored = _IGNORED.match(text)
    word = re.compile(r"\w*").match(text, ignored.end() if ignored else 0)
    first = word[0].upper() if word else ""
    if first not in QUERIES:
        raise AftershockError(
            f"the text {f'begins with {first}' if first else 'is empty'} and is not a query: begin with one of "
            f"{', '.join(QUERIES)}"
        )
    return first


def query_error(error: Exception) -> AftershockError:
    """Return Spark's error about a SQL query as an AftershockError, while the Spark session is still open."""
    return AftershockError(f"Spark refuses the query: {reason(error)}")


JUDGED = {"latency_hist": ("silver/latency.parquet", LATENCY_HIST), "checks": ("gold/checks.parquet", CHECKS)}
"""The views of the results in a run directory, each with its file and columns."""


PHASES = "run string, name string, fault string, block int, start_us bigint, end_us bigint"
JOURNAL = (
    "run string, t_us bigint, fault string, kind string, state string, why string, "
    "targets string, undo string, witness string"
)
EVENTS = "run string, t_us bigint, arm string, workload string, event string, detail string"


def create_views(spark: SparkSession, runs: Sequence[Evidence]) -> None:
    ids = [str(run.run["run_id"]) for run in runs]
    numbers = F.broadcast(small(spark, list(enumerate(ids)), "run int, id string"))
    for name, rows in tables(spark, runs).by_name.items():
        columns = [column for column in rows.columns if column != "run"]
        view = rows.join(numbers, "run").select(F.col("id").alias("run"), *columns)
        view.createOrReplaceTempView(name)

    # The results are read run by run: these tables are small, and many runs are usually archived.
    for name, (file, schema) in JUDGED.items():
        fields = [field for field in schema if field.name != "run"]
        view = spark.createDataFrame([], StructType([StructField("run", StringType()), *fields]))
        for run_id, path in zip(ids, (run.home / file for run in runs), strict=True):
            if path.exists():
                read = spark.read.schema(schema).parquet(literal(str(path.resolve())))
                view = view.unionByName(read.select(F.lit(run_id).alias("run"), *(field.name for field in fields)))
        view.createOrReplaceTempView(name)

    # The documents; an object becomes JSON, for get_json_object.
    def as_text(value: Mapping[str, Any] | None) -> str | None:
        return json.dumps(value) if value else None

    phases, journal, events = list[Sequence[Any]](), list[Sequence[Any]](), list[Sequence[Any]]()
    for run_id, run in zip(ids, runs, strict=True):
        phases += [(run_id, p.name, p.fault, p.block, p.start_us, p.end_us) for p in run.phases]
        for line in run.journal:
            values = [line.get(name) for name in ("t_us", "fault", "kind", "state", "why")]
            journal.append((run_id, *values, *(as_text(line.get(name)) for name in ("targets", "undo", "witness"))))
        for line in run.events:
            names = ("t_us", "arm", "workload", "event")
            detail = {name: value for name, value in line.items() if name not in names}
            events.append((run_id, *(line.get(name) for name in names), as_text(detail)))
    small(spark, phases, PHASES).createOrReplaceTempView("phases")
    small(spark, journal, JOURNAL).createOrReplaceTempView("journal")
    small(spark, events, EVENTS).createOrReplaceTempView("events")


def views_without_results(runs: Sequence[Evidence], text: str) -> list[str]:
    """Return the views in a query that a run lacks because the run was not judged, as in ``checks of 20261121-…``."""
    named = [(name, file) for name, (file, _) in JUDGED.items() if name in text]
    return [f"{name} of {run.home.name}" for name, file in named for run in runs if not (run.home / file).exists()]


TABLE_ROWS_MAX = 1000
CELL_MAX = 80


def as_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a text table with a header; numbers are aligned right, null is empty."""
    shown = list(islice(iter(rows), TABLE_ROWS_MAX + 1))
    cells = []
    for row in shown[:TABLE_ROWS_MAX]:
        texts = [printable(" ".join(_cell_text(value).split())) for value in row]
        cells.append([text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…" for text in texts])
    names = [printable(name) for name in names]
    widths = [max(len(cell) for cell in column) for column in zip(names, *cells, strict=True)]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for row, texts in zip(shown, cells, strict=False):
        numeric = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in row]
        aligned = zip(texts, widths, numeric, strict=True)
        yield "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in aligned).rstrip()
    if len(shown) > TABLE_ROWS_MAX:
        yield f"… the first {TABLE_ROWS_MAX} rows; --csv or --json prints all rows"


def as_json(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a JSON array with an object per row."""
    before = "["
    for row in rows:
        yield before + json.dumps(dict(zip(names, map(_plain, row), strict=True)), default=str)
        before = ","
    yield "]" if before == "," else "[]"


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of CSV with a header; null is an empty field, an array is JSON."""
    yield _csv_line(names)
    for row in rows:
        yield _csv_line([_cell_text(value) for value in row])


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    plain = _plain(value)
    return json.dumps(plain, default=str) if isinstance(plain, (list, dict)) else str(value)


def _plain(value: Any) -> Any:
    """Convert Spark's rows in a value to dictionaries, recursively; arrays and maps stay as they are."""
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
    """Copy a run's results into a history; return the copied files. Raises EvidenceError if the run was not judged."""
    refuse_links(run_dir)
    run = read_object(run_dir / "run.json")
    require_schema_version(str(run_dir / "run.json"), run, SCHEMA_VERSION)
    try:
        night = datetime.fromisoformat(run["started_at"]).date()
        place = Path(f"run_date={night}", f"plan={_escaped(run['plan'])}", f"run_id={_escaped(run['run_id'])}")
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{run_dir / 'run.json'}: {error}; restore the file or run the plan again") from error
    sources = {name: run_dir / file for name, (file, _) in JUDGED.items()}
    for source in sources.values():
        if not source.exists():
            raise EvidenceError(f"{source}: missing; judge the run first: aftershock verdict {run_dir}")
    paths = []
    try:
        for name, source in sources.items():
            folder = to / _FOLDERS[name] / place
            folder.mkdir(parents=True, exist_ok=True)
            # A folder was written by Spark. Older files are removed after the new files exist.
            files = sorted(source.glob("[!._]*.parquet")) if source.is_dir() else [source]
            before, written = set(folder.glob("[!._]*.parquet")), set()
            for number, file in enumerate(files):
                draft, path = folder / f".part-{number}.inprogress", folder / f"part-{number}.parquet"
                shutil.copyfile(file, draft)
                written.add(draft.replace(path))
            for old in before - written:
                old.unlink()
            paths += sorted(written)
    except OSError as error:
        raise EvidenceError(f"can't write to {to}: {error.strerror}; choose another --to") from error
    return paths


def _escaped(value: str) -> str:
    """Escape a value in a folder's name as Hive does, so that Spark can read it."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in value)


def create_history_views(spark: SparkSession, history: Path) -> None:
    """Create the SQL views ``checks`` and ``latency_hist`` of a history, with ``run_date``, ``plan`` and ``run``."""
    for name, (_, schema) in JUDGED.items():
        folder = history / _FOLDERS[name]
        if not folder.is_dir():
            raise EvidenceError(
                f"{folder}: the history is missing; create the history: aftershock runs archive RUN --to {history}"
            )
        columns = [field for field in schema if field.name != "run"]
        rows = spark.read.schema(StructType([*columns, *_PARTITIONS])).parquet(str(folder.resolve()))
        kept = [f"`{field.name}`" for field in columns]
        rows.selectExpr("run_id as run", "run_date", "plan", *kept).createOrReplaceTempView(name)


Log = Callable[[str], None]
Show = Callable[[DataFrame], None]


@dataclass(frozen=True)
class Question:
    """A SQL query on run directories, on evidence at a URI, or on a history."""

    text: str
    runs: Sequence[Path]
    evidence: str | None
    history: Path | None
    out: Path


def ask(question: Question, master: str | None, log: Log, show: Show) -> None:
    """Run a SQL query and show its rows. Raises AftershockError if the evidence is unreadable or Spark refuses it."""
    first_word(question.text)  # refuse a command before a JVM is started for it
    runs = [read(run, columns(), trusted_in(run)) for run in question.runs]
    for run in runs:
        for difference in run.altered:
            log(f"{run.home}: {difference}")
    require_distinct_ids(runs)
    parts = [part for run in runs for parts in run.parquet.values() for part in parts]
    load = load_of(parts) if runs else UNKNOWN
    folder = Path(tempfile.mkdtemp(prefix="aftershock-sql-"))
    spark_log = folder / "spark.log"
    try:
        address = master_of(master, LOCAL_SPARK)
        if address == SAIL or address.startswith("sc://"):  # only a JVM has Spark's parser
            with session(spark_log, LOCAL_SPARK) as parser:
                try:
                    refuse_side_effects(parser, question.text.strip().removesuffix(";"))
                except (PySparkException, *JVM_LOST) as error:
                    raise query_error(error) from None
        with session(spark_log, address, load) as spark:
            if question.history:
                create_history_views(spark, question.history)
            else:
                if question.evidence:
                    runs = [read_at(spark, question.evidence, question.out, columns())]
                create_views(spark, runs)
                for missing in views_without_results(runs, question.text):
                    log(f"{missing}: no results yet; judge the run first: aftershock verdict")
            rows = run_query(spark, question.text)
            try:
                show(rows)
            except (PySparkException, *JVM_LOST) as error:
                raise query_error(error) from None
    except AftershockError as error:
        if spark_log.exists():
            error.add_note(f"Spark's log: {spark_log}")
        raise
    shutil.rmtree(folder, ignore_errors=True)
