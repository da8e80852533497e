"""Claims of KIP-1224: the adaptive append linger of the group coordinator.

Published: since 4.0 a coordinator waits 5 ms for more commits to write, so a lone commit takes those 5 ms; with the
adaptive linger it takes less than 1 ms, and no more than before under load.

**Idle.** Three runs form a Latin square: each broker has each linger once, so the mean over the runs at the same slice
of time is free of differences between brokers. n counts slices.

**Busy.** A closed loop over many groups, at the coordinators of one linger after the other, in the same Latin square. n
counts rounds; the figure of a round is the mean over the runs. A coordinator's flush is a batch: with two commits per
flush or fewer nothing was batched, the linger has no effect, and the claims are inconclusive. The KIP claims *no
worse*, so a better result does not contradict it: each claim has only one bound.

**Full batches.** A batch is full when the metadata of one more commit would not fit. The coordinator gives up a write
that is never flushed after ``offsets.commit.timeout.ms``, 5 s: a commit answered within half of that was flushed, and a
later one can't be distinguished from one that was left behind. Without full batches the claim is inconclusive.

**Killed coordinators.** The run's integrity checks of commits compare the commits that a killed coordinator
acknowledged with those its successor knows. n counts kills that were witnessed and exposed.
"""

import math
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials import kip1224_commits
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.kip1224_commits import ADAPTIVE, FIXED, NONE, bouts
from aftershock.results.trials.part import Floats, Part, mean, quantile, ratio, steady
from aftershock.results.trials.statement import Estimate, Judged, Plot, above, below, reported, seen, within

BUSY, OPEN = ("busy-1", "busy-2", "busy-3"), "open"
WORSE, TAIL_WORSE = 1.1, 1.25
BATCHED = 2.0
"""Commits per flush up to which nothing counts as batched."""


def by_fixed(runs: Sequence[Part], figure: str, setting: str = ADAPTIVE, confidence: float = 0.9) -> Estimate:
    """Return a figure at one linger relative to the fixed linger: per round, the geometric mean over runs."""
    ours, theirs = (_of_rounds(runs, figure, name) for name in (setting, FIXED))
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Estimate(None, None, None, len(ours), "times", confidence)
    return ratio(ours, theirs, confidence)


def _of_rounds(runs: Sequence[Part], figure: str, setting: str) -> Floats:
    """Return the geometric mean over the runs, for the rounds that all runs have."""
    of_runs = [map(attrgetter(figure), bouts(run).get(setting, ())) for run in runs]
    return np.array([math.exp(math.fsum(map(math.log, values)) / len(runs)) for values in zip(*of_runs, strict=False)])


def _runs(parts: Parts, names: Sequence[str]) -> list[Part]:
    return [parts[name] for name in names]


def _if_batched(parts: Parts, judged: Judged) -> Judged:
    """Return the result; inconclusive if a coordinator that should batch commits did not."""
    runs = [kip1224_commits.per_flush(run, transactional=False) for run in _runs(parts, BUSY)]
    fewest = min(per_flush.get(setting, 0.0) for per_flush in runs for setting in (ADAPTIVE, FIXED))
    if fewest > BATCHED:
        return judged
    return Judged(
        judged.ours, "inconclusive", f"no batching observed: {fewest:.2f} commits per flush, and 2 are too few"
    )


def throughput(parts: Parts) -> Judged:
    """Judge the commit throughput at this in-flight limit."""
    return _if_batched(parts, above(by_fixed(_runs(parts, BUSY), "per_s"), 1 / WORSE, 1 / WORSE))


def p50(parts: Parts) -> Judged:
    """Judge the median commit latency under load."""
    return _if_batched(parts, below(by_fixed(_runs(parts, BUSY), "p50_ms"), WORSE, WORSE))


def p99(parts: Parts) -> Judged:
    """Judge the p99 commit latency under load."""
    return _if_batched(parts, below(by_fixed(_runs(parts, BUSY), "p99_ms"), TAIL_WORSE, TAIL_WORSE))


def without(parts: Parts) -> Judged:
    """Report the throughput without linger, for comparison with the throughput that lingering gains."""
    return reported(
        by_fixed(_runs(parts, BUSY), "per_s", NONE), "no linger relative to the fixed one, at the same load"
    )


def capacity(parts: Parts) -> Judged:
    """Report the throughput of this host, which runs everything."""
    rounds = _of_rounds(_runs(parts, BUSY), "per_s", ADAPTIVE)
    found = mean(list(rounds), "commits/s") if len(rounds) else Estimate(None, None, None, 0, "commits/s")
    return reported(found, "adaptive; clients, proxies and three brokers share this host's cores")


