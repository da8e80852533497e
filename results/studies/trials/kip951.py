"""Claims of KIP-951 (leader discovery), in which new leaders in responses save clients the wait for metadata.

**Headline.** One partition moves while every connection is busy with Produce requests, so that Metadata waits behind
them, which is the cause that the KIP names. Its own statistic is another: p99.9 of all records of a run.

**Statistic.** Arms are compared by the worst latency among the records of one leader move, paired by move, because at a
low rate the first metadata refresh repairs all partitions, so a quantile of all records would hide the records that
waited. The window of a leader move opens when the move is requested and closes a second after leaders have changed.
Broker restarts are measured with the records that were due between SIGTERM and the broker's exit. Claims on restarts
have no bound, because the KIP's tables of restarts are from 70 minutes on fifteen machines, with 108 and 9000
partitions.

**Arms.** ``both`` is the client of KIP-951 (leader hints, and an immediate retry), ``neither`` the client before the
KIP, ``retry`` the alternative that the KIP rejected (immediate retry only), ``hints`` a client with leader hints only.
In KIP-951's micro-benchmark, p99.9 of produce is 1675 ms without and 215 ms with leader hints, and 1781, 1934 and 5352
ms for an immediate retry without hints.

**Late metadata.** In runs with delayed Metadata responses, the clients of all arms use a separate connection for
Metadata. On the shared connection that Kafka's clients use, a late Metadata response delays the records behind it, so
the KIP's client is as slow as the response is late (part ``shared`` of the trial; true also of other projects'
clients). A new leader shows records to consumers only when its followers have the records, which may take 300 ms, so
the run with consumers delays Metadata responses by 1 s.

**Control.** Clients with and without leader hints are compared under the same retry rule, because Kafka retries
immediately after *any* news of a leader, also from Metadata (``docs/kips/kip951.md``), so the immediate retry alone
may help after a kill.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow.compute as pc
from matplotlib.ticker import LogLocator
from scipy.special import stdtrit

from aftershock.results.compare.blocks import Block
from aftershock.results.evidence.files import read_lines
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Part, median, onsets, ratio_of_blocks, worst_latencies
from aftershock.results.studies.statement import UNITS_MIN, Estimate, Measured, Plot, unknown
from aftershock.results.studies.trials import kip951_benchmark
from aftershock.results.studies.trials.claim import Parts, on_part, on_parts, register

WORST = "produce.latency max in fault/move"
WORST_ALONE = "produce.latency max in fault"  # moves that are the only fault have no window of their own
WORST_KILL = "produce.latency max in fault/dead"
CONSUMED = "consume.latency max in fault/move"
ELECTED = "produce.latency max in fault/back"
BOTH, NEITHER, RETRY, HINTS = (f"moves/{arm}" for arm in ("both", "neither", "retry", "hints"))
UNDELAYED = ("delay-0", "delay-0-2", "delay-0-3", "delay-0-4")
"""Runs of one sample: each arm is first, second, third and last in one of them."""
KAFKA_40 = "kafka-4.0"  # brokers whose parked fetches leave Metadata stale for up to 500 ms (before KIP-1166)
BUSY_MS: Mapping[str, int] = {"busy-300": 60, "busy-100": 20, "busy-0": 1}
"""Delay of each Produce response, by the run named by what a request waits behind five others."""
PRODUCTION = "production"  # the run busy-300 with Kafka's default settings
BACKOFF_MS: Mapping[str, int] = {"backoff-100": 100, "backoff-10": 10, "backoff-1000": 1000}
"""Back-off of the followers, by the run in which one partition moves every 400 ms."""
P999_RECORDS_MIN = 10_000
TOST = 0.90  # confidence of the interval that corresponds to two one-sided tests at 0.05
DELAYS_MS: Mapping[str, int] = {"delay-0": 0, "delay-100": 100, "delay-300": 300}
"""Delay of Metadata responses, by the name of the run of the trial in which leaders move."""

Blocks: TypeAlias = Mapping[int, Block]


def worst(name: str) -> str:
    """Return the measure by which the run ``name`` of the trial is judged, the worst latency of each leader move."""
    return WORST_ALONE if DELAYS_MS.get(name) == 0 else WORST


def medians(*sides: Blocks) -> str:
    """Describe the clients' medians over blocks with a value; the ratio that they explain is one of pairs of blocks."""
    texts = []
    for blocks in sides:
        values = np.array([block.value_us for block in blocks.values() if block.value_us is not None])
        texts.append(f"{median(values) / 1e3:.0f} ms" if len(values) else "no value")
    return f"medians {' and '.join(texts)} (the ratio is of pairs)"


