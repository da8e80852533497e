"""Claims of KIP-951 (leader discovery): new leaders in produce and fetch responses save the wait for metadata.

**Statistic.** The worst latency among the records of one move's window, one number per move and arm, paired by move. At
a low rate the first metadata refresh repairs all partitions, so a quantile of all records would show only the records
in between. The window opens when the move is requested, at least 0.1 s before leaders change, so that it includes the
records in flight, and closes a second after they have changed. The classic p99.9 of all records under the moves is
reported as well, if there are the 10 000 records that it needs.

**Arms.** ``both`` is the KIP (leader hints, and an immediate retry), ``neither`` the client before it, ``retry`` the
alternative that the KIP rejected, ``hints`` the other half. Published, the KIP's micro-benchmark: p99.9 of produce 1675
ms without and 215 ms with it; 1781, 1934 and 5352 ms for an immediate retry without hints.

**Late metadata.** In parts with late Metadata responses, all arms use a separate connection for Metadata. On the shared
connection that Kafka's clients use, responses arrive in order, so a late one, which each client requests in the
background, delays the records behind it as well: measured that way (``shared-300``), the KIP's arm is as slow as the
response is late.

**Control.** Hints are compared with no hints under the same retry rule, rather than the whole KIP with a client that
lacks it: Kafka retries immediately after *any* news of a leader, also from Metadata (``docs/KIPS.md``), so that half
may help after a kill.

**Also reported** (``BESIDE``), without effect on the verdict: consumers, other clients, other ways to move leaders,
each with the same statistic under Metadata that is 300 ms late. Clients of other projects have no separate connection
for Metadata, so a late response may delay records with or without hints. A new leader shows records to consumers only
when its followers have them, which may take as long as a response that is 300 ms late: therefore one part delays the
response by 1 s. Restarts are measured with the records that were due from SIGTERM to exit, and have no bound: the KIP's
tables of them are from 70 minutes on fifteen machines, with 108 and 9000 partitions.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product

from markupsafe import Markup
from matplotlib.axes import Axes

from aftershock.results.compare.blocks import Block
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.part import Part, ratio_of_blocks, struck, worst_in
from aftershock.results.trials.statement import Estimate, Judged, Plot, below, reported, unknown, within

WORST = "produce.latency max in fault/move"
WORST_ALONE = "produce.latency max in fault"  # moves that are the only fault have no window of their own
WORST_KILL = "produce.latency max in fault/dead"
BOTH, NEITHER, RETRY, HINTS = (f"moves/{arm}" for arm in ("both", "neither", "retry", "hints"))
P999_RECORDS_MIN = 10_000
MARGIN = 1.25
TOST = 0.90  # confidence of the interval that corresponds to two one-sided tests at 0.05
DELAYS_MS: Mapping[str, int] = {"delay-0": 0, "delay-100": 100, "delay-300": 300}
"""Parts with moves, and the delay of Metadata responses in each."""


def worst(name: str) -> str:
    """Return the worst latency of each move of a part, the statistic of this trial."""
    return WORST_ALONE if DELAYS_MS.get(name) == 0 else WORST


def _pair(part: str, ours: str, theirs: str, parts: Parts) -> Estimate:
    return parts[part].ratio(ours, theirs, worst(part))


def _below(part: str, ours: str, theirs: str, bound: float, parts: Parts) -> Judged:
    result = below(_pair(part, ours, theirs, parts), bound)
    return Judged(result.ours, result.word, f"{result.why}; {medians(parts[part], ours, theirs, worst(part))}")


def _reported(part: str, ours: str, theirs: str, parts: Parts) -> Judged:
    return reported(_pair(part, ours, theirs, parts), medians(parts[part], ours, theirs, worst(part)))


def medians(part: Part, ours: str, theirs: str, measure: str) -> str:
    """Return the median of each side over its moves, in milliseconds."""
    return middles(*(part.blocks(client, measure) for client in (ours, theirs)))


def middles(*sides: Mapping[int, Block]) -> str:
    """Return the medians of the given blocks."""
    values = map(_middle_ms, sides)
    return "medians " + " and ".join("no value" if ms is None else f"{ms:.0f} ms" for ms in values)


def _middle_ms(blocks: Mapping[int, Block]) -> float | None:
    values = sorted(block.value_us for block in blocks.values() if block.value_us is not None)
    return values[len(values) // 2] / 1e3 if values else None


def _control(parts: Parts) -> Judged:
    result = within(parts["kill"].ratio(BOTH, RETRY, WORST_KILL, confidence=TOST), 1 / MARGIN, MARGIN)
    return Judged(result.ours, result.word, f"{result.why}; {medians(parts['kill'], BOTH, RETRY, WORST_KILL)}")


def _whole_kip_at_a_kill(parts: Parts) -> Judged:
    result = parts["kill"].ratio(BOTH, NEITHER, WORST_KILL)
    return reported(result, medians(parts["kill"], BOTH, NEITHER, WORST_KILL))


def _classic(part: str, parts: Parts) -> Judged:
    """Report p99.9 of all records under the moves, ours / theirs: a single number, so it has no interval."""
    window = "fault" if DELAYS_MS[part] == 0 else "fault/move"
    sides = [parts[part].quantile_us(client, "produce.latency", window, 0.999) for client in (BOTH, NEITHER)]
    fewest = min(n for _, n in sides)
    if fewest < P999_RECORDS_MIN:
        return reported(unknown("times"), f"p99.9 needs {P999_RECORDS_MIN} records per arm, and there are {fewest}")
    ours_us, theirs_us = (value for value, _ in sides)
    if ours_us is None or not theirs_us:
        return reported(unknown("times"), "there is no ratio, because a failed record is slower than any")
    why = f"{ours_us / 1e3:.0f} ms and {theirs_us / 1e3:.0f} ms, from {fewest} records per arm"
    return reported(Estimate(ours_us / theirs_us, None, None, 1, "times"), why)


PUBLISHED = "p99.9 215 ms with, 1675 ms without: 0.13 times"
REJECTED = "p99.9 215 ms with the KIP, 1781, 1934 and 5352 ms with immediate retry and no hints: 0.07 times"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "delay-300",
        "Leaders move, Metadata responses are 300 ms late: slowest record per move, with the KIP relative to without",
        PUBLISHED,
        "below 0.5",
        "claim",
        ("delay-300",),
        partial(_below, "delay-300", BOTH, NEITHER, 0.5),
    ),
    Claim(
        "rejected-300",
        "The same, relative to an immediate retry without hints, which the KIP rejected",
        REJECTED,
        "below 1",
        "claim",
        ("delay-300",),
        partial(_below, "delay-300", BOTH, RETRY, 1.0),
    ),
    Claim(
        "delay-0",
        "Leaders move, nothing is late: slowest record per move, with the KIP relative to without",
        PUBLISHED,
        "below 1",
        "claim",
        ("delay-0",),
        partial(_below, "delay-0", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "kill",
        "A leader is killed, so there are no hints: slowest record per kill, hints relative to no hints",
        "",
        "within 0.8 to 1.25, by TOST",
        "control",
        ("kill",),
        _control,
    ),
    Claim(
        "delay-100",
        "Leaders move, Metadata responses are 100 ms late: with the KIP relative to without",
        PUBLISHED,
        "below 1",
        "report",
        ("delay-100",),
        partial(_below, "delay-100", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "shared-300",
        "As the first, but Metadata shares the records' connection and delays them: with the KIP relative to without",
        PUBLISHED,
        "below 1",
        "report",
        ("shared",),
        partial(_below, "shared", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "rejected-0",
        "Leaders move, nothing is late: with the KIP relative to an immediate retry without hints",
        REJECTED,
        "",
        "report",
        ("delay-0",),
        partial(_reported, "delay-0", BOTH, RETRY),
    ),
    Claim(
        "hints-300",
        "Leaders move, Metadata responses are 300 ms late: hints alone relative to neither",
        "",
        "",
        "report",
        ("delay-300",),
        partial(_reported, "delay-300", HINTS, NEITHER),
    ),
    Claim(
        "classic-300",
        "Metadata responses are 300 ms late: classic p99.9 of all records under the moves",
        PUBLISHED,
        "",
        "report",
        ("delay-300",),
        partial(_classic, "delay-300"),
    ),
    Claim(
        "kill-whole",
        "A leader is killed: the whole KIP relative to none of it, including immediate retry on news from Metadata",
        "",
        "",
        "report",
        ("kill",),
        _whole_kip_at_a_kill,
    ),
)


CONSUMED = "consume.latency max in fault/move"
ELECTED = "produce.latency max in fault/back"
CONSUMERS = {
    "consume": "A consumer that accepts hints relative to one that requests metadata: latest record per move",
    "consume-1s": "The same with Metadata a second late, longer than replication takes",
}
FOREIGN = {"librdkafka": "librdkafka", "java": "Kafka's Java producer"}
"""Clients of other projects, each a part with its name."""
ABLATIONS = {"stripped": "with the hints stripped from its responses", "capped": "at brokers without hints"}
RESTARTS = {
    "restart": (12, {"all": "p99 374 ms with, 391 ms without", "one": "p99 2.95 ms with, 3.25 ms without"}),
    "restart-many": (120, {"all": "p99 152 ms with, 156 ms without", "one": "p99 83.3 ms with, 84.7 ms without"}),
}
"""Number of partitions, and by workload (named by its acks) the figures of the KIP's tables."""
_CONFIDENCE = 0.95


