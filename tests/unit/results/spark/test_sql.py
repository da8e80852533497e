"""``docs/SPARK.md`` is correct: its tables have the listed columns, and each of its queries returns rows."""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.evidence.evidence import Evidence, read, require_distinct_ids
from aftershock.results.spark import sql
from aftershock.results.spark.sql import Question, ask, run_query
from aftershock.results.spark.tables import columns
from aftershock.tests.unit.results.evidence_factory import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[4] / "docs" / "SPARK.md").read_text(encoding="utf-8")


def queries(mark: str) -> list[str]:
    """Return the page's queries in blocks with this mark."""
    return re.findall(rf"^```{mark}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def run(spark: "SparkSession", made: Made, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The clean run, judged."""
    from aftershock.results.judge import judge_in  # noqa: PLC0415 - tests without Spark should not load it

    one = read(made.write(tmp_path_factory.mktemp("judged") / "run"), columns())
    judge_in(spark, [one])
    return one


def test_every_query_of_the_page_gives_rows(spark: "SparkSession", run: Evidence, tmp_path: Path) -> None:
    """More than ten queries use a run and others a history, and none needs more than the page lists."""
    sql.create_views(spark, [run])
    asked = queries("sql")
    assert len(asked) >= 10
    empty = [text for text in asked if not run_query(spark, text).collect()]
    sql.archive(run.home, tmp_path / "history")
    sql.create_history_views(spark, tmp_path / "history")
    empty += [text for text in queries("sql history") if not run_query(spark, text).collect()]
    assert empty == []


def test_the_page_names_every_column(spark: "SparkSession", run: Evidence) -> None:
    """The page also lists every view."""
    sql.create_views(spark, [run])
    names = [row["tableName"] for row in run_query(spark, "show tables").collect()]
    assert set(names) >= {
        "outcomes",
        "log",
        "replicas",
        "metrics",
        "latency_hist",
        "checks",
        "phases",
        "journal",
        "events",
    }
    told = PAGE.split("## Queries")[1].split("## Examples")[0]
    for name in names:
        section = next(part for part in told.split("\n### ") if f"`{name}`" in part.splitlines()[0])
        missing = {column for column in spark.table(name).columns if f"`{column}`" not in section} - {"run"}
        assert missing == set(), name


def test_several_runs_are_one_table(spark: "SparkSession", made: Made, run: Evidence, tmp_path: Path) -> None:
    """Each row has its run id; an unjudged run is named and has no rows in tables of the judge."""
    other = made.copy()
    other.run["run_id"] = "other"
    runs = [run, read(other.write(tmp_path / "other"), columns())]
    sql.create_views(spark, runs)
    counted = run_query(spark, "select run, count(*) from outcomes group by run order by run").collect()
    assert [tuple(row) for row in counted] == [("20261121-101500-demo-7", 18_000), ("other", 18_000)]
    judged = run_query(spark, "select distinct run from checks").collect()
    assert [row["run"] for row in judged] == ["20261121-101500-demo-7"]
    assert sql.views_without_results(runs, "select * from checks") == ["checks of other"]
    assert sql.views_without_results(runs, "select * from outcomes") == []
    require_distinct_ids(runs)
    twin = read(Path(shutil.copytree(run.home, tmp_path / "twin")), columns())
    with pytest.raises(EvidenceError, match=r"run\.json has the same run_id"):
        require_distinct_ids([run, twin])


def test_queries_change_nothing(spark: "SparkSession", run: Evidence) -> None:
    """WITH before INSERT is refused; an invalid query or unknown table gives a message of one line."""
    sql.create_views(spark, [run])
    folder = run.home / "made"
    told = {
        f"with x as (select 1) insert overwrite directory '{folder}' using csv table x": "InsertIntoDir",
        "select a form outcomes x y": "PARSE_SYNTAX_ERROR",
        "select nothing from outcomes": "nothing",
        "select * from nowhere": "nowhere",
        "select 1; select 2": "PARSE_SYNTAX_ERROR",
    }
    for text, says in told.items():
        with pytest.raises(AftershockError) as refused:
            run_query(spark, text)
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not folder.exists()


def test_a_history_is_replaced_run_by_run(run: Evidence, tmp_path: Path) -> None:
    """Archiving a run again leaves one copy; names are escaped as in Hive; unjudged runs are refused."""
    home = Path(shutil.copytree(run.home, tmp_path / "run"))
    text = (home / "run.json").read_text().replace('"plan": "demo"', '"plan": "a/b c"')
    (home / "run.json").write_text(text)
    for _ in range(2):
        written = sql.archive(home, tmp_path / "history")
    assert sorted(written) == sorted((tmp_path / "history").rglob("*.parquet"))
    assert {part.relative_to(tmp_path / "history").as_posix() for part in written} == {
        f"{table}/run_date=2026-11-21/plan=a%2Fb%20c/run_id=20261121-101500-demo-7/part-0.parquet"
        for table in ("gold/checks", "silver/latency_hist")
    }
    shutil.rmtree(home / "gold")
    with pytest.raises(EvidenceError, match="judge the run first"):
        sql.archive(home, tmp_path / "history")


def test_invalid_statements_start_no_spark(tmp_path: Path) -> None:
    """The statement is refused before Spark starts, whatever the master is."""
    question = Question("drop table x", [], None, None, tmp_path)
    with pytest.raises(AftershockError, match="begins with DROP and is not a query"):
        ask(question, "sc://127.0.0.1:1", print, lambda rows: rows.show())


HOSTILE = (
    "select transform(op) using 'touch {file}' as (x) from outcomes",
    "select * from (select transform(1) using 'cat' as (x)) t",
    "select reflect('java.lang.System', 'getenv', 'HOME')",
    "select `java_method`('java.lang.System', 'getenv', 'HOME')",
    "select system.builtin.try_reflect('java.lang.System', 'getenv', 'HOME')",
    "select count(*) from outcomes limit reflect('java.lang.Integer', 'parseInt', '1')",
    "select identifier('re' || 'flect')('java.lang.System', 'getenv', 'HOME')",
    "select * from parquet.`{folder}`",
    "select exists(select 1 from csv.`/etc/passwd`)",
    "select * from outcomes where op in (select value from text.`/etc/passwd`)",
    "with `parquet.{folder}` as (select 1) select * from parquet.`{folder}`",
    "with a as (select * from json.`{folder}`) select 1",
    "select * from identifier('binaryFile' || '.`{folder}`')",
    "select * from read_files('{folder}')",
    "select * from python_worker_logs()",
    "select from_protobuf(x'00', 'A', '/etc/passwd')",
    "select schema_of_xml('<a/>', map('rowValidationXSDPath', '/etc/passwd'))",
    "select from_xml(op, 'a int', map('rowValidationXSDPath', '/etc/passwd')) from outcomes",
    "select xpath_string('<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>', 'a')",
    "select from_avro(x'00', '{{}}', map('avroSchemaUrl', 'file:///etc/passwd'))",
    "select count(*) from outcomes where f(op) = 1",
    "describe query select * from parquet.`{folder}`",
    "describe parquet.`{folder}`",
    "show create table outcomes",
    "show tables in global_temp",
    "with a as (select 1) insert overwrite directory '{file}' using csv table a",
    "with a as (select 1) from a insert overwrite directory '{file}' using csv select *",
)
COMMANDS = (
    "insert overwrite directory '{file}' using csv select 1",
    "create table t using parquet location '{file}' as select 1",
    "create function f as 'x' using jar '{file}'",
    "load data inpath '{file}' into table outcomes",
    "add jar '{file}'",
    "set spark.sql.ansi.enabled=false",
    "cache table outcomes",
    "execute immediate 'select 1'",
    "begin select 1; end",
    "drop view outcomes",
)
ALLOWED = (
    "select op, count(*) filter (where status = 'ok') n from outcomes group by cube(op) having count(*) > 0 order by n",
    "with a as (select 1 as x), b as (select x + 1 as x from a) select * from a union all select * from b",
    "with recursive r(n) as (select 1 union all select n + 1 from r where n < 3) select * from r",
    "select * from (values (1), (2)) as t(x) lateral view explode(array(x, x)) as y",
    "select *, row_number() over (partition by op order by seq) as r from outcomes qualify r = 1",
    "select seq, lag(seq) over w from outcomes window w as (order by seq) limit 3 offset 1",
    "select * from (select op, status from outcomes) pivot (count(*) for op in ('produce', 'consume'))",
    "select * from outcomes tablesample (10 rows)",
    "select /*+ broadcast(p) */ distinct o.op from outcomes o natural join phases p where exists (select 1 from log)",
    "select get_json_object(detail, '$.x'), percentile_approx(t_us, 0.5) from events group by all",
    "select * from range(3), lateral (select id + 1)",
    "select 1 intersect select 1 except select 2",
    "select transform(array(seq), x -> abs(x)), cast(op as binary), uuid(), typeof(seq), sha2(op, 256) from outcomes",
    "select if(seq > 1, nvl(topic, ''), concat(op, '-')), date_trunc('day', timestamp_micros(sent_us)) from outcomes",
    "select from_json(detail, 'x int').x, map_keys(map('a', 1)), named_struct('a', 1).a, seq & 1 from events, outcomes",
    "select stddev(sent_us), max_by(op, seq), collect_set(op), approx_count_distinct(seq), mode(op) from outcomes",
    "table CHECKS",
    "show tables",
    "describe outcomes",
    "describe query select 1",
    "from outcomes |> where op = 'produce' |> aggregate count(*)",
)


@pytest.fixture(scope="module")
def views(spark: "SparkSession", run: Evidence) -> None:
    sql.create_views(spark, [run])


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("text", [*HOSTILE, *COMMANDS])
def test_a_query_can_not_run_programs_or_reach_other_files(
    spark: "SparkSession", run: Evidence, tmp_path: Path, text: str
) -> None:
    """The refusal comes from the parsed plan: nothing was executed, read or written before."""
    with pytest.raises(AftershockError, match=r"`aftershock sql` does not|is not a table of the runs") as refused:
        sql.refuse_side_effects(spark, text.format(file=tmp_path / "made", folder=run.home / "outcomes"))
    with pytest.raises(AftershockError):
        run_query(spark, text.format(file=tmp_path / "made", folder=run.home / "outcomes"))
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert spark.catalog.tableExists("outcomes")
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def test_queries_of_the_tables_are_allowed(spark: "SparkSession", run: Evidence) -> None:
    sql.create_views(spark, [run])
    for text in ALLOWED:
        assert run_query(spark, text).columns, text


def test_the_files_of_the_resolved_plan_are_checked_too(
    spark: "SparkSession", run: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the check of the parsed plan let a table of another folder pass, the resolved plan names its files."""
    sql.create_views(spark, [run])
    shutil.copytree(run.home / "log", tmp_path / "log")
    monkeypatch.setattr(sql, "refuse_side_effects", lambda *_: None)
    with pytest.raises(AftershockError, match=r"log/part-0\.parquet, which is not a file of the run"):
        run_query(spark, f"select * from log join parquet.`{tmp_path}/log` using (seq)")  # noqa: S608 - the test is about it


def test_another_view_of_the_session_is_refused(spark: "SparkSession", run: Evidence) -> None:
    """The session of a cluster may have tables of others."""
    sql.create_views(spark, [run])
    copy = shutil.copytree(run.home / "outcomes", run.home.parent / "copy")
    spark.read.parquet(str(copy)).createOrReplaceTempView("stranger")
    try:
        with pytest.raises(AftershockError, match="stranger is not a table of the runs"):
            run_query(spark, "select * from stranger")
    finally:
        spark.catalog.dropTempView("stranger")
        shutil.rmtree(copy)
