"""Claims of KIP-227 (incremental fetch requests), in which the cost of a fetch depends on changed partitions.

Each partition listed in a fetch costs about 70 bytes of request and response (33 and 37 since Fetch version 15). In
each slice of time, a straight line fitted to sessions of four sizes gives the cost of one more partition.

The **cost of a fetch** is the size of a fetch request and its response without the records, as the reference consumers
count bytes. The consumers' byte counters are sampled every second; the value of a slice of time is the growth of a
counter from the last sample before its start to the last sample before its end.

The **cost at the brokers** is the CPU and network use of each broker's container in the steady phase, which the kernel
counts for all clients together, so only one arm runs at a time. A session cache of size 0
(``max.incremental.fetch.session.cache.slots``) disables the fetch sessions of followers. The brokers of a launch share
boot and host, so the unit is a pair of launches, and pairs alternate in which of both comes first.

A fetch session is *lost* when its broker no longer knows the session. A lost session is *regained* when the client's
next event with this broker is the response to a full fetch, with or without a new session (the session cache may be
full). A broker without new records may delay the response to a full fetch by ``fetch.max.wait.ms``. In claims on lost
sessions, n is the number of losses, restarts or sessions, never of fetches.

**Other people's clients.** What Kafka's Java consumer and librdkafka do is read from the wire (``Source``), not from
what a client says of itself. librdkafka has no fetch sessions, so it is the client without the KIP.

**Planted violations.** In run ``broken`` answers come too late, another client closes sessions that a restart has
opened, the broker of a topic with one replica loses power, and consumers are killed, whose sessions stay behind.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.studies.part import Floats, Part, Slice, mean, ratio, steady_slices
from aftershock.results.studies.statement import Estimate, Measured, Plot, unknown
from aftershock.results.studies.trials.claim import Parts, integrity, on_part, on_parts, register

BYTES, CONTROL, SESSIONS, EVICTED = "bytes", "control", "sessions", "evicted"
CLIENTS, JAVA_SESSIONS, JAVA_EVICTED, BROKEN = "clients", "sessions-java", "evicted-java", "broken"
REPEATED, TWICE, INVALID_EPOCH = "repeated", "twice", "invalid_fetch_session_epoch"
Source: TypeAlias = Literal["client", "wire"]
"""Who counts: a reference consumer itself, or the wire proxy, which sees any client."""
CPU_SIZES = (1000, 250, 50)
"""Numbers of idle partitions; the run ``cpu-1000`` and its siblings measure what a fetch of them costs a broker."""
FOLLOWERS = tuple((f"followers-session-{pair}", f"followers-full-{pair}") for pair in range(1, 7))
"""Pairs of launches, one with and one without fetch sessions of the followers."""
PRODUCTION = "production"
STRANGER, RESTART, BACK = "stranger", "restart", "back"
FULL, INCREMENTAL = "full", "incremental"
SIZES = (50, 200, 500, 1000)
ANSWERED_MS = 1000.0
"""Limit for the response to a full fetch: ``fetch.max.wait.ms`` (500 by default), and as much for two busy cores."""
_SESSIONS = "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions:Value"
_EVICTIONS = ":Count"
DISRUPTED_US = 2_000_000
"""A consumer notices at its next fetch, at the latest after ``fetch.max.wait.ms``."""
_ARMS = {FULL: "full", INCREMENTAL: "session"}
JAVA, LIBRDKAFKA = "java", "librdkafka"


def growth(part: Part, counter: str, client: str, spans: Sequence[Slice], source: Source = "client") -> list[float]:
    samples = part.samples(f"{source}.{counter}/{client.replace('/', '-')}-consume")
    # Element 0 is the counter before its first sample.
    times, values = samples["t_us"].to_numpy(), np.concatenate([[0.0], samples["value"].to_numpy()])
    starts, ends = (values[np.searchsorted(times, at_us, side="right")] for at_us in np.array(spans).reshape(-1, 2).T)
    grown: list[float] = (ends - starts).tolist()
    return grown


def bytes_per_fetch(
    part: Part, client: str, kind: str, spans: Sequence[Slice], source: Source = "client"
) -> list[float]:
    """Return the bytes per fetch of ``kind`` full or incremental in each slice of time, NaN without such fetches."""
    fetches = growth(part, f"fetches_{kind}", client, spans, source)
    sent, received, records = (
        growth(part, f"fetch_{name}_bytes_{kind}", client, spans, source) for name in ("request", "response", "record")
    )
    return [
        (request + response - payload) / count if count > 0 else np.nan
        for count, request, response, payload in zip(fetches, sent, received, records, strict=True)
    ]


def broker_usage(part: Part) -> tuple[list[Slice], dict[str, dict[str, int]]]:
    """Return the steady phase, and each broker's CPU and network use in the steady phase; empty if unknown."""
    samples = part.events("broker_used")
    if len(samples) < 2:  # noqa: PLR2004 - a sample at each end
        return [], {}
    before, after = samples[:2]
    if before["brokers"].keys() != after["brokers"].keys():
        return [], {}
    usage = {
        broker: {name: count - before["brokers"][broker][name] for name, count in counts.items()}
        for broker, counts in after["brokers"].items()
    }
    return [Slice(before["t_us"], after["t_us"])], usage


