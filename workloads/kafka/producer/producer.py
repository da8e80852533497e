"""Reference producer, with the methods that an application calls."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ClientError, SettingError, UnsupportedError
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.client.tasks import EventListener, monotonic_ms
from aftershock.workloads.kafka.producer.produce_request import (
    BatchCompleter,
    Delivery,
    ProducerRules,
    rejected_delivery,
)
from aftershock.workloads.kafka.producer.sender import Sender
from aftershock.workloads.kafka.rules.accumulator import AppendResult
from aftershock.workloads.kafka.rules.batch import Headers
from aftershock.workloads.kafka.rules.transaction_manager import GroupOffsets, State, TransactionManager
from aftershock.workloads.kafka.rules.values import UNKNOWN, Leader, TopicPartition
from aftershock.workloads.kafka.wire import codes, compression

_JOINED, _READY = AppendResult.JOINED, AppendResult.READY  # an attribute access on the enum costs as much as a call


class Producer:
    """Producer with bounded memory, created and used on one asyncio event loop.

    The callback ``report`` is called with the result of each record batch, and of each record that ``send`` could not
    put into a batch in time; ``report`` must not raise. Every record is reported once, as delivered, failed, or in
    doubt. Raises UnsupportedError if the package for ``compression_type`` is not installed.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        report: Callable[[Delivery], None],
        on_event: EventListener,
        draw: random.Random | None = None,
    ) -> None:
        if not compression.available(settings.compression_type):
            raise UnsupportedError(
                f"{settings.compression_type} compression needs the package cramjam, which is not installed: "
                "pip install cramjam"
            )
        draw = draw or random.Random()  # noqa: S311  # spreads load and back-offs; not a secret
        rules = ProducerRules.of(settings, draw)
        self._settings, self._rules, self._report = settings, rules, report
        self._append, self._transactions = rules.accumulator.append, rules.transactions
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._wall_ms = time.time() * 1000 - monotonic_ms()
        self._closing = False
        self.brokers = NetworkClient(
            settings,
            rules.metadata,
            monotonic_ms,
            on_event=on_event,
            draw=draw,
            on_change=lambda: self._sender.wake(),  # noqa: PLW0108  # the sender needs this client
        )
        self._sender = Sender(
            settings,
            rules,
            self.brokers,
            BatchCompleter(settings, rules, report),
            on_event=on_event,
            clock_ms=monotonic_ms,
            on_turn=self._notify_waiters,
        )

    @property
    def counts(self) -> Counter[str]:
        return self._rules.counts

    async def start(self, topics: Sequence[str]) -> None:
        """Wait without a time limit until all partitions of ``topics`` have leaders and the producer has an id.

        Raises BrokerError if the producer is not authorized, or a topic does not exist for ``max_block_ms``;
        UnsupportedError if the brokers lack a required API version.
        """
        self._sender.requester.prepare()
        self._rules.metadata.want(topics)
        self._sender.wake()
        rules, patient_until_ms = self._rules, monotonic_ms() + self._settings.max_block_ms
        while True:
            if (error := self._sender.error or self.brokers.unsupported) is not None:
                raise error
            patient = monotonic_ms() < patient_until_ms
            leaders: list[Leader] = []
            for topic in topics:
                metadata = rules.metadata.topic(topic)
                code = 0 if metadata is None else metadata.error
                if code in codes.HOPELESS or (code == ErrorCode.unknown_topic_or_partition and not patient):
                    raise BrokerError(f"topic {topic}: {codes.name(code)}; create it, or authorize this client", code)
                partitions = () if metadata is None else metadata.partitions
                tps = [TopicPartition(topic, item.partition) for item in partitions]
                leaders += [rules.metadata.leader(tp) for tp in tps] or [Leader()]
            has_id = rules.idempotence is None or not rules.idempotence.needs_id
            if has_id and all(leader.node_id != UNKNOWN for leader in leaders):
                return
            await self._next_change(patient_until_ms)

    def offer(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        token: int,
        now_ms: float | None = None,
    ) -> bool:
        """Put a record into a batch without waiting; return False if the buffer is full or the partition unknown.

        If the producer can never send the record, the record is reported as failed and the result is True. Raises
        ClientError if the producer is closed.
        """
        now = time.monotonic() * 1000 if now_ms is None else now_ms
        if self._closing:
            raise ClientError("the producer is closed; create a new one")
        transactions = self._transactions
        if self._sender.error is not None:
            code = self._sender.code
        elif transactions is not None and not transactions.accepts_records:
            code = transactions.error or int(ErrorCode.invalid_txn_state)
        else:
            result = self._append(topic, value, key, headers, partition, token, int(now + self._wall_ms), now)
            if result is _JOINED:
                return True
            if result is _READY:
                self._sender.wake()
                return True
            metadata, code = self._rules.metadata.topic(topic), 0
            if result is AppendResult.TOO_LARGE:
                code = int(ErrorCode.message_too_large)
            elif result is AppendResult.NO_PARTITION and metadata is not None and metadata.error in codes.HOPELESS:
                code = metadata.error
            if not code:
                return False
            if transactions is not None:
                transactions.unsent_failed(code)
        self._report(rejected_delivery(topic, partition, token, code))
        return True

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        token: int,
    ) -> None:
        """Put a record into a batch, waiting for room or metadata; report the record as failed after ``max_block_ms``.

        While a record waits for room, batches are sent without lingering. Closing the producer ends the wait. Raises
        ClientError if the producer is already closed.
        """
        accumulator, until_ms = self._rules.accumulator, monotonic_ms() + self._settings.max_block_ms
        while not self.offer(topic, value, key=key, headers=headers, partition=partition, token=token):
            accumulator.waiting += 1
            try:
                self._rules.metadata.want([topic])
                self._sender.wake()
                await self._next_change(until_ms)
            finally:
                accumulator.waiting -= 1
            if self._closing or monotonic_ms() >= until_ms:
                metadata = self._rules.metadata.topic(topic)
                code = (metadata.error if metadata is not None else 0) or int(ErrorCode.request_timed_out)
                if self._transactions is not None:
                    self._transactions.unsent_failed(code)
                self._report(rejected_delivery(topic, partition, token, code))
                return

    @property
    def transactions(self) -> TransactionManager:
        """State of the producer's transactions; raises SettingError without ``transactional.id``."""
        if self._transactions is None:
            raise SettingError("transactions need transactional.id: set it")
        return self._transactions

    async def begin_transaction(self, timeout_ms: float) -> None:
        """Begin a transaction, after the producer has got an id or epoch if it needs one.

        Raises ClientError if the producer has failed or the previous transaction has not ended, TimeoutError.
        """
        transactions, until_ms = self.transactions, monotonic_ms() + timeout_ms
        self._sender.wake()
        while self._sender.error is None and transactions.state is State.INITIALIZING:
            if monotonic_ms() >= until_ms:
                raise TimeoutError(f"the coordinator gave no producer id within {timeout_ms:g} ms")
            await self._next_change(until_ms)
        if self._sender.error is not None:
            raise self._sender.error
        transactions.begin()

    async def send_offsets_to_transaction(self, offsets: GroupOffsets, timeout_ms: float) -> None:
        """Commit offsets of a consumer group with the transaction (KIP-447).

        Raises BrokerError if the transaction must be aborted, for example because the group's coordinator refuses the
        member; ClientError after an error that ends the producer; TimeoutError, after which it must be aborted.
        """
        transactions, until_ms = self.transactions, monotonic_ms() + timeout_ms
        if self._sender.error is None:
            transactions.send_offsets(offsets)
        self._sender.wake()
        while transactions.offsets is not None or self._sender.error is not None:
            self._raise_failure()
            if monotonic_ms() >= until_ms:
                raise TimeoutError(f"the offsets were not committed within {timeout_ms:g} ms")
            await self._next_change(until_ms)

    async def commit_transaction(self, timeout_ms: float) -> None:
        """Send all records and commit the transaction; after a TimeoutError call it again, or close the producer.

        Raises BrokerError if the transaction must be aborted (its state is then ABORTABLE_ERROR), ClientError after an
        error that ends the producer, TimeoutError after ``timeout_ms``, when the outcome is not known yet.
        """
        if self._sender.error is None and self.transactions.state is not State.COMMITTING:
            self.transactions.begin_commit()
        await self._ended(timeout_ms)

    async def abort_transaction(self, timeout_ms: float, *, after_commit: bool = False) -> None:
        """Drop the records that were not sent yet and abort the transaction; raises as ``commit_transaction``.

        ``after_commit`` permits an abort whose commit has timed out, against Kafka's rules.
        """
        if self._sender.error is None and self.transactions.state is not State.ABORTING:
            self.transactions.begin_abort(after_commit=after_commit)
        await self._ended(timeout_ms)

    async def _ended(self, timeout_ms: float) -> None:
        transactions, until_ms = self.transactions, monotonic_ms() + timeout_ms
        self._sender.wake()
        while transactions.state not in {State.READY, State.INITIALIZING}:
            self._raise_failure()
            if monotonic_ms() >= until_ms:
                raise TimeoutError(f"the transaction did not end within {timeout_ms:g} ms")
            await self._next_change(until_ms)

    def _raise_failure(self) -> None:
        if self._sender.error is not None:
            raise self._sender.error
        if self.transactions.state is State.ABORTABLE_ERROR:
            problem = codes.name(self.transactions.error)
            raise BrokerError(f"the transaction must be aborted: {problem}", self.transactions.error)

    async def flush(self) -> None:
        """Send all records without lingering, and wait until they are reported."""
        accumulator, now_ms = self._rules.accumulator, monotonic_ms()
        accumulator.flushing += 1
        try:
            self._sender.wake()
            if accumulator.unfinished.oldest_ms <= now_ms:
                await self._wait_for_turn(lambda: accumulator.unfinished.oldest_ms > now_ms)
        finally:
            accumulator.flushing -= 1

    async def close(self, timeout_ms: float) -> None:
        """Send the buffered records for up to ``timeout_ms``, and report the rest as failed or in doubt."""
        self._closing = self._rules.accumulator.closing = True
        until_ms = monotonic_ms() + timeout_ms
        try:
            self._sender.wake()
            while len(self._rules.accumulator.unfinished) and monotonic_ms() < until_ms:
                await self._next_change(until_ms)
        finally:
            self._sender.give_up(ClientError("the producer is closed; create a new one"), ErrorCode.request_timed_out)
            await self._sender.close()
            await self.brokers.close()

    def _notify_waiters(self) -> None:
        """Wake the callers of ``start``, ``send``, ``flush`` and ``close`` whose condition is true."""
        for waiter, condition in self._waiters.items():
            if not waiter.done() and condition():
                waiter.set_result(None)

    async def _wait_for_turn(self, condition: Callable[[], bool]) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = condition
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    async def _next_change(self, until_ms: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until_ms - monotonic_ms()) / 1000):
                await self._wait_for_turn(lambda: True)
        except TimeoutError:
            return
