"""Transactions of producers: which records belong together, their planned and actual outcome, and their evidence.

Transaction n of a producer consists of its records n * ``records`` to (n + 1) * ``records`` - 1. Whether it is aborted
depends only on the seed, the workload's name and n, so that all arms abort the same transactions. A producer that is
restarted in the middle of a transaction sends the rest of its records in a transaction of their own, with the same
number.

A producer writes a row of fixed size at each step of a transaction straight into the file ``transactions`` of its spool
directory, so the row survives ``kill -9``. The runner converts the file to Parquet with the outcomes, each time as a
whole, because a transaction is one row for many records.
"""

import os
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any

from aftershock.workloads.load.assignment import ProduceAssignment, TransactionSettings
from aftershock.workloads.load.spool import UNKNOWN, error_name, full_error

SPOOL = "transactions"
"""Name of the file in a worker's spool directory, and of the table in the run directory."""


def is_aborted(settings: TransactionSettings, seed: int, workload: str, number: int) -> bool:
    """Return True if the plan aborts transaction ``number``."""
    drawn = blake2b(f"{seed}/{workload}/transaction/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") < settings.abort * 2**64


class Outcome(IntEnum):
    """Outcome of a transaction as its producer knows it.

    ``ABORTED``: an abort was acknowledged. ``FAILED``: neither was an abort acknowledged, nor the commit ever asked
    for, so the transaction must not be committed. ``IN_DOUBT``: the commit was asked for, without a final answer.
    """

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2
    FAILED = 3
    IN_DOUBT = 4


# number, first and last seq, times: due (of the last record), begin, sent (first record), asked (for the end), done;
# the producer's id and epoch in Kafka; error code, version, planned abort, outcome, commit asked
_ROW = Struct("<qqqqqqqqqihbbbb")


class TransactionRow:
    """Row of one transaction; ``TransactionSpool.write`` makes its current values survive the process."""

    __slots__ = (
        *("number", "first_seq", "last_seq", "due_us", "begin_us", "sent_us", "asked_us", "done_us"),
        *("producer_id", "epoch", "error", "version", "aborts", "outcome", "commit_asked", "position"),
    )

    def __init__(self, number: int, first_seq: int, begin_us: int, *, aborts: bool) -> None:
        self.number, self.first_seq, self.last_seq, self.begin_us = number, first_seq, first_seq, begin_us
        self.due_us = self.sent_us = self.asked_us = self.done_us = UNKNOWN
        self.producer_id = self.epoch = self.version = UNKNOWN
        self.error, self.aborts, self.outcome, self.commit_asked = 0, aborts, Outcome.OPEN, False
        self.position = UNKNOWN


class TransactionSpool:
    """Rows of one producer's transactions, in the order of their beginning."""

    def __init__(self, home: Path, worker: str) -> None:
        self._directory = home / worker
        self._file = os.open(self._directory / SPOOL, os.O_CREAT | os.O_RDWR, 0o644)
        self._next = os.fstat(self._file).st_size // _ROW.size

    def write(self, row: TransactionRow) -> None:
        """Write the row, at the end of the file the first time. Raises WorkloadError if there is no space."""
        if row.position == UNKNOWN:
            row.position, self._next = self._next, self._next + 1
        values = (getattr(row, name) for name in TransactionRow.__slots__[:-1])
        try:
            os.pwrite(self._file, _ROW.pack(*values), row.position * _ROW.size)
        except OSError as error:
            raise full_error(self._directory) from error


def transaction_columns(assignment: ProduceAssignment, spool: Path) -> dict[str, Any] | None:
    """Return the columns of a producer's transactions; None if it has begun none.

    A transaction without a final outcome, for example of a killed producer, has failed unless its commit was asked for.
    """
    path = spool / SPOOL
    data = path.read_bytes() if path.exists() else b""
    rows = list(_ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size]))
    if not rows:
        return None
    columns: dict[str, Any] = dict(zip(TransactionRow.__slots__[:-1], map(list, zip(*rows, strict=True)), strict=True))
    asked, outcomes = columns.pop("commit_asked"), columns.pop("outcome")
    final = [
        Outcome(outcome) if outcome else Outcome.IN_DOUBT if was_asked else Outcome.FAILED
        for outcome, was_asked in zip(outcomes, asked, strict=True)
    ]
    numbers = {name: [None if n == UNKNOWN else n for n in columns[name]] for name in columns}
    same = {"workload": assignment.workload, "arm": assignment.arm, "client": assignment.client}
    same |= {"worker": assignment.worker, "transactional_id": assignment.transactional_id or ""}
    kafka = {"kafka_producer_id": numbers.pop("producer_id"), "kafka_epoch": numbers.pop("epoch")}
    return {
        **{name: [value] * len(rows) for name, value in same.items()},
        **numbers,
        **kafka,
        "producer_id": [assignment.producer_id] * len(rows),
        "commit_asked": [bool(value) for value in asked],
        "intended": ["abort" if aborts else "commit" for aborts in columns["aborts"]],
        "outcome": [outcome.name.lower() for outcome in final],
        "error": [error_name(code) for code in columns["error"]],
    }