def fetch_cpu_us(part: Part) -> tuple[Floats, Floats] | str:
    """Return the CPU time of a broker's request threads per fetch by round, with and without a fetch session.

    A round has a turn of each consumer and one in which both stand, whose CPU time is subtracted. A turn is measured
    from 1 s after its start to 1 s before its end. The first round is left out, in which the broker's code is compiled.
    Without a figure, the reason is returned.
    """
    samples = part.samples("broker.request_cpu_us")
    times_us, used_us = (samples[name].to_numpy().astype(float) for name in ("t_us", "value"))
    turns = {
        name: [Slice(row["start_us"] + 1_000_000, row["start_us"] + 9_000_000) for row in part.phases(name)][1:]
        for name in ("session", "full", "none")
    }
    if not len(times_us) or len({len(spans) for spans in turns.values()}) != 1:
        return "the CPU time of the broker's request threads was not sampled"
    ends = {name: np.array(spans, float).reshape(-1, 2) for name, spans in turns.items()}
    cpu_us = {name: np.diff(np.interp(each, times_us, used_us))[:, 0] for name, each in ends.items()}
    per_fetch = {}
    for kind, arm in _ARMS.items():
        fetches = np.array(growth(part, f"fetches_{kind}", f"readers/{arm}", turns[arm]))
        if not fetches.all():
            return f"in a turn the consumer '{arm}' made no {kind} fetch"
        per_fetch[kind] = (cpu_us[arm] - cpu_us["none"]) / fetches
    session, full = per_fetch[INCREMENTAL], per_fetch[FULL]
    if not len(full) or min(session.min(), full.min()) <= 0:
        return "in a turn the broker's request threads used no more than in none"
    return session, full


def threads_cpu(part: Part) -> Measured:
    """Measure the CPU time per fetch with a fetch session relative to without, by round."""
    if isinstance(cpu_us := fetch_cpu_us(part), str):
        return Measured(unknown("times"), doubt=cpu_us)
    session, full = cpu_us
    why = f"{session.mean():,.0f} us of CPU per fetch with sessions, {full.mean():,.0f} us without"
    return Measured(ratio(session, full), why)


def cpu_slope(parts: Sequence[Part], arm: int) -> Measured:
    """Report the CPU time that one more idle partition adds to a fetch, by round; ``arm`` 0 has a fetch session.

    Each size has a boot of its own, and rounds are paired by their number.
    """
    costs_ns = {}
    for size, part in zip(CPU_SIZES, parts, strict=True):
        if isinstance(cpu_us := fetch_cpu_us(part), str):
            return Measured(unknown("ns"), doubt=f"{size} partitions: {cpu_us}")
        costs_ns[size] = list(1000 * cpu_us[arm])
    rounds = min(map(len, costs_ns.values()))
    return Measured(slope({size: values[:rounds] for size, values in costs_ns.items()}, 0.95, "ns a partition"))


