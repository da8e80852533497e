"""Chapter of one fault in a run's story (injection, witness, observations of each client, recovery, heal, obligations).

For each producer, consumer and committer the chapter has the client's first error, how the client discovered the new
leader, and how long none of the client's operations succeeded.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.names import outputs_reader
from aftershock.results.checks.obligations.lanes import Lane
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.explain.events import Force, Moment, event, listed, parameters_text, place, target, witness_text
from aftershock.results.explain.leaders import Place, Reign, leader_changes
from aftershock.results.explain.record import events_of
from aftershock.results.model.text import recovery

Event = Mapping[str, Any]

ERRORS = {
    "client_error",
    "commit_failed",
    "commit_retried",
    "batch_retried",
    "fetch_failed",
    "group_error",
    "heartbeat_failed",
    "metadata_failed",
    "node_disconnected",
    "partitions_lost",
}
DISCOVERIES = ("hint_accepted", "metadata_refreshed", "replica_switched")
AFTERMATH = (
    "batch_retried",
    "client_died",
    "epoch_bumped",
    "group_joined",
    "hint_refused",
    "member_fenced",
    "partitions_lost",
    "poll_timeout",
    "position_reset",
    "rebalance_started",
    "replica_failed_back",
    "session_lost",
    "session_reset",
    "session_established",
    "throttled",
)


HELD_EVENTS = ("held_request_delivered", "held_request_lost", "scripted_answer")
_HELD_MAX = 20  # a script may have thousands of answers
AFTERMATH_US = 10_000_000
CLUSTER_EVENTS = ("broker_left", "broker_returned", "isr_left", "isr_joined")
"""Client events up to this time after a fault are told with the fault, unless the next fault has begun."""


@dataclass(frozen=True)
class Chapter:
    """Chapter about one fault in the story of a run (the run's account in plain words).

    ``what`` describes the fault; a fault that never began has no ``start_us``; ``notes`` are sentences that belong to
    no moment of the run.
    """

    fault: str
    what: str
    start_us: int | None
    end_us: int | None
    moments: tuple[Moment, ...]
    notes: tuple[str, ...]


def chapter(
    evidence: Evidence,
    analysis: Mapping[str, Any],
    force: Force,
    until_us: int,
    lanes: Sequence[Lane],
    reigns: Mapping[Place, Sequence[Reign]],
) -> Chapter:
    """Return the chapter of a fault; ``until_us`` is the start of the next fault or the end of the load."""
    step = next((step for step in evidence.steps if step["id"] == force.fault), {})
    origin = "by hand" if force.by_hand else "by the plan" if step else "by a command that is not part of the plan"
    parameters = f", {parameters_text(step)}" if parameters_text(step) else ""
    what = f"{force.kind}{parameters}, {origin}, on {target(force.targets)}"
    if force.window_us is None:
        return Chapter(force.fault, what, None, None, (), ("the fault never began",))
    start_us, end_us = force.window_us
    names = evidence.labels
    moments, notes, gaps = _journalled(force), list[str](), list[str]()
    aftermath_end_us = min(end_us + AFTERMATH_US, max(until_us, end_us))
    moments += [
        Moment(line["t_us"], event(line))
        for line in evidence.events
        if line.get("event") in CLUSTER_EVENTS and start_us <= line["t_us"] < aftermath_end_us
    ]
    held = [line for line in evidence.events if line.get("event") in HELD_EVENTS and line["fault"] == force.fault]
    moments += [Moment(line["t_us"], event(line)) for line in held[:_HELD_MAX]]
    if len(held) > _HELD_MAX:
        notes.append(f"{len(held) - _HELD_MAX} later events of requests are in events.jsonl")
    moments += leader_changes(reigns, start_us, aftermath_end_us)

    # Events, stalls and gaps of each side of each client.
    gaps_us = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    sides = [(client, side, topics) for client in evidence.clients for side, topics in client.topics.items()]
    for client, side, topics in sides:
        who = f"{names[client.key]} {side}"
        events = [line for line in events_of(evidence, client.key, side) if start_us <= line["t_us"] < aftermath_end_us]
        reader = outputs_reader(client.workload, client.arm)
        moments += notable([line for line in events if line.get("worker") != reader], who)
        moments += notable([line for line in events if line.get("worker") == reader], f"{who}, reader of its outputs")
        if side == "consume":
            moments += rebalance_moments(
                rebalances_of(analysis, client), client, start_us, aftermath_end_us, names[client.key]
            )
        stalls = [row for row in analysis.get("stalls", ()) if (row["side"], row["client"]) == (side, client.key)]
        moments += silences(stalls, topics[0], force.window_us, who)
        gap_us = gaps_us.get((f"{side}.gap", client.key, f"fault/{force.fault}"))
        if gap_us is not None:
            gaps.append(f"{who} {gap_us / 1e6:.3f} s")
    if gaps:
        notes.append(f"longest time without a success during the fault: {', '.join(gaps)}")
    healed = []
    for row in (row for row in analysis["recoveries"] if row["fault"] == force.fault):
        name, lasting = names.get(row["client"], row["client"]), row.get("definition", 1) > 1
        if row["recovered_us"] is None:
            notes.append(f"{name}: {recovery(row)}")
        else:
            first_calm = "recovered: in the next 2 s all records succeed with normal latency"
            text = recovery(row, "") if lasting else first_calm
            moments.append(Moment(start_us + row["recovered_us"], text, name))
        if row.get("before_heal") is False:
            healed.append(name)
    if healed:
        notes.append(f"not normal before the heal: {', '.join(healed)}")
    moments.sort(key=lambda moment: moment.at_us)

    # For how long during the fault progress was required; clients with the same text are named together.
    clients_by_text: dict[str, list[str]] = {}
    for lane in lanes:
        during = [span for span in lane.whole if span.start_us < end_us and start_us < span.end_us]
        us = sum(min(span.end_us, end_us) - max(span.start_us, start_us) for span in during if span.required)
        reason = next(
            (f"; not required while: {span.why.partition(' = ')[0]}" for span in during if not span.required), ""
        )
        required_s, fault_s = us / 1e6, (end_us - start_us) / 1e6
        text = f"progress was required for {required_s:.1f} of the {fault_s:.1f} s of the fault{reason}"
        clients_by_text.setdefault(text, []).append(f"{names[lane.client.key]} {lane.side}")
    notes += [f"{', '.join(clients)}: {text}" for text, clients in clients_by_text.items()]
    return Chapter(force.fault, what, start_us, end_us, tuple(moments), tuple(notes))


def _journalled(force: Force) -> list[Moment]:
    """Return a fault's moments in the journal (injection, witness reports, heal and failure); equal reports once."""
    moments = []
    if force.injected_us is not None:
        took_s = (force.injected_us - force.lines[0]["t_us"]) / 1e6
        injected = f"the fault is injected; the action took {took_s:.3f} s"
        moments.append(Moment(force.injected_us, "rehearsal: nothing was injected" if force.rehearsed else injected))
    counts = Counter(witness_text(line["witness"]) for line in force.lines if line.get("witness"))
    shown: set[str] = set()
    for line in force.lines:
        if line.get("witness"):
            report = witness_text(line["witness"])
            text = f"{'witnessed' if line['witness'].get('ok') else 'NOT witnessed'}: {report}"
            if text not in shown:
                times = f" ({counts[report]} times)" if counts[report] > 1 else ""
                moments.append(Moment(line["t_us"], text + times))
            shown.add(text)
        if line["state"] in ("failed", "healed"):
            why = f": {line['why']}" if line.get("why") and not force.rehearsed else ""
            state = "the fault is healed" if line["state"] == "healed" else "the fault failed"
            moments.append(Moment(line["t_us"], f"{state}{why}"))
    return moments


def notable(events: Sequence[Event], who: str) -> Iterator[Moment]:
    """Yield the first error, the discoveries of leaders and later notable events of a client around a fault."""
    errors = [line for line in events if line["event"] in ERRORS]
    first_kind, first_us = None, None
    if errors:
        first_kind, first_us = errors[0]["event"], errors[0]["t_us"]
        same = [line for line in errors if line["event"] == first_kind]
        yield Moment(first_us, f"first error: {event(errors[0])}{_times(same)}", who)
    for kind in (*DISCOVERIES, *AFTERMATH):
        same = [line for line in events if line["event"] == kind]
        if kind == "metadata_refreshed":
            # Clients also refresh metadata every few minutes; a refresh before any error discovers nothing.
            same = [line for line in same if first_us is not None and line["t_us"] >= first_us]
        if same and not (kind in AFTERMATH and kind == first_kind):
            yield Moment(same[0]["t_us"], f"{event(same[0])}{_times(same)}", who)


def _times(lines: Sequence[Event]) -> str:
    if len(lines) == 1:
        return ""
    partitions = {place(line) for line in lines} - {""}
    where = f" on {len(partitions)} partitions" if len(partitions) > 1 else ""
    workers = {line["worker"] for line in lines if line.get("worker")}
    noun = "members" if lines[0].get("op") == "consume" else "processes"
    where += f" by {len(workers)} {noun}" if len(workers) > 1 else ""
    return f" ({len(lines)} times{where}, the last at {lines[-1]['t_us'] / 1e6:.3f} s)"


def silences(stalls: Sequence[Mapping[str, Any]], topic: str, window_us: tuple[int, int], who: str) -> Iterator[Moment]:
    """Yield the end of each stall of the client as a whole, and of the longest stall of a single partition.

    A stall that names no topic is of ``topic``.
    """

    def length_us(stall: Mapping[str, Any]) -> int:
        return int(stall["end_us"] - stall["start_us"])

    during = [stall for stall in stalls if stall["start_us"] < window_us[1] and window_us[0] < stall["end_us"]]
    for stall in during:
        if stall["partition"] is None:
            text = f"first success again, after {length_us(stall) / 1e6:.3f} s without a success"
            yield Moment(stall["end_us"], text, who)
    of_partitions = [stall for stall in during if stall["partition"] is not None]
    if of_partitions:
        longest = max(of_partitions, key=length_us)
        others = len({(stall.get("topic"), stall["partition"]) for stall in of_partitions}) - 1
        more = f"; {others} other partitions stalled for a second or longer" if others else ""
        partition = f"{longest.get('topic') or topic}/{longest['partition']}"
        stalled_s = length_us(longest) / 1e6
        text = f"first success of {partition} again, after {stalled_s:.3f} s, the longest stall of a partition{more}"
        yield Moment(longest["end_us"], text, who)


Rebalance = Mapping[str, Any]


def rebalances_of(analysis: Mapping[str, Any], client: Client) -> Sequence[Rebalance]:
    """Return a client's rebalances; empty if its group has one member, or an older version judged the run."""
    rows = (row["rebalances"] for row in analysis.get("rebalances", ()) if row["client"] == client.key)
    return next(rows, ())


def longest_ownerless_us(analysis: Mapping[str, Any], client: Client) -> int:
    """Return the longest time for which a client's records waited without a delivering owner; 0 if none did."""
    rows = (row["waits"] for row in analysis.get("unowned", ()) if row["client"] == client.key)
    return max((wait["end_us"] - wait["start_us"] for wait in next(rows, ())), default=0)


def rebalance_moments(
    rebalances: Sequence[Rebalance], client: Client, from_us: int, to_us: int, who: str
) -> Iterator[Moment]:
    """Yield the start and the end of each rebalance that began between two times."""
    numbers = {worker: number for number, worker in enumerate(client.workers("consume"), 1)}
    for rebalance in rebalances:
        if not from_us <= rebalance["start_us"] < to_us:
            continue
        moved = rebalance["moved"]
        if not moved:
            text = f"the group rebalances, and each of {rebalance['returned']} partitions returns to its owner"
            yield Moment(rebalance["start_us"], f"{text} after {_seconds(rebalance)}{_kept(rebalance)}", who)
            continue
        yield Moment(rebalance["start_us"], f"the group rebalances: {_changes(moved, 'former', numbers, 'lose')}", who)
        last = max(moved, key=lambda change: change["read_us"])
        waits = [change for change in moved if change["unowned_us"] is not None]
        text = f"the rebalance is over after {_seconds(rebalance)}: {_changes(moved, 'owner', numbers, 'get')}"
        text += f"; {_place(last)} was read again last"
        if waits:
            longest = max(waits, key=lambda change: change["unowned_us"])
            text += f"; records of {_place(longest)} waited {longest['unowned_us'] / 1e6:.3f} s for the new owner"
        again = sum(change["again"] for change in moved)
        text += f"; {again} records were delivered again" if again else ""
        yield Moment(rebalance["end_us"], text + _kept(rebalance), who)


def _seconds(rebalance: Rebalance) -> str:
    return f"{(rebalance['end_us'] - rebalance['start_us']) / 1e6:.3f} s"


def _kept(rebalance: Rebalance) -> str:
    if not rebalance["kept_us"]:
        return ""
    return f"; partitions that kept their owner stood still for up to {rebalance['kept_us'] / 1e6:.3f} s"


def _changes(moved: Sequence[Mapping[str, Any]], side: str, numbers: Mapping[str, int], verb: str) -> str:
    """Return which members lose or get which partitions, in order of the members."""
    by_member: dict[int, list[str]] = {}
    for change in sorted(moved, key=lambda change: change["place"]):
        by_member.setdefault(numbers.get(change[side], 0), []).append(_place(change))
    return ", ".join(f"member {number} {verb}s {listed(places)}" for number, places in sorted(by_member.items()))


def _place(change: Mapping[str, Any]) -> str:
    topic, partition = change["place"]
    return f"{topic}/{partition}"
