"""Spark's settings, by the amount of evidence and by the place where Spark runs.

Spark settings that change a result (time zone, ANSI mode) are the same everywhere; all others only save time or memory.

Judging the run of a test takes the start of a JVM (half as long with C1 and SerialGC), query planning, and Spark tasks
of tens of milliseconds each. A long judgement is mostly computation, but compiling code with C2 takes 35 to 45 s of CPU
and saves a seventh to a half of the rest (a soak of two hours, with 8.6 million rows: 85 s of CPU with C1, 113 s with
C2; 27 million rows: 205 s with C1, 174 s with C2). Adaptive plans take time too (33 s with them for 1.4 million rows,
28 s without). For the run of a test, Spark interprets its plans, because it takes longer to generate and compile code
for them than to run it (11.8 s with code for 13,000 rows, 9.3 s without).

With Spark's default of 200 partitions per shuffle, sorting 10 million records takes 33 s instead of 9 s. The counts of
a task should fit into a processor's cache, because the histogram of 40 million records takes 8 s of CPU in tasks of 6
MB, and 13 s in tasks of 48 MB. The memory pages that Spark derives from the heap size are mostly empty, and are cleared
before use; with smaller pages 10 million rows take 5 % less time, and 1.4 million rows need 1.0 GiB instead of 2.4 GiB.

On a cluster that Aftershock did not start, the settings of folders, addresses and catalogs are left to the cluster.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

ROWS_MAX, BYTES_MAX = 500_000, 100_000_000  # above either, a judgement is large
BRIEF_ROWS_MAX = 100_000
LONG_ROWS = 4_000_000
C2_ROWS = 16_000_000
ONE_TASK, LONG_TASK = "1", "6m"
SAIL_BYTES_A_ROW = 200  # 153 of 10 million rows, 123 of 40 million; doubted records take more


@dataclass(frozen=True)
class Load:
    rows: int = 0
    bytes: int = 0

    @property
    def large(self) -> bool:
        """True if the heap may fill up, because 1.4 million suspected violations do not fit into 1 GB."""
        return self.rows > ROWS_MAX or self.bytes > BYTES_MAX

    @property
    def brief(self) -> bool:
        """True if the evidence is so small (as in a test) that a second Spark task costs more time than it saves."""
        return self.rows <= BRIEF_ROWS_MAX and not self.large

    @property
    def long(self) -> bool:
        """True if the evidence is so large that Spark's adaptive plans save time."""
        return self.rows > LONG_ROWS

    @property
    def fits_sail(self) -> bool:
        """True if judging needs at most half of the memory in Sail, which holds joins in memory; Spark spills them."""
        return self.rows * SAIL_BYTES_A_ROW <= _memory() // 2

    @property
    def heap(self) -> str:
        """The maximum heap of the JVM; 450 MiB is the least that Spark accepts.

        What is not brief gets a quarter of the memory, as a JVM takes by default, but from 2 to 6 GB: with a heap of
        2 GB, three quarters of the CPU time of judging 80 small runs with planted defects is garbage collection.
        """
        quarter_mb = _memory() >> 22
        return f"{480 if self.brief else min(max(quarter_mb, 2048), 6144)}m"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


SMALL, UNKNOWN = Load(), Load(rows=LONG_ROWS + 1)  # evidence that can't be examined beforehand may be large


def load_of(parts: Iterable[Path | str]) -> Load:
    """Return the amount of data in Parquet files by their footers; UNKNOWN if a file is on another filesystem."""
    parts = list(parts)
    local = [part for part in parts if isinstance(part, Path)]
    if len(local) < len(parts):
        return UNKNOWN
    return Load(sum(pq.read_metadata(part).num_rows for part in local), sum(part.stat().st_size for part in local))


SESSION = {
    "spark.sql.session.timeZone": "UTC",
    # Spark estimates a table by its compressed bytes and would broadcast millions of sequential ids.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # else every column calls the JVM four times for its origin
}
_JVM_SETTINGS = {
    "spark.app.name": "aftershock",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",  # else every plan is formatted for a web page without readers
    "spark.sql.catalogImplementation": "in-memory",
}
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # a task per file is slower than listing
}
# Spark's classes outgrow the default metaspace at once, and each growth costs a full collection. The code that C1
# compiles for the queries of a hundred runs outgrows its default cache of 48 MB, which is an error.
_ANY_JVM = ("-XX:MetaspaceSize=256m",)
_SHORT_JVM = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m")
# Code that runs per record reaches these thresholds at once; planning does not, and is half of what C2 would compile.
_LONG_JVM = (
    *("-XX:Tier4InvocationThreshold=100000", "-XX:Tier4MinInvocationThreshold=12000"),
    "-XX:Tier4CompileThreshold=300000",
)


def of_session(load: Load) -> dict[str, str]:
    """Return the settings that a running Spark session accepts, including a Spark Connect session."""
    if load.long:
        return SESSION | {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "true"}
    tasks = ONE_TASK if load.brief else "2"
    sized = {"spark.sql.shuffle.partitions": tasks, "spark.sql.files.minPartitionNum": tasks}
    return SESSION | sized | {"spark.sql.adaptive.enabled": "false"}


def of_jvm(master: str, load: Load, scratch: Path) -> Mapping[str, str]:
    """Return the settings of a new JVM; ``scratch`` is a folder for spills."""
    collector = "-XX:+UseParallelGC" if load.large else "-XX:+UseSerialGC"
    tuned = (*_ANY_JVM, collector, *(_LONG_JVM if load.rows > C2_ROWS else _SHORT_JVM))
    settings = of_session(load) | _JVM_SETTINGS | (_INTERPRETED if load.brief else {})
    settings |= {
        "spark.master": master,
        "spark.driver.memory": load.heap,
        "spark.driver.extraJavaOptions": " ".join(tuned),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.buffer.pageSize": "1m" if load.brief else "4m",  # the least memory of every sort and sum
    }
    if master != "local" and not master.startswith(("local[", "local-cluster[")):
        return settings
    reads = {"spark.sql.files.maxPartitionBytes": LONG_TASK} if load.long else {}
    return settings | _LOCAL_SETTINGS | reads | {"spark.local.dir": str(scratch)}
