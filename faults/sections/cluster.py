"""Cluster section of a plan, which describes a cluster to launch, or a running cluster to attach to.

On an attached cluster, a run changes only the proxies, brokers and topics that the plan names (``docs/ATTACH.md``). A
plan contains no secrets, only names of environment variables, ``${NAME}``; a message that refuses a literal secret does
not repeat the secret.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from aftershock.faults.sections.units import Size

NODES_MAX = 9
RACKS_MAX = 5
_MIB = 1_048_576
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_HOST_PORT = r"[^\s,/@]+:\d{1,5}"
RELEASE = r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}"
"""Regular expression of a released version of Kafka."""
RELEASES = ("4.3.1", "4.2.1", "4.1.2", "4.0.0", "3.9.1", "3.8.1", "3.7.0")
"""A released version of each minor version that can be launched, newest first."""


def text_of(value: object) -> object:
    """Convert YAML scalars to text, as Kafka's configs require, for example ``true`` to ``"true"``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _version(value: object) -> object:
    """Return a version of Kafka in full; raise ValueError with the version that was probably meant."""
    text = str(text_of(value))
    if text == "default" or re.fullmatch(RELEASE, text):
        return text
    meant = next((version for version in RELEASES if version.startswith(f"{text}.")), RELEASES[0])
    raise ValueError(f"`{text[:40]}` is not a version of Kafka: write all its three numbers, such as {meant}")


def _variable(value: object) -> object:
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        return value
    raise ValueError("a plan must not contain a secret: put it into an environment variable and write ${ITS_NAME} here")


RackName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,7}$")]
ConfigText = Annotated[str, BeforeValidator(text_of)]
Secret = Annotated[str, BeforeValidator(_variable), WithJsonSchema({"type": "string", "pattern": _VARIABLE.pattern})]
Hosts = Annotated[str, Field(pattern=rf"^{_HOST_PORT}(,{_HOST_PORT})*$")]
HostPort = Annotated[str, Field(pattern=rf"^(http://)?{_HOST_PORT}/?$")]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
BrokerId = Annotated[StrictInt, Field(ge=0)]
ContainerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
PodName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Context = Annotated[str | None, Field(min_length=1, max_length=253)]
BrokerNumber = Annotated[int, Field(ge=1, le=NODES_MAX)]


class Part(BaseModel):
    """Base of the models of a plan's parts, which refuse unknown keys and have frozen instances."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Security(Part):
    """Connection security of clients and harness, in Kafka's terms.

    Certificate and key files are PEM; paths are relative to the working directory. ``ca`` has the trusted certificate
    authorities, by default the system's. ``certificate`` and ``key`` are the client's credentials for mTLS.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    user: str | None = None
    password: Secret | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: Secret | None = None
    verify_hostname: StrictBool = True

    @model_validator(mode="after")
    def _complete(self) -> Self:
        login, files = ("mechanism", "user", "password"), ("ca", "certificate", "key", "key_password")
        is_sasl, is_ssl = self.protocol.startswith("SASL"), self.protocol.endswith("SSL")
        if is_sasl and (missing := [name for name in login if not getattr(self, name)]):
            raise ValueError(f"`protocol: {self.protocol}` needs `{missing[0]}`: add `{missing[0]}`")
        for layer, is_used, names in (("SASL", is_sasl, login), ("SSL", is_ssl, files)):
            if not is_used and (needless := [name for name in names if getattr(self, name) is not None]):
                sentence = f"`{needless[0]}` only applies to {layer}, and the protocol is {self.protocol}"
                raise ValueError(f"{sentence}: remove `{needless[0]}`")
        if bool(self.certificate) != bool(self.key) or (self.key_password and not self.key):
            raise ValueError(
                "`certificate` and `key` belong together, and `key_password` needs `key`: add what is missing"
            )
        return self