def open_p50(parts: Parts) -> Judged:
    """Report the median commit latency below capacity, from the intended time."""
    return _of_capacity(parts, by_fixed([parts[OPEN]], "p50_ms"))


def open_p99(parts: Parts) -> Judged:
    """Report the p99 commit latency below capacity."""
    return _of_capacity(parts, by_fixed([parts[OPEN]], "p99_ms"))


def _of_capacity(parts: Parts, found: Estimate) -> Judged:
    """Report a figure, and which share of the measured capacity the plan's rate was."""
    runs = [_of_rounds(group, "per_s", FIXED) for group in ([parts[OPEN]], _runs(parts, BUSY))]
    if not all(map(len, runs)):
        return reported(found, "the share of the capacity is unknown")
    at, most = (float(np.mean(rounds)) for rounds in runs)
    share = f"open loop at {at:.0f}/s, {at / most:.0%} of the closed loop's throughput at the fixed linger"
    return reported(found, f"{share}; one run: differences between brokers are included")


def batched(parts: Parts) -> Judged:
    """Report commits per flush, adaptive relative to fixed."""
    return kip1224_commits.batching(_runs(parts, BUSY), ADAPTIVE, FIXED, 2)


BUSY_CLAIMS = (
    Claim(
        "busy-throughput",
        "busy: adaptive writes as many commits per second as the fixed linger",
        "no worse",
        "at most 10 % fewer",
        "claim",
        BUSY,
        throughput,
    ),
    Claim("busy-p50", "busy: adaptive takes no longer, p50", "no worse", "below 1.1 times", "claim", BUSY, p50),
    Claim("busy-p99", "busy: adaptive takes no longer, p99", "no worse", "below 1.25 times", "claim", BUSY, p99),
    Claim("busy-batched", "busy: commits per flush, adaptive relative to fixed", "-", "", "report", BUSY, batched),
    Claim("busy-none", "busy: commits per second without linger, relative to fixed", "-", "", "report", BUSY, without),
    Claim("busy", "busy: commits per second, adaptive", "-", "", "report", BUSY, capacity),
    Claim(
        "open-p50",
        "open loop below that: adaptive relative to fixed, p50",
        "no worse",
        "",
        "report",
        (*BUSY, OPEN),
        open_p50,
    ),
    Claim(
        "open-p99",
        "open loop below that: adaptive relative to fixed, p99",
        "no worse",
        "",
        "report",
        (*BUSY, OPEN),
        open_p99,
    ),
)


FULL = "full"
LATE_MS = 2_500
_METADATA, _BATCH = "commit.metadata.bytes", "message.max.bytes"


def flushed(part: Part) -> Judged:
    """Judge that each commit was answered in time while batches were full."""
    sizes = _sizes(part)
    full = sum(size >= _fill(part) for size in sizes)
    rows = part.outcomes(kip1224_commits.COLUMNS, pc.field("op") == "commit")
    took = kip1224_commits.took_ms(rows)
    slowest = float(took.max()) if len(took) else np.inf
    late = int((took > LATE_MS).sum())
    why = f"{full} of {len(sizes)} batches were full; of {len(took)} commits {late} were not answered in {LATE_MS} ms"
    of = Estimate(slowest if np.isfinite(slowest) else None, None, None, full, "ms")
    return seen(not late if full else None, of, why)


def _fill(part: Part) -> int:
    """Return the number of commits that fill a batch."""
    timeline = part.run.timeline
    (arm,) = timeline["workloads"][0]["arms"].values()
    return int(timeline["cluster"]["config"][_BATCH]) // int(arm["settings"][_METADATA])


def _sizes(part: Part) -> list[int]:
    """Return the number of commits of each batch."""
    table = kip1224_commits.written(part)
    if table is None:
        return []
    counted = table.group_by(["partition", "batch"]).aggregate([("offset", "count")])
    return [int(count) for count in counted["offset_count"].to_pylist()]


FAULT = "coordinator"


def survived(part: Part, rule: str) -> Judged:
    """Judge the check ``lost`` (acknowledged commits are in the log) or ``backward`` (no offset decreased)."""
    proven, _ = part.run.trials()
    checks = [
        check
        for check in part.run.verdict.checks
        if check.id == f"integrity/{rule}" and check.subject.endswith(" commit")
    ]
    counts = [check.observed for check in checks if check.observed is not None]
    broken = sum(counts) if len(counts) == len(checks) > 0 else None
    why = f"of {sum(check.n for check in checks)} commits; {_under_way(part)} were under way at the kills"
    return seen(None if broken is None else not broken, Estimate(broken, None, None, len(proven or ()), "commits"), why)


