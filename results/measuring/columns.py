"""Columns of what Spark gave back, as NumPy has them: whole numbers without nulls."""

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
