"""Where a Toxiproxy can be put before a user's brokers, and why not elsewhere."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from aftershock.errors import ClusterError
from aftershock.harness.attach import inserted_proxy as module
from aftershock.harness.attach.inserted_proxy import routes
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.kafka.wire.security import PLAINTEXT

REAL = {1: Address("localhost", 19092), 2: Address("localhost", 29092)}
BOOTSTRAP = "localhost:19092,localhost:29092"


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def two_free() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return int(one.getsockname()[1]), int(other.getsockname()[1])


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers that answer where they really listen."""

    class Connection:
        def __init__(self, address: Address, *_: object) -> None:
            if address not in REAL.values():
                raise ConnectionRefusedError("refused")
            self.address = address

        def __enter__(self) -> object:
            return SimpleNamespace(address=self.address)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(module, "Connection", Connection)
    monkeypatch.setattr(
        module, "own_ids", lambda there, _: [broker for broker, real in REAL.items() if real == there.address]
    )


def test_a_proxy_listens_where_a_broker_advertises_and_dials_where_it_listens(two_free: tuple[int, int]) -> None:
    advertised = {1: Address("localhost", two_free[0]), 2: Address("127.0.0.1", two_free[1])}
    assert routes(BOOTSTRAP, advertised, PLAINTEXT) == {broker: (advertised[broker], REAL[broker]) for broker in (1, 2)}


def test_a_broker_that_listens_where_it_advertises_is_refused() -> None:
    with pytest.raises(
        ClusterError, match="before broker 1: it listens itself at localhost:19092, which it advertises"
    ):
        routes(BOOTSTRAP, REAL, PLAINTEXT)


def test_an_address_elsewhere_is_refused(free: int) -> None:
    advertised = {1: Address("localhost", free), 2: Address("192.0.2.1", free)}
    with pytest.raises(
        ClusterError, match=r"broker 2: it advertises 192\.0\.2\.1:\d+, which is no address of this host"
    ):
        routes(BOOTSTRAP, advertised, PLAINTEXT)


def test_a_port_of_another_program_is_refused(free: int, taken: int) -> None:
    advertised = {1: Address("localhost", free), 2: Address("localhost", taken)}
    with pytest.raises(ClusterError, match=f"broker 2: another program listens at localhost:{taken}"):
        routes(BOOTSTRAP, advertised, PLAINTEXT)


def test_each_broker_must_be_under_bootstrap(two_free: tuple[int, int]) -> None:
    advertised = {1: Address("localhost", two_free[0]), 2: Address("localhost", two_free[1])}
    with pytest.raises(ClusterError, match=r"no address under `attach\.bootstrap` is that of broker 2"):
        routes("localhost:19092", advertised, PLAINTEXT)
    with pytest.raises(ClusterError, match="no broker answers at localhost:9"):
        routes("localhost:9", advertised, PLAINTEXT)
