"""Claims of KIP-227 (incremental fetch requests): a fetch costs what changed, not all partitions in its session.

The KIP publishes no figures. A partition that is named in full costs about 70 bytes of a request and its response
(Fetch 15 and later: 33 and 37). The unit is a slice of time: in each, a line through four sizes gives the cost of one
more partition.

**Cost of a fetch:** its request and its response without the records, which cost the same with or without a session, as
the reference consumers count them. Counters are sampled each second and only grow; a slice's value is the growth from
the last sample before its start to the last sample before its end. Full and incremental fetches are counted separately,
so the full fetch that opens a session is in no incremental figure.

**Cost at the brokers:** CPU and network use of each broker's container in the steady phase, as the kernel counts it. It
includes all clients, so only one arm runs at a time. Followers have no setting that switches sessions off; a session
cache without slots does it.

**Lost sessions:** a session that its broker no longer knows is *lost*. It is *regained* when the next event of this
client and this broker is the response to a full fetch, with a session or without (the cache may be full). That response
may wait for records like any other, ``fetch.max.wait.ms``. n counts losses, restarts and sessions, never fetches.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Claim, Parts, kept
from aftershock.results.trials.part import Floats, Part, Slice, mean, ratio, steady
from aftershock.results.trials.statement import Estimate, Judged, Plot, below, reported, seen, unknown, within

FULL, INCREMENTAL = "full", "incremental"
_BOTH_ENDS = 2


def bytes_a_fetch(part: Part, client: str, kind: str, spans: Sequence[Slice]) -> list[float]:
    """Return bytes per fetch of each slice, NaN for a slice without such fetches. ``client`` is ``workload/arm``."""
    fetches = _grown(part, f"fetches_{kind}", client, spans)
    sent, received, records = (
        _grown(part, f"fetch_{name}_bytes_{kind}", client, spans) for name in ("request", "response", "record")
    )
    return [
        (request + response - payload) / count if count > 0 else np.nan
        for count, request, response, payload in zip(fetches, sent, received, records, strict=True)
    ]


def fetches(part: Part, client: str, kind: str, spans: Sequence[Slice]) -> list[float]:
    """Return the number of fetches in each slice."""
    return _grown(part, f"fetches_{kind}", client, spans)


def cpu_us_a_fetch(part: Part, client: str, kind: str) -> float | None:
    """Return all CPU that the brokers used in the steady phase, divided by the client's fetches in it."""
    span, brokers = used(part)
    count = sum(_grown(part, f"fetches_{kind}", client, span))
    return sum(usage["cpu_us"] for usage in brokers.values()) / count if count and brokers else None


def used(part: Part) -> tuple[list[Slice], dict[str, dict[str, int]]]:
    """Return the steady phase and each broker's usage in it, by the names of ``node.Used``; empty if unknown."""
    samples = part.events("broker_used")
    if len(samples) < _BOTH_ENDS:
        return [], {}
    before, after = samples[:_BOTH_ENDS]
    if before["brokers"].keys() != after["brokers"].keys():
        return [], {}
    usage = {
        broker: {name: count - before["brokers"][broker][name] for name, count in counts.items()}
        for broker, counts in after["brokers"].items()
    }
    return [Slice(before["t_us"], after["t_us"])], usage


def _grown(part: Part, counter: str, client: str, spans: Sequence[Slice]) -> list[float]:
    samples = part.samples(f"client.{counter}/{client.replace('/', '-')}-consume")
    times, values = samples["t_us"].to_numpy(), np.concatenate([[0.0], samples["value"].to_numpy()])
    return [float(values[_upto(times, span.end_us)] - values[_upto(times, span.start_us)]) for span in spans]


