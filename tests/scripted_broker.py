"""A Kafka cluster that does what a test tells it to, in a process of its own: ``ScriptedBroker`` is the test's side.

It keeps topics and logs in memory and speaks the APIs that clients need, to ours and to librdkafka. What it does wrong
is scripted: the n-th request of an API, on one node or any, for one partition or any, is answered late, never, with an
error, cut off, garbled or after the next one. Every request is in its journal.

::

    with ScriptedBroker(nodes=3) as cluster:
        cluster.create("t", partitions=2)
        cluster.script("Produce", nth=2, error=6)          # the second Produce from now: NOT_LEADER_OR_FOLLOWER
        cluster.move_leader("t", 0, to=2, unaware=[1])      # node 1's metadata lags behind
        ...
        assert 2 == len(cluster.journal("Produce", topic="t"))

Methods block for about a millisecond; ``until`` is for tests that share a loop with the client under test.
"""

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from aftershock.workloads.kafka.wire.connection import Address

_LOOK_S = 0.01


class Seen(NamedTuple):
    """One request that a node received, in the order in which nodes received them."""

    number: int
    time_ms: float
    """Monotonic, of this host: comparable with ``time.monotonic()`` of the test."""
    node: int
    api: str
    """Kafka's name: ``Produce``, ``Fetch``, ``Metadata``, ``OffsetForLeaderEpoch``…"""
    version: int
    client_id: str | None
    connection: int
    size_bytes: int
    partitions: tuple[tuple[str, int], ...]
    """Those that it names; by topic id where the version has ids, resolved to the name."""
    fields: dict[str, Any]
    """Its other plain top-level fields under kio's names: ``session_id``, ``rack_id``, ``acks``, ``group_id``…, with
    ``partition_fields``: per "topic/partition" what it says of it (``fetch_offset``, ``base_sequence``…)."""


