"""Spark sessions at any master, each open for a ``with`` block. Only this module opens Spark sessions.

::

    --spark MASTER, else SPARK_REMOTE, else local[2]
       local[2]  local-cluster[2,1,1024]   a JVM of ours, on this host alone
       spark://host:port  yarn  k8s://…    the same JVM as the driver, executors elsewhere
       sc://host:port                      Spark Connect, no JVM of ours at all

Spark spills to a hidden folder beside its log; if the process is killed, the folder stays until the run directory is
cleaned up. The output of Spark's JVM goes to the log, never to the terminal. Spark's own clients retry for minutes, so
Aftershock first probes the address of the master.

Half the time of judging a small run goes into loading ten thousand classes into the JVM. With a class-data archive
(AppCDS), the JVM maps these classes from a file instead. A class-data archive is for one Java, one PySpark and one
folder of jars, and may be removed at any time; `aftershock images --ensure` creates the archive.
"""

import fcntl
import hashlib
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from aftershock.errors import EvidenceError
from aftershock.redaction import redact
from aftershock.results.spark.conf import SMALL, Load, of_jvm, of_session
from aftershock.results.spark.tables import small

DEFAULT_MASTER = "local[2]"
SCRATCH_PREFIX = ".spark-"
JAVA_DEADLINE_S = 20.0
EXIT_DEADLINE_S = 10.0
CONNECT_DEADLINE_S = 10.0
DUMP_DEADLINE_S = 300.0

# Raised by a call into a JVM that died, or that can't report its error.
JVM_LOST = (Py4JError, OSError)


def master_of(master: str | None) -> str:
    return master or os.environ.get("SPARK_REMOTE") or DEFAULT_MASTER


@contextmanager
def session(
    log: Path,
    master: str | None = None,
    load: Load = SMALL,
    options: Sequence[str] | None = None,
    exit_deadline_s: float = EXIT_DEADLINE_S,
) -> Iterator[SparkSession]:
    """Open a Spark session at ``master``, sized for ``load``, for the length of a ``with`` block.

    ``options`` are Java options, by default those for the class-data archive; the output of a JVM goes to ``log``. A
    JVM that takes longer than ``exit_deadline_s`` to end is killed. Raises EvidenceError, with the name of the log, if
    no Spark session can be opened.
    """
    address = master_of(master)
    log.parent.mkdir(parents=True, exist_ok=True)
    reachable(address)
    if address.startswith("sc://"):
        with _exceptions_logged_to(log), connect_session(address, log, load) as spark:
            yield spark
        return
    folder = log.parent.resolve()
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=folder, ignore_cleanup_errors=True) as scratch:
        settings = of_jvm(address, load, Path(scratch), options_here() if options is None else options)
        with _exceptions_logged_to(log), jvm_session(settings, log, exit_deadline_s) as spark:
            yield spark


def reachable(url: str) -> None:
    """Raise EvidenceError if nothing listens at ``sc://host[:port][/;…]`` or any of ``spark://host:port[,…]``.

    Addresses with other schemes than ``sc`` and ``spark`` are not probed.
    """
    scheme, separator, hosts = url.partition("://")
    ports = {"sc": 15002, "spark": 7077}
    if not separator or scheme not in ports:
        return
    refusals = []
    for host in hosts.split("/")[0].split(","):
        try:
            address = urlsplit(f"//{host}")
            place = address.hostname or "", address.port or ports[scheme]
            socket.create_connection(place, CONNECT_DEADLINE_S).close()
        except (OSError, ValueError) as refused:
            refusals.append(f"{host} ({refused})")
        else:
            return
    raise EvidenceError(f"no answer from {scheme}://{', '.join(refusals)}; start Spark there, or correct the address")


@contextmanager
def _exceptions_logged_to(log: Path) -> Iterator[None]:
    names = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
    loggers = [PySparkLogger.getLogger(name) for name in names]
    before = [list(logger.handlers) for logger in loggers]
    file = logging.FileHandler(log, delay=True)
    try:
        for logger in loggers:
            logger.handlers.clear()
            logger.addHandler(file)
        yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
        file.close()


