"""Proxies in front of a Kafka cluster, controlled by clients of Toxiproxy's API and of the wire proxy process.

Faults never use the Toxiproxy options ``toxicity`` and ``jitter``, because Toxiproxy's randomness can't be seeded; the
plan compiler draws all random values. The wire proxy is a process that understands Kafka's protocol; it may outlive the
process that started the cluster, and ends when the cluster's Toxiproxy is gone.
"""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from requests import RequestException, Response
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.targets.values import Toxic
from aftershock.faults.wire_proxy.proxy import LOOPBACK, Route
from aftershock.harness.cluster.topology import Proxy
from aftershock.harness.safety import ownership
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.kafka.wire.connection import Address

_DEADLINE_S = 5.0
_BYTES = re.compile(r"^toxiproxy_proxy_received_bytes_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Toxiproxy:
    """Client of a Toxiproxy server; raises FaultError if the server refuses a request or times out."""

    def __init__(self, host: str, port: int) -> None:
        self.url = f"http://{host}:{port}"
        # toxiproxy-python keeps the address in a class, so each server needs a class; it sets no deadline, and treats
        # a 500 as success
        self._api: type[APIConsumer] = type("Consumer", (APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        return str(self._request("get", "/version").json()["version"])

    def create(self, proxies: Mapping[str, tuple[str, str]]) -> None:
        """Create proxies in one request; each has the address where it listens, and its upstream."""
        definitions = [{"name": name, "listen": way[0], "upstream": way[1]} for name, way in proxies.items()]
        created = self._request("post", "/populate", json=definitions).json()["proxies"]
        if missing := proxies.keys() - {proxy["name"] for proxy in created}:
            raise ClusterError(f"Toxiproxy at {self.url} did not create the proxies {sorted(missing)}")

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:
        return {
            name: tuple(Toxic(t["name"], t["type"], t["stream"], dict(t["attributes"])) for t in proxy["toxics"])
            for name, proxy in self._proxies().items()
        }

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        body = {
            "name": toxic.name,
            "type": toxic.type,
            "stream": toxic.stream,
            "toxicity": 1.0,
            "attributes": dict(toxic.attributes),
        }
        self._request("post", f"{self._path(proxy)}/toxics", json=body)

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change a toxic's attributes; Toxiproxy then forwards early any data chunk that the toxic was delaying."""
        self._request("post", f"{self._path(proxy)}/toxics/{toxic.name}", json={"attributes": dict(toxic.attributes)})

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Remove a toxic; no error if the toxic is missing, so that healing can be repeated."""
        self._request("delete", f"{self._path(proxy)}/toxics/{name}", missing_ok=True)

    def enable(self, proxy: str, *, enabled: bool) -> None:
        """Enable a Toxiproxy proxy or disable it; a disabled proxy has no connections, but keeps its toxics."""
        self._request("post", self._path(proxy), json={"enabled": enabled})

    def disabled(self) -> frozenset[str]:
        return frozenset(name for name, proxy in self._proxies().items() if not proxy["enabled"])

    def upstreams(self) -> dict[str, str]:
        """Return each Toxiproxy proxy's upstream, the address ``host:port`` to which the proxy connects."""
        return {name: proxy["upstream"] for name, proxy in self._proxies().items()}

    def redirect(self, proxy: str, upstream: str) -> None:
        """Set a Toxiproxy proxy's upstream and close its connections; no effect if the upstream is the same."""
        self._request("post", self._path(proxy), json={"upstream": upstream})

    def _path(self, proxy: str) -> str:
        return f"/proxies/{proxy}"

    def _proxies(self) -> dict[str, Any]:
        proxies: dict[str, Any] = self._request("get", "/proxies").json()
        return proxies

    def _request(self, verb: str, path: str, *, missing_ok: bool = False, **body: Any) -> Response:
        try:
            response: Response = getattr(self._api, verb)(path, timeout=_DEADLINE_S, **body)
        except NotFound as error:
            if missing_ok:
                return Response()
            raise FaultError(f"Toxiproxy at {self.url} does not know {path}: {error}") from error
        except (ProxyExists, InvalidToxic, RequestException) as error:
            raise FaultError(f"Toxiproxy at {self.url} refused {verb} {path}: {error}") from error
        if not response.ok:
            raise FaultError(f"Toxiproxy at {self.url} answered {response.status_code} to {verb} {path}")
        return response


class LaunchedToxiproxy(Toxiproxy):
    """Client of the Toxiproxy server of a launched cluster, on which all proxies belong to the cluster."""

    def populate(self, proxies: Iterable[Proxy], address_in: Mapping[str, str]) -> None:
        """Create all proxies in one request; ``address_in`` has Toxiproxy's address on each rack's network."""
        wildcard = "0.0.0.0"  # noqa: S104  # inside the container; published ports are on loopback
        definitions = {}
        for proxy in proxies:
            address = address_in[proxy.listen_rack] if proxy.listen_rack else wildcard
            definitions[proxy.name] = (f"{address}:{proxy.listen_port}", proxy.upstream)
        self.create(definitions)

    def reset(self) -> None:
        """Enable all proxies and remove all toxics."""
        self._request("post", "/reset")

    def received_bytes(self) -> dict[tuple[str, str], int]:
        """Return the bytes that Toxiproxy's metrics show as received, by proxy and "upstream" or "downstream"."""
        counters = {}
        for labels, value in _BYTES.findall(self._request("get", "/metrics").text):
            named = dict(_LABEL.findall(labels))
            counters[named["proxy"], named["direction"]] = int(float(value))
        return counters


DESCRIPTOR_FILE = "wire_proxy.json"
BOOTSTRAP = "bootstrap"
LOG = "wire_proxy.log"
_WIRE_PROXY_DEADLINE_S = 5.0
_LINE_BYTES_MAX = 1 << 20


def bootstrap_route(rack: str, broker: int) -> str:
    """Return the name of the wire proxy's route from a bootstrap address of a rack's clients."""
    return f"{BOOTSTRAP}_{rack}-k{broker}"


def client_routes(proxies: Iterable[Proxy], upstream_of: Callable[[Proxy], Address]) -> list[Route]:
    """Return the wire proxy's routes to each proxy for clients: one that brokers advertise, and one to bootstrap."""
    routes = list[Route]()
    for proxy in proxies:
        if proxy.channel == "client" and (rack := proxy.source_rack) is not None:
            upstream = upstream_of(proxy)
            routes.append(Route(proxy.name, rack, proxy.node, upstream))
            routes.append(Route(bootstrap_route(rack, proxy.node), rack, proxy.node, upstream, bootstrap=True))
    return routes


class WireProxy:
    """Client of a wire proxy; ``ports`` has the loopback port of each route of the wire proxy, by the route's name."""

    def __init__(self, process: str, control: int, ports: Mapping[str, int]) -> None:
        self._process = process
        self._control = Address(LOOPBACK, control)
        self.addresses = {name: Address(LOOPBACK, port) for name, port in ports.items()}

    @classmethod
    def start(cls, routes: Iterable[Route], guard: Address, home: Path) -> Self:
        """Start a wire proxy, which ends as soon as no process listens at the address ``guard`` any more."""
        log = home / "logs" / LOG
        log.parent.mkdir(exist_ok=True)
        config = json.dumps({"ways": list(routes), "guard": guard})
        command = [sys.executable, "-P", "-m", "aftershock.faults.wire_proxy", config]
        reading, writing = os.pipe()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writing, 1),
            (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        ]
        try:
            # in its own session, so that Ctrl-C of the runner does not reach it
            pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb") as stdout:
            first_line = stdout.readline(_LINE_BYTES_MAX)
        try:
            ready = json.loads(first_line)
        except ValueError:
            raise ClusterError(f"the cluster's wire proxy did not start; the reason is in {log}") from None
        descriptor = {"process": ownership.owner(pid), "control": ready["control"], "ports": ready["ports"]}
        write_whole(home / DESCRIPTOR_FILE, json.dumps(descriptor, indent=1) + "\n")
        return cls(**descriptor)

    @classmethod
    def open(cls, home: Path) -> Self:
        """Return the wire proxy of the cluster; raise ClusterError if ``wire_proxy.json`` can't be read."""
        try:
            return cls(**json.loads((home / DESCRIPTOR_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ClusterError(
                f"{home / DESCRIPTOR_FILE} can't be read ({error!r}); take the cluster down, because no client can "
                "reach the cluster without its wire proxy"
            ) from error

    def bootstrap_address(self, rack: str, broker: int) -> Address:
        """Return the bootstrap address of a broker for the clients of a rack; raise FaultError without one."""
        try:
            return self.addresses[bootstrap_route(rack, broker)]
        except KeyError:
            known = sorted(name for name in self.addresses if name.startswith(BOOTSTRAP))
            why = f"it has {', '.join(known)}" if known else "launch the cluster with this version of Aftershock"
            raise FaultError(
                f"the wire proxy has no bootstrap address of broker {broker} for clients of rack {rack}: {why}"
            ) from None

    @property
    def is_alive(self) -> bool:
        return ownership.is_alive(self._process)

    async def watch(self) -> NoReturn:
        """Wait until the wire proxy ends; then raise ClusterError, because no client can reach the cluster."""
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(int(self._process.partition(":")[0]))
        except ProcessLookupError:
            raise self._ended_error() from None
        try:
            loop.add_reader(pidfd, ended.set)
            if self.is_alive:  # the process id may have been reused before it was opened
                await ended.wait()
            raise self._ended_error()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Add a rule to the wire proxy; raise FaultError if the wire proxy refuses the rule or has ended."""
        self._request(do="add", rule=rule)

    def remove_rule(self, name: str) -> None:
        """Remove a rule of the wire proxy; no error if the rule is missing or the wire proxy has ended."""
        if self.is_alive:
            self._request(do="remove", name=name)

    def rules(self) -> dict[str, dict[str, int]]:
        """Return the counters of each rule of the wire proxy; raise FaultError if the wire proxy has ended."""
        counters: dict[str, dict[str, int]] = self._request(do="rules")
        return counters

    def listen(self, route: str, *, on: bool) -> None:
        """Let new connections on a route be refused, or accepted again; no error if the wire proxy has ended."""
        if self.is_alive:
            self._request(do="listen", route=route, on=on)

    def observe(self, *, on: bool) -> None:
        """Let the wire proxy observe the fetches of connections that are opened from now on, or no longer."""
        self._request(do="observe", on=on)

    def observed(self) -> dict[str, Any]:
        """Return the ``counters`` of observed connections, and the ``events`` since the last call (``fetches.py``)."""
        observed: dict[str, Any] = self._request(do="observed") or {"counters": [], "events": []}
        return observed

    def held(self) -> list[dict[str, Any]]:
        """Return the events of held requests since the last call (``holds.py``)."""
        events: list[dict[str, Any]] = self._request(do="held")["events"]
        return events

    def _request(self, **order: Any) -> Any:
        try:
            with socket.create_connection(self._control, _WIRE_PROXY_DEADLINE_S) as connection:
                connection.sendall(json.dumps(order).encode() + b"\n")
                answer = json.loads(connection.makefile("rb").readline(_LINE_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise FaultError(f"the wire proxy does not answer at {self._control}: {error}") from error
        if "error" in answer:
            raise FaultError(f"the wire proxy refused the request `{order['do']}`: {answer['error']}")
        return answer["is"]

    def _ended_error(self) -> ClusterError:
        pid = self._process.partition(":")[0]
        return ClusterError(f"the wire proxy (process {pid}) has ended; without it no client can reach the cluster")
