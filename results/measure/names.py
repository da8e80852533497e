"""Whose a record is and between which racks it went, as numbers: what millions of rows are counted by.

Rules: a 64-bit hash in the place of names takes half of the time. Which names there are, plan and run tell; where a
number is none of theirs (of a client that the plan lacks, say), the records themselves are asked, once.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from aftershock.results.measure.tables import KINDS, SIDES, Dims, Longs, longs, numbered

WHOSE, RACKS = ("op", "workload", "arm"), ("client_rack", "broker_rack")

Names = tuple[str | None, ...]


def number(*names: Column | str) -> Column:
    """What stands for some names; null is a name too."""
    return F.xxhash64(*[F.coalesce(name, F.lit("\0")) for name in names])


def named(rows: pa.Table, samples: DataFrame, dims: Dims) -> pa.Table:
    """``metric client client_rack broker_rack`` in the place of the numbers ``whose``, ``kind`` and ``racks``.

    Where there are no ``racks``, nothing is said of them.
    """
    whose, told = numbered(rows["whose"])
    clients = _told(told, WHOSE, _owners(dims), samples, dims)
    metrics = [f"{op}.{kind}" for op, *_ in clients for kind in KINDS]
    columns = {
        "metric": _column(metrics, whose * len(KINDS) + longs(rows["kind"])),
        "client": _column(["/".join(filter(None, names)) for _, *names in clients], whose),
    }
    if "racks" in rows.column_names:
        racks, told = numbered(rows["racks"])
        pairs = _told(told, RACKS, _pairs(dims), samples, dims)
        columns["client_rack"] = _column([near for near, _ in pairs], racks)
        columns["broker_rack"] = _column([far for _, far in pairs], racks)
    rest = rows.select([name for name in rows.column_names if name not in ("whose", "kind", "racks")])
    return pa.table(columns | dict(zip(rest.column_names, rest.columns, strict=True)))


def owners(dims: Dims) -> DataFrame:
    """``whose op workload arm`` of every client of the plans."""
    return _numbered(_table(_owners(dims), WHOSE, dims), WHOSE).withColumnRenamed("number", "whose")


def _owners(dims: Dims) -> Iterable[Names]:
    return ((op, each.workload, each.arm) for one in dims.evidences for each in one.clients for op in SIDES)


def _pairs(dims: Dims) -> Iterable[Names]:
    return (pair for one in dims.evidences for pair in product([None, *sorted(one.racks)], repeat=2))


def _told(
    numbers: Sequence[int], names: Sequence[str], likely: Iterable[Names], samples: DataFrame, dims: Dims
) -> list[Names]:
    """The names that each number stands for."""
    known = _names(_table(likely, names, dims), names)
    if not known.keys() >= {*numbers}:
        known |= _names(samples.select(*names).distinct(), names)
    return [known[one] for one in numbers]


def _table(likely: Iterable[Names], names: Sequence[str], dims: Dims) -> DataFrame:
    return dims.table(dict.fromkeys(likely), ", ".join(f"{name} string" for name in names))


def _names(table: DataFrame, names: Sequence[str]) -> dict[int, Names]:
    return {of_them: tuple(them) for of_them, *them in _numbered(table, names).collect()}


def _numbered(table: DataFrame, names: Sequence[str]) -> DataFrame:
    return table.select(number(*names).alias("number"), *names)


def _column(values: Sequence[str | None], at: Longs) -> pa.DictionaryArray:
    """The values at some places of a list, where one may stand more than once."""
    apart = list(dict.fromkeys(values))
    places = np.array([apart.index(one) for one in values], np.int32)
    return pa.DictionaryArray.from_arrays(places[at], pa.array(apart, pa.string()))
