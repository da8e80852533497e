"""Statements of KIP-392 about consumers with known bytes and records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import Word
from aftershock.results.studies.trials import kip392
from aftershock.results.studies.trials.claim import Parts, state_claims
from aftershock.results.studies.trials.kip392 import REGISTRATION, plots
from aftershock.tests.unit.results.studies.trials.made import decide, doubted
from aftershock.tests.unit.results.studies.trials.rows import SECOND_US, Row, consumed, counter, part_of

WINDOWS = {"replicas": (10, 12), "recovery": (12, 92)}


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


LOST = Check("integrity/lost", "integrity", "run", Status.PASS, 9, 1, "", "")
LAGS = tuple(20 + 27 * number for number in range(7))
LAG_S, LEASE_S = 20, 10


def leased(leaves_s: Sequence[float | None], grants_s: float = -5) -> tuple[list[Row], list[Row]]:
    """Return the records and grants of a consumer that leaves partition 0 so many seconds after a lag's start.

    It was sent to its replica ``grants_s`` after the start of the lag, and again 22 s after it. None: it stays.
    """
    rows, events, near_from = [], [], 0.0
    for lag_s, leave_s in zip(LAGS, leaves_s, strict=True):
        gone = [lag_s + LAG_S, lag_s + LAG_S] if leave_s is None else [lag_s + leave_s, lag_s + LAG_S + 1]
        rows += consumed("closest", np.arange(near_from, gone[0], 0.25), 2)
        rows += consumed("closest", np.arange(gone[0], gone[1], 0.25), 1)
        events.append({"t_us": round((lag_s + grants_s) * SECOND_US)})
        near_from = gone[1]
    rows += consumed("closest", np.arange(near_from, LAGS[-1] + 27, 0.25), 2)
    named = {"event": "replica_switched", "arm": "closest", "partition": 0, "node_id": 2}
    return rows, [named | event for event in events]


def failing(home: Path, rows: list[Row], fault: str, events: Sequence[Row] = (), **more: Any) -> Part:
    windows = {f"{fault}-{number}": (at, at + LAG_S) for number, at in enumerate(LAGS, 1)}
    return part_of(home, rows, windows | {"recovery": (LAGS[-1] + LAG_S, LAGS[-1] + 27)}, events=events, **more)


@pytest.mark.parametrize(
    ("leaves_s", "word"),
    [
        ([5.2] * 7, "confirmed"),  # at the end of the lease, which began 5 s before the lag
        ([5.9, 5.1, 5, 5, 5, 4.9, 5], "confirmed"),
        ([0.1] * 7, "contradicted"),  # at once
        ([5.2] * 6 + [0.1], "contradicted"),
        ([8.0] * 7, "contradicted"),  # late
        ([None] * 7, "contradicted"),  # never
    ],
)
def test_a_lagging_replica_is_kept_for_exactly_a_lease(
    tmp_path: Path, leaves_s: Sequence[float | None], word: Word
) -> None:
    """A lease of 10 s, of which 5 s are over when a lag begins; the consumer may leave 1 s before or after its end."""
    rows, events = leased(leaves_s)
    result = decide(REGISTRATION, "kept", kip392.lease(failing(tmp_path, rows, "lag", events)))
    assert (word, 7) == (result.word, result.ours.n)


@pytest.mark.parametrize(("leave_s", "word"), [(5.2, "confirmed"), (0.1, "contradicted"), (8.0, "contradicted")])
def test_the_wire_tells_which_broker_served_a_client_that_does_not(tmp_path: Path, leave_s: float, word: Word) -> None:
    """The records have no broker; the events of the wire proxy give the same word as the client's own broker ids."""
    rows, granted = leased([leave_s] * 7)
    served = {"event": "wire_served", "worker": "reads-java-consume", "partition": 0}
    events: list[Row] = []
    before = None
    for row in rows:
        if row["broker_id"] != before:
            before = row["broker_id"]
            events.append(served | {"t_us": row["done_us"] - 1, "node_id": before})
    events.append(served | {"worker": "reads-other-consume", "t_us": 0, "node_id": 1})
    named = {"event": "wire_replica_named", "worker": "reads-java-consume", "partition": 0, "node_id": 1, "replica": 2}
    events += [named | {"t_us": grant["t_us"]} for grant in granted]
    silent = [{**row, "arm": "java", "broker_id": None} for row in rows]
    part = failing(tmp_path, silent, "lag", events)
    assert word == decide(REGISTRATION, "kept-java", kip392.lease(part, "java", "wire")).word
    assert 0 == kip392.lease(part, "java").ours.n  # without the wire nobody knows


