"""Spans of time in which a client must make progress, and the longest permitted stall in each.

The time after warm-up is divided into spans at each moment when a fault's state changes, another broker may lead, or a
grace ends. Progress is required in a span if progress is possible under every possible leader, and the grace after each
change has ended. Consecutive spans in which progress is required are a *stretch*: a stall is judged over all of it.
What slows clients down without stopping them is added to the patience (the longest permitted stall) instead: late
traffic by ten late round trips, requests that fail at random by as many attempts as a run of failures may take, and
changes at unrecorded times (a restart) by their grace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from aftershock.results.checks.obligations.graces import (
    Change,
    changes_of_faults,
    changes_of_leaders,
    noticed,
    start_grace,
)
from aftershock.results.checks.obligations.reach import ALONE, Harm, Seat, State, Tampering, Terrain, refusal
from aftershock.results.checks.obligations.scene import Post, Scene, last_us, touches
from aftershock.results.checks.obligations.waits import ClientWaits, Grace, delay_limit_ms, total_us

PATIENCE_US = 5_000_000
"""Longest permitted time without progress while progress is required: a lost request, a busy host, a backlog."""
DRAIN_PATIENCE_US = 15_000_000
"""The same for a consumer after the load, while the harness reads all topics and replicas from the same brokers."""
ROUND_TRIPS = 10
"""Late round trips that one success may need: a new connection (ApiVersions), Metadata, FindCoordinator, JoinGroup,
SyncGroup, OffsetFetch, ListOffsets and Fetch are eight, and one of them may have to be repeated after an error."""


@dataclass(frozen=True)
class Span:
    """Span of time in which progress is ``required`` or not; ``patience_us`` is the longest permitted stall.

    A span that lies in the grace after a change has the terms of the ``grace``. ``kept_us`` is what a stall that begins
    in the span may last after its end: a delay does not delay what is sent after its heal, but a client waits for a
    lost request after the heal, too.
    """

    start_us: int
    end_us: int
    required: bool
    patience_us: int
    why: str
    grace: Grace = ()
    kept_us: int = 0


def spans(post: Post, seats: Sequence[Seat], scene: Scene, from_us: int, to_us: int) -> tuple[Span, ...]:
    """Return a client's time spans; progress is required in a span if all its partitions (``seats``) allow progress."""
    relevant = [harm for harm in scene.harms if touches(harm, post, seats, scene)]
    changes = [*changes_of_faults(post, seats, scene, relevant), *changes_of_leaders(post, seats, scene)]
    moments = {from_us, to_us}
    for harm in relevant:
        moments |= {harm.start_us, harm.injected_us, harm.healing_us, harm.end_us, last_us(harm)}
    for reign in {reign for seat in seats for reign in seat.reigns}:
        moments |= {reign.after_us, reign.by_us}
    for change in changes:
        moments |= {change.at_us, change.settled_us}
    cuts = sorted(moment for moment in moments if from_us <= moment <= to_us)
    joined: list[Span] = []
    for start_us, end_us in pairwise(cuts):
        span = _span(post, seats, scene, relevant, changes, start_us, end_us)
        # adjacent spans that differ only in time are one span
        if joined and replace(joined[-1], start_us=start_us, end_us=end_us) == span:
            joined[-1] = replace(joined[-1], end_us=end_us)
        else:
            joined.append(span)
    return tuple(joined)


def stretches(spans: Sequence[Span], *, waiting: bool = True) -> list[tuple[Span, ...]]:
    """Return the runs of consecutive spans in which progress is required.

    A grace excuses ``waiting``. A client that does not wait, but fails each record at once, must not do so in a grace
    either: the brokers could serve it.
    """
    runs: list[list[Span]] = []
    for span in spans:
        if not (span.required or (span.grace and not waiting)):
            continue
        if runs and runs[-1][-1].end_us == span.start_us:
            runs[-1].append(span)
        else:
            runs.append([span])
    return [tuple(run) for run in runs]