def followers(parts: Sequence[Part], name: str, per_unit: float, unit: str) -> Measured:
    """Measure the CPU or network use of brokers whose followers have fetch sessions, relative to without, by pair.

    ``parts`` has the launches of FOLLOWERS in order; a launch is the mean of its brokers.
    """
    used = []
    for part in parts:
        spans, brokers = broker_usage(part)
        if not brokers:
            doubt = f"the CPU and network use of the brokers was not recorded in {part.name}"
            return Measured(unknown("times"), doubt=doubt)
        duration_s = (spans[0].end_us - spans[0].start_us) / 1e6
        used.append(float(np.mean([usage[name] for usage in brokers.values()])) / duration_s / per_unit)
    session, full = np.array(used[::2]), np.array(used[1::2])
    why = f"a broker with fetch sessions {session.mean():,.1f} {unit}, without {full.mean():,.1f} {unit}"
    return Measured(ratio(session, full), why)


Event = Mapping[str, Any]


def regained(part: Part, fault: str, source: Source = "client", error: str = "") -> Measured:
    """Judge the longest time from the loss of a fetch session to the response of the next full fetch.

    Only fetch sessions lost after the start of the first fault are included, with ``error`` only those with this error.
    A lost session counts as not regained unless the client's next event with the same broker is the response to a full
    fetch.
    """
    since_us = min((window["start_us"] for window in part.proven(fault)), default=float("inf"))
    events, waits = _session_events(part, source), list[float | None]()
    for index, event in enumerate(events):
        if event["event"] == "lost" and event["t_us"] >= since_us and error in ("", event.get("error")):
            session = event["worker"], event["node_id"]
            later = (after for after in events[index + 1 :] if (after["worker"], after["node_id"]) == session)
            reply = next(later, None)
            answered = reply is not None and reply["event"] in ("established", "refused")
            waits.append((reply["t_us"] - event["t_us"]) / 1000 if reply and answered else None)
    answered_ms = [wait_ms for wait_ms in waits if wait_ms is not None]
    worst = max(answered_ms, default=None)
    late = len(waits) - sum(wait_ms <= ANSWERED_MS for wait_ms in answered_ms)
    why = f"{len(answered_ms)} of {len(waits)} lost sessions were followed by the response to a full fetch"
    return Measured(Estimate(worst, None, None, len(waits), "ms at most"), why, late)


def reopened(part: Part, fault: str, source: Source = "client") -> Measured:
    """Judge that each broker restart cost one full fetch, and that no fetch session was lost."""
    windows = part.proven(fault)
    starts_us = [window["start_us"] for name in (STRANGER, fault) for window in part.phases(name)]
    events, wrong = _session_events(part, source), list[int]()
    for window in windows:
        until_us = min((start_us for start_us in starts_us if start_us > window["start_us"]), default=float("inf"))
        after = [event["event"] for event in events if window["start_us"] <= event["t_us"] < until_us]
        granted, lost = (after.count(name) for name in ("established", "lost"))
        wrong.append(abs(granted - 1) + lost)
    ours = Estimate(max(wrong, default=0), None, None, len(windows), "surplus and lost sessions at the worst restart")
    why = f"{len(windows)} restarts; a restart should open one session and lose none"
    return Measured(ours, why, sum(map(bool, wrong)))


