"""Transactions of a client program of the exec protocol: orders, one after the other, and their reports."""

import asyncio
import selectors
from collections.abc import Callable
from contextlib import suppress

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters.exec_orders import Transact, TransactionOrder
from aftershock.workloads.adapters.exec_protocol import Transacted, error_code
from aftershock.workloads.adapters.sending import DueRecord, ProduceRecorder
from aftershock.workloads.adapters.transacting import (
    ProducerFailedError,
    RecordQueue,
    TransactionalClient,
    TransactionDriver,
    TransactionRefusedError,
)
from aftershock.workloads.load.assignment import ProduceAssignment
from aftershock.workloads.load.events import Clock
from aftershock.workloads.load.spool import UNKNOWN, Status

_PAUSE_S = 0.05
"""Pause before an order is given again."""


class ExecTransactions(TransactionalClient):
    """Transactions of a client program; ``write`` writes an order, and returns False if the program reads too slowly.

    ``send`` orders a record, ``in_flight`` returns the number of ordered records without a report. The driver runs on
    an event loop that gets a turn whenever reports were read.
    """

    def __init__(
        self,
        assignment: ProduceAssignment,
        clock: Clock,
        sending: ProduceRecorder,
        *,
        write: Callable[[bytes], bool],
        send: Callable[[DueRecord], None],
        in_flight: Callable[[], int],
    ) -> None:
        self.queue = RecordQueue(sending)
        self._sending, self._write, self._send, self._in_flight = sending, write, send, in_flight
        self._deadline_s = assignment.deadline_ms / 1000
        self._identity = UNKNOWN, UNKNOWN, UNKNOWN
        self._ordered: TransactionOrder | None = None
        self._answer: asyncio.Future[Transacted] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._driver = TransactionDriver(assignment, clock, sending, self)
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return self._driver.busy

    def turn(self) -> None:
        """Let the driver work until it waits for a record, a report or a time."""
        if self._flushed is not None and not self._flushed.done() and not self._in_flight():
            self._flushed.set_result(None)
        if self._task is None:
            self._task = self._loop.create_task(self._driver.run())
        self._loop.run_until_complete(asyncio.sleep(0))
        if self._task.done():
            self._task.result()

    def take(self, report: Transacted) -> None:
        """Accept the report of the order that was given last; raise ``WorkloadError`` if there is no such order."""
        if self._answer is None or self._answer.done() or report.did != self._ordered:
            raise WorkloadError(
                f"the client reported {report.did}, which was not ordered, or is reported already; see docs/EXEC.md"
            )
        self._answer.set_result(report)

    async def _order(self, do: TransactionOrder) -> Transacted:
        while not self._write(Transact(do=do).line()):  # noqa: ASYNC110  # nothing tells when there is room
            await asyncio.sleep(_PAUSE_S)
        self._ordered, self._answer = do, self._loop.create_future()
        report = await self._answer
        if do == "begin_transaction":
            self._identity = report.producer_id, report.epoch, UNKNOWN
        if report.version is not None:
            self._identity = *self._identity[:2], report.version
        return report

    async def _end(self, do: TransactionOrder) -> None:
        report = await self._order(do)
        if report.error is None:
            return
        code = error_code(report.error)
        if report.then == "repeat":
            await asyncio.sleep(_PAUSE_S)  # a program that answers at once must not be asked without a pause
            raise TimeoutError
        if report.then == "abort" and do == "commit_transaction":
            raise TransactionRefusedError(code)
        raise ProducerFailedError(code, in_doubt=report.in_doubt)

    async def next_record(self) -> DueRecord | None:
        return await self.queue.next_record()

    async def begin(self) -> None:
        report = await self._order("begin_transaction")
        if report.error is not None:
            raise ProducerFailedError(error_code(report.error), in_doubt=False)

    def identity(self) -> tuple[int, int, int]:
        return self._identity

    async def send(self, record: DueRecord) -> None:
        self._send(record)

    def reject(self, seq: int, code: int) -> None:
        self._sending.ended(seq, Status.FAILED, code)

    async def flush(self) -> None:
        if not self._in_flight():
            return
        self._flushed = self._loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                await self._flushed

    async def commit(self) -> None:
        await self._end("commit_transaction")

    async def abort(self, *, after_commit: bool) -> bool:  # noqa: ARG002  # the program's library decides
        await self._end("abort_transaction")
        return False

    async def reopen(self) -> None:
        report = await self._order("reopen_producer")
        if report.error is not None:
            raise WorkloadError(f"the client could not reopen its producer ({report.error}); see docs/EXEC.md")

    def close(self) -> None:
        """End the driver; the last transaction keeps the outcome that its row has."""
        if self._task is not None:
            self._task.cancel()
            self._loop.run_until_complete(asyncio.wait([self._task]))
        self._loop.close()
