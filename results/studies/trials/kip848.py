"""Claims of KIP-848 (the consumer rebalance protocol): only partitions that move stop, the others go on.

Three groups of eight members read the same records side by side, one with the consumer protocol, two with the classic
one and a cooperative or an eager assignor; ``kip848_changes.py`` defines changes, kept partitions and their silence.
The figure of a change is the longest silence of any kept partition, because the claim is about all of them.

**Control.** The consumer ``alone`` has no group, so whatever stops it too (the host, a JVM that starts, a broker) is no
effect of a rebalance. Silences are compared with its silences of the same partitions at the same time. In the steady
phase no membership changes, and the group of the consumer protocol must equal the consumer without a group.

**Assay.** An eager member gives up all partitions in each rebalance, and the group goes on when its slowest member has
joined again. So where a member is busy while another leaves, the kept partitions of the eager group must be silent
clearly longer than without a group. Otherwise nothing would show that a stop can be seen. If no member is busy, all
learn of a rebalance with the same heartbeat and stop for a fraction of a second, which the start of a JVM hides.

The KIP's text has no figure. It promises a protocol that is incremental and needs no global synchronization barrier.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import numpy as np
from matplotlib.patches import Rectangle

from aftershock.results.report.svg import GREY, LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Part, mean, ratio, steady_slices
from aftershock.results.studies.statement import Measured, Plot
from aftershock.results.studies.trials.claim import Parts, on_part, register
from aftershock.results.studies.trials.kip848_changes import (
    ALONE,
    CONSUMER,
    COOPERATIVE,
    DIES,
    EAGER,
    JOINS,
    LEAVES,
    PROTOCOLS,
    Observed,
    delivered,
    observe,
    waits,
)

JAVA, LIBRDKAFKA, REFERENCE, PRODUCTION = "java", "librdkafka", "reference", "production"
ROLL, COORDINATOR = "roll", "coordinator"
ROLL_LIBRDKAFKA, COORDINATOR_LIBRDKAFKA = "roll-librdkafka", "coordinator-librdkafka"
TOST = 0.9


def longest_s(silences: Mapping[int, float]) -> float:
    return max(silences.values(), default=math.nan)


def with_kept(part: Part, protocol: str) -> list[Observed]:
    """Return the changes of a group in which a partition was kept."""
    return [observed for observed in observe(part, protocol) if observed.kept]


Groups: TypeAlias = Mapping[str, list[Observed]]
"""Changes in which a partition was kept, by protocol."""


def more_s(part: Part, protocol: str, confidence: float = TOST, *, while_busy: bool = False) -> Measured:
    """Measure by how much longer kept partitions of a group were silent than without a group, by change.

    With ``while_busy`` only changes count in which another member was busy.
    """
    groups = {
        name: [observed for observed in with_kept(part, name) if observed.change.busy or not while_busy]
        for name in PROTOCOLS
    }
    differences = [longest_s(observed.kept) - longest_s(observed.alone) for observed in groups[protocol]]
    return Measured(mean(differences, "s", confidence), _silences(groups))


def _silences(groups: Groups) -> str:
    """Return the longest silences of kept partitions by kind of change and protocol, as means over the changes."""
    texts = list[str]()
    for kind in dict.fromkeys(observed.change.kind for found in groups.values() for observed in found):
        values = []
        for protocol, found in groups.items():
            of_kind = [longest_s(observed.kept) for observed in found if observed.change.kind == kind]
            values += [f"{protocol} {np.mean(of_kind):.2f} s"] if of_kind else []
        alone = [longest_s(observed.alone) for observed in groups[CONSUMER] if observed.change.kind == kind]
        values += [f"without a group {np.mean(alone):.2f} s"] if alone else []
        texts.append(f"{kind}: {', '.join(values)}")
    return f"longest silence of a kept partition, mean over the changes: {'; '.join(texts) or 'none'}"


def relative(part: Part, kind: str) -> Measured:
    """Return the longest silence of a kept partition, consumer protocol relative to eager, paired by change."""
    groups = {protocol: with_kept(part, protocol) for protocol in PROTOCOLS}
    consumer, eager = (
        {observed.change.block: longest_s(observed.kept) for observed in groups[name] if observed.change.kind == kind}
        for name in (CONSUMER, EAGER)
    )
    blocks = [block for block in sorted(consumer.keys() & eager.keys()) if consumer[block] > 0 and eager[block] > 0]
    ours, theirs = (np.array([side[block] for block in blocks], float) for side in (consumer, eager))
    return Measured(ratio(ours, theirs), _silences(groups))


def kept_assigned(part: Part, protocol: str) -> Measured:
    """Judge whether members gave up partitions that they got back in the same change."""
    found = with_kept(part, protocol)
    shares = [100 * len(observed.given_up) / len(observed.kept) for observed in found]
    kept = sum(len(observed.kept) for observed in found)
    given_up = sum(len(observed.given_up) for observed in found)
    ours = mean(shares, "% of the kept partitions")
    why = f"{given_up} of {kept} kept partitions were given up"
    return Measured(ours, why, sum(share > 0 for share in shares))


def steady(part: Part) -> Measured:
    """Compare the consumer protocol with the consumer without a group, in slices of time without a change."""
    every = delivered(part, ALONE)
    ours, alone = waits(delivered(part, CONSUMER), every), waits(every, every)
    pairs = [(longest_s(ours.silences_s(span)), longest_s(alone.silences_s(span))) for span in steady_slices(part)]
    figure = mean([consumer - without for consumer, without in pairs], "s", TOST)
    texts = [f"{np.mean(values):.2f} s" for values in zip(*pairs, strict=True)]
    return Measured(figure, f"longest silence of any partition, with and without a group: {' and '.join(texts)}")


def owned(part: Part, other: str) -> Measured:
    """Report how much later the last partition was assigned with the consumer protocol than with another one."""
    by_change: list[dict[tuple[int, str], float]] = [
        {(o.change.block, o.change.kind): o.owned_s for o in observe(part, protocol) if o.owned_s is not None}
        for protocol in (CONSUMER, other)
    ]
    ours, theirs = by_change
    shared = sorted(ours.keys() & theirs.keys())
    kinds = dict.fromkeys(kind for _, kind in shared)
    texts = []
    for kind in kinds:
        values = [[side[change] for change in shared if change[1] == kind] for side in (ours, theirs)]
        texts.append(f"{kind} {np.mean(values[0]):.2f} s and {np.mean(values[1]):.2f} s")
    why = f"until every partition has an owner, consumer protocol and {other}: {', '.join(texts) or 'none'}"
    return Measured(mean([ours[change] - theirs[change] for change in shared], "s"), why)


def moved(part: Part) -> Measured:
    """Report the longest silence of a moved partition, consumer protocol relative to eager, paired by change."""
    by_change = [
        {
            (observed.change.block, observed.change.kind): longest_s(observed.moved)
            for observed in observe(part, protocol)
            if observed.moved and longest_s(observed.moved) > 0
        }
        for protocol in (CONSUMER, EAGER)
    ]
    shared = sorted(by_change[0].keys() & by_change[1].keys())
    ours, theirs = (np.array([side[change] for change in shared], float) for side in by_change)
    means = f"{ours.mean():.2f} s and {theirs.mean():.2f} s" if shared else "no values"
    return Measured(ratio(ours, theirs), f"means over the changes, consumer protocol and eager: {means}")


def again(part: Part) -> Measured:
    """Report the records that the consumer protocol delivered repeatedly in a change."""
    counts = {protocol: [observed.again for observed in observe(part, protocol)] for protocol in PROTOCOLS}
    texts = [f"{protocol} {np.mean(values):.1f}" for protocol, values in counts.items() if values]
    figure = mean([float(count) for count in counts[CONSUMER]], "records")
    return Measured(figure, f"by protocol: {', '.join(texts) or 'none'}")


REGISTRATION = register(
    "kip848",
    {
        "kept": on_part(JAVA, more_s, CONSUMER),
        "kept-production": on_part(PRODUCTION, more_s, CONSUMER),
        **{f"kept-{kind}": on_part(JAVA, relative, kind) for kind in (LEAVES, DIES, JOINS)},
        "given-up": on_part(JAVA, kept_assigned, CONSUMER),
        "librdkafka": on_part(LIBRDKAFKA, more_s, CONSUMER),
        "reference": on_part(REFERENCE, more_s, CONSUMER),
        "roll": on_part(ROLL, more_s, CONSUMER),
        "coordinator": on_part(COORDINATOR, more_s, CONSUMER),
        "given-up-librdkafka": on_part(LIBRDKAFKA, kept_assigned, CONSUMER),
        "kept-leaves-librdkafka": on_part(LIBRDKAFKA, relative, LEAVES),
        "roll-librdkafka": on_part(ROLL_LIBRDKAFKA, more_s, CONSUMER),
        "coordinator-librdkafka": on_part(COORDINATOR_LIBRDKAFKA, more_s, CONSUMER),
        "steady": on_part(JAVA, steady),
        "steady-librdkafka": on_part(LIBRDKAFKA, steady),
        **{
            name: on_part(part, partial(more_s, while_busy=True), EAGER, 0.95)
            for name, part in (
                ("eager", JAVA),
                ("eager-librdkafka", LIBRDKAFKA),
                ("eager-reference", REFERENCE),
                ("eager-roll", ROLL),
                ("eager-roll-librdkafka", ROLL_LIBRDKAFKA),
            )
        },
        "eager-given-up": on_part(JAVA, kept_assigned, EAGER),
        "eager-given-up-librdkafka": on_part(LIBRDKAFKA, kept_assigned, EAGER),
        "cooperative": on_part(JAVA, more_s, COOPERATIVE, 0.95),
        "owned-eager": on_part(JAVA, owned, EAGER),
        "owned-cooperative": on_part(JAVA, owned, COOPERATIVE),
        "moved": on_part(JAVA, moved),
        "again": on_part(JAVA, again),
    },
)


KINDS = {LEAVES: "a member leaves", DIES: "a member dies", JOINS: "a member joins"}
_LABELS = {CONSUMER: "consumer protocol", COOPERATIVE: "classic cooperative", EAGER: "classic eager"}
_STOP_S_MIN = 0.2
"""Shortest wait of a record that is drawn over time."""


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return the silence of each partition by change and protocol, and one change over time; none without a run."""
    return (_silence(parts[JAVA]), *_over_time(parts[JAVA])) if JAVA in parts else ()