def sessions_left(part: Part) -> Measured:
    """Judge that brokers hold no fetch session of a client after the client has closed."""
    event = next(iter(part.events("fetch_sessions_left")), None)
    if event is None or event["left"] is None:
        why = "the brokers' fetch sessions are unknown: the brokers were not queried, or didn't respond"
        return Measured(Estimate(None, None, None, 0), doubt=why)
    remaining, reported = len(event["left"]), event["told"]
    why = f"{remaining} of {reported} sessions still exist at their brokers after the clients have closed"
    return Measured(Estimate(remaining, None, None, reported, "sessions"), why, remaining)


def disrupted(part: Part, fault: str, source: Source = "client") -> Measured:
    """Count the injections of ``fault`` after which a consumer found that its fetch session is gone."""
    lost_us = [event["t_us"] for event in _session_events(part, source) if event["event"] == "lost"]
    windows = part.proven(fault)
    hits = sum(any(row["start_us"] <= at_us <= row["end_us"] + DISRUPTED_US for at_us in lost_us) for row in windows)
    why = "a client needs no more than the number of a session, 31 bits that any response to its owner has, to close it"
    return Measured(Estimate(hits, None, None, len(windows), "sessions lost"), why, hits)


def cached(part: Part) -> Measured:
    """Report the sessions in the fullest cache of a broker, and the evictions, by the brokers' own metrics."""
    readings = [found for event in part.events("broker_metrics") for found in event["brokers"].values() if found]
    sizes = [int(found[_SESSIONS]) for found in readings if _SESSIONS in found]
    evicted = [sum(value for name, value in found.items() if name.endswith(_EVICTIONS)) for found in readings]
    lost = sum(event["event"] == "lost" for event in _session_events(part, "wire"))
    why = f"evictions since a broker's last start, at most {max(evicted, default=0):.0f}; clients lost {lost} sessions"
    return Measured(Estimate(max(sizes, default=None), None, None, len(sizes), "sessions at most"), why)


def _session_events(part: Part, source: Source) -> list[Event]:
    """Return what happened to fetch sessions in order of time; ``event`` is the name without what it is about."""
    prefix = "wire_session_" if source == "wire" else "session_"
    names = ("established", "refused", "lost", "reset", "closed")
    events = [{**event, "event": name} for name in names for event in part.events(f"{prefix}{name}")]
    return sorted(events, key=lambda event: int(event["t_us"]))


def costs(part: Part, kind: str, arm: str = "", source: Source = "client") -> dict[int, list[float]]:
    """Map the number of partitions in a fetch session to the bytes per fetch in each slice of time."""
    spans = steady_slices(part)
    return {size: bytes_per_fetch(part, f"p{size}/{arm or _ARMS[kind]}", kind, spans, source) for size in SIZES}


def slope(costs_by_size: Mapping[int, list[float]], confidence: float, unit: str = "B") -> Estimate:
    """Return what one more partition adds to the cost of a fetch, as the mean slope over slices of time or rounds."""
    sizes, rows = np.array([*costs_by_size], float), np.array([*costs_by_size.values()], float)
    offsets = sizes - sizes.mean()
    return _mean([float(offsets @ row / (offsets @ offsets)) for row in rows.T], unit, confidence)


def full_slope(part: Part) -> Measured:
    return Measured(slope(costs(part, FULL), 0.9))


def incremental_slope(part: Part) -> Measured:
    return Measured(slope(costs(part, INCREMENTAL), 0.95))


def wire_slope(part: Part, arm: str, kind: str) -> Measured:
    """Measure the slope of the bytes per fetch of a client, as the wire proxy counted them."""
    spans = steady_slices(part)
    counts = {
        name: sum(sum(growth(part, f"fetches_{name}", f"p{size}/{arm}", spans, "wire")) for size in SIZES)
        for name in (FULL, INCREMENTAL, "sessionless")
    }
    why = ", ".join(f"{count:.0f} {name} fetches" for name, count in counts.items())
    return Measured(slope(costs(part, kind, arm, "wire"), 0.95), f"on the wire: {why}")


