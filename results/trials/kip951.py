"""KIP-951, leader discovery: what it claims, and what the moves say of it.

The statistic is the worst latency among the records of one move's window, a number a move and arm, paired by move: at a
low rate the first refresh of metadata heals every partition, so a quantile of all records would see nothing but the
records in between. The window opens when the move is asked for, 0.1 s and more before leaders change, so that what is
in flight then is in it, and closes a second after they have. Beside it stands the classic p99.9 of all records under
the moves, where there are the 10 000 that it takes.

Arms: ``both`` is the KIP (hints, and a retry at once), ``neither`` the client before it, ``retry`` the alternative that
the KIP rejected, ``hints`` the other half. Published: the KIP's micro-benchmark, p99.9 of produce 1675 ms without and
215 ms with it; 1781, 1934 and 5352 ms for a retry at once without hints.

Where Metadata is late, it has a connection of its own, in all arms. On the shared one that Kafka's clients use answers
come in order, so the late one, which every client asks for in the background, holds up the records behind it for as
long: measured so (``shared-300``), the KIP's arm is as slow as the answer is late.

The control compares hints with no hints under one rule of retrying. Not the whole KIP with none of it: Kafka retries at
once after *any* news of a leader, Metadata's too (``docs/KIPS.md``), so that half may help after a kill.

What is told beside the trial of KIP-951 and never decides it: consumers, other clients, other ways to move leaders.

Each is the statistic of ``kip951.py``, the worst latency of a window, paired by move, under Metadata that is 300 ms
late. Clients that we did not write have no connection of their own for Metadata, so a late answer may hold up records
behind it, hints or not (``shared-300`` of ``kip951.py``). What consumers read is shown by the new leader only when its
followers have it, which may take as long as an answer that is 300 ms late: hence a part in which it is 1 s.

Restarts are judged by what was due from SIGTERM to exit, and have no bound: the KIP's tables of them are of 70 minutes
on fifteen machines, with 108 partitions and 9000.

The picture that KIP-951's authors would have wanted: the slowest record after each move, arm by arm, by delay.
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
WORST_ALONE = "produce.latency max in fault"  # where moves are the only fault, there is no window of their own
WORST_KILL = "produce.latency max in fault/dead"
BOTH, NEITHER, RETRY, HINTS = (f"moves/{arm}" for arm in ("both", "neither", "retry", "hints"))
P999_RECORDS_MIN = 10_000
MARGIN = 1.25
TOST = 0.90  # the interval whose ends are two one-sided tests at one in twenty
DELAYS_MS: Mapping[str, int] = {"delay-0": 0, "delay-100": 100, "delay-300": 300}
"""The parts with moves, and how late Metadata answers are in each."""


def worst(name: str) -> str:
    """The measure of a part's moves."""
    return WORST_ALONE if DELAYS_MS.get(name) == 0 else WORST


def _pair(part: str, ours: str, theirs: str, parts: Parts) -> Estimate:
    return parts[part].ratio(ours, theirs, worst(part))


def _below(part: str, ours: str, theirs: str, bound: float, parts: Parts) -> Judged:
    found = below(_pair(part, ours, theirs, parts), bound)
    return Judged(found.ours, found.word, f"{found.why}; {medians(parts[part], ours, theirs, worst(part))}")


def _reported(part: str, ours: str, theirs: str, parts: Parts) -> Judged:
    return reported(_pair(part, ours, theirs, parts), medians(parts[part], ours, theirs, worst(part)))


def medians(part: Part, ours: str, theirs: str, measure: str) -> str:
    """The two sides in milliseconds, each in the middle of its moves."""
    return middles(*(part.blocks(client, measure) for client in (ours, theirs)))


def middles(*sides: Mapping[int, Block]) -> str:
    """The same of blocks in hand."""
    found = map(_middle_ms, sides)
    return " by ".join("no value" if ms is None else f"{ms:.0f} ms" for ms in found) + " in the median"