def _below_one(part: str, ours: str, theirs: str, measure: str, parts: Parts) -> Judged:
    result = below(parts[part].ratio(ours, theirs, measure), 1.0)
    return Judged(result.ours, result.word, f"{result.why}; {medians(parts[part], ours, theirs, measure)}")


def _unknown(parts: Parts) -> Judged:
    """Judge hints with endpoints of unknown brokers, if the client that ignores endpoints counted such hints."""
    result = _below_one("unknown", "moves/merged", "moves/ignored", ELECTED, parts)
    refused = parts["unknown"].counters("moves/ignored", "produce").get("hints_refused_unknown_leader", 0)
    word = result.word if refused else "inconclusive"
    return Judged(result.ours, word, f"{result.why}; {refused} hints to an unknown broker")


def _restarted(name: str, workload: str, parts: Parts) -> Judged:
    part = parts[name]
    spans = struck(part, "ended")
    both, neither = (worst_in(part, f"{workload}/{arm}", spans) for arm in ("both", "neither"))
    result = ratio_of_blocks(both, neither, _CONFIDENCE, part.run.run_id)
    return reported(result, f"{middles(both, neither)}, from {len(spans)} shutdowns, SIGTERM to exit")


def _report(name: str, part: str, claim: str, ours: str, theirs: str, measure: str = WORST) -> Claim:
    judge = partial(_below_one, part, ours, theirs, measure)
    return Claim(name, claim, "", "below 1", "report", (part,), judge)


