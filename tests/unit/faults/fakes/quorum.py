"""The metadata quorum in memory: every node votes, and a stopped node falls behind."""

from collections.abc import Mapping

from aftershock.faults.targets.values import BrokerId, BrokerState

BEHIND = 1_000


class FakeQuorum:
    """The voters, and the lag of each behind the active controller."""

    states: dict[BrokerId, BrokerState]

    async def quorum_lag(self) -> Mapping[BrokerId, int]:
        """Return the lag in records: 0 for a node that runs."""
        return {node: 0 if state == "running" else BEHIND for node, state in self.states.items()}
