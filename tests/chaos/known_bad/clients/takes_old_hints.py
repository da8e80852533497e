"""Accepts every leader hint, whatever its epoch.

Delayed responses lead the client back to a former leader (librdkafka#4687 did so with old Metadata).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.leader_discovery import LeaderDiscovery, Refusal


def plant() -> None:
    def known_is_enough(_self, _tp, hint, nodes):
        return None if hint.node_id in nodes else Refusal.UNKNOWN_LEADER

    put(LeaderDiscovery, "_verdict", known_is_enough)


BAD = KnownBad("leaders move while answers are late", "integrity/backward", "leader hints", plant)
