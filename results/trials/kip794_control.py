"""KIP-794 where it can't help or must not meddle: equal brokers, records with keys, and (KIP-1123) the rack.

Rules. A share of equal brokers is as good as even within 10 points: a draw is worth about nine records, so to tell a
third to 1.5 points would take some 2,700 draws, eight minutes at this rate. The key of a record follows from its number
alone, so arms are compared record by record. While a rack's broker is dead or coming back nobody can promise where its
leaders are: that time is in no statement but the one about it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aftershock.results.files import read_lines
from aftershock.results.trials.claim import Parts
from aftershock.results.trials.part import Part, read_rows
from aftershock.results.trials.placed import placed
from aftershock.results.trials.slices import Floats, Slice, ratio
from aftershock.results.trials.spread import THIRD, fair, farthest, settled
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.traffic import SENT, by_broker
from aftershock.results.trials.words import below, reported, seen, within

ARMS = ("sticky", "uniform", "adaptive", "availability")
PART, RACK, EQUAL = "slow", "rack", "equal"
MARGIN_POINTS = 10.0
"""Of a share of equal brokers."""


def equal_bytes(parts: Parts, arm: str) -> Judged:
    """The share that is farthest from a third."""
    part = parts[PART]
    found = farthest(placed(part, f"orders/{arm}"), settled(part, EQUAL), 0.9)
    return within(found, THIRD - MARGIN_POINTS, THIRD + MARGIN_POINTS)


def unstable_bytes(parts: Parts) -> Judged:
    """The same of the old partitioner, of which nothing is asked: what runs away from a slow broker may from any."""
    found = farthest(placed(parts[PART], "orders/sticky"), settled(parts[PART], EQUAL), 0.9)
    return reported(
        found, "the broker whose share is farthest from a third; its draws are even, its queues feed themselves"
    )


def equal_draws(parts: Parts, arm: str) -> Judged:
    """Chi-square over draws."""
    part = parts[PART]
    return fair(placed(part, f"orders/{arm}"), settled(part, EQUAL))


def batches(parts: Parts) -> Judged:
    """Bytes on the wire for each record, uniform by sticky: what headers of batches and requests add."""
    part = parts[PART]
    spans = settled(part, EQUAL)
    uniform, sticky = (_wire(part, arm, spans) for arm in ("uniform", "sticky"))
    judged = below(ratio(uniform, sticky), 1)
    return Judged(judged.ours, judged.word, f"{uniform.mean():.0f} / {sticky.mean():.0f} bytes a record; {judged.why}")


def _wire(part: Part, arm: str, spans: Sequence[Slice]) -> Floats:
    """Bytes a record that a producer sent to all brokers, in each slice."""
    sent = by_broker(part, SENT, "a", f"orders-{arm}-produce", spans)
    totals: Floats = np.sum(list(sent.values()), axis=0)
    records = placed(part, f"orders/{arm}")
    counts: Floats = np.array([max(1.0, len(records.within(span).seq)) for span in spans])
    return np.divide(totals, counts)


def keyed(parts: Parts) -> Judged:
    """Each record's partition in every arm, by its number; those that some arm failed to place are left out."""
    arms = (*ARMS, "librdkafka")
    found = [placed(parts[RACK], f"keyed/{arm}") for arm in arms]
    places = [dict(zip(each.seq[each.ok].tolist(), each.partition[each.ok].tolist(), strict=True)) for each in found]
    both = sorted(set.intersection(*(set(each) for each in places)))
    unlike = sum(len({place[seq] for place in places}) > 1 for seq in both)
    ours = Estimate(unlike, None, None, len(both), "records")
    return seen(unlike == 0, ours, f"{unlike} of {len(both)} records lie elsewhere in one of {len(arms)} arms")


def near(parts: Parts) -> Judged:
    """Of the records sent while the rack led: before its broker was killed, and once it leads again."""
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
    """The same of the producer that knows no racks: that leaving it was possible."""
    records = placed(part, "orders/anywhere")
    outside = [100 - records.within(span).share(home) for span in spans]
    return f"without the setting {min(outside):.0f} to {max(outside):.0f} % of the bytes did"


def away(parts: Parts) -> Judged:
    """Of the records sent from five seconds after the kill, when another leads, until the broker was started again."""
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
    """The partition whose preferred leader is the rack's broker."""
    topic = next(topic for topic in part.run.run["topics"] if topic["name"] == "orders")
    return next(int(number) for number, replicas in topic["assignment"].items() if replicas[0] == 1)


def _phase(part: Part, name: str) -> Slice:
    row = next(row for row in _phases(part) if row["name"] == name)
    return Slice(row["start_us"], row["end_us"])


def _home(part: Part) -> Slice:
    """From the end of the election's window, which is the plan's ``timing.fault`` long, to the end of the load."""
    (elected,) = part.phases("home")
    return Slice(elected["end_us"], max(row["end_us"] for row in _phases(part)))


def _healing_us(part: Part) -> int:
    lines = read_lines(part.home / "journal.jsonl")
    return next(int(line["t_us"]) for line in lines if (line["fault"], line["state"]) == ("gone", "healing"))


def _phases(part: Part) -> list[dict[str, Any]]:
    return read_rows(part.home / "phases.json")
