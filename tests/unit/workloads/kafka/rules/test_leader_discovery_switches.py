"""The switches of KIP-951: parsing, and the ablation matrix: one history, one switch off, and the counters that
change.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from aftershock.errors import SettingError
from aftershock.tests.unit.workloads.kafka.rules.known_cluster import T0, T1, T2, answer, backoff, knowing, node
from aftershock.workloads.kafka.rules.leader_discovery import Attempts, LeaderDiscovery, LeaderDiscoverySwitches
from aftershock.workloads.kafka.rules.values import Leader, Node, TopicPartition

PRODUCE, NOT_LEADER = 0, 6
PARTITIONS = (T0, T1, T2)
SEEDS = range(5)


@pytest.mark.parametrize(
    ("setting", "on"),
    [
        ("response", {"hints", "immediate_retry", "endpoint_merge", "highest_version"}),
        ("metadata", set()),
        ({}, {"hints", "immediate_retry", "endpoint_merge", "highest_version"}),
        ({"hints": False}, {"immediate_retry", "endpoint_merge", "highest_version"}),
        ({"hints": True, "endpoint_merge": False, "immediate_retry": False}, {"hints", "highest_version"}),
        (LeaderDiscoverySwitches(endpoint_merge=False), {"hints", "immediate_retry", "highest_version"}),
    ],
)
def test_switch_settings(setting: object, on: set[str]) -> None:
    """Both words and mappings; an unnamed switch is on."""
    assert on == {name for name, value in vars(LeaderDiscoverySwitches.of(setting)).items() if value}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("on", "response, metadata"),
        (True, "response, metadata"),
        (["hints"], "response, metadata"),
        ({"hint": False}, "the closest name is hints"),
        ({3: False}, "the closest name is"),
        ({"hints": "off"}, "the switch hints of leader_discovery must be true or false, got"),
        ({"hints": 0}, "the switch hints of leader_discovery must be true or false, got"),
    ],
)
def test_invalid_switch_settings(setting: object, message: str) -> None:
    """The message names the allowed values."""
    with pytest.raises(SettingError, match=message):
        LeaderDiscoverySwitches.of(setting)


Event = tuple[dict[TopicPartition, tuple[int, Leader]], list[Node], dict[TopicPartition, Leader]]


def history(seed: int, *, joiners: bool) -> Iterator[Event]:
    """Return forty failed Produce requests: errors, endpoints, and the leaders in Metadata before the retry.

    Hints are newer, old, of an unknown node or missing. With ``joiners`` they name brokers that Metadata doesn't
    know.
    """
    random = Random(seed)  # noqa: S311  # a script, not a secret
    epochs = dict.fromkeys(PARTITIONS, 5)
    for _ in range(40):
        failed = random.sample(PARTITIONS, random.randint(1, 3))
        newer = {tp: random.random() < 0.6 for tp in failed}
        leaders = {tp: random.choice((7, 8) if joiners and newer[tp] else (0, 1, 2)) for tp in failed}
        endpoints = [node(leader, port=random.choice((9092, 19092))) for leader in sorted({*leaders.values()})]
        hints = {tp: Leader(leaders[tp], epochs[tp] + newer[tp]) for tp in failed}
        odd = random.choice((Leader(), Leader(99, epochs[failed[0]] + 1)))
        hints |= {failed[0]: odd} if random.random() < 0.2 else {}
        for tp in failed:
            epochs[tp] += newer[tp]
        caught_up = {tp: Leader(leaders.get(tp, 0) % 3, epochs[tp]) for tp in PARTITIONS}
        yield {tp: (NOT_LEADER, hints[tp]) for tp in failed}, endpoints, caught_up


def play(switches: LeaderDiscoverySwitches, seed: int, *, joiners: bool) -> Counter[str]:
    """Return one client's counters for a history. The broker sends hints only in versions that have them.

    Metadata always catches up before a retry, so that a client that ignores hints gets the same leaders.
    """
    metadata = knowing(dict.fromkeys(PARTITIONS, Leader(1, 5)))
    rule = LeaderDiscovery(metadata, switches, backoff())
    hinting = rule.version_cap(PRODUCE) is None
    for errors, endpoints, leaders in history(seed, joiners=joiners):
        batches = {tp: Attempts() for tp in errors}
        for tp, batch in batches.items():
            rule.wait_ms(batch, tp, 0)
            rule.drained(batch)
        routed = {tp: batch.epoch for tp, batch in batches.items()}
        rule.apply_hints(
            errors if hinting else dict.fromkeys(errors, (NOT_LEADER, Leader())), endpoints * hinting, routed
        )
        metadata.request_sent()
        metadata.update(answer(leaders), 0)
        for tp, batch in batches.items():
            batch.on_failure(0)
            rule.wait_ms(batch, tp, 0)
            rule.drained(batch)
    return rule.counts + metadata.counts


VERDICTS = {
    "hints_accepted",
    "hints_refused_not_newer",
    "hints_refused_unknown_leader",
    "hints_refused_unknown_partition",
    "hints_ignored_switched_off",
}
LEARNED_LATER = {"metadata_requests_critical", "metadata_equivalent"}
"""What no hint taught Metadata does: its request was critical, and its answer no equivalent."""

OWN = {
    "hints": VERDICTS | LEARNED_LATER | {"endpoints_merged"},
    "immediate_retry": {"retries_immediate", "retries_backed_off"},
    "endpoint_merge": {"endpoints_merged"},
    "highest_version": VERDICTS | LEARNED_LATER | {"endpoints_merged", "hints_offered"},
}


def changed(switch: str, seed: int, *, joiners: bool) -> tuple[set[str], Counter[str], Counter[str]]:
    """Return the counters that differ when one switch is off, with both values."""
    on = play(LeaderDiscoverySwitches(), seed, joiners=joiners)
    off = play(LeaderDiscoverySwitches.of({switch: False}), seed, joiners=joiners)
    return {name for name in on.keys() | off.keys() if on[name] != off[name]}, on, off


def test_the_history_has_every_kind_of_event() -> None:
    """Otherwise the matrix proves nothing: all counters but two rare ones change."""
    rare = {"hints_refused_unknown_partition", "hints_ignored_switched_off"}
    for seed in SEEDS:
        counts = play(LeaderDiscoverySwitches(), seed, joiners=False)
        assert set.union(*OWN.values()) - rare <= {name for name, count in counts.items() if count}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("switch", OWN)
def test_a_switch_changes_its_own_counters_only(switch: str, seed: int) -> None:
    """On the same history, with one switch off, only the switch's own counters differ, and some of them do."""
    differing, _, _ = changed(switch, seed, joiners=False)
    assert differing
    assert differing <= OWN[switch]


