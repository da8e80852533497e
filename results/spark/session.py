"""Spark sessions at any master, each open for a ``with`` block. Only this module opens Spark sessions.

::

    --spark MASTER, else SPARK_REMOTE, else sail, or local[2] for evidence that Sail can't hold in memory
       sail                                Sail, in a process on this host, without a JVM
       local[2]  local-cluster[2,1,1024]   Spark in a JVM of ours, on this host alone
       spark://host:port  yarn  k8s://…    the same JVM as the driver, executors elsewhere
       sc://host:port                      Spark Connect, no process of ours at all

Sail and Spark give the same results. Files of Sail, and what Spark spills, go to a hidden folder beside the log; if the
process is killed, the folder stays until the run directory is cleaned up. The output of Sail or the JVM goes to the
log, never to the terminal. Spark's own clients retry for minutes, so Aftershock first probes the address of the master.
"""

import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError
from aftershock.redaction import redact
from aftershock.results.spark.conf import SESSION, SMALL, Load, of_jvm, of_session
from aftershock.results.spark.sail import sail
from aftershock.results.spark.tables import SCRATCH

SAIL, LOCAL_SPARK = "sail", "local[2]"
SAIL_RETRIES = 2  # on loopback a server that does not answer is gone
SCRATCH_PREFIX = ".spark-"
EXIT_DEADLINE_S = 10.0
CONNECT_DEADLINE_S = 10.0

# Raised by a call into a JVM that died, or that can't report its error.
JVM_LOST = (Py4JError, OSError)


def master_of(master: str | None, default: str = SAIL) -> str:
    return master or os.environ.get("SPARK_REMOTE") or default


@contextmanager
def session(
    log: Path, master: str | None = None, load: Load = SMALL, exit_deadline_s: float = EXIT_DEADLINE_S
) -> Iterator[SparkSession]:
    """Open a Spark session at ``master``, sized for ``load``, for the length of a ``with`` block.

    The output of Sail or a JVM goes to ``log``. A JVM that takes longer than ``exit_deadline_s`` to end is killed.
    Raises EvidenceError, with the name of the log, if no Spark session can be opened.
    """
    address = master_of(master, SAIL if load.fits_sail else LOCAL_SPARK)
    log.parent.mkdir(parents=True, exist_ok=True)
    reachable(address)
    with _exceptions_logged_to(log), ExitStack() as resources:
        if address.startswith("sc://"):
            yield resources.enter_context(connect_session(address, log, of_session(load)))
            return
        hidden = tempfile.TemporaryDirectory(
            prefix=SCRATCH_PREFIX, dir=log.parent.resolve(), ignore_cleanup_errors=True
        )
        scratch = Path(resources.enter_context(hidden))
        if address == SAIL:
            url, files = resources.enter_context(sail(scratch, log))
            settings = SESSION | {SCRATCH: str(files)}
            yield resources.enter_context(connect_session(url, log, settings, ours=True))
        else:
            yield resources.enter_context(jvm_session(of_jvm(address, load, scratch), log, exit_deadline_s))


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
def connect_session(url: str, log: Path, settings: Mapping[str, str], *, ours: bool = False) -> Iterator[SparkSession]:
    """Open a Spark Connect session at ``url``. The traceback of an error in the ``with`` block goes to ``log``.

    Settings of ours are set, and those of Spark that a session may change. PySpark tries for ten minutes to reach a
    server that does not answer, but not one that is ``ours``, to which no proxy leads.
    """
    mode = "SPARK_CONNECT_MODE_ENABLED"  # tells PySpark's functions to build for Connect
    before = os.environ.get(mode)
    os.environ[mode] = "1"
    try:
        from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 - loads pandas, in half a second
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - as above
        from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415 - as above

        try:
            options = [("grpc.enable_http_proxy", 0)] if ours else None
            remote = Remote.builder.channelBuilder(DefaultChannelBuilder(url, options)).create()
            if ours:
                warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error that follows says more
                remote.client.set_retry_policies([DefaultPolicy(max_retries=SAIL_RETRIES)])
            spark = cast("SparkSession", remote)
            for name, value in settings.items():
                if not name.startswith("spark.") or spark.conf.isModifiable(name):
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
