"""KIP-951: a broker that no longer leads a partition says who does, and the client goes there at once.

Acceptance, the same for producer and consumer:

1. A *hint* is the CurrentLeader beside NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH, with leader and epoch both known.
2. It is refused if (a) its epoch isn't newer than the last seen one, (b) its leader is neither a known node nor among
   the response's endpoints, (c) its partition isn't cached. In this order. A partition of which no epoch was seen
   takes any.
3. If one hint at least is accepted, *all* endpoints of the response are merged, over what was known of these nodes; if
   none is, none are.
4. A hint replaces no refresh: every invalid-metadata error requests one, hint or not.

Retry of a produced batch:

5. A batch remembers the newest leader epoch it was examined with, and how often it had been tried when that came up.
6. Tried again for the first time since that epoch came up, it leaves at once: exactly one immediate retry per newer
   epoch, whatever taught it, a hint or an ordinary Metadata answer. ``linger_ms`` doesn't delay a retry either.
7. Any other retry waits for the back-off since its last failure; each look draws it anew.

A consumer has no back-off of its own. Where its hint was accepted it validates the position with the new leader
(``positions.py``) and fetches on.

Source: KIP-951 "Client"; ``Metadata.updatePartitionLeadership``, ``Sender.completeBatch``, ``AbstractFetch``,
``ProducerBatch.hasLeaderChangedForTheOngoingRetry``, ``RecordAccumulator.shouldBackoff``. Where Kafka 4.3 differs from
the KIP:

* The KIP ties the immediate retry to new leader info *in the response*; Kafka ties it to a newer epoch from any source.
* The KIP has Produce answer hints for FENCED_LEADER_EPOCH too; Produce carries no epoch, so Kafka's brokers never do.
* CurrentLeader stands in Fetch's schema since v12; brokers fill it for consumers from v16 (Produce: v10).
* The KIP merges a response's endpoints; Kafka does so only under rule 3.

Switches, and the counters that each one moves (no others, in the same history):

* ``hints``: off, each hint is counted as ``hints_ignored_switched_off`` and nothing is taken from it, so the counters
  of acceptance, refusal and merging stay 0. What no hint taught Metadata has to: its requests become critical that
  weren't, and its answers, which now bring the news themselves, are no longer equivalent ones.
* ``immediate_retry``: off, every retry backs off: ``retries_immediate`` move to ``retries_backed_off``.
* ``endpoint_merge``: off, the endpoints are not looked at: ``endpoints_merged`` stays 0. A hint to a node that no
  Metadata answer has named is then refused as of an unknown leader, and Metadata is needed as above.
* ``highest_version``: off, Produce stays at v9 and Fetch at v15, where brokers send no hint: ``hints_offered`` stays
  0, and with it all that comes of hints.
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
"""NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH: the errors that a hint may come with."""

CAPS: Mapping[int, int] = {0: 9, 1: 15}
"""By API key (Produce, Fetch): the last version before hints."""


@dataclass(frozen=True)
class LeaderDiscoverySwitches:
    """The parts of the rule, each to be turned off alone; the module's docstring says what each one does."""

    hints: bool = True
    immediate_retry: bool = True
    endpoint_merge: bool = True
    highest_version: bool = True

    @classmethod
    def of(cls, setting: object) -> "LeaderDiscoverySwitches":
        """From an arm's ``leader_discovery``: ``response`` (all on), ``metadata`` (all off), or a mapping of switches.

        A switch that the mapping doesn't name is on. SettingError for anything else.
        """
        if isinstance(setting, cls):
            return setting
        if setting in ("response", "metadata"):
            return cls(**dict.fromkeys(_SWITCHES, setting == "response"))
        if not isinstance(setting, Mapping):
            raise SettingError(
                f"leader_discovery can't be {setting!r}: give response, metadata, or a mapping of switches"
            )
        return cls(**{_switch(name): _on_or_off(name, on) for name, on in setting.items()})


_SWITCHES = [field.name for field in fields(LeaderDiscoverySwitches)]


def _switch(name: object) -> str:
    if name not in _SWITCHES:
        nearest = get_close_matches(str(name), _SWITCHES, n=1, cutoff=0.0)[0]
        raise SettingError(f"leader_discovery has no switch {name!r}; the nearest is {nearest}")
    return str(name)


def _on_or_off(name: object, on: object) -> bool:
    if not isinstance(on, bool):
        raise SettingError(f"the switch {name} of leader_discovery can't be {on!r}: give true or false")
    return on


class Refusal(StrEnum):
    """Why a hint was not taken."""

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
"""What each verdict is counted as; None is acceptance."""


class Attempts:
    """How often a batch was tried, and how often when its newest epoch came up (rule 5). Split batches begin anew."""

    __slots__ = ("attempts", "attempts_at_epoch", "epoch", "last_attempt_ms")

    def __init__(self) -> None:
        self.attempts = 0
        self.epoch = UNKNOWN
        self.attempts_at_epoch = 0
        self.last_attempt_ms = 0.0

    def failed(self, now_ms: float) -> None:
        """The batch is back and will be tried again: its back-off counts from now."""
        self.attempts += 1
        self.last_attempt_ms = now_ms


