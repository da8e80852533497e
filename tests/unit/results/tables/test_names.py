"""Integer keys for names: grouped counts get back the names that their keys stand for."""

from typing import TYPE_CHECKING, Any

import pytest

from aftershock.results.evidence.evidence import Evidence
from aftershock.results.tables.dims import KINDS, dims
from aftershock.results.tables.names import CLIENT_COLUMNS, RACKS, hash_of, with_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


Names = tuple[str | None, ...]

PLANNED: list[Names] = [
    ("produce", "orders", "baseline", "a", "b"),
    ("consume", "orders", "patient", None, "b"),
    ("consume", "orders", "patient", "b", None),
    ("produce", "orders", "patient", None, None),
    ("produce", "orders", "baseline", "a", "b"),
]


def rows(spark: "SparkSession", names: list[Names]) -> "DataFrame":
    schema = ", ".join(f"{name} string" for name in ("op", "workload", "arm", "client_rack", "broker_rack"))
    return spark.createDataFrame(list(names), schema)


def numbers(names: "DataFrame") -> "pa.Table":
    """Return a row per name, with integer keys in place of names and racks, for each kind of key."""
    whose, racks = hash_of(*CLIENT_COLUMNS).alias("client_hash"), hash_of(*RACKS).alias("racks")
    told = names.coalesce(1).select(whose, racks).toArrow()
    at = range(told.num_rows)
    return told.append_column("kind", [[n % len(KINDS) for n in at]]).append_column("n", [list(at)])


def told(names: list[Names]) -> list[dict[str, Any]]:
    return [
        {
            "metric": f"{op}.{KINDS[n % len(KINDS)]}",
            "client": "/".join(filter(None, (workload, arm))),
            "client_rack": near,
            "broker_rack": far,
            "n": n,
        }
        for n, (op, workload, arm, near, far) in enumerate(names)
    ]


def test_planned_names_are_resolved_without_reading_records(
    spark: "SparkSession", evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown rack has a name too, for producers and consumers."""
    known = rows(spark, PLANNED)
    result = numbers(known)
    monkeypatch.setattr(type(known), "distinct", lambda _: pytest.fail("the records were read"))
    assert told(PLANNED) == with_names(result, known, dims(spark, [evidence])).to_pylist()


def test_unplanned_names_are_resolved_from_records(spark: "SparkSession", evidence: Evidence) -> None:
    """Examples are a client without an arm, a workload not in the plan, and a rack without a broker;
    concatenated names differ.
    """
    strangers: list[Names] = [
        ("produce", "ord", "ersbaseline", "a", "b"),
        ("produce", "orders", None, "z", None),
        ("commit", "ordersbaseline", "", "", "ab"),
    ]
    mixed = PLANNED[:2] + strangers
    known = rows(spark, mixed)
    assert told(mixed) == with_names(numbers(known), known, dims(spark, [evidence])).to_pylist()


def test_no_rows_resolve_to_no_names(spark: "SparkSession", evidence: Evidence) -> None:
    """This is the case if no client sent a record."""
    known = rows(spark, [])
    assert [] == with_names(numbers(known), known, dims(spark, [evidence])).to_pylist()
