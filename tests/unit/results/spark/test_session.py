"""Spark sessions: settings by size and place, refusals, and the class-data archive."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.spark import session as class_data
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
from aftershock.results.spark.tables import literal
from aftershock.tests.unit.results.evidence_factory import Made
from aftershock.tests.unit.results.spark_servers import connect_server

LARGE = Load(rows=ROWS_MAX + 1)


@pytest.mark.parametrize(("memory_gib", "heap"), [(4, "2048m"), (16, "4096m"), (64, "6144m")])
def test_the_heap_is_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch, memory_gib: int, heap: str) -> None:
    """From 2 to 6 GB; the run of a test needs less than half a gigabyte on any host."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": memory_gib << 18}.__getitem__)
    assert [SMALL.heap, *[load.heap for load in (Load(rows=200_000), LARGE, UNKNOWN)]] == ["480m", heap, heap, heap]


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
    told = [of_jvm("local[2]", load, tmp_path, ["-Dx=1"]) for load in sizes]
    flags = [one["spark.driver.extraJavaOptions"] for one in told]
    assert all("TieredStopAtLevel=1" in flag for flag in flags)
    day = of_jvm("local[2]", Load(rows=C2_ROWS + 1), tmp_path, [])
    assert "TieredStopAtLevel" not in day["spark.driver.extraJavaOptions"]
    assert ["ParallelGC" in flag for flag in flags] == [False, False, True, True]
    assert all(flag.endswith(" -Dx=1") for flag in flags)
    assert [one["spark.driver.memory"] for one in told] == [one.heap for one in sizes]
    assert [one["spark.sql.adaptive.enabled"] for one in told] == ["false", "false", "false", "true"]
    assert [one["spark.sql.shuffle.partitions"] for one in told] == ["1", "2", "2", "8"]
    assert [one["spark.buffer.pageSize"] for one in told] == ["1m", "4m", "4m", "4m"]
    assert [one.get("spark.sql.codegen.wholeStage") for one in told] == ["false", None, None, None]
    assert [one.get("spark.sql.files.maxPartitionBytes") for one in told] == [None, None, None, LONG_TASK]
    assert "spark.sql.files.maxPartitionBytes" not in of_jvm("spark://host:7077", UNKNOWN, tmp_path, [])


def test_settings_that_affect_results_are_the_same_everywhere(tmp_path: Path) -> None:
    """Time zone, ANSI mode and broadcasts are set on every master; folders and addresses of a cluster are not."""
    masters = ("local[2]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn")
    told = {master: of_jvm(master, LARGE, tmp_path, []) for master in masters}
    for settings in (*told.values(), of_session(SMALL)):
        assert settings["spark.sql.session.timeZone"] == "UTC"
        assert settings["spark.sql.ansi.enabled"] == "true"
        assert settings["spark.sql.autoBroadcastJoinThreshold"] == "-1"
    ours = ("spark.local.dir", "spark.driver.host", "spark.driver.bindAddress")
    assert [all(name in told[master] for name in ours) for master in masters] == [True, True, False, False]
    assert not any(name in told[master] for master in masters[2:] for name in ours)


def test_the_command_line_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is --spark, SPARK_REMOTE, local."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert master_of(None) == "local[2]"
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


def test_a_missing_client_of_connect_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark Connect is an extra: the error names the extra, and Spark's mode variables are unchanged."""
    monkeypatch.setitem(__import__("sys").modules, "pyspark.sql.connect.session", None)
    monkeypatch.setattr("aftershock.results.spark.session.reachable", lambda _: None)
    with pytest.raises(EvidenceError, match=r"pip install 'pyspark\[connect\]'"):
        session(tmp_path / "spark.log", "sc://127.0.0.1:1").__enter__()
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_glob_characters_in_folders_are_literal() -> None:
    """A folder may be named [x]{y}, which Hadoop would use as a pattern."""
    assert literal("/a b%20/[x]{y}*?") == r"/a b%20/\[x\]\{y\}\*\?"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    class_data.archive_here.cache_clear()
    yield tmp_path / "a cache" / "aftershock"
    class_data.archive_here.cache_clear()


def test_the_archive_name_depends_on_java_pyspark_and_jars(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is used if it exists; without Java there is no error."""
    archive = class_data.archive_here()
    assert archive is not None
    assert archive.parent == cache
    assert class_data.options_here() == ()
    cache.mkdir(parents=True)
    archive.touch()
    assert class_data.options_here() == (f'"-XX:SharedArchiveFile={archive}"',)
    monkeypatch.setenv("SPARK_HOME", str(cache))
    class_data.archive_here.cache_clear()
    assert class_data.archive_here() not in (None, archive)
    monkeypatch.setenv("JAVA_HOME", str(cache))
    class_data.archive_here.cache_clear()
    assert (class_data.archive_here(), class_data.options_here()) == (None, ())


@pytest.mark.usefixtures("cache")
def test_the_archive_is_created_only_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not created if it exists, if this Java failed to create it, or if another process creates it."""
    made: list[Path] = []
    monkeypatch.setattr(class_data, "create_archive", made.append)
    archive = class_data.archive_here()
    assert archive is not None
    class_data.ensure_archive(lambda _: None)
    assert made == [archive]
    for there in (archive, class_data.refusal_of(archive)):
        there.touch()
        class_data.ensure_archive(lambda _: None)
        there.unlink()
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        class_data.ensure_archive(lambda _: None)
    assert made == [archive]


@pytest.mark.spark
@pytest.mark.nightly
def test_the_archive_is_created_once_and_used(cache: Path, tmp_path: Path) -> None:
    """A session with the archive computes the same as one without, and its creation is announced."""
    said: list[str] = []
    for _ in range(2):
        class_data.ensure_archive(said.append)
    assert len(said) == 1
    assert [*cache.glob("*.jsa")] == [class_data.archive_here()]
    with session(tmp_path / "spark.log") as spark:
        assert spark.range(3).count() == 3


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
