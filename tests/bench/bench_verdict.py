"""What a verdict costs, beside hand-tuned queries on the same data: ``python tests/bench/bench_verdict.py [OUTCOMES]``.

With ``day`` or ``day HOURS`` instead, it measures the verdict of a soak at 200/s with a fault every three minutes.

OUTCOMES (default 10 000 000) rows are generated; each of these then runs in a process of its own, on the same files:

* tuned: one histogram query (exact percentiles by client, operation, pair of racks and phase) and one of fingerprints
  (a block of 65 536 records acknowledged, in the log, delivered), written by hand for this data and nothing else;
* core: what the product does for the same questions: latency, availability, and loss and duplicates by the gate;
* verdict: everything that ``aftershock verdict`` judges: recovery, stalls, order and monotonicity too.

And small: a demo from the command line; a hundred runs judged together against one, of a
demo's size, and of a test's: a hundred of these have a million outcomes. Ratios say more than seconds, which are the
machine's, and CPU time more than wall time on a machine with other work. Memory is the most that a process and its
children held at once (RSS).
"""

import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aftershock.results.evidence.evidence import Evidence, read
from aftershock.results.spark.conf import load_of
from aftershock.results.spark.session import session
from aftershock.results.spark.tables import columns
from aftershock.tests.bench.evidence_generator import generate, generate_day
from aftershock.tests.unit.results.evidence_factory import RATE, clean_run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from aftershock.results.tables.dims import Dims


OUTCOMES = 10_000_000
TOGETHER, TEST_RATE = 100, 30  # records a second of each of two arms
SMALL_S_MAX, SMALL_MIB_MAX, TOGETHER_MAX = 9.0, 900, 2.5
DAY_S_MAX = 60.0
RATIO_MAX, CORE_S_MAX, VERDICT_S_MAX, LARGE_MIB_MAX, BYTES_MAX = 1.5, 60.0, 100.0, 4096, 12.0  # up to 40 million
QS = "0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0"
BLOCK = 65_536


class Cost(NamedTuple):
    """Seconds of wall time and of all cores, MiB at most, and what the process printed."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    told: dict[str, float]


# --- what is measured, each in a process of its own ------------------------------------------------------------------


def tuned(home: Path) -> Iterator[tuple[str, float]]:
    """The two queries by hand."""
    evidence = read(home, columns())
    with _session(home, evidence) as spark:
        yield from _timed("histogram", lambda: _histogram(spark, evidence).collect())
        yield from _timed("fingerprints", lambda: _fingerprints(spark, home).collect())


def core(home: Path) -> Iterator[tuple[str, float]]:
    """The product's own jobs for latency, availability and what the gate tells."""
    from aftershock.results.measure import gaps, latency
    from aftershock.results.measure.measure import JOBS_AT_ONCE
    from aftershock.results.measure.samples import samples
    from aftershock.results.spark.tables import store, tables
    from aftershock.results.tables.dims import dims
    from aftershock.results.tables.gate import blocks
    from aftershock.results.tables.names import with_names

    evidence = read(home, columns())
    with _session(home, evidence) as spark:
        rows, small = tables(spark, [evidence]), dims(spark, [evidence])
        gate = store(blocks(rows, small))
        yield from _timed("gate", lambda: gate.where("not clean").limit(1).collect())
        judged = samples(rows, small, gate, None)
        counted = latency.latencies(judged, small)
        seen = gaps.success_stretches(gaps.successes(judged, small, gaps.GAP_SLOT_US))
        with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:  # as the product does
            both = [
                pool.submit(lambda: _windows(with_names(counted.toArrow(), judged, small), small)),
                pool.submit(lambda: with_names(seen.toArrow(), judged, small)),
            ]
            yield from _timed("latency and availability", lambda: [one.result() for one in both])


def _windows(counted: "pa.Table", small: "Dims") -> None:
    """Every quantile of every client, operation and window."""
    from aftershock.results.measure.latency import silver_of

    (scene,) = small.scenes
    for seen in silver_of(counted.drop_columns("run")).by_window(scene).values():
        seen.distribution([float(q) for q in QS.split(", ")])


