"""Claims of KIP-951 (leader discovery), in which new leaders in responses save clients the wait for metadata.

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
immediately after *any* news of a leader, also from Metadata (``docs/KIPS.md``), so the immediate retry alone may help
after a kill.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import TypeAlias

from aftershock.results.compare.blocks import Block
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Claim, Parts, claim, control, described, on_part, report_only
from aftershock.results.trials.part import Part, onsets, ratio_of_blocks, worst_latencies
from aftershock.results.trials.statement import Estimate, Judged, Plot, add_reason, below, report, unknown, within

WORST = "produce.latency max in fault/move"
WORST_ALONE = "produce.latency max in fault"  # moves that are the only fault have no window of their own
WORST_KILL = "produce.latency max in fault/dead"
CONSUMED = "consume.latency max in fault/move"
ELECTED = "produce.latency max in fault/back"
BOTH, NEITHER, RETRY, HINTS = (f"moves/{arm}" for arm in ("both", "neither", "retry", "hints"))
P999_RECORDS_MIN = 10_000
MARGIN = 1.25
TOST = 0.90  # confidence of the interval that corresponds to two one-sided tests at 0.05
DELAYS_MS: Mapping[str, int] = {"delay-0": 0, "delay-100": 100, "delay-300": 300}
"""Delay of Metadata responses, by the name of the run of the trial in which leaders move."""

Blocks: TypeAlias = Mapping[int, Block]


def worst(name: str) -> str:
    """Return the measure by which the run ``name`` of the trial is judged, the worst latency of each leader move."""
    return WORST_ALONE if DELAYS_MS.get(name) == 0 else WORST


def medians(*sides: Blocks) -> str:
    texts = []
    for blocks in sides:
        values = sorted(block.value_us for block in blocks.values() if block.value_us is not None)
        texts.append(f"{values[len(values) // 2] / 1e3:.0f} ms" if values else "no value")
    return "medians " + " and ".join(texts)


def _compared(part: Part, ours: str, theirs: str, measure: str, judge: Callable[[Estimate], Judged]) -> Judged:
    """Judge the ratio of two clients' values by its 95 % interval, and add both clients' medians to the reason."""
    result = judge(part.ratio(ours, theirs, measure))
    return add_reason(result, medians(part.blocks(ours, measure), part.blocks(theirs, measure)))


def is_below(part: Part, ours: str, theirs: str, bound: float = 1.0, measure: str | None = None) -> Judged:
    return _compared(part, ours, theirs, measure or worst(part.name), lambda ratio: below(ratio, bound))


def reported(part: Part, ours: str, theirs: str, measure: str | None = None) -> Judged:
    return _compared(part, ours, theirs, measure or worst(part.name), lambda ratio: report(ratio, ""))


def hints_after_kill(part: Part) -> Judged:
    """Judge that leader hints make no difference when a leader is killed."""
    result = within(part.ratio(BOTH, RETRY, WORST_KILL, confidence=TOST), 1 / MARGIN, MARGIN)
    return add_reason(result, medians(part.blocks(BOTH, WORST_KILL), part.blocks(RETRY, WORST_KILL)))


def classic(part: Part) -> Judged:
    """Report the ratio of p99.9 latencies during leader moves, arm ``both`` / arm ``neither``, without an interval."""
    window = "fault" if DELAYS_MS[part.name] == 0 else "fault/move"
    sides = [part.quantile_us(client, "produce.latency", window, 0.999) for client in (BOTH, NEITHER)]
    fewest = min(n for _, n in sides)
    if fewest < P999_RECORDS_MIN:
        return report(unknown("times"), f"a p99.9 needs {P999_RECORDS_MIN} records per arm; an arm has only {fewest}")
    ours_us, theirs_us = (value for value, _ in sides)
    if ours_us is None or not theirs_us:
        return report(unknown("times"), "no ratio: p99.9 is a failed record, which counts as slower than any latency")
    why = f"{ours_us / 1e3:.0f} ms with the KIP, {theirs_us / 1e3:.0f} ms without, from {fewest} records or more each"
    return report(Estimate(ours_us / theirs_us, None, None, 1, "times"), why)


def unknown_endpoints(part: Part) -> Judged:
    """Judge the client that accepts leader hints to unknown brokers against the client that refuses such hints."""
    result = is_below(part, "moves/merged", "moves/ignored", measure=ELECTED)
    refused = part.counters("moves/ignored", "produce").get("hints_refused_unknown_leader", 0)
    word = result.word if refused else "inconclusive"
    return Judged(result.ours, word, f"{result.why}; the other client refused {refused} hints to an unknown broker")


def restarted(part: Part, workload: str) -> Judged:
    """Report the worst latency of records due while a broker shut down, as the ratio of arm ``both`` to ``neither``."""
    spans = onsets(part, "ended")
    both, neither = (worst_latencies(part, f"{workload}/{arm}", spans) for arm in ("both", "neither"))
    result = ratio_of_blocks(both, neither, 0.95, part.run.run_id)
    return report(result, f"{medians(both, neither)}, from {len(spans)} shutdowns, measured from SIGTERM to exit")


PUBLISHED = "p99.9 is 215 ms with the KIP and 1675 ms without: 0.13 times"
REJECTED = "p99.9 is 215 ms with the KIP and 1781, 1934, 5352 ms with immediate retry without hints: 0.07 times"

FOREIGN = {"librdkafka": "librdkafka", "java": "Kafka's Java producer"}
"""Producers of other projects, by the part of the trial in which each producer runs."""
ABLATIONS = {
    "stripped": "with KIP-951's leader hints removed from all responses",
    "capped": "at brokers without KIP-951",
}
RESTARTS = {
    "restart": (12, {"all": "p99 374 ms with, 391 ms without", "one": "p99 2.95 ms with, 3.25 ms without"}),
    "restart-many": (120, {"all": "p99 152 ms with, 156 ms without", "one": "p99 83.3 ms with, 84.7 ms without"}),
}
"""By part of the trial: the number of partitions, and the KIP's published p99 latencies for each setting of acks."""
LATE_300 = "Leaders move, Metadata responses are 300 ms late"
TEXTS = {
    "delay-300": f"{LATE_300}: slowest record per move, with KIP-951 relative to without",
    "rejected-300": f"{LATE_300}: slowest record per move, with KIP-951 relative to an immediate retry without hints, "
    "which the KIP rejected",
    "delay-0": "Leaders move, no response is late: slowest record per move, with KIP-951 relative to without",
    "kill": "A leader is killed, so brokers send no leader hints: slowest record per kill, hints on relative to off",
    "delay-100": "Leaders move, Metadata responses are 100 ms late: slowest record per move, "
    "with KIP-951 relative to without",
    "shared-300": f"{LATE_300} and delay records on the same connection: slowest record per move, "
    "with KIP-951 relative to without",
    "rejected-0": "Leaders move, no response is late: slowest record per move, with KIP-951 relative to an immediate "
    "retry without hints, which the KIP rejected",
    "hints-300": f"{LATE_300}: slowest record per move, leader hints alone relative to a client without the KIP",
    "classic-300": f"{LATE_300}: p99.9 of all records during the moves, with KIP-951 relative to without",
    "kill-whole": "A leader is killed: slowest record per kill, with all of KIP-951 relative to without",
    "acks-1": "Leaders move, no response is late, acks=1 (no wait for followers): slowest record per move, "
    "with KIP-951 relative to without",
    "consume": "Leaders move: latest delivery to a consumer per move, with leader hints relative to without",
    "consume-1s": "Leaders move, Metadata is 1 s late: latest delivery per move, with leader hints relative to without",
    "leaves": "The old leader leaves the replica list, two replicas on three brokers: slowest record per move, "
    "with KIP-951 relative to without",
    "unknown": "A broker that clients have forgotten becomes leader: hints accepted relative to hints refused",
    **{
        f"{client}-{ablation}": f"{name} relative to the same client {without}: slowest record per move"
        for client, name in FOREIGN.items()
        for ablation, without in ABLATIONS.items()
    },
    **{
        f"{part}-{acks}": f"Brokers shut down, {partitions} partitions, acks={acks}: with KIP-951 relative to without"
        for part, (partitions, published) in RESTARTS.items()
        for acks in published
    },
}


