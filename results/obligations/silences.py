"""Where nothing at all succeeded for a while though something was wanted, told by slots of time. Pure.

``stalls.py`` says what that is, and counts the slots in Spark (``slots``): a few for each second and partition.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

SILENCES = "run int, whose bigint, delivered boolean, partition int, since_us bigint, until_us bigint"
Silence: TypeAlias = tuple[int, int, bool, int | None, int | None, int | None]

_LANE = ("run", "whose", "delivered", "partition")
_COUNTED = (("first_us", "min"), ("last_us", "max"), ("wanted_us", "min"), ("done_us", "max"))


def silences(slots: pa.Table, at_least_us: int) -> Iterator[Silence]:
    """``SILENCES`` that lasted as long, of ``stalls.slots`` no longer than that.

    For each partition, and for each client as a whole: what was produced counts for both, a commit for its client.
    ``since_us`` is null before the first success, ``until_us`` after the last.
    """
    whole = slots.filter(~pc.field("delivered") & pc.field("partition").is_valid())
    part = slots.filter(~(pc.field("delivered") & pc.field("partition").is_null()))
    nobody = pa.nulls(len(whole), slots.schema.field("partition").type)
    whole = whole.drop_columns("partition").append_column("partition", nobody).select(slots.column_names)
    by = [*_LANE, "slot"]
    lanes = pa.concat_tables([part, whole]).group_by(by).aggregate(list(_COUNTED))
    lanes = lanes.sort_by([(name, "ascending") for name in by])
    told = zip(*(lanes[name].to_pylist() for name in (*_LANE, *map("_".join, _COUNTED))), strict=True)
    for lane, rows in groupby(told, itemgetter(*range(len(_LANE)))):
        for since_us, until_us in _of_lane([row[len(_LANE) :] for row in rows], at_least_us):
            yield *lane, since_us, until_us


def _of_lane(rows: Iterable[tuple[Any, ...]], at_least_us: int) -> Iterator[tuple[int | None, int | None]]:
    """Of its slots in order: from each success to the next, where any are that far apart."""
    firsts, lasts, wanted, done = zip(*rows, strict=True)
    # before the first success somebody may have waited since the first was wanted, after the last until all was done
    begun_us = min((one for one in wanted if one is not None), default=None)
    sinces, untils = ([one for one in ends if one is not None] for ends in (lasts, firsts))
    for since_us, until_us in zip([None, *sinces], [*untils, None], strict=True):
        start_us, end_us = (begun_us if since_us is None else since_us), (max(done) if until_us is None else until_us)
        if start_us is not None and end_us - start_us >= at_least_us:
            yield since_us, until_us
