"""Properties of a Toxiproxy image that the harness relies on, tested on the present image: the official one, or
ours.
"""

import re
from collections.abc import Iterator

import pytest
import requests
from requests.adapters import HTTPAdapter, Retry

from aftershock.harness.cluster import engine
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import labels_of, remove_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(60)]

RUN_ID = "contract-toxiproxy-image"
PROXIED = "9000/tcp"
RECEIVED = r'^toxiproxy_proxy_received_bytes_total\{direction="(\w+)",.*proxy="itself".*\} (\S+)$'


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """A running server; the host's port for each of the container's ports."""
    client = engine.connect()
    image = engine.toxiproxy_image(client, print).name
    try:
        container = client.containers.run(
            image,
            ["-host=0.0.0.0", "-proxy-metrics"],
            detach=True,
            labels=labels_of(RUN_ID, tmp_path_factory.mktemp("toxiproxy"), keep=False),
            ports={"8474/tcp": ("127.0.0.1", None), PROXIED: ("127.0.0.1", None)},
        )
        container.reload()
        yield {inside: int(outside[0]["HostPort"]) for inside, outside in container.ports.items()}
    finally:
        remove_run(client, RUN_ID)
        client.close()


@pytest.fixture
def http() -> Iterator[requests.Session]:
    # The published port is open before the server behind it listens.
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(8, backoff_factor=0.05, allowed_methods=None)))
        yield session


def test_the_server_reports_the_pinned_version(ports: dict[str, int], http: requests.Session) -> None:
    """An unpinned build would report 2.5.0 or "git"."""
    assert http.get(f"http://127.0.0.1:{ports['8474/tcp']}/version", timeout=5).json() == {"version": engine.TOXIPROXY}


def test_bytes_are_counted_by_proxy_and_direction(ports: dict[str, int], http: requests.Session) -> None:
    """A request through a proxy shows in `-proxy-metrics`, both ways; exposure is measured by them."""
    api = f"http://127.0.0.1:{ports['8474/tcp']}"
    proxy = {"name": "itself", "listen": "0.0.0.0:9000", "upstream": "127.0.0.1:8474"}
    http.post(f"{api}/proxies", json=proxy, timeout=5).raise_for_status()
    http.get(
        f"http://127.0.0.1:{ports[PROXIED]}/version", headers={"Connection": "close"}, timeout=5
    ).raise_for_status()

    def uncounted() -> str:
        # Toxiproxy counts bytes when the copy of a direction has ended, which is after the response has arrived.
        metrics = http.get(f"{api}/metrics", timeout=5).text
        counted = re.findall(RECEIVED, metrics, re.MULTILINE)
        return ", ".join({"upstream", "downstream"} - {direction for direction, count in counted if float(count) > 0})

    assert not still_lacking(uncounted, 10)


def test_the_image_listens_on_all_addresses() -> None:
    """The image's command is the server on all addresses: `docker run` alone gives a usable Toxiproxy."""
    client = engine.connect()
    try:
        config = client.images.get(engine.toxiproxy_image(client, print).name).attrs["Config"]
    finally:
        client.close()
    assert config["Entrypoint"] == ["/toxiproxy"]
    assert config["Cmd"] == ["-host=0.0.0.0"]
