"""The busy half of KIP-1224: a closed loop over many groups, at the coordinator of one linger after the other.

Rules. The three runs are the Latin square of the idle half; a round is n, its figure the mean over the runs at the same
round. A coordinator's flush is a batch: where flushes are half of the commits or more, nothing was batched, a linger
has no work to do, and nothing is said of it. The KIP claims *no worse*, so better is no contradiction: one bound, and
the side that it is not claimed to be on has none.

Batches of commits that were full before they were due: whether anything was left without a flush.

Rules. A batch is full when the metadata of one more commit would not have fitted in. A write that nobody flushes is
given up by the coordinator after ``offsets.commit.timeout.ms``, 5 s: what was answered in half of that was flushed, and
what took longer is not told from what was left behind. Where no batch was full nothing is said.

What a coordinator that was killed had answered, and what its successors know, by the run's own checks of commits.

The unit is the kill that was witnessed and met.

KIP-1224 on trial: the group coordinator's adaptive append linger.

Published (KIP-1224): since 4.0 a coordinator waits 5 ms for more to write, so a commit takes those 5 ms where nobody
else commits; with the adaptive linger it takes less than 1 ms there, and no more than before under load.

Three runs are a Latin square: each broker is set to each linger once, so that the mean over the runs at the same slice
of time holds none of what brokers differ in. The slice is n.

The plot of KIP-1224: how long commits take at a low rate, by the linger of their coordinator.
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
"""Commits a flush: as few, or fewer, are no batches."""


def by_fixed(runs: Sequence[Part], figure: str, setting: str = ADAPTIVE, confidence: float = 0.9) -> Estimate:
    """A figure of bouts at one linger by the same at the fixed one: the geometric mean over runs, round by round."""
    ours, theirs = (_of_rounds(runs, figure, each) for each in (setting, FIXED))
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Estimate(None, None, None, len(ours), "times", confidence)
    return ratio(ours, theirs, confidence)


def _of_rounds(runs: Sequence[Part], figure: str, setting: str) -> Floats:
    """The geometric mean over the runs, for as many rounds as each of them has."""
    of_runs = [map(attrgetter(figure), bouts(run).get(setting, ())) for run in runs]
    return np.array([math.exp(math.fsum(map(math.log, each)) / len(runs)) for each in zip(*of_runs, strict=False)])


def _square(parts: Parts) -> list[Part]:
    return [parts[name] for name in BUSY]


def _if_batched(parts: Parts, judged: Judged) -> Judged:
    """The same, unless a coordinator that was to batch did not."""
    runs = [kip1224_commits.per_flush(run, transactional=False) for run in _square(parts)]
    fewest = min(each.get(setting, 0.0) for each in runs for setting in (ADAPTIVE, FIXED))
    if fewest > BATCHED:
        return judged
    return Judged(judged.ours, "inconclusive", f"no batching seen: {fewest:.2f} commits a flush, and 2 are too few")


def throughput(parts: Parts) -> Judged:
    """How many commits a second so many in flight come to."""
    return _if_batched(parts, above(by_fixed(_square(parts), "per_s"), 1 / WORSE, 1 / WORSE))


def p50(parts: Parts) -> Judged:
    """The median commit."""
    return _if_batched(parts, below(by_fixed(_square(parts), "p50_ms"), WORSE, WORSE))


def p99(parts: Parts) -> Judged:
    """The slow ones."""
    return _if_batched(parts, below(by_fixed(_square(parts), "p99_ms"), TAIL_WORSE, TAIL_WORSE))


def without(parts: Parts) -> Judged:
    """What lingering is for: throughput without any."""
    return reported(by_fixed(_square(parts), "per_s", NONE), "no linger by the fixed one, at the same load")


def capacity(parts: Parts) -> Judged:
    """What the host came to, with everything on it."""
    rounds = _of_rounds(_square(parts), "per_s", ADAPTIVE)
    found = mean(list(rounds), "commits/s") if len(rounds) else Estimate(None, None, None, 0, "commits/s")
    return reported(found, "adaptive; the clients, their proxies and three brokers on this host's cores")


def open_p50(parts: Parts) -> Judged:
    """The median commit below capacity, from the intended time."""
    return _of_capacity(parts, by_fixed([parts[OPEN]], "p50_ms"))


def open_p99(parts: Parts) -> Judged:
    """The slow ones there."""
    return _of_capacity(parts, by_fixed([parts[OPEN]], "p99_ms"))


def _of_capacity(parts: Parts, found: Estimate) -> Judged:
    """The rate is the plan's; what share of the capacity that was is known afterwards."""
    runs = [_of_rounds(of, "per_s", FIXED) for of in ([parts[OPEN]], _square(parts))]
    if not all(map(len, runs)):
        return reported(found, "what share of the capacity that is, is not known")
    at, most = (float(np.mean(each)) for each in runs)
    share = f"open loop at {at:.0f}/s, {at / most:.0%} of what the closed one came to at the fixed linger"
    return reported(found, f"{share}; one run: what brokers differ in is in it")