def _upto(times: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", at_us: int) -> int:
    """Return the index of the last sample up to that time, in a sequence that starts with an extra 0."""
    return int(np.searchsorted(times, at_us, side="right"))


CPU_SESSION, CPU_FULL = "cpu-session", "cpu-full"
FOLLOWERS_SESSION, FOLLOWERS_FULL = "followers-session", "followers-full"
_US_PER_S = 1e6
_NODES_MIN = 3
_UNKNOWN_USAGE = "the brokers' usage was not recorded"


def cpu(parts: Parts) -> Judged:
    """Report a broker's CPU per fetch of a thousand partitions, with sessions relative to without."""
    kinds = {CPU_SESSION: INCREMENTAL, CPU_FULL: FULL}
    ours, theirs = (cpu_us_a_fetch(parts[name], "p1000/reader", kind) for name, kind in kinds.items())
    if not ours or not theirs:
        return reported(unknown("times"), _UNKNOWN_USAGE)
    why = f"{ours:,.0f} us per fetch with sessions, {theirs:,.0f} us without; one run each, all broker work included"
    return reported(Estimate(ours / theirs, None, None, 1, "times"), why)


def followers_bytes(parts: Parts) -> Judged:
    """Judge the bytes that brokers send to followers, with sessions relative to without; n counts brokers."""
    if (found := _followers(parts, "sent_bytes")) is None:
        return reported(unknown("times"), _UNKNOWN_USAGE)
    judged = below(ratio(*found), 1.0, least=_NODES_MIN)
    ours, theirs = (side.mean() / 1e3 for side in found)
    why = f"{ours:,.0f} and {theirs:,.0f} kB/s per broker, records included"
    return Judged(judged.ours, judged.word, f"{judged.why}; {why}")


def followers_cpu(parts: Parts) -> Judged:
    """Report the brokers' CPU, with followers' sessions relative to without."""
    if (found := _followers(parts, "cpu_us")) is None:
        return reported(unknown("times"), _UNKNOWN_USAGE)
    ours, theirs = (side.mean() / 1e4 for side in found)
    return reported(ratio(*found), f"{ours:.1f} % and {theirs:.1f} % of a core per broker; one run each")


def _followers(parts: Parts, name: str) -> tuple[Floats, Floats] | None:
    """Return the usage per broker with and without sessions, None if a run didn't record all brokers."""
    ours, theirs = (_each_second(parts[part], name) for part in (FOLLOWERS_SESSION, FOLLOWERS_FULL))
    return (ours, theirs) if len(ours) == len(theirs) > 0 else None


def _each_second(part: Part, name: str) -> Floats:
    """Return the usage per second, by broker."""
    spans, brokers = used(part)
    took_s = sum(span.end_us - span.start_us for span in spans) / _US_PER_S
    return np.array([usage[name] / took_s for _, usage in sorted(brokers.items())])


BROKER_CLAIMS = (
    Claim(
        "cpu",
        "broker's CPU per fetch of 1000 partitions: incremental relative to full",
        "-",
        "",
        "report",
        (CPU_SESSION, CPU_FULL),
        cpu,
    ),
    Claim(
        "followers-bytes",
        "bytes sent by brokers, 300 partitions of which 3 are active: followers with sessions relative to without",
        "-",
        "below 1",
        "report",
        (FOLLOWERS_SESSION, FOLLOWERS_FULL),
        followers_bytes,
    ),
    Claim(
        "followers-cpu",
        "CPU of the brokers in the same comparison",
        "-",
        "",
        "report",
        (FOLLOWERS_SESSION, FOLLOWERS_FULL),
        followers_cpu,
    ),
)


STRANGER, RESTART, BACK = "stranger", "restart", "back"
ANSWERED_MS = 600.0
"""``fetch.max.wait.ms`` (500 by default) and a round trip."""
_EVENTS = ("session_established", "session_refused", "session_lost", "session_reset", "session_closed")
_ANSWERED = ("session_established", "session_refused")
_US_PER_MS = 1_000

Event = Mapping[str, Any]


def regained(part: Part, fault: str) -> Judged:
    """Judge the longest time from a loss to the response of the full fetch.

    Only losses after the start of the first fault count.
    """
    since_us = min((window["start_us"] for window in _proven(part, fault)), default=float("inf"))
    waits = [wait_ms for at_us, wait_ms in after_losses(_session_events(part)) if at_us >= since_us]
    known = [wait_ms for wait_ms in waits if wait_ms is not None]
    worst = max(known, default=None)
    holds = len(known) == len(waits) and (worst is not None and worst <= ANSWERED_MS)
    why = f"{len(known)} of {len(waits)} lost sessions were followed by the response to a full fetch"
    return seen(holds if waits else None, Estimate(worst, None, None, len(waits), "ms at most"), why)


def reopened(part: Part, fault: str) -> Judged:
    """Judge that each restart cost one full fetch with a response, and that no session was lost."""
    windows, begins = _proven(part, fault), [w["start_us"] for name in (STRANGER, fault) for w in part.phases(name)]
    events, most = _session_events(part), 0
    for window in windows:
        until_us = min((at for at in begins if at > window["start_us"]), default=float("inf"))
        after = [event["event"] for event in events if window["start_us"] <= event["t_us"] < until_us]
        granted, lost = (after.count(f"session_{name}") for name in ("established", "lost"))
        most = max(most, abs(granted - 1) + lost)
    ours = Estimate(most, None, None, len(windows), "too many, or lost")
    why = f"{len(windows)} restarts: sessions beyond the one that each restart needs, plus losses, at most"
    return seen(not most if windows else None, ours, why)


def none_left(part: Part) -> Judged:
    """Judge that brokers know none of the clients' sessions after the clients have closed."""
    event = next(iter(part.events("fetch_sessions_left")), None)
    if event is None or event["left"] is None:
        return seen(None, Estimate(None, None, None, 0), "the brokers were not queried, or didn't respond")
    left = len(event["left"])
    why = f"{left} of {event['told']} sessions are known to their brokers after the clients have closed"
    return seen(not left, Estimate(left, None, None, event["told"], "sessions"), why)


def after_losses(events: list[Event]) -> list[tuple[int, float | None]]:
    """Return (time, ms to the response of a full fetch) of each loss; None if another event came first."""
    found = []
    for place, event in enumerate(events):
        if event["event"] == "session_lost":
            session = _session(event)
            following = next((later for later in events[place + 1 :] if _session(later) == session), None)
            answered = following is not None and following["event"] in _ANSWERED
            wait_ms = (following["t_us"] - event["t_us"]) / _US_PER_MS if following and answered else None
            found.append((event["t_us"], wait_ms))
    return found


def _proven(part: Part, fault: str) -> list[dict[str, Any]]:
    """Return the fault's windows in which it was witnessed and exposed."""
    unproven = part.run.unproven()
    return [window for window in part.phases(fault) if window["fault"] not in unproven]


def _session_events(part: Part) -> list[Event]:
    events = [event for name in _EVENTS for event in part.events(name)]
    return sorted(events, key=lambda event: int(event["t_us"]))


def _session(event: Event) -> tuple[str, int]:
    return event["worker"], event["node_id"]


SIZES = (50, 200, 500, 1000)
BYTES, CONTROL, SESSIONS, EVICTED = "bytes", "control", "sessions", "evicted"
FULL_SLOPE = (60.0, 80.0)
INCREMENTAL_SLOPE = 1.0
SHARE = 0.03
GAIN = 1.25
_ARMS = {FULL: "full", INCREMENTAL: "session"}


def costs(part: Part, kind: str) -> dict[int, list[float]]:
    """Map number of partitions to bytes per fetch, slice by slice."""
    spans = steady(part)
    return {size: bytes_a_fetch(part, f"p{size}/{_ARMS[kind]}", kind, spans) for size in SIZES}


def slope(costs_by_size: dict[int, list[float]], confidence: float) -> Estimate:
    """Return the bytes that one more partition adds: the mean slope of a line through the sizes in each slice."""
    sizes, rows = np.array(SIZES, float), np.array([costs_by_size[size] for size in SIZES], float)
    off = sizes - sizes.mean()
    return _mean([float(off @ row / (off @ off)) for row in rows.T], "B", confidence)


def full_slope(parts: Parts) -> Judged:
    """Judge the bytes per additional partition without sessions."""
    return within(slope(costs(parts[BYTES], FULL), 0.9), *FULL_SLOPE)


def incremental_slope(parts: Parts) -> Judged:
    """Judge the bytes per additional partition with sessions; contradicted if they are as many as without."""
    return below(slope(costs(parts[BYTES], INCREMENTAL), 0.95), INCREMENTAL_SLOPE, no_effect=FULL_SLOPE[0])


def share(parts: Parts) -> Judged:
    """Judge the cost of an incremental fetch of a thousand partitions relative to a full one."""
    ours, theirs = (costs(parts[BYTES], kind)[SIZES[-1]] for kind in (INCREMENTAL, FULL))
    return below(_ratio(ours, theirs, 0.95), SHARE)


def no_gain(parts: Parts) -> Judged:
    """Judge the control: with records for each partition, a session has nothing to leave out."""
    part = parts[CONTROL]
    spans = steady(part)
    ours, theirs = (bytes_a_fetch(part, f"busy/{_ARMS[kind]}", kind, spans) for kind in (INCREMENTAL, FULL))
    return within(_ratio(ours, theirs, 0.9), 1 / GAIN, GAIN)


def largest(parts: Parts, kind: str) -> Judged:
    """Report the cost of a fetch of a thousand partitions."""
    part = parts[BYTES]
    count = sum(fetches(part, f"p{SIZES[-1]}/{_ARMS[kind]}", kind, steady(part)))
    return reported(_mean(costs(part, kind)[SIZES[-1]], "B", 0.95), f"{count:.0f} fetches, without records")


def _nothing_lost(parts: Parts, name: str) -> Judged:
    return kept(parts[name], ("lost", "duplicate", "skipped"))


def _none_left(parts: Parts, name: str) -> Judged:
    return none_left(parts[name])


def _ratio(ours: list[float], theirs: list[float], confidence: float) -> Estimate:
    return _mean([left / right for left, right in zip(ours, theirs, strict=True)], "times", confidence)


def _mean(values: list[float], unit: str, confidence: float) -> Estimate:
    """Return the mean over slices, no figure if a slice had no fetch."""
    if not np.isfinite(values).all():
        return Estimate(None, None, None, len(values), unit, confidence)
    return mean(values, unit, confidence)


CLAIMS = (
    Claim(
        "full-slope",
        "without sessions the cost of a fetch grows with each partition",
        "O(all)",
        "60 to 80 B per partition",
        "claim",
        (BYTES,),
        full_slope,
    ),
    Claim(
        "incremental-slope",
        "with sessions it doesn't, with 1 % of the partitions active",
        "O(changed)",
        "below 1 B per partition",
        "claim",
        (BYTES,),
        incremental_slope,
    ),
    Claim(
        "share", "fetch of 1000 partitions: incremental relative to full", "-", "below 3 %", "claim", (BYTES,), share
    ),
    Claim(
        "closed-by-stranger",
        "session closed by another client: the next fetch is full and gets a response",
        "-",
        "each at once",
        "claim",
        (SESSIONS,),
        lambda parts: regained(parts[SESSIONS], STRANGER),
    ),
    Claim(
        "restarted",
        "broker restarted: one full fetch opens the next session",
        "-",
        "each at once",
        "claim",
        (SESSIONS,),
        lambda parts: reopened(parts[SESSIONS], RESTART),
    ),
    Claim(
        "evicted",
        "session evicted for a follower's: the next fetch is full and gets a response",
        "-",
        "each at once",
        "claim",
        (EVICTED,),
        lambda parts: regained(parts[EVICTED], BACK),
    ),
    *(
        Claim(
            f"nothing-lost-{name}",
            f"{name}: no record is lost or read twice",
            "-",
            "none",
            "claim",
            (name,),
            partial(_nothing_lost, name=name),
        )
        for name in (SESSIONS, EVICTED)
    ),
    *(
        Claim(
            f"left-{name}",
            f"{name}: no session is left after the clients have closed",
            "-",
            "none",
            "claim",
            (name,),
            partial(_none_left, name=name),
        )
        for name in (SESSIONS, EVICTED)
    ),
    Claim(
        "no-gain",
        "all partitions active: incremental relative to full",
        "-",
        "0.8 to 1.25",
        "control",
        (CONTROL,),
        no_gain,
    ),
    *(
        Claim(
            f"bytes-{kind}",
            f"a fetch of 1000 partitions, {kind}",
            "-",
            "",
            "report",
            (BYTES,),
            partial(largest, kind=kind),
        )
        for kind in (FULL, INCREMENTAL)
    ),
    *BROKER_CLAIMS,
)


_SIZE = (8.5, 3.2)
_LABELS = {
    FULL: "no session: each fetch names all partitions",
    INCREMENTAL: "session: each fetch names changed partitions",
}
_TITLE = "Bytes per fetch, without records"


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return one chart if the sizes were run."""
    if BYTES not in parts:
        return ()
    by_kind = {kind: costs(parts[BYTES], kind) for kind in _LABELS}
    sentence = _reading(by_kind)
    with drawing(*_SIZE) as figure:
        axis = figure.subplots()
        for number, (kind, label) in enumerate(_LABELS.items()):
            colour, dash = LINES[number]
            medians = [float(np.median(by_kind[kind][size])) for size in SIZES]
            axis.plot(SIZES, medians, color=colour, linestyle=dash, marker="o", markersize=4, label=label)
            axis.annotate(
                f"{medians[-1]:,.0f} B", (SIZES[-1], medians[-1]), (6, 0), textcoords="offset points", va="center"
            )
        plain(axis, "bytes per request and response, logarithmic scales")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(SIZES, [str(size) for size in SIZES])
        axis.minorticks_off()
        axis.set_xlim(right=SIZES[-1] * 1.4)
        axis.set_xlabel("partitions followed, one in a hundred active")
        legend(figure, axis, len(_LABELS))
        svg = rendered(figure, "kip227-bytes", _TITLE, sentence)
    return (Plot(_TITLE, svg, sentence),)


def _reading(by_kind: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    few, many = SIZES[0], SIZES[-1]
    full, changed = ([float(np.median(by_kind[kind][size])) for size in (few, many)] for kind in (FULL, INCREMENTAL))
    return (
        f"From {few} to {many} partitions a full fetch grows from {full[0]:,.0f} to {full[1]:,.0f} B, an incremental "
        f"one from {changed[0]:,.0f} to {changed[1]:,.0f} B, most of it for the active partitions."
    )