def _beside(name: str, part: str, ours: str, theirs: str, measure: str = WORST) -> Claim:
    return report_only(name, on_part(part, is_below, ours, theirs, 1.0, measure), "", "below 1")


CLAIMS = described(
    TEXTS,
    claim("delay-300", "below 0.5", on_part("delay-300", is_below, BOTH, NEITHER, 0.5), PUBLISHED),
    claim("rejected-300", "below 1", on_part("delay-300", is_below, BOTH, RETRY), REJECTED),
    claim("delay-0", "below 1", on_part("delay-0", is_below, BOTH, NEITHER), PUBLISHED),
    control("kill", "within 0.8 to 1.25, by TOST", on_part("kill", hints_after_kill), ""),
    report_only("delay-100", on_part("delay-100", is_below, BOTH, NEITHER), PUBLISHED, "below 1"),
    report_only("shared-300", on_part("shared", is_below, BOTH, NEITHER), PUBLISHED, "below 1"),
    report_only("rejected-0", on_part("delay-0", reported, BOTH, RETRY), REJECTED),
    report_only("hints-300", on_part("delay-300", reported, HINTS, NEITHER), ""),
    report_only("classic-300", on_part("delay-300", classic), PUBLISHED),
    report_only("kill-whole", on_part("kill", reported, BOTH, NEITHER, WORST_KILL), ""),
)
BESIDE = described(
    TEXTS,
    _beside("acks-1", "acks-1", BOTH, NEITHER, WORST_ALONE),
    _beside("consume", "consume", "readers/told", "readers/asks", CONSUMED),
    _beside("consume-1s", "consume-1s", "readers/told", "readers/asks", CONSUMED),
    *(
        _beside(f"{client}-{ablation}", client, "moves/whole", f"moves/{ablation}")
        for client, ablation in product(FOREIGN, ABLATIONS)
    ),
    _beside("leaves", "leaves", BOTH, NEITHER),
    report_only("unknown", on_part("unknown", unknown_endpoints), "", "below 1"),
    *(
        report_only(f"{part}-{acks}", on_part(part, restarted, acks), published)
        for part, (_, published_by_acks) in RESTARTS.items()
        for acks, published in published_by_acks.items()
    ),
)


