"""The heartbeats of one group member, in the background: what ``consumer_group.py`` wants said, to the coordinator.

ConsumerGroupHeartbeat is spoken in versions 0 and 1; of 1's additions only the client's own member id is used.
"""

from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any

from aftershock.errors import BrokerError, ProtocolError
from aftershock.workloads.reference.coordinator import Coordinator
from aftershock.workloads.reference.shared import Shared
from aftershock.workloads.reference.speak import Dialect
from aftershock.workloads.reference.wake import Wake
from aftershock.workloads.rules.consumer_group import (
    AssignedPartition,
    Assignment,
    GroupMember,
    Heartbeat,
    HeartbeatAnswer,
    Verdict,
)
from aftershock.workloads.wire import codes
from aftershock.workloads.wire.primitives import MILLISECOND
from aftershock.workloads.wire.versions import Api

HEARTBEAT = Dialect(Api.CONSUMER_GROUP_HEARTBEAT, 0, 1)
UNCHANGED_MS = -1


class Heartbeats:
    """Keeps a member in its group for as long as ``run`` runs; ``wake`` when the member has something to say."""

    def __init__(self, group_id: str, member: GroupMember, coordinator: Coordinator, shared: Shared) -> None:
        self.wake = Wake()
        self._group_id, self._member, self._coordinator, self._shared = group_id, member, coordinator, shared

    async def run(self) -> None:
        """For ever; BrokerError when the membership has ended, UnsupportedError when the broker has no KIP-848."""
        while True:
            wait_ms = self._member.wait_ms(self._shared.clock_ms())
            if wait_ms > 0:
                await self.wake.wait(wait_ms)
            else:
                await self.beat()
                self._shared.on_change()

    async def beat(self) -> None:
        """One exchange, now."""
        said = self._member.heartbeat(self._shared.clock_ms())
        try:
            response = await self._coordinator.ask(HEARTBEAT, partial(self._request, said))
        except (OSError, ProtocolError) as error:
            self._member.failed(self._shared.clock_ms())
            self._shared.tell("heartbeat_failed", reason=str(error) or type(error).__name__)
            return
        self._act(self._member.answered(_answer(response), self._shared.clock_ms()), int(response.error_code))

    def _request(self, said: Heartbeat, messages: Any) -> Any:
        timeout_ms = UNCHANGED_MS if said.rebalance_timeout_ms is None else said.rebalance_timeout_ms
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=said.member_id,
            member_epoch=said.member_epoch,
            rack_id=said.rack,
            rebalance_timeout=timedelta(milliseconds=timeout_ms),
            subscribed_topic_names=said.topics,
            server_assignor=said.server_assignor,
            topic_partitions=None if said.owned is None else tuple(_by_id(messages, said.owned)),
        )

    def _act(self, verdict: Verdict, error: int) -> None:
        if verdict is not Verdict.GO_ON:
            self._shared.tell("group_error", error=codes.name(error), verdict=verdict.name.lower())
        if verdict is Verdict.FIND_COORDINATOR:
            self._coordinator.forget()
        elif verdict is Verdict.FAIL:
            advice = "see the broker's log, or use another group"
            raise BrokerError(f"the group {self._group_id} refuses this consumer: {codes.name(error)}; {advice}", error)


def _by_id(messages: Any, owned: Assignment) -> list[Any]:
    topics = groupby(sorted(owned), key=lambda partition: partition.topic_id)
    return [
        messages.TopicPartitions(topic_id=topic_id, partitions=tuple(each.partition for each in partitions))
        for topic_id, partitions in topics
    ]


def _answer(response: Any) -> HeartbeatAnswer:
    assignment = response.assignment and frozenset(
        AssignedPartition(topic.topic_id, partition)
        for topic in response.assignment.topic_partitions
        for partition in topic.partitions
    )
    interval_ms = response.heartbeat_interval / MILLISECOND
    return HeartbeatAnswer(int(response.error_code), response.member_epoch, interval_ms, assignment)