def compared(part: Part, ours: str, theirs: str, measure: str | None = None, confidence: float = 0.95) -> Measured:
    """Return the ratio of two clients' values with its interval, and both clients' medians."""
    measure = measure or worst(part.name)
    ratio = part.ratio(ours, theirs, measure, confidence)
    return Measured(ratio, medians(part.blocks(ours, measure), part.blocks(theirs, measure)))


def _of_runs(runs: Sequence[Part], client: str, measure: str = WORST_ALONE) -> dict[int, Block]:
    """Return a client's values over the moves of several runs, as one plan has at most 100 blocks."""
    numbered = enumerate(run.blocks(client, measure) for run in runs)
    return {1000 * number + move: block for number, blocks in numbered for move, block in blocks.items()}


def undelayed(runs: Sequence[Part], ours: str, theirs: str) -> Measured:
    sides = [_of_runs(runs, client) for client in (ours, theirs)]
    return Measured(ratio_of_blocks(sides[0], sides[1], 0.95, runs[0].run.run_id), medians(*sides))


def newer_brokers(runs: Sequence[Part]) -> Measured:
    """Report the ratio of arm ``both`` to arm ``neither`` with the brokers of the first run, relative to the others."""
    logs = []
    for some in (runs[:1], runs[1:]):
        both, neither = (_of_runs(some, client) for client in (BOTH, NEITHER))
        values = [(both[move].value_us, neither[move].value_us) for move in both.keys() & neither.keys()]
        logs.append(np.array([np.log(ours / theirs) for ours, theirs in values if ours and theirs]))
    fewest = min(map(len, logs))
    if fewest < UNITS_MIN:
        return Measured(unknown("times"), f"a run has only {fewest} moves in which both arms have a value")
    effect = float(logs[0].mean() - logs[1].mean())
    # Welch's interval, with the degrees of freedom of the smaller sample, which errs to the wide side.
    reach = float(stdtrit(fewest - 1, 0.975)) * float(np.sqrt(sum(side.var(ddof=1) / len(side) for side in logs)))
    value, low, high = (float(np.exp(log)) for log in (effect, effect - reach, effect + reach))
    means = " and ".join(f"{np.exp(side.mean()):.3f} times in {len(side)} moves" for side in logs)
    return Measured(Estimate(value, low, high, fewest, "times"), f"with the KIP relative to without: {means}")


def refused_again(runs: Sequence[Part], client: str, *, immediate: bool) -> Measured:
    """Report the percentage of moves in which a retry was refused again at the same leader epoch.

    An immediate retry (which follows a hint or newer Metadata) then met a leader that had not applied its epoch yet,
    and backs off; a later retry met the old leader, because Metadata was stale.
    """
    total, arms = 0, (BOTH, HINTS, RETRY, NEITHER)
    moves: dict[tuple[str, bool], set[int]] = {(arm, kind): set() for arm in arms for kind in (True, False)}
    for number, run in enumerate(runs):
        proven, _ = run.run.trials()
        windows = [row for row in run.phases("move") if proven is None or row["block"] in proven]
        total, starts_us = total + len(windows), [row["start_us"] for row in windows]
        earlier: dict[tuple[object, ...], dict[str, Any]] = {}
        for event in sorted(run.events("batch_retried"), key=lambda event: int(event["t_us"])):
            batch = tuple(event[name] for name in ("worker", "partition", "token", "records"))
            before, earlier[batch] = earlier.get(batch), event
            if not before or before["epoch"] != event["epoch"] or event["reason"] != "NOT_LEADER_OR_FOLLOWER":
                continue
            place, arm = bisect_right(starts_us, event["t_us"]) - 1, f"{event['workload']}/{event['arm']}"
            if place >= 0 and (arm, bool(before["immediate"])) in moves:
                moves[arm, bool(before["immediate"])].add(1000 * number + windows[place]["block"])
    met = moves[client, immediate]
    counts = ", ".join(f"{arm.partition('/')[2]} {len(moves[arm, True])} / {len(moves[arm, False])}" for arm in arms)
    both, retry = (_of_runs(runs, arm) for arm in (BOTH, RETRY))
    parted = [
        ratio_of_blocks({move: both[move] for move in both if (move in met) is such}, retry, 0.95, "").value
        for such in (True, False)
    ]
    ratios = " and ".join("no figure" if ratio is None else f"{ratio:.3f} times" for ratio in parted)
    why = (
        f"of {total} moves, those with an immediate / a later retry that was refused again: {counts}; slowest record "
        f"of arm both relative to arm retry in the counted moves and in the others: {ratios}"
    )
    return Measured(Estimate(100 * len(met) / total if total else None, None, None, total, "% of moves"), why)


