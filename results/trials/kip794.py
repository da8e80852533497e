"""Claims of KIP-794 (strictly uniform sticky partitioner, adaptive draws) and of KIP-1123 (draws within the rack).

Published (KIP-794, its performance numbers): one broker of three is slow and 1 MB/s is offered: 0.84 MB/s and a p99 of
10 992 ms with the old sticky partitioner, against 214, 154 and 150 ms with uniform, adaptive and availability. With the
sticky partitioner, 46.8 of 65 MB went to the slow broker; with uniform, adaptive and availability 22.2, 19.2 and 17.4
of 66 MB. With 2 MB/s uniform saturates (1.85 MB/s, p99 2408 ms) and adaptive does not (167 ms; 14.9 MB of 65.7 to the
slow broker).

**One slow broker:** series 1 offers a rate that the cluster can bear if no queue runs away, series 2 one that it can't.
Shares are means over slices of 10 s, differences are paired by slice. A p99 is of all records of the fault, and its
interval comes from resampling whole slices. A record that found no room in the buffer within ``max.block.ms`` failed
before it had a partition: that distinguishes an exhausted buffer from a slow broker.

**Controls:** equal brokers, records with keys, and (KIP-1123) the rack. Shares of equal brokers count as even if they
differ by at most 10 points: a draw decides about nine records, so measuring a share of a third to within 1.5 points
would take some 2,700 draws, eight minutes at this rate. The key of a record follows from its number alone, so arms are
compared record by record. While a rack's broker is dead or returning, the location of its leaders is undefined: only
one statement covers that time.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from aftershock.results.evidence.files import read_lines
from aftershock.results.report.svg import LINES, drawing, legend, plain, rendered
from aftershock.results.trials.claim import Claim, Judge, Parts, proven
from aftershock.results.trials.kip794_placement import (
    NOWHERE,
    PARTITIONS,
    SLOW,
    THIRD,
    Placed,
    fair,
    farthest,
    placed,
    settled,
    shares,
    spans,
    whole,
)
from aftershock.results.trials.part import (
    SLICE_US,
    Floats,
    Part,
    Slice,
    drawn_again,
    mean,
    quantile,
    ratio,
    read_rows,
    slices,
    slope,
)
from aftershock.results.trials.statement import Estimate, Judged, Plot, Role, above, below, reported, seen, within
from aftershock.results.trials.traffic import SENT, by_broker

PART = "slow"
SERIES1, SERIES2 = "series1", "series2"
EVEN_POINTS = 1.5
HALF = 50
P99 = 0.99
P99_RATIO_MAX = 0.2


def of(part: Part, arm: str) -> Placed:
    """Return an arm's records."""
    return placed(part, f"orders/{arm}")


def _slow(part: Part, arm: str, fault: str) -> list[float]:
    """Return the slow broker's share of an arm's bytes, slice by slice."""
    return shares(of(part, arm), settled(part, fault), SLOW)


def runaway(parts: Parts) -> Judged:
    """Judge the old partitioner's share on the slow broker."""
    return above(mean(_slow(parts[PART], "sticky", SERIES1), "%"), HALF, no_effect=THIRD)


def rising(parts: Parts) -> Judged:
    """Judge that the median latency of the slow broker's records grows, slice by slice."""
    part = parts[PART]
    records = of(part, "sticky")
    return above(slope([_wait_ms(records.within(span)) for span in spans(part, SERIES1)], "ms a slice"), 0)


def _wait_ms(records: Placed) -> float:
    return quantile(records.latency_us[records.partition == SLOW], 0.5) / 1e3


def after_heal(parts: Parts) -> Judged:
    """Judge the slow broker's share of the bytes acknowledged in the slice after the heal."""
    part = parts[PART]
    records = of(part, "sticky")
    (window,) = part.phases(SERIES1)
    after = Slice(window["end_us"], window["end_us"] + SLICE_US)
    share = records.done_within(after).share(SLOW)
    why = f"with the backlog; of the records sent in that time {records.within(after).share(SLOW):.1f} %"
    return seen(share > HALF, Estimate(share, None, None, 1, "%"), why)


def even(parts: Parts) -> Judged:
    """Judge how far the shares of arm ``uniform`` are from a third; arm ``sticky`` sets the line of no effect."""
    part = parts[PART]
    records, within = of(part, "uniform"), settled(part, SERIES1)
    found, before = (farthest(each, within, 0.9) for each in (records, of(part, "sticky")))
    judged = below(_off(found), EVEN_POINTS, no_effect=_off(before).value or 0.0)
    return Judged(judged.ours, judged.word, f"{judged.why}; {turns(records.within(whole(within)))}")