@contextmanager
def jvm_session(settings: Mapping[str, str], log: Path, exit_deadline_s: float) -> Iterator[SparkSession]:
    """Open a Spark session in a new JVM for a ``with`` block. Raises EvidenceError if Spark can't be started."""
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    with log.open("ab") as output:
        gateway = _start_jvm(conf, output, log)
        try:
            # SparkContext replaces the Ctrl-C handler in the main thread.
            main = threading.current_thread() is threading.main_thread()
            before = signal.getsignal(signal.SIGINT) if main else None
            try:
                # PySpark looks these names up in the JVM 3,700 times per judgement, which took a second.
                for name, members in _CACHED_NAMES.items():
                    package = getattr(gateway.jvm, name)
                    setattr(gateway.jvm, name, package)
                    for member in members:
                        setattr(package, member, getattr(package, member))
                spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
            except (PySparkException, *JVM_LOST) as error:
                why = f"Spark did not start at {conf.get('spark.master')}: {reason(error)}; see {log}"
                raise EvidenceError(why) from error
            finally:
                if before is not None:
                    signal.signal(signal.SIGINT, before)
            yield spark
            with suppress(*JVM_LOST):  # the JVM is gone already
                SparkSession.active().stop()
        finally:
            _end_jvm(gateway, exit_deadline_s)


_CACHED_NAMES = {
    "functions": ("col", "lit", "when"),
    "org.apache.spark.sql.functions": ("col", "lit", "when"),
    "PythonUtils": ("toSeq",),
    "PythonSQLUtils": (),
}


def _start_jvm(conf: SparkConf, output: IO[bytes], log: Path) -> Any:
    """Start a JVM for Spark and return its Py4J gateway.

    A thread starts the JVM, so that Ctrl-C during the start can't lose track of the JVM's process. SPARK_REMOTE is
    hidden from the JVM, which would take the address for a second master, and refuse to start.
    """
    remote = os.environ.pop("SPARK_REMOTE", None)
    try:
        with ThreadPoolExecutor(1) as pool:
            start: Future[Any] = pool.submit(launch_gateway, conf, {"stdout": output, "stderr": subprocess.STDOUT})
            try:
                return start.result()
            except (PySparkException, OSError) as error:
                why = f"Spark's JVM did not start ({error}); see {log}, and check that "
                why += f"`java -version` reports 17 or later and that Spark supports {conf.get('spark.master')}"
                raise EvidenceError(why) from error
            except BaseException:
                _end_jvm(start.result(), EXIT_DEADLINE_S)
                raise
    finally:
        if remote is not None:
            os.environ["SPARK_REMOTE"] = remote


