"""Metadata cache of a client, and the schedule of its Metadata requests.

Cache rules:

1. **Epochs rise.** The cache stores the last seen leader epoch of each partition. A partition with an older leader
   epoch in a Metadata response is stale, and does not replace the cached partition.
2. **A new topic id restarts the epochs.** A topic with a cached name and a new topic id is a new topic, whose leader
   epochs may be older.
3. **A missing epoch clears the stored epoch.** If a Metadata response has no leader epoch for a partition, the cache
   removes its last seen leader epoch. A partition's leader epoch is stored even if the partition has an error.
4. **A Metadata response replaces all brokers, topics and partitions**; only a stale partition retains its cached state.
   A topic with an error in a response loses its cached partitions, but not their last seen epochs.
5. **Errors request an update.** An invalid-metadata error of a topic or a partition requests the next update.
6. **A Metadata request is critical** if a partition waits for its response, so that ``request_update(held_up)`` has
   named the partition since the last Metadata response, and the client has received no newer leader epoch since. A
   partition waits if it has no known leader, or if its leader sent an invalid-metadata error and no newer leader is
   known.

Refresh rules (``Refresh``):

1. A Metadata request is due when an update was requested, or ``max_age_ms`` after the last response. A new client sends
   a Metadata request at once.
2. No Metadata request is sent while another is in flight, or before the back-off since the last response or failure is
   over.
3. The back-off of Metadata requests grows with consecutive failures, and with consecutive *equivalent* responses, which
   have no new leader epoch; the growth prevents a tight loop of requests to brokers that lack a recent change. The
   count of equivalent Metadata responses is reset when the metadata reaches its maximum age.
4. The metadata of a new topic is requested at once, without back-off.
5. A Metadata response also satisfies updates that were requested while its Metadata request was in flight, except
   updates for topics that the request didn't name.
6. After a rebootstrap (KIP-1102) the client knows no broker, topic or partition, only the last seen leader epochs, and
   requests metadata without a further back-off (``Metadata.rebootstrap``).

A Metadata request names the wanted topics (``want``). A consumer that subscribes to a regular expression wants all
topics that match (``want_all``), or only topics with the ids in its assignment (``want_ids``), as in Kafka's
``ConsumerMetadata``.

Modelled on ``clients/Metadata.java`` (``updateLatestMetadata``, ``handleMetadataResponse``, ``timeToNextUpdate``,
``timeToAllowUpdate``, ``requestUpdate(false)``), KIP-320 for epochs, KIP-516 for topic ids. Unlike this module, Kafka
requests new topics separately (KIP-526) and drops unused topics; here each Metadata request names all wanted topics.
Kafka's clients don't distinguish critical Metadata requests.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import inf
from uuid import UUID

from aftershock.workloads.kafka.rules.values import (
    UNKNOWN,
    Backoff,
    Leader,
    MetadataResponse,
    Node,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from aftershock.workloads.kafka.wire.codes import INVALID_METADATA


class Refresh:
    """Schedule of one client's Metadata requests."""

    def __init__(self, max_age_ms: float, backoff: Backoff) -> None:
        self.equivalents = 0
        """Number of consecutive Metadata responses without a new leader epoch."""
        self._max_age_ms = max_age_ms
        self._backoff = backoff
        self._requested = True
        self._in_flight = False
        self._failures = 0
        self._answered_ms = -inf
        self._refreshed_ms = -inf

    def request(self) -> None:
        self._requested = True

    def request_at_once(self) -> None:
        self._requested = True
        self._refreshed_ms = -inf
        self.equivalents = 0

    def wait_ms(self, now_ms: float) -> float:
        """Return the milliseconds until a Metadata request is due, infinite while a Metadata request is in flight."""
        if self._in_flight:
            return inf
        until_old = max(0.0, self._answered_ms + self._max_age_ms - now_ms)
        if until_old == 0:
            self.equivalents = 0
        wait_ms = 0.0 if self._requested else until_old
        if wait_ms >= self._backoff.max_ms:  # skip the draw: no back-off is longer, and loops call this in every pass
            return wait_ms
        attempt = max(self._failures, self.equivalents, 1) - 1
        return max(wait_ms, self._refreshed_ms + self._backoff.ms(attempt) - now_ms)

    def request_sent(self) -> None:
        self._in_flight = True

    def on_rebootstrap(self) -> None:
        self._in_flight, self._requested = False, True

    def on_response(self, now_ms: float, *, complete: bool) -> None:
        """Record a Metadata response; ``complete`` is True if its request named all topics that the client wants."""
        self._in_flight = False
        self._requested = not complete
        self._answered_ms = self._refreshed_ms = now_ms
        self._failures = 0
        self.equivalents += 1

    def on_failure(self, now_ms: float) -> None:
        self._in_flight = False
        self._refreshed_ms = now_ms
        self._failures += 1
        self.equivalents = 0


