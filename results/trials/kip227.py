"""What fetches cost, slice by slice, as the reference consumers counted it: what KIP-227's statements are made of.

Rules. The cost of a fetch is its request and its response without the records in it, which cost the same whoever asks.
Counters are sampled each second and only grow; a slice has what they grew by between the last samples before its ends.
Full and incremental fetches are counted apart, so the one full fetch that opens a session is in no incremental figure.

KIP-227 at the brokers: what fetches cost them, the consumers' and their followers' own.

Rules. What a broker used in the steady part is the kernel's account of its container, whatever it was for; one arm at a
time, therefore. Followers take no setting for their sessions; a cache without slots grants them none.

Fetch sessions that were closed, evicted or died with their broker: what became of the clients, by their own events.

Rules. A session that its broker no longer knows is *lost*, and it is *regained* when the next that is heard of this
client and this broker is the answer to a full fetch, with a session or without (the cache may be full). That answer may
wait for records as any does, ``fetch.max.wait.ms``. Losses, restarts and sessions are n, never fetches.

KIP-227 on trial: incremental fetch requests.

Published (KIP-227): a fetch costs what changed and no longer all partitions that are followed; the KIP gives no figures
of its own. Named in full, a partition is about 70 bytes of a request and its response (Fetch 15 and later: 33 and 37).

The slice of time is n: in each, a line through the four sizes says what one more partition costs.

The plot of KIP-227: what a fetch costs, against how many partitions it is for.
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
    """Of each slice; not a number where it has no fetch of this kind. ``client`` is ``workload/arm``."""
    fetches = _grown(part, f"fetches_{kind}", client, spans)
    sent, received, records = (
        _grown(part, f"fetch_{what}_bytes_{kind}", client, spans) for what in ("request", "response", "record")
    )
    return [
        (asked + told - kept) / count if count > 0 else np.nan
        for count, asked, told, kept in zip(fetches, sent, received, records, strict=True)
    ]


def fetches(part: Part, client: str, kind: str, spans: Sequence[Slice]) -> list[float]:
    """How many there were in each slice."""
    return _grown(part, f"fetches_{kind}", client, spans)


def cpu_us_a_fetch(part: Part, client: str, kind: str) -> float | None:
    """What all brokers used of the CPU in the steady part, whatever for, by the fetches that the client made in it."""
    span, brokers = used(part)
    count = sum(_grown(part, f"fetches_{kind}", client, span))
    return sum(each["cpu_us"] for each in brokers.values()) / count if count and brokers else None


def used(part: Part) -> tuple[list[Slice], dict[str, dict[str, int]]]:
    """The steady part, and what each broker used in it, as ``node.Used`` names it; nothing where nobody told."""
    looks = part.events("broker_used")
    if len(looks) < _BOTH_ENDS:
        return [], {}
    before, after = looks[:_BOTH_ENDS]
    if before["brokers"].keys() != after["brokers"].keys():
        return [], {}
    of_each = {
        broker: {name: count - before["brokers"][broker][name] for name, count in counts.items()}
        for broker, counts in after["brokers"].items()
    }
    return [Slice(before["t_us"], after["t_us"])], of_each


def _grown(part: Part, counter: str, client: str, spans: Sequence[Slice]) -> list[float]:
    samples = part.samples(f"client.{counter}/{client.replace('/', '-')}-consume")
    times, values = samples["t_us"].to_numpy(), np.concatenate([[0.0], samples["value"].to_numpy()])
    return [float(values[_upto(times, span.end_us)] - values[_upto(times, span.start_us)]) for span in spans]


def _upto(times: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", at_us: int) -> int:
    """The place, among values with a 0 before them, of the last sample until then."""
    return int(np.searchsorted(times, at_us, side="right"))


CPU_SESSION, CPU_FULL = "cpu-session", "cpu-full"
FOLLOWERS_SESSION, FOLLOWERS_FULL = "followers-session", "followers-full"
_US_PER_S = 1e6
_NODES_MIN = 3
_UNTOLD = "nobody told what brokers used"


def cpu(parts: Parts) -> Judged:
    """A broker's CPU a fetch of a thousand partitions, all else that it does included: with sessions by without."""
    kinds = {CPU_SESSION: INCREMENTAL, CPU_FULL: FULL}
    ours, theirs = (cpu_us_a_fetch(parts[name], "p1000/reader", kind) for name, kind in kinds.items())
    if not ours or not theirs:
        return reported(unknown("times"), _UNTOLD)
    why = f"{ours:,.0f} us a fetch with sessions, {theirs:,.0f} without; one run each, all that a broker does included"
    return reported(Estimate(ours / theirs, None, None, 1, "times"), why)


