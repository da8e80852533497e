"""A session of Spark Connect: Spark is somebody else's process, and is spoken to over gRPC.

Rules: its client is imported only here and only when asked for; only settings of the session are made, and only those
that the server takes; while the block lasts, PySpark's functions build for Connect, afterwards for a JVM again.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aftershock.errors import EvidenceError
from aftershock.results.spark.conf import Load, of_session
from aftershock.results.spark.reachable import reachable

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