def _off(share: Estimate) -> Estimate:
    """Return the absolute deviation of a share from a third."""
    if share.value is None or share.low is None or share.high is None:
        return share
    ends = [share.low - THIRD, share.high - THIRD]
    low = 0.0 if ends[0] < 0 < ends[1] else min(map(abs, ends))
    return Estimate(abs(share.value - THIRD), low, max(map(abs, ends)), share.n, "points", share.confidence)


def turns(records: Placed) -> str:
    """Describe the length of turns, which explains why bytes are distributed differently from draws."""
    where, lengths = records.turns()
    slow = where == SLOW
    if not slow.any() or slow.all():
        return f"{len(where)} turns"
    own = f"{100 * slow.mean():.1f} % of {len(where)} turns, of {lengths[slow].mean():.1f} records each"
    return f"the slow broker had {own}, the others' were of {lengths[~slow].mean():.1f}"


def even_draws(parts: Parts) -> Judged:
    """Judge whether arm ``uniform`` draws all partitions equally often."""
    return fair(of(parts[PART], "uniform"), settled(parts[PART], SERIES1))


def ordered(parts: Parts, fault: str) -> Judged:
    """Judge the slow broker's share minus the other brokers' mean share for arm ``adaptive``.

    The same difference of arm ``uniform`` is the line of no effect.
    """
    part = parts[PART]
    found, before = (mean(_ahead(part, arm, fault), "points") for arm in ("adaptive", "uniform"))
    judged = below(found, 0, no_effect=max(0.0, before.value or 0.0))
    lengths = turns(of(part, "adaptive").within(whole(settled(part, fault))))
    return Judged(judged.ours, judged.word, f"{judged.why}; {lengths}; with uniform {before.value or 0:+.1f} points")


def _ahead(part: Part, arm: str, fault: str) -> list[float]:
    return [share - (100 - share) / 2 for share in _slow(part, arm, fault)]


def less_than(parts: Parts, ours: str, theirs: str, fault: str) -> Judged:
    """Judge the slow broker's share in arm ``ours`` minus its share in arm ``theirs``."""
    part = parts[PART]
    pairs = zip(*(_slow(part, arm, fault) for arm in (ours, theirs)), strict=True)
    judged = below(mean([left - right for left, right in pairs], "points"), 0, no_effect=0)
    counted = part.counters(f"orders/{ours}", "produce").get("partitions_left_out", 0)
    note = f"; late brokers were left out {counted} times in the run" if counted else ""
    return Judged(judged.ours, judged.word, f"{judged.why}{note}")


def p99_ratio(parts: Parts, ours: str) -> Judged:
    """Judge an arm's p99 relative to the p99 of arm ``sticky``."""
    part = parts[PART]
    groups = [_latencies(part, arm, SERIES1) for arm in (ours, "sticky")]
    judged = below(drawn_again(groups, _ratio, "times", part.run.run_id), P99_RATIO_MAX)
    values = " / ".join(f"{quantile(np.concatenate(group), P99) / 1e3:.0f}" for group in groups)
    return Judged(judged.ours, judged.word, f"{values} ms; {judged.why}")


def p99(parts: Parts, fault: str, arm: str) -> Judged:
    """Report an arm's p99 and the share of its bytes that each broker got."""
    part = parts[PART]
    found = drawn_again([_latencies(part, arm, fault)], _p99_ms, "ms", part.run.run_id)
    records, within = of(part, arm), settled(part, fault)
    split = " / ".join(f"{mean(shares(records, within, partition), '%').value or 0:.1f}" for partition in PARTITIONS)
    return reported(found, f"{split} % of the bytes to each broker, the slow one first")


def _latencies(part: Part, arm: str, fault: str) -> list[Floats]:
    records = of(part, arm)
    return [records.within(span).latency_us for span in spans(part, fault)]


def _ratio(both: Sequence[Floats]) -> float | None:
    one, other = (quantile(each, P99) for each in both)
    return one / other if np.isfinite(one) and np.isfinite(other) else None


def _p99_ms(one: Sequence[Floats]) -> float | None:
    found = quantile(one[0], P99)
    return found / 1e3 if np.isfinite(found) else None


