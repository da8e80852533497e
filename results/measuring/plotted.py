"""The bins of a run's plots, read off a histogram by bin (``latency.py: by_bin``, or ``silver``). Pure.

Rules: quantiles are nearest-rank, of latencies rounded down by half a percent at most; the censored are slower than
any. All bins are read at once: there are thousands, small.
"""

from collections.abc import Iterable
from itertools import starmap

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aftershock.results.facts import Bin
from aftershock.results.measuring.columns import firsts, longs, numbered
from aftershock.results.measuring.histogram import rank_of

PLOTTED_BITS = 8
_NONE = np.iinfo(np.int64).min


def bins(rows: pa.Table, bin_us: int) -> tuple[Bin, ...]:
    """The bins, panel by panel, in order of time."""
    (metric, metrics), (client, clients), (rack, racks) = (
        numbered(rows[name]) for name in ("metric", "client", "client_rack")
    )
    number, took_us, slowest_us = (longs(rows[name], _NONE) for name in ("bin", "latency_us", "slowest_us"))
    censored = took_us == _NONE
    order = np.lexsort((took_us, censored, number, rack, client, metric))
    first = firsts(key[order] for key in (metric, client, rack, number))
    if not len(first):
        return ()
    n, whose, took_us = longs(rows["n"])[order], order[first], took_us[order]
    upto, totals = np.cumsum(n), np.add.reduceat(n, first)

    def at(q: float) -> Iterable[int | None]:
        return _or_none(took_us[np.searchsorted(upto, upto[first] - n[first] + rank_of(q, totals))].tolist())

    found = zip(
        *([names[key] for key in keys[whose]] for keys, names in ((metric, metrics), (client, clients), (rack, racks))),
        (number[whose] * bin_us).tolist(),
        totals.tolist(),
        np.add.reduceat(n * censored[order], first).tolist(),
        at(0.5),
        at(0.99),
        _or_none(np.maximum.reduceat(slowest_us[order], first).tolist()),
        strict=True,
    )
    return tuple(sorted(starmap(Bin, found), key=lambda one: (one.metric, one.client, one.rack or "", one.start_us)))


def of_silver(rows: pa.Table) -> pa.Table:
    """The same rows as ``by_bin`` would have counted together, of a silver that tells bins apart."""
    binned = rows.filter(pc.is_valid(rows["bin"]))
    took_us = binned["latency_us"].combine_chunks()
    exact = longs(binned["latency_us"], 1)
    finer = np.maximum(np.floor(np.log2(np.maximum(exact, 1) + 0.5)).astype(np.int64) - PLOTTED_BITS, 0)
    rounded = pa.array(exact >> finer << finer, mask=took_us.is_null().to_numpy(zero_copy_only=False))
    return binned.drop_columns("latency_us").append_column("slowest_us", took_us).append_column("latency_us", rounded)


def _or_none(found: Iterable[int]) -> Iterable[int | None]:
    return (None if one == _NONE else one for one in found)
