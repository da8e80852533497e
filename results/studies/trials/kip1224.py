"""Claims of KIP-1224 about the adaptive append linger of the group coordinator.

According to KIP-1224, since Kafka 4.0 a group coordinator waits 5 ms for more commits to write, so a lone commit takes
those 5 ms; with the adaptive linger a lone commit takes less than 1 ms, and a commit under load no longer than before.

Each broker has each linger setting in one of three runs (a Latin square), so the mean over the runs is free of
differences between brokers. In *idle* claims each commit is alone in its batch, and n is the number of slices of time.
In *busy* claims a closed loop commits for many groups, at the coordinators of one linger setting after the other, and n
is the number of rounds; if coordinators write only two or fewer commits per batch, the linger has no effect, and busy
claims are inconclusive. KIP-1224 claims that latency gets *no worse*, so each claim has only an upper bound.

**Full batches.** A batch of commits is full when the metadata of one more commit would not fit. A coordinator gives up
a write that was not flushed within ``offsets.commit.timeout.ms`` (5 s), so a commit answered within half of that time
was flushed.

**Killed coordinators.** The run's integrity checks compare the commits that a killed coordinator acknowledged with the
commits that its successor knows. In claims on kills, n is the number of kills that took effect and met traffic. The
same measures must show a violation where the offsets topic has one replica and the coordinator loses power, and where
requests arrive after later ones (run ``broken``).
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.ticker import LogLocator

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Floats, Part, mean, median, quantile, ratio, steady_slices
from aftershock.results.studies.statement import Estimate, Measured, Plot
from aftershock.results.studies.trials import kip1224_commits
from aftershock.results.studies.trials.claim import Parts, on_part, on_parts, register
from aftershock.results.studies.trials.kip1224_commits import ADAPTIVE, FIXED, NONE, bouts

IDLE, SHARE = ("idle-1", "idle-2", "idle-3"), ("share-1", "share-2", "share-3")
BUSY, OPEN = ("busy-1", "busy-2", "busy-3"), "open"
FLUSHED = ("flushed-1", "flushed-2", "flushed-3")  # each append waits for the disk, so batches must win
PRODUCTION = ("production-1", "production-2", "production-3")
USER, OLD, FULL, FAILOVER = "user", "old", "full", "failover"
BROKEN, STALLED = "broken", "stalled"  # violations of what FAILOVER and FULL must show
FAULT = "coordinator"
PLAIN, TRANSACTIONAL, ACKNOWLEDGING = "commits/plain", "transactions/transactional", "shares/acknowledging"
LATE_MS = 2_500
_ONE_RUN = "measured in one run, so the figure includes differences between brokers"


def by_fixed(runs: Sequence[Part], figure: str, setting: str = ADAPTIVE, confidence: float = 0.95) -> Estimate:
    """Return a figure of commits at linger ``setting`` relative to the fixed linger, as the mean over rounds."""
    ours, theirs = (_of_rounds(runs, figure, name) for name in (setting, FIXED))
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Estimate(None, None, None, len(ours), "times", confidence)
    return ratio(ours, theirs, confidence)


def _of_rounds(runs: Sequence[Part], figure: str, setting: str) -> Floats:
    """Return a figure of commits in each round that all runs have, as the geometric mean over runs."""
    of_runs = [[getattr(bout, figure) for bout in bouts(run).get(setting, ())] for run in runs]
    return np.array([math.exp(math.fsum(map(math.log, values)) / len(runs)) for values in zip(*of_runs, strict=False)])


def busy(runs: Sequence[Part], figure: str) -> Measured:
    """Measure a figure of commits under load (adaptive / fixed linger), in doubt if coordinators batch no commits."""
    sizes = map(kip1224_commits.commits_per_flush, runs)
    fewest = min(per_flush.get(setting, 0.0) for per_flush in sizes for setting in (ADAPTIVE, FIXED))
    why = f"the coordinators batched no commits: {fewest:.2f} commits per flush, and more than 2 are needed"
    # Up to two commits per flush nothing counts as batched.
    return Measured(by_fixed(runs, figure), doubt="" if fewest > 2 else why)  # noqa: PLR2004


def without_linger(runs: Sequence[Part]) -> Measured:
    """Measure the commits per second without linger, relative to those with the fixed linger."""
    return Measured(
        by_fixed(runs, "per_s", NONE), "commits/s without linger relative to the fixed linger, at equal load"
    )


def capacity(runs: Sequence[Part]) -> Measured:
    figure = mean(list(_of_rounds(runs, "per_s", ADAPTIVE)), "commits/s")
    return Measured(
        figure, "clients, proxies and three brokers share the cores of one host, which limits the throughput"
    )


def below_capacity(runs: Sequence[Part], figure: str) -> Measured:
    """Report a commit latency in the open-loop run (the last of ``runs``), adaptive relative to fixed linger."""
    *closed_loop, open_loop = runs
    estimate = by_fixed([open_loop], figure)
    rounds = [_of_rounds(group, "per_s", FIXED) for group in ([open_loop], closed_loop)]
    if not all(map(len, rounds)):
        return Measured(estimate, "the throughput of the closed loop, to which the open loop relates, is unknown")
    rate, capacity = (float(np.mean(values)) for values in rounds)
    share = f"{rate / capacity:.0%} of the closed loop's throughput at the fixed linger"
    return Measured(estimate, f"the open loop completed {rate:.0f} commits/s, {share}; {_ONE_RUN}")


def flushed(part: Part) -> Measured:
    """Count the slices of time with a commit not answered before the coordinator's timeout, while batches were full."""
    (arm,) = part.run.timeline["workloads"][0]["arms"].values()
    batch_bytes = int(part.run.timeline["cluster"]["config"]["message.max.bytes"])
    commits_max = batch_bytes // int(arm["settings"]["commit.metadata.bytes"])
    table, sizes = kip1224_commits.offsets_log(part), []
    if table is not None:
        counted = table.group_by(["partition", "batch"]).aggregate([("offset", "count")])
        sizes = counted["offset_count"].to_pylist()
    full = sum(size >= commits_max for size in sizes)
    rows = part.outcomes("commit", kip1224_commits.COLUMNS)
    latencies, intended = kip1224_commits.latency_ms(rows), rows["intended_us"].to_numpy()
    slowest = float(latencies.max()) if len(latencies) else np.inf
    late = intended[latencies > LATE_MS]
    spans = steady_slices(part)
    late_slices = sum(bool(((late >= span.start_us) & (late < span.end_us)).any()) for span in spans)
    why = (
        f"{full} of {len(sizes)} batches were full; of {len(latencies)} commits {len(late)} were not answered within "
        f"{LATE_MS} ms"
    )
    ours = Estimate(slowest if np.isfinite(slowest) else None, None, None, len(spans), "ms")
    return Measured(ours, why, max(late_slices, int(bool(len(late)))), "" if full else "no batch was full")