def _under_way(part: Part) -> int:
    """Return the number of commits that were sent before a kill and ended after it."""
    rows = part.outcomes(("sent_us", "done_us"), pc.field("op") == "commit")
    sent, done = rows["sent_us"].fill_null(0).to_numpy(), rows["done_us"].fill_null(0).to_numpy()
    return sum(int(((sent < kill["start_us"]) & (done >= kill["start_us"])).sum()) for kill in part.phases(FAULT))


IDLE = ("idle-1", "idle-2", "idle-3")
SHARE = ("share-1", "share-2", "share-3")
USER, OLD, FAILOVER = "user", "old", "failover"
PLAIN, TRANSACTIONAL, ACKNOWLEDGING = "commits/plain", "transactions/transactional", "shares/acknowledging"
SAVED_MS = 4.0
SAME_MS = 1.0
NO_LINGER_MS = 2.0
"""Wider than ``SAME_MS``, because a transaction takes several requests; a linger would add 5 ms."""


def _differences(part: Part, client: str, slower: str, faster: str) -> list[float]:
    """Return how much later the median commit was answered, slice by slice."""
    medians = kip1224_commits.medians_ms(part, client, steady(part))
    return [slow - fast for slow, fast in zip(medians.get(slower, ()), medians.get(faster, ()), strict=False)]


def later_ms(runs: Sequence[Part], client: str, slower: str, faster: str, confidence: float = 0.95) -> Estimate:
    """Return the mean over slices of the mean over runs; no figure if a slice or run has no answered commit."""
    differences = zip(*(_differences(run, client, slower, faster) for run in runs), strict=False)
    values = [math.fsum(of_slice) / len(runs) for of_slice in differences]
    if not all(map(math.isfinite, values)):
        return Estimate(None, None, None, len(values), "ms", confidence)
    return mean(values, "ms", confidence)


def saved(parts: Parts) -> Judged:
    """Judge how much faster the adaptive linger answers plain (not transactional) commits."""
    return above(later_ms(_runs(parts, IDLE), PLAIN, FIXED, ADAPTIVE), SAVED_MS)


def as_none(parts: Parts) -> Judged:
    """Judge that a commit takes equally long with the adaptive linger and without linger."""
    return within(later_ms(_runs(parts, IDLE), PLAIN, ADAPTIVE, NONE, 0.9), -SAME_MS, SAME_MS)


def transactions(parts: Parts) -> Judged:
    """Judge the control: a transaction's commit is written immediately with any linger."""
    return within(later_ms(_runs(parts, IDLE), TRANSACTIONAL, FIXED, ADAPTIVE, 0.9), -NO_LINGER_MS, NO_LINGER_MS)


def idle_ms(parts: Parts) -> Judged:
    """Report the latency of a lone commit, including everything between client and coordinator."""
    runs = [kip1224_commits.medians_ms(run, PLAIN, steady(run))[ADAPTIVE] for run in _runs(parts, IDLE)]
    found = mean([math.fsum(of_slice) / len(runs) for of_slice in zip(*runs, strict=False)], "ms")
    return reported(found, "from the intended time, through a Python client and a proxy: the broker's part is smaller")


def user_saved(parts: Parts) -> Judged:
    """Report the saved time with the offsets topic on three brokers, from one run without a Latin square."""
    return reported(
        later_ms([parts[USER]], PLAIN, FIXED, ADAPTIVE), "one run: differences between brokers are included"
    )


def shared_saved(parts: Parts) -> Judged:
    """Judge the share coordinator's linger (the same code) with Kafka's own share consumer."""
    return above(later_ms(_runs(parts, SHARE), ACKNOWLEDGING, FIXED, ADAPTIVE), SAVED_MS)


def old_default(parts: Parts) -> Judged:
    """Report how much later a 4.1 coordinator answers by default than without linger."""
    return reported(
        later_ms([parts[OLD]], PLAIN, kip1224_commits.DEFAULT, NONE),
        "one run: differences between brokers are included",
    )


def idle_batched(parts: Parts) -> Judged:
    """Report commits per flush, fixed relative to adaptive: at a low rate there is nothing to batch."""
    return kip1224_commits.batching(_runs(parts, IDLE), FIXED, ADAPTIVE, 3)


