"""Drawings of what each KIP changes: who sends what to whom, without and with the KIP.

A drawing is a sequence of messages between clients and brokers, from top to bottom. It is narrow enough for a phone.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from aftershock.results.report.svg import GREY, LINES, drawing, rendered
from aftershock.results.studies.statement import Plot

_OLD, _NEW = LINES[1][0], LINES[0][0]
_WIDTH_IN, _ROW_IN = 4.3, 0.27


class Step(NamedTuple):
    """Message from one lane to another; within a lane, a time of waiting. ``new`` marks what the KIP changes."""

    source: int
    target: int
    text: str
    new: bool = False


class Panel(NamedTuple):
    title: str
    lanes: Sequence[str]
    steps: Sequence[Step]


class Mechanism(NamedTuple):
    panels: Sequence[Panel]
    reading: str


_CLIENTS = ("producer", "old leader", "new leader")
_FETCH = ("consumer", "broker")
_RACKS = ("consumer, rack b", "follower, rack b", "leader, rack a")
_COMMITS = ("consumers", "coordinator", "offsets log")
_BATCHES = ("producer", "slow broker", "others")
_REPLICAS = ("replica A", "replica B", "controller")
_GROUP = ("members that stay", "coordinator", "member that leaves")

MECHANISMS: Mapping[int, Mechanism] = {
    951: Mechanism(
        (
            Panel(
                "without KIP-951",
                _CLIENTS,
                (
                    Step(0, 1, "Produce"),
                    Step(1, 0, "error: not the leader"),
                    Step(0, 0, "backs off, 100 ms"),
                    Step(0, 1, "Metadata: who leads?"),
                    Step(1, 0, "the new leader (late)"),
                    Step(0, 2, "Produce again"),
                ),
            ),
            Panel(
                "with KIP-951",
                _CLIENTS,
                (
                    Step(0, 1, "Produce"),
                    Step(1, 0, "error: not the leader", True),
                    Step(1, 0, "+ the new leader, its address", True),
                    Step(0, 2, "Produce again, at once", True),
                ),
            ),
        ),
        "The error already names the new leader, so the client needs neither a back-off nor a Metadata response.",
    ),
    227: Mechanism(
        (
            Panel(
                "without KIP-227",
                _FETCH,
                (
                    Step(0, 1, "Fetch of 1000 partitions"),
                    Step(1, 0, "1000 entries, 10 with records"),
                    Step(0, 1, "Fetch of 1000 partitions"),
                    Step(1, 0, "1000 entries, 10 with records"),
                ),
            ),
            Panel(
                "with KIP-227",
                _FETCH,
                (
                    Step(0, 1, "Fetch of 1000 partitions"),
                    Step(1, 0, "1000 entries, session 7", True),
                    Step(0, 1, "Fetch: session 7, changed partitions", True),
                    Step(1, 0, "10 entries with records", True),
                ),
            ),
        ),
        "The broker keeps the partitions of a session, so later requests and responses name only what has changed.",
    ),
    794: Mechanism(
        (
            Panel(
                "before: a new partition when a batch is sent",
                _BATCHES,
                (
                    Step(0, 2, "small batch, sent at once, next draw"),
                    Step(0, 1, "batch waits for the slow broker"),
                    Step(0, 0, "and all records meanwhile join it"),
                ),
            ),
            Panel(
                "text of KIP-794: after batch.size bytes",
                _BATCHES,
                (
                    Step(0, 1, "batch.size bytes, next draw", True),
                    Step(0, 2, "batch.size bytes, next draw", True),
                    Step(0, 2, "adaptive: drawn more often", True),
                ),
            ),
            Panel(
                "as shipped (KAFKA-14156): when a batch is full",
                _BATCHES,
                (
                    Step(0, 2, "no backlog: batch.size bytes, next draw"),
                    Step(0, 1, "backlog: up to two batches, next draw", True),
                ),
            ),
        ),
        "A switch after equal bytes gives each broker an equal share. A switch that waits for a full batch gives more "
        "bytes a draw to a broker that is behind.",
    ),
    392: Mechanism(
        (
            Panel(
                "without KIP-392",
                _RACKS,
                (
                    Step(1, 2, "the follower copies all"),
                    Step(0, 2, "Fetch, across racks"),
                    Step(2, 0, "records, across racks"),
                ),
            ),
            Panel(
                "with KIP-392",
                _RACKS,
                (
                    Step(0, 2, "Fetch, client.rack = b"),
                    Step(2, 0, "no records: ask the follower in b", True),
                    Step(1, 2, "the follower copies all"),
                    Step(0, 1, "Fetch", True),
                    Step(1, 0, "records, in the rack", True),
                    Step(0, 0, "until metadata.max.age ends the lease", True),
                ),
            ),
        ),
        "Records cross racks once, to the follower. A consumer sees them when the follower knows that they are "
        "committed, which is a little later.",
    ),
    1224: Mechanism(
        (
            Panel(
                "without KIP-1224: a fixed linger",
                _COMMITS,
                (
                    Step(0, 1, "commit"),
                    Step(1, 1, "waits 5 ms for others"),
                    Step(1, 2, "batch of one"),
                    Step(1, 0, "committed"),
                ),
            ),
            Panel(
                "with KIP-1224: adaptive",
                _COMMITS,
                (
                    Step(0, 1, "commit, and none waits behind it"),
                    Step(1, 2, "batch of one, at once", True),
                    Step(1, 0, "committed"),
                    Step(0, 1, "many commits, queued"),
                    Step(1, 2, "batch of all that were queued", True),
                    Step(1, 0, "committed"),
                ),
            ),
        ),
        "The coordinator writes when its queue is empty instead of after a fixed time, so a lone commit does not wait, "
        "and commits under load still share a batch.",
    ),
    848: Mechanism(
        (
            Panel(
                "without KIP-848: classic, eager",
                _GROUP,
                (
                    Step(2, 1, "leaves"),
                    Step(1, 0, "heartbeats: rebalance"),
                    Step(0, 0, "all give up all, and stop"),
                    Step(0, 1, "each joins"),
                    Step(1, 0, "the last has joined"),
                    Step(0, 1, "one assigns for all"),
                    Step(1, 0, "partitions, all start again"),
                ),
            ),
            Panel(
                "with KIP-848: the consumer protocol",
                _GROUP,
                (
                    Step(2, 1, "leaves"),
                    Step(1, 1, "assigns, by itself", True),
                    Step(1, 0, "heartbeat: one more", True),
                    Step(0, 1, "heartbeat: has it", True),
                    Step(0, 0, "the others are read on", True),
                ),
            ),
        ),
        "The coordinator assigns, and tells each member with a heartbeat what changes for it. No member waits for the "
        "others, and no partition stops unless it moves.",
    ),
    966: Mechanism(
        (
            Panel(
                "without KIP-966",
                _REPLICAS,
                (
                    Step(1, 1, "shuts down, with all records"),
                    Step(0, 0, "last in sync: loses power and records"),
                    Step(0, 2, "is back"),
                    Step(2, 0, "you were in sync: lead"),
                    Step(1, 0, "truncates to the leader's log"),
                ),
            ),
            Panel(
                "with KIP-966: eligible leader replicas",
                _REPLICAS,
                (
                    Step(1, 1, "shuts down, with all records"),
                    Step(2, 2, "keeps it as eligible", True),
                    Step(0, 0, "last in sync: loses power and records"),
                    Step(0, 2, "is back, after an unclean shutdown", True),
                    Step(2, 1, "you have all: lead", True),
                    Step(0, 1, "copies what it lost", True),
                ),
            ),
        ),
        "The controller remembers which replicas have all acknowledged records, and notices that one was not shut down "
        "cleanly, so the damaged replica does not lead.",
    ),
}


def mechanism(kip: int) -> Plot:
    """Return the drawing of what a KIP changes."""
    panels, reading = MECHANISMS[kip]
    rows = [len(panel.steps) + 2 for panel in panels]
    title = "What the KIP changes"
    with drawing(_WIDTH_IN, _ROW_IN * sum(rows)) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw(axis, panel)
        words = [f"{panel.title}: {'; '.join(step.text for step in panel.steps)}" for panel in panels]
        svg = rendered(figure, f"kip{kip}-mechanism", title, ". ".join(words))
    return Plot(title, svg, f"{reading} Blue is what the KIP changes.")


def _draw(axis: Axes, panel: Panel) -> None:
    last = len(panel.lanes) - 1
    axis.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold", pad=14, parse_math=False)
    axis.set_xlim(-0.05 * last, 1.05 * last)
    axis.set_ylim(len(panel.steps) + 0.3, 0)
    axis.axis("off")
    for lane, name in enumerate(panel.lanes):
        side = "left" if lane == 0 else "right" if lane == last else "center"
        axis.text(lane, -0.05, name, ha=side, va="bottom", fontsize=9)
        axis.plot([lane, lane], [0, len(panel.steps) + 0.3], color=GREY, linewidth=1, alpha=0.4)
    for number, step in enumerate(panel.steps, 1):
        colour = _NEW if step.new else _OLD
        left, right = sorted((step.source, step.target))
        if step.source == step.target:
            axis.plot([left, left], [number - 0.75, number + 0.15], color=colour, linewidth=5, solid_capstyle="butt")
            axis.text(left + 0.03 * last, number - 0.3, step.text, ha="left", va="center", fontsize=9)
            continue
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (step.target, number), (step.source, number), arrowprops=arrow)
        at, side = ((left + right) / 2, "center") if right - left == last else (left + 0.03 * last, "left")
        if right == last and left > 0:
            at, side = right - 0.03 * last, "right"
        axis.text(at, number - 0.06, step.text, ha=side, va="bottom", fontsize=9, parse_math=False)
