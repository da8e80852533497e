"""Sentences below the charts (the most notable observation of each chart), and confidence bands of SLO checks.

A confidence band covers sampling error only; its ends are the order statistics between which a quantile lies. Only SLOs
on a latency quantile have a confidence band, because a count has no sampling error, and a gap or a recovery is a single
event.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aftershock.results.evidence.phases import RUN
from aftershock.results.explain.events import listed
from aftershock.results.model.check import Check
from aftershock.results.model.text import milliseconds

CONFIDENCE = 0.95
SLO_QUANTILE = re.compile(r"slo/(?P<metric>[a-z]+\.(?:latency|service))-p(?P<q>\d+(?:\.\d+)?)(?:-(?P<rest>.+))?")
_NOTABLE = 1.5

Key = tuple[str, str, str]
Labels = Mapping[str, str]
Rows = Sequence[Mapping[str, Any]]


def confidences(analysis: Mapping[str, Any], labels: Labels) -> Mapping[Key, list[Mapping[str, Any]]]:
    """Map (metric, client, window) to confidence bands of quantiles; none if an older version judged the run."""
    return {
        (row["metric"], labels.get(row["client"], row["client"]), row["window"]): row.get("bands", [])
        for row in analysis["distributions"]
    }


def band_of(check: Check, bands: Mapping[Key, list[Mapping[str, Any]]]) -> str:
    """Format the confidence band of an SLO check, as ``38 to 45.1 ms``, or ``from 38 ms`` without an upper end."""
    slo = SLO_QUANTILE.fullmatch(check.id)
    if not slo:
        return ""
    rest = slo["rest"] or ""
    # an SLO for each slot or subject has another quantile than its window
    window = "" if rest.startswith("every") or "each-" in rest else check.phase or RUN
    for row in bands.get((slo["metric"], check.subject, window), ()):
        if math.isclose(row["q"], float(slo["q"]) / 100) and row["confidence"] == CONFIDENCE:
            if row["low_us"] is None:
                return ""
            low, high_us = milliseconds(row["low_us"]), row["high_us"]
            return f"from {low} ms" if high_us is None else f"{low} to {milliseconds(high_us)} ms"
    return ""


def over_time(analysis: Mapping[str, Any], metric: str, labels: Labels, faults: Sequence[str]) -> str:
    """Describe latency over time, as in ``p99 of arm=a is 3.1 x its value in steady during kill-1, and it ..``."""
    failed = [
        f"{row['censored']} of {row['n']} records of {labels.get(row['client'], row['client'])}"
        for row in analysis["distributions"]
        if (row["metric"], row["window"]) == (metric, RUN) and row["censored"]
    ]
    failures = f" These records never succeeded: {listed(failed)}." if failed else ""
    ratios = _p99_ratios(analysis, metric, labels, {f"fault/{fault}": fault for fault in faults})
    if not ratios:
        return f"No fault has a p99 that can be compared with that of the steady phase.{failures}"
    ratio, client, fault, _ = max(ratios)
    if ratio < _NOTABLE:
        return (
            f"No fault has a visible effect on the p99 latency, which is at most {ratio:.2g} x its value in steady "
            f"({labels[client]}, {fault}).{failures}"
        )
    recovery = ""
    rows = [row for row in analysis["recoveries"] if (row["client"], row["fault"]) == (client, fault)]
    if metric == "produce.latency" and rows:  # recovery is measured for producers only
        after_us = rows[0]["recovered_us"]
        lasting = rows[0].get("definition", 1) > 1
        again = "is normal again" if lasting else "recovers"
        never = "is not normal again before the next fault" if lasting else "does not recover"
        recovers = never if after_us is None else f"{again} {after_us / 1e6:.3g} s after inject"
        recovery = f", and the client {recovers}"
    return f"p99 of {labels[client]} is {ratio:.3g} x its value in steady during {fault}{recovery}.{failures}"


def _p99_ratios(
    analysis: Mapping[str, Any], metric: str, labels: Labels, windows: Mapping[str, str]
) -> list[tuple[float, str, str, int]]:
    """Return (p99 / p99 of the steady phase, client, window, p99 in us) for each client and window with both p99."""
    p99s = {
        (row["client"], row["window"]): row["at"].get("0.99")
        for row in analysis["distributions"]
        if row["metric"] == metric
    }
    return [
        (during / steady, client, name, during)
        for client in labels
        for window, name in windows.items()
        if (steady := p99s.get((client, "steady"))) and (during := p99s.get((client, window)))
    ]


def spectrum(analysis: Mapping[str, Any], metric: str, labels: Labels) -> str:
    """Describe the spectrum, as in ``During faults 1 in 100 records of arm=a takes 3585 ms or longer, 12 x ..``."""
    ratios = _p99_ratios(analysis, metric, labels, {"fault": ""})
    if not ratios:
        return ""
    ratio, client, _, during_us = max(ratios)
    times = f"{ratio:.3g} x" if ratio >= _NOTABLE else "about"
    return (
        f"During faults 1 in 100 records of {labels[client]} takes {milliseconds(during_us)} ms or longer, "
        f"{times} as long as in steady."
    )


def lag(rows: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """Describe the lag, as in ``arm=a has the largest lag at 52 s (210 records, the oldest 3.2 s old); its ..``."""
    samples = [(second[1], label, second) for label, seconds in rows.items() for second in seconds]
    if not samples or not max(samples)[0]:
        return "No consumer had any lag at the end of a second."
    records, label, (at_us, _, oldest_us) = max(samples, key=lambda sample: sample[0])
    end_us = next((second[0] for second in rows[label] if second[0] > at_us and not second[1]), None)
    end = f"the lag is zero again at {end_us / 1e6:.0f} s" if end_us is not None else "the lag never returns to zero"
    age = f"the oldest {(oldest_us or 0) / 1e6:.3g} s old"
    return f"{label} has the largest lag at {at_us / 1e6:.0f} s: {records} records, {age}; {end}."


def stable_offsets(rows: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """Describe how far readers of committed records were behind, as in ``readers of the transactions of arm=a …``."""
    age_us, label, at_us = max((second[2], label, second[0]) for label, seconds in rows.items() for second in seconds)
    if not age_us:
        return "Readers of committed records were never behind at a sample."
    who = f"Readers of the transactions of {label}"
    return f"{who} were behind by at most {age_us / 1e6:.3g} s, at {at_us / 1e6:.0f} s."


def racks(flows: Rows, labels: Labels) -> str:
    """Describe traffic between racks, as in ``64 % of the bytes crossed from one rack to another; the ..``."""
    known = [row for row in flows if row["client_rack"] and row["broker_rack"]]
    total = sum(row["bytes"] for row in known)
    if not total:
        return "No traffic has both a known client rack and a known broker rack."
    crossed = sum(row["bytes"] for row in known if row["client_rack"] != row["broker_rack"])
    share = f"{100 * crossed / total:.0f} % of the bytes with known racks crossed from one rack to another"
    timed = [row for row in known if row["p99_us"] is not None]
    if not timed:
        return f"{share}."
    slow = max(timed, key=lambda row: row["p99_us"])
    pair = f"{slow['client_rack']} to {slow['broker_rack']} ({labels.get(slow['client'], slow['client'])} {slow['op']})"
    return f"{share}; the slowest pair is {pair}: p99 {milliseconds(slow['p99_us'])} ms."


def perf(rows: Rows) -> str:
    """Compare latency definitions, as in ``kafka-producer-perf-test would report p99 39 ms for arm=a; from the ..``."""
    hidden = [row for row in rows if row["intended"].get("0.99", 0) is None and row["perf"]["0.99"]]
    if hidden:
        figure = f"p99 {milliseconds(hidden[0]['perf']['0.99'])} ms for {hidden[0]['client']}"
        return (
            f"kafka-producer-perf-test would report {figure}, because the tool leaves out failed records, "
            "which are more than 1 in 100 here."
        )
    ratios = [(row["intended"]["0.99"] / row["perf"]["0.99"], row) for row in rows if row["intended"].get("0.99")]
    if not ratios:
        return ""
    ratio, row = max(ratios, key=lambda pair: pair[0])
    intended, perf_test = milliseconds(row["intended"]["0.99"]), milliseconds(row["perf"]["0.99"])
    if ratio < _NOTABLE:
        both = intended if intended == perf_test else f"{intended} and {perf_test}"
        return f"Both definitions of latency agree here: p99 of {row['client']} is {both} ms."
    return (
        f"kafka-producer-perf-test would report p99 {perf_test} ms for {row['client']}; "
        f"from the intended send time p99 is {intended} ms, {ratio:.3g} x as long."
    )


def forest(verdicts: Sequence[str]) -> str:
    """Describe the forest plot by the number of comparisons with each verdict."""
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    return f"Comparisons: {counts}. A confidence interval that contains 1 proves neither a difference nor equality."


def ownership(rebalances: Rows, ownerless_us: int = 0) -> str:
    """Return a sentence about a group's rebalances and its longest wait without a delivering owner."""
    parts = ["The group did not rebalance"]
    if rebalances:
        longest_s = max(row["end_us"] - row["start_us"] for row in rebalances) / 1e6
        parts = [f"{len(rebalances)} rebalances, the longest took {longest_s:.1f} s"]
    kept = [row["kept_us"] for row in rebalances if row["kept_us"] is not None]
    again = sum(change["again"] for row in rebalances for change in row["moved"])
    parts += [f"a record waited up to {ownerless_us / 1e6:.1f} s without a delivering owner"] if ownerless_us else []
    parts += [f"partitions that kept their owner stood still for up to {max(kept) / 1e6:.1f} s"] if kept else []
    parts += [f"{again} records were delivered again"] if again else []
    return "; ".join(parts) + "."