def batched(parts: Parts) -> Judged:
    """Commits a flush, adaptive by fixed."""
    return kip1224_commits.batching(_square(parts), ADAPTIVE, FIXED, 2)


CLAIMS = (
    Claim(
        "busy-throughput",
        "busy: adaptive writes as many commits a second as the fixed linger",
        "no worse",
        "at most 10 % fewer",
        "claim",
        BUSY,
        throughput,
    ),
    Claim("busy-p50", "busy: and takes no longer, p50", "no worse", "below 1.1 times", "claim", BUSY, p50),
    Claim("busy-p99", "busy: and is not slower, p99", "no worse", "below 1.25 times", "claim", BUSY, p99),
    Claim("busy-batched", "busy: commits a flush, adaptive by fixed", "-", "", "report", BUSY, batched),
    Claim("busy-none", "busy: commits a second without linger, by fixed", "-", "", "report", BUSY, without),
    Claim("busy", "busy: commits a second, adaptive", "-", "", "report", BUSY, capacity),
    Claim(
        "open-p50", "below that, open loop: adaptive by fixed, p50", "no worse", "", "report", (*BUSY, OPEN), open_p50
    ),
    Claim("open-p99", "below that, open loop: and p99", "no worse", "", "report", (*BUSY, OPEN), open_p99),
)


FULL = "full"
LATE_MS = 2_500
_METADATA, _BATCH = "commit.metadata.bytes", "message.max.bytes"


def flushed(part: Part) -> Judged:
    """Whether every commit was answered in time while batches were full."""
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
    """How many commits leave no room for one more."""
    timeline = part.run.timeline
    (arm,) = timeline["workloads"][0]["arms"].values()
    return int(timeline["cluster"]["config"][_BATCH]) // int(arm["settings"][_METADATA])


def _sizes(part: Part) -> list[int]:
    """Commits a batch."""
    table = kip1224_commits.written(part)
    if table is None:
        return []
    counted = table.group_by(["partition", "batch"]).aggregate([("offset", "count")])
    return [int(count) for count in counted["offset_count"].to_pylist()]


FAULT = "coordinator"


def survived(part: Part, rule: str) -> Judged:
    """Whether acknowledged commits are in the log (``lost``), and no group went back there (``backward``)."""
    proven, _ = part.run.trials()
    checks = [
        each for each in part.run.verdict.checks if each.id == f"integrity/{rule}" and each.subject.endswith(" commit")
    ]
    counts = [each.observed for each in checks if each.observed is not None]
    broken = sum(counts) if len(counts) == len(checks) > 0 else None
    why = f"of {sum(each.n for each in checks)} commits; {_under_way(part)} under way at the kills"
    return seen(None if broken is None else not broken, Estimate(broken, None, None, len(proven or ()), "commits"), why)


