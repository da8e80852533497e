"""What one side of a client saw of a fault: its first error, how it found the new leader, its silence.

The chapter of one fault: injected, witnessed, what each client saw, recovered, healed, and what was owed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.checks.check import subject_of
from aftershock.results.checks.obligations.stalls import Lane
from aftershock.results.evidence.evidence import Client, Evidence
from aftershock.results.explain.events import Force, Moment, asked, event, place, target, witnessed
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


def seen(told: Sequence[Event], who: str) -> Iterator[Moment]:
    """The moments worth telling, of the events of one side of a client while the fault was felt."""
    errors = [one for one in told if one["event"] in ERRORS]
    first = errors[0] if errors else {}
    if first:
        alike = [one for one in errors if one["event"] == first["event"]]
        yield Moment(first["t_us"], f"first error: {event(first)}{_times(alike)}", who)
    for kind in DISCOVERIES:
        found = [one for one in told if one["event"] == kind and _of_leaders(one, first.get("t_us"))]
        if found:
            yield Moment(found[0]["t_us"], f"{event(found[0])}{_times(found)}", who)
    for kind in AFTERMATH:
        rest = [one for one in told if one["event"] == kind]
        if rest and kind != first.get("event"):
            yield Moment(rest[0]["t_us"], f"{event(rest[0])}{_times(rest)}", who)


def _of_leaders(one: Event, first_error_us: int | None) -> bool:
    """Metadata is asked for every few minutes anyway: what came before any error, or unasked, discovered nothing."""
    return one["event"] != "metadata_refreshed" or (first_error_us is not None and one["t_us"] >= first_error_us)


def _times(alike: Sequence[Event]) -> str:
    if len(alike) == 1:
        return ""
    places = {place(one) for one in alike} - {""}
    where = f" on {len(places)} partitions" if len(places) > 1 else ""
    return f" ({len(alike)} such{where}, the last at {alike[-1]['t_us'] / 1e6:.3f} s)"


def silences(stalls: Sequence[Mapping[str, Any]], topic: str, window_us: tuple[int, int], who: str) -> Iterator[Moment]:
    """When a client got its first acknowledgement again, as a whole and on the partitions that were silent longest."""
    met = [one for one in stalls if one["start_us"] < window_us[1] and window_us[0] < one["end_us"]]
    whole = [one for one in met if one["partition"] is None]
    for one in whole:
        yield Moment(one["end_us"], f"first success again, after {_s(one)} without any", who)
    parts = [one for one in met if one["partition"] is not None]
    if parts:
        longest = max(parts, key=lambda one: one["end_us"] - one["start_us"])
        others = len({one["partition"] for one in parts}) - 1
        more = f"; {others} more were silent for a second or longer" if others else ""
        text = f"first success of {topic}/{longest['partition']} again, after {_s(longest)}, the longest of a partition"
        yield Moment(longest["end_us"], text + more, who)


def _s(stall: Mapping[str, Any]) -> str:
    return f"{(stall['end_us'] - stall['start_us']) / 1e6:.3f} s"


FELT_AFTER_US = 10_000_000
"""What a client tells within this time of a fault's end is told with it, unless the next fault has begun."""
SIDES: tuple[Side, ...] = ("produce", "consume", "commit")


@dataclass(frozen=True)
class Chapter:
    """``what``: the fault in plain words; ``start_us`` None where it never began; ``notes`` are of no single moment."""

    fault: str
    what: str
    start_us: int | None
    end_us: int | None
    moments: tuple[Moment, ...]
    notes: tuple[str, ...]


def chapter(
    evidence: Evidence, analysis: Mapping[str, Any], force: Force, until_us: int, owed: Sequence[Lane]
) -> Chapter:
    """``until_us`` is where the next fault begins, or the load ends."""
    step = next((step for step in evidence.steps if step["id"] == force.fault), {})
    if force.window_us is None:
        return Chapter(force.fault, _what(force, step), None, None, (), ("it never began",))
    moments = [*_journalled(force), *_felt(evidence, analysis, force, until_us)]
    notes = (*_quiet(evidence, analysis, force), *_owed(force, owed, evidence))
    return Chapter(force.fault, _what(force, step), *force.window_us, tuple(sorted(moments, key=_when)), notes)


def _when(moment: Moment) -> int:
    return moment.at_us