class AttachKubernetes(Part):
    """Pods of the brokers of an attached cluster, which faults may stop and delete (``docs/KUBERNETES.md``).

    ``pods`` is a selector of labels, such as ``strimzi.io/cluster=prod``, in the namespace; ``brokers`` names the pod
    of each broker instead, and takes its place when a run begins. ``container`` is the broker's container in each pod.
    ``context`` is a context of the kubeconfig, by default its current one. ``agent`` permits a privileged pod beside
    the brokers for the time of the run, from which their processes can be killed and stopped. ``nodes`` permits to
    take Kubernetes nodes of the brokers out of service (``drain``), so that no pod at all is placed there meanwhile.
    """

    namespace: Namespace
    pods: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    brokers: dict[Annotated[int, Field(ge=0)], PodName] = {}
    container: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")] = "kafka"
    context: Context = None
    agent: StrictBool = False
    nodes: StrictBool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.pods) == bool(self.brokers):
            raise ValueError(
                "name the brokers' pods: write `pods`, a selector of labels, or `brokers`, the pod of each broker"
            )
        if len(set(self.brokers.values())) < len(self.brokers):
            raise ValueError("two brokers have the same pod under `brokers`: name the pod of each broker")
        return self


class Attach(Part):
    """A running cluster to attach to, and the parts of this cluster that the run may change.

    ``bootstrap`` has the broker addresses (``host:port``) for clients, separated by commas. ``admin`` has the broker
    addresses for the harness itself, if a network path exists that no fault affects. ``rack`` is the name of the
    clients' location in link selectors, for example the ``a`` of ``client(a) -> broker(1)``. ``racks`` has the plan's
    names for brokers' racks whose own names (``broker.rack``) are not valid in a plan. ``toxiproxy`` is the address of
    the API of your Toxiproxy. ``proxies`` lists the Toxiproxy proxies that faults may use, each with the broker that
    clients reach through it. With ``proxy: insert`` a Toxiproxy is put before the brokers for the time of the run,
    where they advertise free ports of this host. ``brokers`` lists the brokers whose own settings and fetch sessions
    faults may change.
    ``create`` lists the topics that the run creates, and deletes at its end; all other topics of the plan must exist.
    ``containers`` has the Docker containers of brokers that faults may kill, stop, pause, restart, limit, and cut off
    from the network. ``compose`` (a compose file, by a path relative to the working directory) and ``labels`` (of
    Docker) select these containers instead; when a run begins, ``containers`` takes their place. ``kubernetes`` selects
    the brokers' pods on a Kubernetes cluster.
    """

    bootstrap: Hosts
    admin: Hosts | None = None
    rack: RackName = "a"
    racks: dict[RackName, str] = {}
    toxiproxy: HostPort | None = None
    proxies: dict[str, BrokerId] = {}
    proxy: Literal["insert"] | None = None
    brokers: tuple[BrokerId, ...] = ()
    create: tuple[TopicName, ...] = ()
    containers: dict[Annotated[int, Field(ge=0)], ContainerName] = {}
    compose: Annotated[str, Field(min_length=1)] | None = None
    labels: dict[Annotated[str, Field(pattern=r"^[^\s=,]+$")], str] = {}
    kubernetes: AttachKubernetes | None = None
    security: Security = Security()

    @field_validator("security", mode="before")
    @classmethod
    def _is_mapping(cls, value: Any) -> Any:
        if isinstance(value, dict | Security):
            return value
        raise ValueError("write `security` as a mapping: `protocol`, `mechanism`, `user`, `password: ${NAME}`, `ca`, …")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.proxies) != bool(self.toxiproxy):
            raise ValueError("`toxiproxy` (its API) and `proxies` (the usable proxies) belong together: give both")
        if self.proxy and self.toxiproxy:
            raise ValueError("`proxy: insert` puts a Toxiproxy before the brokers: remove it, or your own `toxiproxy`")
        if len(set(self.proxies.values())) < len(self.proxies):
            raise ValueError("two of the `proxies` lead to one broker: keep only the proxy that the clients use")
        given = [name for name in ("containers", "compose", "labels", "kubernetes") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"`{given[0]}` and `{given[1]}` both select the brokers' processes: remove one of the two")
        if len(set(self.containers.values())) < len(self.containers):
            raise ValueError(
                "two brokers have the same container under `containers`: name the container of each broker"
            )
        if len(set(self.racks.values())) < len(self.racks):
            raise ValueError("two of the `racks` have the same value of `broker.rack`: remove one of the two")
        return self

    @property
    def has_proxies(self) -> bool:
        """True if faults may use proxies before brokers, those of the plan or those that a run inserts."""
        return bool(self.proxies or self.proxy)

    @property
    def has_containers(self) -> bool:
        """True if faults may use containers of brokers, whether they are already known or not."""
        return bool(self.containers or self.compose or self.labels)

    @property
    def pods(self) -> Mapping[int, str]:
        """Pods of brokers, by broker id; empty as long as only a selector of them is known."""
        return self.kubernetes.brokers if self.kubernetes else {}

    @property
    def changes_processes(self) -> bool:
        """True if faults may stop processes of brokers, in containers or in pods."""
        return self.has_containers or self.kubernetes is not None


