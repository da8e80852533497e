"""Declared schemas of the evidence tables (design 5.3) and of the result tables, in one place.

Rules: a column may be added or widened, never renamed. Spark always reads with these schemas, so an older file gives
null for a newer column, and no type is inferred.
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


def _table(columns: dict[str, DataType], required: tuple[str, ...] = ()) -> StructType:
    return StructType([StructField(name, kind, name not in required) for name, kind in columns.items()])


_TEXT, _INT, _LONG, _DOUBLE = StringType(), IntegerType(), LongType(), DoubleType()

OUTCOMES = _table(
    {
        "workload": _TEXT,
        "arm": _TEXT,
        "client": _TEXT,
        "op": _TEXT,
        "producer_id": _INT,
        "seq": _LONG,
        "topic": _TEXT,
        "topic_id": _TEXT,
        "partition": _INT,
        "offset": _LONG,
        "group": _TEXT,
        "member": _TEXT,
        "leader_epoch": _INT,
        "broker_id": _INT,
        "broker_rack": _TEXT,
        "client_rack": _TEXT,
        "high_watermark": _LONG,
        "intended_us": _LONG,
        "deadline_us": _LONG,
        "sent_us": _LONG,
        "done_us": _LONG,
        "attempts": _INT,
        "bytes": _INT,
        "status": _TEXT,
        "error": _TEXT,
    }
)

LOG = _table(
    {
        "topic": _TEXT,
        "topic_id": _TEXT,
        "partition": _INT,
        "offset": _LONG,
        "producer_id": _INT,
        "seq": _LONG,
        "error": _TEXT,
    }
)

METRICS = _table({"t_us": _LONG, "broker_id": _INT, "name": _TEXT, "value": _DOUBLE})

# The content of each replica after the last heal, a row per range of offsets.
REPLICAS = _table(
    {
        "topic": _TEXT,
        "topic_id": _TEXT,
        "partition": _INT,
        "broker_id": _INT,
        "start_offset": _LONG,
        "end_offset": _LONG,
        "records": _LONG,
        "fingerprint": _LONG,
        "error": _TEXT,
    }
)

# Entries that group coordinators wrote about the groups' progress; share coordinators write no ``committed``.
OFFSETS = _table(
    {
        "broker_id": _INT,
        "partition": _INT,
        "offset": _LONG,
        "batch": _LONG,
        "leader_epoch": _INT,
        "transactional": BooleanType(),
        "group": _TEXT,
        "topic": _TEXT,
        "topic_partition": _INT,
        "committed": _LONG,
    }
)

TABLES = {"outcomes": OUTCOMES, "log": LOG, "metrics": METRICS, "replicas": REPLICAS, "offsets": OFFSETS}

# Silver: the count of each latency by everything that a check may select; null latency is censored.
LATENCY_HIST = _table(
    {
        "client": _TEXT,
        "metric": _TEXT,
        "segment": _INT,
        "start_us": _LONG,
        "end_us": _LONG,
        "windows": ArrayType(_TEXT),
        "client_rack": _TEXT,
        "broker_rack": _TEXT,
        "latency_us": _LONG,
        "n": _LONG,
        "bytes": _LONG,
    }
)

# Gold: the checks of the verdict.
CHECKS = _table(
    {
        "id": _TEXT,
        "kind": _TEXT,
        "subject": _TEXT,
        "arm": _TEXT,
        "phase": _TEXT,
        "status": _TEXT,
        "observed": _DOUBLE,
        "threshold": _DOUBLE,
        "unit": _TEXT,
        "n": _LONG,
        "minimum": _LONG,
        "censored": _LONG,
        "at": _TEXT,
        "why": _TEXT,
        "next": _TEXT,
        "samples": ArrayType(ArrayType(_LONG)),
        "gate": BooleanType(),
    }
)
