"""Record batches of format v2, what Produce and Fetch carry: ``build`` makes one, ``parse`` reads what a broker sent.

::

    base offset 8 · length 4 · leader epoch 4 · magic 1 · CRC-32C 4 │ attributes 2 · last offset delta 4
    base timestamp 8 · max timestamp 8 · producer id 8 · producer epoch 2 · base sequence 4 · count 4 │ records

The CRC covers all that follows it; compression covers the records alone. Source: ``DefaultRecordBatch`` and
``DefaultRecord`` of Kafka 4.3. Older formats (magic 0 and 1) are refused: no broker of Kafka 4 sends them.
"""

from aftershock.workloads.wire.batch import BATCH_OVERHEAD, Batch, Record
from aftershock.workloads.wire.batch_build import build
from aftershock.workloads.wire.batch_parse import BATCH_BYTES_MAX, parse

__all__ = ["BATCH_BYTES_MAX", "BATCH_OVERHEAD", "Batch", "Record", "build", "parse"]
