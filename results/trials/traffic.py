"""Bytes that a client exchanged with each broker, by slices of time, as counted by the client."""

from collections.abc import Sequence

import numpy as np

from aftershock.results.trials.part import Floats, Part, Slice

SENT, RECEIVED = "client.sent_bytes", "client.received_bytes"


def by_broker(part: Part, way: str, rack: str, worker: str, spans: Sequence[Slice]) -> dict[int, Floats]:
    """Return bytes per slice, by broker, of a worker process (``workload-arm-op``) in ``rack``.

    The counters are sampled once a second; between two samples bytes are assumed to flow evenly.
    """
    by_id: dict[int, Floats] = {}
    for broker in part.run.run["brokers"]:
        samples = part.samples(f"{way}/client_{rack}-k{broker['id']}/{worker}")
        times_us, counts = (samples[name].to_numpy() for name in ("t_us", "value"))
        by_id[int(broker["id"])] = np.array([_between(span, times_us, counts) for span in spans], float)
    return by_id


def _between(span: Slice, times_us: Floats, counts: Floats) -> float:
    if not len(times_us):  # nothing was ever counted
        return 0.0
    start, end = np.interp([span.start_us, span.end_us], times_us, counts)
    return float(end - start)