def judged_us(spans: Sequence[Span], end_us: int) -> int:
    """Return the time before ``end_us`` in which a client that stands still breaks its obligation.

    A span does not count if its patience is longer than the whole stretch: no stall in it is ever too long.
    """
    total = 0
    for stretch in stretches(spans):
        length_us = stretch[-1].end_us - stretch[0].start_us
        within = (span for span in stretch if span.patience_us < length_us)
        total += sum(max(0, min(span.end_us, end_us) - span.start_us) for span in within)
    return total


def _span(
    post: Post,
    seats: Sequence[Seat],
    scene: Scene,
    relevant: Sequence[Harm],
    changes: Sequence[Change],
    start_us: int,
    end_us: int,
) -> Span:
    live = [harm for harm in relevant if harm.start_us <= start_us < last_us(harm)]
    if why := _obstacle(post, seats, scene, live, start_us):
        return Span(start_us, end_us, required=False, patience_us=0, why=why)
    running = [change for change in changes if change.at_us <= start_us < change.settled_us]
    if running:
        last = max(running, key=lambda change: change.settled_us)
        terms = " + ".join(f"{term.ms / 1e3:g} s {term.name}" for term in last.grace)
        why = f"{last.event}: a grace of {(last.settled_us - last.at_us) / 1e6:g} s = {terms}"
        return Span(start_us, end_us, required=False, patience_us=PATIENCE_US, why=why, grace=last.grace)
    slower_us = {harm: _slower_us(harm, post, seats, scene, start_us) for harm in live}
    patience_us = PATIENCE_US + sum(slower_us.values())
    delayed_us = sum(us - _outlasting_us(harm, us, post.waits) for harm, us in slower_us.items())
    during = f" despite {', '.join(harm.fault for harm in live)}" if live else ""
    why = f"the client can reach every possible partition leader{during}"
    return Span(start_us, end_us, required=True, patience_us=patience_us, why=why, kept_us=patience_us - delayed_us)


def _slower_us(harm: Harm, post: Post, seats: Sequence[Seat], scene: Scene, at_us: int) -> int:
    """Return by how much longer a client may be without success because of a fault that does not stop it."""
    if harm.impact == "moments":
        return 1000 * ROUND_TRIPS * harm.delay_ms
    if harm.restarts and harm.impact == "nodes" and harm.stage(at_us) == "moving":
        # after a clean stop another broker leads; if it was not clean, the controller waits for its session
        cluster, own = start_grace(harm, post, seats, scene)
        return total_us((*cluster, *own))
    if harm.impact == "members" and harm.stage(at_us) == "moving":
        # a classic group whose member returns waits for the member that it takes for another one, if not yet expelled
        noticed_us = total_us(noticed(harm, post.waits)) - (harm.healing_us - harm.injected_us)
        return max(0, noticed_us) + total_us((*post.waits.moved(), *post.waits.group))
    if harm.unrecorded:
        cluster, own = start_grace(harm, post, seats, scene)
        # the times at which leaders move are recorded, or each change may move them
        known = all(seat.reigns for seat in seats)
        return total_us(cluster) if known else harm.unrecorded * total_us((*cluster, *own))
    tampering = harm.tampering
    if harm.impact != "requests" or tampering is None or tampering.do == "none":
        return 0
    if tampering.do == "late" and tampering.script_ms is None:
        # the answer, and after an error that of the retry
        return 2 * 1000 * tampering.delay_ms
    return (tampering.attempts or 0) * _repeated_us(tampering, post.waits) + 1000 * (tampering.script_ms or 0)


def _repeated_us(tampering: Tampering, waits: ClientWaits) -> int:
    """Return the time until a client has repeated a request that failed, or that was lost."""
    each: Grace = (waits.retry,)
    if tampering.do == "lost":
        each = (waits.request, *waits.moved()) if tampering.silent else waits.moved()
    return total_us(each)


