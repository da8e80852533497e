"""The process of a scripted cluster: it reads orders from stdin and answers them on stdout, one JSON line each."""

import asyncio
import base64
import contextlib
import json
import sys
from typing import Any

from aftershock.tests.scripted.call import Call, Node
from aftershock.tests.scripted.cluster import Cluster, Partition
from aftershock.tests.scripted.groups import Group
from aftershock.tests.scripted.journal import Journal
from aftershock.tests.scripted.messages import KEYS, SERVED, Request
from aftershock.tests.scripted.node import Listener
from aftershock.tests.scripted.script import Script


class Server:
    """Each public method is an order, with its arguments by name; what it returns is the answer."""

    def __init__(
        self, nodes: int, racks: list[str | None], versions: dict[str, list[int] | None], *, sessions: bool, **rest: Any
    ) -> None:
        offered = {key: (low, high) for key, (_, low, high) in SERVED.items()}
        for name, span in versions.items():
            offered.pop(KEYS[name]) if span is None else offered.update({KEYS[name]: (span[0], span[1])})
        self._cluster = Cluster({}, dict(enumerate(racks, start=1)), **rest)
        self._journal = Journal(self._cluster)
        self._groups: dict[str, Group] = {}
        self._sessions = sessions
        self._listeners = {
            number: Listener(Node.fresh(number, offered, sessions=sessions), self._journal, self._call)
            for number in range(1, nodes + 1)
        }

    async def open(self) -> dict[int, int]:
        for number, listener in self._listeners.items():
            await listener.open()
            self._cluster.ports[number] = listener.port
        return self._cluster.ports

    def _call(self, node: Node, request: Request, script: Script) -> Call:
        return Call(self._cluster, self._groups, node, request, script)

    def _partition(self, topic: str, partition: int) -> Partition:
        return self._cluster.topics[topic].partitions[partition]

    async def create(self, topic: str, partitions: int, leaders: Any, replicas: Any) -> str:
        return str(self._cluster.create(topic, partitions, leaders, replicas))

    async def set_transaction_version(self, level: int) -> None:
        self._cluster.transaction_version = level

    async def delete(self, topic: str) -> None:
        del self._cluster.topics[topic]

    async def move_leader(self, topic: str, partition: int, to: int, epoch: int | None, unaware: list[int]) -> int:
        return self._cluster.move_leader(self._partition(topic, partition), to, epoch, unaware)

    async def publish(self, nodes: list[int]) -> None:
        self._cluster.publish(nodes)

    async def prefer_replica(self, topic: str, partition: int, replica: int, rack: str | None) -> None:
        self._partition(topic, partition).preferred[rack] = replica

    async def move_coordinator(self, key: str, to: int) -> None:
        self._cluster.coordinators[key] = to

    async def set_log(
        self, topic: str, partition: int, start: int | None, high_watermark: int | None, lagging: dict[str, int]
    ) -> None:
        log = self._partition(topic, partition).log
        log.start = log.start if start is None else start
        log.held = high_watermark
        log.lagging = {int(node): end for node, end in lagging.items()}
        self._cluster.wake()

    async def append(self, topic: str, partition: int, batch: str) -> int:
        target = self._partition(topic, partition)
        appended = target.log.append(base64.b64decode(batch), target.leader.epoch)
        self._cluster.wake()
        return appended.base_offset

    async def truncate(self, topic: str, partition: int, end: int) -> None:
        self._partition(topic, partition).log.truncate(end)

    async def log(self, topic: str, partition: int) -> str:
        batches = self._partition(topic, partition).log.batches
        return base64.b64encode(b"".join(batch.data for batch in batches)).decode()

    async def script(self, **said: Any) -> int:
        return self._journal.add(Script.told(**said))

    async def clear(self) -> None:
        self._journal.scripts.clear()

    async def fired(self, script: int) -> int:
        return self._journal.scripts[script].fired

    async def journal(self, since: int) -> list[dict[str, Any]]:
        return self._journal.seen[since:]

    async def down(self, node: int) -> None:
        self._cluster.down.add(node)
        self._listeners[node].close()

    async def up(self, node: int) -> None:
        self._cluster.down.discard(node)
        await self._listeners[node].open()

    async def reset(self) -> None:
        for node in list(self._cluster.down):
            await self.up(node)
        for listener in self._listeners.values():
            listener.close_connections()
        self._cluster.transaction_version = 1
        advertised = self._cluster.advertised
        for known in (
            self._cluster.topics,
            self._cluster.coordinators,
            self._cluster.transactions,
            self._groups,
            self._journal.scripts,
            advertised,
        ):
            known.clear()
        self._journal.seen.clear()
        await self.forget_sessions(None)

    async def advertise(self, ports: dict[str, int]) -> None:
        self._cluster.advertised = {int(node): port for node, port in ports.items()}

    async def close_connections(self, node: int) -> None:
        self._listeners[node].close_connections()

    async def forget_sessions(self, node: int | None) -> None:
        for listener in self._listeners.values() if node is None else [self._listeners[node]]:
            listener.node.sessions = Node.fresh(listener.node.node_id, {}, sessions=self._sessions).sessions

    async def forget_producers(self) -> None:
        for topic in self._cluster.topics.values():
            for partition in topic.partitions:
                partition.log.producers.clear()

    async def rebalance(self, group: str) -> None:
        self._groups[group].rebalance()

    async def committed(self, group: str) -> list[tuple[str, int, int]]:
        known = self._groups.get(group, Group()).committed
        return [(topic, partition, offset) for (topic, partition), (offset, _, _) in known.items()]

    async def members(self, group: str) -> list[str]:
        return list(self._groups.get(group, Group()).members)


async def serve() -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    server = Server(**json.loads(await reader.readline()))
    _say(await server.open())
    while line := await reader.readline():
        order = json.loads(line)
        try:
            _say({"is": await getattr(server, order.pop("do"))(**order)})
        except Exception as error:  # noqa: BLE001  # the test is to see it
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
