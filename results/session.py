"""One Spark session: the only place with Spark's configuration, and the only one that starts or ends a JVM.

Rules: the JVM's chatter goes to a file, never the terminal; it is gone when the block is left, however it is left; our
caller's Ctrl-C handler is put back. What Spark spills lies in a hidden folder beside the log: who is killed leaves it
there, and who removes the run's leavings finds it. Settings are those measured for small inputs: C1 and SerialGC halve
the start.
"""

import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError

DEFAULT_MASTER = "local[2]"
JVM_EXIT_DEADLINE_S = 10
SCRATCH_PREFIX = ".spark-"

# what a call into a JVM raises that has died, or can't say what went wrong in it
JVM_LOST = (Py4JError, OSError)

_ALWAYS = {
    "spark.app.name": "aftershock",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark sizes a table by its compressed bytes and would broadcast millions of sequential ids
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def session(log: Path, master: str | None = None) -> Iterator[SparkSession]:
    """A session on ``master`` (default ``local[2]``) for the length of the block; ``log`` gets what the JVM prints.

    Its folder is made where it is missing. Raises EvidenceError where no JVM can be started; it names the log.
    """
    master = master or DEFAULT_MASTER
    log.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=log.parent.resolve()))
    try:
        with log.open("ab") as told, _jvm(_configuration(master, scratch), told, log) as (conf, gateway):
            yield _started(conf, gateway)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def reason(broken: Exception) -> str:
    """What a call into the JVM raised, in a line. Ask while the session lasts: Py4J has the text from the JVM."""
    try:
        lines = str(broken).splitlines()
    except JVM_LOST:
        return "its JVM died"
    told = (line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling"))
    return next(told, type(broken).__name__)


def _configuration(master: str, scratch: Path) -> SparkConf:
    local = _LOCAL if master.startswith("local[") or master == "local" else {}
    places = {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    conf = SparkConf(loadDefaults=False)
    conf.setAll([*_ALWAYS.items(), *local.items(), *places.items(), ("spark.master", master)])
    return conf


def _started(conf: SparkConf, gateway: Any) -> SparkSession:
    """SparkContext installs a Ctrl-C handler of its own in the main thread; ours is to stay."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    try:
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _jvm(conf: SparkConf, told: IO[bytes], log: Path) -> Iterator[tuple[SparkConf, Any]]:
    gateway = _launched(conf, told, log)
    try:
        yield conf, gateway
        with suppress(*JVM_LOST):  # there is nothing left to stop
            SparkSession.active().stop()
    finally:
        _end(gateway)


def _launched(conf: SparkConf, told: IO[bytes], log: Path) -> Any:
    """A gateway to a new JVM, started from a thread so that a Ctrl-C meanwhile can't lose track of the process."""
    with ThreadPoolExecutor(1) as pool:
        start: Future[Any] = pool.submit(launch_gateway, conf, {"stdout": told, "stderr": subprocess.STDOUT})
        try:
            return start.result()
        except (PySparkRuntimeError, OSError) as broken:
            why = f"Spark's JVM did not start ({broken}); see {log}, and check that `java -version` says 17 or later"
            raise EvidenceError(why) from broken
        except BaseException:
            _end(start.result())
            raise


def _end(gateway: Any) -> None:
    """Ends the JVM and makes PySpark forget it, so that another session can follow in this process."""
    SparkContext._active_spark_context = None  # noqa: SLF001 - PySpark has no public way to drop a gateway
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    with suppress(Exception):  # the JVM may be dead already; what matters is the wait that follows
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(JVM_EXIT_DEADLINE_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
