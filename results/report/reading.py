"""The confidence band of a check's quantile, as far as drawing samples goes: between which order statistics it lies.

Only of SLOs on a quantile of latency: a count has no band, and a gap or a recovery is one event, not a sample.

How to read each chart, in a sentence from the data at hand: what stands out in it, with its figures.

Rules: a sentence says only what the measurements do; where they say nothing of note there is none.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aftershock.results.checks.check import Check
from aftershock.results.evidence.phases import RUN
from aftershock.results.explain.events import listed
from aftershock.results.text import milliseconds

CONFIDENCE = 0.95
_QUANTILE = re.compile(r"slo/(?P<metric>[a-z]+\.(?:latency|service))-p(?P<q>\d+(?:\.\d+)?)(?:-(?P<rest>.+))?")

Key = tuple[str, str, str]


def confidences(analysis: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[Key, list[Mapping[str, Any]]]:
    """The bands by (metric, client's label, window); empty where an older version judged the run."""
    return {
        (row["metric"], labels.get(row["client"], row["client"]), row["window"]): row.get("bands", [])
        for row in analysis["distributions"]
    }


def band_of(check: Check, bands: Mapping[Key, list[Mapping[str, Any]]]) -> str:
    """``38 to 45.1 ms``; ``from 38 ms`` where its upper end is censored; nothing where none is known."""
    slo = _QUANTILE.fullmatch(check.id)
    if not slo:
        return ""
    rows = bands.get((slo["metric"], check.subject, _window(check, slo["rest"] or "")), ())
    for row in rows:
        if math.isclose(row["q"], float(slo["q"]) / 100) and row["confidence"] == CONFIDENCE:
            return _said(row["low_us"], row["high_us"])
    return ""


def _window(check: Check, rest: str) -> str:
    """The check's window; none for one that is cut further, whose quantile is another."""
    return "" if rest.startswith("every") or "each-" in rest else check.phase or RUN


def _said(low_us: int | None, high_us: int | None) -> str:
    if low_us is None:
        return ""
    low = milliseconds(low_us)
    return f"from {low} ms" if high_us is None else f"{low} to {milliseconds(high_us)} ms"


Labels = Mapping[str, str]
Rows = Sequence[Mapping[str, Any]]

_NOTABLE = 1.5


def over_time(analysis: Mapping[str, Any], metric: str, labels: Labels, faults: Sequence[str]) -> str:
    """``p99 of arm=a is 3.1 x that of steady during kill-1 and calm again 2.4 s after its inject``."""
    seen = {(row["client"], row["window"]): row for row in analysis["distributions"] if row["metric"] == metric}
    lost = _never_succeeded(seen, labels)
    found = [(ratio, *which) for which in _pairs(labels, faults) if (ratio := _ratio(seen, *which)) is not None]
    if not found:
        return f"There is no fault's window to hold against steady.{lost}"
    ratio, client, fault = max(found)
    who = labels[client]
    if ratio < _NOTABLE:
        return f"No fault shows in p99: the most is {ratio:.2g} x that of steady ({who}, {fault}).{lost}"
    return f"p99 of {who} is {ratio:.3g} x that of steady during {fault}{_calm(analysis, metric, client, fault)}.{lost}"


def _never_succeeded(seen: Mapping[tuple[str, str], Mapping[str, Any]], labels: Labels) -> str:
    failed = [(key, row) for (key, window), row in seen.items() if window == "run" and row["censored"]]
    if not failed:
        return ""
    counts = [f"{row['censored']} of {row['n']} of {labels.get(key, key)}" for key, row in failed]
    return f" Never succeeded: {listed(counts)}."


def _pairs(labels: Labels, faults: Sequence[str]) -> list[tuple[str, str]]:
    return [(client, fault) for client in labels for fault in faults]


def _ratio(seen: Mapping[tuple[str, str], Mapping[str, Any]], client: str, fault: str) -> float | None:
    steady, struck = (_q(seen.get((client, window)), "0.99") for window in ("steady", f"fault/{fault}"))
    return struck / steady if steady and struck else None


def _q(row: Mapping[str, Any] | None, q: str) -> int | None:
    value: int | None = row["at"].get(q) if row else None
    return value


def _calm(analysis: Mapping[str, Any], metric: str, client: str, fault: str) -> str:
    """Recovery is measured of producers."""
    if metric != "produce.latency":
        return ""
    rows = [row for row in analysis["recoveries"] if (row["client"], row["fault"]) == (client, fault)]
    if not rows:
        return ""
    after_us = rows[0]["recovered_us"]
    return " and does not recover" if after_us is None else f", calm {after_us / 1e6:.3g} s after its inject"


def spectrum(analysis: Mapping[str, Any], metric: str, labels: Labels) -> str:
    """``In fault 1 in 100 of arm=a takes 3585 ms or longer, 12 x as long as in steady``."""
    seen = {(row["client"], row["window"]): row for row in analysis["distributions"] if row["metric"] == metric}
    pairs = [
        (client, _q(seen.get((client, "steady")), "0.99"), _q(seen.get((client, "fault")), "0.99")) for client in labels
    ]
    known = [(after / before, client, after) for client, before, after in pairs if before and after]
    if not known:
        return ""
    ratio, client, after_us = max(known)
    much = f"{ratio:.3g} x as long as in steady" if ratio >= _NOTABLE else "much as in steady"
    return f"In fault 1 in 100 of {labels[client]} takes {milliseconds(after_us)} ms or longer, {much}."


def lag(rows: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """``arm=a was furthest behind at 52 s: 210 records, the oldest 3.2 s old; it had none left at 58 s``."""
    worst = [(second[1], label, second) for label, seconds in rows.items() for second in seconds]
    if not worst or not max(worst)[0]:
        return "No reader was behind at the end of any second."
    records, label, (at_us, _, oldest_us) = max(worst, key=lambda one: one[0])
    after = next((second[0] for second in rows[label] if second[0] > at_us and not second[1]), None)
    ended = f"; it had none left at {after / 1e6:.0f} s" if after is not None else "; it was never without any again"
    age = f", the oldest {(oldest_us or 0) / 1e6:.3g} s old"
    return f"{label} was furthest behind at {at_us / 1e6:.0f} s: {records} records{age}{ended}."


def racks(flows: Rows, labels: Labels) -> str:
    """``64 % of the bytes crossed from one rack to another; the slowest pair is a to c of arm=a: p99 91 ms``."""
    known = [row for row in flows if row["client_rack"] and row["broker_rack"]]
    total = sum(row["bytes"] for row in known)
    if not total:
        return "No row tells both its racks."
    crossed = sum(row["bytes"] for row in known if row["client_rack"] != row["broker_rack"])
    said = f"{100 * crossed / total:.0f} % of the bytes whose racks are known crossed from one rack to another"
    timed = [row for row in known if row["p99_us"] is not None]
    if not timed:
        return f"{said}."
    slow = max(timed, key=lambda row: row["p99_us"])
    pair = f"{slow['client_rack']} to {slow['broker_rack']} ({labels.get(slow['client'], slow['client'])} {slow['op']})"
    return f"{said}; the slowest pair is {pair}: p99 {milliseconds(slow['p99_us'])} ms."


def perf(rows: Sequence[Mapping[str, Any]]) -> str:
    """``kafka-producer-perf-test would say p99 39 ms of arm=a; from when its records were wanted it is 3100 ms``."""
    hidden = [row for row in rows if row["intended"].get("0.99", 0) is None and row["perf"]["0.99"]]
    if hidden:
        said = f"p99 {milliseconds(hidden[0]['perf']['0.99'])} ms of {hidden[0]['client']}"
        return (
            f"kafka-producer-perf-test would say {said}: more than 1 in 100 of its records failed, which it leaves out."
        )
    told = [(row["intended"]["0.99"] / row["perf"]["0.99"], row) for row in rows if row["intended"].get("0.99")]
    if not told:
        return ""
    ratio, row = max(told, key=lambda one: one[0])
    ours, theirs = row["intended"]["0.99"], row["perf"]["0.99"]
    if ratio < _NOTABLE:
        both = f"{milliseconds(ours)} or {milliseconds(theirs)} ms"
        return f"Both ways of counting agree here: p99 of {row['client']} is {both}."
    return (
        f"kafka-producer-perf-test would say p99 {milliseconds(theirs)} ms of {row['client']}; "
        f"from when its records were wanted it is {milliseconds(ours)} ms, {ratio:.3g} x as long."
    )


def forest(verdicts: Sequence[tuple[str, str]]) -> str:
    """``1 improved: a / b p99; 2 inconclusive: an interval that holds 1 proves no difference, and no equality``."""
    counts = dict.fromkeys(verdict for _, verdict in verdicts)
    said = [f"{sum(one == verdict for _, one in verdicts)} {verdict}" for verdict in counts]
    return f"{', '.join(said)}. An interval that holds 1 proves no difference, and no equality either."
