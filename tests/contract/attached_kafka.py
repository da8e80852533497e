"""A foreign Kafka for tests: one node with a listener for each kind of security, behind its own Toxiproxy.

::

    clients ──▶ secure (SASL_SSL), mutual (mTLS), open (SASL_PLAINTEXT), admin (SASL_SSL) ──▶ Toxiproxy ──▶ the
broker     test ─────▶ back (PLAINTEXT) ────────────────────────────────────────────────────────┘

Its containers have the test's labels, so that they are always removed; in every other respect it differs from a
cluster of `aftershock cluster up`.
"""

import io
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from aftershock.errors import FaultError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.node import host_ports
from aftershock.harness.cluster.proxies import Toxiproxy
from aftershock.harness.kafka.admin import TOPIC, Admin, still_lacking
from aftershock.harness.kafka.settings import topic_ids
from aftershock.harness.safety import ownership
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.load.logread import Topic, end_offsets

# The tests search all output for this secret.
USER, PASSWORD = "alice", "open-sesame-4711"
KEY_PASSWORD = "sesame-of-the-key-42"  # noqa: S105
LISTENERS = {"secure": 9193, "mutual": 9194, "open": 9195, "admin": 9196, "back": 9197}
PROTOCOLS = {
    "SECURE": "SASL_SSL",
    "MUTUAL": "SSL",
    "OPEN": "SASL_PLAINTEXT",
    "ADMIN": "SASL_SSL",
    "BACK": "PLAINTEXT",
    "INSIDE": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
}
_API = 8474
_RUN = "/etc/kafka/docker/run"
_SHARED = "/mnt/shared/config"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class TheirKafka:
    """Addresses: ``ports`` on loopback by listener, ``toxiproxy``; folder with certificates; name of the container."""

    ports: dict[str, int]
    toxiproxy: Toxiproxy
    certificates: Path
    container: str

    def bootstrap(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"

    def attach(self, listener: str, security: str) -> str:
        """Return an ``attach`` section in YAML's flow style."""
        return (
            f"{{bootstrap: '{self.bootstrap(listener)}', toxiproxy: '{self.toxiproxy.url}', "
            f"proxies: {{theirs-{listener}: 1}}, security: {security}}}"
        )

    def security(self, listener: str, mechanism: str = "SCRAM-SHA-512") -> str:
        """Return the ``security`` section for a listener."""
        login = f"mechanism: {mechanism}, user: {USER}, password: '${{KAFKA_PASSWORD}}'"
        ca = f"ca: {self.certificates / 'ca.pem'}"
        ours = f"certificate: {self.certificates / 'client.pem'}, key: {self.certificates / 'client.key'}"
        return {
            "secure": f"{{protocol: SASL_SSL, {login}, {ca}}}",
            "admin": f"{{protocol: SASL_SSL, {login}, {ca}}}",
            "mutual": f"{{protocol: SSL, {ca}, {ours}, key_password: '${{KEY_PASSWORD}}'}}",
            "open": f"{{protocol: SASL_PLAINTEXT, {login}}}",
        }[listener]

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap("back"), "log_level": 2})

    def state(self) -> dict[str, Any]:
        """Return everything that no run may change: topics by id, the foreign topic's end, settings, proxies,
        toxics.
        """
        admin = Admin({BrokerId(1): Address("localhost", self.ports["back"])})
        try:
            ends = end_offsets(self.bootstrap("back"), [Topic("foreign", "", 1)], 20)
            configs = {name: admin.configs(TOPIC, name) for name in ("orders", "foreign")}
            ids = {name: id_ for name, id_ in topic_ids(admin).items() if not name.startswith("__")}
        finally:
            admin.close()
        proxies = (self.toxiproxy.toxics(), self.toxiproxy.disabled(), self.toxiproxy.upstreams())
        return {"topics": ids, "foreign": ends, "configs": configs, "proxies": proxies}

    def create(self, topic: str, partitions: int = 3) -> None:
        admin = self.admin()  # The admin client must live until its futures are done.
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)

    def fill(self, topic: str, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap("back"), "log_level": 2})
        for number in range(records):
            producer.produce(topic, f"theirs {number}".encode(), partition=0)
        assert 0 == producer.flush(20)


@contextmanager
def their_kafka(home: Path) -> Iterator[TheirKafka]:
    """Run the foreign Kafka until the block ends."""
    certificates(home)
    client = engine.connect()
    run_id = f"theirs-{home.name}"
    marks = ownership.labels_of(run_id, home, keep=False)
    try:
        network = client.networks.create(run_id, labels=marks)
        proxy = _toxiproxy(client, network.name, marks)
        ports = {name: host_ports(proxy)[port] for name, port in LISTENERS.items()}
        theirs = TheirKafka(ports, Toxiproxy("127.0.0.1", host_ports(proxy)[_API]), home, f"{network.name}-kafka")
        _populate(theirs.toxiproxy)
        _broker(client, network.name, marks, theirs)
        _await_users(theirs)
        yield theirs
    finally:
        ownership.remove_run(client, run_id)
        client.close()


