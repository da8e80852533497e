"""Integrity findings: counts of examined and broken records per rule, judged by ``results/checks/integrity.py``.

==============  ====================================================================================  ==============
rule            broken if                                                                             file
==============  ====================================================================================  ==============
lost            acknowledged, and not in the log (produce) or not delivered to a reader that was due  ``records``
                it (consume)
                a commit acknowledged, and neither it nor a later one in its coordinator's log        ``groups``
duplicate       one record at two offsets                                                             ``records``
misplaced       acknowledged at an offset where neither the log nor a reader has it                   ``records``
phantom         a row that was never sent, in the log or delivered                                    ``records``
order           a seq behind a later one of its producer in the log; an offset behind a later one     ``sequences``
repeated        an offset delivered again                                                             ``sequences``
backward        an older leader epoch, or a lower high watermark, than the row before                 ``sequences``
                an entry of the coordinators' log below the one before of its group                   ``groups``
beyond          delivered from beyond every high watermark that was reported                          ``sequences``
collision       two records at one offset, in the log or between the log and a reader                 ``records``
skipped         passed over between two deliveries, unless it counts as lost                          ``records``
co_owned        a member read a partition between two deliveries to another member                    ``groups``
commit_ahead    a group committed a position up to which it had not read                              ``groups``
commit_behind   a group resumed before the last position that it had committed                        ``groups``
corrupt         a value that differs from what was sent                                               ``sequences``
differing       a replica unlike most of its partition's                                              ``groups``
==============  ====================================================================================  ==============

A reader's deliveries are judged by *lanes* (``sequences``): those of one member and one partition, from one assignment
or position reset to the next. Records are examined one by one where the gate (``results/measure/gate.py``) left a block
in doubt, and counted elsewhere; offsets and sequences have gates of their own. ``results/checks/integrity_events.py``
has the rules that the clients' own events decide. A finding is (rule, side, client): the number of ``examined``
records, of ``broken`` ones, and up to twenty of those as samples.
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