@pytest.mark.parametrize(("from_a", "word"), [(0, "confirmed"), (1e9, "contradicted")])
def test_bytes_across_racks_on_the_wire(tmp_path: Path, from_a: float, word: Word) -> None:
    rates = {1: from_a, 2: 100_000.0, 3: 0.0}
    names = {broker: f"wire.received_bytes/k{broker}/reads-java-consume" for broker in rates}
    samples = [row for broker, rate in rates.items() for row in counter(names[broker], broker, rate, 92)]
    part = part_of(tmp_path, [], WINDOWS, samples=samples)
    assert word == decide(REGISTRATION, "cross-rack-java", kip392.crossing(part, "java", "wire")).word


@pytest.mark.parametrize("broker", [1, 2])
def test_without_the_kip_no_lease_is_judged(tmp_path: Path, broker: int) -> None:
    """A consumer that is never sent to a replica, or reads from it without a grant, gives no unit."""
    part = failing(tmp_path, consumed("closest", range(LAGS[-1] + 27), broker), "lag")
    assert ("undecided", 0) == ((word := decide(REGISTRATION, "kept", kip392.lease(part))).word, word.ours.n)


def test_a_lease_that_outlives_the_lag_is_no_unit(tmp_path: Path) -> None:
    """The leader named the replica again late in the lag, so nothing shows whether the consumer would have left."""
    rows, events = leased([None] * 7, grants_s=12)
    assert 0 == kip392.lease(failing(tmp_path, rows, "lag", events)).ours.n


@pytest.mark.parametrize(
    ("from_broker", "gap_s", "word"),
    [(2, 4.0, "confirmed"), (2, 9.0, "contradicted"), (2, LAG_S, "contradicted"), (1, 4.0, "undecided")],
)
@pytest.mark.parametrize("fault", ["preferred", "leader"])
def test_gaps_exceed_those_of_the_leaders_reader(
    tmp_path: Path, fault: str, from_broker: int, gap_s: float, word: Word
) -> None:
    """A gap two seconds longer than that of the leader's reader, 3 s, is caused by the replica.

    With the KIP off the consumer reads from the leader before a death, which is then no unit.
    """

    def with_gaps(arm: str, broker: int, seconds: float) -> list[Row]:
        at_s = np.arange(0, LAGS[-1] + 27, 0.5)
        return consumed(arm, [t for t in at_s if not any(at <= t < at + seconds for at in LAGS)], broker)

    rows = [*with_gaps("closest", from_broker, gap_s), *with_gaps("leader", 1, 3.0)]
    back = {"event": "replica_failed_back", "arm": "closest", "partition": 0, "t_us": (LAGS[0] + 1) * SECOND_US}
    result = kip392.survived(failing(tmp_path, rows, fault, [back]), fault)
    assert word == decide(REGISTRATION, f"{fault}-dies", result).word
    assert from_broker == 1 or "1 returns to the leader" in result.why


def test_six_deaths_are_needed(tmp_path: Path) -> None:
    """Two of seven deaths had no witness."""
    rows = [*consumed("closest", range(LAGS[-1] + 27), 2), *consumed("leader", range(LAGS[-1] + 27), 1)]
    checks = [doubted(f"witness/leader-{number}", "witness") for number in (1, 2)]
    result = decide(
        REGISTRATION, "leader-dies", kip392.survived(failing(tmp_path, rows, "leader", checks=checks), "leader")
    )
    assert ("undecided", True) == (result.word, "5 deaths of" in result.why)