def lost_commits(part: Part) -> int | None:
    """Return the acknowledged commits that are gone, also where a later commit of the group hides the loss.

    A commit that was acknowledged before any commit of a later leader epoch was sent has been written in an earlier
    one, itself or as the commit that replaced it in the client. It is lost if its offset is above all that the log has
    of those epochs. The offsets of a group's commits grow, and the log of a short run is not compacted. None without a
    log.
    """
    table = kip1224_commits.offsets_log(part)
    if table is None:
        return None
    rows = part.outcomes("commit", ("group", "partition", "offset", "sent_us", "done_us", "status"))
    sent_us, acked = dict[_Place, dict[int, int]](), dict[_Place, dict[int, int]]()
    for group, partition, offset, sent, done, status in zip(*rows.to_pydict().values(), strict=True):
        if sent is not None:
            sent_us.setdefault((group, partition), {})[offset] = sent
        if status == "ok":
            acked.setdefault((group, partition), {})[offset] = done
    entries = dict[_Place, list[tuple[int, int]]]()
    columns = (table[name].to_pylist() for name in ("group", "topic_partition", "leader_epoch", "committed"))
    for group, partition, epoch, committed in zip(*columns, strict=True):
        entries.setdefault((group, partition), []).append((epoch, committed))
    lost = 0
    for place, done_us in acked.items():
        gone, own = set[int](), entries.get(place, [])
        for last in {-1} | {epoch for epoch, _ in own}:  # -1: a log whose earlier epochs are gone
            highest = max((committed for epoch, committed in own if epoch <= last), default=-1)
            later = [sent_us[place].get(committed, 0) for epoch, committed in own if epoch > last]
            until_us = min(later, default=math.inf)
            gone |= {offset for offset, at_us in done_us.items() if at_us < until_us and offset > highest}
        lost += len(gone)
    return lost


