"""KIP-951 leader discovery: a broker that lost a partition names the new leader, so the client needs no new metadata.

Rules for accepting a leader hint, the same for producer and consumer:

1. A *hint* is the CurrentLeader that a response carries beside NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH, with both
   leader and epoch present.
2. A leader hint is refused, checked in this order, if (a) its epoch isn't newer than the last seen epoch, (b) its
   leader is neither a cached node nor among the response's endpoints, (c) its partition isn't cached. For a partition
   without a last seen epoch, a hint with any epoch is accepted.
3. If at least one leader hint is accepted, *all* NodeEndpoints of the response overwrite the cached broker addresses;
   if no hint is accepted, no address is changed.
4. A leader hint does not replace a refresh: every invalid-metadata error requests a metadata refresh, even with a hint.

Rules for the retry of a produced batch:

5. A batch stores its partition's newest known leader epoch, and how many attempts had failed when that became known.
6. The first retry after a newer leader epoch arrived in a hint or Metadata response is sent at once: exactly one
   immediate retry per newer epoch. ``linger_ms`` never delays a retried batch.
7. Any other retry of a batch waits for the back-off since its last failure; the back-off is drawn again at each call.

A consumer retries a fetch without back-off. After an accepted leader hint the consumer validates the position with the
new leader (``subscription_state.py``) and continues to fetch.

Source: KIP-951 "Client"; ``Metadata.updatePartitionLeadership``, ``Sender.completeBatch``, ``AbstractFetch``,
``ProducerBatch.hasLeaderChangedForTheOngoingRetry``, ``RecordAccumulator.shouldBackoff``. Where Kafka 4.3 differs from
KIP-951:

* The KIP ties the immediate retry to new leader info *in the response*; Kafka ties the immediate retry to a newer epoch
  from any source.
* In the KIP, Produce responses have hints for FENCED_LEADER_EPOCH too; Produce requests carry no epoch, so Kafka's
  brokers never send that error.
* CurrentLeader is in Fetch's schema since v12; brokers set CurrentLeader for consumers from v16 (Produce: v10).
* The KIP always merges a response's endpoints; Kafka merges them only if a hint was accepted.

What the client does when a switch of KIP-951 is off:

* ``hints`` off: each leader hint is counted as ``hints_ignored_switched_off`` and ignored. Without hints the client
  depends on Metadata: more requests are critical, and fewer Metadata responses repeat the cached epochs.
* ``immediate_retry`` off: every retry backs off, and counts as ``retries_backed_off``.
* ``endpoint_merge`` off: endpoints in responses are ignored. A hint to a broker that no Metadata response has named is
  refused as an unknown leader.
* ``highest_version`` off: the client uses at most Produce v9 and Fetch v15, in which brokers send no hints.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum

from aftershock.errors import SettingError
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, Leader, Node, TopicPartition
from aftershock.workloads.kafka.wire.codes import INVALID_METADATA

HINTED = frozenset({6, 74})
"""Errors with leader hints: NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

CAPS: Mapping[int, int] = {0: 9, 1: 15}
"""API key → last version without leader hints, for Produce and Fetch."""


@dataclass(frozen=True)
class LeaderDiscoverySwitches:
    """Switches for the features of KIP-951; the module's docstring describes the effect of each switch."""

    hints: bool = True
    immediate_retry: bool = True
    endpoint_merge: bool = True
    highest_version: bool = True

    @classmethod
    def of(cls, setting: object) -> "LeaderDiscoverySwitches":
        """Parse an arm's ``leader_discovery``: ``response`` (all on), ``metadata`` (all off), or a mapping of switches.

        A switch of leader discovery that the mapping lacks is on.
        """
        if isinstance(setting, cls):
            return setting
        if setting in ("response", "metadata"):
            return cls(**dict.fromkeys(_SWITCHES, setting == "response"))
        if not isinstance(setting, Mapping):
            raise SettingError(
                f"leader_discovery can't be {setting!r}; use response, metadata, or a mapping of switches"
            )
        for name, enabled in setting.items():
            if name not in _SWITCHES:
                nearest = get_close_matches(str(name), _SWITCHES, n=1, cutoff=0.0)[0]
                raise SettingError(f"leader_discovery: unknown switch {name!r}; the closest name is {nearest}")
            if not isinstance(enabled, bool):
                raise SettingError(f"leader_discovery: {name} must be true or false, got {enabled!r}")
        return cls(**setting)


_SWITCHES = [field.name for field in fields(LeaderDiscoverySwitches)]


class Refusal(StrEnum):
    NOT_NEWER = "not_newer"
    UNKNOWN_LEADER = "unknown_leader"
    UNKNOWN_PARTITION = "unknown_partition"
    SWITCHED_OFF = "switched_off"


COUNTERS: Mapping[Refusal | None, str] = {
    None: "hints_accepted",
    Refusal.NOT_NEWER: "hints_refused_not_newer",
    Refusal.UNKNOWN_LEADER: "hints_refused_unknown_leader",
    Refusal.UNKNOWN_PARTITION: "hints_refused_unknown_partition",
    Refusal.SWITCHED_OFF: "hints_ignored_switched_off",
}
"""Counter of each verdict on a hint; None is acceptance."""


