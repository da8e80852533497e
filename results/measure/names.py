"""64-bit hashes in place of the names of clients and racks, used as grouping keys of millions of rows.

Grouping by a hash takes half of the time of grouping by names. The names come from the plans and ``run.json``; only for
an unknown hash (for example of a client that the plan lacks) a query reads the names from the records.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.measure.tables import KINDS, SIDES, Dims, Longs, longs, numbered

CLIENT_COLUMNS, RACKS = ("op", "workload", "arm"), ("client_rack", "broker_rack")

Names = tuple[str | None, ...]


def hash_of(*names: Column | str) -> Column:
    """Return the hash of some names; null counts as a name."""
    return F.xxhash64(*[F.coalesce(name, F.lit("\0")) for name in names])


def with_names(rows: pa.Table, samples: DataFrame, dims: Dims) -> pa.Table:
    """Replace the columns ``client_hash``, ``kind`` and ``racks`` by ``metric client client_rack broker_rack``.

    Without a column ``racks`` there are no columns for racks.
    """
    client, hashes = numbered(rows["client_hash"])
    clients = _names_of(hashes, CLIENT_COLUMNS, _planned_clients(dims), samples, dims)
    metrics = [f"{op}.{kind}" for op, *_ in clients for kind in KINDS]
    columns = {
        "metric": _column(metrics, client * len(KINDS) + longs(rows["kind"])),
        "client": _column(["/".join(filter(None, names)) for _, *names in clients], client),
    }
    if "racks" in rows.column_names:
        racks, hashes = numbered(rows["racks"])
        known = (pair for run in dims.evidences for pair in product([None, *sorted(run.racks)], repeat=2))
        pairs = _names_of(hashes, RACKS, known, samples, dims)
        columns["client_rack"] = _column([client_rack for client_rack, _ in pairs], racks)
        columns["broker_rack"] = _column([broker_rack for _, broker_rack in pairs], racks)
    rest = rows.select([name for name in rows.column_names if name not in ("client_hash", "kind", "racks")])
    return pa.table(columns | dict(zip(rest.column_names, rest.columns, strict=True)))


def client_names(dims: Dims) -> DataFrame:
    """Return ``client_hash op workload arm`` of every client of the plans."""
    return _hashed(_table(_planned_clients(dims), CLIENT_COLUMNS, dims), CLIENT_COLUMNS, "client_hash")


def _planned_clients(dims: Dims) -> Iterable[Names]:
    return ((op, client.workload, client.arm) for run in dims.evidences for client in run.clients for op in SIDES)


def _names_of(
    hashes: Sequence[int], columns: Sequence[str], planned: Iterable[Names], samples: DataFrame, dims: Dims
) -> list[Names]:
    known = _by_hash(_table(planned, columns, dims), columns)
    if not known.keys() >= {*hashes}:
        known |= _by_hash(samples.select(*columns).distinct(), columns)
    return [known[value] for value in hashes]


def _table(rows: Iterable[Names], columns: Sequence[str], dims: Dims) -> DataFrame:
    return dims.table(dict.fromkeys(rows), ", ".join(f"{name} string" for name in columns))


def _by_hash(table: DataFrame, columns: Sequence[str]) -> dict[int, Names]:
    return {value: tuple(names) for value, *names in _hashed(table, columns, "hash").collect()}


def _hashed(table: DataFrame, columns: Sequence[str], name: str) -> DataFrame:
    return table.select(hash_of(*columns).alias(name), *columns)


def _column(values: Sequence[str | None], indices: Longs) -> pa.DictionaryArray:
    """Return a column of the values at ``indices``; ``values`` may contain duplicates."""
    distinct = list(dict.fromkeys(values))
    codes = np.array([distinct.index(value) for value in values], np.int32)
    return pa.DictionaryArray.from_arrays(codes[indices], pa.array(distinct, pa.string()))
