"""Bytes that one client and each broker exchanged, by slices of time, as the client counted them."""

from collections.abc import Sequence

import numpy as np

from aftershock.results.trials.part import Floats, Part, Slice

SENT, RECEIVED = "client.sent_bytes", "client.received_bytes"


def by_broker(part: Part, way: str, rack: str, worker: str, spans: Sequence[Slice]) -> dict[int, Floats]:
    """Bytes in each slice, by broker, of a worker (``workload-arm-op``) that stands in ``rack``.

    The counters are sampled once a second; between two samples bytes are taken to flow evenly.
    """
    found: dict[int, Floats] = {}
    for broker in part.run.run["brokers"]:
        samples = part.samples(f"{way}/client_{rack}-k{broker['id']}/{worker}")
        times_us, counts = (samples[name].to_numpy() for name in ("t_us", "value"))
        found[int(broker["id"])] = np.array([_between(span, times_us, counts) for span in spans], float)
    return found


def _between(span: Slice, times_us: Floats, counts: Floats) -> float:
    """None were exchanged where nothing was ever counted."""
    if not len(times_us):
        return 0.0
    start, end = np.interp([span.start_us, span.end_us], times_us, counts)
    return float(end - start)