_Place: TypeAlias = tuple[str, int]
"""Group and partition of a commit."""


def kept(part: Part) -> Measured:
    """Count the acknowledged commits that a killed coordinator's successor does not know."""
    lost = lost_commits(part)
    blocks, _ = part.run.trials()
    ours = Estimate(lost, None, None, len(blocks or ()), "commits")
    return Measured(ours, "by the entries of each leader epoch in the offsets topic", lost)


def survived(part: Part, rule: str) -> Measured:
    """Judge a run by its check ``backward`` (no offset in the coordinator's log decreased)."""
    checks = [
        check
        for check in part.run.verdict.checks
        if check.id == f"integrity/{rule}" and check.subject.endswith(" commit")
    ]
    counts = [check.observed for check in checks if check.observed is not None]
    violations = sum(counts) if len(counts) == len(checks) > 0 else None
    rows = part.outcomes("commit", ("sent_us", "done_us"))
    sent, done = (rows[name].fill_null(0).to_numpy() for name in ("sent_us", "done_us"))
    kills_us = [kill["start_us"] for kill in part.phases(FAULT)]
    in_flight = sum(int(((sent < at_us) & (done >= at_us)).sum()) for at_us in kills_us)
    examined = sum(check.n for check in checks)
    why = f"{examined} commits were checked, of which {in_flight} were in flight when the coordinator was killed"
    blocks, _ = part.run.trials()
    ours = Estimate(violations, None, None, len(blocks or ()), "commits")
    return Measured(ours, why, None if violations is None else int(violations))


def later_ms(runs: Sequence[Part], client: str, slower: str, faster: str, confidence: float = 0.95) -> Estimate:
    """Return by how much the median commit latency at linger ``slower`` exceeds that at linger ``faster``.

    The result is the mean over runs and slices of time; it is unknown if a slice of any run has no answered commit.
    """
    differences = []
    for run in runs:
        medians = kip1224_commits.medians_ms(run, client, steady_slices(run))
        pairs = zip(medians.get(slower, ()), medians.get(faster, ()), strict=False)
        differences.append([slow - fast for slow, fast in pairs])
    values = [math.fsum(of_slice) / len(runs) for of_slice in zip(*differences, strict=False)]
    if not all(map(math.isfinite, values)):
        return Estimate(None, None, None, len(values), "ms", confidence)
    return mean(values, "ms", confidence)


def saved(runs: Sequence[Part], client: str) -> Measured:
    """Judge how much faster commits (or acknowledgements of a share consumer) are with the adaptive linger."""
    return Measured(later_ms(runs, client, FIXED, ADAPTIVE))


def alike(runs: Sequence[Part], client: str, slower: str, faster: str) -> Measured:
    """Compare a commit's latency with two linger settings, with the interval for TOST."""
    return Measured(later_ms(runs, client, slower, faster, 0.9))


def one_run(runs: Sequence[Part], slower: str, faster: str) -> Measured:
    return Measured(later_ms(runs, PLAIN, slower, faster), _ONE_RUN)


def idle_ms(runs: Sequence[Part]) -> Measured:
    """Report the latency of a lone commit, including client, network and coordinator."""
    by_run = [kip1224_commits.medians_ms(run, PLAIN, steady_slices(run))[ADAPTIVE] for run in runs]
    figure = mean([math.fsum(of_slice) / len(runs) for of_slice in zip(*by_run, strict=False)], "ms")
    why = "latency counts from the intended time and includes a Python client and a proxy, not only the broker"
    return Measured(figure, why)


_GROUP = "kafka.server:type=group-coordinator-metrics:"


