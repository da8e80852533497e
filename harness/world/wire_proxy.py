"""Operations for faults on the rules of a cluster's wire proxy, and a probe that measures a rule's effect.

A probe of a wire proxy rule sends two requests of the harness through the wire proxy. The first is ApiVersions with a
client id that no rule matches, to prove that the broker answers; the second has a client id that only the probed rule
matches.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from aftershock.errors import ClientError, FaultError
from aftershock.faults.targets.values import Answer, Outcome
from aftershock.faults.wire_proxy.messages import API_NAMES
from aftershock.faults.wire_proxy.probe import probe_request
from aftershock.faults.wire_proxy.responses import ERROR_FIELDS
from aftershock.faults.wire_proxy.rules import probe_id
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.proxies import WireProxy
from aftershock.harness.kafka.admin import VERSIONS_REQUEST
from aftershock.harness.world.links import LinkProbe
from aftershock.harness.world.threads import delegate
from aftershock.workloads.kafka.wire.connection import Address

_VERSIONS_S = 2.0


async def probe_rule(addresses: Iterable[Address], rule: str, api: str, limit_ms: int) -> Answer:
    """Probe a wire proxy rule over the first address that answers; raise FaultError if no address answers."""
    for address in addresses:
        try:
            probe = await LinkProbe.dial(address)
        except OSError:
            continue
        try:
            async with asyncio.timeout(_VERSIONS_S):
                versions = await probe.request(VERSIONS_REQUEST, probe_id(""))
            request = probe_request(
                api, {item.api_key: (item.min_version, item.max_version) for item in versions.api_keys}
            )
            outcome: Outcome = "answered"
            response, began_s = None, time.perf_counter()
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    response = await probe.request(request, probe_id(rule))
            except TimeoutError:
                outcome = "silent"
            except (OSError, EOFError):
                outcome = "closed"
            ms = (time.perf_counter() - began_s) * 1000
            offered = getattr(response, "api_keys", ())
            offered_versions = {API_NAMES[v.api_key]: v.max_version for v in offered if v.api_key in API_NAMES}
            return Answer(outcome, ms, frozenset(_errors(response)), offered_versions)
        except (OSError, EOFError, ClientError):  # no answer to the first request
            continue
        finally:
            await probe.hang_up()
    raise FaultError("no broker answers the harness through the wire proxy, so the wire proxy's rule can't be measured")


def _errors(value: Any) -> Iterable[int]:
    if isinstance(value, tuple):
        for item in value:
            yield from _errors(item)
    elif is_dataclass(value):
        for field in fields(value):
            inner = getattr(value, field.name)
            if field.name in ERROR_FIELDS and inner:
                yield int(inner)
            else:
                yield from _errors(inner)


class RulesWorld:
    """Operations of faults on wire proxy rules, by the protocol `faults.runtime.world.WireProxyControl`."""

    _cluster: Cluster

    add_rule = delegate("_proxy", WireProxy.add_rule)
    rules = delegate("_proxy", WireProxy.rules)

    async def remove_rule(self, name: str) -> None:
        if self._cluster.wire_proxy is not None:
            await asyncio.to_thread(self._cluster.wire_proxy.remove_rule, name)

    async def probe_rule(self, name: str, api: str, limit_ms: int) -> Answer:
        return await probe_rule(self._proxy.addresses.values(), name, api, limit_ms)

    @property
    def _proxy(self) -> WireProxy:
        if self._cluster.wire_proxy is None:
            raise FaultError(
                "this cluster has no wire proxy, so its clients' requests can't be changed; launch it with "
                "`cluster: {wire_proxy: true}`"
            )
        return self._cluster.wire_proxy
