"""What a reader notes of a record, whichever library delivered it."""

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from aftershock.workloads.adapters.receiving import ReceiveRecorder
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.outcomes import convert
from aftershock.workloads.load.schedule import Mark

if TYPE_CHECKING:
    from aftershock.tests.unit.workloads.conftest import Bench


def test_records_from_before_the_run_are_foreign(bench: "Bench") -> None:
    """An earlier run's mark looks like ours; by its offset it is none, and it leaves no row. What follows does."""
    told = bench.consume(begin={0: 5})
    receiving = ReceiveRecorder(told, bench.now_us, Events(told, bench.now_us))
    for partition, offset in ((0, 4), (0, 5), (1, 0)):
        receiving.take(Mark(producer_id=0, seq=1, intended_us=1), partition=partition, offset=offset, size_bytes=9)
    assert (2, 1, 0) == (receiving.tally.done, receiving.foreign, receiving.assignments)
    convert(bench.spool, bench.outcomes)
    rows = pq.read_table(bench.outcomes).to_pylist()
    assert [(0, 5), (1, 0)] == [(row["partition"], row["offset"]) for row in rows]
