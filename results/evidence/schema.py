"""Declared schemas of the evidence tables and of the result tables, in one place.

A column of a table may be added or widened, but is never renamed. Spark always reads tables with the declared schemas,
so an older file gives null for a newer column, and no type is inferred.
"""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "array<string>": ArrayType(StringType()),
    "array<array<bigint>>": ArrayType(ArrayType(LongType())),
}


def _table(columns: str) -> StructType:
    """Parse a schema such as ``seq bigint, error string`` without Spark, whose parser needs a running session."""
    fields = [column.split() for column in columns.split(",")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in fields])


OUTCOMES = _table(
    """
    workload string, arm string, client string, op string, producer_id int, seq bigint,
    topic string, topic_id string, partition int, offset bigint, group string, member string,
    leader_epoch int, broker_id int, broker_rack string, client_rack string, high_watermark bigint,
    intended_us bigint, deadline_us bigint, sent_us bigint, done_us bigint,
    attempts int, bytes int, status string, error string, worker string
    """
)
LOG = _table(
    """
    topic string, topic_id string, partition int, offset bigint, producer_id int, seq bigint, error string,
    leader_epoch int, timestamp_ms bigint, key_hash bigint
    """
)
METRICS = _table("t_us bigint, broker_id int, name string, value double")

# The content of each replica after the last heal, a row per range of offsets.
REPLICAS = _table(
    """
    topic string, topic_id string, partition int, broker_id int, start_offset bigint, end_offset bigint,
    records bigint, fingerprint bigint, error string
    """
)

# Entries that group coordinators wrote about the groups' progress; share coordinators write no ``committed``.
OFFSETS = _table(
    """
    broker_id int, partition int, offset bigint, batch bigint, leader_epoch int, transactional boolean,
    group string, topic string, topic_partition int, committed bigint, timestamp_ms bigint
    """
)

# Transactions of producers, as their producers know them; a row per transaction.
TRANSACTIONS = _table(
    """
    workload string, arm string, client string, worker string, producer_id int, number bigint,
    first_seq bigint, last_seq bigint, transactional_id string, kafka_producer_id bigint, kafka_epoch int,
    version int, intended string, outcome string, commit_asked boolean, due_us bigint, begin_us bigint, sent_us bigint,
    asked_us bigint, done_us bigint, error string
    """
)

# Batches of the logs to which transactional producers write, among them the markers that end transactions.
BATCHES = _table(
    """
    topic string, topic_id string, partition int, first_offset bigint, last_offset bigint, leader_epoch int,
    kafka_producer_id bigint, kafka_epoch int, base_sequence int, transactional boolean, marker string,
    coordinator_epoch int
    """
)

TABLES = {
    "outcomes": OUTCOMES,
    "log": LOG,
    "metrics": METRICS,
    "replicas": REPLICAS,
    "offsets": OFFSETS,
    "transactions": TRANSACTIONS,
    "batches": BATCHES,
}

# Silver: the count of each latency by everything that a check may select; null latency is censored.
LATENCY_HIST = _table(
    """
    client string, metric string, segment int, start_us bigint, end_us bigint, windows array<string>,
    client_rack string, broker_rack string, latency_us bigint, n bigint, bytes bigint
    """
)

# Gold: the checks of the verdict.
CHECKS = _table(
    """
    id string, kind string, subject string, arm string, phase string, status string,
    observed double, threshold double, unit string, n bigint, minimum bigint, censored bigint,
    at string, why string, next string, samples array<array<bigint>>, gate boolean, share double,
    finding string, explained array<string>
    """
)
