"""The class-data archive: classes as Java has loaded and checked them once, so that a JVM starts in half the time.

Half of a small judgement is the JVM reading ten thousand classes; AppCDS maps them from a file instead. The file
belongs to one Java, one PySpark and one folder of jars, and is named for them. Rules: it lies in the user's cache
(XDG_CACHE_HOME) and may be removed at any time; `aftershock images --ensure` makes it (``class_data_maker.py``);
without it, or with a bad one, all works as well and starts slower.

What PySpark itself logs of an exception, Java's stack trace and all: into the log, never onto the terminal.

Starts the JVM that Spark lives in, and ends it, however its block is left.

Rules: its chatter goes to a file, never the terminal; our caller's Ctrl-C handler is put back; PySpark forgets a JVM
that has ended, so that another session can follow in the same process.

Whether anybody answers where Spark is said to be: its own clients try for minutes before they say no.

A session of Spark Connect: Spark is somebody else's process, and is spoken to over gRPC.

Rules: its client is imported only here and only when asked for; only settings of the session are made, and only those
that the server takes; while the block lasts, PySpark's functions build for Connect, afterwards for a JVM again.

One Spark session: the only place that says where Spark runs, and the only one through which one begins and ends.

::

    --spark MASTER, else SPARK_REMOTE, else local[2]
       local[2]  local-cluster[2,1,1024]   a JVM of ours, on this host alone
       spark://host:port  yarn  k8s://…    the same JVM as the driver, executors elsewhere
       sc://host:port                      Spark Connect: no JVM of ours at all

Rules: nothing ships rows through this process, and no jar of ours is needed anywhere. What Spark spills lies in a
hidden folder beside the log: who is killed leaves it there, and who removes the run's leavings finds it.
"""

import hashlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError
from aftershock.results.spark.conf import SMALL, Load, of_jvm, of_session

JAVA_DEADLINE_S = 20.0


def options_here() -> tuple[str, ...]:
    """Java's option that uses the archive; none where there is no archive yet."""
    archive = archive_here()
    return (quoted("-XX:SharedArchiveFile", archive),) if archive and archive.is_file() else ()


def quoted(option: str, path: Path) -> str:
    """An option with a path, as Spark's launcher takes it apart again."""
    return f'"{option}={path}"' if " " in str(path) else f"{option}={path}"


@cache
def archive_here() -> Path | None:
    """Where the archive of this Java and PySpark lies or will lie; None where there is no Java, or no folder for it."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=JAVA_DEADLINE_S, check=True)
        folder = _cache()
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    key = hashlib.sha256(told.stderr + f"{pyspark.__version__}\n{jars.resolve()}".encode()).hexdigest()[:16]
    archive = folder / f"class-data-{pyspark.__version__}-{key}.jsa"
    return archive if not set(str(archive)) & set("\"'\\") else None  # the launcher would read these as its own


def _cache() -> Path:
    told = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(told) if Path(told).is_absolute() else Path.home() / ".cache"
    return home / "aftershock"


def refusal_of(archive: Path) -> Path:
    """The file that says that this Java makes no archive, so that nobody tries again."""
    return archive.with_suffix(".refused")


_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def chatter_to(log: Path) -> Iterator[None]:
    """While the block lasts, PySpark's loggers of exceptions write to ``log``."""
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
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


EXIT_DEADLINE_S = 10.0

# what a call into a JVM raises that has died, or can't say what went wrong in it
JVM_LOST = (Py4JError, OSError)

# what PySpark looks up by name in the JVM again and again: 3,700 times a judgement, which took a second
_OFTEN = {
    "functions": ("col", "lit", "when"),
    "org.apache.spark.sql.functions": ("col", "lit", "when"),
    "PythonUtils": ("toSeq",),
    "PythonSQLUtils": (),
}


@contextmanager
def jvm_session(
    settings: Mapping[str, str], log: Path, exit_deadline_s: float = EXIT_DEADLINE_S
) -> Iterator[SparkSession]:
    """A session in a JVM of its own, which ends with the block. Raises EvidenceError where Spark can't be started."""
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    with log.open("ab") as told, _jvm(conf, told, log, exit_deadline_s) as gateway:
        yield _started(conf, gateway, log)