def _middle_ms(blocks: Mapping[int, Block]) -> float | None:
    values = sorted(block.value_us for block in blocks.values() if block.value_us is not None)
    return values[len(values) // 2] / 1e3 if values else None


def _control(parts: Parts) -> Judged:
    found = within(parts["kill"].ratio(BOTH, RETRY, WORST_KILL, confidence=TOST), 1 / MARGIN, MARGIN)
    return Judged(found.ours, found.word, f"{found.why}; {medians(parts['kill'], BOTH, RETRY, WORST_KILL)}")


def _whole_kip_at_a_kill(parts: Parts) -> Judged:
    found = parts["kill"].ratio(BOTH, NEITHER, WORST_KILL)
    return reported(found, medians(parts["kill"], BOTH, NEITHER, WORST_KILL))


def _classic(part: str, parts: Parts) -> Judged:
    """p99.9 of all records under the moves, ours by theirs: one number of all of them, so it has no interval."""
    window = "fault" if DELAYS_MS[part] == 0 else "fault/move"
    sides = [parts[part].quantile_us(client, "produce.latency", window, 0.999) for client in (BOTH, NEITHER)]
    fewest = min(n for _, n in sides)
    if fewest < P999_RECORDS_MIN:
        return reported(unknown("times"), f"p99.9 takes {P999_RECORDS_MIN} records an arm, and there are {fewest}")
    ours_us, theirs_us = (value for value, _ in sides)
    if ours_us is None or not theirs_us:
        return reported(unknown("times"), "a failed record is slower than any: there is no ratio")
    why = f"{ours_us / 1e3:.0f} ms by {theirs_us / 1e3:.0f} ms, of {fewest} records an arm"
    return reported(Estimate(ours_us / theirs_us, None, None, 1, "times"), why)


PUBLISHED = "p99.9 215 ms with, 1675 ms without: 0.13 times"
REJECTED = "p99.9 215 ms with, 1781, 1934 and 5352 ms at once without hints: 0.07 times"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "delay-300",
        "Leaders move while Metadata answers are 300 ms late: the slowest record of a move, with the KIP by without",
        PUBLISHED,
        "below 0.5",
        "claim",
        ("delay-300",),
        partial(_below, "delay-300", BOTH, NEITHER, 0.5),
    ),
    Claim(
        "rejected-300",
        "The same, with the KIP by a retry at once without hints, which the KIP rejected",
        REJECTED,
        "below 1",
        "claim",
        ("delay-300",),
        partial(_below, "delay-300", BOTH, RETRY, 1.0),
    ),
    Claim(
        "delay-0",
        "Leaders move and nothing is late: the slowest record of a move, with the KIP by without",
        PUBLISHED,
        "below 1",
        "claim",
        ("delay-0",),
        partial(_below, "delay-0", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "kill",
        "A leader is killed, so nobody can hint: the slowest record of a kill, hints by no hints",
        "",
        "within 0.8 to 1.25, by TOST",
        "control",
        ("kill",),
        _control,
    ),
    Claim(
        "delay-100",
        "Leaders move while Metadata answers are 100 ms late: with the KIP by without",
        PUBLISHED,
        "below 1",
        "report",
        ("delay-100",),
        partial(_below, "delay-100", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "shared-300",
        "As the first, but Metadata goes over the records' connection and holds them up: with the KIP by without",
        PUBLISHED,
        "below 1",
        "report",
        ("shared",),
        partial(_below, "shared", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "rejected-0",
        "Leaders move and nothing is late: with the KIP by a retry at once without hints",
        REJECTED,
        "",
        "report",
        ("delay-0",),
        partial(_reported, "delay-0", BOTH, RETRY),
    ),
    Claim(
        "hints-300",
        "Leaders move while Metadata answers are 300 ms late: hints alone by neither",
        "",
        "",
        "report",
        ("delay-300",),
        partial(_reported, "delay-300", HINTS, NEITHER),
    ),
    Claim(
        "classic-300",
        "Metadata answers 300 ms late: the classic p99.9 of all records under the moves",
        PUBLISHED,
        "",
        "report",
        ("delay-300",),
        partial(_classic, "delay-300"),
    ),
    Claim(
        "kill-whole",
        "A leader is killed: the whole KIP by none of it, retrying at once on Metadata's news included",
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
    "consume": "A consumer that takes hints by one that asks for metadata: the latest record of a move",
    "consume-1s": "The same while Metadata is a second late, longer than replication takes",
}
FOREIGN = {"librdkafka": "librdkafka", "java": "Kafka's Java producer"}
"""Clients that we did not write, each a part with its name."""
ABLATIONS = {"stripped": "with the hints stripped from its answers", "capped": "at brokers that know no hints"}
RESTARTS = {
    "restart": (12, {"all": "p99 374 ms with, 391 ms without", "one": "p99 2.95 ms with, 3.25 ms without"}),
    "restart-many": (120, {"all": "p99 152 ms with, 156 ms without", "one": "p99 83.3 ms with, 84.7 ms without"}),
}
"""Partitions, and by workload (its acks) what the KIP's tables say of few and of many."""
_CONFIDENCE = 0.95


def _below_one(part: str, ours: str, theirs: str, measure: str, parts: Parts) -> Judged:
    found = below(parts[part].ratio(ours, theirs, measure), 1.0)
    return Judged(found.ours, found.word, f"{found.why}; {medians(parts[part], ours, theirs, measure)}")


def _unknown(parts: Parts) -> Judged:
    """Only where it was so: the client that ignores endpoints counts hints to brokers that nobody had named to it."""
    found = _below_one("unknown", "moves/merged", "moves/ignored", ELECTED, parts)
    refused = parts["unknown"].counters("moves/ignored", "produce").get("hints_refused_unknown_leader", 0)
    word = found.word if refused else "inconclusive"
    return Judged(found.ours, word, f"{found.why}; {refused} hints to a broker that was not known")


def _restarted(name: str, workload: str, parts: Parts) -> Judged:
    part = parts[name]
    spans = struck(part, "ended")
    both, neither = (worst_in(part, f"{workload}/{arm}", spans) for arm in ("both", "neither"))
    found = ratio_of_blocks(both, neither, _CONFIDENCE, part.run.run_id)
    return reported(found, f"{middles(both, neither)}, of {len(spans)} shutdowns from SIGTERM to exit")


def _report(name: str, part: str, claim: str, ours: str, theirs: str, measure: str = WORST) -> Claim:
    judge = partial(_below_one, part, ours, theirs, measure)
    return Claim(name, claim, "", "below 1", "report", (part,), judge)


def _foreign(client: str, ablation: str) -> Claim:
    claim = f"{FOREIGN[client]} as it is, by itself {ABLATIONS[ablation]}"
    return _report(f"{client}-{ablation}", client, claim, "moves/whole", f"moves/{ablation}")


def _restart(part: str, workload: str) -> Claim:
    partitions, published = RESTARTS[part]
    claim = f"Brokers shut down, {partitions} partitions, acks={workload}: with the KIP by without"
    judge = partial(_restarted, part, workload)
    return Claim(f"{part}-{workload}", claim, published[workload], "", "report", (part,), judge)


BESIDE: tuple[Claim, ...] = (
    _report(
        "acks-1",
        "acks-1",
        "Leaders move and nothing is late, acks=1: what is left of the wait where no follower is waited for",
        BOTH,
        NEITHER,
        WORST_ALONE,
    ),
    *(_report(part, part, claim, "readers/told", "readers/asks", CONSUMED) for part, claim in CONSUMERS.items()),
    *(_foreign(client, ablation) for client, ablation in product(FOREIGN, ABLATIONS)),
    _report(
        "leaves",
        "leaves",
        "The old leader leaves the replica list, two replicas on three nodes: with the KIP by without",
        BOTH,
        NEITHER,
    ),
    Claim(
        "unknown",
        "A broker that clients have forgotten becomes leader: endpoints merged by ignored",
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
    "Each point is one move: the slowest record that was due from when the move was asked for to a second after it. A "
    "line is a median. If hints do what the KIP says, the two clouds on the left stay where they are as Metadata "
    "gets later, and the others rise with it."
)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One figure, a panel a delay; none where no part with moves was run."""
    moved = {name: parts[name] for name in DELAYS_MS if name in parts}
    if not moved:
        return ()
    title = "The slowest record after each move, by how late Metadata is"
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
    """One cloud an arm, side by side; in the order of the moves from left to right."""
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
    """In order of the moves; one without a value has no point."""
    blocks = part.blocks(arm, worst(name))
    return [value_us / 1e3 for _, block in sorted(blocks.items()) if (value_us := block.value_us) is not None]


def _words(moved: Parts) -> str:
    said = []
    for name, part in moved.items():
        for arm in ARMS:
            values = sorted(_values_ms(part, arm, name))
            if values:
                said.append(f"{DELAYS_MS[name]} ms, {arm.partition('/')[2]}: median {values[len(values) // 2]:.0f} ms")
    return "; ".join(said)
