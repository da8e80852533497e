"""The brokers of a cluster that is attached, as one of them tells: where each is dialled, and where it stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest

from aftershock.errors import ClusterError
from aftershock.faults.values import BrokerId
from aftershock.workloads.wire.connection import Address, Connection
from aftershock.workloads.wire.security import Security

_TIMEOUT_S = 10.0
_DESCRIBE_CLUSTER, _VERSION = 60, 2
_VERSIONS = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
_DESCRIBE = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=False)


@dataclass(frozen=True)
class Broker:
    """A broker as the listener that was asked has it; ``rack`` is its own ``broker.rack``."""

    id: BrokerId
    address: Address
    rack: str | None


@dataclass(frozen=True)
class Told:
    """A cluster by its id, and its brokers in order of theirs."""

    cluster_id: str
    brokers: tuple[Broker, ...]


def brokers(bootstrap: str, security: Security) -> Told:
    """What the first of ``bootstrap`` that answers tells.

    Raises:
        ClusterError: nobody does, or the cluster is too old; with what each had to say.
    """
    failures = []
    for address in addresses(bootstrap):
        try:
            with Connection(address, _TIMEOUT_S, security) as connection:
                _check(connection, address)
                answer: Any = connection.ask(_DESCRIBE)
        except OSError as error:
            failures.append(f"{address}: {error}")
        else:
            found = (Broker(BrokerId(b.broker_id), Address(b.host, b.port), b.rack) for b in answer.brokers)
            return Told(str(answer.cluster_id), tuple(sorted(found, key=lambda broker: broker.id)))
    raise ClusterError(f"the attached cluster can't be reached: {'; '.join(failures)}")


def addresses(bootstrap: str) -> Sequence[Address]:
    """Of ``host:port,host:port``. ClusterError for what can't be dialled."""
    split = (item.rpartition(":") for item in bootstrap.split(","))
    try:
        return [Address.checked(host, int(port)) for host, _, port in split]
    except ValueError as error:
        raise ClusterError(f"`bootstrap` of the attached cluster: {error}") from error


def _check(connection: Connection, address: Address) -> None:
    answer: Any = connection.ask(_VERSIONS)
    highest = next((each.max_version for each in answer.api_keys if each.api_key == _DESCRIBE_CLUSTER), -1)
    if highest < _VERSION:
        raise ClusterError(f"the broker at {address} is older than Kafka 4.0, which is the oldest that can be attached")