@pytest.mark.parametrize(("every_s", "word"), [(14, "confirmed"), (4, "contradicted")])
def test_oscillation(tmp_path: Path, every_s: int, word: Word) -> None:
    """Two changes in ten seconds are expected, to the leader and back; one every four seconds is oscillation."""
    spans = range((LAGS[-1] + 27) // every_s)
    rows = [row for n in spans for row in consumed("closest", range(n * every_s, (n + 1) * every_s), 1 + n % 2)]
    parts = [failing(tmp_path / fault, rows, fault) for fault in ("lag", "preferred", "leader")]
    result = decide(REGISTRATION, "no-oscillation", kip392.oscillation(parts))
    assert (word, 21) == (result.word, result.ours.n)


def test_with_the_kip_off_no_claim_is_confirmed(tmp_path: Path) -> None:
    """Both arms read from the leader: nothing wavers or is lost, which the assay on bytes across racks reveals."""
    arms = ("closest", "leader", "rackless")
    samples = [row for arm in arms for row in received(arm, {1: 100_000.0, 2: 0.0})]
    rows = [row for arm in arms for row in consumed(arm, range(LAGS[-1] + 27), 1)]
    set_up = dict.fromkeys(("second", "third", "replicas"), (10, 12))
    faults = {f"{fault}-{n}": (at, at + 5) for fault in ("lag", "preferred", "leader") for n, at in enumerate(LAGS, 1)}
    windows = {"lease": set_up | faults, "deaths": set_up | faults, "near": set_up | WINDOWS, "selector-off": WINDOWS}
    parts = {
        name: part_of(tmp_path / name, rows, spans | set_up, samples=samples, checks=[LOST])
        for name, spans in windows.items()
    }
    words = {each.id: each.word for each in state_claims(REGISTRATION.claims, parts, {}) if each.role == "claim"}
    assert "contradicted" == words.pop("cross-rack")
    assert {"undecided"} == {*words.values()}
    alone = decide(REGISTRATION, "no-oscillation", kip392.oscillation([parts["lease"], parts["deaths"]]))
    assert "confirmed" == alone.word


def test_grants_are_counted_for_each_partition(tmp_path: Path) -> None:
    """Two partitions get five grants each, one every two seconds; the counts decide nothing."""
    granted = [
        {"event": "replica_switched", "arm": "closest", "partition": n % 2, "t_us": n * SECOND_US} for n in range(10)
    ]
    result = kip392.grants(failing(tmp_path, [], "lag", granted))
    assert (5.0, 10) == (result.ours.value, result.ours.n)


def test_features_that_were_not_shipped_decide_nothing() -> None:
    """Rows of features that the KIP promised exist without any run; those not shipped are figures without a rule."""
    left_out = dict.fromkeys(("near", "lease", "deaths", "selector-off", "selector-own", "trickle"), "budget")
    rows = [row for row in state_claims(REGISTRATION.claims, {}, left_out) if row.published == "promised"]
    assert 4 == len(rows)  # one feature was shipped later and has a part
    assert ["", "", ""] == [row.bound for row in rows if row.id.startswith("text-")]


def test_plots(tmp_path: Path) -> None:
    """The traffic of each arm by rack with the follower's delay, and a lagging replica with the rack of each broker."""
    rows = [*consumed("closest", [20, 30], 2, latency_ms=40), *consumed("leader", [20, 30], 1, latency_ms=10)]
    parts = near_part(tmp_path, {"closest": {1: 10, 2: 1000}, "leader": {1: 1000}, "rackless": {1: 1000}}, rows)
    traffic, lagging = plots({**parts, "lease": parts["near"]})
    assert all(words in traffic.svg for words in (">99%<", ">100%<", "rackless"))
    assert traffic.reading.endswith(
        "closest at 100 records/s: median 40.0 ms; leader at 100 records/s: median 10.0 ms."
    )
    assert "from k2, rack b" in lagging.svg
    assert plots({}) == ()
