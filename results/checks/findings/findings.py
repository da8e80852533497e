"""All integrity findings that Spark counts: examined and broken records per rule, side and client.

``results/checks/rules.py`` says which findings a rule has. ``records.py`` examines single records and their offsets,
``sequences.py`` rows in their order, ``groups.py`` groups and replicas. Records are examined one by one where the gate
(``results/measure/gate.py``) left a block in doubt, and counted elsewhere. A finding has up to twenty samples.
"""

from functools import reduce

from pyspark.sql import DataFrame

from aftershock.results.checks.findings.groups import co_owned, commits, offsets, replicas
from aftershock.results.checks.findings.records import LOG_READER, of_blocks, of_book, places, shared, summed
from aftershock.results.checks.findings.sequences import PRINTS, deliveries, in_doubt, sequences
from aftershock.results.measure.tables import Dims
from aftershock.results.spark.tables import Tables

__all__ = ["LOG_READER", "PRINTS", "findings", "in_doubt"]


def findings(
    read: Tables, dims: Dims, blocks: DataFrame, book: DataFrame | None, doubted: DataFrame | None
) -> DataFrame:
    """Return ``run rule side client examined broken samples`` for each rule that Spark decides.

    ``blocks`` come from the gate; ``book`` is the ledger of the records in doubt, None without any. ``doubted`` are the
    sequences selected by ``in_doubt``, None to examine all. Only reported are ``in_doubt`` (records in doubt, and those
    of them in the log), ``redelivered`` (delivered more than once in all), and of the lost records ``unlogged`` (not in
    the log either) and ``delivered`` (not in the log, but delivered to a reader).
    """
    delivered = deliveries(read, dims)
    with_replicas = any(evidence.parquet["replicas"] for evidence in dims.evidences)
    tables = [
        of_blocks(blocks, dims),
        sequences(read, dims, delivered, doubted),
        co_owned(delivered, dims),
        commits(read.log, delivered, dims),
        offsets(read, dims),
        replicas(read.replicas) if with_replicas else None,
        *([shared(read.log)] if book is None else [of_book(book, dims), places(read, delivered, book, dims)]),
    ]
    return summed(reduce(DataFrame.unionByName, [rows for rows in tables if rows is not None]))