def _under_way(part: Part) -> int:
    """Commits that were sent before a kill and ended after it."""
    rows = part.outcomes(("sent_us", "done_us"), pc.field("op") == "commit")
    sent, done = rows["sent_us"].fill_null(0).to_numpy(), rows["done_us"].fill_null(0).to_numpy()
    return sum(int(((sent < each["start_us"]) & (done >= each["start_us"])).sum()) for each in part.phases(FAULT))


IDLE = ("idle-1", "idle-2", "idle-3")
SHARE = ("share-1", "share-2", "share-3")
USER, OLD, FAILOVER = "user", "old", "failover"
PLAIN, TRANSACTIONAL, ACKNOWLEDGING = "commits/plain", "transactions/transactional", "shares/acknowledging"
SAVED_MS = 4.0
SAME_MS = 1.0
NO_LINGER_MS = 2.0
"""A transaction takes several requests, so its times are wider; a linger would show as 5 ms of them."""


def _differences(part: Part, client: str, slower: str, faster: str) -> list[float]:
    """How much later the median commit was answered, slice by slice."""
    found = kip1224_commits.medians_ms(part, client, steady(part))
    return [one - other for one, other in zip(found.get(slower, ()), found.get(faster, ()), strict=False)]


def later_ms(runs: Sequence[Part], client: str, slower: str, faster: str, confidence: float = 0.95) -> Estimate:
    """The mean over slices of the mean over runs; no figure where in one nothing was answered."""
    differences = zip(*(_differences(run, client, slower, faster) for run in runs), strict=False)
    values = [math.fsum(each) / len(runs) for each in differences]
    if not all(map(math.isfinite, values)):
        return Estimate(None, None, None, len(values), "ms", confidence)
    return mean(values, "ms", confidence)


def _square_kip1224(parts: Parts, names: Sequence[str] = IDLE) -> list[Part]:
    return [parts[name] for name in names]


def saved(parts: Parts) -> Judged:
    """The fixed linger against the adaptive one, plain commits."""
    return above(later_ms(_square_kip1224(parts), PLAIN, FIXED, ADAPTIVE), SAVED_MS)


def as_none(parts: Parts) -> Judged:
    """The adaptive linger against none at all."""
    return within(later_ms(_square_kip1224(parts), PLAIN, ADAPTIVE, NONE, 0.9), -SAME_MS, SAME_MS)


def transactions(parts: Parts) -> Judged:
    """The control: a transaction's commit is written at once, whatever the linger."""
    return within(later_ms(_square_kip1224(parts), TRANSACTIONAL, FIXED, ADAPTIVE, 0.9), -NO_LINGER_MS, NO_LINGER_MS)


def idle_ms(parts: Parts) -> Judged:
    """How long a commit takes where nothing else is written: with everything between client and coordinator."""
    runs = [kip1224_commits.medians_ms(run, PLAIN, steady(run))[ADAPTIVE] for run in _square_kip1224(parts)]
    found = mean([math.fsum(each) / len(runs) for each in zip(*runs, strict=False)], "ms")
    return reported(found, "from the intended time, through a Python client and a proxy: the broker's part is smaller")


def user_saved(parts: Parts) -> Judged:
    """The same with the offsets topic on three brokers; one run, so brokers are not turned round."""
    return reported(later_ms([parts[USER]], PLAIN, FIXED, ADAPTIVE), "one run: what brokers differ in is in it")


def shared_saved(parts: Parts) -> Judged:
    """The share coordinator's linger, which is the same code, as Kafka's own share consumer sees it."""
    return above(later_ms(_square_kip1224(parts, SHARE), ACKNOWLEDGING, FIXED, ADAPTIVE), SAVED_MS)


def old_default(parts: Parts) -> Judged:
    """What a coordinator of 4.1 does when nobody says anything, against no linger."""
    return reported(
        later_ms([parts[OLD]], PLAIN, kip1224_commits.DEFAULT, NONE), "one run: what brokers differ in is in it"
    )


def batched_kip1224(parts: Parts) -> Judged:
    """Commits a flush, fixed by adaptive linger: at a low rate there is nothing to put together."""
    return kip1224_commits.batching(_square_kip1224(parts), FIXED, ADAPTIVE, 3)