def _what(force: Force, step: Mapping[str, Any]) -> str:
    who = "by hand" if force.by_hand else "by the plan" if step else "by somebody else"
    details = f", {asked(step)}" if asked(step) else ""
    return f"{force.kind}{details}, {who}, on {target(force.targets)}"


def _journalled(force: Force) -> Iterator[Moment]:
    """Begun, injected, the first witness and any that refused, healed, failed; who looked once a second says once."""
    begun_us = force.lines[0]["t_us"] if force.lines else 0
    if force.injected_us is not None:
        done = f"injected; the action took {(force.injected_us - begun_us) / 1e6:.3f} s"
        yield Moment(force.injected_us, "a rehearsal: nothing was injected" if force.rehearsed else done)
    looks = [line for line in force.lines if line.get("witness")]
    shown: set[str] = set()
    for line in looks:
        said = f"{'witnessed' if line['witness'].get('ok') else 'NOT witnessed'}: {witnessed(line['witness'])}"
        alike = sum(witnessed(one["witness"]) == witnessed(line["witness"]) for one in looks)
        if said not in shown:
            yield Moment(line["t_us"], said + (f" ({alike} looks)" if alike > 1 else ""))
        shown.add(said)
    yield from _ended(force)


def _ended(force: Force) -> Iterator[Moment]:
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
        told = [one for one in events_of(evidence, client.key, side) if start_us <= one["t_us"] < felt_until_us]
        yield from seen(told, who)
        stalls = [one for one in analysis.get("stalls", ()) if (one["side"], one["client"]) == (side, client.key)]
        yield from silences(stalls, str(topic), (start_us, end_us), who)
    for row in analysis["recoveries"]:
        if row["fault"] == force.fault and row["recovered_us"] is not None:
            at_us = start_us + row["recovered_us"]
            yield Moment(at_us, "recovered: from here on 2 s are calm", labels(evidence).get(row["client"]))


def _quiet(evidence: Evidence, analysis: Mapping[str, Any], force: Force) -> Iterator[str]:
    """The longest gap of each side, and who did not recover."""
    gaps = {(row["metric"], row["client"], row["window"]): row["longest_us"] for row in analysis["gaps"]}
    known = [(one, gaps.get((f"{one[1]}.gap", one[0].key, f"fault/{force.fault}"))) for one in sides(evidence)]
    said = [f"{who_of(*one, evidence.clients)} {us / 1e6:.3f} s" for one, us in known if us is not None]
    if said:
        yield f"the longest time without a success in it: {', '.join(said)}"
    for row in analysis["recoveries"]:
        if row["fault"] == force.fault and row["recovered_us"] is None:
            who = labels(evidence).get(row["client"], row["client"])
            yield f"{who}: not recovered in the {row['observed_us'] / 1e6:.1f} s there were to look at"


def _owed(force: Force, owed: Sequence[Lane], evidence: Evidence) -> Iterator[str]:
    """How much of its time progress was owed, once for all who were owed the same."""
    start_us, end_us = force.window_us or (0, 0)
    alike: dict[str, list[str]] = {}
    for lane in owed:
        met = [span for span in lane.whole if span.start_us < end_us and start_us < span.end_us]
        us = sum(min(span.end_us, end_us) - max(span.start_us, start_us) for span in met if span.owed)
        reason = next((f"; else not: {span.why.partition(' = ')[0]}" for span in met if not span.owed), "")
        said = f"progress was owed for {us / 1e6:.1f} of its {(end_us - start_us) / 1e6:.1f} s{reason}"
        alike.setdefault(said, []).append(who_of(lane.client, lane.side, evidence.clients))
    yield from (f"{', '.join(whose)}: {said}" for said, whose in alike.items())


def sides(evidence: Evidence) -> list[tuple[Client, Side]]:
    """Every side of every client."""
    return [(client, side) for client in evidence.clients for side in SIDES if topic_of(client, side)]


def topic_of(client: Client, side: Side) -> str | None:
    """The topic of one side; None where the client lacks it."""
    return {"produce": client.produces_to, "consume": client.consumes_from, "commit": client.commits_to}[side]


def who_of(client: Client, side: Side, clients: tuple[Client, ...]) -> str:
    """``arm=kip951 produce``."""
    return f"{subject_of(client, clients)} {side}"


def labels(evidence: Evidence) -> dict[str, str]:
    """How clients are called, by their keys."""
    return {client.key: subject_of(client, evidence.clients) for client in evidence.clients}
