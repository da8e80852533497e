"""Is configured for one request in flight, and has five.

A batch that is retried comes after batches that were sent meanwhile (librdkafka#1092: despite max.inflight=1).
"""

from dataclasses import replace

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters import reference


def plant() -> None:
    settings = reference.reference_settings
    put(
        reference,
        "reference_settings",
        lambda *told: replace(settings(*told), max_in_flight_requests_per_connection=5),
    )


BAD = KnownBad("some Produce are refused while answers are late", "integrity/order", "records", plant)
