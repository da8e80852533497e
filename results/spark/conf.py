"""Spark's settings: by how much there is to judge, and by where it is judged. Pure; nothing here starts anything.

Rules: what changes an answer (time zone, ANSI) is the same everywhere. Judging a test's run is a JVM's start, which C1
and SerialGC halve, planning, and tasks: each costs tens of milliseconds, whatever it does. A long judgement is
computing, but C2's code pays for its making late (of 2.5 million rows C1 took 119 s of CPU, and C2 147 s), and plans
that adapt do as well (1.4 million: 33 s, and 28 s without). With Spark's own 200 partitions for a shuffle, sorting 10
million records took 33 s instead of 9. What a task counts should fit into a processor's cache: the histogram of 40
million records took 8 s of CPU in tasks of 6 MB, and 13 s in tasks of 48 MB. The pages that Spark derives from a heap
are mostly empty, and cleared first: with smaller ones 10 million rows took 5 % less time, and 1.4 million 1.0 GiB in
the place of 2.4. Somebody else's cluster and its files are left as they are: no folders, addresses or catalogs of ours
are named there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

ROWS_MAX, BYTES_MAX = 500_000, 100_000_000  # beyond either, a judgement is large
BRIEF_ROWS_MAX = 100_000
LONG_ROWS = 4_000_000
ONE_TASK, LONG_TASK = "1", "6m"


@dataclass(frozen=True)
class Load:
    """How much evidence a session is to read."""

    rows: int = 0
    bytes: int = 0

    @property
    def large(self) -> bool:
        """Whether what is in doubt may need room: looked at row by row, 1.4 million rows do not fit into 600 MB."""
        return self.rows > ROWS_MAX or self.bytes > BYTES_MAX

    @property
    def brief(self) -> bool:
        """Whether it is a run of a test's size, of which a second task would cost more than it computes."""
        return self.rows <= BRIEF_ROWS_MAX and not self.large

    @property
    def long(self) -> bool:
        """Whether it computes for so long that what C2 compiles is worth it, and a plan that adapts."""
        return self.rows > LONG_ROWS

    @property
    def heap(self) -> str:
        """What the JVM may take at most; 450 MiB is the least that Spark accepts."""
        return "480m" if self.brief else "2g" if self.large else "600m"


SMALL, UNKNOWN = Load(), Load(rows=LONG_ROWS + 1)  # what can't be looked at beforehand may be anything


def load_of(parts: Iterable[Path | str]) -> Load:
    """The load that these Parquet files are, by their footers; UNKNOWN where one of them lies on another filesystem."""
    parts = list(parts)
    local = [part for part in parts if isinstance(part, Path)]
    if len(local) < len(parts):
        return UNKNOWN
    return Load(sum(pq.read_metadata(part).num_rows for part in local), sum(part.stat().st_size for part in local))


SESSION = {
    "spark.sql.session.timeZone": "UTC",
    # Spark sizes a table by its compressed bytes and would broadcast millions of sequential ids
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # else every column asks the JVM four times who made it
}
_OURS = {
    "spark.app.name": "aftershock",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",  # every plan is written down for a page that nobody sees
    "spark.sql.catalogImplementation": "in-memory",
}
_HERE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # a task a file takes longer than a look at it
}
# Spark's classes outgrow the default at once, each time for a collection of everything; and what C1 makes of a hundred
# runs' queries outgrows the 48 MB that it has by default, which is an error
_ANY_JVM = ("-XX:MetaspaceSize=256m",)
_SHORT_JVM = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m")
# what runs for each record is called as often at once; planning is not, and half of what C2 would compile
_LONG_JVM = (
    *("-XX:Tier4InvocationThreshold=100000", "-XX:Tier4MinInvocationThreshold=12000"),
    "-XX:Tier4CompileThreshold=300000",
)


def on_this_host(master: str) -> bool:
    """Whether Spark computes here: ``local``, ``local[2]``, ``local-cluster[2,1,1024]``."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def of_session(load: Load) -> dict[str, str]:
    """What any session can be told while it runs, also one of Spark Connect."""
    if load.long:
        return SESSION | {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "true"}
    tasks = ONE_TASK if load.brief else "2"
    sized = {"spark.sql.shuffle.partitions": tasks, "spark.sql.files.minPartitionNum": tasks}
    return SESSION | sized | {"spark.sql.adaptive.enabled": "false"}


def of_jvm(master: str, load: Load, scratch: Path, options: Iterable[str]) -> Mapping[str, str]:
    """What the JVM that we start is told before; ``options`` are more of Java's, ``scratch`` is where it spills."""
    collector = "-XX:+UseParallelGC" if load.large else "-XX:+UseSerialGC"
    tuned = (*_ANY_JVM, collector, *(_LONG_JVM if load.long else _SHORT_JVM))
    settings = of_session(load) | _OURS
    settings |= {
        "spark.master": master,
        "spark.driver.memory": load.heap,
        "spark.driver.extraJavaOptions": " ".join([*tuned, *options]),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.buffer.pageSize": "1m" if load.brief else "4m",  # what every sort and sum takes, however little it needs
    }
    if not on_this_host(master):
        return settings
    reads = {"spark.sql.files.maxPartitionBytes": LONG_TASK} if load.long else {}
    return settings | _HERE | reads | {"spark.local.dir": str(scratch)}