@dataclass(slots=True, eq=False)
class Attempts:
    """Numbers of failed attempts of a batch: in total, and until the newest leader epoch of its partition was known."""

    attempts: int = 0
    epoch: int = UNKNOWN
    attempts_at_epoch: int = 0
    last_attempt_ms: float = 0.0

    def on_failure(self, now_ms: float) -> None:
        """Count a failed attempt of a batch that will be retried; its retry back-off starts at ``now_ms``."""
        self.attempts += 1
        self.last_attempt_ms = now_ms


class LeaderDiscovery:
    """KIP-951 leader discovery of one client, which updates its metadata; ``backoff`` is the back-off between retries.

    Counters of leader discovery: ``hints_offered``, the values of ``COUNTERS``, ``endpoints_merged`` (brokers),
    ``retries_immediate``, ``retries_backed_off``.
    """

    def __init__(self, metadata: Metadata, switches: LeaderDiscoverySwitches, backoff: Backoff) -> None:
        self.counts: Counter[str] = Counter()
        self._metadata = metadata
        self._switches = switches
        self._backoff = backoff

    def version_cap(self, api: int) -> int | None:
        """Return the highest API version that the switches allow for an API key; None without a limit."""
        return None if self._switches.highest_version else CAPS.get(api)

    def apply_hints(
        self,
        errors: Mapping[TopicPartition, tuple[int, Leader]],
        endpoints: Iterable[Node],
        routed: Mapping[TopicPartition, int] | None = None,
    ) -> Mapping[TopicPartition, Refusal | None]:
        """Accept or refuse a response's leader hints; request a metadata refresh if the response's errors require one.

        ``errors`` maps each failed partition to Kafka's error code and its CurrentLeader (``Leader()`` if absent);
        after a disconnect every partition has error 13. ``endpoints`` are the NodeEndpoints of the response. ``routed``
        maps partitions to the leader epoch known when the request was sent, by default the current epoch. After a late
        response to a request for an older leader epoch, no work waits for the metadata refresh, so the refresh isn't
        critical.
        """
        hints = {tp: hint for tp, (error, hint) in errors.items() if error in HINTED and UNKNOWN not in hint}
        epochs = {tp: self._epoch(tp) for tp, (error, _) in errors.items() if error in INVALID_METADATA}
        usable = list(endpoints) if self._switches.endpoint_merge else []
        nodes = self._metadata.nodes.keys() | {node.node_id for node in usable}
        verdicts = {tp: self._verdict(tp, hint, nodes) for tp, hint in hints.items()}
        accepted = {tp: hints[tp] for tp, verdict in verdicts.items() if verdict is None}
        if accepted:
            self._metadata.move_leaders(accepted, usable)
            self.counts["endpoints_merged"] += len(usable)
        self.counts["hints_offered"] += len(hints)
        self.counts.update(COUNTERS[verdict] for verdict in verdicts.values())
        if epochs:
            routed_epochs = epochs | {tp: epoch for tp, epoch in (routed or {}).items() if tp in epochs}
            self._metadata.request_update([tp for tp, epoch in routed_epochs.items() if self._epoch(tp) <= epoch])
        return verdicts

    def _verdict(self, tp: TopicPartition, hint: Leader, nodes: Iterable[int]) -> Refusal | None:
        if not self._switches.hints:
            return Refusal.SWITCHED_OFF
        if hint.epoch <= self._epoch(tp):
            return Refusal.NOT_NEWER
        if hint.node_id not in nodes:
            return Refusal.UNKNOWN_LEADER
        return None if self._metadata.partition(tp) else Refusal.UNKNOWN_PARTITION

    def _epoch(self, tp: TopicPartition) -> int:
        epoch = self._metadata.last_seen_epoch(tp)
        return UNKNOWN if epoch is None else epoch

    def wait_ms(self, attempts: Attempts, tp: TopicPartition, now_ms: float) -> float:
        """Return the milliseconds until a batch may be sent: 0 for a first attempt and for an immediate retry."""
        self.examine(attempts, tp)
        if attempts.attempts == 0 or self._is_immediate(attempts):
            return 0.0
        return max(0.0, attempts.last_attempt_ms + self._backoff.ms(attempts.attempts - 1) - now_ms)

    def examine(self, attempts: Attempts, tp: TopicPartition) -> None:
        epoch = self._metadata.leader(tp).epoch
        if epoch > attempts.epoch:
            attempts.epoch = epoch
            attempts.attempts_at_epoch = attempts.attempts

    def drained(self, attempts: Attempts) -> bool:
        """Count a retry as immediate or backed off when a batch is sent to its leader; return True for immediate."""
        immediate = self._is_immediate(attempts)
        if attempts.attempts:
            self.counts["retries_immediate" if immediate else "retries_backed_off"] += 1
        return immediate

    def _is_immediate(self, attempts: Attempts) -> bool:
        return self._switches.immediate_retry and 0 < attempts.attempts == attempts.attempts_at_epoch
