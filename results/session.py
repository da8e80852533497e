"""One Spark session: the only place that says where Spark runs, and the only one through which one begins and ends.

::

    --spark MASTER, else SPARK_REMOTE, else local[2]
       local[2]  local-cluster[2,1,1024]   a JVM of ours, on this host alone
       spark://host:port  yarn  k8s://…    the same JVM as the driver, executors elsewhere
       sc://host:port                      Spark Connect: no JVM of ours at all

Rules: nothing ships rows through this process, and no jar of ours is needed anywhere. What Spark spills lies in a
hidden folder beside the log: who is killed leaves it there, and who removes the run's leavings finds it.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from aftershock.results.spark.chatter import chatter_to
from aftershock.results.spark.class_data import options_here
from aftershock.results.spark.conf import SMALL, Load, of_jvm
from aftershock.results.spark.connect import SCHEME, connected
from aftershock.results.spark.jvm import EXIT_DEADLINE_S, JVM_LOST, jvm_session, reason
from aftershock.results.spark.reachable import reachable

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
