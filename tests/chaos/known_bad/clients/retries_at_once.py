"""Retries every batch at once, not only the first time after its partition gets a new leader.

KIP-951 without its rule (KAFKA-15415): while the new leader isn't ready, clients send it a flood of requests.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery


def plant() -> None:
    put(LeaderDiscovery, "_is_immediate", lambda _, attempts: attempts.attempts > 0)


BAD = KnownBad("half of all Produce are refused", "integrity/immediate", "batches", plant)
