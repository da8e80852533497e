"""Claims acks=all and sends acks=1.

A setting that never reaches the wire: a record that only the leader has is reported as safe, and is lost with the
leader.
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.client import requests
from aftershock.workloads.kafka.producer import produce_request


def plant() -> None:
    write = requests.ProduceWriter
    put(produce_request, "ProduceWriter", lambda kind, _, timeout_ms: write(kind, 1, timeout_ms))


BAD = KnownBad("a leader is killed while its followers are behind", "integrity/lost", "not in the log", plant)