CLAIMS_kip1224 = (
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
        "coordinator killed with batches under way: what was acknowledged stays",
        "-",
        "none lost",
        "claim",
        (FAILOVER,),
        lambda parts: survived(parts[FAILOVER], "lost"),
    ),
    Claim(
        "killed-monotonic",
        "and no group's position goes back",
        "-",
        "none goes back",
        "claim",
        (FAILOVER,),
        lambda parts: survived(parts[FAILOVER], "backward"),
    ),
    *CLAIMS,
    Claim(
        "full",
        "commits that fill a batch leave none without its flush: slowest",
        "-",
        "all answered within 2.5 s",
        "claim",
        (FULL,),
        lambda parts: flushed(parts[FULL]),
    ),
    Claim(
        "transactions",
        "transactional commits, which never linger: fixed against adaptive, p50",
        "-",
        "within ±2 ms",
        "control",
        IDLE,
        transactions,
    ),
    Claim("idle", "idle: p50 of a commit, adaptive", "under 1 ms", "", "report", IDLE, idle_ms),
    Claim("user", "offsets topic on three brokers: saved, p50", "-", "", "report", (USER,), user_saved),
    Claim(
        "share",
        "idle share groups, an acknowledgement: adaptive saves the fixed linger, p50",
        "5 ms to under 1 ms",
        "at least 4 ms saved",
        "report",
        SHARE,
        shared_saved,
    ),
    Claim("old", "Kafka 4.1.2 as it comes: later than without linger, p50", "5 ms", "", "report", (OLD,), old_default),
    Claim("batched", "idle: commits a flush, fixed by adaptive", "-", "", "report", IDLE, batched_kip1224),
)


_SIZE = (8.5, 3.2)
_LABELS = {ADAPTIVE: "adaptive (-1)", FIXED: "fixed 5 ms", NONE: "none (0)"}
_PANELS = {PLAIN: "commits", TRANSACTIONAL: "transactional commits (control)"}
_SHOWN_Q = 0.98
_TITLE = "How long a commit takes, by its coordinator's linger"


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One of the idle runs together, if any was run."""
    runs = [parts[name] for name in IDLE if name in parts]
    if not runs:
        return ()
    said = _reading(_pooled(runs, PLAIN))
    with drawing(*_SIZE) as figure:
        for axis, (client, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
            _panel(axis, _pooled(runs, client), title)
        legend(figure, figure.axes[0], len(_LABELS))
        svg = rendered(figure, "kip1224-idle", _TITLE, said)
    return (Plot(_TITLE, svg, said),)


def _pooled(runs: Sequence[Part], client: str) -> dict[str, Floats]:
    """By setting, all latencies of all runs, in order."""
    found = [kip1224_commits.latencies_ms(run, client, steady(run)) for run in runs]
    return {name: np.sort(np.concatenate([each for of in found for each in of.get(name, ())])) for name in _LABELS}


def _panel(axis: Axes, found: dict[str, Floats], title: str) -> None:
    """The share of commits that took at most so long."""
    for number, (name, label) in enumerate(_LABELS.items()):
        colour, dash = LINES[number]
        took = found[name]
        shares = 100 * np.arange(1, len(took) + 1) / max(1, len(took))
        axis.plot(took, shares, color=colour, linestyle=dash, linewidth=1.3, label=label)
    plain(axis, f"{title}, % answered")
    axis.set_xlabel("within so many ms of the intended time")
    axis.set_xlim(0, max((quantile(took, _SHOWN_Q) for took in found.values() if len(took)), default=1.0))
    axis.set_ylim(0, 100)


def _reading(found: dict[str, Floats]) -> str:
    known = [f"{_LABELS[name]} {quantile(took, 0.5):.2f} ms" for name, took in found.items() if len(took)]
    return f"p50 of plain commits: {', '.join(known)}. On the right are commits that never linger."
