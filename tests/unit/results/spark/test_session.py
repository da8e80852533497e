"""Spark sessions: settings by size and place, refusals, and Sail."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.evidence.evidence import read
from aftershock.results.spark.conf import (
    BYTES_MAX,
    C2_ROWS,
    LONG_TASK,
    ROWS_MAX,
    SMALL,
    UNKNOWN,
    Load,
    load_of,
    of_jvm,
    of_session,
)
from aftershock.results.spark.session import master_of, reachable, session
from aftershock.results.spark.tables import columns, files_removed, literal, scratch_of, store, tables
from aftershock.tests.unit.results.evidence_factory import Made
from aftershock.tests.unit.results.spark_servers import connect_server

LARGE = Load(rows=ROWS_MAX + 1)


@pytest.mark.parametrize(("memory_gib", "heap"), [(4, "2048m"), (16, "4096m"), (64, "6144m")])
def test_the_heap_is_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch, memory_gib: int, heap: str) -> None:
    """From 2 to 6 GB; the run of a test needs less than half a gigabyte on any host."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": memory_gib << 18}.__getitem__)
    assert [SMALL.heap, *[load.heap for load in (Load(rows=200_000), LARGE, UNKNOWN)]] == ["480m", heap, heap, heap]


@pytest.mark.parametrize(("memory_gib", "fits"), [(4, False), (16, True)])
def test_evidence_that_needs_half_of_the_memory_goes_to_spark(
    monkeypatch: pytest.MonkeyPatch, memory_gib: int, *, fits: bool
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": memory_gib << 18}.__getitem__)
    assert [Load(rows=40_000_000).fits_sail, SMALL.fits_sail, UNKNOWN.fits_sail] == [fits, True, True]


def test_flags_follow_the_size_of_the_evidence(made: Made, tmp_path: Path) -> None:
    """Small evidence uses C1 and plain plans; large evidence uses adaptive plans, more memory and ParallelGC."""
    home = made.write(tmp_path / "run")
    parts = sorted(home.glob("outcomes/*.parquet"))
    load = load_of(parts)
    assert (18_000, sum(part.stat().st_size for part in parts)) == (load.rows, load.bytes)
    assert [load.large, LARGE.large, Load(bytes=BYTES_MAX + 1).large] == [False, True, True]
    assert load_of([*parts, "hdfs://host/part.parquet"]) is UNKNOWN
    assert UNKNOWN.large
    sizes = (SMALL, Load(rows=200_000), LARGE, UNKNOWN)
    told = [of_jvm("local[2]", load, tmp_path) for load in sizes]
    flags = [one["spark.driver.extraJavaOptions"] for one in told]
    assert all("TieredStopAtLevel=1" in flag for flag in flags)
    day = of_jvm("local[2]", Load(rows=C2_ROWS + 1), tmp_path)
    assert "TieredStopAtLevel" not in day["spark.driver.extraJavaOptions"]
    assert ["ParallelGC" in flag for flag in flags] == [False, False, True, True]
    assert [one["spark.driver.memory"] for one in told] == [one.heap for one in sizes]
    assert [one["spark.sql.adaptive.enabled"] for one in told] == ["false", "false", "false", "true"]
    assert [one["spark.sql.shuffle.partitions"] for one in told] == ["1", "2", "2", "8"]
    assert [one["spark.buffer.pageSize"] for one in told] == ["1m", "4m", "4m", "4m"]
    assert [one.get("spark.sql.codegen.wholeStage") for one in told] == ["false", None, None, None]
    assert [one.get("spark.sql.files.maxPartitionBytes") for one in told] == [None, None, None, LONG_TASK]
    assert "spark.sql.files.maxPartitionBytes" not in of_jvm("spark://host:7077", UNKNOWN, tmp_path)


def test_settings_that_affect_results_are_the_same_everywhere(tmp_path: Path) -> None:
    """Time zone, ANSI mode and broadcasts are set on every master; folders and addresses of a cluster are not."""
    masters = ("local[2]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn")
    told = {master: of_jvm(master, LARGE, tmp_path) for master in masters}
    for settings in (*told.values(), of_session(SMALL)):
        assert settings["spark.sql.session.timeZone"] == "UTC"
        assert settings["spark.sql.ansi.enabled"] == "true"
        assert settings["spark.sql.autoBroadcastJoinThreshold"] == "-1"
    ours = ("spark.local.dir", "spark.driver.host", "spark.driver.bindAddress")
    assert [all(name in told[master] for name in ours) for master in masters] == [True, True, False, False]
    assert not any(name in told[master] for master in masters[2:] for name in ours)


def test_the_command_line_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is --spark, SPARK_REMOTE, Sail."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert [master_of(None), master_of(None, "local[2]")] == ["sail", "local[2]"]
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert [master_of(None), master_of("local[*]")] == ["sc://host", "local[*]"]


@pytest.mark.parametrize("url", ["sc://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "sc://", "sc://host:port"])
def test_an_unreachable_master_is_an_error_at_once(url: str, tmp_path: Path) -> None:
    """Spark's own clients retry for minutes; the error has the address and a remedy."""
    with pytest.raises(EvidenceError, match=r"no answer from .*start Spark there, or correct the address"):
        session(tmp_path / "spark.log", url).__enter__()


def test_other_addresses_are_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only addresses that accept a TCP connection can be probed."""
    probed: list[tuple[str, int]] = []
    monkeypatch.setattr("socket.create_connection", lambda place, _: probed.append(place))
    for url in ("local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        reachable(url)
    assert probed == []


def test_glob_characters_in_folders_are_literal() -> None:
    """A folder may be named [x]{y}, which Hadoop would use as a pattern."""
    assert literal("/a b%20/[x]{y}*?") == r"/a b%20/\[x\]\{y\}\*\?"


@pytest.mark.spark
@pytest.mark.parametrize("name", ["run", "a [b]* {x} é% run"])
def test_sail_reads_the_evidence_in_any_folder(made: Made, tmp_path: Path, name: str) -> None:
    """Also in a folder whose name Sail would take for a pattern; its own files are gone afterwards."""
    evidence = read(made.write(tmp_path / name), columns())
    with session(tmp_path / name / "logs" / "spark.log") as spark:
        rows = store(tables(spark, [evidence, evidence]).outcomes)
        assert {row["run"]: row["count"] for row in rows.groupBy("run").count().collect()} == {0: 18_000, 1: 18_000}
    assert [] == [*(tmp_path / name / "logs").glob(".spark-*")]


@pytest.mark.spark
def test_proxies_and_settings_of_the_environment_do_not_reach_sail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's client goes through the proxy of the environment even on loopback."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("SAIL_MODE", "kubernetes-cluster")
    with session(tmp_path / "spark.log") as spark:
        assert spark.range(3).count() == 3


@pytest.mark.spark
def test_sail_runs_no_functions_in_python(tmp_path: Path) -> None:
    """Any user of the host may send it queries, and such a function would have the rights of the judge."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - tests without Spark should not load it
    from pyspark.sql import functions as F  # noqa: PLC0415 - Spark's own custom

    with session(tmp_path / "spark.log") as spark, pytest.raises(PySparkException, match="No module named 'pyspark"):
        spark.range(1).select(F.udf(lambda _: (tmp_path / "ran").touch(), "int")("id")).collect()
    assert not (tmp_path / "ran").exists()


@pytest.mark.spark
def test_tables_are_removed_at_the_end_of_a_measurement(tmp_path: Path) -> None:
    """A session that judges many runs would fill the disk."""
    with session(tmp_path / "spark.log") as spark:
        folder = Path(scratch_of(spark) or "")
        kept = store(spark.range(1))
        with files_removed(spark):
            assert store(spark.range(2)).count() == 2
            assert len([*folder.iterdir()]) == 2
        assert kept.count() == 1
        assert len([*folder.iterdir()]) == 1


@pytest.mark.spark
def test_sail_that_dies_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark would try to reach it for ten minutes."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - tests without Spark should not load it

    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen
    monkeypatch.setattr("subprocess.Popen", lambda *given, **more: started.append(start(*given, **more)) or started[-1])
    with session(tmp_path / "spark.log") as spark:
        started[0].kill()
        with pytest.raises(PySparkException):
            spark.range(3).count()


def test_sail_that_does_not_start_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("true"))
    log = tmp_path / "spark.log"
    with pytest.raises(EvidenceError, match=f"did not start; see {re.escape(str(log))}"):
        session(log).__enter__()


def test_sail_refuses_a_folder_for_files_that_it_can_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "[x]"))
    (tmp_path / "[x]").mkdir()
    with pytest.raises(EvidenceError, match="set TMPDIR"):
        session(tmp_path / "spark.log").__enter__()


@pytest.mark.spark
def test_spark_connect_runs_without_a_local_jvm(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK_REMOTE gives a session with the project's settings; errors are logged in full."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - tests without Spark should not load it
    from pyspark.sql import functions as F  # noqa: PLC0415 - Spark's own custom

    home = made.write(tmp_path / "run")
    log = tmp_path / "logs" / "spark.log"
    with connect_server(tmp_path) as url:
        monkeypatch.setenv("SPARK_REMOTE", url)
        with session(log) as spark:
            rows = spark.read.parquet(str(home / "outcomes"))
            counted = rows.groupBy("op").agg(F.count("*").alias("n")).orderBy("op").collect()
            assert [tuple(row) for row in counted] == [("consume", 12_000), ("produce", 6_000)]
            assert spark.conf.get("spark.sql.autoBroadcastJoinThreshold") == "-1"
        assert not log.exists()
        with pytest.raises(PySparkException), session(log) as spark:
            spark.sql("select nothing from nowhere").collect()
    assert "nowhere" in log.read_text()
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