def _foreign(client: str, ablation: str) -> Claim:
    claim = f"{FOREIGN[client]} as it is, relative to itself {ABLATIONS[ablation]}"
    return _report(f"{client}-{ablation}", client, claim, "moves/whole", f"moves/{ablation}")


def _restart(part: str, workload: str) -> Claim:
    partitions, published = RESTARTS[part]
    claim = f"Brokers shut down, {partitions} partitions, acks={workload}: with the KIP relative to without"
    judge = partial(_restarted, part, workload)
    return Claim(f"{part}-{workload}", claim, published[workload], "", "report", (part,), judge)


BESIDE: tuple[Claim, ...] = (
    _report(
        "acks-1",
        "acks-1",
        "Leaders move, nothing is late, acks=1: the remaining wait if no follower has to acknowledge",
        BOTH,
        NEITHER,
        WORST_ALONE,
    ),
    *(_report(part, part, claim, "readers/told", "readers/asks", CONSUMED) for part, claim in CONSUMERS.items()),
    *(_foreign(client, ablation) for client, ablation in product(FOREIGN, ABLATIONS)),
    _report(
        "leaves",
        "leaves",
        "The old leader leaves the replica list, two replicas on three nodes: with the KIP relative to without",
        BOTH,
        NEITHER,
    ),
    Claim(
        "unknown",
        "A broker that clients have forgotten becomes leader: endpoints merged relative to ignored",
        "",
        "below 1",
        "report",
        ("unknown",),
        _unknown,
    ),
    *(_restart(part, workload) for part, (_, published) in RESTARTS.items() for workload in published),
)