class Metadata:
    """Metadata cache of one client, used from a single thread.

    Counters of the metadata cache: ``metadata_requests``, ``metadata_requests_critical``, ``metadata_failed``,
    ``metadata_equivalent`` (responses without a new leader epoch), ``metadata_stale_refused`` (partitions with an older
    leader epoch), ``metadata_topic_id_changes`` (partitions of topics with a new id), ``metadata_rebootstraps``.
    """

    def __init__(self, *, max_age_ms: float = 300_000, backoff: Backoff) -> None:
        self.version = 0
        """Version of the cached metadata, which every Metadata response and every accepted leader hint increments."""
        self.nodes: Mapping[int, Node] = {}
        """Brokers by id, from the last Metadata response and the NodeEndpoints accepted since then."""
        self.counts: Counter[str] = Counter()
        self._refresh = Refresh(max_age_ms, backoff)
        self._topics: dict[str, TopicMetadata] = {}
        self._partitions: dict[TopicPartition, PartitionMetadata] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self.is_complete = False
        """True if the last Metadata response covers everything that the client wants."""
        self._wanted: dict[str, None] = {}
        self._matches: Callable[[str], bool] | None = None
        self._wanted_ids: frozenset[UUID] | None = None
        self._requested_topics: frozenset[str | UUID] | None = frozenset()
        self._held_up: dict[TopicPartition, int] = {}

    def leader(self, tp: TopicPartition) -> Leader:
        """Return a partition's last seen leader epoch, and the id of its leader, UNKNOWN if not cached."""
        cached = self._partitions.get(tp)
        last_epoch = self._epochs.get(tp, UNKNOWN)
        if cached is None or cached.leader.epoch != last_epoch or cached.leader.node_id not in self.nodes:
            return Leader(UNKNOWN, last_epoch)
        return cached.leader

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        return self._partitions.get(tp)

    def topic(self, name: str) -> TopicMetadata | None:
        """Return a cached topic, which has no partitions if it has an error; None for an unknown topic."""
        return self._topics.get(name)

    def topic_id(self, name: str) -> UUID | None:
        topic = self._topics.get(name)
        return topic.topic_id if topic else None

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of the cached topic with an id; None for an unknown topic id."""
        return next((topic.name for topic in self._topics.values() if topic.topic_id == topic_id), None)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the topics that the client wants."""
        return tuple(self._wanted)

    @property
    def request_topics(self) -> tuple[str | UUID, ...] | None:
        """Topics that each Metadata request names; None for a request for all topics.

        A request has no names beside ids, because a broker would ignore the names.
        """
        if self._matches is not None:
            return None
        return tuple(self._wanted) if self._wanted_ids is None else tuple(sorted(self._wanted_ids))

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Names of the cached topics without an error."""
        return tuple(topic.name for topic in self._topics.values() if not topic.error)

    def want(self, topics: Iterable[str]) -> None:
        """Add topics to future Metadata requests; new topics request an update without back-off."""
        new = dict.fromkeys(topic for topic in topics if topic not in self._wanted)
        if new:
            self._wanted |= new
            self._want_more()

    def want_all(self, matches: Callable[[str], bool]) -> None:
        """Request all topics of the cluster from now on; cache those that ``matches`` and no internal topics."""
        self._matches = matches
        self._want_more()

    def want_ids(self, topic_ids: frozenset[UUID]) -> None:
        """Request the topics with these ids from now on, instead of topics by name."""
        if topic_ids != self._wanted_ids:
            self._wanted_ids = topic_ids
            self._want_more()

    def _want_more(self) -> None:
        self.is_complete = False
        self._refresh.request_at_once()

    def _is_wanted(self, topic: TopicMetadata) -> bool:
        if topic.name in self._wanted:
            return True
        if self._wanted_ids is not None:
            return topic.topic_id in self._wanted_ids
        return self._matches is not None and not topic.is_internal and self._matches(topic.name)

    def request_update(self, held_up: Iterable[TopicPartition] = ()) -> None:
        """Request a metadata update after the back-off; ``held_up`` are the partitions that wait for the update."""
        self._refresh.request()
        self._held_up |= {tp: self._epochs.get(tp, UNKNOWN) for tp in held_up}

    def wait_ms(self, now_ms: float) -> float:
        """Return the milliseconds until a Metadata request is due, infinite while a Metadata request is in flight."""
        return self._refresh.wait_ms(now_ms)

    def request_sent(self) -> bool:
        """Record that a Metadata request for all wanted topics was sent; return True if the request is critical."""
        self._refresh.request_sent()
        topics = self.request_topics
        self._requested_topics = None if topics is None else frozenset(topics)
        critical = any(self._epochs.get(tp, UNKNOWN) <= epoch for tp, epoch in self._held_up.items())
        self.counts["metadata_requests"] += 1
        self.counts["metadata_requests_critical"] += critical
        return critical

    def on_failure(self, now_ms: float) -> None:
        """Record the failure of a Metadata request by a disconnect, a timeout, or a top-level error in the response."""
        self._refresh.on_failure(now_ms)
        self.counts["metadata_failed"] += 1

    def rebootstrap(self) -> None:
        """Forget all brokers, topics and partitions, and request metadata from the bootstrap addresses."""
        self.version += 1
        self.nodes, self._topics, self._partitions = {}, {}, {}
        self.is_complete = False
        self._refresh.on_rebootstrap()
        self.counts["metadata_rebootstraps"] += 1

    def update(self, response: MetadataResponse, now_ms: float) -> None:
        """Update the cache from a Metadata response; leader epochs from versions before 9 must be UNKNOWN."""
        self.version += 1
        self._held_up = {}
        wanted, requested = self.request_topics, self._requested_topics
        self.is_complete = requested is None or (wanted is not None and requested.issuperset(wanted))
        self._refresh.on_response(now_ms, complete=self.is_complete)
        topics = [self._take(topic) for topic in response.topics if self._is_wanted(topic)]
        self.nodes = {node.node_id: node for node in response.nodes}
        self._topics = {topic.name: topic for topic in topics}
        self._partitions = {
            TopicPartition(topic.name, partition.partition): partition
            for topic in topics
            for partition in topic.partitions
        }
        self.counts["metadata_equivalent"] += self._refresh.equivalents > 0

    def move_leaders(self, accepted: Mapping[TopicPartition, Leader], endpoints: Iterable[Node]) -> None:
        """Apply leaders from accepted hints (``leader_discovery.py``) to cached partitions."""
        self.version += 1
        self.nodes = {**self.nodes, **{node.node_id: node for node in endpoints}}
        for tp, leader in accepted.items():
            self._partitions[tp] = self._partitions[tp]._replace(leader=leader)
            self._epochs[tp] = leader.epoch
        for name in {tp.topic for tp in accepted}:
            topic = self._topics[name]
            current = tuple(self._partitions[TopicPartition(name, old.partition)] for old in topic.partitions)
            self._topics[name] = topic._replace(partitions=current)

    def update_epoch(self, tp: TopicPartition, epoch: int) -> bool:
        """Store a partition's leader epoch and request an update if it is newer; return True if it is newer.

        The leader epoch of a partition without a last seen epoch is ignored (``updateLastSeenEpochIfNewer``).
        """
        newer = tp in self._epochs and epoch > self._epochs[tp]
        if newer:
            self._epochs[tp] = epoch
            self._refresh.request()
        return newer

    def _take(self, topic: TopicMetadata) -> TopicMetadata:
        if not INVALID_METADATA.isdisjoint([topic.error, *(partition.error for partition in topic.partitions)]):
            self._refresh.request()
        if topic.error:
            return topic._replace(partitions=())
        renewed = topic.topic_id is not None and topic.topic_id != self.topic_id(topic.name)
        latest = [
            self._latest(TopicPartition(topic.name, new.partition), new, renewed=renewed) for new in topic.partitions
        ]
        return topic._replace(partitions=tuple(partition for partition in latest if partition is not None))

    def _latest(self, tp: TopicPartition, new: PartitionMetadata, *, renewed: bool) -> PartitionMetadata | None:
        """Return a partition's received metadata, or its cached metadata if the received metadata is stale."""
        last_epoch, epoch = self._epochs.get(tp), new.leader.epoch
        restarts = renewed and last_epoch is not None and epoch != UNKNOWN
        if last_epoch is not None and UNKNOWN < epoch < last_epoch and not restarts:
            self.counts["metadata_stale_refused"] += 1
            return self._partitions.get(tp)
        self.counts["metadata_topic_id_changes"] += restarts
        if epoch != last_epoch or restarts:
            self._refresh.equivalents = 0
        if epoch == UNKNOWN:
            self._epochs.pop(tp, None)
        else:
            self._epochs[tp] = epoch
        return new