def alike(part: Part) -> Measured:
    """Compare the bytes of an incremental fetch, as the wire proxy counts them and as the consumer does."""
    size = SIZES[-1]
    wire, own = (costs(part, INCREMENTAL, "reference", source)[size] for source in ("wire", "client"))
    return Measured(_ratio(wire, own, 0.9), f"mean {np.mean(wire):,.0f} B on the wire")


def share(part: Part) -> Measured:
    """Judge the bytes of an incremental fetch of a thousand partitions relative to a full fetch."""
    ours, theirs = (costs(part, kind)[SIZES[-1]] for kind in (INCREMENTAL, FULL))
    return Measured(_ratio(ours, theirs, 0.95))


def no_gain(part: Part) -> Measured:
    """Judge the control run, in which every partition has new records, so that a fetch session saves nothing."""
    spans = steady_slices(part)
    ours, theirs = (bytes_per_fetch(part, f"busy/{_ARMS[kind]}", kind, spans) for kind in (INCREMENTAL, FULL))
    return Measured(_ratio(ours, theirs, 0.9))


def largest(part: Part, kind: str) -> Measured:
    count = sum(growth(part, f"fetches_{kind}", f"p{SIZES[-1]}/{_ARMS[kind]}", steady_slices(part)))
    return Measured(
        _mean(costs(part, kind)[SIZES[-1]], "B", 0.95), f"mean of {count:.0f} fetches, without their records"
    )


def _ratio(ours: list[float], theirs: list[float], confidence: float) -> Estimate:
    return _mean([left / right for left, right in zip(ours, theirs, strict=True)], "times", confidence)


def _mean(values: list[float], unit: str, confidence: float) -> Estimate:
    if not np.isfinite(values).all():
        return Estimate(None, None, None, len(values), unit, confidence)
    return mean(values, unit, confidence)