CLAIMS = (
    Claim(
        "idle-saved",
        "idle: adaptive saves the fixed linger, p50",
        "5 ms to under 1 ms",
        "at least 4 ms saved",
        "claim",
        IDLE,
        saved,
    ),
    Claim(
        "idle-as-none",
        "idle: adaptive waits no longer than no linger, p50",
        "-",
        "within ±1 ms",
        "claim",
        IDLE,
        as_none,
    ),
    Claim(
        "killed-kept",
        "coordinator killed with batches under way: acknowledged commits stay",
        "-",
        "none lost",
        "claim",
        (FAILOVER,),
        lambda parts: survived(parts[FAILOVER], "lost"),
    ),
    Claim(
        "killed-monotonic",
        "coordinator killed: no group's position goes back",
        "-",
        "none goes back",
        "claim",
        (FAILOVER,),
        lambda parts: survived(parts[FAILOVER], "backward"),
    ),
    *BUSY_CLAIMS,
    Claim(
        "full",
        "commits that fill a batch are all flushed: slowest",
        "-",
        "all answered within 2.5 s",
        "claim",
        (FULL,),
        lambda parts: flushed(parts[FULL]),
    ),
    Claim(
        "transactions",
        "transactional commits, which never linger: fixed minus adaptive, p50",
        "-",
        "within ±2 ms",
        "control",
        IDLE,
        transactions,
    ),
    Claim("idle", "idle: p50 of a commit, adaptive", "under 1 ms", "", "report", IDLE, idle_ms),
    Claim("user", "offsets topic on three brokers: time saved, p50", "-", "", "report", (USER,), user_saved),
    Claim(
        "share",
        "idle share groups, acknowledgements: adaptive saves the fixed linger, p50",
        "5 ms to under 1 ms",
        "at least 4 ms saved",
        "report",
        SHARE,
        shared_saved,
    ),
    Claim(
        "old",
        "Kafka 4.1.2 with its defaults: later than without linger, p50",
        "5 ms",
        "",
        "report",
        (OLD,),
        old_default,
    ),
    Claim("batched", "idle: commits per flush, fixed relative to adaptive", "-", "", "report", IDLE, idle_batched),
)


_SIZE = (8.5, 3.2)
_LABELS = {ADAPTIVE: "adaptive (-1)", FIXED: "fixed 5 ms", NONE: "none (0)"}
_PANELS = {PLAIN: "commits", TRANSACTIONAL: "transactional commits (control)"}
_SHOWN_Q = 0.98
_TITLE = "Commit latency by the coordinator's linger"


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return one chart of all idle runs, if any was run."""
    runs = [parts[name] for name in IDLE if name in parts]
    if not runs:
        return ()
    sentence = _reading(_pooled(runs, PLAIN))
    with drawing(*_SIZE) as figure:
        for axis, (client, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
            _panel(axis, _pooled(runs, client), title)
        legend(figure, figure.axes[0], len(_LABELS))
        svg = rendered(figure, "kip1224-idle", _TITLE, sentence)
    return (Plot(_TITLE, svg, sentence),)


def _pooled(runs: Sequence[Part], client: str) -> dict[str, Floats]:
    """Return all latencies of all runs by setting, in order."""
    runs_ms = [kip1224_commits.latencies_ms(run, client, steady(run)) for run in runs]
    return {
        name: np.sort(np.concatenate([values for by_setting in runs_ms for values in by_setting.get(name, ())]))
        for name in _LABELS
    }


def _panel(axis: Axes, found: dict[str, Floats], title: str) -> None:
    """Draw the share of commits by latency."""
    for number, (name, label) in enumerate(_LABELS.items()):
        colour, dash = LINES[number]
        took = found[name]
        shares = 100 * np.arange(1, len(took) + 1) / max(1, len(took))
        axis.plot(took, shares, color=colour, linestyle=dash, linewidth=1.3, label=label)
    plain(axis, f"{title}, % answered")
    axis.set_xlabel("ms from the intended time")
    axis.set_xlim(0, max((quantile(took, _SHOWN_Q) for took in found.values() if len(took)), default=1.0))
    axis.set_ylim(0, 100)


def _reading(found: dict[str, Floats]) -> str:
    known = [f"{_LABELS[name]} {quantile(took, 0.5):.2f} ms" for name, took in found.items() if len(took)]
    return f"p50 of plain commits: {', '.join(known)}. On the right are commits that never linger."
