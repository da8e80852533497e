"""The protocol-aware proxy of a cluster as faults see it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aftershock.errors import FaultError
from aftershock.faults.values import Answer
from aftershock.harness.cluster import Cluster
from aftershock.harness.rule_probe import probe_rule
from aftershock.harness.wire_proxy import WireProxy


class RulesWorld:
    """See `faults.world.Tampered`."""

    _cluster: Cluster

    async def add_rule(self, rule: Mapping[str, Any]) -> None:
        """See `faults.world.Tampered`."""
        await asyncio.to_thread(self._proxy.add_rule, rule)

    async def remove_rule(self, name: str) -> None:
        """See `faults.world.Tampered`."""
        if self._cluster.wire_proxy is not None:
            await asyncio.to_thread(self._cluster.wire_proxy.remove_rule, name)

    async def rules(self) -> Mapping[str, Mapping[str, int]]:
        """See `faults.world.Tampered`."""
        return await asyncio.to_thread(self._proxy.rules)

    async def probe_rule(self, name: str, api: str, limit_ms: int) -> Answer:
        """See `faults.world.Tampered`."""
        return await probe_rule(self._proxy.addresses.values(), name, api, limit_ms)

    @property
    def _proxy(self) -> WireProxy:
        if self._cluster.wire_proxy is None:
            raise FaultError(
                "clients of this cluster pass no wire proxy, so nothing can be done to what they say: launch one with "
                "`cluster: {wire_proxy: true}`"
            )
        return self._cluster.wire_proxy
