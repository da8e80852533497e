"""What the records say of each other, as counts: ``promises.py`` judges them by what the configuration permits.

==============  ====================================================================================  ==============
rule            broken when                                                                           file
==============  ====================================================================================  ==============
lost            acknowledged, and not in the log (produce) or not delivered to who is owed it         ``records``
                a commit acknowledged, and neither it nor a later one in its coordinator's log        ``offsets``
duplicate       one record at two places                                                              ``records``
misplaced       acknowledged at a place where neither the log nor a reader has it                     ``records``
phantom         a row that nobody sent, in the log or delivered                                       ``records``
order           a seq behind a later one of its producer in the log; an offset behind a later one     ``sequences``
repeated        an offset delivered again                                                             ``sequences``
backward        an older leader epoch, or a lower high watermark, than the row before                 ``sequences``
                an entry of the coordinators' log below the one before of its group                   ``offsets``
beyond          delivered from beyond every high watermark that was told                              ``sequences``
collision       two records at one place, in the log or between the log and a reader                  ``places``
skipped         passed over between two deliveries, and not for want of ever being delivered          ``places``
co_owned        a member read a partition between two readings of another member                      ``owners``
commit_ahead    a group committed a position that it had not read up to                               ``commits``
commit_behind   a group went on from before the last position that it had committed                   ``commits``
corrupt         a value that is not what was sent                                                     ``sequences``
differing       a replica unlike most of its partition's                                              ``replicas``
==============  ====================================================================================  ==============

A reader's deliveries are judged by *lanes* (``lanes``): one member's, of one partition, from one assignment or reset of
its position to the next. Records are judged exactly where the gate (``measuring/gate.py``) found a block in doubt, and
counted elsewhere; places likewise by a gate of their own, sequences by that of ``tangled``. ``events`` has the rules
that the clients' own events can decide, in plain Python. A finding is (rule, side, client): ``examined`` records,
``broken`` ones, and up to twenty of those as samples.
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
    """``run rule side client examined broken samples`` of every rule that Spark decides.

    ``blocks`` are the gate's, ``book`` is the ledger of what is in doubt, None where nothing is. ``doubted`` are the
    sequences that ``in_doubt`` found, None where all are looked at. What is only reported:
    ``in_doubt`` (of the records in doubt, those in the log), ``redelivered`` (delivered more than once in all), and of
    what was lost: ``unlogged`` (not in the log either) and ``delivered`` (not in the log, but somebody had it).
    """
    delivered = deliveries(read, dims)
    told = [
        of_blocks(blocks, dims),
        sequences(read, dims, delivered, doubted),
        co_owned(delivered, dims),
        commits(read.log, delivered, dims),
        offsets(read, dims),
        replicas(read.replicas) if any(one.parquet["replicas"] for one in dims.evidences) else None,
        *([shared(read.log)] if book is None else [of_book(book, dims), places(read, delivered, book, dims)]),
    ]
    return summed(reduce(DataFrame.unionByName, [rows for rows in told if rows is not None]))
