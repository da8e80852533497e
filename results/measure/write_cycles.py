"""Write cycles: committed transactions that two partitions hold in different orders (Adya's G0).

A transaction precedes another one in a partition if its first record has the lower offset there. A write cycle is a
circle of such relations, so it needs two partitions: in one the first transaction precedes the second, in the other the
second precedes the first. Kafka orders the records of a partition, and promises no order of two transactions over
partitions, so the number of transactions in a cycle is a figure, which no check judges. Clients under test read outside
of the transactions in which they write, or (services) write to another topic than they read, so that a cycle through
reads (G1c) has no other edges than these.

The order of each partition is a chain, so the graph has fewer edges than there are pairs of transaction and partition,
and its strongly connected components are found in linear time (Tarjan).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from aftershock.results.model.facts import WriteCycles
from aftershock.results.spark.tables import Tables, beside
from aftershock.results.tables.dims import Dims, Longs, firsts, longs, numbered, parted

RECORDS_MAX = 1_000_000
"""Records of a run that are examined: each producer's first ones. They are in the memory of one process, about 100 MB.
An order of some transactions is part of the order of all, so the figure of a longer run is a lower bound."""
_EXAMPLE_MAX = 200
"""Transactions of a cycle that are compared pair by pair to name two of them."""


def of_runs(settled: Tables, dims: Dims, records_max: int = RECORDS_MAX) -> list[WriteCycles | None]:
    """Return the write cycles of each run by its committed records; None for a run without transactions."""
    count = len(dims.evidences)
    own = settled.transactions.select("run", "producer_id", "first_seq", "last_seq").toArrow()
    transactions = parted(own, "run", count)
    limits = [records_max // max(1, len(set(rows["producer_id"].to_pylist()))) for rows in transactions]
    first = beside(dims.table([*enumerate(limits)], "run int, seqs bigint"))
    records = settled.log.join(first, "run").where(F.col("seq") < F.col("seqs"))
    place = F.concat_ws("/", "topic", "partition").alias("place")
    logged = parted(records.select("run", place, "offset", "producer_id", "seq").toArrow(), "run", count)
    return [
        write_cycles(rows, of_run, limit) if of_run.num_rows else None
        for rows, of_run, limit in zip(logged, transactions, limits, strict=True)
    ]


def write_cycles(records: pa.Table, transactions: pa.Table, seqs: int) -> WriteCycles:
    """Return the write cycles of one run.

    ``records`` are the committed ones (``place offset producer_id seq``) below sequence number ``seqs`` of each
    producer, ``transactions`` are those of all producers (``producer_id first_seq last_seq``).
    """
    whole = bool(np.all(longs(transactions["last_seq"]) < seqs))
    producers = np.unique(longs(transactions["producer_id"]))
    width = int(max(longs(transactions["last_seq"]).max(initial=0), longs(records["seq"]).max(initial=0))) + 1

    def key(producer: Longs, seq: Longs) -> Longs:
        """Return one number for a producer's record, in the order of producers and their records."""
        return np.searchsorted(producers, producer) * width + seq

    begins = key(longs(transactions["producer_id"]), longs(transactions["first_seq"]))
    order = np.argsort(begins)
    begins, ends = begins[order], key(longs(transactions["producer_id"]), longs(transactions["last_seq"]))[order]
    is_ours = np.isin(longs(records["producer_id"]), producers)
    records = records.filter(pa.array(is_ours))
    written = key(longs(records["producer_id"]), longs(records["seq"]))
    number = np.searchsorted(begins, written, side="right") - 1
    within = (number >= 0) & (written <= ends[np.maximum(number, 0)])
    codes, places = numbered(records["place"])
    number, place, offset = number[within], codes[within].astype(np.int64), longs(records["offset"])[within]

    # the first record of each transaction in each partition, by partition and offset
    by_transaction = np.lexsort((offset, number, place))
    number, place, offset = number[by_transaction], place[by_transaction], offset[by_transaction]
    start = firsts((place, number))
    number, place, offset = number[start], place[start], offset[start]
    spread = np.bincount(number, minlength=len(begins)) > 1  # one partition alone holds no transaction in two orders
    number, place, offset = (column[spread[number]] for column in (number, place, offset))
    by_place = np.lexsort((offset, place))
    number, place = number[by_place], place[by_place]
    examined = int(spread.sum())
    if not examined:
        return WriteCycles(0, 0, whole)
    follows = np.flatnonzero(place[1:] == place[:-1])
    component = _components(number[follows], number[follows + 1], len(begins))
    sizes = np.bincount(component)
    cyclic = sizes[component] > 1
    if not cyclic.any():
        return WriteCycles(examined, 0, whole)
    smallest = np.flatnonzero(component == component[cyclic][np.argmin(sizes[component[cyclic]])])
    pair = _opposed(smallest[:_EXAMPLE_MAX], number, place)
    names = [f"{producers[begins[one] // width]}:{begins[one] % width}" for one in pair[:2]]
    return WriteCycles(examined, int(cyclic.sum()), whole, (*names, *(places[one] for one in pair[2:])))


def _components(before: Longs, after: Longs, count: int) -> Longs:
    """Return the number of each vertex's strongly connected component."""
    # imported where it is needed: a quarter of a second, and most runs have no transactions
    from scipy.sparse import csr_array  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    edges = csr_array((np.ones(len(before), dtype=np.int8), (before, after)), shape=(count, count))
    _, component = connected_components(edges, directed=True, connection="strong")
    found: Longs = component.astype(np.int64)
    return found


def _opposed(members: Longs, number: Longs, place: Longs) -> Sequence[int]:
    """Return two transactions and two partitions that hold them in different orders; nothing if no pair is opposed.

    A longer cycle of three or more transactions need not have such a pair.
    """
    at: dict[int, dict[int, int]] = {}
    for row in np.flatnonzero(np.isin(number, members)).tolist():
        at.setdefault(int(number[row]), {})[int(place[row])] = row
    for one, own in at.items():
        for other, its in at.items():
            shared = own.keys() & its.keys()
            if one < other and len(shared) > 1:
                earlier = [where for where in shared if own[where] < its[where]]
                later = [where for where in shared if own[where] > its[where]]
                if earlier and later:
                    return one, other, min(earlier), min(later)
    return ()