def certificates(home: Path) -> None:
    """Create an authority, the broker's certificate for localhost, and a client's, all PEM; the client's key is
    encrypted.
    """
    ca, days = home / "ca.pem", ("-days", "2")
    authority = ("-newkey", "rsa:2048", "-nodes", "-keyout", home / "ca.key", "-subj", "/CN=theirs")
    _openssl("req", "-x509", *authority, "-out", ca, *days)
    (home / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("broker", "client"):
        key, request = home / f"{name}.key", home / f"{name}.csr"
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        issuer = ("-CA", ca, "-CAkey", home / "ca.key", "-CAcreateserial", "-extfile", home / "names")
        _openssl("x509", "-req", "-in", request, *issuer, "-out", home / f"{name}.pem", *days)
    # PBES1 is the only encryption of a PEM key that Kafka's Java clients support.
    secret = ("-v1", "PBE-SHA1-3DES", "-passout", f"pass:{KEY_PASSWORD}")
    _openssl("pkcs8", "-topk8", *secret, "-in", home / "client.key", "-out", home / "encrypted.key")
    (home / "encrypted.key").replace(home / "client.key")


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def _toxiproxy(client: docker.DockerClient, network: str, marks: dict[str, str]) -> Any:
    container = client.containers.run(
        engine.toxiproxy_image(client, print).name,
        ["-host=0.0.0.0"],
        detach=True,
        labels=marks,
        network=network,
        ports={f"{port}/tcp": ("127.0.0.1", None) for port in (_API, *LISTENERS.values())},
    )
    container.reload()
    return container


def _populate(toxiproxy: Toxiproxy) -> None:
    def lacking() -> str:
        try:
            toxiproxy.version()
        except FaultError as error:
            return str(error)
        return ""

    missing = still_lacking(lacking, 10)
    assert not missing, missing
    wanted = [
        {"name": f"theirs-{name}", "upstream": f"broker:{port}", "listen": f"0.0.0.0:{port}"}
        for name, port in LISTENERS.items()
    ]
    toxiproxy._request("post", "/populate", json=wanted)


def _broker(client: docker.DockerClient, network: str, marks: dict[str, str], theirs: TheirKafka) -> Any:
    container = client.containers.create(
        engine.kafka_image(client, engine.DEFAULT_KAFKA, print).name,
        [_RUN],
        name=theirs.container,
        environment={
            "CLUSTER_ID": "dGhlaXJzLW9uZS1ub2RlMQ",
            "KAFKA_HEAP_OPTS": "-Xms192m -Xmx256m",
            "KAFKA_JVM_PERFORMANCE_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        labels=marks,
        networking_config={network: client.api.create_endpoint_config(aliases=["broker"])},
        network=network,
    )
    properties = "\n".join(_properties(theirs.ports)) + "\n"
    pem = (theirs.certificates / "broker.key").read_text() + (theirs.certificates / "broker.pem").read_text()
    files = {"server.properties": properties, "broker.pem": pem, "ca.pem": (theirs.certificates / "ca.pem").read_text()}
    container.put_archive(_SHARED, _tar(files))
    container.start()
    return container


def _properties(ports: dict[str, int]) -> Sequence[str]:
    inside = {**{name.upper(): port for name, port in LISTENERS.items()}, "INSIDE": 9092, "CONTROLLER": 9093}
    outside = [f"{name.upper()}://localhost:{port}" for name, port in ports.items()]
    return [
        "node.id=1",
        "process.roles=broker,controller",
        "broker.rack=use1-az1",
        "controller.quorum.voters=1@localhost:9093",
        "controller.listener.names=CONTROLLER",
        "inter.broker.listener.name=INSIDE",
        f"listeners={','.join(f'{name}://:{port}' for name, port in inside.items())}",
        f"advertised.listeners={','.join([*outside, 'INSIDE://broker:9092'])}",
        f"listener.security.protocol.map={','.join(f'{name}:{protocol}' for name, protocol in PROTOCOLS.items())}",
        "log.dirs=/var/lib/kafka/data",
        "offsets.topic.replication.factor=1",
        "offsets.topic.num.partitions=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "group.initial.rebalance.delay.ms=0",
        "auto.create.topics.enable=false",
        "log.cleaner.dedupe.buffer.size=16777216",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={_SHARED}/broker.pem",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={_SHARED}/ca.pem",
        "listener.name.mutual.ssl.client.auth=required",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        *(
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config={config}"
            for listener in ("secure", "open", "admin")
            for mechanism, config in (
                ("plain", f'{_PLAIN} required user_{USER}="{PASSWORD}";'),
                ("scram-sha-256", f"{_SCRAM} required;"),
                ("scram-sha-512", f"{_SCRAM} required;"),
            )
        ),
    ]


def _tar(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _await_users(theirs: TheirKafka) -> None:
    """Wait until the broker has accepted both SCRAM credentials."""
    wanted = [
        UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    admin = theirs.admin()

    def lacking() -> str:
        try:
            for each in wanted:  # Kafka accepts one credential of a user at a time.
                admin.alter_user_scram_credentials([each], request_timeout=3)[USER].result(5)
        except Exception as error:  # noqa: BLE001  # Any error means that the broker is not up yet.
            return str(error)
        return ""

    missing = still_lacking(lacking, 60)
    assert not missing, missing
