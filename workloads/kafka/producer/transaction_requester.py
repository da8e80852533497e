"""Transactional requests of one producer, sent one at a time to the coordinator of the transactional id.

The rules are in ``rules/transaction_manager.py``.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, ProtocolError, UnsupportedError
from aftershock.workloads.kafka.client.coordinator import TRANSACTION_KEY, Coordinator
from aftershock.workloads.kafka.client.network_client import NetworkClient
from aftershock.workloads.kafka.client.requests import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    END_TXN_1_MOST,
    INIT_TRANSACTIONS,
    PRODUCE,
    PRODUCE_1_MOST,
    TXN_OFFSET_COMMIT,
    TXN_OFFSET_COMMIT_1_MOST,
    TransactionVersion,
    group_by_topic,
)
from aftershock.workloads.kafka.client.settings import ProducerSettings
from aftershock.workloads.kafka.rules.idempotence import ProducerId
from aftershock.workloads.kafka.rules.transaction_manager import GroupOffsets, State, Step, TransactionManager
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, TopicPartition


class TransactionRequester:
    """Transactional requests of one producer; ``on_done`` is called when a request has ended."""

    def __init__(
        self,
        settings: ProducerSettings,
        manager: TransactionManager,
        brokers: NetworkClient,
        backoff: Backoff,
        on_done: Callable[[], None],
    ) -> None:
        self._id = settings.transactional_id or ""
        self._timeout = timedelta(milliseconds=settings.transaction_timeout_ms)
        self._manager, self._brokers, self._on_done = manager, brokers, on_done
        self._coordinator = Coordinator(self._id, brokers, backoff, TRANSACTION_KEY)
        self._group_coordinator: tuple[str, Coordinator] | None = None
        self._backoff = backoff
        highest = {END_TXN.api: END_TXN_1_MOST, PRODUCE.api: PRODUCE_1_MOST}
        self._version = TransactionVersion(highest | {TXN_OFFSET_COMMIT.api: TXN_OFFSET_COMMIT_1_MOST})
        self._task: asyncio.Task[None] | None = None

    @property
    def lookups(self) -> int:
        return self._coordinator.lookups

    def _of_group(self, group_id: str) -> Coordinator:
        if self._group_coordinator is None or self._group_coordinator[0] != group_id:
            self._group_coordinator = group_id, Coordinator(group_id, self._brokers, self._backoff)
        return self._group_coordinator[1]

    def send_if_due(self, *, incomplete: bool) -> None:
        """Send the next transactional request in the background, unless a request is under way."""
        if self._task is None and (step := self._manager.next_step(incomplete=incomplete)) is not None:
            self._task = asyncio.get_running_loop().create_task(self._exchange(step))

    async def _exchange(self, step: Step) -> None:
        manager = self._manager
        manager.in_flight = step  # also while it backs off, as in ``Sender.maybeSendAndPollTransactionalRequest``
        try:
            await asyncio.sleep(manager.wait_ms / 1000)
            # the application may have asked for an abort in the meantime
            manager.in_flight = None
            if manager.next_step(incomplete=False) is step:
                await self._send(step)
        except Exception:  # a bug: end the producer, so that nobody waits for it
            manager.fail(int(ErrorCode.unknown_server_error))
            raise
        finally:
            self._task = None
            self._on_done()

    async def _send(self, step: Step) -> None:
        manager, commit = self._manager, self._manager.state is State.COMMITTING
        manager.in_flight = step
        if step is Step.COMMIT_OFFSETS and manager.offsets is not None:
            await self._send_offsets(manager.offsets)
            return
        error, response = 0, None
        try:
            if step is Step.INIT_PRODUCER_ID:
                response = await self._init()
            elif step is Step.ADD_PARTITIONS:
                response = await self._add(manager.partitions_to_add)
            elif step is Step.ADD_OFFSETS and manager.offsets is not None:
                response = await self._add_offsets(manager.offsets.group_id)
            else:
                response = await self._end(commit=commit)
        except BrokerError as refused:
            error = refused.code
        except UnsupportedError:
            error = int(ErrorCode.unsupported_version)
        except (OSError, ProtocolError):
            manager.on_no_response()
            return
        if response is not None and step is not Step.ADD_PARTITIONS:
            error = int(response.error_code)
        producer = ProducerId(getattr(response, "producer_id", UNKNOWN), getattr(response, "producer_epoch", UNKNOWN))
        if step is Step.ADD_PARTITIONS:
            errors = dict.fromkeys(manager.partitions_to_add, error) if response is None else _errors(response)
            if any(manager.coordinator_lost(step, code) for code in errors.values()):
                self._coordinator.forget()
            manager.on_added(errors)
            return
        if manager.coordinator_lost(step, error):
            self._coordinator.forget()
        if step is Step.INIT_PRODUCER_ID:
            manager.on_init(error, producer)
        elif step is Step.ADD_OFFSETS:
            manager.on_offsets_added(error)
        else:
            manager.on_ended(error, producer, commit=commit)

    def _update_version(self) -> None:
        known = list(self._brokers.versions)
        manager = self._manager
        manager.next_version_2 = self._version.is_2(known)

    async def _init(self) -> Any:
        producer = self._manager.producer
        response = await self._coordinator.ask(
            INIT_TRANSACTIONS,
            lambda messages: messages.InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout=self._timeout,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
            ),
        )
        self._update_version()
        return response

    async def _add(self, partitions: list[TopicPartition]) -> Any:
        producer = self._manager.producer

        def request(messages: Any) -> Any:
            topics = tuple(
                messages.AddPartitionsToTxnTopic(name=name, partitions=tuple(tp.partition for tp in of_topic))
                for name, of_topic in group_by_topic(partitions)
            )
            return messages.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )

        return await self._coordinator.ask(ADD_PARTITIONS_TO_TXN, request)

    def _sender(self) -> dict[str, Any]:
        producer = self._manager.producer
        return {"transactional_id": self._id, "producer_id": producer.id, "producer_epoch": producer.epoch}

    async def _add_offsets(self, group_id: str) -> Any:
        return await self._coordinator.ask(
            ADD_OFFSETS_TO_TXN, lambda messages: messages.AddOffsetsToTxnRequest(**self._sender(), group_id=group_id)
        )

    async def _send_offsets(self, group: GroupOffsets) -> None:
        manager, coordinator = self._manager, self._of_group(group.group_id)

        def request(messages: Any) -> Any:
            topics = tuple(
                messages.TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=tuple(
                        messages.TxnOffsetCommitRequestPartition(
                            partition_index=tp.partition,
                            committed_offset=group.offsets[tp][0],
                            committed_leader_epoch=group.offsets[tp][1],
                            committed_metadata="",
                        )
                        for tp in of_topic
                    ),
                )
                for name, of_topic in group_by_topic(group.offsets)
            )
            return messages.TxnOffsetCommitRequest(
                **self._sender(),
                group_id=group.group_id,
                generation_id=group.generation,
                member_id=group.member_id,
                group_instance_id=group.instance_id,
                topics=topics,
            )

        versions = TXN_OFFSET_COMMIT if manager.version_2 else TXN_OFFSET_COMMIT._replace(most=TXN_OFFSET_COMMIT_1_MOST)
        try:
            response = await coordinator.ask(versions, request)
        except BrokerError as refused:
            errors = dict.fromkeys(group.offsets, refused.code)
        except UnsupportedError:
            errors = dict.fromkeys(group.offsets, int(ErrorCode.unsupported_version))
        except (OSError, ProtocolError):
            manager.on_no_response()
            return
        else:
            errors = {
                TopicPartition(topic.name, part.partition_index): int(part.error_code)
                for topic in response.topics
                for part in topic.partitions
            }
        if any(manager.coordinator_lost(Step.COMMIT_OFFSETS, code) for code in errors.values()):
            coordinator.forget()
        manager.on_offsets_committed(errors)

    async def _end(self, *, commit: bool) -> Any:
        """End the transaction with the version it began with; the version of the next is decided before."""
        manager = self._manager
        self._update_version()
        await self._coordinator.find()
        manager.asked = manager.asked or commit  # from here on the request may reach the coordinator
        return await self._coordinator.ask(
            END_TXN if manager.version_2 else END_TXN._replace(most=END_TXN_1_MOST),
            lambda messages: messages.EndTxnRequest(**self._sender(), committed=commit),
        )

    async def close(self) -> None:
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.wait([task])


def _errors(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): int(part.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }
