"""Pipe of the client ``reference``: reads a topic with the reference consumer, and writes each record to another.

Configured like ``confluent_pipe``, with Kafka's names of ``settings``, of which consumer and producer each take their
own, and with the same promises. In transactions, the positions go to the coordinator with the metadata of the member
(KIP-447). A process that can't end its transaction gives way to a new one with the same transactional id.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from aftershock.errors import BrokerError, ClientError, ProtocolError
from aftershock.workloads.kafka.client.settings import ClientSettings, ProducerSettings, parse
from aftershock.workloads.kafka.consumer.consumer import Consumer
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.producer.produce_request import Delivery
from aftershock.workloads.kafka.producer.producer import Producer
from aftershock.workloads.kafka.rules.transaction_manager import State
from aftershock.workloads.kafka.rules.values import TopicPartition
from aftershock.workloads.kafka.wire.batch import Record
from aftershock.workloads.kafka.wire.codes import name

_POLL_MS, _PAUSE_S = 50.0, 0.1
_STEP_MS = 15_000.0
"""Time limit of a step of a transaction."""
_CLOSE_MS = 3_000.0
_RECOVERABLE = {State.IN_TRANSACTION, State.ABORTABLE_ERROR}

Place = TopicPartition
S = TypeVar("S", bound=ClientSettings)


def main(config: Mapping[str, Any]) -> None:
    try:
        asyncio.run(_run(config))
    except (ClientError, TimeoutError) as error:
        _log(f"giving up: {error}")
        os._exit(1)


async def _run(config: Mapping[str, Any]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    pipe = Pipe(config)
    await pipe.start()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    while not stopping.is_set():
        await pipe.turn()
    await pipe.close()


def _settings(kind: type[S], config: Mapping[str, Any], own: Mapping[str, Any]) -> S:
    """Return the settings of one client; of the arm's, those that it has."""
    known = {field.name for field in fields(kind)}
    arm = {key: value for key, value in config["settings"].items() if key.replace(".", "_") in known}
    shared = {"bootstrap.servers": config["bootstrap"], "client.id": config["member"]}
    return parse(kind, {**shared, **own, **arm})


class Pipe:
    """One process of the pipe; the caller lets it ``turn`` again and again."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._from, self._to, self._transactional = config["from"], config["to"], config["transactional"]
        identity = {"transactional.id": config["member"]} if self._transactional else {}
        group = {"group.id": config["group"], "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        group["isolation.level"] = "read_committed"
        self.consumer = Consumer(_settings(ConsumerSettings, config, group), on_event=_ignore)
        producing = _settings(ProducerSettings, config, {"linger.ms": 5, **identity})
        self.producer = Producer(producing, report=self._reported, on_event=_ignore)
        self._owned: set[Place] = set()
        self._failure = 0
        self._uncommitted = False

    async def start(self) -> None:
        await self.producer.start([self._to])
        await self.consumer.start([self._from])
        await self.consumer.subscribe([self._from], self._owned.update, self._owned.difference_update)

    async def close(self) -> None:
        await self.consumer.close(_CLOSE_MS)
        await self.producer.close(_CLOSE_MS)

    async def turn(self) -> None:
        """Process the records of one poll; raise ClientError or TimeoutError if a new process must go on."""
        try:
            fetched = await self.consumer.poll(_POLL_MS)
        except (BrokerError, ProtocolError) as error:
            self.consumer.check()  # raises what ends the consumer; the next poll retries a partition's error
            _log(f"poll: {error}")
            await asyncio.sleep(_PAUSE_S)
            return
        records: list[Record] = []
        ends: dict[Place, int] = {}
        for each in fetched:
            records += (record for record in each.batch.records if record.offset >= each.first_offset)
            ends[TopicPartition(each.topic, each.partition)] = each.batch.last_offset + 1
        if self._transactional:
            if records:
                await self._in_transaction(records, ends)
        elif records or self._uncommitted:
            await self._at_least_once(records)

    async def _at_least_once(self, records: Sequence[Record]) -> None:
        """Write an output for each record, and commit behind them."""
        await self._write(records)
        await self.producer.flush()
        if self._failure:
            raise BrokerError(f"an output was refused: {name(self._failure)}", self._failure)
        self._uncommitted = True
        try:
            await self.consumer.commit()  # the positions of all records that were polled
            self._uncommitted = False
        except (ClientError, TimeoutError) as error:
            # the partitions were given to another member, which processes the records again
            _log(f"commit refused: {error}")

    async def _in_transaction(self, records: Sequence[Record], ends: Mapping[Place, int]) -> None:
        """Write outputs and positions in one transaction; after an error that aborts it, read the records again."""
        producer = self.producer
        await producer.begin_transaction(_STEP_MS)
        try:
            await self._write(records)
            await producer.send_offsets_to_transaction(self.consumer.group_offsets(ends), _STEP_MS)
            await self._commit()
        except (ClientError, TimeoutError) as error:
            if producer.transactions.state not in _RECOVERABLE:
                raise
            _log(f"transaction aborted: {error}")
            await producer.abort_transaction(_STEP_MS)
            await self._rewind()

    async def _write(self, records: Sequence[Record]) -> None:
        for number, record in enumerate(records):
            output: dict[str, Any] = {"key": record.key, "headers": record.headers, "token": number}
            if not self.producer.offer(self._to, record.value, **output):
                await self.producer.send(self._to, record.value, **output)

    async def _commit(self) -> None:
        """Commit the transaction, and ask a second time if the result is unknown (KIP-98)."""
        try:
            await self.producer.commit_transaction(_STEP_MS)
        except TimeoutError:
            await self.producer.commit_transaction(_STEP_MS)

    async def _rewind(self) -> None:
        """Read on from what the group has committed, in the partitions that the consumer still has."""
        committed = await self.consumer.committed(self._owned)
        missing = self._owned.difference(committed)
        first = await self.consumer.offsets_for("earliest", missing) if missing else {}
        self.consumer.seek(first | committed)

    def _reported(self, delivery: Delivery) -> None:
        self._failure = self._failure or delivery.error


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _ignore(event: str, **details: object) -> None:
    """Ignore an event of a client: a service reports nothing."""


if __name__ == "__main__":
    main(json.loads(os.environ["AFTERSHOCK_PIPE"]))
