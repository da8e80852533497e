"""Reports the first offset of a batch for each of its records.

Offsets within a batch are relative, and somebody has to add them up.
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
