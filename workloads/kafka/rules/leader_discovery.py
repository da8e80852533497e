"""KIP-951 leader discovery, in which a broker that lost a partition names the new leader, without new metadata.

Rules for the acceptance of a leader hint by producers and consumers:

1. A *hint* is the CurrentLeader that a response carries beside NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH, with both
   leader and epoch present.
2. A leader hint is refused if (a) its epoch isn't newer than the partition's last seen epoch, if there is any, (b) its
   leader is neither a cached node nor among the response's endpoints, or (c) its partition isn't cached.
3. If at least one leader hint is accepted, *all* NodeEndpoints of the response overwrite the cached broker addresses;
   if no hint is accepted, no address is changed.
4. A leader hint does not replace a refresh, because every invalid-metadata error requests a metadata refresh, even with
   a hint. A consumer ignores the error, and requests no refresh, if its position isn't valid by then, for example
   because it awaits validation by the new leader (``FetchCollector.initialize``).

Rules for the retry of a record batch by a producer:

5. A batch stores its partition's newest known leader epoch, and its number of failed attempts when the client learnt
   this epoch.
6. The first retry after a newer leader epoch arrived in a hint or Metadata response is sent at once, which is exactly
   one immediate retry per newer epoch. ``linger.ms`` never delays a retried batch.
7. Any other retry of a batch waits for the back-off since its last failure; the back-off is drawn again at each call.

A consumer retries a fetch without back-off. After an accepted leader hint the consumer validates its position with the
new leader (``subscription_state.py``) and continues to fetch.

Modelled on KIP-951 ("Client") and, in Kafka, ``Metadata.updatePartitionLeadership``, ``Sender.completeBatch``,
``AbstractFetch``, ``ProducerBatch.hasLeaderChangedForTheOngoingRetry``, ``RecordAccumulator.shouldBackoff``. Kafka 4.3
differs from KIP-951 in these points:

* The KIP ties the immediate retry to new leader info *in the response*; Kafka ties the immediate retry to a newer epoch
  from any source.
* In the KIP, Produce responses have hints for FENCED_LEADER_EPOCH too; Produce requests carry no epoch, so Kafka's
  brokers never send that error.
* CurrentLeader is in Fetch's schema since v12; brokers set CurrentLeader for consumers from v16 (Produce from v10).
* The KIP always merges a response's endpoints; Kafka merges them only if a hint was accepted.

Effect of a switch in ``LeaderDiscoverySwitches`` that is off:

* Without ``hints`` leader hints are ignored, so more Metadata requests are critical, and fewer Metadata responses
  repeat the cached epochs.
* Without ``immediate_retry`` every retry of a batch backs off.
* Without ``endpoint_merge`` NodeEndpoints in responses are ignored. A leader hint to a broker that no Metadata response
  has named is refused.
* Without ``highest_version`` the client uses at most Produce v9 and Fetch v15, in which brokers send no leader hints.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum

from aftershock.errors import SettingError
from aftershock.workloads.kafka.rules.metadata import Metadata
from aftershock.workloads.kafka.rules.values import UNKNOWN, Backoff, Leader, Node, TopicPartition
from aftershock.workloads.kafka.wire.codes import INVALID_METADATA

HINTED = frozenset({6, 74})
"""Errors in whose responses brokers send leader hints: NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

CAPS: Mapping[int, int] = {0: 9, 1: 15}
"""Last API versions of Produce (API key 0) and Fetch (1) without leader hints."""


@dataclass(frozen=True)
class LeaderDiscoverySwitches:
    """Switches for the features of KIP-951, all on by default; the module docstring describes their effects."""

    hints: bool = True
    immediate_retry: bool = True
    endpoint_merge: bool = True
    highest_version: bool = True

    @classmethod
    def of(cls, setting: object) -> "LeaderDiscoverySwitches":
        """Parse the setting ``leader_discovery`` (``response``, all on; ``metadata``, all off; or a mapping)."""
        if isinstance(setting, cls):
            return setting
        if setting in ("response", "metadata"):
            return cls(**dict.fromkeys(_SWITCHES, setting == "response"))
        if not isinstance(setting, Mapping):
            raise SettingError(f"leader_discovery can't be {setting!r}; use response, metadata, or a switch mapping")
        for name, enabled in setting.items():
            if name not in _SWITCHES:
                nearest = get_close_matches(str(name), _SWITCHES, n=1, cutoff=0.0)[0]
                raise SettingError(f"leader_discovery has no switch {name!r}; the closest name is {nearest}")
            if not isinstance(enabled, bool):
                raise SettingError(f"the switch {name} of leader_discovery must be true or false, got {enabled!r}")
        return cls(**setting)


