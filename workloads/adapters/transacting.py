"""Transactions of a workload producer, one after the other, the same for every client library.

Records are due by the schedule, whatever the state of the transaction: a record that is due while the previous
transaction ends waits, and its latency counts from its intended time.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from queue import Empty, SimpleQueue

from confluent_kafka import KafkaError

from aftershock.workloads.adapters.sending import DueRecord, ProduceRecorder
from aftershock.workloads.load.assignment import ProduceAssignment
from aftershock.workloads.load.events import Clock
from aftershock.workloads.load.schedule import US_PER_MS
from aftershock.workloads.load.spool import UNKNOWN
from aftershock.workloads.load.transactions import Outcome, TransactionRow, TransactionSpool, is_aborted

REQUEST_TIMED_OUT = int(KafkaError.REQUEST_TIMED_OUT)


class TransactionRefusedError(Exception):
    """The transaction can't be committed and must be aborted; ``code`` is the error code of Kafka or the library."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ProducerFailedError(Exception):
    """The producer can't continue; ``in_doubt`` is True if the transaction may have been committed."""

    def __init__(self, code: int, *, in_doubt: bool) -> None:
        super().__init__(code)
        self.code, self.in_doubt = code, in_doubt


class TransactionalClient(ABC):
    """Producer of a client library, as ``TransactionDriver`` uses it."""

    @abstractmethod
    async def next_record(self) -> DueRecord | None:
        """Wait for the next record that is due; None if no record will follow."""

    @abstractmethod
    async def begin(self) -> None:
        """Begin a transaction; raises ProducerFailedError."""

    @abstractmethod
    def identity(self) -> tuple[int, int, int]:
        """Return the producer id, producer epoch and protocol version of the transaction; UNKNOWN if not known.

        Asked after the begin, and for a version that is not known then after the end.
        """

    @abstractmethod
    async def send(self, record: DueRecord) -> None:
        """Send a record; its result is recorded when the library reports it."""

    @abstractmethod
    def reject(self, seq: int, code: int) -> None:
        """Record that a record failed without being sent."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait for the results of all records, for their deadline at most."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit; raises TransactionRefusedError, ProducerFailedError, or TimeoutError without an answer in time."""

    @abstractmethod
    async def abort(self, *, after_commit: bool) -> bool:
        """Abort and return False, or True if the transaction was committed instead; raises as ``commit``."""

    @abstractmethod
    async def reopen(self) -> None:
        """Close the producer and begin anew with the same transactional id, which ends an open transaction."""


class TransactionDriver:
    """Transactions of one producer, with a row of evidence each; ``busy`` is False between transactions."""

    def __init__(
        self, assignment: ProduceAssignment, clock: Clock, sending: ProduceRecorder, client: TransactionalClient
    ) -> None:
        assert assignment.transaction is not None  # noqa: S101  # the caller checks it
        self.busy = False
        self._settings, self._assignment, self._clock = assignment.transaction, assignment, clock
        self._sending, self._client = sending, client
        self._spool = TransactionSpool(assignment.spool, assignment.worker)

    async def run(self) -> None:
        """Run transactions until no record will follow."""
        while (record := await self._client.next_record()) is not None:
            self.busy = True
            await self._transaction(record)
            self.busy = False

    async def _transaction(self, first: DueRecord) -> None:
        client, number = self._client, self._settings.number_of(first.seq)
        aborts = is_aborted(self._settings, self._assignment.seed, self._assignment.workload, number)
        row = TransactionRow(number, first.seq, self._clock(), aborts=aborts)
        self._spool.write(row)
        problem = 0
        failure: ProducerFailedError | None = None
        try:
            await client.begin()
        except ProducerFailedError as error:
            failure, problem, row.asked_us = error, error.code, self._clock()
        else:
            row.producer_id, row.epoch, row.version = client.identity()
        record: DueRecord | None = first
        while record is not None:
            row.last_seq, row.due_us = record.seq, self._sending.due_us(record.seq)
            if not problem and self._clock() > row.due_us + self._assignment.deadline_ms * US_PER_MS:
                problem = REQUEST_TIMED_OUT  # an application would not commit a part of its transaction
            if problem:
                client.reject(record.seq, problem)
            else:
                if row.sent_us == UNKNOWN:
                    row.sent_us = self._clock()
                self._spool.write(row)  # before the library receives the record, which may outlive this process
                await client.send(record)
            record = await client.next_record() if record.seq < self._settings.last_of(number) else None
        row.error = problem
        row.asked_us = self._clock() if failure is None else row.asked_us
        if failure is not None:
            outcome = Outcome.FAILED
            await client.reopen()
        elif problem:
            outcome = await self._abort(row)
        elif aborts:
            await client.flush()  # so that the log has records to hide
            row.asked_us = self._clock()
            outcome = await self._abort(row)
        else:
            outcome = await self._commit(row)
        row.outcome, row.done_us = outcome, self._clock()
        if row.version == UNKNOWN and failure is None:
            row.version = client.identity()[2]
        self._spool.write(row)

    async def _commit(self, row: TransactionRow) -> Outcome:
        row.commit_asked = True
        self._spool.write(row)
        while True:
            try:
                await self._client.commit()
            except TimeoutError:
                row.error = REQUEST_TIMED_OUT
                if self._settings.on_commit_timeout == "abort":
                    return await self._abort(row)
                if self._settings.on_commit_timeout == "close":
                    await self._client.reopen()
                    return Outcome.IN_DOUBT
            except TransactionRefusedError as refused:
                row.error, row.commit_asked = refused.code, False
                self._spool.write(row)
                return await self._abort(row)
            except ProducerFailedError as failed:
                row.error = failed.code
                await self._client.reopen()
                return Outcome.IN_DOUBT if failed.in_doubt else Outcome.FAILED
            else:
                row.error = 0
                return Outcome.COMMITTED

    async def _abort(self, row: TransactionRow) -> Outcome:
        while True:
            try:
                committed = await self._client.abort(after_commit=row.commit_asked)
            except TimeoutError:
                continue  # an abort may always be repeated
            except (TransactionRefusedError, ProducerFailedError) as failed:
                row.error = row.error or failed.code
                await self._client.reopen()
                return Outcome.IN_DOUBT if row.commit_asked else Outcome.FAILED
            return Outcome.COMMITTED if committed else Outcome.ABORTED


class RecordQueue:
    """Records that are due and wait for their transaction, of a client on an event loop."""

    def __init__(self, sending: ProduceRecorder) -> None:
        self._sending = sending
        self._records: deque[DueRecord] = deque()
        self._wake = asyncio.Event()

    def put(self, record: DueRecord) -> None:
        self._records.append(record)
        self._wake.set()

    async def next_record(self) -> DueRecord | None:
        while not self._records:
            if self._sending.over:
                return None
            self._wake.clear()
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
        return self._records.popleft()


_POLL_S = 0.02


class DriverThread:
    """Runs a ``TransactionDriver`` in a thread, for a library whose calls block; ``records`` takes those due."""

    def __init__(self, driver: TransactionDriver) -> None:
        self.records: SimpleQueue[DueRecord] = SimpleQueue()
        self.error: BaseException | None = None
        self._driver = driver
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._driver.busy or not self.records.empty()

    def check(self) -> None:
        """Raise the error that has ended the thread, if any."""
        if self.error is not None:
            raise self.error

    def take(self, wait_s: float) -> DueRecord | None:
        try:
            return self.records.get(timeout=wait_s)
        except Empty:
            return None

    def _run(self) -> None:
        try:
            asyncio.run(self._driver.run())
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            self.error = error