def _silence(part: Part) -> Plot:
    title = "Silence of each partition, by change and protocol"
    by_protocol = {protocol: observe(part, protocol) for protocol in PROTOCOLS}
    texts = []
    with drawing(5.2, 5.4) as figure:
        axes = figure.subplots(len(KINDS), 2, sharex=True, sharey=True)
        for row, (kind, name) in zip(axes, KINDS.items(), strict=True):
            curves: list[dict[str, list[float]]] = [{}, {}]  # of kept, and of moved partitions
            for protocol, found in by_protocol.items():
                of_kind = [observed for observed in found if observed.change.kind == kind]
                for curve, silences in zip(curves, ("kept", "moved"), strict=True):
                    curve[_LABELS[protocol]] = [s for o in of_kind for s in getattr(o, silences).values()]
                if protocol == CONSUMER:
                    without = [s for observed in of_kind for s in observed.alone.values()]
            curves[0]["without a group"] = without
            longest = [f"{label} {max(values):.2f} s" for label, values in curves[0].items() if values]
            texts.append(f"{name}: {', '.join(longest) or 'no change'}")
            for axis, curve, what in zip(row, curves, ("kept", "moved"), strict=True):
                for (label, values), (colour, dash) in zip(curve.items(), LINES, strict=False):
                    shares = np.linspace(0, 100, len(values) + 1)[1:]
                    axis.step(sorted(values), shares, color=colour, linestyle=dash, linewidth=1.5, label=label)
                axis.set_xscale("log")
                axis.xaxis.set_major_formatter("{x:.10g}")
                axis.minorticks_off()
                axis.set_ylim(0, 101)
                axis.set_yticks([0, 50, 100])
                plain(axis, f"{name}: {what}")
        for axis in axes[-1]:
            axis.set_xlabel("s of silence")
        axes[1][0].set_ylabel("% of partitions")
        legend(figure, axes[0][0], 2)
        svg = rendered(figure, "kip848-silence", title, "; ".join(texts))
    reading = (
        "A curve shows the share of partitions that were silent for at most so many seconds although a record was due. "
        "On the left those that kept their owner, on the right those that got another one. If the KIP's claim holds, "
        "the consumer protocol is as far left as the consumer without a group. Longest silence of a kept partition, "
    )
    return Plot(title, svg, f"{reading}{'; '.join(texts)}.")


