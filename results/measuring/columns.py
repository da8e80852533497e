"""Columns of what Spark gave back, as NumPy has them: whole numbers without nulls."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Longs: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def longs(column: pa.ChunkedArray, null: int = 0) -> Longs:
    """The values, ``null`` in the place of those that are none."""
    found: Longs = column.cast(pa.int64()).fill_null(null).to_numpy()
    return found


def numbered(column: pa.ChunkedArray) -> tuple[Longs, list[Any]]:
    """Each value's number, and the values by number; null is one of them."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column, null_encoding="encode")
    told = column.combine_chunks()
    return told.indices.to_numpy().astype(np.int64), told.dictionary.to_pylist()


def firsts(keys: Iterable[Longs]) -> Longs:
    """Where the values of some columns, together in order, are others than in the row before."""
    found: Longs = np.flatnonzero(np.any([np.diff(key, prepend=~key[:1]) for key in keys], axis=0))
    return found


def parted(rows: pa.Table, by: str, count: int) -> list[pa.Table]:
    """The rows of each number in column ``by``, from 0 to ``count`` - 1, in the order that they had."""
    rest = rows.drop_columns(by)
    if count == 1:
        return [rest]
    number = longs(rows[by])
    order = np.argsort(number, kind="stable")
    edges, ordered = np.searchsorted(number[order], np.arange(count + 1)).tolist(), rest.take(order)
    return [ordered.slice(first, last - first) for first, last in pairwise(edges)]