def reason(broken: Exception) -> str:
    """What a call into the JVM raised, in a line. Ask while the session lasts: Py4J has the text from the JVM."""
    try:
        lines = str(broken).splitlines()
    except JVM_LOST:
        return "its JVM died"
    told = (line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling"))
    return next(filter(None, map(str.strip, told)), type(broken).__name__)


def _started(conf: SparkConf, gateway: Any, log: Path) -> SparkSession:
    """SparkContext installs a Ctrl-C handler of its own in the main thread; ours is to stay."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    try:
        _remember(gateway.jvm)
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (PySparkException, *JVM_LOST) as broken:
        why = f"Spark did not start at {conf.get('spark.master')}: {reason(broken)}; see {log}"
        raise EvidenceError(why) from broken
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _remember(jvm: Any) -> None:
    """Looks up once, for as long as the JVM lives, what is looked up most."""
    for name, members in _OFTEN.items():
        found = getattr(jvm, name)
        setattr(jvm, name, found)
        for member in members:
            setattr(found, member, getattr(found, member))


@contextmanager
def _jvm(conf: SparkConf, told: IO[bytes], log: Path, exit_deadline_s: float) -> Iterator[Any]:
    gateway = _launched(conf, told, log)
    try:
        yield gateway
        with suppress(*JVM_LOST):  # there is nothing left to stop
            SparkSession.active().stop()
    finally:
        _end(gateway, exit_deadline_s)


def _launched(conf: SparkConf, told: IO[bytes], log: Path) -> Any:
    """A gateway to a new JVM, started from a thread so that a Ctrl-C meanwhile can't lose track of the process."""
    with _unremoted(), ThreadPoolExecutor(1) as pool:
        start: Future[Any] = pool.submit(launch_gateway, conf, {"stdout": told, "stderr": subprocess.STDOUT})
        try:
            return start.result()
        except (PySparkException, OSError) as broken:
            why = f"Spark's JVM did not start ({broken}); see {log}, and check that "
            why += f"`java -version` says 17 or later and that Spark knows {conf.get('spark.master')}"
            raise EvidenceError(why) from broken
        except BaseException:
            _end(start.result(), EXIT_DEADLINE_S)
            raise


@contextmanager
def _unremoted() -> Iterator[None]:
    """Keeps SPARK_REMOTE from a JVM that we start: it would take it for a second master, and refuse."""
    remote = os.environ.pop("SPARK_REMOTE", None)
    try:
        yield
    finally:
        if remote is not None:
            os.environ["SPARK_REMOTE"] = remote


def _end(gateway: Any, deadline_s: float) -> None:
    """Ends the JVM and makes PySpark forget it."""
    SparkContext._active_spark_context = None  # noqa: SLF001 - PySpark has no public way to drop a gateway
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    with suppress(Exception):  # the JVM may be dead already; what matters is the wait that follows
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(deadline_s)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


DEADLINE_S = 10.0
_PORTS = {"sc": 15002, "spark": 7077}


def reachable(url: str) -> None:
    """Raises EvidenceError where nobody listens at ``sc://host[:port][/;…]`` or any of ``spark://host:port[,…]``.

    Addresses of other kinds are believed.
    """
    scheme, there, rest = url.partition("://")
    if not there or scheme not in _PORTS:
        return
    hosts = rest.split("/")[0].split(",")
    refused = [why for host in hosts if (why := _refusal(host, _PORTS[scheme]))]
    if len(refused) == len(hosts):
        who = ", ".join(refused)
        raise EvidenceError(f"nobody answers at {scheme}://{who}; start Spark there, or mend the address")


def _refusal(host: str, port: int) -> str:
    try:
        address = urlsplit(f"//{host}")
        socket.create_connection((address.hostname or "", address.port or port), DEADLINE_S).close()
    except (OSError, ValueError) as refused:
        return f"{host} ({refused})"
    return ""


SCHEME = "sc://"
_MODE = "SPARK_CONNECT_MODE_ENABLED"  # by this PySpark's functions know whom they build for


@contextmanager
def connected(url: str, log: Path, load: Load) -> Iterator[SparkSession]:
    """A session of its own at ``url`` (``sc://host:port``). What goes wrong in the block is told in full in ``log``."""
    reachable(url)
    before = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        spark = _session(url, load)
        try:
            yield spark
        finally:
            spark.stop()
    except PySparkException:
        with log.open("a", encoding="utf-8") as told:
            traceback.print_exc(file=told)
        raise
    finally:
        os.environ.pop(_MODE) if before is None else os.environ.update({_MODE: before})


def _session(url: str, load: Load) -> SparkSession:
    try:
        from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415 - an extra, see the module
    except ImportError as missing:
        why = f"{url} is Spark Connect, whose client is not all here ({missing})".replace("\n", " ")
        raise EvidenceError(f"{why}; pip install 'aftershock[connect]'") from missing
    try:
        spark = cast("SparkSession", Remote.builder.remote(url).create())
        for name, value in of_session(load).items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
    except PySparkException as broken:
        raise EvidenceError(f"{url}: no session of Spark Connect ({broken}); see the server's log") from broken
    return spark


__all__ = ["DEFAULT_MASTER", "JVM_LOST", "SCRATCH_PREFIX", "master_of", "reason", "session"]

DEFAULT_MASTER = "local[2]"
SCRATCH_PREFIX = ".spark-"


def master_of(master: str | None) -> str:
    """Where Spark is to run, as the command line or else the environment says."""
    return master or os.environ.get("SPARK_REMOTE") or DEFAULT_MASTER


@contextmanager
def session(
    log: Path,
    master: str | None = None,
    load: Load = SMALL,
    options: Sequence[str] | None = None,
    exit_deadline_s: float = EXIT_DEADLINE_S,
) -> Iterator[SparkSession]:
    """A session at ``master`` for the length of the block, set up for ``load``; ``log`` gets what a JVM prints.

    ``options`` are Java's, by default those that use the class-data archive; a JVM that takes longer than
    ``exit_deadline_s`` to end is killed. Raises EvidenceError where no session can be had; it names the log.
    """
    where = master_of(master)
    log.parent.mkdir(parents=True, exist_ok=True)
    if where.startswith(SCHEME):
        with chatter_to(log), connected(where, log, load) as spark:
            yield spark
        return
    reachable(where)
    with _scratch(log) as scratch:
        settings = of_jvm(where, load, scratch, options_here() if options is None else options)
        with chatter_to(log), jvm_session(settings, log, exit_deadline_s) as spark:
            yield spark


@contextmanager
def _scratch(log: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=log.parent.resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
