"""KIP-392's statements, of consumers whose bytes and records are known."""

from pathlib import Path

import pytest

from aftershock.results.trials import kip392
from aftershock.results.trials.claim import Parts, state_claims
from aftershock.results.trials.kip392 import CLAIMS, plots
from aftershock.results.trials.statement import Word
from aftershock.tests.unit.results.trials.rows import SECOND_US, Row, consumed, counter, part_of

WINDOWS = {"replicas": (10, 12), "recovery": (12, 92)}
LEASE = {"lag": (20, 50), "preferred": (60, 70), "recovery": (70, 90)}


def received(arm: str, rates: dict[int, float]) -> list[Row]:
    """Bytes a second that an arm's consumer got from each broker."""
    names = {broker: f"client.received_bytes/client_b-k{broker}/reads-{arm}-consume" for broker in rates}
    return [row for broker, rate in rates.items() for row in counter(names[broker], broker, rate, 92)]


def near_part(home: Path, rates: dict[str, dict[int, float]], rows: list[Row] | None = None) -> Parts:
    samples = [row for arm, each in rates.items() for row in received(arm, each)]
    return {"near": part_of(home, rows or consumed("closest", [1], 2), WINDOWS, samples=samples)}


@pytest.mark.parametrize(
    ("from_a", "word"), [(0, "confirmed"), (50, "confirmed"), (200, "not seen"), (1e9, "contradicted")]
)
def test_crossing(tmp_path: Path, from_a: float, word: Word) -> None:
    """At most one byte in a thousand may come from another rack; all of them is the contrary."""
    parts = near_part(tmp_path, {"closest": {1: from_a, 2: 100_000, 3: 0}})
    assert word == kip392.crossing(parts["near"], "closest").word


def test_crossing_is_measured(tmp_path: Path) -> None:
    """A control whose bytes do not cross would be told; so would a consumer that got nothing at all."""
    parts = near_part(tmp_path, {"leader": {1: 100_000, 2: 10}, "rackless": {1: 0, 2: 100_000}, "closest": {}})
    assert "confirmed" == kip392.all_crossing(parts["near"], "leader").word
    assert "confirmed" != kip392.all_crossing(parts["near"], "rackless").word
    assert "inconclusive" == kip392.crossing(parts["near"], "closest").word


@pytest.mark.parametrize(("from_b", "word"), [(10, "confirmed"), (100_000, "not seen")])
def test_own_selector(tmp_path: Path, from_b: float, word: Word) -> None:
    """It sends the reader in rack b to rack c; who reads on in its own rack has not been sent."""
    parts = near_part(tmp_path, {"closest": {1: 10, 2: from_b, 3: 100_000}})
    assert word == kip392.selected(parts["near"]).word


def test_staleness(tmp_path: Path) -> None:
    """The median of the one less that of the other, in milliseconds."""
    at_s = [second / 2 for second in range(24, 184)]
    rows = [*consumed("closest", at_s, 2, latency_ms=260), *consumed("leader", at_s, 1, latency_ms=10)]
    found = kip392.staleness(near_part(tmp_path, {}, rows)["near"])
    assert pytest.approx(250) == found.ours.value


def lease_part(home: Path, rows: list[Row], events: list[Row] | None = None, **more: object) -> Parts:
    told = [{"event": "replica_switched", "arm": "closest", "partition": 0, "t_us": 0}, *(events or [])]
    return {"lease": part_of(home, rows, LEASE, events=told, **more)}  # type: ignore[arg-type]  # as they are named


@pytest.mark.parametrize(("left_s", "word"), [(38, "confirmed"), (48, "contradicted")])
def test_kept(tmp_path: Path, left_s: int, word: Word) -> None:
    """From the lag's begin to the first record from another broker: 18 s is within a lease, 28 s is not."""
    rows = [*consumed("closest", range(15, left_s), 2), *consumed("closest", range(left_s, 60), 1)]
    found = kip392.lease(lease_part(tmp_path, rows)["lease"])
    assert (word, pytest.approx(left_s - 20, abs=0.1)) == (found.word, found.ours.value)


def test_never_left(tmp_path: Path) -> None:
    """Who never read elsewhere has shown nothing of when a lease ends."""
    assert "inconclusive" == kip392.lease(lease_part(tmp_path, consumed("closest", range(90), 2))["lease"]).word


@pytest.mark.parametrize(("ours_s", "word"), [(4.0, "confirmed"), (9.0, "contradicted"), (None, "inconclusive")])
def test_survived(tmp_path: Path, ours_s: float | None, word: Word) -> None:
    """A gap two seconds above that of the leader's reader is the replica's fault."""
    gaps = [
        {"metric": "consume.gap", "client": f"reads/{arm}", "window": "fault/preferred", "n": 9, "longest_us": s * 1e6}
        for arm, s in (("closest", ours_s), ("leader", 3.0))
        if s is not None
    ]
    back = {"event": "replica_failed_back", "arm": "closest", "partition": 0, "t_us": 61 * SECOND_US}
    found = kip392.survived(lease_part(tmp_path, [], [back], gaps=gaps)["lease"], "preferred")
    assert word == found.word
    assert ours_s is None or "1 partitions failed back" in found.why


@pytest.mark.parametrize(("every_s", "word"), [(20, "confirmed"), (4, "contradicted")])
def test_oscillation(tmp_path: Path, every_s: int, word: Word) -> None:
    """Another broker once a lease is as it should be, one every four seconds is wavering."""
    rows = [row for n in range(5) for row in consumed("closest", range(n * every_s, (n + 1) * every_s), 1 + n % 2)]
    assert word == kip392.oscillation(lease_part(tmp_path, rows)["lease"]).word


def test_grants_are_counted_for_each_partition(tmp_path: Path) -> None:
    """Ten of two partitions, one a second, beside the first of all: nothing is decided by them."""
    granted = [
        {"event": "replica_switched", "arm": "closest", "partition": n % 2, "t_us": n * SECOND_US} for n in range(10)
    ]
    found = kip392.grants(lease_part(tmp_path, [], granted)["lease"])
    assert (6.0, 11) == (found.ours.value, found.ours.n)


def test_what_was_not_shipped_decides_nothing() -> None:
    """The rows of what the text promised are there without any run, as reports."""
    left_out = dict.fromkeys(("near", "lease", "selector-off", "selector-own", "trickle"), "budget")
    rows = [row for row in state_claims(CLAIMS, {}, left_out) if row.published == "promised"]
    assert 4 == len(rows)  # one of them was shipped after all, and is tried
    assert {"report"} == {row.role for row in rows}
    assert len(CLAIMS) == len({claim.id for claim in CLAIMS})


def test_plots(tmp_path: Path) -> None:
    """A plot says which broker is in which rack."""
    found = plots(near_part(tmp_path, {"closest": {1: 10, 2: 1000}, "leader": {1: 1000}, "rackless": {1: 1000}}))
    assert "from k2, rack b" in str(found[0].svg)
