"""Clients whose version can be chosen: the shipped programs around them, and versions that are known to work."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftershock.errors import ProgramError
from aftershock.faults.sections.document import did_you_mean
from aftershock.faults.sections.workloads import VERSION_PATTERN
from aftershock.harness.clients.recipes import Recipe, go, java, librdkafka, node, python, rust


@dataclass(frozen=True)
class Library:
    """Client library, where its versions come from, and known versions, from the oldest to the newest.

    The known versions were built; the nightly examines the oldest and the newest (``test_foreign_clients.py``).
    """

    title: str
    registry: str
    recipe: Recipe
    known: Sequence[str]


CATALOGUE: Mapping[str, Library] = {
    "librdkafka": Library(
        "librdkafka",
        "the Go module confluent-kafka-go, or newer releases from the Python package confluent-kafka",
        librdkafka(),
        (
            "1.8.2",
            "1.9.0",
            "2.2.0",
            "2.3.0",
            "2.4.0",
            "2.5.0",
            "2.6.1",
            "2.8.0",
            "2.10.0",
            "2.12.0",
            "2.15.1",
            "2.16.0",
        ),
    ),
    "java": Library("Kafka's Java client", "org.apache.kafka:kafka-clients", java(), ("3.9.1", "4.3.1")),
    "franz-go": Library(
        "franz-go",
        "the Go module github.com/twmb/franz-go",
        go("franz_go", "github.com/twmb/franz-go", 20),
        ("1.20.2", "1.21.2", "1.21.3", "1.22.3"),
    ),
    "sarama": Library(
        "sarama",
        "the Go module github.com/IBM/sarama",
        go("sarama", "github.com/IBM/sarama", 20, older={"1.3": "github.com/Shopify/sarama"}),
        ("1.43.2", "1.43.3", "1.45.0", "1.45.1", "1.61.1"),
    ),
    "kafka-go": Library(
        "kafka-go",
        "the Go module github.com/segmentio/kafka-go",
        go("kafka_go", "github.com/segmentio/kafka-go", 20),
        ("0.4.48", "0.4.51"),
    ),
    "kafka-python": Library(
        "kafka-python",
        "the Python package kafka-python",
        python("kafka_python_client", "kafka-python"),
        ("3.0.5", "3.0.6", "3.0.12"),
    ),
    "aiokafka": Library(
        "aiokafka",
        "the Python package aiokafka",
        python("aiokafka_client", "aiokafka"),
        ("0.12.0", "0.13.0", "0.14.0"),
    ),
    "confluent-kafka-javascript": Library(
        "confluent-kafka-javascript",
        "the npm package @confluentinc/kafka-javascript",
        node("confluent_javascript", "@confluentinc/kafka-javascript", 300, compiles=True),
        ("1.9.0",),
    ),
    "rdkafka": Library("rdkafka (Rust)", "the crate rdkafka", rust("rdkafka", "rdkafka", 180), ("0.36.2", "0.39.0")),
    "kafkajs": Library("KafkaJS", "the npm package kafkajs", node("kafkajs", "kafkajs", 10), ("2.2.3", "2.2.4")),
}


def parse(text: str) -> tuple[str, str]:
    """Return client and version of ``CLIENT@VERSION``; raise ProgramError for other text."""
    client, _, version = text.partition("@")
    if client not in CATALOGUE:
        raise ProgramError(f"{text}: no version of `{client}` can be chosen; {did_you_mean(client, CATALOGUE)}")
    if not re.fullmatch(VERSION_PATTERN, version):
        raise ProgramError(f"{text}: name a version, such as {client}@{CATALOGUE[client].known[-1]}")
    return client, version
