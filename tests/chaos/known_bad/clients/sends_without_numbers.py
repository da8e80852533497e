"""Claims to be idempotent, and gives batches no sequence numbers.

A batch that was written, but whose response was lost, is written again (KIP-98 prevents that).
"""

from dataclasses import replace

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters import reference


def plant() -> None:
    settings = reference.reference_settings
    put(reference, "reference_settings", lambda *told: replace(settings(*told), enable_idempotence=False))


BAD = KnownBad(
    "answers to Produce are lost",
    "integrity/duplicate",
    "records",
    plant,
    also=frozenset({"integrity/order", "integrity/backward"}),
)