class LeaderDiscovery:
    """KIP-951 of one client, over its metadata; ``backoff`` is that of ``retry_backoff_ms``.

    Counters: ``hints_offered``, those of ``COUNTERS``, ``endpoints_merged`` (nodes), ``retries_immediate``,
    ``retries_backed_off``. The metadata counts its requests itself.
    """

    def __init__(self, metadata: Metadata, switches: LeaderDiscoverySwitches, backoff: Backoff) -> None:
        self.counts: Counter[str] = Counter()
        self._metadata = metadata
        self._switches = switches
        self._backoff = backoff

    def version_cap(self, api: int) -> int | None:
        """The highest version of an API (by key) that may be used; None where this rule has no say."""
        return None if self._switches.highest_version else CAPS.get(api)

    # -- hints

    def offered(
        self,
        errors: Mapping[TopicPartition, tuple[int, Leader]],
        endpoints: Iterable[Node],
        routed: Mapping[TopicPartition, int] | None = None,
    ) -> Mapping[TopicPartition, Refusal | None]:
        """Judge the hints of one response, take the good ones, and request the refresh that the errors call for.

        ``errors``: of each partition that failed, Kafka's code and the CurrentLeader beside it (``Leader()`` for
        none). A disconnect is error 13 of every partition. ``endpoints``: the response's NodeEndpoints. ``routed``:
        the leader epoch that the request went by; a partition that isn't in it went by the one known now. (It decides
        only whether work is held up, metadata.py rule 6: an answer that comes late, when a newer epoch is known, holds
        nothing up.)

        Returns a verdict for each hint; None is acceptance.
        """
        hints = {tp: hint for tp, (error, hint) in errors.items() if error in HINTED and UNKNOWN not in hint}
        known = {tp: self._epoch(tp) for tp, (error, _) in errors.items() if error in INVALID_METADATA}
        verdicts = self._judge(hints, list(endpoints))
        self.counts["hints_offered"] += len(hints)
        self.counts.update(COUNTERS[verdict] for verdict in verdicts.values())
        if known:
            went_by = known | {tp: epoch for tp, epoch in (routed or {}).items() if tp in known}
            self._metadata.request_update([tp for tp, epoch in went_by.items() if self._epoch(tp) <= epoch])
        return verdicts

    def _judge(
        self, hints: Mapping[TopicPartition, Leader], endpoints: list[Node]
    ) -> Mapping[TopicPartition, Refusal | None]:
        offered = endpoints if self._switches.endpoint_merge else []
        nodes = self._metadata.nodes.keys() | {node.node_id for node in offered}
        verdicts = {tp: self._verdict(tp, hint, nodes) for tp, hint in hints.items()}
        accepted = {tp: hints[tp] for tp, verdict in verdicts.items() if verdict is None}
        if accepted:
            self._metadata.move_leaders(accepted, offered)
            self.counts["endpoints_merged"] += len(offered)
        return verdicts

    def _verdict(self, tp: TopicPartition, hint: Leader, nodes: Iterable[int]) -> Refusal | None:
        """Rule 2."""
        if not self._switches.hints:
            return Refusal.SWITCHED_OFF
        if hint.epoch <= self._epoch(tp):
            return Refusal.NOT_NEWER
        if hint.node_id not in nodes:
            return Refusal.UNKNOWN_LEADER
        return None if self._metadata.partition(tp) else Refusal.UNKNOWN_PARTITION

    def _epoch(self, tp: TopicPartition) -> int:
        seen = self._metadata.last_seen_epoch(tp)
        return UNKNOWN if seen is None else seen

    # -- retries

    def wait_ms(self, attempts: Attempts, tp: TopicPartition, now_ms: float) -> float:
        """How long a batch must still wait, by the epoch known now: 0 for a first try and for an immediate retry."""
        self.examine(attempts, tp)
        if attempts.attempts == 0 or self._is_immediate(attempts):
            return 0.0
        return max(0.0, attempts.last_attempt_ms + self._backoff.ms(attempts.attempts - 1) - now_ms)

    def examine(self, attempts: Attempts, tp: TopicPartition) -> None:
        """Rule 5; ``wait_ms`` does it first, so whoever asks for that needs no more."""
        epoch = self._metadata.leader(tp).epoch
        if epoch > attempts.epoch:
            attempts.epoch = epoch
            attempts.attempts_at_epoch = attempts.attempts

    def drained(self, attempts: Attempts) -> bool:
        """A batch leaves for its leader: if it is a retry, count its kind. True for an immediate one."""
        immediate = self._is_immediate(attempts)
        if attempts.attempts:
            self.counts["retries_immediate" if immediate else "retries_backed_off"] += 1
        return immediate

    def _is_immediate(self, attempts: Attempts) -> bool:
        """Rule 6."""
        return self._switches.immediate_retry and 0 < attempts.attempts == attempts.attempts_at_epoch