def followers_bytes(parts: Parts) -> Judged:
    """What brokers send where followers have sessions, by where they have none: the broker is n."""
    if (found := _followers(parts, "sent_bytes")) is None:
        return reported(unknown("times"), _UNTOLD)
    judged = below(ratio(*found), 1.0, least=_NODES_MIN)
    ours, theirs = (side.mean() / 1e3 for side in found)
    why = f"{ours:,.0f} and {theirs:,.0f} kB/s of each broker, records too"
    return Judged(judged.ours, judged.word, f"{judged.why}; {why}")


def followers_cpu(parts: Parts) -> Judged:
    """The same of their CPU."""
    if (found := _followers(parts, "cpu_us")) is None:
        return reported(unknown("times"), _UNTOLD)
    ours, theirs = (side.mean() / 1e4 for side in found)
    return reported(ratio(*found), f"{ours:.1f} % and {theirs:.1f} % of a core a broker; one run each")


def _followers(parts: Parts, name: str) -> tuple[Floats, Floats] | None:
    """Broker by broker, with sessions and without; None where one of the runs didn't tell of all."""
    ours, theirs = (_each_second(parts[part], name) for part in (FOLLOWERS_SESSION, FOLLOWERS_FULL))
    return (ours, theirs) if len(ours) == len(theirs) > 0 else None


def _each_second(part: Part, name: str) -> Floats:
    """By broker."""
    spans, brokers = used(part)
    took_s = sum(span.end_us - span.start_us for span in spans) / _US_PER_S
    return np.array([each[name] / took_s for _, each in sorted(brokers.items())])