ARMS = {BOTH: "both: the KIP", HINTS: "hints alone", RETRY: "retry alone: rejected", NEITHER: "neither: before"}
_WIDTH, _HEIGHT = 10.0, 3.6
_READING = (
    "Each point is one move: the slowest record that was due between the request of the move and a second after it. "
    "A line is a median. If the KIP's claim holds, the two clouds on the left stay in place as Metadata gets later, "
    "and the others rise with it."
)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return one chart with a panel per delay; none if no part with moves was run."""
    moved = {name: parts[name] for name in DELAYS_MS if name in parts}
    if not moved:
        return ()
    title = "The slowest record after each move, by the delay of Metadata"
    return (Plot(title, _drawn(moved, title), _READING),)


def _drawn(moved: Parts, title: str) -> Markup:
    with drawing(_WIDTH, _HEIGHT) as figure:
        axes = figure.subplots(1, len(moved), sharey=True, squeeze=False)[0]
        for axis, (name, part) in zip(axes, moved.items(), strict=True):
            _panel(axis, part, name)
        axes[0].set_ylabel("ms")
        legend(figure, axes[0], len(ARMS))
        return rendered(figure, "moves", title, _words(moved))


def _panel(axis: Axes, part: Part, name: str) -> None:
    """Draw one cloud per arm, side by side, its moves from left to right."""
    axis.set_yscale("log")
    for place, (arm, label) in enumerate(ARMS.items()):
        values = _values_ms(part, arm, name)
        colour = LINES[place][0]
        spread = [place + 0.5 * (number / max(len(values) - 1, 1) - 0.5) for number in range(len(values))]
        axis.plot(spread, values, ".", color=colour, markersize=5, label=label)
        if values:
            axis.hlines(sorted(values)[len(values) // 2], place - 0.35, place + 0.35, color=colour, linewidth=2)
    axis.set_xticks(range(len(ARMS)), [arm.partition("/")[2] for arm in ARMS])
    axis.yaxis.set_major_formatter("{x:.10g}")
    axis.yaxis.set_minor_formatter("{x:.10g}")
    plain(axis, f"Metadata {DELAYS_MS[name]} ms late")


def _values_ms(part: Part, arm: str, name: str) -> list[float]:
    """Return the values in order of the moves, without moves that have no value."""
    blocks = part.blocks(arm, worst(name))
    return [value_us / 1e3 for _, block in sorted(blocks.items()) if (value_us := block.value_us) is not None]


def _words(moved: Parts) -> str:
    texts = []
    for name, part in moved.items():
        for arm in ARMS:
            values = sorted(_values_ms(part, arm, name))
            if values:
                texts.append(f"{DELAYS_MS[name]} ms, {arm.partition('/')[2]}: median {values[len(values) // 2]:.0f} ms")
    return "; ".join(texts)