def _outlasting_us(harm: Harm, slower_us: int, waits: ClientWaits) -> int:
    """Return how much of the time that a fault costs a client may lie after its heal.

    A delay does not delay what is sent after the heal, and of a script at most the answer that a client waits for, or
    has just got, is left.
    """
    if harm.impact == "moments":
        return 0
    if harm.tampering and harm.tampering.script_ms is not None:
        last_us = _repeated_us(harm.tampering, waits) + 1000 * harm.tampering.delay_ms
        return min(slower_us, last_us)
    return slower_us


def _obstacle(post: Post, seats: Sequence[Seat], scene: Scene, live: Sequence[Harm], at_us: int) -> str | None:
    """Return why a client can make no progress, or may not, at a given time; None if it can."""
    for harm in live:
        if _unsettled(harm, seats, at_us):
            return f"{harm.fault} is being injected or healed"
        if harm.impact == "members" and not post.serves(live):
            return f"{harm.fault} keeps every process of the client from working"
        if harm.impact == "quota":
            return f"a quota of {harm.fault} may delay the client without limit"
        if harm.tampering and harm.impact == "requests" and _prevents(harm.tampering, post.waits):
            return f"{harm.fault} hits each {harm.tampering.api or 'request'} of the client"
        limit_ms = post.waits.request.ms
        if harm.between_nodes or harm.brokers:  # nodes, too, give each other up
            limit_ms = min(limit_ms, delay_limit_ms(scene.settings))
        if harm.impact == "unknown" or (harm.impact == "moments" and harm.delay_ms > limit_ms):
            return f"the effect of {harm.fault} is not known"
    for state in _states(live, scene.terrain, at_us):
        for seat, rack in product(seats, post.racks):
            if why := refusal(seat, rack, state, at_us):
                return f"{why} ({', '.join(harm.fault for harm in live)})" if live else why
    return None


def _unsettled(harm: Harm, seats: Sequence[Seat], at_us: int) -> bool:
    """Return True if a fault is being injected or healed, so that what it does at the moment is unknown.

    That does not matter to a fault that stops nothing, nor to the other members of a group. Nodes that are being healed
    are away or back; which of the two matters to a partition only if they may lead it.
    """
    if harm.stage(at_us) != "moving" or harm.impact in ("moments", "requests", "connections", "members"):
        return False
    if harm.impact in ("leaders", *ALONE, "links"):
        known = all(seat.reigns for seat in seats)
        return not (known and (harm.impact == "leaders" or at_us >= harm.healing_us))
    return True


def _prevents(tampering: Tampering, waits: ClientWaits) -> bool:
    """Return True if no attempt of a request succeeds while the rule is in force."""
    if tampering.do == "late":
        return tampering.script_ms is None and tampering.delay_ms >= waits.request.ms
    return tampering.do in ("lost", "error") and tampering.attempts is None


def _states(live: Sequence[Harm], terrain: Terrain, at_us: int) -> Iterator[State]:
    """Yield each possible state of the cluster.

    A node that stops and returns at unrecorded times may be up or down; what a fault that is being healed took away may
    be back or not.
    """
    choices: list[list[tuple[frozenset[int], frozenset[str], bool]]] = []
    nothing = (frozenset[int](), frozenset[str](), False)
    for harm in live:
        if harm.unrecorded:
            one_node = [(frozenset({broker}), frozenset[str](), True) for broker in sorted(harm.brokers)]
            whole = [(harm.brokers, frozenset[str](), True)]
            choices.append([nothing, *({"one node": one_node, "nodes": whole}.get(harm.impact, []))])
        elif harm.impact in ("nodes", "links") and harm.stage(at_us) != "over":
            away = harm.brokers if harm.impact == "nodes" else frozenset[int]()
            lost = harm.links if harm.impact == "links" else frozenset[str]()
            certain = harm.stage(at_us) == "in force"
            choices.append([(away, lost, False)] if certain else [(away, lost, False), nothing])
    for chosen in product(*choices):
        yield State(
            terrain,
            frozenset[int]().union(*(away for away, _, _ in chosen)),
            frozenset[str]().union(*(lost for _, lost, _ in chosen)),
            frozenset[int]().union(*(away for away, _, supposed in chosen if supposed)),
        )