ARMS = {BOTH: "both: the KIP", HINTS: "hints alone", RETRY: "retry alone: rejected", NEITHER: "neither: before"}


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return one chart of worst latencies, with a panel per delay of Metadata responses; none without leader moves.

    Each arm is drawn as a cloud of points, one per leader move from left to right, without moves that have no value.
    """
    moved = {name: parts[name] for name in DELAYS_MS if name in parts}
    if not moved:
        return ()
    title = "The slowest record of each leader move, by the delay of Metadata responses"
    texts = []
    with drawing(10.0, 3.6) as figure:
        axes = figure.subplots(1, len(moved), sharey=True, squeeze=False)[0]
        for axis, (name, part) in zip(axes, moved.items(), strict=True):
            axis.set_yscale("log")
            for place, (arm, label) in enumerate(ARMS.items()):
                blocks = sorted(part.blocks(arm, worst(name)).items())
                values = [value_us / 1e3 for _, block in blocks if (value_us := block.value_us) is not None]
                colour = LINES[place][0]
                spread = [place + 0.5 * (number / max(len(values) - 1, 1) - 0.5) for number in range(len(values))]
                axis.plot(spread, values, ".", color=colour, markersize=5, label=label)
                if values:
                    median_ms = sorted(values)[len(values) // 2]
                    axis.hlines(median_ms, place - 0.35, place + 0.35, color=colour, linewidth=2)
                    texts.append(f"{DELAYS_MS[name]} ms, {arm.partition('/')[2]}: median {median_ms:.0f} ms")
            axis.set_xticks(range(len(ARMS)), [arm.partition("/")[2] for arm in ARMS])
            axis.yaxis.set_major_formatter("{x:.10g}")
            axis.yaxis.set_minor_formatter("{x:.10g}")
            plain(axis, f"Metadata {DELAYS_MS[name]} ms late")
        axes[0].set_ylabel("ms")
        legend(figure, axes[0], len(ARMS))
        svg = rendered(figure, "moves", title, "; ".join(texts))
    reading = (
        "Each point is the slowest record of one leader move, from the request of the move to one second after the "
        "move. A line is the median of an arm. If the KIP's claim holds, the two clouds of points on the left (with "
        "leader hints) stay at the same height when Metadata responses get later, and the other clouds rise."
    )
    return (Plot(title, svg, reading),)