def of_moving_partition(part: Part, client: str) -> dict[int, Block]:
    """Map each block to the slowest record to partition 0 of a move, as the geometric mean over the block's moves.

    A move lasts from 50 ms before its request, or from the end of the fault's previous move, until 100 ms after its
    witness. The partition's records alone are compared, because the others wait for their connections in both arms.
    """
    rows = part.outcomes("produce", ("partition", "intended_us", "done_us", "status"), client)
    rows = rows.filter(pc.equal(rows["partition"], 0))
    intended_us, done_us = (rows[name].to_numpy().astype(float) for name in ("intended_us", "done_us"))
    latency_us = np.where(pc.equal(rows["status"], "ok").to_numpy(), done_us - intended_us, np.inf)
    bounds_us: dict[str, list[int]] = {}
    for line in read_lines(part.home / "journal.jsonl"):
        if (shift_us := {"intended": -50_000, "witnessed": 100_000}.get(line["state"])) is not None:
            bounds_us.setdefault(line["fault"], []).append(line["t_us"] + shift_us)
    proven, _ = part.run.trials()
    slowest: dict[int, list[float]] = {}
    for step in part.run.timeline["steps"]:
        if step["entry"] != "move" or (proven is not None and step["block"] not in proven):
            continue
        for start_us, end_us in pairwise(bounds_us.get(step["id"], ())):
            during = (intended_us >= start_us) & (intended_us < end_us)
            if during.any():
                slowest.setdefault(step["block"], []).append(float(latency_us[during].max()))
    return {
        block: Block(round(float(np.exp(np.log(values).mean()))) if np.isfinite(values).all() else None, len(values))
        for block, values in slowest.items()
    }


def one_partition(part: Part) -> Measured:
    """Return the ratio of the slowest records to the moving partition, arm ``both`` / arm ``neither``."""
    both, neither = of_moving_partition(part, BOTH), of_moving_partition(part, NEITHER)
    moves = sum(block.n for block in both.values())
    return Measured(ratio_of_blocks(both, neither, 0.95, part.run.run_id), f"{medians(both, neither)}, {moves} moves")


def classic(part: Part) -> Measured:
    """Report the ratio of p99.9 latencies during leader moves, arm ``both`` / arm ``neither``, without an interval."""
    window = "fault" if DELAYS_MS[part.name] == 0 else "fault/move"
    sides = [part.quantile_us(client, "produce.latency", window, 0.999) for client in (BOTH, NEITHER)]
    fewest = min(n for _, n in sides)
    if fewest < P999_RECORDS_MIN:
        return Measured(unknown("times"), f"a p99.9 needs {P999_RECORDS_MIN} records per arm; an arm has only {fewest}")
    ours_us, theirs_us = (value for value, _ in sides)
    if ours_us is None or not theirs_us:
        return Measured(unknown("times"), "no ratio: p99.9 is a failed record, which counts as slower than any latency")
    why = f"{ours_us / 1e3:.0f} ms with the KIP, {theirs_us / 1e3:.0f} ms without, from {fewest} records or more each"
    return Measured(Estimate(ours_us / theirs_us, None, None, 1, "times"), why)


def unknown_endpoints(part: Part) -> Measured:
    """Compare the client that accepts leader hints to unknown brokers with the client that refuses such hints."""
    result = compared(part, "moves/merged", "moves/ignored", ELECTED)
    refused = part.counters("moves/ignored", "produce").get("hints_refused_unknown_leader", 0)
    why = f"{result.why}; the other client refused {refused} hints to an unknown broker"
    return Measured(result.ours, why, doubt="" if refused else "no hint named an unknown broker")


def restarted(part: Part, workload: str) -> Measured:
    """Report the worst latency of records due while a broker shut down, as the ratio of arm ``both`` to ``neither``."""
    spans = onsets(part, "ended")
    both, neither = (worst_latencies(part, f"{workload}/{arm}", spans) for arm in ("both", "neither"))
    result = ratio_of_blocks(both, neither, 0.95, part.run.run_id)
    return Measured(result, f"{medians(both, neither)}, from {len(spans)} shutdowns, measured from SIGTERM to exit")


