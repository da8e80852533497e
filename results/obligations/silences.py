"""Where nothing at all succeeded for a while though something was wanted, told by slots of time. Pure.

``stalls.py`` says what that is, and counts the slots in Spark (``slots``): a few for each second and partition.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aftershock.results.measuring.columns import firsts, longs

SILENCES = "run int, whose bigint, delivered boolean, partition int, since_us bigint, until_us bigint"
Silence: TypeAlias = tuple[int, int, bool, int | None, int | None, int | None]

_LANE = ("run", "whose", "delivered", "partition")
_COUNTED = (("first_us", "min"), ("last_us", "max"), ("wanted_us", "min"), ("done_us", "max"))
_NONE, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def silences(slots: pa.Table, at_least_us: int) -> Iterator[Silence]:
    """``SILENCES`` that lasted as long, of ``stalls.slots`` no longer than that.

    For each partition, and for each client as a whole: what was produced counts for both, a commit for its client.
    ``since_us`` is null before the first success, ``until_us`` after the last.
    """
    rows = _in_lanes(slots)
    starts = firsts(longs(rows[name], _NONE) for name in _LANE)
    if not len(starts):
        return
    lane, lanes = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows))), np.arange(len(starts))
    first_us, last_us = (longs(rows[name], _NONE) for name in ("first_us", "last_us"))
    good = first_us != _NONE
    # a silence ends with the first success of a slot, and with the lane
    after = np.searchsorted(lane[good], lanes, "right")
    whose, until_us = np.insert(lane[good], after, lanes), np.insert(first_us[good], after, _NONE)
    since_us = np.roll(np.insert(last_us[good], after, _NONE), 1)
    # before the first success somebody may have waited since the first was wanted, after the last until all was done
    begun_us = np.minimum.reduceat(longs(rows["wanted_us"], _NEVER), starts)[whose]
    over_us = np.maximum.reduceat(longs(rows["done_us"]), starts)[whose]
    start_us, end_us = np.where(since_us == _NONE, begun_us, since_us), np.where(until_us == _NONE, over_us, until_us)
    for at in np.flatnonzero((start_us != _NEVER) & (end_us - start_us >= at_least_us)).tolist():
        run, owner, delivered, partition = (rows[name][starts[whose[at]]].as_py() for name in _LANE)
        yield run, owner, delivered, partition, _or_none(since_us[at]), _or_none(until_us[at])


def _in_lanes(slots: pa.Table) -> pa.Table:
    """The slots of each partition, and of each client as a whole, lane by lane in order of time."""
    by, counted = ["run", "whose", "delivered", "slot"], dict(_COUNTED)
    whole = slots.filter(~pc.field("delivered")).group_by(by).aggregate(list(_COUNTED))
    whole = whole.select([*by, *map("_".join, _COUNTED)]).rename_columns([*by, *counted])
    part = slots.filter(pc.field("partition").is_valid()).select([*by, "partition", *counted])
    lanes = pa.concat_tables([part, whole], promote_options="default")
    return lanes.sort_by([(name, "ascending") for name in (*_LANE, "slot")])


def _or_none(value: np.int64) -> int | None:
    return None if value == _NONE else int(value)
