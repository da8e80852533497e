"""Hashes (64 bits) of the names of clients and racks, because grouping rows by names takes twice as long.

The names for the hashes come from plans and ``run.json``; if a hash is unknown, for example of a client that the plan
lacks, a query reads the names from records.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.tables.dims import KINDS, SIDES, Codes, Dims, Longs, longs, numbered

CLIENT_COLUMNS, RACKS = ("op", "workload", "arm"), ("client_rack", "broker_rack")

Names = tuple[str | None, ...]


def hash_of(*names: Column | str) -> Column:
    """Return the 64-bit hash of several names; null is hashed like a name."""
    return F.xxhash64(*[F.coalesce(name, F.lit("\0")) for name in names])


def with_names(rows: pa.Table, samples: DataFrame, dims: Dims) -> pa.Table:
    """Replace hashes by names in rows, which get the columns ``metric client`` and ``client_rack broker_rack``."""
    client, hashes = numbered(rows["client_hash"])
    clients = _names_of(hashes, CLIENT_COLUMNS, _planned_clients(dims), samples, dims)
    metrics = [f"{op}.{kind}" for op, *_ in clients for kind in KINDS]
    columns = {
        "metric": _column(metrics, client * len(KINDS) + longs(rows["kind"])),
        "client": _column(["/".join(filter(None, names)) for _, *names in clients], client),
    }
    if "racks" in rows.column_names:
        racks, hashes = numbered(rows["racks"])
        planned = (pair for run in dims.evidences for pair in product([None, *sorted(run.racks)], repeat=2))
        pairs = _names_of(hashes, RACKS, planned, samples, dims)
        columns["client_rack"] = _column([client_rack for client_rack, _ in pairs], racks)
        columns["broker_rack"] = _column([broker_rack for _, broker_rack in pairs], racks)
    hashed = ("client_hash", "kind", "racks")
    return pa.table(columns | {name: rows[name] for name in rows.column_names if name not in hashed})


def client_names(dims: Dims) -> DataFrame:
    """Return ``client_hash op workload arm`` of every client of the plans."""
    clients = _table(_planned_clients(dims), CLIENT_COLUMNS, dims)
    return clients.select(hash_of(*CLIENT_COLUMNS).alias("client_hash"), *CLIENT_COLUMNS)


def _planned_clients(dims: Dims) -> Iterable[Names]:
    return ((op, client.workload, client.arm) for run in dims.evidences for client in run.clients for op in SIDES)


def _names_of(
    hashes: Sequence[int], columns: Sequence[str], planned: Iterable[Names], samples: DataFrame, dims: Dims
) -> list[Names]:
    def by_hash(table: DataFrame) -> dict[int, Names]:
        return {value: tuple(names) for value, *names in table.select(hash_of(*columns), *columns).collect()}

    names = by_hash(_table(planned, columns, dims))
    if not names.keys() >= {*hashes}:
        names |= by_hash(samples.select(*columns).distinct())
    return [names[value] for value in hashes]


def _table(rows: Iterable[Names], columns: Sequence[str], dims: Dims) -> DataFrame:
    return dims.table(dict.fromkeys(rows), ", ".join(f"{name} string" for name in columns))


def _column(values: Sequence[str | None], indices: Longs | Codes) -> pa.DictionaryArray:
    distinct = list(dict.fromkeys(values))
    codes = np.array([distinct.index(value) for value in values], np.int32)
    return pa.DictionaryArray.from_arrays(codes[indices], pa.array(distinct, pa.string()))
