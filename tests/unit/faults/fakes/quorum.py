"""The metadata quorum of a cluster in memory: every node votes, and who does not run falls behind."""

from collections.abc import Mapping

from aftershock.faults.targets.values import BrokerId, BrokerState

BEHIND = 1_000


class FakeQuorum:
    """Voters and how far behind the active controller each is."""

    states: dict[BrokerId, BrokerState]

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """No records for a node that runs."""
        return {node: 0 if state == "running" else BEHIND for node, state in self.states.items()}
