"""KIP-794 with one slow broker: series 1, which can be borne where nobody runs away, and series 2, which can't.

Rules. Shares are means over slices of 10 s, differences are paired by slice. A p99 is of all records of the fault, and
its interval comes from drawing whole slices again. What found no room in the buffer within ``max.block.ms`` failed
before it had a partition: that is how an exhausted buffer is told from a slow broker.
"""

from collections.abc import Sequence

import numpy as np

from aftershock.results.trials.claim import Parts
from aftershock.results.trials.part import Part
from aftershock.results.trials.placed import NOWHERE, Placed, placed, shares
from aftershock.results.trials.slices import SLICE_US, Floats, Slice, drawn_again, mean, quantile, slope
from aftershock.results.trials.spread import PARTITIONS, SLOW, THIRD, fair, farthest, settled, spans, whole
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import above, below, reported, seen

PART = "slow"
SERIES1, SERIES2 = "series1", "series2"
EVEN_POINTS = 1.5
HALF = 50
P99 = 0.99
P99_RATIO_MAX = 0.2


def of(part: Part, arm: str) -> Placed:
    """An arm's records."""
    return placed(part, f"orders/{arm}")


def _slow(part: Part, arm: str, fault: str) -> list[float]:
    """The slow broker's share of an arm's bytes, slice by slice."""
    return shares(of(part, arm), settled(part, fault), SLOW)


def runaway(parts: Parts) -> Judged:
    """The old partitioner's share on the slow broker."""
    return above(mean(_slow(parts[PART], "sticky", SERIES1), "%"), HALF, no_effect=THIRD)


def rising(parts: Parts) -> Judged:
    """What the queue there costs: the median time of the slow broker's records, slice by slice."""
    part = parts[PART]
    records = of(part, "sticky")
    return above(slope([_wait_ms(records.within(span)) for span in spans(part, SERIES1)], "ms a slice"), 0)


def _wait_ms(records: Placed) -> float:
    return quantile(records.latency_us[records.partition == SLOW], 0.5) / 1e3


def after_heal(parts: Parts) -> Judged:
    """The slow broker's share of what was acknowledged in the slice after the heal."""
    part = parts[PART]
    records = of(part, "sticky")
    (window,) = part.phases(SERIES1)
    after = Slice(window["end_us"], window["end_us"] + SLICE_US)
    share = records.done_within(after).share(SLOW)
    told = f"with the backlog; of the records sent then {records.within(after).share(SLOW):.1f} %"
    return seen(share > HALF, Estimate(share, None, None, 1, "%"), told)


def even(parts: Parts) -> Judged:
    """How far uniform's share that is farthest from a third is from it; no effect would be as far as sticky's."""
    part = parts[PART]
    records, within = of(part, "uniform"), settled(part, SERIES1)
    found, before = (farthest(each, within, 0.9) for each in (records, of(part, "sticky")))
    judged = below(_off(found), EVEN_POINTS, no_effect=_off(before).value or 0.0)
    return Judged(judged.ours, judged.word, f"{judged.why}; {turns(records.within(whole(within)))}")


def _off(share: Estimate) -> Estimate:
    """How far a share is from a third, whichever way."""
    if share.value is None or share.low is None or share.high is None:
        return share
    ends = [share.low - THIRD, share.high - THIRD]
    low = 0.0 if ends[0] < 0 < ends[1] else min(map(abs, ends))
    return Estimate(abs(share.value - THIRD), low, max(map(abs, ends)), share.n, "points", share.confidence)


def turns(records: Placed) -> str:
    """Why bytes are not spread as draws are: how long a turn lasts."""
    where, lengths = records.turns()
    slow = where == SLOW
    if not slow.any() or slow.all():
        return f"{len(where)} turns"
    told = f"{100 * slow.mean():.1f} % of {len(where)} turns, of {lengths[slow].mean():.1f} records each"
    return f"the slow broker had {told}, the others' were of {lengths[~slow].mean():.1f}"


def even_draws(parts: Parts) -> Judged:
    """The same question to the draws."""
    return fair(of(parts[PART], "uniform"), settled(parts[PART], SERIES1))


def ordered(parts: Parts, fault: str) -> Judged:
    """Adaptive's share on the slow broker less the mean of the others; no effect would be uniform's."""
    part = parts[PART]
    found, before = (mean(_ahead(part, arm, fault), "points") for arm in ("adaptive", "uniform"))
    judged = below(found, 0, no_effect=max(0.0, before.value or 0.0))
    told = turns(of(part, "adaptive").within(whole(settled(part, fault))))
    return Judged(judged.ours, judged.word, f"{judged.why}; {told}; with uniform {before.value or 0:+.1f} points")


def _ahead(part: Part, arm: str, fault: str) -> list[float]:
    return [share - (100 - share) / 2 for share in _slow(part, arm, fault)]


def less_than(parts: Parts, ours: str, theirs: str, fault: str) -> Judged:
    """One arm's share on the slow broker less another's."""
    part = parts[PART]
    pairs = zip(*(_slow(part, arm, fault) for arm in (ours, theirs)), strict=True)
    judged = below(mean([one - other for one, other in pairs], "points"), 0, no_effect=0)
    counted = part.counters(f"orders/{ours}", "produce").get("partitions_left_out", 0)
    told = f"; late brokers were left out {counted} times in the run" if counted else ""
    return Judged(judged.ours, judged.word, f"{judged.why}{told}")


def p99_ratio(parts: Parts, ours: str) -> Judged:
    """An arm's p99 by sticky's."""
    part = parts[PART]
    groups = [_latencies(part, arm, SERIES1) for arm in (ours, "sticky")]
    judged = below(drawn_again(groups, _ratio, "times", part.run.run_id), P99_RATIO_MAX)
    told = " / ".join(f"{quantile(np.concatenate(group), P99) / 1e3:.0f}" for group in groups)
    return Judged(judged.ours, judged.word, f"{told} ms; {judged.why}")


def p99(parts: Parts, fault: str, arm: str) -> Judged:
    """An arm's p99 and where its bytes went."""
    part = parts[PART]
    found = drawn_again([_latencies(part, arm, fault)], _p99_ms, "ms", part.run.run_id)
    records, within = of(part, arm), settled(part, fault)
    split = " / ".join(f"{mean(shares(records, within, one), '%').value or 0:.1f}" for one in PARTITIONS)
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
    """Whether an arm ran out of buffer in series 2, as it should or should not."""
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
    """Per cent of the records that found no room."""
    return 100 * float((~records.ok & (records.partition == NOWHERE)).mean())
