"""What one side of a client saw of a fault: its first error, how it found the new leader, its silence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aftershock.results.explain.moment import Moment
from aftershock.results.explain.words import event, place

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
