"""Toxiproxy of ours in front of a user's brokers, for the time of a run (``attach: {proxy: insert}``).

It listens where the brokers advertise themselves to clients, on ports of this host on which nothing else listens, and
dials the addresses that the plan names under ``bootstrap``, where the brokers really listen. For example, a broker
publishes its listener on port 29092 and advertises ``localhost:19092``. The container is on the network of the host,
because it must dial and listen on loopback addresses, so the Docker engine must run on this host.

The container has the label ``INSERTED``, with the id of the run, and the port of Toxiproxy's API. It is removed at the
end of the run, and with it every fault on the links.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import docker
from docker.errors import NotFound

from aftershock.errors import ClusterError, FaultError, Log, UnsupportedError
from aftershock.harness.attach.broker_containers import is_here
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import prefix_of
from aftershock.harness.cluster.engine import docker_errors
from aftershock.harness.cluster.node import last_log_lines
from aftershock.harness.cluster.proxies import Toxiproxy
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.settings import own_ids
from aftershock.workloads.kafka.wire.connection import Address, Connection
from aftershock.workloads.kafka.wire.security import Security

INSERTED = "aftershock.inserted"
_API = "aftershock.api"
_LOOPBACK = "127.0.0.1"
_START_S = 10.0
_TIMEOUT_S = 10.0


def proxy_name(broker: int) -> str:
    return f"broker-{broker}"


def brokers_behind(toxiproxy: Toxiproxy) -> dict[str, int]:
    """Return the broker behind each proxy of an inserted Toxiproxy, by the proxy's name."""
    return {name: int(name.rpartition("-")[2]) for name in toxiproxy.upstreams()}


def routes(bootstrap: str, advertised: Mapping[int, Address], security: Security) -> dict[int, tuple[Address, Address]]:
    """Return where a proxy before each broker must listen, and where it must dial.

    Raises ClusterError if a broker is not among the ``bootstrap`` addresses, or advertises an address before which no
    proxy can stand.
    """
    real: dict[int, Address] = {}
    for text in bootstrap.split(","):
        host, _, port = text.rpartition(":")
        address = Address(host, int(port))
        try:
            with Connection(address, _TIMEOUT_S, security) as connection:
                ids = own_ids(connection, sorted(advertised))
        except (OSError, UnsupportedError) as error:
            raise ClusterError(f"no broker answers at {address} (`attach.bootstrap`): {error}") from error
        if len(ids) == 1:
            real[ids[0]] = address
    for broker, address in advertised.items():
        example = f"let broker {broker} advertise a free port of this host, such as localhost:{address.port + 10_000}"
        remedy = f"{example}, and name under `attach.bootstrap` where it really listens (docs/ATTACH.md)"
        if broker not in real:
            raise ClusterError(
                f"no address under `attach.bootstrap` is that of broker {broker}, so its proxy can't dial it: name the "
                "address of every broker, where it really listens"
            )
        if not is_here(address):
            raise ClusterError(
                f"no proxy can stand before broker {broker}: it advertises {address}, which is no address of this "
                f"host; {remedy}"
            )
        if real[broker].port == address.port:
            raise ClusterError(
                f"no proxy can stand before broker {broker}: it listens itself at {address}, which it advertises; "
                f"{remedy}"
            )
        if not _is_free(address):
            raise ClusterError(
                f"no proxy can stand before broker {broker}: another program listens at {address}, which the broker "
                "advertises; end that program, or, if it is your Toxiproxy, name it under `attach.toxiproxy` and "
                "`attach.proxies`"
            )
    return {broker: (address, real[broker]) for broker, address in advertised.items()}


def _is_free(address: Address) -> bool:
    try:
        with socket.create_server((_ip(address.host), address.port)):
            return True
    except OSError:
        return False


def _ip(host: str) -> str:
    return str(socket.getaddrinfo(host, 0, family=socket.AF_INET, type=socket.SOCK_STREAM)[0][4][0])


def insert(run_id: str, paths: Mapping[int, tuple[Address, Address]], log: Log) -> None:
    """Start Toxiproxy with a proxy for each broker; raise ClusterError or EngineError if it does not start."""
    client = engine.connect()
    image = engine.toxiproxy_image(client, log).name
    with socket.create_server((_LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    with docker_errors(ClusterError, "start a Toxiproxy before the brokers"):
        container = client.containers.run(
            image,
            [f"-host={_LOOPBACK}", f"-port={port}"],
            name=f"{prefix_of(run_id)}-inserted",
            labels={INSERTED: run_id, _API: str(port)},
            network_mode="host",
            detach=True,
        )
    toxiproxy = Toxiproxy(_LOOPBACK, port)

    def missing_state() -> str:
        try:
            toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    if missing := still_lacking(missing_state, _START_S):
        raise ClusterError(
            f"the Toxiproxy before the brokers does not answer ({missing}); the Docker engine must run on this host\n"
            f"{last_log_lines(container)}"
        )
    try:
        toxiproxy.create(
            {
                proxy_name(broker): (f"{_ip(listen.host)}:{listen.port}", f"{_ip(dial.host)}:{dial.port}")
                for broker, (listen, dial) in paths.items()
            }
        )
    except FaultError as error:
        raise ClusterError(f"the Toxiproxy before the brokers can't listen where they advertise: {error}") from error


def find(run_id: str) -> Toxiproxy | None:
    """Return the client of the Toxiproxy that a run has inserted; None if its container is gone."""
    client = engine.connect()
    with docker_errors(ClusterError, "find the Toxiproxy before the brokers"):
        running: list[Any] = client.containers.list(filters={"label": f"{INSERTED}={run_id}"}, ignore_removed=True)
    return Toxiproxy(_LOOPBACK, int(running[0].labels[_API])) if running else None


def remove(client: docker.DockerClient, run_id: str) -> None:
    """Remove the Toxiproxy that a run has inserted; raise ClusterError if the engine refuses."""
    with docker_errors(ClusterError, "remove the Toxiproxy before the brokers"):
        for container in client.containers.list(all=True, filters={"label": f"{INSERTED}={run_id}"}):
            with suppress(NotFound):
                container.remove(force=True, v=True)