class ScriptedBroker:
    """A cluster of ``nodes`` brokers, ids from 1, each on a loopback port of its own: start it with ``with``.

    Args:
        nodes: how many brokers.
        racks: rack of each node, in order of ids; None: no racks.
        versions: API name → (lowest, highest) to offer, or None to leave it out; all else is what Kafka 4.3 offers.
        hints: whether NOT_LEADER_OR_FOLLOWER comes with CurrentLeader and NodeEndpoints, as KIP-951 has it.
        sessions: whether Fetch sessions are granted.
        auto_create: partitions of topics that clients ask for and that don't exist; 0: UNKNOWN_TOPIC_OR_PARTITION.
    """

    addresses: dict[int, Address]
    """Node id → where it listens, also while it is down."""
    bootstrap: str
    """``host:port,host:port``, as ``bootstrap.servers`` has it."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        racks: Sequence[str | None] | None = None,
        versions: dict[str, tuple[int, int] | None] | None = None,
        hints: bool = True,
        sessions: bool = True,
        auto_create: int = 0,
    ) -> None:
        self._told = {
            "nodes": nodes,
            "racks": list(racks or [None] * nodes),
            "versions": versions or {},
            "hints": hints,
            "sessions": sessions,
            "auto_create": auto_create,
        }
        self._seen: list[Seen] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "aftershock.tests.scripted.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._say(self._told)
        ports = self._hear()
        self.addresses = {int(node): Address("127.0.0.1", port) for node, port in ports.items()}
        self.bootstrap = ",".join(map(str, self.addresses.values()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def reset(self) -> None:
        """As it was when it was started: nothing known, nothing scripted, nothing seen, nobody connected.

        For a broker that several tests share: starting one takes longer than most tests.
        """
        self._ask("reset")
        self._seen.clear()

    # ---- topics

    def create(
        self,
        topic: str,
        partitions: int = 1,
        *,
        leaders: Sequence[int] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> UUID:
        """Make a topic and return its id.

        Partition p is led by ``leaders[p]``, else by the nodes in turn, in epoch 0; its replicas, all in sync, are
        ``replicas[p]``, else all nodes.
        """
        return UUID(self._ask("create", topic=topic, partitions=partitions, leaders=leaders, replicas=replicas))

    def delete(self, topic: str) -> None:
        """Forget a topic with its logs; created again it has another id."""
        self._ask("delete", topic=topic)

    def move_leader(
        self, topic: str, partition: int, to: int, *, epoch: int | None = None, unaware: Sequence[int] = ()
    ) -> int:
        """Another leader, of the next epoch (or ``epoch``), which is returned.

        Nodes that are ``unaware`` go on answering Metadata and giving hints from what they knew, until ``publish``. The
        new leader, when unaware, refuses as well.
        """
        return int(
            self._ask("move_leader", topic=topic, partition=partition, to=to, epoch=epoch, unaware=list(unaware))
        )

    def publish(self, *nodes: int) -> None:
        """Let these nodes (all by default) know what is true."""
        self._ask("publish", nodes=nodes)

    def prefer_replica(self, topic: str, partition: int, replica: int, *, rack: str | None = None) -> None:
        """Have the leader send consumers (of one rack, or all) to a replica; -1 takes it back."""
        self._ask("prefer_replica", topic=topic, partition=partition, replica=replica, rack=rack)

    def set_log(
        self,
        topic: str,
        partition: int,
        *,
        start: int | None = None,
        high_watermark: int | None = None,
        lagging: dict[int, int] | None = None,
    ) -> None:
        """Move a log's start, hold its high watermark back, let replicas lag (node → where its copy ends).

        What isn't given is as in a healthy log again, but for the start.
        """
        self._ask(
            "set_log",
            topic=topic,
            partition=partition,
            start=start,
            high_watermark=high_watermark,
            lagging=lagging or {},
        )

    def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Put a batch into a log as its leader would, and return its base offset."""
        return int(self._ask("append", topic=topic, partition=partition, batch=base64.b64encode(batch).decode()))

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Cut a log off at ``end``, as an unclean election does."""
        self._ask("truncate", topic=topic, partition=partition, end=end)

    def log(self, topic: str, partition: int = 0) -> bytes:
        """The whole log: batches, as ``wire.records.parse`` reads them."""
        return base64.b64decode(self._ask("log", topic=topic, partition=partition))

    # ---- what goes wrong

    def script(
        self,
        api: str,
        *,
        nth: int = 1,
        times: int = 1,
        node: int | None = None,
        partition: tuple[str, int] | None = None,
        delay_ms: float = 0,
        error: int | None = None,
        top_error: int | None = None,
        hint: tuple[int, int] | None = None,
        endpoints: bool = True,
        applied: bool = False,
        answer: Literal["sent", "none", "lost", "close", "refuse", "swapped"] = "sent",
        cut_bytes: int | None = None,
        garble: dict[int, int] | None = None,
        throttle_ms: int = 0,
    ) -> int:
        """Let ``times`` requests from the ``nth`` on, counted from now, go wrong; returns the script's number.

        Only requests of that API count, and of that node and that partition where they are given. A request that meets
        several scripts is treated as the first of them says.

        * ``delay_ms``: answer so much later; later answers on the connection wait, as with a real broker.
        * ``error``: the error code of ``partition``, or of every partition, or of the response if it has none below its
          top; what it hits isn't done, unless ``applied``. ``hint`` = (leader id, epoch) goes along as CurrentLeader
          (with 6 and 74 only), and with it that node's endpoint if ``endpoints``.
        * ``top_error``: the error code at the top of the response (Fetch sessions, Metadata 13).
        * ``answer``: ``sent``; ``none`` (done, and never answered); ``lost`` (neither done nor answered); ``close``
          (done, then the connection is closed unanswered); ``refuse`` (closed, not done); ``swapped`` (sent after the
          connection's next answer).
        * ``cut_bytes``: only so many bytes of the answer, then the connection is closed.
        * ``garble``: position in the answer's bytes, its length prefix included → the byte to put there.
        * ``throttle_ms``: the response's throttle time; nothing is delayed by it.
        """
        said = {name: value for name, value in locals().items() if name != "self"}
        return int(self._ask("script", **said))

    def clear(self) -> None:
        """Forget all scripts."""
        self._ask("clear")

    def down(self, node: int) -> None:
        """Close a node's listener and all its connections; no node's Metadata has it any more."""
        self._ask("down", node=node)

    def up(self, node: int) -> None:
        """Listen again, on the same port."""
        self._ask("up", node=node)

    def advertise(self, ports: dict[int, int]) -> None:
        """Send clients elsewhere: node → a port of this host, behind which the node is to be found."""
        self._ask("advertise", ports=ports)

    def close_connections(self, node: int) -> None:
        """Reset all connections that a node has accepted."""
        self._ask("close_connections", node=node)

    def forget_sessions(self, node: int | None = None) -> None:
        """Forget all fetch sessions of one node or all, as a restart does."""
        self._ask("forget_sessions", node=node)

    def forget_producers(self) -> None:
        """Forget all producers' sequences: as with Kafka 4, any sequence is then a producer's first."""
        self._ask("forget_producers")

    def rebalance(self, group: str) -> None:
        """Ask all members of a group to join again."""
        self._ask("rebalance", group=group)

    def move_coordinator(self, key: str, to: int) -> None:
        """Let another node coordinate a group; by default that is the lowest node that is up."""
        self._ask("move_coordinator", key=key, to=to)

    # ---- what happened

    def journal(self, api: str | None = None, *, node: int | None = None, topic: str | None = None) -> list[Seen]:
        """The requests received so far, or those of one API, node or topic."""
        for entry in self._ask("journal", since=len(self._seen)):
            places = tuple((name, number) for name, number in entry.pop("partitions"))
            self._seen.append(Seen(partitions=places, **entry))
        return [seen for seen in self._seen if _is_chosen(seen, api, node, topic)]

    def fired(self, script: int) -> int:
        """How many requests a script has met."""
        return int(self._ask("fired", script=script))

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed."""
        return {(topic, partition): offset for topic, partition, offset in self._ask("committed", group=group)}

    def members(self, group: str) -> list[str]:
        """The member ids of a group."""
        return list(self._ask("members", group=group))

    async def until(
        self,
        api: str,
        count: int = 1,
        *,
        node: int | None = None,
        topic: str | None = None,
        timeout_s: float = 10,
    ) -> list[Seen]:
        """Wait until ``count`` requests like this were received, and return them all; the loop runs on meanwhile.

        AssertionError with what was received, when that takes longer than ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while len(seen := self.journal(api, node=node, topic=topic)) < count:
            assert time.monotonic() < deadline_s, f"{len(seen)} of {count} {api} requests: {seen}"
            await asyncio.sleep(_LOOK_S)
        return seen

    def _ask(self, do: str, **arguments: Any) -> Any:
        self._say({"do": do, **arguments})
        answer = self._hear()
        if "error" in answer:
            raise ValueError(f"{do}: {answer['error']}")
        return answer["is"]

    def _say(self, order: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the scripted broker's process has ended; its traceback is on stderr"
        return json.loads(line)


def _is_chosen(seen: Seen, api: str | None, node: int | None, topic: str | None) -> bool:
    topics = {name for name, _ in seen.partitions} | set(seen.fields.get("topics") or ())
    return api in {None, seen.api} and node in {None, seen.node} and (topic is None or topic in topics)
