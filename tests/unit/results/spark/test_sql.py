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


pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

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
        f"with x as (select 1) insert overwrite directory '{folder}' using csv table x": "changes a table",
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