def exhausted(parts: Parts, arm: str, *, expected: bool) -> Judged:
    """Judge whether an arm ran out of buffer in series 2, as expected or not."""
    part = parts[PART]
    records = of(part, arm)
    refused = [_refused(records.within(span)) for span in spans(part, SERIES2)]
    if not refused:
        return seen(None, Estimate(None, None, None, 0, "%"), "the fault was shorter than a slice")
    ours = Estimate(refused[-1], None, None, len(refused), "%")
    first = next((number for number, share in enumerate(refused, 1) if share), None)
    when = "never" if first is None else f"first in slice {first} of {len(refused)}"
    why = f"records that found no room: {when}, {refused[-1]:.1f} % at last"
    return seen((first is not None) is expected, ours, why)


def _refused(records: Placed) -> float:
    """Return the percentage of records that failed because the buffer was full."""
    return 100 * float((~records.ok & (records.partition == NOWHERE)).mean())


ARMS = ("sticky", "uniform", "adaptive", "availability")
RACK, EQUAL = "rack", "equal"
MARGIN_POINTS = 10.0
"""Tolerance for a share of equal brokers."""


def equal_bytes(parts: Parts, arm: str) -> Judged:
    """Judge the broker share that deviates most from a third."""
    part = parts[PART]
    found = farthest(placed(part, f"orders/{arm}"), settled(part, EQUAL), 0.9)
    return within(found, THIRD - MARGIN_POINTS, THIRD + MARGIN_POINTS)


def unstable_bytes(parts: Parts) -> Judged:
    """Report the same for the old partitioner, which may overload any of the brokers."""
    found = farthest(placed(parts[PART], "orders/sticky"), settled(parts[PART], EQUAL), 0.9)
    return reported(found, "the share farthest from a third; its draws are even, but its queues are self-reinforcing")


def equal_draws(parts: Parts, arm: str) -> Judged:
    """Judge whether all of several equally fast brokers are drawn equally often."""
    part = parts[PART]
    return fair(placed(part, f"orders/{arm}"), settled(part, EQUAL))


def batches(parts: Parts) -> Judged:
    """Judge bytes on the wire per record, uniform relative to sticky: batch and request headers differ."""
    part = parts[PART]
    spans = settled(part, EQUAL)
    uniform, sticky = (_wire(part, arm, spans) for arm in ("uniform", "sticky"))
    judged = below(ratio(uniform, sticky), 1)
    return Judged(
        judged.ours, judged.word, f"{uniform.mean():.0f} / {sticky.mean():.0f} bytes per record; {judged.why}"
    )


def _wire(part: Part, arm: str, spans: Sequence[Slice]) -> Floats:
    """Return the bytes per record that a producer sent to all brokers, in each slice."""
    sent = by_broker(part, SENT, "a", f"orders-{arm}-produce", spans)
    totals: Floats = np.sum(list(sent.values()), axis=0)
    records = placed(part, f"orders/{arm}")
    counts: Floats = np.array([max(1.0, len(records.within(span).seq)) for span in spans])
    return np.divide(totals, counts)


def keyed(parts: Parts) -> Judged:
    """Judge that a record has the same partition in all arms, ignoring records that failed without a partition."""
    arms = (*ARMS, "librdkafka")
    found = [placed(parts[RACK], f"keyed/{arm}") for arm in arms]
    places = [dict(zip(each.seq[each.ok].tolist(), each.partition[each.ok].tolist(), strict=True)) for each in found]
    both = sorted(set.intersection(*(set(each) for each in places)))
    unlike = sum(len({place[seq] for place in places}) > 1 for seq in both)
    ours = Estimate(unlike, None, None, len(both), "records")
    return seen(
        unlike == 0, ours, f"{unlike} of {len(both)} records are in another partition in one of {len(arms)} arms"
    )


def near(parts: Parts) -> Judged:
    """Judge the records sent while the rack's broker led: before it was killed, and after it leads again."""
    part = parts[RACK]
    records, home = placed(part, "orders/near"), _near_partition(part)
    spans = [_phase(part, "steady"), _home(part)]
    found = [records.within(span) for span in spans]
    out = sum(int((each.partition[each.ok] != home).sum()) for each in found)
    total = sum(int(each.ok.sum()) for each in found)
    ours = Estimate(100 * out / total if total else None, None, None, len(spans), "% outside")
    why = f"{out} of {total} records left the rack while it led; {_others(part, spans, home)}"
    return seen(out == 0 if total else None, ours, why)


def _others(part: Part, spans: Sequence[Slice], home: int) -> str:
    """Return the share of the producer without the setting; it proves that records could leave the rack."""
    records = placed(part, "orders/anywhere")
    outside = [100 - records.within(span).share(home) for span in spans]
    return f"without the setting {min(outside):.0f} to {max(outside):.0f} % of the bytes did"


