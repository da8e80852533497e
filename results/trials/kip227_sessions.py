"""Fetch sessions that were closed, evicted or died with their broker: what became of the clients, by their own events.

Rules. A session that its broker no longer knows is *lost*, and it is *regained* when the next that is heard of this
client and this broker is the answer to a full fetch, with a session or without (the cache may be full). That answer may
wait for records as any does, ``fetch.max.wait.ms``. Losses, restarts and sessions are n, never fetches.
"""

from collections.abc import Mapping
from typing import Any

from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import seen

STRANGER, RESTART, BACK = "stranger", "restart", "back"
ANSWERED_MS = 600.0
"""``fetch.max.wait.ms`` (500 by default) and a round trip."""
_EVENTS = ("session_established", "session_refused", "session_lost", "session_reset", "session_closed")
_ANSWERED = ("session_established", "session_refused")
_US_PER_MS = 1_000

Event = Mapping[str, Any]


def regained(part: Part, fault: str) -> Judged:
    """How long after a loss the full fetch was answered, at worst. Losses are those since the first of the fault."""
    since_us = min((window["start_us"] for window in _proven(part, fault)), default=float("inf"))
    waits = [wait_ms for at_us, wait_ms in after_losses(_session_events(part)) if at_us >= since_us]
    known = [wait_ms for wait_ms in waits if wait_ms is not None]
    worst = max(known, default=None)
    holds = len(known) == len(waits) and (worst is not None and worst <= ANSWERED_MS)
    why = f"{len(known)} of {len(waits)} lost sessions were followed by the answer to a full fetch"
    return seen(holds if waits else None, Estimate(worst, None, None, len(waits), "ms at most"), why)


def reopened(part: Part, fault: str) -> Judged:
    """Whether each restart cost one full fetch that was answered, and no session was found to be lost."""
    windows, begins = _proven(part, fault), [w["start_us"] for name in (STRANGER, fault) for w in part.phases(name)]
    events, most = _session_events(part), 0
    for window in windows:
        until_us = min((at for at in begins if at > window["start_us"]), default=float("inf"))
        after = [event["event"] for event in events if window["start_us"] <= event["t_us"] < until_us]
        granted, lost = (after.count(f"session_{what}") for what in ("established", "lost"))
        most = max(most, abs(granted - 1) + lost)
    ours = Estimate(most, None, None, len(windows), "too many, or lost")
    why = f"{len(windows)} restarts: sessions beyond the one that each has to cost, and losses, at most"
    return seen(not most if windows else None, ours, why)


def none_left(part: Part) -> Judged:
    """Whether the brokers still know one of the sessions that clients ever told of, once these have closed."""
    told = next(iter(part.events("fetch_sessions_left")), None)
    if told is None or told["left"] is None:
        return seen(None, Estimate(None, None, None, 0), "the brokers weren't asked, or didn't answer")
    left = len(told["left"])
    why = f"{left} of {told['told']} sessions are known to their brokers after the clients have closed"
    return seen(not left, Estimate(left, None, None, told["told"], "sessions"), why)


def after_losses(events: list[Event]) -> list[tuple[int, float | None]]:
    """For each loss when it was, and the milliseconds to the answer of a full fetch; None where something else came."""
    found = []
    for place, event in enumerate(events):
        if event["event"] == "session_lost":
            whose = _whose(event)
            following = next((each for each in events[place + 1 :] if _whose(each) == whose), None)
            answered = following is not None and following["event"] in _ANSWERED
            wait_ms = (following["t_us"] - event["t_us"]) / _US_PER_MS if following and answered else None
            found.append((event["t_us"], wait_ms))
    return found


def _proven(part: Part, fault: str) -> list[dict[str, Any]]:
    """The fault's windows, but for those where it was not witnessed, or nobody met it."""
    unproven = part.run.unproven()
    return [window for window in part.phases(fault) if window["fault"] not in unproven]


def _session_events(part: Part) -> list[Event]:
    events = [event for name in _EVENTS for event in part.events(name)]
    return sorted(events, key=lambda event: int(event["t_us"]))


def _whose(event: Event) -> tuple[str, int]:
    return event["worker"], event["node_id"]