def _end_jvm(gateway: Any, deadline_s: float) -> None:
    SparkContext._active_spark_context = None  # noqa: SLF001 - PySpark has no public way to drop a gateway
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    with suppress(Exception):  # the JVM may be dead already; the wait below matters
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(deadline_s)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def reason(error: Exception) -> str:
    """Return an error from Spark's JVM as text, which Py4J reads from the JVM, so the session must be open."""
    try:
        lines = str(error).splitlines()
    except JVM_LOST:
        return "its JVM died"
    texts = (line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling"))
    return next(filter(None, map(str.strip, texts)), type(error).__name__)


@contextmanager
def connect_session(url: str, log: Path, load: Load) -> Iterator[SparkSession]:
    """Open a Spark Connect session at ``url``. The traceback of an error in the ``with`` block goes to ``log``."""
    mode = "SPARK_CONNECT_MODE_ENABLED"  # tells PySpark's functions to build for Connect
    before = os.environ.get(mode)
    os.environ[mode] = "1"
    try:
        try:
            from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415 - an extra, see the module
        except ImportError as missing:
            what = str(missing).replace("\n", " ")
            why = f"{url} is a Spark Connect server; the Spark Connect client isn't fully installed ({what})"
            raise EvidenceError(f"{why}; pip install 'pyspark[connect]'") from missing
        try:
            spark = cast("SparkSession", Remote.builder.remote(url).create())
            for name, value in of_session(load).items():
                if spark.conf.isModifiable(name):
                    spark.conf.set(name, value)
        except PySparkException as error:
            raise EvidenceError(
                f"{url}: the Spark Connect server opened no session ({error}); see the server's log"
            ) from error
        try:
            yield spark
        finally:
            spark.stop()
    except PySparkException:
        with log.open("a", encoding="utf-8") as file:
            file.write(redact(traceback.format_exc()))
        raise
    finally:
        os.environ.pop(mode) if before is None else os.environ.update({mode: before})


def options_here() -> tuple[str, ...]:
    archive = archive_here()
    return (_quoted("-XX:SharedArchiveFile", archive),) if archive and archive.is_file() else ()


def _quoted(option: str, path: Path) -> str:
    return f'"{option}={path}"' if " " in str(path) else f"{option}={path}"


@cache
def archive_here() -> Path | None:
    """Return the path of the class-data archive of this Java and PySpark; None without Java or a cache folder."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    try:
        version = subprocess.run([java, "-version"], capture_output=True, timeout=JAVA_DEADLINE_S, check=True)
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (cache if cache.is_absolute() else Path.home() / ".cache") / "aftershock"
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    key = hashlib.sha256(version.stderr + f"{pyspark.__version__}\n{jars.absolute()}".encode()).hexdigest()[:16]
    archive = folder / f"class-data-{pyspark.__version__}-{key}.jsa"
    return archive if not set(str(archive)) & set("\"'\\") else None  # the launcher interprets these characters


def refusal_of(archive: Path) -> Path:
    """Return the file whose existence means that creating this class-data archive failed and isn't tried again."""
    return archive.with_suffix(".refused")


def ensure_archive(log: Callable[[str], None]) -> None:
    """Create the class-data archive of this Java and PySpark if missing. Raises EvidenceError if Spark can't start.

    If another process is creating the class-data archive, do nothing. The archive's file appears only when the archive
    is complete.
    """
    archive = archive_here()
    if archive is None or archive.exists() or refusal_of(archive).exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if not archive.exists():
            log("storing an archive of Spark's classes, so that Spark starts faster from now on (half a minute, once)")
            create_archive(archive)


def create_archive(archive: Path) -> None:
    """Run typical queries of the judge in a JVM that writes its loaded classes to the class-data archive at exit."""
    draft, log = archive.with_suffix(".draft"), archive.with_suffix(".log")
    draft.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    options = (_quoted("-XX:ArchiveClassesAtExit", draft),)
    with tempfile.TemporaryDirectory(prefix="class-data-", dir=archive.parent) as folder:
        part = Path(folder) / "part.parquet"
        pq.write_table(pa.table({"who": ["a", "b"] * 50, "at": range(100)}), part)
        with session(log, "local[2]", SMALL, options, DUMP_DEADLINE_S) as spark:
            rows = spark.read.schema("who string, at bigint").parquet(str(part)).where("at is not null")
            numbers = small(spark, [("a", 1)], "who string, number int")
            counts = (
                rows.join(F.broadcast(numbers), "who", "left")
                .groupBy("who", F.expr("at div 7").alias("slot"))
                .agg(
                    F.count("*").alias("n"),
                    F.bit_xor(F.xxhash64("who", "at")).alias("print"),
                    F.min("at").alias("first"),
                    F.max(F.when(F.col("at") > 3, F.col("at"))).alias("last"),  # noqa: PLR2004 - any number
                    F.collect_list(F.struct("at", "number")).alias("all"),
                )
                .persist()
            )
            lane = Window.partitionBy("who").orderBy("first")
            gaps = counts.withColumn("gap", F.col("first") - F.lag("last").over(lane))
            gaps.withColumn("upto", F.sum("n").over(lane)).collect()
            items = counts.select("who", F.explode("all").alias("item"))
            items.unionByName(rows.select("who", F.struct("at").alias("item")), True).collect()
            unnumbered = counts.join(F.broadcast(numbers), "who", "left_anti")
            unnumbered.selectExpr("inline(all)").groupBy("number").count().collect()
    if draft.exists():
        draft.replace(archive)
    else:
        refusal_of(archive).touch()