_SWITCHES = [field.name for field in fields(LeaderDiscoverySwitches)]


class Refusal(StrEnum):
    """Reason for the refusal of a leader hint; the value is the name of its counter."""

    NOT_NEWER = "hints_refused_not_newer"
    UNKNOWN_LEADER = "hints_refused_unknown_leader"
    UNKNOWN_PARTITION = "hints_refused_unknown_partition"
    SWITCHED_OFF = "hints_ignored_switched_off"


@dataclass(slots=True, eq=False)
class Attempts:
    """Failed attempts of a batch; ``attempts_at_epoch`` is the number when the client learnt leader epoch ``epoch``."""

    attempts: int = 0
    epoch: int = UNKNOWN
    attempts_at_epoch: int = 0
    last_attempt_ms: float = 0.0

    def on_failure(self, now_ms: float) -> None:
        """Count a failed attempt of a batch, whose retry back-off starts at ``now_ms``."""
        self.attempts += 1
        self.last_attempt_ms = now_ms


class LeaderDiscovery:
    """KIP-951 leader discovery of one client, which updates its metadata; ``backoff`` is the back-off between retries.

    Counters of leader discovery: ``hints_offered``, ``hints_accepted``, the values of ``Refusal``, ``endpoints_merged``
    (brokers), ``retries_immediate``, ``retries_backed_off``.
    """

    def __init__(self, metadata: Metadata, switches: LeaderDiscoverySwitches, backoff: Backoff) -> None:
        self.counts: Counter[str] = Counter()
        self._metadata = metadata
        self._switches = switches
        self._backoff = backoff

    def version_cap(self, api: int) -> int | None:
        """Return the highest version of an API that ``LeaderDiscoverySwitches`` allow; None without a limit."""
        return None if self._switches.highest_version else CAPS.get(api)

    def apply_hints(
        self,
        errors: Mapping[TopicPartition, tuple[int, Leader]],
        endpoints: Iterable[Node],
        routed: Mapping[TopicPartition, int] | None = None,
        *,
        is_ignored: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> Mapping[TopicPartition, Refusal | None]:
        """Accept or refuse a response's leader hints; request a metadata refresh if the response's errors require one.

        ``errors`` holds the error code and CurrentLeader (``Leader()`` if absent) of each partition that failed in a
        response; after a disconnect every partition has error 13. ``endpoints`` are the NodeEndpoints of the response,
        ``routed`` the leader epochs known when the request was sent, by default the current epochs. No work waits for
        the metadata refresh after an error for an older leader epoch, so that refresh isn't critical. The error of a
        partition for which ``is_ignored`` returns True after the hints were applied requires no refresh.
        """
        hints = {tp: hint for tp, (error, hint) in errors.items() if error in HINTED and UNKNOWN not in hint}
        epochs = {tp: self._metadata.leader(tp).epoch for tp, (error, _) in errors.items() if error in INVALID_METADATA}
        usable = list(endpoints) if self._switches.endpoint_merge else []
        nodes = self._metadata.nodes.keys() | {node.node_id for node in usable}
        verdicts = {tp: self._verdict(tp, hint, nodes) for tp, hint in hints.items()}
        accepted = {tp: hints[tp] for tp, verdict in verdicts.items() if verdict is None}
        if accepted:
            self._metadata.move_leaders(accepted, usable)
            self.counts["endpoints_merged"] += len(usable)
        self.counts["hints_offered"] += len(hints)
        self.counts.update(verdict.value if verdict else "hints_accepted" for verdict in verdicts.values())
        epochs = {tp: epoch for tp, epoch in epochs.items() if not is_ignored(tp)}
        if epochs:
            epochs |= {tp: epoch for tp, epoch in (routed or {}).items() if tp in epochs}
            held_up = [tp for tp, epoch in epochs.items() if self._metadata.leader(tp).epoch <= epoch]
            self._metadata.request_update(held_up)
        return verdicts

    def _verdict(self, tp: TopicPartition, hint: Leader, nodes: Iterable[int]) -> Refusal | None:
        if not self._switches.hints:
            return Refusal.SWITCHED_OFF
        if hint.epoch <= self._metadata.leader(tp).epoch:
            return Refusal.NOT_NEWER
        if hint.node_id not in nodes:
            return Refusal.UNKNOWN_LEADER
        return None if self._metadata.partition(tp) else Refusal.UNKNOWN_PARTITION

    def wait_ms(self, attempts: Attempts, tp: TopicPartition, now_ms: float) -> float:
        """Return the milliseconds until a batch may be sent, 0 for a first attempt and for an immediate retry."""
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