def flush_rate(part: Part) -> Measured:
    """Report the metric batch-flush-rate at the end of the steady phase, relative to the batches per second in the log.

    The metric is a rate over a minute at most, the log is that of the whole load, a closed loop of constant load.
    """
    readings, table = part.events("broker_metrics"), kip1224_commits.offsets_log(part)
    if len(readings) < 2 or table is None:  # noqa: PLR2004 -- both ends of the steady phase
        return Measured(Estimate(None, None, None, 0, "times"), doubt="the brokers' metrics were not read")
    (found,) = readings[1]["brokers"].values()
    done_us = part.outcomes("commit", ("done_us",))["done_us"].drop_null().to_numpy()
    batches = table.group_by(["partition", "batch"]).aggregate([]).num_rows
    per_s = batches / (np.ptp(done_us) / 1e6)
    rate = found.get(f"{_GROUP}batch-flush-rate")
    waits = [
        f"{name} {found[key]:.1f} ms"
        for name in ("p50", "p99", "max")
        if (key := f"{_GROUP}batch-linger-time-ms-{name}") in found
    ]
    why = f"batch-flush-rate {rate or 0:.1f}/s, {per_s:.1f} batches/s in the log; batch-linger-time: {', '.join(waits)}"
    return Measured(Estimate(None if rate is None else rate / per_s, None, None, 1, "times"), why)


