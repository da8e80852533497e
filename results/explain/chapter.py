"""Chapter of one fault in the story: injected, witnessed, what each client observed, recovered, healed, obligations.

It tells for each side of a client its first error, how it found the new leader, and how long nothing succeeded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.checks.check import subject_of
from aftershock.results.checks.obligations.stalls import Lane
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.explain.events import Force, Moment, event, parameters_text, place, target, witness_text
from aftershock.results.explain.slow import events_of
from aftershock.results.slo import Side

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
    "epoch_bumped",
    "hint_refused",
    "position_reset",
    "replica_failed_back",
    "session_lost",
    "session_reset",
    "session_established",
    "throttled",
)


def seen(events: Sequence[Event], who: str) -> Iterator[Moment]:
    """Yield the notable moments of one side of a client, from its events during the fault and shortly after."""
    errors = [line for line in events if line["event"] in ERRORS]
    first_kind, first_us = None, None
    if errors:
        first_kind, first_us = errors[0]["event"], errors[0]["t_us"]
        same = [line for line in errors if line["event"] == first_kind]
        yield Moment(first_us, f"first error: {event(errors[0])}{_times(same)}", who)
    for kind in DISCOVERIES:
        same = [line for line in events if line["event"] == kind]
        if kind == "metadata_refreshed":
            # clients refresh metadata every few minutes anyway: before an error that discovers nothing
            same = [line for line in same if first_us is not None and line["t_us"] >= first_us]
        if same:
            yield Moment(same[0]["t_us"], f"{event(same[0])}{_times(same)}", who)
    for kind in AFTERMATH:
        same = [line for line in events if line["event"] == kind]
        if same and kind != first_kind:
            yield Moment(same[0]["t_us"], f"{event(same[0])}{_times(same)}", who)


def _times(lines: Sequence[Event]) -> str:
    if len(lines) == 1:
        return ""
    partitions = {place(line) for line in lines} - {""}
    where = f" on {len(partitions)} partitions" if len(partitions) > 1 else ""
    return f" ({len(lines)} times{where}, the last at {lines[-1]['t_us'] / 1e6:.3f} s)"


def silences(stalls: Sequence[Mapping[str, Any]], topic: str, window_us: tuple[int, int], who: str) -> Iterator[Moment]:
    """Yield when records succeeded again: for the client as a whole, and for the partition with the longest stall."""

    def length_us(stall: Mapping[str, Any]) -> int:
        return int(stall["end_us"] - stall["start_us"])

    during = [stall for stall in stalls if stall["start_us"] < window_us[1] and window_us[0] < stall["end_us"]]
    for stall in during:
        if stall["partition"] is None:
            text = f"first success again, after {length_us(stall) / 1e6:.3f} s without any"
            yield Moment(stall["end_us"], text, who)
    of_partitions = [stall for stall in during if stall["partition"] is not None]
    if of_partitions:
        longest = max(of_partitions, key=length_us)
        others = len({stall["partition"] for stall in of_partitions}) - 1
        more = f"; {others} other partitions stalled for a second or longer" if others else ""
        text = f"first success of {topic}/{longest['partition']} again, after {length_us(longest) / 1e6:.3f} s"
        yield Moment(longest["end_us"], f"{text}, the longest stall of a partition{more}", who)


FELT_AFTER_US = 10_000_000
"""Events within this time after a fault belong to its chapter, unless the next fault has begun."""
SIDES: tuple[Side, ...] = ("produce", "consume", "commit")


@dataclass(frozen=True)
class Chapter:
    """Story of a fault.

    ``what`` describes the fault; ``start_us`` is None if it never began; ``notes`` are lines without a time.
    """

    fault: str
    what: str
    start_us: int | None
    end_us: int | None
    moments: tuple[Moment, ...]
    notes: tuple[str, ...]


def chapter(
    evidence: Evidence, analysis: Mapping[str, Any], force: Force, until_us: int, owed: Sequence[Lane]
) -> Chapter:
    """Return the chapter of a fault; ``until_us`` is the start of the next fault or the end of the load."""
    step = next((step for step in evidence.steps if step["id"] == force.fault), {})
    if force.window_us is None:
        return Chapter(force.fault, _what(force, step), None, None, (), ("the fault never began",))
    moments = [*_journalled(force), *_felt(evidence, analysis, force, until_us)]
    notes = (*_quiet(evidence, analysis, force), *_owed(force, owed, evidence))
    return Chapter(
        force.fault,
        _what(force, step),
        *force.window_us,
        tuple(sorted(moments, key=lambda moment: moment.at_us)),
        notes,
    )


def _what(force: Force, step: Mapping[str, Any]) -> str:
    origin = "by hand" if force.by_hand else "by the plan" if step else "from outside the plan"
    details = f", {parameters_text(step)}" if parameters_text(step) else ""
    return f"{force.kind}{details}, {origin}, on {target(force.targets)}"


def _journalled(force: Force) -> Iterator[Moment]:
    """Yield injection, witnesses (equal ones once), heal and failure."""
    begun_us = force.lines[0]["t_us"] if force.lines else 0
    if force.injected_us is not None:
        done = f"injected; the action took {(force.injected_us - begun_us) / 1e6:.3f} s"
        yield Moment(force.injected_us, "rehearsal: nothing was injected" if force.rehearsed else done)
    reports = [witness_text(line["witness"]) for line in force.lines if line.get("witness")]
    shown: set[str] = set()
    for line in force.lines:
        if line.get("witness"):
            report = witness_text(line["witness"])
            text = f"{'witnessed' if line['witness'].get('ok') else 'NOT witnessed'}: {report}"
            times = reports.count(report)
            if text not in shown:
                yield Moment(line["t_us"], text + (f" ({times} times)" if times > 1 else ""))
            shown.add(text)
    for line in force.lines:
        why = f": {line['why']}" if line.get("why") and not force.rehearsed else ""
        if line["state"] == "failed":
            yield Moment(line["t_us"], f"failed{why}")
        elif line["state"] == "healed":
            yield Moment(line["t_us"], f"healed{why}")


def _felt(evidence: Evidence, analysis: Mapping[str, Any], force: Force, until_us: int) -> Iterator[Moment]:
    start_us, end_us = force.window_us or (0, 0)
    felt_until_us = min(end_us + FELT_AFTER_US, max(until_us, end_us))
    for client, side in sides(evidence):
        who, topic = who_of(client, side, evidence.clients), topic_of(client, side)
        events = [line for line in events_of(evidence, client.key, side) if start_us <= line["t_us"] < felt_until_us]
        yield from seen(events, who)
        stalls = [row for row in analysis.get("stalls", ()) if (row["side"], row["client"]) == (side, client.key)]
        yield from silences(stalls, str(topic), (start_us, end_us), who)
    for row in analysis["recoveries"]:
        if row["fault"] == force.fault and row["recovered_us"] is not None:
            at_us = start_us + row["recovered_us"]
            yield Moment(at_us, "recovered: the next 2 s are calm", labels(evidence).get(row["client"]))


def _quiet(evidence: Evidence, analysis: Mapping[str, Any], force: Force) -> Iterator[str]:
    """Yield the longest gap of each side, and the clients that did not recover."""
    gaps = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    longest = []
    for client, side in sides(evidence):
        gap_us = gaps.get((f"{side}.gap", client.key, f"fault/{force.fault}"))
        if gap_us is not None:
            longest.append(f"{who_of(client, side, evidence.clients)} {gap_us / 1e6:.3f} s")
    if longest:
        yield f"longest time without a success during the fault: {', '.join(longest)}"
    for row in analysis["recoveries"]:
        if row["fault"] == force.fault and row["recovered_us"] is None:
            who = labels(evidence).get(row["client"], row["client"])
            yield f"{who}: not recovered within the {row['observed_us'] / 1e6:.1f} s observed"


def _owed(force: Force, owed: Sequence[Lane], evidence: Evidence) -> Iterator[str]:
    """Yield for how long during the fault progress was required; clients with the same text are named together."""
    start_us, end_us = force.window_us or (0, 0)
    clients_by_text: dict[str, list[str]] = {}
    for lane in owed:
        during = [span for span in lane.whole if span.start_us < end_us and start_us < span.end_us]
        us = sum(min(span.end_us, end_us) - max(span.start_us, start_us) for span in during if span.owed)
        reason = next((f"; otherwise not: {span.why.partition(' = ')[0]}" for span in during if not span.owed), "")
        text = f"progress was owed for {us / 1e6:.1f} of its {(end_us - start_us) / 1e6:.1f} s{reason}"
        clients_by_text.setdefault(text, []).append(who_of(lane.client, lane.side, evidence.clients))
    yield from (f"{', '.join(clients)}: {text}" for text, clients in clients_by_text.items())


def sides(evidence: Evidence) -> list[tuple[Client, Side]]:
    """Return each side of each client."""
    return [(client, side) for client in evidence.clients for side in SIDES if topic_of(client, side)]


def topic_of(client: Client, side: Side) -> str | None:
    """Return the topic of a side, None if the client lacks the side."""
    return {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}[side]


def who_of(client: Client, side: Side, clients: tuple[Client, ...]) -> str:
    """Return ``arm=kip951 produce``."""
    return f"{subject_of(client, clients)} {side}"


def labels(evidence: Evidence) -> dict[str, str]:
    """Return the names of clients by their keys."""
    return {client.key: subject_of(client, evidence.clients) for client in evidence.clients}