def away(parts: Parts) -> Judged:
    """Judge the records sent from five seconds after the kill, when another broker leads, until the restart."""
    part = parts[RACK]
    (gone,) = part.phases("gone")
    until_us = _healing_us(part)
    records = placed(part, "orders/near").within(Slice(gone["start_us"] + 5_000_000, until_us))
    failed = int((~records.ok).sum())
    elsewhere = len(set(records.partition[records.ok].tolist()))
    ours = Estimate(100 * float(records.ok.mean()) if len(records.ok) else None, None, None, 1, "% ok")
    why = f"{failed} of {len(records.ok)} records failed, the others went to {elsewhere} partitions"
    return seen(failed == 0 and elsewhere > 1 if len(records.ok) else None, ours, why)


def _near_partition(part: Part) -> int:
    """Return the partition whose preferred leader is the rack's broker."""
    topic = next(topic for topic in part.run.run["topics"] if topic["name"] == "orders")
    return next(int(number) for number, replicas in topic["assignment"].items() if replicas[0] == 1)


def _phase(part: Part, name: str) -> Slice:
    row = next(row for row in _phases(part) if row["name"] == name)
    return Slice(row["start_us"], row["end_us"])


def _home(part: Part) -> Slice:
    """Return the span from the end of the election's window (``timing.fault`` long) to the end of the load."""
    (elected,) = part.phases("home")
    return Slice(elected["end_us"], max(row["end_us"] for row in _phases(part)))


def _healing_us(part: Part) -> int:
    lines = read_lines(part.home / "journal.jsonl")
    return next(int(line["t_us"]) for line in lines if (line["fault"], line["state"]) == ("gone", "healing"))


def _phases(part: Part) -> list[dict[str, Any]]:
    return read_rows(part.home / "phases.json")


_SIZE = (8.5, 3.2)
_BIN_US = 5_000_000
_BEFORE_US, _AFTER_US = 5_000_000, 12_000_000


def plots(parts: Parts) -> tuple[Plot, ...]:
    """Return a chart per series."""
    part = parts.get(PART)
    return () if part is None else tuple(_plot(part, fault) for fault in (SERIES1, SERIES2))


def _plot(part: Part, name: str) -> Plot:
    (window,) = part.phases(name)
    spans = slices(window["start_us"] - _BEFORE_US, window["end_us"] + _AFTER_US, _BIN_US)
    found = {arm: of(part, arm) for arm in ARMS}
    sentence = _reading(found, Slice(window["start_us"], window["end_us"]))
    with drawing(*_SIZE) as figure:
        left, right = figure.subplots(1, 2)
        for number, (arm, records) in enumerate(found.items()):
            seen = [records.within(span) for span in spans]
            _line(left, number, arm, spans, [each.share(SLOW) for each in seen])
            _line(right, number, arm, spans, [_plotted_p99_ms(each) for each in seen])
        _finish(left, window, "bytes to the slow broker, %")
        left.axhline(THIRD, linewidth=0.6, linestyle=":", color="#808080")
        left.set_ylim(0, 100)
        _finish(right, window, "p99 of produce latency, ms")
        right.set_yscale("log")
        legend(figure, left, len(found))
        svg = rendered(figure, f"kip794-{name}", f"KIP-794, {name}", sentence)
    return Plot(f"{name}: distribution of bytes, and latency", svg, sentence)


def _line(axis: Axes, number: int, arm: str, spans: Sequence[Slice], values: Sequence[float]) -> None:
    colour, dash = LINES[number]
    middles_s = [(span.start_us + span.end_us) / 2e6 for span in spans]
    axis.plot(middles_s, values, color=colour, linestyle=dash, linewidth=1.3, label=arm)


def _finish(axis: Axes, window: dict[str, int], title: str) -> None:
    plain(axis, title)
    axis.axvspan(window["start_us"] / 1e6, window["end_us"] / 1e6, color="#fd8d3c", alpha=0.12, linewidth=0)
    axis.set_xlabel("s of the run")


def _plotted_p99_ms(records: Placed) -> float:
    """Return the p99 in ms, NaN (a hole in the line) if nothing was sent or the p99 failed."""
    found = quantile(records.latency_us, P99) / 1e3 if len(records.latency_us) else np.inf
    return found if np.isfinite(found) else np.nan


def _reading(found: dict[str, Placed], window: Slice) -> str:
    shares = ", ".join(f"{arm} {records.within(window).share(SLOW):.0f} %" for arm, records in found.items())
    slow = f"While it was slow (the band) the broker got, by partitioner: {shares} of the bytes; the dots are a third."
    return f"{slow} A line ends where its p99 failed."


