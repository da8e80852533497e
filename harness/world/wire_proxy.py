"""Rules of a cluster's wire proxy, for faults, and a probe that shows what a rule does.

A probe is a request of the harness through the wire proxy, with a client id that one rule matches. It first requests
the versions, with an id that no rule matches: the broker must answer that, or the probe proves nothing about the rule.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.static.protocol import RequestPayload

from aftershock.errors import ClientError, FaultError
from aftershock.faults.targets.values import Answer, Outcome
from aftershock.faults.wire_proxy.messages import API_NAMES
from aftershock.faults.wire_proxy.probe import probe_request
from aftershock.faults.wire_proxy.responses import ERROR_FIELDS
from aftershock.faults.wire_proxy.rules import probe_id
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.proxies import WireProxy
from aftershock.workloads.kafka.wire.codec import (
    FRAME_BYTES_MAX,
    PREFIX,
    checked_length,
    decode_response,
    encode_frame,
    response_type,
)
from aftershock.workloads.kafka.wire.connection import Address

_DIAL_S = 2.0
_NO_RULE = probe_id("")


async def probe_rule(addresses: Iterable[Address], rule: str, api: str, limit_ms: int) -> Answer:
    """Send the probe through the first address that answers. Raises FaultError if none does."""
    for address in addresses:
        try:
            async with asyncio.timeout(_DIAL_S):
                prober = _Prober(*await asyncio.open_connection(*address))
        except OSError:
            continue
        try:
            return await prober.probe(rule, api, limit_ms)
        except (OSError, EOFError, ClientError):  # before the probe itself was sent
            continue
        finally:
            prober.close()
    raise FaultError("no broker answers behind the wire proxy")


class _Prober:
    """A connection to the wire proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._request_count = 0

    def close(self) -> None:
        self._writer.transport.abort()

    async def probe(self, rule: str, api: str, limit_ms: int) -> Answer:
        """Send the probe; raises errors that occur before it is sent."""
        async with asyncio.timeout(_DIAL_S):
            request = probe_request(api, await self._broker_versions())
        outcome: Outcome = "answered"
        response, began_s = None, time.perf_counter()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                response = await self._ask(request, probe_id(rule))
        except TimeoutError:
            outcome = "silent"
        except (OSError, EOFError):
            outcome = "closed"
        ms = (time.perf_counter() - began_s) * 1000
        return Answer(outcome, ms, frozenset(_errors(response)), _versions(response))

    async def _broker_versions(self) -> Mapping[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
        response = await self._ask(request, _NO_RULE)
        return {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}

    async def _ask(self, request: RequestPayload, client_id: str) -> Any:
        self._request_count += 1
        self._writer.write(encode_frame(request, self._request_count, client_id))
        await self._writer.drain()
        length = checked_length(await self._reader.readexactly(PREFIX.size), 0, FRAME_BYTES_MAX)
        message = await self._reader.readexactly(length)
        return decode_response(response_type(type(request)), message, self._request_count)


def _errors(value: Any) -> Iterable[int]:
    """Yield all error codes in an answer, at any depth, other than 0."""
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


def _versions(response: Any) -> Mapping[str, int]:
    entries = getattr(response, "api_keys", ())
    return {API_NAMES[entry.api_key]: entry.max_version for entry in entries if entry.api_key in API_NAMES}


class RulesWorld:
    """Implements `faults.runtime.world.WireProxyControl`."""

    _cluster: Cluster

    async def add_rule(self, rule: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self._proxy.add_rule, rule)

    async def remove_rule(self, name: str) -> None:
        if self._cluster.wire_proxy is not None:
            await asyncio.to_thread(self._cluster.wire_proxy.remove_rule, name)

    async def rules(self) -> Mapping[str, Mapping[str, int]]:
        return await asyncio.to_thread(self._proxy.rules)

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
