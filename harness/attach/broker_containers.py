"""Containers of a user's brokers on this host's Docker engine: which container runs which broker.

A plan names the containers, or selects them by a compose file or by labels. Docker Compose labels each container with
its project and its service, so the containers of a compose file are found without Docker Compose. The broker of a
container is known from, in this order:

1. its environment, by the variables of Apache's, Confluent's and Bitnami's images;
2. ``node.id`` or ``broker.id`` in a mounted file ``server.properties``, or in another mounted ``*.properties``;
3. its published ports, if exactly one broker advertises one of them as an address of this host.

Other containers, Toxiproxy and isolated controllers are no brokers, and are left out.
"""

import io
import re
import socket
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from aftershock.errors import ClusterError
from aftershock.faults.sections.cluster import Attach
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.engine import docker_errors
from aftershock.harness.cluster.node import host_ports
from aftershock.workloads.kafka.wire.connection import Address

PROJECT, SERVICE = "com.docker.compose.project", "com.docker.compose.service"
_ONE_OFF = "com.docker.compose.oneoff"
_IDS = ("KAFKA_NODE_ID", "KAFKA_BROKER_ID", "KAFKA_CFG_NODE_ID", "KAFKA_CFG_BROKER_ID")
_ROLES = ("KAFKA_PROCESS_ROLES", "KAFKA_CFG_PROCESS_ROLES")
_ID_KEYS = ("node.id", "broker.id")
_PROPERTY = re.compile(r"^\s*([\w.]+)\s*[=:]\s*(.*?)\s*$", re.MULTILINE)
_FILE_BYTES_MAX = 1 << 20
_NOT_IN_NAME = re.compile(r"[^a-z0-9_-]")  # of a compose project (Compose Specification, "Name top-level element")


def is_here(address: Address) -> bool:
    """Return True if an address leads to this host: a socket can be bound to it."""
    try:
        infos = socket.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
        with socket.socket(infos[0][0], socket.SOCK_STREAM) as bound:
            bound.bind(infos[0][4])
    except OSError:
        return False
    return True


def configured_id(container: Container) -> int | None:
    """Return the broker id in a container's environment or mounted properties; None for other containers."""
    pairs = (pair.partition("=") for pair in container.attrs["Config"].get("Env") or ())
    environment = {name: value for name, _, value in pairs}
    if is_broker := id_in_environment(environment):
        return is_broker[0]
    for path in _property_paths(container):
        text = _read(container, path)
        if found := _id_in(dict(_PROPERTY.findall(text)), _ID_KEYS, ("process.roles",)):
            return found[0]
    return None


def id_in_environment(environment: Mapping[str, str]) -> tuple[int | None] | None:
    """Return what the variables of the usual images say, as ``_id_in`` does."""
    return _id_in(environment, _IDS, _ROLES)


def _id_in(settings: Mapping[str, str], ids: Iterable[str], roles: Iterable[str]) -> tuple[int | None] | None:
    """Return the id of a broker in settings, as a tuple of (None,) for an isolated controller; None without an id."""
    id_ = next((settings[name] for name in ids if settings.get(name, "").isdecimal()), None)
    if id_ is None:
        return None
    all_roles = [role for name in roles if name in settings for role in settings[name].split(",")]
    return (None,) if all_roles and "broker" not in map(str.strip, all_roles) else (int(id_),)


def _property_paths(container: Container) -> Iterator[str]:
    for mount in container.attrs.get("Mounts") or ():
        target = mount["Destination"].rstrip("/")
        yield target if target.endswith(".properties") else f"{target}/server.properties"


def _read(container: Container, path: str) -> str:
    """Return a text file of a container, also of one that does not run; "" if there is none."""
    try:
        chunks, stat = container.get_archive(path)
        if stat["size"] > _FILE_BYTES_MAX:
            return ""
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member and member.isfile() else None
            return file.read().decode(errors="replace") if file else ""
    except (APIError, tarfile.TarError, KeyError):  # no such file, or a link whose target is not in the archive
        return ""


def is_proxy(container: Container) -> bool:
    return "toxiproxy" in str(container.attrs["Config"]["Image"])


def by_broker(containers: Iterable[Container], advertised: Mapping[int, Address]) -> dict[int, str]:
    """Return the names of the brokers' containers, by broker id, sorted.

    ``advertised`` has the address of each broker by its Metadata, and is empty if no broker was asked. Raises
    ClusterError if two containers are the same broker.
    """
    local = {address.port: broker for broker, address in advertised.items() if is_here(address)}
    found: dict[int, str] = {}
    for container in containers:
        if is_proxy(container):
            continue
        broker = configured_id(container)
        behind = {local[port] for port in host_ports(container).values() if port in local}
        if broker is None and len(behind) == 1:
            broker = min(behind)
        if broker is None:
            continue
        if broker in found:
            raise ClusterError(
                f"the containers {found[broker]} and {container.name} both are broker {broker}: name the container of "
                f"each broker under `attach.containers`, as in {{{broker}: {found[broker]}}}"
            )
        found[broker] = str(container.name)
    return dict(sorted(found.items()))


