"""What fetches cost, slice by slice, as the reference consumers counted it: what KIP-227's statements are made of.

Rules. The cost of a fetch is its request and its response without the records in it, which cost the same whoever asks.
Counters are sampled each second and only grow; a slice has what they grew by between the last samples before its ends.
Full and incremental fetches are counted apart, so the one full fetch that opens a session is in no incremental figure.
"""

from collections.abc import Sequence

import numpy as np

from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import Slice

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