class Disks(Part):
    """Log directories, ``count`` for each broker, each with an own file system of ``size`` bytes in memory.

    These log directories exist as long as the cluster, and never contain the metadata log.
    """

    count: Annotated[StrictInt, Field(ge=1, le=4)] = 1
    size: Annotated[Size, Field(ge=16 * _MIB, le=1024 * _MIB)] = 64 * _MIB


class BlockDevice(Part):
    """An own block device for the log directory of each node: an ext4 file system of ``size`` bytes on a loop device.

    Its power can be cut, unlike that of a directory on the Docker engine's disk. Unused bytes take no space. With
    ``sync``, every write is on the device before the broker continues (mount option of the same name). With
    ``flush_boot``, all that a node wrote at its first start is on the device before the load starts. With ``layer``,
    reads, writes and fsyncs of the device can be made slow or faulty.
    """

    size: Annotated[Size, Field(ge=256 * _MIB, le=16_384 * _MIB)] = 1024 * _MIB
    sync: StrictBool = False
    flush_boot: StrictBool = True
    layer: StrictBool = False


class Kubernetes(Part):
    """Launch on a Kubernetes cluster in the place of the Docker engine (``docs/KUBERNETES.md``).

    ``context`` is a context of the kubeconfig, by default its current one. ``namespace: auto`` makes a namespace for
    the run, and removes it afterwards; another one must exist, and be allowed on the command line. ``storage_class`` is
    that of the brokers' volumes, by default the cluster's own default. ``node_selector`` has the labels of the nodes
    that may have pods of the run, ``zones`` the zone (``topology.kubernetes.io/zone``) of each rack. ``nodes`` permits
    to take Kubernetes nodes out of service (``drain``), so that no pod at all is placed there meanwhile.
    """

    context: Context = None
    namespace: Namespace = "auto"
    storage_class: Annotated[str | None, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,252}$")] = None
    node_selector: dict[Annotated[str, Field(min_length=1, max_length=317)], ConfigText] = {}
    zones: dict[RackName, Annotated[str, Field(min_length=1, max_length=63)]] = {}
    nodes: StrictBool = False