def _over_time(part: Part) -> tuple[Plot, ...]:
    """Plot when which partitions stood still in the first change in which a member leaves."""
    first = {}
    for protocol in PROTOCOLS:
        left = (observed for observed in observe(part, protocol) if observed.change.kind == LEAVES)
        if (observed := next(left, None)) is not None:
            first[protocol] = observed
    if not first:
        return ()
    title = "A member leaves: which partitions stand still, and when"
    kept_colour, moved_colour = LINES[0][0], LINES[1][0]
    texts = []
    with drawing(5.2, 1.6 * len(first) + 1.0) as figure:
        axes = figure.subplots(len(first), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (protocol, observed) in zip(axes, first.items(), strict=True):
            span = observed.change.span
            spans_us = waits(delivered(part, protocol), delivered(part, ALONE)).spans_us
            places = sorted({*observed.kept, *observed.moved})
            for place in places:
                from_us, to_us = spans_us[place]
                starts, ends = np.maximum(from_us, span.start_us), np.minimum(to_us, span.end_us)
                long = ends - starts >= _STOP_S_MIN * 1e6
                bars = [
                    ((at - span.start_us) / 1e6, (end - at) / 1e6)
                    for at, end in zip(starts[long], ends[long], strict=True)
                ]
                axis.axhline(place, color=GREY, alpha=0.2, linewidth=0.5)
                axis.broken_barh(
                    bars, (place - 0.4, 0.8), color=kept_colour if place in observed.kept else moved_colour
                )
            longest = max(observed.kept.values(), default=0.0)
            texts.append(f"{_LABELS[protocol]}: {len(observed.kept)} kept, silent for up to {longest:.2f} s")
            axis.set_xlim(0, (span.end_us - span.start_us) / 1e6)
            axis.set_ylim(max(places) + 1, -1)
            plain(axis, _LABELS[protocol])
            axis.grid(visible=False)
        axes[len(axes) // 2].set_ylabel("partition")
        axes[-1].set_xlabel("s since the member began to leave")
        labels = {"keeps its owner": kept_colour, "gets another owner": moved_colour}
        for label, colour in labels.items():
            axes[0].add_patch(Rectangle((0, 0), 0, 0, color=colour, label=label))
        legend(figure, axes[0], 2)
        svg = rendered(figure, "kip848-time", title, "; ".join(texts))
    reading = (
        f"A bar is a time of {_STOP_S_MIN:g} s or more in which a record was due and none was delivered, in the first "
        "change of the run. "
    )
    return (Plot(title, svg, f"{reading}{'; '.join(texts)}."),)