REGISTRATION = register(
    "kip1224",
    {
        "idle-saved": on_parts(IDLE, saved, PLAIN),
        "idle-saved-production": on_parts(PRODUCTION, saved, PLAIN),
        "idle-as-none": on_parts(IDLE, alike, PLAIN, ADAPTIVE, NONE),
        "killed-kept": on_part(FAILOVER, kept),
        "killed-monotonic": on_part(FAILOVER, survived, "backward"),
        "lost-commits": on_part(BROKEN, kept),
        "commits-back": on_part(BROKEN, survived, "backward"),
        "stalled": on_part(STALLED, flushed),
        "flush-rate": on_part(FULL, flush_rate),
        "busy-throughput": on_parts(BUSY, busy, "per_s"),
        "busy-p50": on_parts(BUSY, busy, "p50_ms"),
        "busy-p99": on_parts(BUSY, busy, "p99_ms"),
        "busy-none": on_parts(FLUSHED, without_linger),
        "busy-batched": on_parts(BUSY, kip1224_commits.batching, ADAPTIVE, FIXED, 2),
        "busy": on_parts(BUSY, capacity),
        "open-p50": on_parts((*BUSY, OPEN), below_capacity, "p50_ms"),
        "open-p99": on_parts((*BUSY, OPEN), below_capacity, "p99_ms"),
        "full": on_part(FULL, flushed),
        "transactions": on_parts(IDLE, alike, TRANSACTIONAL, FIXED, ADAPTIVE),
        "idle": on_parts(IDLE, idle_ms),
        "user": on_parts([USER], one_run, FIXED, ADAPTIVE),
        "share": on_parts(SHARE, saved, ACKNOWLEDGING),
        "old": on_parts([OLD], one_run, kip1224_commits.DEFAULT, NONE),
        "batched": on_parts(IDLE, kip1224_commits.batching, FIXED, ADAPTIVE, 3),
    },
)
_LABELS = {ADAPTIVE: "adaptive (-1)", FIXED: "fixed 5 ms", NONE: "none (0)"}


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return a chart of latency and batch size over load, and the distribution of latencies at the lowest load."""
    runs = [parts[name] for name in IDLE if name in parts]
    return (*_over_load(parts), *([_idle(runs)] if runs else []))


def _over_load(parts: Parts) -> tuple[Plot, ...]:
    """Plot each load that was run: idle, an open loop below capacity, and a closed loop at capacity."""
    points: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _LABELS}
    for names in (IDLE, (OPEN,), BUSY):
        runs = [parts[name] for name in names if name in parts]
        sizes = [kip1224_commits.commits_per_flush(run) for run in runs]
        latencies_ms = _pooled(runs, PLAIN) if runs and names == IDLE else {}
        rounds = [bouts(run) for run in runs] if names != IDLE else []
        steady_us = sum(span.end_us - span.start_us for run in runs for span in steady_slices(run))
        for name, at in points.items():
            of_size = [by_linger[name] for by_linger in sizes if name in by_linger]
            of_load = [(bout.per_s, bout.p50_ms) for by_linger in rounds for bout in by_linger.get(name, ())]
            took_ms = latencies_ms.get(name, np.empty(0))
            if len(took_ms):  # each run has one coordinator of this setting
                of_load = [(len(took_ms) * 1e6 / steady_us, quantile(took_ms, 0.5))]
            if of_size and of_load:
                per_s, p50_ms = np.median(np.array(of_load), axis=0)
                at.append((float(per_s), float(p50_ms), float(np.mean(of_size))))
    if not any(points.values()):
        return ()
    title = "Commit latency and batch size over load"
    texts = [
        f"{_LABELS[name]}: "
        + ", ".join(f"{ms:.1f} ms and {size:.1f} a batch at {per_s:,.0f}/s" for per_s, ms, size in at)
        for name, at in points.items()
    ]
    with drawing(5.2, 4.6) as figure:
        axes = figure.subplots(2, 1, sharex=True)
        for column, (axis, label) in enumerate(zip(axes, ("latency, p50, ms", "commits per batch"), strict=True), 1):
            for (name, at), (colour, dash) in zip(points.items(), LINES, strict=False):
                values = [point[column] for point in at]
                axis.plot([point[0] for point in at], values, "o", color=colour, linestyle=dash, label=_LABELS[name])
            axis.set_xscale("log")
            axis.set_yscale("log")
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
                scale.set_major_formatter("{x:,.10g}")
            axis.minorticks_off()
            plain(axis, label)
        axes[-1].set_xlabel("commits/s at one coordinator")
        legend(figure, axes[0], len(_LABELS))
        svg = rendered(figure, "kip1224-load", title, "; ".join(texts))
    reading = (
        "If the KIP's claim holds, the adaptive linger is as fast as none where load is low, and batches like the "
    )
    return (Plot(title, svg, f"{reading}fixed linger where load is high. {'; '.join(texts)}."),)


def _idle(runs: Sequence[Part]) -> Plot:
    plain_ms, transactional_ms = (_pooled(runs, client) for client in (PLAIN, TRANSACTIONAL))
    medians = [f"{_LABELS[name]} {median(took):.2f} ms" for name, took in plain_ms.items() if len(took)]
    sentence = f"Median latency of plain commits: {', '.join(medians)}. Transactional commits never linger."
    title = "Commit latency by the coordinator's linger, at the lowest load"
    panels = {"commits": plain_ms, "transactional commits (control)": transactional_ms}
    with drawing(5.2, 4.6) as figure:
        axes = figure.subplots(2, 1, sharex=True)
        for axis, (client, latencies) in zip(axes, panels.items(), strict=True):
            for number, (name, label) in enumerate(_LABELS.items()):
                colour, dash = LINES[number]
                took = latencies[name]
                shares = np.linspace(0, 100, len(took) + 1)[1:]
                axis.plot(took, shares, color=colour, linestyle=dash, linewidth=1.3, label=label)
            plain(axis, f"{client}, % answered")
            axis.set_ylim(0, 100)
        pooled = [*plain_ms.values(), *transactional_ms.values()]
        axes[-1].set_xlabel("ms from the intended time")
        axes[-1].set_xlim(0, max((quantile(took, 0.98) for took in pooled if len(took)), default=1.0))
        legend(figure, axes[0], len(_LABELS))
        svg = rendered(figure, "kip1224-idle", title, sentence)
    return Plot(title, svg, sentence)


def _pooled(runs: Sequence[Part], client: str) -> dict[str, Floats]:
    """Map each linger setting to the sorted commit latencies of all runs, in ms."""
    runs_ms = [kip1224_commits.latencies_ms(run, client, steady_slices(run)) for run in runs]
    return {
        name: np.sort(np.concatenate([values for by_setting in runs_ms for values in by_setting.get(name, ())]))
        for name in _LABELS
    }
