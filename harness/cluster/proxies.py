"""One Toxiproxy server, over toxiproxy-python's API consumer.

The library keeps the server's address in a class shared by the whole process, sets no deadline and takes a 500 for
success. So each server here gets a subclass of its own, every call a deadline, and every answer is checked. Toxics are
never added with ``toxicity`` or ``jitter``: their randomness can't be seeded, ours is drawn by the compiler.

The wire proxy of a cluster, as whoever drives the cluster sees it: started with it, found again, told its rules.

It is a process of its own that outlives us, as the cluster may (it is kept, or warm in a pool), and ends by itself when
the cluster's Toxiproxy is gone. Its card in the cluster's home says where it is.
"""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from requests import RequestException, Response
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.targets.values import Toxic
from aftershock.faults.wire_proxy.proxy import LOOPBACK, Way
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.topology import Proxy
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.kafka.wire.connection import Address

_DEADLINE_S = 5.0
_BYTES = re.compile(r"^toxiproxy_proxy_received_bytes_total\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Toxiproxy:
    """A Toxiproxy server reached at ``host:port``.

    Raises:
        FaultError: the server refused, or did not answer in time.
    """

    def __init__(self, host: str, port: int) -> None:
        self.url = f"http://{host}:{port}"
        self._api: type[APIConsumer] = type("Consumer", (APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        """The server's version, "2.12.0"."""
        return str(self._ask("get", "/version").json()["version"])

    def populate(self, proxies: Iterable[Proxy], address_in: Mapping[str, str]) -> None:
        """Create all proxies in one request; ``address_in`` is the server's own address on each rack's network."""
        everywhere = "0.0.0.0"  # noqa: S104  # inside the container; what is published is on loopback
        wanted = []
        for proxy in proxies:
            address = address_in[proxy.listen_rack] if proxy.listen_rack else everywhere
            wanted.append({"name": proxy.name, "upstream": proxy.upstream, "listen": f"{address}:{proxy.listen_port}"})
        created = self._ask("post", "/populate", json=wanted).json()["proxies"]
        missing = {proxy["name"] for proxy in wanted} - {proxy["name"] for proxy in created}
        if missing:
            raise ClusterError(f"Toxiproxy at {self.url} did not create the proxies {sorted(missing)}")

    def toxics(self) -> dict[str, tuple[Toxic, ...]]:
        """The toxics in force, by proxy."""
        proxies = self._ask("get", "/proxies").json()
        return {name: tuple(map(_toxic, proxy["toxics"])) for name, proxy in proxies.items()}

    def add_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Add a toxic; its name must be new on this proxy."""
        body = {
            "name": toxic.name,
            "type": toxic.type,
            "stream": toxic.stream,
            "toxicity": 1.0,
            "attributes": dict(toxic.attributes),
        }
        self._ask("post", f"/proxies/{proxy}/toxics", json=body)

    def update_toxic(self, proxy: str, toxic: Toxic) -> None:
        """Change a toxic's attributes. One chunk held by the toxic goes on early: that is how Toxiproxy updates."""
        self._ask("post", f"/proxies/{proxy}/toxics/{toxic.name}", json={"attributes": dict(toxic.attributes)})

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Remove a toxic; one that is gone already is no error, so that healing can be repeated."""
        self._ask("delete", f"/proxies/{proxy}/toxics/{name}", gone_is_fine=True)

    def enable(self, proxy: str, *, enabled: bool) -> None:
        """Let connections through a proxy, or close them all and refuse new ones. Its toxics stay as they are."""
        self._ask("post", f"/proxies/{proxy}", json={"enabled": enabled})

    def disabled(self) -> frozenset[str]:
        """The proxies that let nothing through."""
        proxies = self._ask("get", "/proxies").json()
        return frozenset(name for name, proxy in proxies.items() if not proxy["enabled"])

    def upstreams(self) -> dict[str, str]:
        """Where each proxy leads, ``host:port`` as the server dials it, by proxy."""
        return {name: proxy["upstream"] for name, proxy in self._ask("get", "/proxies").json().items()}

    def redirect(self, proxy: str, upstream: str) -> None:
        """Lead a proxy elsewhere and close its connections; its toxics stay. Nothing where it leads there already."""
        self._ask("post", f"/proxies/{proxy}", json={"upstream": upstream})

    def reset(self) -> None:
        """Remove every toxic and enable every proxy."""
        self._ask("post", "/reset")

    def received_bytes(self) -> dict[tuple[str, str], int]:
        """Bytes received so far by (proxy, "upstream" | "downstream"), from the server's Prometheus metrics."""
        counters = {}
        for labels, value in _BYTES.findall(self._ask("get", "/metrics").text):
            named = dict(_LABEL.findall(labels))
            counters[named["proxy"], named["direction"]] = int(float(value))
        return counters

    def _ask(self, verb: str, path: str, *, gone_is_fine: bool = False, **body: Any) -> Response:
        try:
            response: Response = getattr(self._api, verb)(path, timeout=_DEADLINE_S, **body)
        except NotFound as error:
            if gone_is_fine:
                return Response()
            raise FaultError(f"Toxiproxy at {self.url} knows no {path}: {error}") from error
        except (ProxyExists, InvalidToxic, RequestException) as error:
            raise FaultError(f"Toxiproxy at {self.url} refused {verb} {path}: {error}") from error
        if not response.ok:
            raise FaultError(f"Toxiproxy at {self.url} answered {response.status_code} to {verb} {path}")
        return response


def _toxic(document: Mapping[str, Any]) -> Toxic:
    return Toxic(document["name"], document["type"], document["stream"], dict(document["attributes"]))


CARD = "wire_proxy.json"
LOG = "wire_proxy.log"
_DEADLINE_S_wire_proxy = 5.0
_LINE_BYTES_MAX = 1 << 20


class WireProxy:
    """A proxy that was started. ``process``: as `labels.owner` writes it; ``ports``: by the way's name."""

    def __init__(self, process: str, control: int, ports: Mapping[str, int]) -> None:
        self._process = process
        self._control = Address(LOOPBACK, control)
        self.addresses = {name: Address(LOOPBACK, port) for name, port in ports.items()}

    @classmethod
    def start(cls, ways: Iterable[Way], guard: Address, home: Path) -> Self:
        """Start one that leads these ways and lives as long as somebody listens at ``guard``.

        Raises:
            ClusterError: it did not come up; its log says why.
        """
        told = {"ways": list(ways), "guard": guard}
        pid, line = _spawned(json.dumps(told), home / "logs" / LOG)
        try:
            said = json.loads(line)
        except ValueError:
            raise ClusterError(f"the wire proxy did not come up; see {home / 'logs' / LOG}") from None
        card = {"process": ownership.owner(pid), "control": said["control"], "ports": said["ports"]}
        write_whole(home / CARD, json.dumps(card, indent=1) + "\n")
        return cls(**card)

    @classmethod
    def found(cls, home: Path) -> Self:
        """The one that was started for the cluster of this home. ClusterError if there is none."""
        try:
            return cls(**json.loads((home / CARD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ClusterError(f"{home / CARD} can't be read ({error!r}), so its wire proxy is lost") from error

    @property
    def lives(self) -> bool:
        """Whether its process is there."""
        return ownership.lives(self._process)

    async def watch(self) -> NoReturn:
        """Never returns. Raises ClusterError when its process has ended: no client can reach the cluster any more."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(int(self._process.partition(":")[0]))
        except ProcessLookupError:
            raise self._gone() from None
        try:
            loop.add_reader(descriptor, ended.set)
            if self.lives:  # the id may have been used again before it was opened
                await ended.wait()
            raise self._gone()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def add_rule(self, rule: Mapping[str, Any]) -> None:
        """Put a rule in force. FaultError if the proxy refuses it, or is gone."""
        self._ask(do="add", rule=rule)

    def remove_rule(self, name: str) -> None:
        """Take a rule away; no error if it is gone, or the proxy is."""
        if self.lives:
            self._ask(do="remove", name=name)

    def rules(self) -> dict[str, dict[str, int]]:
        """The counters of each rule in force. FaultError if the proxy is gone."""
        counters: dict[str, dict[str, int]] = self._ask(do="rules")
        return counters

    def _ask(self, **order: Any) -> Any:
        try:
            with socket.create_connection(self._control, _DEADLINE_S_wire_proxy) as connection:
                connection.sendall(json.dumps(order).encode() + b"\n")
                answer = json.loads(connection.makefile("rb").readline(_LINE_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise FaultError(f"the wire proxy does not answer at {self._control}: {error}") from error
        if "error" in answer:
            raise FaultError(f"the wire proxy refused to {order['do']}: {answer['error']}")
        return answer["is"]

    def _gone(self) -> ClusterError:
        pid = self._process.partition(":")[0]
        return ClusterError(f"the wire proxy (process {pid}) has ended, and no client reaches the cluster without it")


def _spawned(told: str, log: Path) -> tuple[int, bytes]:
    """Start the process in a session of its own; gives its id and the first line that it says."""
    log.parent.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
    ]
    command = [sys.executable, "-P", "-m", "aftershock.faults.wire_proxy", told]
    try:
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as said:
        return pid, said.readline(_LINE_BYTES_MAX)