_P99_MS = {
    SERIES1: {"sticky": "10 992 ms", "uniform": "214 ms", "adaptive": "154 ms", "availability": "150 ms"},
    SERIES2: {"uniform": "2408 ms", "adaptive": "167 ms"},
}


def _slow_claim(
    name: str, claim: str, published: str, bound: str, judge: Judge, fault: str, role: Role = "claim"
) -> Claim:
    return Claim(name, claim, published, bound, role, (PART,), proven(judge, PART, fault))


def _control(name: str, claim: str, bound: str, judge: Judge, role: Role = "control") -> Claim:
    return _slow_claim(name, claim, "-", bound, judge, EQUAL, role)


def _rack(name: str, claim: str, bound: str, judge: Judge, *faults: str, role: Role = "claim") -> Claim:
    return Claim(name, claim, "-", bound, role, (RACK,), proven(judge, RACK, *faults))


CLAIMS = (
    _slow_claim("sticky-runs-away", "sticky: most bytes go to the slow broker", "72 %", "above 50 %", runaway, SERIES1),
    _slow_claim("sticky-rises", "sticky: the slow broker's queue only grows", "-", "slope above 0", rising, SERIES1),
    _slow_claim("sticky-after-heal", "sticky: still skewed after the heal", "-", "above 50 %", after_heal, SERIES1),
    _slow_claim("uniform-bytes", "uniform: a third of the bytes to each", "33.6 %", "± 1.5 points", even, SERIES1),
    _slow_claim("uniform-draws", "uniform: each broker is drawn equally often", "-", "p ≥ 0.01", even_draws, SERIES1),
    _slow_claim(
        "adaptive-less",
        "adaptive: the slow broker gets less than with uniform",
        "-4.5 points",
        "below 0",
        partial(less_than, ours="adaptive", theirs="uniform", fault=SERIES1),
        SERIES1,
    ),
    *(
        _slow_claim(
            f"adaptive-order-{fault}",
            f"{fault}, adaptive: the slow broker gets less than the others",
            published,
            "below 0",
            partial(ordered, fault=fault),
            fault,
        )
        for fault, published in ((SERIES1, "-6.4 points"), (SERIES2, "-16.0 points"))
    ),
    *(
        _slow_claim(
            f"availability-{fault}",
            f"{fault}, availability: the slow broker is left out, and gets less than with adaptive",
            published,
            "below 0",
            partial(less_than, ours="availability", theirs="adaptive", fault=fault),
            fault,
        )
        for fault, published in ((SERIES1, "-2.8 points"), (SERIES2, "-"))
    ),
    _slow_claim(
        "p99", "p99, adaptive relative to sticky", "0.014", "below 0.2", partial(p99_ratio, ours="adaptive"), SERIES1
    ),
    _slow_claim(
        "uniform-saturates",
        "series 2: uniform runs out of buffer",
        "1.85 of 2 MB/s",
        "some refused",
        partial(exhausted, arm="uniform", expected=True),
        SERIES2,
    ),
    _slow_claim(
        "adaptive-bears",
        "series 2: adaptive does not run out of buffer",
        "2 of 2 MB/s",
        "none refused",
        partial(exhausted, arm="adaptive", expected=False),
        SERIES2,
    ),
    _control("batches", "uniform batches better than sticky at linger 0", "below 1", batches, "claim"),
    _rack("rack-near", "KIP-1123: while the rack leads, no record leaves it", "none outside", near, "home"),
    _rack("rack-away", "KIP-1123: when the rack doesn't lead, records go elsewhere", "all delivered", away, "gone"),
    *(
        _control(f"equal-draws-{arm}", f"equal brokers: {arm} draws each equally often", "p ≥ 0.01", judge)
        for arm, judge in ((arm, partial(equal_draws, arm=arm)) for arm in ("uniform", "sticky"))
    ),
    *(
        _control(f"equal-bytes-{arm}", f"equal brokers: {arm} spreads bytes evenly", "± 10 points", judge)
        for arm, judge in ((arm, partial(equal_bytes, arm=arm)) for arm in ARMS[1:])
    ),
    _rack("keyed", "a key's partition is the same in all arms and in librdkafka", "all", keyed, role="control"),
    _control("equal-bytes-sticky", "equal brokers: sticky's share farthest from a third", "", unstable_bytes, "report"),
    *(
        _slow_claim(f"p99-{arm}-{fault}", f"{fault}: p99 of {arm}", published, "", judge, fault, "report")
        for fault, found in _P99_MS.items()
        for arm, published, judge in (
            (arm, published, partial(p99, fault=fault, arm=arm)) for arm, published in found.items()
        )
    ),
)