@pytest.mark.parametrize("seed", SEEDS)
def test_hints_off_ignores_every_offered_hint(seed: int) -> None:
    """Every hint is counted as offered and as ignored; none has an effect."""
    _, on, off = changed("hints", seed, joiners=False)
    assert on["hints_offered"] == off["hints_offered"] == off["hints_ignored_switched_off"]
    assert 0 == off["hints_accepted"] + off["endpoints_merged"] + on["hints_ignored_switched_off"]
    assert off["metadata_requests_critical"] > on["metadata_requests_critical"]


@pytest.mark.parametrize("seed", SEEDS)
def test_immediate_retry_off_backs_off_as_often(seed: int) -> None:
    """The number of retries is equal; the immediate ones back off."""
    _, on, off = changed("immediate_retry", seed, joiners=False)
    assert 0 == off["retries_immediate"]
    assert on["retries_immediate"] + on["retries_backed_off"] == off["retries_backed_off"]


@pytest.mark.parametrize("seed", SEEDS)
def test_endpoint_merge_off_refuses_hints_to_newcomers(seed: int) -> None:
    """If hints name nodes that Metadata doesn't know, acceptance depends on the endpoints: hints are refused."""
    differing, on, off = changed("endpoint_merge", seed, joiners=True)
    verdicts = {"hints_accepted", "hints_refused_unknown_leader"}
    assert differing <= {"endpoints_merged"} | verdicts | LEARNED_LATER
    assert 0 == off["endpoints_merged"]
    assert sum(on[name] for name in verdicts) == sum(off[name] for name in verdicts)
    assert off["hints_refused_unknown_leader"] > on["hints_refused_unknown_leader"]


@pytest.mark.parametrize("seed", SEEDS)
def test_highest_version_off_offers_no_hint(seed: int) -> None:
    """Brokers don't send hints in the older version, and the client behaves like one without the KIP."""
    _, _, off = changed("highest_version", seed, joiners=False)
    assert not [
        name for name, count in off.items() if count and (name.startswith("hints") or name == "endpoints_merged")
    ]


def test_highest_version_off_equals_hints_off() -> None:
    """Except for the number of offered hints."""
    without = play(LeaderDiscoverySwitches(highest_version=False), 1, joiners=False)
    ignored = play(LeaderDiscoverySwitches(hints=False), 1, joiners=False)
    for name in ("hints_offered", "hints_ignored_switched_off"):
        ignored.pop(name)
        without.pop(name, None)
    assert ignored == without