class Cluster(Part):
    """The cluster under test.

    ``racks`` maps a rack to its number of brokers; ``attach`` describes a running cluster and excludes all other keys
    of the section.
    """

    kafka: Annotated[str, BeforeValidator(_version), Field(pattern=rf"^(default|{RELEASE})$")] = "default"
    image: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9][a-z0-9._/:-]*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$",
            description="a Docker image of your own that is on the engine, in the place of `kafka` (docs/KAFKA.md)",
        ),
    ] = None
    racks: Annotated[
        dict[RackName, Annotated[StrictInt, Field(ge=1, le=NODES_MAX)]], Field(min_length=1, max_length=RACKS_MAX)
    ] = {"a": 1, "b": 1, "c": 1}
    profile: Literal["fast", "production"] = "fast"
    heap: Annotated[
        Size | None,
        Field(ge=128 * _MIB, le=4096 * _MIB, description="heap of each node's JVM, by default the profile's"),
    ] = None
    controllers: Annotated[
        Literal[0, 1, 3, 5],
        Field(description="number of isolated controllers; with 0, the brokers are the controllers too"),
    ] = 0
    disks: Disks | None = None
    block_device: Annotated[
        BlockDevice | None,
        Field(description="an own block device for each node; always there if a fault of the plan needs it"),
    ] = None
    wire_proxy: Annotated[
        StrictBool | Literal["observe"],
        Field(
            description="clients connect through the wire proxy; always true if the plan has a protocol fault; with "
            "`observe` it counts what each client fetches"
        ),
    ] = False
    packets: Annotated[
        StrictBool | None,
        Field(description="packets of the links can be dropped; always true if the plan has a packet fault"),
    ] = None
    hosts: Annotated[
        StrictBool | None,
        Field(description="the address of each node outlives its process; always true if a `kill` has `host: stays`"),
    ] = None
    gc_pauses: Annotated[
        StrictBool | None,
        Field(description="collections can stop the JVM of each node; always true if the plan has a `gc_pause`"),
    ] = None
    jmx: Annotated[
        StrictBool | None,
        Field(
            description="metrics of brokers are read through JMX, at both ends of the steady phase and after the load"
        ),
    ] = None
    clocks: Annotated[
        StrictBool | None,
        Field(description="the wall clock of each node can be moved; always true if the plan has a clock fault"),
    ] = None
    config: Annotated[
        dict[str, ConfigText], Field(description="settings of every node; an empty value stands for Kafka's default")
    ] = {}
    features: Annotated[
        dict[str, Annotated[StrictInt, Field(ge=0)]] | None,
        Field(description="levels of Kafka's features that differ from those of a new cluster (KIP-584)"),
    ] = None
    brokers: Annotated[
        dict[BrokerNumber, Annotated[dict[str, ConfigText], Field(min_length=1)]] | None,
        Field(description="settings of one broker, by its number: they override `config`"),
    ] = None
    kubernetes: Annotated[
        Kubernetes | None,
        Field(description="launch on a Kubernetes cluster, in the place of the Docker engine (docs/KUBERNETES.md)"),
    ] = None
    attach: Attach | None = None

    @field_validator("racks")
    @classmethod
    def _not_too_many(cls, racks: dict[str, int]) -> dict[str, int]:
        if sum(racks.values()) > NODES_MAX:
            raise ValueError(f"{sum(racks.values())} brokers are too many for one host: use {NODES_MAX} at most")
        return racks

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.attach and (needless := sorted(self.model_fields_set - {"attach"})):
            raise ValueError(f"`{needless[0]}` is for launching a cluster, and `attach` is given: remove either")
        if self.image and self.kafka != "default":
            raise ValueError("`kafka` is a version of Kafka's own image, and `image` is another image: remove either")
        if self.kubernetes and self.kubernetes.zones and self.kubernetes.zones.keys() != self.racks.keys():
            racks, zones = ", ".join(self.racks), ", ".join(self.kubernetes.zones)
            raise ValueError(f"`kubernetes.zones` has the racks {zones}, and the cluster has {racks}: name each once")
        if self.disks and self.block_device:
            raise ValueError("`disks` keeps logs in memory, and `block_device` on a device: remove one of the two")
        if unknown := sorted(self.brokers.keys() - self.broker_racks.keys()) if self.brokers else []:
            last = len(self.broker_racks)
            raise ValueError(f"`brokers` has settings for broker {unknown[0]}: the cluster's brokers are 1 to {last}")
        return self

    @property
    def broker_racks(self) -> dict[int, str]:
        """Rack of each broker; brokers are numbered from 1, rack after rack, in the order of the plan."""
        racks = [rack for rack, brokers in self.racks.items() for _ in range(brokers)]
        return dict(enumerate(racks, start=1))

    @property
    def node_racks(self) -> dict[int, str]:
        """Rack of each node; isolated controllers are numbered from 11 and assigned to the racks in turn."""
        racks = list(self.racks)
        return self.broker_racks | {11 + i: racks[i % len(racks)] for i in range(self.controllers)}