_FOREIGN, _ABLATIONS = ("librdkafka", "java"), ("stripped", "capped")
REGISTRATION = register(
    "kip951",
    {
        "shared-300": on_part("shared", compared, BOTH, NEITHER),
        "shared-300-production": on_part("shared-production", compared, BOTH, NEITHER),
        "delay-300": on_part("delay-300", compared, BOTH, NEITHER),
        "rejected-300": on_part("delay-300", compared, BOTH, RETRY),
        "delay-0": on_parts(UNDELAYED, undelayed, BOTH, NEITHER),
        "kill": on_part("kill", compared, BOTH, RETRY, WORST_KILL, TOST),
        "delay-100": on_part("delay-100", compared, BOTH, NEITHER),
        "rejected-0": on_parts(UNDELAYED, undelayed, BOTH, RETRY),
        "early-0": on_parts(UNDELAYED, partial(refused_again, client=BOTH, immediate=True)),
        "delay-0-old": on_parts((KAFKA_40,), undelayed, BOTH, NEITHER),
        "newer-brokers": on_parts((KAFKA_40, *UNDELAYED), newer_brokers),
        "stale-old": on_parts((KAFKA_40,), partial(refused_again, client=NEITHER, immediate=False)),
        "stale-0": on_parts(UNDELAYED, partial(refused_again, client=NEITHER, immediate=False)),
        "hints-300": on_part("delay-300", compared, HINTS, NEITHER),
        **{name: on_part(name, one_partition) for name in (*BUSY_MS, *BACKOFF_MS)},
        "busy-300-production": on_part(PRODUCTION, one_partition),
        "classic-300": on_part("delay-300", classic),
        "kill-whole": on_part("kill", compared, BOTH, NEITHER, WORST_KILL),
        "acks-1": on_part("acks-1", compared, BOTH, NEITHER, WORST_ALONE),
        "consume": on_part("consume", compared, "readers/told", "readers/asks", CONSUMED),
        "consume-1s": on_part("consume-1s", compared, "readers/told", "readers/asks", CONSUMED),
        **{
            f"{client}-{ablation}": on_part(client, compared, "moves/whole", f"moves/{ablation}", WORST)
            for client in _FOREIGN
            for ablation in _ABLATIONS
        },
        "leaves": on_part("leaves", compared, BOTH, NEITHER),
        "unknown": on_part("unknown", unknown_endpoints),
        **{
            f"{part}-{acks}": on_part(part, restarted, acks)
            for part in ("restart", "restart-many")
            for acks in ("all", "one")
        },
        **kip951_benchmark.MEASURES,
    },
)


ARMS = {BOTH: "both: the KIP", NEITHER: "neither: before", HINTS: "hints alone", RETRY: "retry alone: rejected"}
PANELS: Mapping[tuple[str, ...], str] = {
    ("busy-300",): "one partition moves, all connections are busy for 300 ms (headline)",
    (PRODUCTION,): "the same, brokers with default settings",
    ("shared",): "Metadata 300 ms late, on the connection of the records",
    ("delay-300",): "Metadata 300 ms late, on a connection of its own",
    UNDELAYED: "no response is late",
}
"""Title of each panel of the chart, by the runs whose moves it shows; the first run names the panel's curves."""


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return one chart of the time to the first acknowledgement of each leader move; none without leader moves.

    A move without a value counts as slower than any, so the curve of its arm ends below 100 %.
    """
    moved = {names: runs for names in PANELS if (runs := [parts[name] for name in names if name in parts])}
    if not moved:
        return ()
    title = "Time to the first acknowledgement after each leader move"
    texts = []
    with drawing(5.2, 1.5 * len(moved) + 1.0) as figure:
        axes = figure.subplots(len(moved), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (names, runs) in zip(axes, moved.items(), strict=True):
            name = names[0]
            axis.set_xscale("log")
            for (arm, label), (colour, dash) in zip(ARMS.items(), LINES, strict=False):
                one_moves = name in (*BUSY_MS, PRODUCTION)
                blocks = of_moving_partition(runs[0], arm) if one_moves else _of_runs(runs, arm, worst(name))
                values_us = [block.value_us for block in blocks.values()]
                values_ms = sorted(np.inf if value_us is None else value_us / 1e3 for value_us in values_us)
                shares = np.linspace(0, 100, len(values_ms) + 1)[1:]
                width = 1.8 if arm in (BOTH, NEITHER) else 1.0
                axis.step(values_ms, shares, color=colour, linestyle=dash, linewidth=width, label=label, where="post")
                if values_ms and arm in (BOTH, NEITHER):
                    texts.append(f"{name}, {arm.partition('/')[2]}: median {median(np.array(values_ms)):.0f} ms")
            axis.set_ylim(0, 101)
            axis.set_yticks([0, 50, 100])
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:.10g}")
            axis.minorticks_off()
            plain(axis, PANELS[names])
        axes[0].set_ylabel("% of moves")
        axes[-1].set_xlabel("ms")
        legend(figure, axes[0], 2)
        svg = rendered(figure, "kip951-moves", title, "; ".join(texts))
    reading = (
        "A curve shows the share of moves whose slowest record was acknowledged within so many ms of the time when it "
        "was due, so it shows how long a client needed to find the new leader. The further left, the sooner. "
        f"{'; '.join(texts)}."
    )
    return (Plot(title, svg, reading),)
