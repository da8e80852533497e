"""Reports the first offset of a batch for each of its records.

Offsets within a batch are relative, and must be added to the base offset.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.reference import ReferenceProducer


def plant() -> None:
    reported = ReferenceProducer._reported

    def one_by_one(self, delivery):
        for token in delivery.tokens:
            reported(self, delivery._replace(tokens=(token,)))

    put(ReferenceProducer, "_reported", one_by_one)


BAD = KnownBad("answers are late, so that batches fill", "integrity/misplaced", "records", plant)