_CPU = [f"cpu-{size}" for size in CPU_SIZES]
_LAUNCHES = [name for pair in FOLLOWERS for name in pair]
_NOTHING_LOST = ("lost", "duplicate", "skipped")
REGISTRATION = register(
    "kip227",
    {
        "full-slope": on_part(BYTES, full_slope),
        "incremental-slope": on_part(BYTES, incremental_slope),
        "incremental-slope-production": on_part(PRODUCTION, incremental_slope),
        "share": on_part(BYTES, share),
        "incremental-slope-java": on_part(CLIENTS, wire_slope, JAVA, INCREMENTAL),
        "full-slope-librdkafka": on_part(CLIENTS, wire_slope, LIBRDKAFKA, FULL),
        "wire": on_part(CLIENTS, alike),
        "closed-by-stranger": on_part(SESSIONS, regained, STRANGER),
        "closed-by-stranger-java": on_part(JAVA_SESSIONS, regained, STRANGER, "wire"),
        "cannot-disrupt": on_part(JAVA_SESSIONS, disrupted, STRANGER, "wire"),
        "restarted": on_part(SESSIONS, reopened, RESTART),
        "restarted-java": on_part(JAVA_SESSIONS, reopened, RESTART, "wire"),
        "repeated": on_part(REPEATED, regained, TWICE, "wire", INVALID_EPOCH),
        "nothing-lost-repeated": on_parts((REPEATED,), integrity, _NOTHING_LOST, (TWICE,)),
        "evicted": on_part(EVICTED, regained, BACK),
        "evicted-java": on_part(JAVA_EVICTED, regained, BACK, "wire"),
        "nothing-lost-sessions": on_parts((SESSIONS,), integrity, _NOTHING_LOST, (RESTART,)),
        "nothing-lost-evicted": on_parts((EVICTED,), integrity, _NOTHING_LOST, (BACK,)),
        "nothing-lost-sessions-java": on_parts((JAVA_SESSIONS,), integrity, _NOTHING_LOST, (RESTART,)),
        "nothing-lost-evicted-java": on_parts((JAVA_EVICTED,), integrity, _NOTHING_LOST, (BACK,)),
        "cached": on_part(JAVA_EVICTED, cached),
        "left-sessions": on_part(SESSIONS, sessions_left),
        "left-evicted": on_part(EVICTED, sessions_left),
        "left-sessions-java": on_part(JAVA_SESSIONS, sessions_left),
        "left-evicted-java": on_part(JAVA_EVICTED, sessions_left),
        "late-answers": on_part(BROKEN, regained, STRANGER),
        "late-answers-wire": on_part(BROKEN, regained, STRANGER, "wire"),
        "surplus-sessions": on_part(BROKEN, reopened, RESTART),
        "surplus-sessions-wire": on_part(BROKEN, reopened, RESTART, "wire"),
        "lost-records": on_parts((BROKEN,), integrity, _NOTHING_LOST, (RESTART,)),
        "left-by-dead": on_part(BROKEN, sessions_left),
        "no-gain": on_part(CONTROL, no_gain),
        "bytes-full": on_part(BYTES, largest, FULL),
        "bytes-incremental": on_part(BYTES, largest, INCREMENTAL),
        **{name: on_part(name, threads_cpu) for name in _CPU},
        "cpu-slope-session": on_parts(_CPU, cpu_slope, 0),
        "cpu-slope-full": on_parts(_CPU, cpu_slope, 1),
        "followers-bytes": on_parts(_LAUNCHES, followers, "sent_bytes", 1e3, "kB/s sent"),
        "followers-cpu": on_parts(_LAUNCHES, followers, "cpu_us", 1e4, "% of a core"),
    },
)


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return a chart of the bytes and the CPU time of a fetch over the number of partitions."""
    labels = {FULL: "no session: a fetch names all partitions", INCREMENTAL: "session: changed partitions only"}
    panels: dict[str, dict[str, dict[int, float]]] = {}
    if BYTES in parts:
        by_kind = {kind: costs(parts[BYTES], kind) for kind in labels}
        medians_b = {kind: {size: float(np.median(v)) for size, v in of.items()} for kind, of in by_kind.items()}
        panels["bytes of a fetch, without its records, 1 % of the partitions active"] = medians_b
    cpu_us = {size: fetch_cpu_us(parts[f"cpu-{size}"]) for size in sorted(CPU_SIZES) if f"cpu-{size}" in parts}
    if measured := {size: both for size, both in cpu_us.items() if not isinstance(both, str)}:
        panels["us of a broker's CPU time for a fetch, no partition active"] = {
            kind: {size: float(both[place].mean()) for size, both in measured.items()}
            for place, kind in enumerate((INCREMENTAL, FULL))
        }
    if not panels:
        return ()
    title = "Bytes and CPU time of a fetch over the number of partitions"
    texts = []
    with drawing(5.2, 0.9 + 1.9 * len(panels)) as figure:
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (name, lines) in zip(axes, panels.items(), strict=True):
            for (kind, label), (colour, dash) in zip(labels.items(), (LINES[1], LINES[0]), strict=True):
                sizes, values = zip(*lines[kind].items(), strict=True)
                axis.plot(sizes, values, color=colour, linestyle=dash, marker="o", markersize=4, label=label)
                axis.annotate(
                    f"{values[-1]:,.0f}", (sizes[-1], values[-1]), (6, 0), textcoords="offset points", va="center"
                )
                texts.append(f"{kind} fetch: {values[0]:,.0f} to {values[-1]:,.0f} {name.split()[0]}")
            plain(axis, name)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks(SIZES, [str(size) for size in SIZES])
            axis.yaxis.set_major_formatter("{x:,.10g}")
            axis.minorticks_off()
            axis.set_xlim(right=SIZES[-1] * 1.6)
        axes[-1].set_xlabel("partitions followed")
        legend(figure, axes[0], 1)
        svg = rendered(figure, "kip227-cost", title, "; ".join(texts))
    return (Plot(title, svg, f"From the fewest to the most partitions, {'; '.join(texts)}."),)
