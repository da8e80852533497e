"""The Kafka that a client is examined on: anything with these four, best one that can be broken on purpose."""

import time
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from aftershock.errors import WorkloadError

PARTITIONS = 4
_PATIENCE_S = 30.0


class Unbreakable(Exception):  # noqa: N818  # a check is left out, nothing is wrong
    """This cluster isn't ours to break, so what needs that is not examined."""


class Cluster(Protocol):
    """Brokers that keep their logs, and their ports, while they are away."""

    bootstrap: str

    def create(self, topic: str) -> None:
        """Make a topic of PARTITIONS partitions."""

    def down(self) -> None:
        """No broker answers any more, and none can be connected to; ``Unbreakable`` if that can't be."""

    def up(self) -> None:
        """All brokers are back."""


class StandingCluster:
    """Somebody's cluster at an address: topics are created there and left, and nothing is broken."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str) -> None:
        """Make the topic, and wait until every partition has a leader."""
        try:
            self._admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(_PATIENCE_S)
            self._await_leaders(topic)
        except (KafkaException, TimeoutError) as error:
            raise WorkloadError(f"{self.bootstrap} did not create the topic {topic}: {error!r}") from error

    def _await_leaders(self, topic: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while self._led(topic) < PARTITIONS:
            if time.monotonic() > until:
                raise WorkloadError(f"{self.bootstrap} found no leaders for the topic {topic}")
            time.sleep(0.05)

    def _led(self, topic: str) -> int:
        partitions = self._admin.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions.values()
        return sum(partition.leader >= 0 for partition in partitions)

    def down(self) -> None:
        """Not here."""
        raise Unbreakable(f"{self.bootstrap} is not ours to break")

    def up(self) -> None:
        """Nothing was down."""