def select(client: docker.DockerClient, attach: Attach) -> list[Container]:
    """Return the running containers of a plan's compose file, or with the plan's labels.

    Raises ClusterError if there are none, or if the compose file can't be used.
    """
    if attach.compose is None:
        labels = [f"{key}={value}" if value else key for key, value in attach.labels.items()]
        selected = _running(client, labels)
        if not selected:
            raise ClusterError(f"no running container has the labels {', '.join(labels)}: {_projects(client)}")
        return selected
    project, services = read_compose(Path(attach.compose))
    selected = _running(client, [f"{PROJECT}={project}"])
    if not selected:
        raise ClusterError(
            f"no container of the compose project {project} ({attach.compose}) runs: start it with `docker compose up "
            f"-d`, or, if it has another name (option -p), write `labels: {{{PROJECT}: NAME}}`; {_projects(client)}"
        )
    return [container for container in selected if container.labels.get(SERVICE) in services]


def find(client: docker.DockerClient, attach: Attach, advertised: Mapping[int, Address]) -> dict[int, str]:
    """Return the containers of brokers that a plan selects; raise ClusterError if none is a broker's."""
    selected = select(client, attach)
    if found := by_broker(selected, advertised):
        return found
    names = ", ".join(sorted(str(container.name) for container in selected)) or "none of its services"
    place = f"of the compose file {attach.compose}" if attach.compose else "with these labels"
    raise ClusterError(
        f"no container {place} is a broker's among those that run ({names}): a broker has KAFKA_NODE_ID or "
        "KAFKA_BROKER_ID in its environment, a mounted server.properties, or publishes the port that it advertises; "
        "name the containers under `attach.containers`"
    )


def read_compose(path: Path) -> tuple[str, Sequence[str]]:
    """Return the project's name and the services of a compose file; raise ClusterError if the file can't be used.

    Without ``name`` in the file, a project has the name of the file's folder, with the characters that a project's name
    can't have removed (Compose Specification).
    """
    try:
        document = YAML(pure=True).load(path)  # with anchors, and with the tags of Compose, such as !reset
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ClusterError(
            f"the compose file {path} can't be read: {reason}; give its path from the working directory"
        ) from error
    except YAMLError as error:
        raise ClusterError(f"the compose file {path} is not valid YAML: {' '.join(str(error).split())}") from error
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or not services:
        raise ClusterError(f"{path} has no `services`, so it is no compose file: name your docker-compose.yml")
    name = document.get("name")
    if name is not None and (not isinstance(name, str) or "$" in name):
        raise ClusterError(
            f"the `name` in {path} is not a plain text, so the project is unknown: write `labels: {{{PROJECT}: NAME}}` "
            "in the place of `compose`"
        )
    folder = _NOT_IN_NAME.sub("", path.resolve().parent.name.lower()).lstrip("_-")
    return name or folder, tuple(map(str, services))


def _running(client: docker.DockerClient, labels: Sequence[str]) -> list[Container]:
    with docker_errors(ClusterError, "look for the brokers' containers"):
        containers = client.containers.list(filters={"label": list(labels)}, ignore_removed=True)
    return [container for container in containers if container.labels.get(_ONE_OFF) != "True"]


def _projects(client: docker.DockerClient) -> str:
    names = sorted({container.labels[PROJECT] for container in _running(client, [PROJECT])})
    return f"compose projects that run here: {', '.join(names)}" if names else "no compose project runs here"


def refuse_strangers(
    client: docker.DockerClient, containers: Mapping[BrokerId, Container], advertised: Mapping[BrokerId, Address]
) -> None:
    """Raise ClusterError for a container that does not run the broker that the plan says.

    ``containers`` has the running containers that the plan names, ``advertised`` the addresses of all brokers.
    """
    with docker_errors(ClusterError, "look for the brokers' containers"):
        publishers = {
            port: container
            for container in client.containers.list(ignore_removed=True)
            if not is_proxy(container)
            for port in host_ports(container).values()
        }
    for broker, container in containers.items():
        id_ = configured_id(container)
        if id_ is not None and id_ != broker:
            raise ClusterError(
                f"the container {container.name} runs broker {id_} by its settings, not broker {broker}: correct "
                "`attach.containers` in the plan"
            )
        address = advertised[broker]
        publisher = publishers.get(address.port) if is_here(address) else None
        other = publisher if publisher is not None and publisher.id != container.id else None
        if other and (other.id in {c.id for c in containers.values()} or configured_id(other) is not None):
            raise ClusterError(
                f"the container {other.name} publishes the port {address.port} of broker {broker}, not "
                f"{container.name}: correct `attach.containers` in the plan"
            )
        if id_ is None and (publisher is None or other) and not _runs_kafka(container):
            raise ClusterError(
                f"the container {container.name} shows no sign of a broker: no broker id in its environment or mounted "
                f"server.properties, no process of Kafka, and the port {address.port} of broker {broker} is not its "
                "own; correct `attach.containers` in the plan"
            )


def _runs_kafka(container: Container) -> bool:
    """Return True if a process of a container has Kafka in its command, or the processes can't be listed."""
    try:
        listing: Any = container.top()
    except (APIError, NotFound):
        return True
    return any("kafka" in " ".join(row).lower() for row in listing["Processes"] or ())
