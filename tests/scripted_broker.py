"""A Kafka cluster in a process of its own that behaves as a test scripts it; ``ScriptedBroker`` is the test's
interface.

The cluster keeps topics and logs in memory and implements the APIs that the reference clients and librdkafka need. Its
misbehaviour is scripted: the n-th request of an API, on one node or any, for one partition or any, is answered late,
never, with an error, truncated, garbled or after the next response. Every request is recorded in the journal.

::

    with ScriptedBroker(nodes=3) as cluster:
        cluster.create("t", partitions=2)
        cluster.script("Produce", nth=2, error=6)          # the second Produce from now: NOT_LEADER_OR_FOLLOWER
        cluster.move_leader("t", 0, to=2, unaware=[1])      # node 1's metadata lags behind
        ...
        assert 2 == len(cluster.journal("Produce", topic="t"))

Methods block for about a millisecond; ``until`` is for tests that share an event loop with the client under test.
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

_POLL_S = 0.01


class ReceivedRequest(NamedTuple):
    """A request that a node received; requests are in the order of arrival at any node."""

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
    """The partitions in the request; topic ids are resolved to names."""
    fields: dict[str, Any]
    """Other plain top-level fields with kio's names (``session_id``, ``rack_id``, ``acks``, ``group_id``…), and
    ``partition_fields``: fields per "topic/partition" (``fetch_offset``, ``base_sequence``…)."""


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
        self._seen: list[ReceivedRequest] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "aftershock.tests.scripted.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send(self._told)
        ports = self._receive()
        self.addresses = {int(node): Address("127.0.0.1", port) for node, port in ports.items()}
        self.bootstrap = ",".join(map(str, self.addresses.values()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def reset(self) -> None:
        """Return to the state after the start: no topics, scripts, requests and connections.

        For a broker that several tests share, because starting a broker takes longer than most tests.
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
        """Create a topic and return its id.

        ``leaders[p]`` leads partition p in epoch 0, by default the nodes in turn. Its replicas are ``replicas[p]``, by
        default all nodes, and all are in sync.
        """
        return UUID(self._ask("create", topic=topic, partitions=partitions, leaders=leaders, replicas=replicas))

    def set_transaction_version(self, level: int) -> None:
        """Finalize a level of the feature ``transaction.version``, which is 1 at first and never lowered."""
        self._ask("set_transaction_version", level=level)

    def delete(self, topic: str) -> None:
        """Delete a topic with its logs; a topic created again has another id."""
        self._ask("delete", topic=topic)

    def move_leader(
        self, topic: str, partition: int, to: int, *, epoch: int | None = None, unaware: Sequence[int] = ()
    ) -> int:
        """Move a partition's leader and return the new epoch: ``epoch``, or the next.

        Nodes in ``unaware`` answer Metadata and give hints with the old leader until ``publish``. An unaware new leader
        refuses requests.
        """
        return int(
            self._ask("move_leader", topic=topic, partition=partition, to=to, epoch=epoch, unaware=list(unaware))
        )

    def publish(self, *nodes: int) -> None:
        """Let these nodes (all by default) learn the current leaders."""
        self._ask("publish", nodes=nodes)

    def prefer_replica(self, topic: str, partition: int, replica: int, *, rack: str | None = None) -> None:
        """Make the leader send consumers (of one rack, or all) to a replica; -1 ends it."""
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
        """Set a log's start, its high watermark and the end of lagging replicas (node → end of its copy).

        Arguments that are not given are reset to those of a healthy log, except the start.
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
        """Append a batch to a log as its leader would, and return its base offset."""
        return int(self._ask("append", topic=topic, partition=partition, batch=base64.b64encode(batch).decode()))

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Truncate a log at ``end``, as an unclean election does."""
        self._ask("truncate", topic=topic, partition=partition, end=end)

    def log(self, topic: str, partition: int = 0) -> bytes:
        """Return the whole log: batches as ``wire.records.parse`` reads them."""
        return base64.b64decode(self._ask("log", topic=topic, partition=partition))

    # ---- scripted errors

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
        """Make ``times`` requests fail, from the ``nth`` request on, counted from now; return the script's number.

        Only requests of that API count, and of that node and partition if given. If several scripts match a request,
        the first script applies.

        * ``delay_ms``: answer this much later; later responses on the connection wait, as with a real broker.
        * ``error``: the error code of ``partition``, of every partition, or of the response if it has no error code per
          partition. A request with an error is not applied, unless ``applied``. ``hint`` = (leader id, epoch) is sent
          as CurrentLeader (with errors 6 and 74 only), with that node's endpoint if ``endpoints``.
        * ``top_error``: the error code of the whole response (Fetch sessions, Metadata 13).
        * ``answer``: ``sent``; ``none`` (applied and never answered); ``lost`` (neither applied nor answered);
          ``close`` (applied, then the connection is closed without a response); ``refuse`` (closed, not applied);
          ``swapped`` (sent after the connection's next response).
        * ``cut_bytes``: send only this many bytes of the response, then close the connection.
        * ``garble``: position in the response's bytes, including its length prefix → the byte to write there.
        * ``throttle_ms``: the response's throttle time; the response is not delayed.
        """
        said = {name: value for name, value in locals().items() if name != "self"}
        return int(self._ask("script", **said))

    def clear(self) -> None:
        """Forget all scripts."""
        self._ask("clear")

    def down(self, node: int) -> None:
        """Close a node's listener and all its connections, and remove the node from all Metadata responses."""
        self._ask("down", node=node)

    def up(self, node: int) -> None:
        """Listen again on the same port."""
        self._ask("up", node=node)

    def advertise(self, ports: dict[int, int]) -> None:
        """Advertise other ports of this host, behind which the nodes are reachable: node → port."""
        self._ask("advertise", ports=ports)

    def close_connections(self, node: int) -> None:
        """Reset all connections that a node has accepted."""
        self._ask("close_connections", node=node)

    def forget_sessions(self, node: int | None = None) -> None:
        """Drop all fetch sessions of one node or all, as a restart does."""
        self._ask("forget_sessions", node=node)

    def forget_producers(self) -> None:
        """Drop the sequences of all producers: as in Kafka 4, any sequence is then accepted as the first."""
        self._ask("forget_producers")

    def rebalance(self, group: str) -> None:
        """Request all members of a group to join again."""
        self._ask("rebalance", group=group)

    def move_coordinator(self, key: str, to: int) -> None:
        """Move the coordinator of a group to another node, by default to the lowest node that is up."""
        self._ask("move_coordinator", key=key, to=to)

    # ---- recorded requests and state

    def journal(
        self, api: str | None = None, *, node: int | None = None, topic: str | None = None
    ) -> list[ReceivedRequest]:
        """Return the received requests, or those of one API, node or topic."""
        for entry in self._ask("journal", since=len(self._seen)):
            places = tuple((name, number) for name, number in entry.pop("partitions"))
            self._seen.append(ReceivedRequest(partitions=places, **entry))
        return [seen for seen in self._seen if _matches(seen, api, node, topic)]

    def fired(self, script: int) -> int:
        """Return how many requests a script has affected."""
        return int(self._ask("fired", script=script))

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group."""
        return {(topic, partition): offset for topic, partition, offset in self._ask("committed", group=group)}

    def members(self, group: str) -> list[str]:
        """Return the member ids of a group."""
        return list(self._ask("members", group=group))

    async def until(
        self,
        api: str,
        count: int = 1,
        *,
        node: int | None = None,
        topic: str | None = None,
        timeout_s: float = 10,
    ) -> list[ReceivedRequest]:
        """Wait until ``count`` matching requests were received, without blocking the loop, and return all of them.

        Raise AssertionError with the received requests after ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while len(seen := self.journal(api, node=node, topic=topic)) < count:
            assert time.monotonic() < deadline_s, f"{len(seen)} of {count} {api} requests: {seen}"
            await asyncio.sleep(_POLL_S)
        return seen

    def _ask(self, do: str, **arguments: Any) -> Any:
        self._send({"do": do, **arguments})
        answer = self._receive()
        if "error" in answer:
            raise ValueError(f"{do}: {answer['error']}")
        return answer["is"]

    def _send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the scripted broker's process has ended; its traceback is on stderr"
        return json.loads(line)


def _matches(seen: ReceivedRequest, api: str | None, node: int | None, topic: str | None) -> bool:
    topics = {name for name, _ in seen.partitions} | set(seen.fields.get("topics") or ())
    return api in {None, seen.api} and node in {None, seen.node} and (topic is None or topic in topics)
