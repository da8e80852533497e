"""Starts the JVM that Spark lives in, and ends it, however its block is left.

Rules: its chatter goes to a file, never the terminal; our caller's Ctrl-C handler is put back; PySpark forgets a JVM
that has ended, so that another session can follow in the same process.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError

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
