"""KIP-392 while all is well: which bytes cross racks, and how stale the closest replica is."""

from collections.abc import Sequence

import numpy as np

from aftershock.results.trials.claim import Parts
from aftershock.results.trials.part import Part, read_rows
from aftershock.results.trials.received import received
from aftershock.results.trials.slices import Floats, Slice, mean, quantile, slices
from aftershock.results.trials.statement import Judged
from aftershock.results.trials.traffic import RECEIVED, by_broker
from aftershock.results.trials.words import above, below, reported

RACK = "b"
CROSSING_MAX = 0.1
ALL_CROSSING = 99.0
_HIGHEST = "c"


def spans(part: Part) -> tuple[Slice, ...]:
    """From when every partition had its replicas to the end of the load, without the first slice."""
    (replicas,) = part.phases("replicas")
    end_us = max(row["end_us"] for row in read_rows(part.home / "phases.json"))
    return slices(replicas["end_us"], end_us)[1:]


def crossing(parts: Parts, name: str, arm: str) -> Judged:
    """The share of bytes that came from other racks."""
    part = parts[name]
    judged = below(mean(list(100 - _from(part, arm, RACK)), "%"), CROSSING_MAX, no_effect=ALL_CROSSING)
    return Judged(judged.ours, judged.word, f"{judged.why}; {_from_each(part, arm)}")


def all_crossing(parts: Parts, name: str, arm: str) -> Judged:
    """The same of a consumer that should read from the leader, where it is in another rack."""
    part = parts[name]
    return _nearly_all(100 - _from(part, arm, RACK), part, arm)


def selected(parts: Parts, name: str) -> Judged:
    """The share that came from where a selector sends everybody that no rack decides for: the highest follower."""
    part = parts[name]
    return _nearly_all(_from(part, "closest", _HIGHEST), part, "closest")


def _nearly_all(shares: Floats, part: Part, arm: str) -> Judged:
    judged = above(mean(list(shares), "%"), ALL_CROSSING)
    return Judged(judged.ours, judged.word, f"{judged.why}; {_from_each(part, arm)}")


def _from(part: Part, arm: str, rack: str) -> Floats:
    """What came from a rack's brokers: per cent, slice by slice."""
    found = bytes_by_broker(part, arm, spans(part))
    racks = {int(broker["id"]): broker["rack"] for broker in part.run.run["brokers"]}
    own: Floats = np.sum([found[broker] for broker, stands in racks.items() if stands == rack], axis=0)
    total: Floats = np.sum(list(found.values()), axis=0)
    return 100 * own[total > 0] / total[total > 0]


def bytes_by_broker(part: Part, arm: str, within: Sequence[Slice]) -> dict[int, Floats]:
    """What a consumer received from each broker."""
    return by_broker(part, RECEIVED, RACK, f"reads-{arm}-consume", within)


def _from_each(part: Part, arm: str) -> str:
    found = bytes_by_broker(part, arm, spans(part))
    return "from " + ", ".join(f"k{broker}: {values.sum():.0f} B" for broker, values in sorted(found.items()))


def staleness(parts: Parts, name: str) -> Judged:
    """The median from intended to delivered, closest less leader, slice by slice."""
    part = parts[name]
    medians = [_medians_ms(part, arm) for arm in ("closest", "leader")]
    found = mean(list(medians[0] - medians[1]), "ms")
    return reported(found, f"medians {medians[0].mean():.1f} and {medians[1].mean():.1f} ms")


def _medians_ms(part: Part, arm: str) -> Floats:
    records = received(part, f"reads/{arm}")
    return np.array([quantile(records.meant_in(span).latency_us, 0.5) / 1e3 for span in spans(part)])