CLAIMS = (
    Claim(
        "cpu",
        "broker's CPU a fetch of 1000 partitions: incremental by full",
        "-",
        "",
        "report",
        (CPU_SESSION, CPU_FULL),
        cpu,
    ),
    Claim(
        "followers-bytes",
        "what brokers send, 300 partitions of which 3 are active: followers with sessions by a cache without slots",
        "-",
        "below 1",
        "report",
        (FOLLOWERS_SESSION, FOLLOWERS_FULL),
        followers_bytes,
    ),
    Claim(
        "followers-cpu",
        "the same of their CPU",
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


SIZES = (50, 200, 500, 1000)
BYTES, CONTROL, SESSIONS, EVICTED = "bytes", "control", "sessions", "evicted"
FULL_SLOPE = (60.0, 80.0)
INCREMENTAL_SLOPE = 1.0
SHARE = 0.03
GAIN = 1.25
_ARMS = {FULL: "full", INCREMENTAL: "session"}


def costs(part: Part, kind: str) -> dict[int, list[float]]:
    """Partitions → bytes a fetch, slice by slice."""
    spans = steady(part)
    return {size: bytes_a_fetch(part, f"p{size}/{_ARMS[kind]}", kind, spans) for size in SIZES}


def slope(found: dict[int, list[float]], confidence: float) -> Estimate:
    """Bytes that one more partition adds: a line through the sizes in each slice, and the mean of their slopes."""
    sizes, rows = np.array(SIZES, float), np.array([found[size] for size in SIZES], float)
    off = sizes - sizes.mean()
    return _mean([float(off @ row / (off @ off)) for row in rows.T], "B", confidence)


def full_slope(parts: Parts) -> Judged:
    """Without sessions."""
    return within(slope(costs(parts[BYTES], FULL), 0.9), *FULL_SLOPE)


def incremental_slope(parts: Parts) -> Judged:
    """With sessions; contrary is what costs as much as without."""
    return below(slope(costs(parts[BYTES], INCREMENTAL), 0.95), INCREMENTAL_SLOPE, no_effect=FULL_SLOPE[0])


def share(parts: Parts) -> Judged:
    """An incremental fetch by a full one, of a thousand partitions."""
    ours, theirs = (costs(parts[BYTES], kind)[SIZES[-1]] for kind in (INCREMENTAL, FULL))
    return below(_ratio(ours, theirs, 0.95), SHARE)


def no_gain(parts: Parts) -> Judged:
    """The control: with records for every partition, a session has nothing to leave out."""
    part = parts[CONTROL]
    spans = steady(part)
    ours, theirs = (bytes_a_fetch(part, f"busy/{_ARMS[kind]}", kind, spans) for kind in (INCREMENTAL, FULL))
    return within(_ratio(ours, theirs, 0.9), 1 / GAIN, GAIN)


def largest(parts: Parts, kind: str) -> Judged:
    """What a fetch of a thousand partitions costs."""
    part = parts[BYTES]
    count = sum(fetches(part, f"p{SIZES[-1]}/{_ARMS[kind]}", kind, steady(part)))
    return reported(_mean(costs(part, kind)[SIZES[-1]], "B", 0.95), f"{count:.0f} fetches, records not counted")


def _nothing_lost(parts: Parts, name: str) -> Judged:
    return kept(parts[name], ("lost", "duplicate", "skipped"))


def _none_left(parts: Parts, name: str) -> Judged:
    return none_left(parts[name])


def _ratio(ours: list[float], theirs: list[float], confidence: float) -> Estimate:
    return _mean([one / other for one, other in zip(ours, theirs, strict=True)], "times", confidence)


def _mean(values: list[float], unit: str, confidence: float) -> Estimate:
    """Over slices; no figure where one of them had no fetch."""
    if not np.isfinite(values).all():
        return Estimate(None, None, None, len(values), unit, confidence)
    return mean(values, unit, confidence)


CLAIMS_kip227 = (
    Claim(
        "full-slope",
        "without sessions a fetch grows with every partition",
        "O(all)",
        "60 to 80 B a partition",
        "claim",
        (BYTES,),
        full_slope,
    ),
    Claim(
        "incremental-slope",
        "with sessions it doesn't, 1 % being active",
        "O(changed)",
        "below 1 B a partition",
        "claim",
        (BYTES,),
        incremental_slope,
    ),
    Claim("share", "of 1000 partitions: incremental by full", "-", "below 3 %", "claim", (BYTES,), share),
    Claim(
        "closed-by-stranger",
        "session closed by a stranger: the next fetch is full, and is answered",
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
        "session evicted for a follower's: the next fetch is full, and is answered",
        "-",
        "each at once",
        "claim",
        (EVICTED,),
        lambda parts: regained(parts[EVICTED], BACK),
    ),
    *(
        Claim(
            f"nothing-lost-{name}",
            f"{name}: nothing is lost or read twice",
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
            f"{name}: no session is left when the clients have closed",
            "-",
            "none",
            "claim",
            (name,),
            partial(_none_left, name=name),
        )
        for name in (SESSIONS, EVICTED)
    ),
    Claim("no-gain", "every partition active: incremental by full", "-", "0.8 to 1.25", "control", (CONTROL,), no_gain),
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
    *CLAIMS,
)


_SIZE = (8.5, 3.2)
_LABELS = {FULL: "no session: every fetch names all", INCREMENTAL: "session: every fetch names what changed"}
_TITLE = "Bytes a fetch, records not counted"


def plots(parts: Parts) -> tuple[Plot, ...]:
    """One, if the sizes were run."""
    if BYTES not in parts:
        return ()
    found = {kind: costs(parts[BYTES], kind) for kind in _LABELS}
    said = _reading(found)
    with drawing(*_SIZE) as figure:
        axis = figure.subplots()
        for number, (kind, label) in enumerate(_LABELS.items()):
            colour, dash = LINES[number]
            medians = [float(np.median(found[kind][size])) for size in SIZES]
            axis.plot(SIZES, medians, color=colour, linestyle=dash, marker="o", markersize=4, label=label)
            axis.annotate(
                f"{medians[-1]:,.0f} B", (SIZES[-1], medians[-1]), (6, 0), textcoords="offset points", va="center"
            )
        plain(axis, "bytes a request and its response, both scales logarithmic")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(SIZES, [str(size) for size in SIZES])
        axis.minorticks_off()
        axis.set_xlim(right=SIZES[-1] * 1.4)
        axis.set_xlabel("partitions followed, one in a hundred active")
        legend(figure, axis, len(_LABELS))
        svg = rendered(figure, "kip227-bytes", _TITLE, said)
    return (Plot(_TITLE, svg, said),)


def _reading(found: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    few, many = SIZES[0], SIZES[-1]
    full, changed = ([float(np.median(found[kind][size])) for size in (few, many)] for kind in (FULL, INCREMENTAL))
    return (
        f"From {few} to {many} partitions a full fetch grows from {full[0]:,.0f} to {full[1]:,.0f} B, an incremental "
        f"one from {changed[0]:,.0f} to {changed[1]:,.0f} B, most of it for the partitions that are active."
    )
