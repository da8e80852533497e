"""One Toxiproxy server, over toxiproxy-python's API consumer.

The library keeps the server's address in a class shared by the whole process, sets no deadline and takes a 500 for
success. So each server here gets a subclass of its own, every call a deadline, and every answer is checked. Toxics are
never added with ``toxicity`` or ``jitter``: their randomness can't be seeded, ours is drawn by the compiler.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from requests import RequestException, Response
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from aftershock.errors import ClusterError, FaultError
from aftershock.faults.values import Toxic
from aftershock.harness.racks import Proxy

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
