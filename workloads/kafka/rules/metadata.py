"""When a client asks for metadata again.

1. A request is due when one was requested, or ``max_age_ms`` after the last answer; before the first answer it is
   requested.
2. Never while a request is in flight, nor before the back-off since the last answer or failure is over.
3. The back-off grows with consecutive failures, and with consecutive *equivalent* answers: those that taught no leader
   epoch. Brokers that haven't heard of a change yet are thus not asked in a tight loop. Old age forgets the
   equivalents.
4. What is needed for the first time (a new topic) is asked for at once, without back-off.
5. An answer satisfies whatever was requested while it was under way, except what the request didn't name.

Source: ``clients/Metadata.java`` (``timeToNextUpdate``, ``timeToAllowUpdate``, ``requestUpdate(false)``). Kafka draws
one back-off for failures and one for equivalents and takes the larger; here it is one draw. Only one of the two can be
above 0.

What a client knows of its cluster: the nodes, and who leads what since which epoch.

1. **Epochs go up.** The last seen leader epoch of each partition is kept. An answer with an older one is stale: it is
   refused, and what was known stays. An equal or a newer one is taken.
2. **A topic id starts the epochs again.** Another id under the same name is another topic, and its epochs count from 0.
3. **No epoch, no memory.** An answer without an epoch (from a broker that doesn't know it) is taken, and the last seen
   one is forgotten. A partition's error changes nothing here: the epoch beside it, if there is one, is news all the
   same.
4. **An answer replaces everything**: nodes, topics, partitions; a stale partition alone keeps what was known. A topic
   with an error loses its partitions, but not their last seen epochs.
5. **Errors ask again.** An invalid-metadata error in an answer, of a topic or of a partition, requests the next update.
   When that is due: ``refresh.py``.
6. **A request is critical** if work is held up when it is sent: some partition was named in
   ``request_update(held_up)`` since the last answer, and no newer leader epoch of it has been learned since. Work is
   held up where no leader is known, or where the leader refused with an invalid-metadata error and the client knows no
   newer one (``leader_discovery.py`` finds these). The request that follows a failed one counts again; those that age
   or a new topic cause don't count.

Source: ``clients/Metadata.java`` (``updateLatestMetadata``, ``handleMetadataResponse``), KIP-320 for epochs, KIP-516
for topic ids. Kafka also asks for new topics alone (KIP-526) and forgets unused ones; here each request names all
wanted topics. Rule 6 is ours: Kafka doesn't count it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
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
    """The timetable of one client's Metadata requests; times in milliseconds on the caller's clock."""

    def __init__(self, max_age_ms: float, backoff: Backoff) -> None:
        self.equivalents = 0
        """Answers in a row that taught no epoch."""
        self._max_age_ms = max_age_ms
        self._backoff = backoff
        self._requested = True
        self._in_flight = False
        self._failures = 0
        self._answered_ms = -inf
        self._refreshed_ms = -inf

    def request(self) -> None:
        """Ask as soon as the back-off allows."""
        self._requested = True

    def request_at_once(self) -> None:
        """Ask without back-off (rule 4)."""
        self._requested = True
        self._refreshed_ms = -inf
        self.equivalents = 0

    def wait_ms(self, now_ms: float) -> float:
        """How long until a request is due: 0 is now, infinite while one is in flight. Draws a back-off if it counts."""
        if self._in_flight:
            return inf
        until_old = max(0.0, self._answered_ms + self._max_age_ms - now_ms)
        if until_old == 0:
            self.equivalents = 0
        wait_ms = 0.0 if self._requested else until_old
        if (
            wait_ms >= self._backoff.max_ms
        ):  # no back-off is longer; whoever asks in every turn of its loop is spared it
            return wait_ms
        return max(wait_ms, self._until_allowed_ms(now_ms))

    def _until_allowed_ms(self, now_ms: float) -> float:
        attempt = max(self._failures, self.equivalents, 1) - 1
        return max(0.0, self._refreshed_ms + self._backoff.ms(attempt) - now_ms)

    def asked(self) -> None:
        """A request is under way."""
        self._in_flight = True

    def answered(self, now_ms: float, *, complete: bool) -> None:
        """It was answered. ``complete``: it named everything that is wanted by now (rule 5)."""
        self._in_flight = False
        self._requested = not complete
        self._answered_ms = self._refreshed_ms = now_ms
        self._failures = 0
        self.equivalents += 1

    def advanced(self) -> None:
        """The answer taught an epoch: it was no equivalent."""
        self.equivalents = 0

    def failed(self, now_ms: float) -> None:
        """It got no answer that can be used; what was requested still is."""
        self._in_flight = False
        self._refreshed_ms = now_ms
        self._failures += 1
        self.equivalents = 0


class Metadata:
    """The cache of one client, used by its one thread.

    Counters: ``metadata_requests``, ``metadata_requests_critical`` (rule 6), ``metadata_failed``,
    ``metadata_equivalent`` (answers that taught no epoch), ``metadata_stale_refused`` (partitions, rule 1),
    ``metadata_topic_id_changes`` (partitions, rule 2).
    """

    def __init__(self, *, max_age_ms: float = 300_000, backoff: Backoff) -> None:
        self.version = 0
        """Rises with every answer and every accepted hint: what was looked up before may be different now."""
        self.nodes: Mapping[int, Node] = {}
        """The brokers by id, as the last answer and the endpoints accepted since name them."""
        self.counts: Counter[str] = Counter()
        self._refresh = Refresh(max_age_ms, backoff)
        self._topics: dict[str, TopicMetadata] = {}
        self._partitions: dict[TopicPartition, PartitionMetadata] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._wanted: dict[str, None] = {}
        self._asked_for: frozenset[str] = frozenset()
        self._held_up: dict[TopicPartition, int] = {}

    # -- what is known

    def leader(self, tp: TopicPartition) -> Leader:
        """Who leads. ``node_id`` is UNKNOWN if nobody does, or no known node, or a newer epoch was seen elsewhere."""
        cached = self._partitions.get(tp)
        seen = self._epochs.get(tp, UNKNOWN)
        if cached is None or cached.leader.epoch != seen or cached.leader.node_id not in self.nodes:
            return Leader(UNKNOWN, seen)
        return cached.leader

    def last_seen_epoch(self, tp: TopicPartition) -> int | None:
        """The newest leader epoch seen of a partition, whatever taught it; it may be newer than the cached leader's."""
        return self._epochs.get(tp)

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        """What is cached of a partition: its leader, replicas and offline replicas."""
        return self._partitions.get(tp)

    def topic(self, name: str) -> TopicMetadata | None:
        """A topic as last answered, with its error (then without partitions); None while no answer has named it."""
        return self._topics.get(name)

    def topic_id(self, name: str) -> UUID | None:
        """The id of a topic, if the cluster gave one."""
        topic = self._topics.get(name)
        return topic.topic_id if topic else None

    def name_of(self, topic_id: UUID) -> str | None:
        """The topic that has this id now."""
        return next((topic.name for topic in self._topics.values() if topic.topic_id == topic_id), None)

    # -- when to ask

    @property
    def wanted(self) -> tuple[str, ...]:
        """The topics that a request is to name, in the order in which they were first wanted."""
        return tuple(self._wanted)

    def want(self, topics: Iterable[str]) -> None:
        """Ask for these topics too; for new ones at once, without back-off."""
        new = dict.fromkeys(topic for topic in topics if topic not in self._wanted)
        if new:
            self._wanted |= new
            self._refresh.request_at_once()

    def request_update(self, held_up: Iterable[TopicPartition] = ()) -> None:
        """Ask as soon as the back-off allows. ``held_up``: partitions whose work waits for the answer (rule 6)."""
        self._refresh.request()
        self._held_up |= {tp: self._epochs.get(tp, UNKNOWN) for tp in held_up}

    def wait_ms(self, now_ms: float) -> float:
        """How long until a request is due: 0 is now, infinite while one is in flight."""
        return self._refresh.wait_ms(now_ms)

    def asked(self) -> bool:
        """A request for all ``wanted`` topics was sent. True if it is critical (rule 6)."""
        self._refresh.asked()
        self._asked_for = frozenset(self._wanted)
        critical = any(self._epochs.get(tp, UNKNOWN) <= epoch for tp, epoch in self._held_up.items())
        self.counts["metadata_requests"] += 1
        self.counts["metadata_requests_critical"] += critical
        return critical

    def failed(self, now_ms: float) -> None:
        """The request got no usable answer: disconnected, timed out, or refused as a whole."""
        self._refresh.failed(now_ms)
        self.counts["metadata_failed"] += 1

    # -- what is learned

    def update(self, response: MetadataResponse, now_ms: float) -> None:
        """Take an answer, by rules 1 to 5. Epochs of Metadata v8 and below can't be relied on: pass them as UNKNOWN."""
        self.version += 1
        self._held_up = {}
        self._refresh.answered(now_ms, complete=self._asked_for.issuperset(self._wanted))
        self._replace(response)
        self.counts["metadata_equivalent"] += self._refresh.equivalents > 0

    def move_leaders(self, accepted: Mapping[TopicPartition, Leader], endpoints: Iterable[Node]) -> None:
        """Take leaders from elsewhere than an answer; ``leader_discovery.py`` has judged them.

        Each partition must be cached. Its replicas and offline replicas stay as they are.
        """
        self.version += 1
        self.nodes = {**self.nodes, **{node.node_id: node for node in endpoints}}
        for tp, leader in accepted.items():
            self._partitions[tp] = self._partitions[tp]._replace(leader=leader)
            self._epochs[tp] = leader.epoch
        for name in {tp.topic for tp in accepted}:
            self._topics[name] = self._with_cached_partitions(self._topics[name])

    def saw_epoch(self, tp: TopicPartition, epoch: int) -> bool:
        """An epoch met elsewhere, in a committed offset or a ListOffsets answer: a newer one requests an update.

        It counts only where an epoch was seen before (``updateLastSeenEpochIfNewer``). True if it was newer.
        """
        newer = tp in self._epochs and epoch > self._epochs[tp]
        if newer:
            self._epochs[tp] = epoch
            self._refresh.request()
        return newer

    def _with_cached_partitions(self, topic: TopicMetadata) -> TopicMetadata:
        cached = (self._partitions[TopicPartition(topic.name, old.partition)] for old in topic.partitions)
        return topic._replace(partitions=tuple(cached))

    def _replace(self, response: MetadataResponse) -> None:
        taken = [self._take(topic) for topic in response.topics if topic.name in self._wanted]
        self.nodes = {node.node_id: node for node in response.nodes}
        self._topics = {topic.name: topic for topic in taken}
        self._partitions = {
            TopicPartition(topic.name, partition.partition): partition
            for topic in taken
            for partition in topic.partitions
        }

    def _take(self, topic: TopicMetadata) -> TopicMetadata:
        """What of a topic's answer is to be cached; its epochs are remembered."""
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
        """The newer of what is known and what was answered; None if the answer is stale and nothing is cached."""
        seen, epoch = self._epochs.get(tp), new.leader.epoch
        restarts = renewed and seen is not None and epoch != UNKNOWN
        if seen is not None and UNKNOWN < epoch < seen and not restarts:
            self.counts["metadata_stale_refused"] += 1
            return self._partitions.get(tp)
        self.counts["metadata_topic_id_changes"] += restarts
        if epoch != seen or restarts:
            self._refresh.advanced()
        self._remember(tp, epoch)
        return new

    def _remember(self, tp: TopicPartition, epoch: int) -> None:
        if epoch == UNKNOWN:
            self._epochs.pop(tp, None)
        else:
            self._epochs[tp] = epoch