def verdict(*homes: Path) -> Iterator[tuple[str, float]]:
    """All of a verdict, of one run or of many together."""
    from aftershock.results.judge import Judge

    begun_s = time.monotonic()
    with Judge(homes[0] / "logs" / "spark.log", None, lambda _: None) as judge:
        judge.many(homes)
        yield "judged", time.monotonic() - begun_s


@contextmanager
def _session(home: Path, evidence: Evidence) -> "Iterator[SparkSession]":
    load = load_of([part for parts in evidence.parquet.values() for part in parts])
    with session(home / "logs" / "spark.log", None, load) as spark:
        yield spark


def _histogram(spark: "SparkSession", evidence: Evidence) -> "DataFrame":
    """One scan, one exact histogram, every quantile of every client, operation, pair of racks and phase."""
    spark.read.parquet(str(evidence.home / "outcomes")).createOrReplaceTempView("outcomes")
    phases = " ".join(
        f"when intended_us >= {phase.start_us} and intended_us < {phase.end_us} then '{phase.fault or phase.name}'"
        for phase in evidence.phases
    )
    text = f"""
        with hist as (
            select arm, op, client_rack, broker_rack, case {phases} end as phase, done_us - intended_us as latency_us,
                count(*) as n
            from outcomes group by all)
        select arm, op, client_rack, broker_rack, phase, sum(n), percentile(latency_us, array({QS}), n)
        from hist group by all"""  # noqa: S608 - ours
    return spark.sql(text)


def _fingerprints(spark: "SparkSession", home: Path) -> "DataFrame":
    """The blocks in which acknowledged, logged and delivered records differ."""
    spark.read.parquet(str(home / "outcomes")).createOrReplaceTempView("outcomes")
    spark.read.parquet(str(home / "log")).createOrReplaceTempView("log")
    told = f"producer_id, seq div {BLOCK} as block, count(*) as n, bit_xor(xxhash64(producer_id, seq)) as x"
    text = f"""
        with acked as (select {told} from outcomes where op = 'produce' and status = 'ok' group by all),
             read as (select {told} from outcomes where op = 'consume' group by all),
             logged as (select {told} from log group by all)
        select * from acked full join read using (producer_id, block) full join logged using (producer_id, block)
        where not (acked.n <=> read.n and acked.x <=> read.x and acked.n <=> logged.n and acked.x <=> logged.x)"""  # noqa: S608 - ours
    return spark.sql(text)


def _timed(name: str, work: Callable[[], object]) -> Iterator[tuple[str, float]]:
    begun_s = time.monotonic()
    work()
    yield name, time.monotonic() - begun_s


# --- the measuring ---------------------------------------------------------------------------------------------------


def cost_of(command: list[str]) -> Cost:
    """Return the cost of a process, which may end with a line of JSON."""
    begun_s, worked_s = time.monotonic(), _cpu_s()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak_kib, done = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak_kib, done))
    watcher.start()
    printed, _ = process.communicate()
    wall_s = time.monotonic() - begun_s
    done.set()
    watcher.join()
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    return Cost(wall_s, _cpu_s() - worked_s, peak_kib[0] / 1024, json.loads(last) if last.startswith("{") else {})


