"""Statements of KIP-392 about consumers with known bytes and records."""

from pathlib import Path

import pytest

from aftershock.results.trials import kip392
from aftershock.results.trials.claim import Parts, state_claims
from aftershock.results.trials.kip392 import REGISTRATION, plots
from aftershock.results.trials.statement import Word
from aftershock.tests.unit.results.trials.made import decide
from aftershock.tests.unit.results.trials.rows import SECOND_US, Row, consumed, counter, part_of

WINDOWS = {"replicas": (10, 12), "recovery": (12, 92)}
LEASE = {"lag": (20, 50), "preferred": (60, 70), "recovery": (70, 90)}


def received(arm: str, rates: dict[int, float]) -> list[Row]:
    """Return the bytes per second that an arm's consumer received from each broker."""
    names = {broker: f"client.received_bytes/client_b-k{broker}/reads-{arm}-consume" for broker in rates}
    return [row for broker, rate in rates.items() for row in counter(names[broker], broker, rate, 92)]


def near_part(home: Path, rates: dict[str, dict[int, float]], rows: list[Row] | None = None) -> Parts:
    samples = [row for arm, each in rates.items() for row in received(arm, each)]
    return {"near": part_of(home, rows or consumed("closest", [1], 2), WINDOWS, samples=samples)}


@pytest.mark.parametrize(
    ("from_a", "word"), [(0, "confirmed"), (50, "confirmed"), (200, "undecided"), (1e9, "contradicted")]
)
def test_bytes_across_racks(tmp_path: Path, from_a: float, word: Word) -> None:
    """At most one byte in a thousand may come from another rack; if all do, the claim is contradicted."""
    parts = near_part(tmp_path, {"closest": {1: from_a, 2: 100_000, 3: 0}})
    assert word == decide(REGISTRATION, "cross-rack", kip392.crossing(parts["near"], "closest")).word


def test_the_control_must_cross_racks(tmp_path: Path) -> None:
    """A control without bytes across racks is reported, and so is a consumer without bytes."""
    parts = near_part(tmp_path, {"leader": {1: 100_000, 2: 10}, "rackless": {1: 0, 2: 100_000}, "closest": {}})
    arms = {"off": "leader", "rackless": "rackless", "cross-rack": "closest"}
    words = [decide(REGISTRATION, claim, kip392.crossing(parts["near"], arm)).word for claim, arm in arms.items()]
    assert ["confirmed", "contradicted", "undecided"] == words


@pytest.mark.parametrize(("from_b", "word"), [(10, "confirmed"), (100_000, "undecided")])
def test_own_selector(tmp_path: Path, from_b: float, word: Word) -> None:
    """The selector sends the reader in rack b to rack c; a reader that stays in its own rack contradicts the claim."""
    parts = near_part(tmp_path, {"closest": {1: 10, 2: from_b, 3: 100_000}})
    assert word == decide(REGISTRATION, "own-selector", kip392.selected(parts["near"])).word


def test_staleness(tmp_path: Path) -> None:
    """The figure is the difference of two medians in milliseconds."""
    at_s = [second / 2 for second in range(24, 184)]
    rows = [*consumed("closest", at_s, 2, latency_ms=260), *consumed("leader", at_s, 1, latency_ms=10)]
    result = kip392.staleness(near_part(tmp_path, {}, rows)["near"])
    assert pytest.approx(250) == result.ours.value


def lease_part(home: Path, rows: list[Row], events: list[Row] | None = None, **more: object) -> Parts:
    all_events = [{"event": "replica_switched", "arm": "closest", "partition": 0, "t_us": 0}, *(events or [])]
    return {"lease": part_of(home, rows, LEASE, events=all_events, **more)}  # type: ignore[arg-type]  # as they are named


@pytest.mark.parametrize(("left_s", "violations"), [(38, 0), (48, 1)])
def test_a_lagging_replica_is_read_for_at_most_a_lease(tmp_path: Path, left_s: int, violations: int) -> None:
    """The time from the start of the lag to the first record from another broker: 18 s is within a lease, 28 s
    is not.
    """
    rows = [*consumed("closest", range(15, left_s), 2), *consumed("closest", range(left_s, 60), 1)]
    result = kip392.lease(lease_part(tmp_path, rows)["lease"])
    assert (violations, 1, pytest.approx(left_s - 20, abs=0.1)) == (result.violations, result.ours.n, result.ours.value)


def test_without_a_change_of_broker_the_lease_is_inconclusive(tmp_path: Path) -> None:
    assert kip392.lease(lease_part(tmp_path, consumed("closest", range(90), 2))["lease"]).violations is None


@pytest.mark.parametrize(("ours_s", "violations"), [(4.0, 0), (9.0, 1), (None, None)])
def test_gaps_exceed_those_of_the_leaders_reader(tmp_path: Path, ours_s: float | None, violations: int | None) -> None:
    """A gap two seconds longer than that of the leader's reader is caused by the replica."""
    gaps = [
        {"metric": "consume.gap", "client": f"reads/{arm}", "window": "fault/preferred", "n": 9, "longest_us": s * 1e6}
        for arm, s in (("closest", ours_s), ("leader", 3.0))
        if s is not None
    ]
    back = {"event": "replica_failed_back", "arm": "closest", "partition": 0, "t_us": 61 * SECOND_US}
    result = kip392.survived(lease_part(tmp_path, [], [back], gaps=gaps)["lease"], "preferred")
    assert violations == result.violations
    assert ours_s is None or "1 partitions failed back" in result.why


@pytest.mark.parametrize(("every_s", "violations"), [(20, 0), (4, 1)])
def test_oscillation(tmp_path: Path, every_s: int, violations: int) -> None:
    """One change of broker per lease is expected; one every four seconds is oscillation."""
    rows = [row for n in range(5) for row in consumed("closest", range(n * every_s, (n + 1) * every_s), 1 + n % 2)]
    assert violations == kip392.oscillation(lease_part(tmp_path, rows)["lease"]).violations


def test_grants_are_counted_for_each_partition(tmp_path: Path) -> None:
    """Two partitions get ten grants each, one per second, besides the first of all; the counts decide nothing."""
    granted = [
        {"event": "replica_switched", "arm": "closest", "partition": n % 2, "t_us": n * SECOND_US} for n in range(10)
    ]
    result = kip392.grants(lease_part(tmp_path, [], granted)["lease"])
    assert (6.0, 11) == (result.ours.value, result.ours.n)


def test_features_that_were_not_shipped_decide_nothing() -> None:
    """Rows of features that the KIP promised exist without any run; those not shipped are figures without a rule."""
    left_out = dict.fromkeys(("near", "lease", "selector-off", "selector-own", "trickle"), "budget")
    rows = [row for row in state_claims(REGISTRATION.claims, {}, left_out) if row.published == "promised"]
    assert 4 == len(rows)  # one feature was shipped later and has a part
    assert ["", "", ""] == [row.bound for row in rows if row.id.startswith("text-")]


def test_plots(tmp_path: Path) -> None:
    """The plots name the rack of each broker."""
    result = plots(near_part(tmp_path, {"closest": {1: 10, 2: 1000}, "leader": {1: 1000}, "rackless": {1: 1000}}))
    assert "from k2, rack b" in str(result[0].svg)