def _cpu_s() -> float:
    """Return the CPU time of our ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(pid: int, peak_kib: list[int], done: threading.Event) -> None:
    while not done.wait(0.1):
        peak_kib[0] = max(peak_kib[0], sum(map(_rss_kib, _family(pid))))


def _family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(status.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _rss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def _child(what: str, *homes: Path) -> Cost:
    return cost_of([sys.executable, __file__, f"--{what}", *map(str, homes)])


# --- the report ------------------------------------------------------------------------------------------------------


def large(folder: Path, outcomes: int) -> list[bool]:
    """The big run: tuned queries and the verdict."""
    home = generate(folder / "large", outcomes)
    evidence = read(home, columns())
    parts = [part for table in ("outcomes", "log") for part in evidence.parquet[table]]
    load, stored = load_of(evidence.parquet["outcomes"]), load_of(parts)
    each = stored.bytes / load.rows
    _say(f"{load.rows:,} outcomes; with the log {each:.1f} bytes each at rest", each <= BYTES_MAX)
    by_hand = _child("tuned", home)
    _say(f"tuned    {figures(by_hand)} ({_steps(by_hand)})")
    met = [each <= BYTES_MAX]
    for what, ratio_max, s_max in (("core", RATIO_MAX, CORE_S_MAX), ("verdict", math.inf, VERDICT_S_MAX)):
        ours = _child(what, home)
        ratio = ours.wall_s / by_hand.wall_s
        fits = ratio <= ratio_max and ours.wall_s <= s_max and ours.peak_mib <= LARGE_MIB_MAX
        _say(f"{what:8} {figures(ours)} ({_steps(ours)}): {ratio:.2f} x tuned", fits)
        met.append(fits)
    return met


def day(folder: Path, hours: float) -> list[bool]:
    """A soak, of which the limits are those of a day."""
    cost = _child("verdict", generate_day(folder / "day", hours))
    fits = cost.wall_s <= DAY_S_MAX and cost.peak_mib <= LARGE_MIB_MAX
    _say(f"a soak of {hours:g} h: {figures(cost)}", fits)
    return [fits]


def _steps(cost: Cost) -> str:
    return ", ".join(f"{name} {value:.1f} s" for name, value in cost.told.items())


def small(folder: Path) -> list[bool]:
    """A demo from the command line, and a hundred runs together: of a test's size, and of a demo's."""
    home = _made(folder / "demo", 1, RATE)[0]
    command = [str(Path(sys.executable).with_name("aftershock")), "verdict", str(home), "--json"]
    cost_of(command)  # the first leaves files in the page cache
    one = cost_of(command)
    met = [one.wall_s <= SMALL_S_MAX and one.peak_mib <= SMALL_MIB_MAX]
    _say(f"a demo's verdict: {figures(one)}", met[0])
    for what, rate in (("tests", TEST_RATE), ("demos", RATE)):
        homes = _made(folder / what, TOGETHER, rate)
        alone, together = _child("verdict", homes[0]), _child("verdict", *homes)
        ratio = together.wall_s / alone.wall_s
        met.append(ratio <= TOGETHER_MAX)
        _say(f"{TOGETHER} {what} together: {figures(together)}; one: {figures(alone)}: {ratio:.2f} x one", met[-1])
    return met


def _made(folder: Path, count: int, rate: int) -> list[Path]:
    """Runs of one minute."""
    homes = [folder / f"run-{number}" for number in range(count)]
    for home in homes:
        made = clean_run(columns(), rate=rate)
        made.run["run_id"] = f"{made.run['run_id']}-{home.name}"
        folder.mkdir(exist_ok=True)
        made.write(home)
    return homes


def figures(cost: Cost) -> str:
    return f"{cost.wall_s:.1f} s ({cost.cpu_s:.1f} s of CPU), {cost.peak_mib:.0f} MiB"


def _say(text: str, fits: bool | None = None) -> None:
    sys.stdout.write(f"{text}{'' if fits is None else '  ok' if fits else '  MISSED'}\n")
    sys.stdout.flush()


def main() -> int:
    of_day = sys.argv[1:2] == ["day"]
    size = float(sys.argv[-1]) if len(sys.argv) > 1 + of_day else 24.0 if of_day else OUTCOMES
    folder = Path(tempfile.mkdtemp(prefix="bench-verdict-"))
    try:
        met: list[Any] = day(folder, size) if of_day else [*small(folder), *large(folder, int(size))]
    finally:
        shutil.rmtree(folder)
    return int(not all(met))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--"):
        work: Any = {"--tuned": tuned, "--core": core, "--verdict": verdict}[sys.argv[1]]
        print(json.dumps(dict(work(*map(Path, sys.argv[2:])))))
    else:
        sys.exit(main())
