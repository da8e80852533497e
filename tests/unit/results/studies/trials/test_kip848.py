"""Claims of KIP-848 about made groups, some of which break the promise, and the changes and silences behind them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import Word
from aftershock.results.studies.trials import kip848
from aftershock.results.studies.trials.claim import requirements, state_claims
from aftershock.results.studies.trials.kip848 import COORDINATOR, JAVA, REGISTRATION, ROLL, plots
from aftershock.results.studies.trials.kip848_changes import (
    ALONE,
    CONSUMER,
    COOPERATIVE,
    DIES,
    EAGER,
    JOINS,
    LEAVES,
    RESTARTS,
    Observed,
    observe,
)
from aftershock.tests.unit.results.studies.trials.groups import (
    MOVED_S,
    NOTICED_S,
    PARTITIONS,
    Fault,
    Group,
    changes,
    restarts,
    run,
)
from aftershock.tests.unit.results.studies.trials.made import doubted

STOPS = Group(1.2)
EVERYWHERE = range(PARTITIONS)


def words(part: Part, *asked: str, name: str = JAVA, **others: Part) -> dict[str, Word]:
    """Return the words of the claims that are asked for, with their controls and assays, or of all that are decided."""
    parts = {name: part, **others}
    decided = [claim for claim in REGISTRATION.claims if claim.rule and {*claim.needs} <= parts.keys()]
    needed = {
        other.id
        for claim in decided
        if claim.id in (asked or [claim.id])
        for other in requirements(claim, REGISTRATION.claims)
    }
    return {entry.id: entry.word for entry in state_claims([c for c in decided if c.id in needed], parts, {})}


def test_groups_as_the_kip_says(tmp_path: Path) -> None:
    """All claims on the changes are confirmed, and so are the control and both assays."""
    found = words(run(tmp_path / "run", {}))
    assert {"confirmed"} == {*found.values()}
    assert {"kept", "kept-leaves", "given-up", "steady", "eager", "eager-given-up"} == {*found}


def test_a_protocol_that_stops_kept_partitions(tmp_path: Path) -> None:
    """As the eager one does; the stop alone contradicts the headline, also if no partition is given up."""
    found = words(run(tmp_path / "run", {CONSUMER: Group(1.2, gives_up=True)}))
    assert ["contradicted", "excluded", "contradicted"] == [found[name] for name in ("kept", "kept-leaves", "given-up")]
    silent = words(run(tmp_path / "silent", {CONSUMER: STOPS}), "kept", "given-up")
    assert ("contradicted", "confirmed") == (silent["kept"], silent["given-up"])


@pytest.mark.parametrize(
    "group",
    [
        Group(1.2, stopped=[7]),  # one partition of one member, in each rebalance
        Group(stops={7: [(at, at + 4) for at in range(47, 320, 45)]}),  # only when a member joins
        Group(stops={7: [(66, float("inf"))]}),  # for ever
    ],
)
def test_a_single_partition_that_stops_is_seen(group: Group, tmp_path: Path) -> None:
    assert "confirmed" != words(run(tmp_path / "run", {CONSUMER: group}), "kept")["kept"]


def test_a_stop_of_all_clients_is_no_effect_of_a_rebalance(tmp_path: Path) -> None:
    """The host stands still for two seconds in each change; the group without a rebalance shows it."""
    stall = {place: [(fault.start_s + 1, fault.start_s + 3) for fault in changes()] for place in EVERYWHERE}
    groups = {CONSUMER: Group(stops=stall), ALONE: Group(stops=stall), EAGER: Group(5.0, gives_up=True)}
    assert "confirmed" == words(run(tmp_path / "run", groups), "kept")["kept"]


def test_without_the_assay_nothing_is_concluded(tmp_path: Path) -> None:
    """If the eager group goes on too, nothing shows that a stop can be seen."""
    found = words(run(tmp_path / "run", {EAGER: Group()}), "kept", "given-up", "kept-leaves")
    assert ("excluded", "contradicted") == (found["eager"], found["eager-given-up"])
    assert {"undecided"} == {found["kept"], found["given-up"], found["steady"]}
    assert "excluded" == found["kept-leaves"]


def test_without_the_control_nothing_is_concluded(tmp_path: Path) -> None:
    """A group that stops while no membership changes shows that something else than a rebalance stops it."""
    stall = {3: [(at, at + 2) for at in range(1, 36, 6)]}
    found = words(run(tmp_path / "run", {CONSUMER: Group(stops=stall)}), "kept", "kept-leaves")
    assert ("contradicted", "undecided", "undecided") == (found["steady"], found["kept"], found["kept-leaves"])


def test_changes_without_proof_are_left_out(tmp_path: Path) -> None:
    """Of one leave the witness failed, so it and the following return are no changes; with three, too few are left."""
    one, three = ([doubted(f"witness/left-consumer-{n}", "witness") for n in range(1, end)] for end in (2, 4))
    some = kip848.more_s(run(tmp_path / "one", {}, checks=one), CONSUMER)
    assert 19 == some.ours.n
    assert "undecided" == words(run(tmp_path / "three", {}, checks=three), "kept")["kept"]


def by_kind(found: list[Observed]) -> Mapping[str, Observed]:
    """Return the first change of each kind."""
    return {observed.change.kind: observed for observed in reversed(found)}


def test_moved_and_kept_partitions(tmp_path: Path) -> None:
    """Those of the member that left, died or returned have moved, and are silent until the new owner has them."""
    part = run(tmp_path / "run", {EAGER: Group(1.2, stopped=[4, 5], gives_up=True)})
    first = by_kind(observe(part, CONSUMER))
    moving = {LEAVES: [2, 3], JOINS: [2, 3], DIES: [8, 9]}
    assert moving == {kind: [*observed.moved] for kind, observed in first.items()}
    busy = {LEAVES: {12, 13}, JOINS: set[int](), DIES: set[int]()}
    for kind, observed in first.items():
        assert {*EVERYWHERE} - {*moving[kind]} - busy[kind] == {*observed.kept} == {*observed.alone}
        silent_s = MOVED_S + (0 if kind == JOINS else NOTICED_S)
        assert [pytest.approx(silent_s, abs=0.3)] * 2 == [*observed.moved.values()]
        assert pytest.approx(0.01) == max(observed.kept.values())
        assert pytest.approx(NOTICED_S + MOVED_S) == observed.owned_s
        assert not observed.given_up
    eager = by_kind(observe(part, EAGER))[LEAVES]
    assert {place for place in EVERYWHERE if place not in (2, 3, 12, 13)} == eager.given_up
    assert {4, 5} == {place for place, seconds in eager.kept.items() if seconds > 0.9}
    assert max(eager.kept.values()) <= 1.2 + 0.02


def test_a_dead_members_partition_that_nobody_gets_has_moved(tmp_path: Path) -> None:
    """Its silence, which lasts as long as the change, is none of a kept partition."""
    late = [Fault("died", block, 5, 45.0 * block, 45.0 * block + 0.2, 45.0 * block + 9) for block in range(1, 8)]
    observed = observe(run(tmp_path / "run", {}, late), CONSUMER)[0]
    assert ([8, 9], {8, 9}) == ([*observed.moved], {*EVERYWHERE} - {*observed.kept})


def test_repeated_deliveries_are_counted(tmp_path: Path) -> None:
    """Three in the first change, one in the second, and one before all changes."""
    part = run(tmp_path / "run", {CONSUMER: Group(again=[20.0, 41.0, 41.5, 42.0, 50.0])})
    assert [3, 1, 0] == [observed.again for observed in observe(part, CONSUMER)[:3]]
    result = kip848.again(part)
    assert (pytest.approx(4 / 21), "by protocol: consumer 0.2, cooperative 0.0, eager 0.0") == (
        result.ours.value,
        result.why,
    )


def test_each_restart_of_a_rolling_restart_is_a_change(tmp_path: Path) -> None:
    """Eight restarts, each until the next begins; the partitions of the restarted member are not kept."""
    part = run(tmp_path / "run", {}, restarts())
    found = observe(part, CONSUMER)
    assert [(RESTARTS, 12)] * 8 == [(observed.change.kind, len(observed.kept)) for observed in found]
    assert {"roll": "confirmed", "eager-roll": "confirmed"} == words(part, name=ROLL)
    stopped = words(run(tmp_path / "stops", {CONSUMER: STOPS}, restarts()), name=ROLL)
    assert "contradicted" == stopped["roll"]


KILLS = [Fault("coordinator", block, 2, 45.0 * block, 45.0 * block + 8, 45.0 * block + 15) for block in range(1, 8)]


@pytest.mark.parametrize(("stopped", "word"), [([4, 5], "confirmed"), ([4, 5, 6], "contradicted")])
def test_partitions_of_the_killed_coordinator_are_left_out(stopped: list[int], word: Word, tmp_path: Path) -> None:
    """Broker 2 led the partitions 4 and 5, for whose new leaders every client waits."""
    stops = {place: [(fault.start_s, fault.start_s + 4) for fault in KILLS] for place in stopped}
    part = run(tmp_path / "kill", {CONSUMER: Group(stops=stops)}, KILLS, leaders={4: 2, 5: 2})
    assert {*EVERYWHERE} - {4, 5} == {*observe(part, CONSUMER)[0].kept}
    assert word == words(part, "coordinator", name=COORDINATOR, java=run(tmp_path / "java", {}))["coordinator"]


def test_with_the_kip_off_no_claim_is_confirmed(tmp_path: Path) -> None:
    """The group of the consumer protocol is an eager one in all parts."""
    off = {CONSUMER: Group(1.2, gives_up=True)}
    java = run(tmp_path / "java", off)
    others = dict.fromkeys(("librdkafka", "reference", "production"), java)
    parts = {"java": java, **others, ROLL: run(tmp_path / "roll", off, restarts())}
    found = {entry.id: entry for entry in state_claims(REGISTRATION.claims, parts, {COORDINATOR: "budget"})}
    deciding = {entry.id: entry.word for entry in found.values() if entry.role in ("claim", "mechanism", "production")}
    assert "confirmed" not in deciding.values()
    assert {"contradicted"} == {
        deciding[name] for name in ("kept", "kept-production", "librdkafka", "reference", "roll")
    }


def test_figures(tmp_path: Path) -> None:
    """Times and silences of the consumer protocol relative to the classic ones, with their means."""
    part = run(tmp_path / "run", {COOPERATIVE: Group(0.8)})
    assert pytest.approx(0.8, abs=0.3) == kip848.more_s(part, COOPERATIVE, 0.95).ours.value
    owned = kip848.owned(part, EAGER)
    assert (0.0, 21) == (owned.ours.value, owned.ours.n)
    assert "leaves 2.00 s and 2.00 s" in owned.why
    moved = kip848.moved(part)
    assert (pytest.approx(1.0), 21) == (moved.ours.value, moved.ours.n)


def test_plots(tmp_path: Path) -> None:
    """Kept and moved partitions by change and protocol, and the stops of one change over time."""
    silence, over_time = plots({JAVA: run(tmp_path / "run", {})})
    assert all(f"{what}: {side}" in silence.svg for what in kip848.KINDS.values() for side in ("kept", "moved"))
    longest = "consumer protocol 0.01 s, classic cooperative 0.31 s, classic eager 1.21 s, without a group 0.01 s"
    assert "; ".join(f"{name}: {longest}" for name in kip848.KINDS.values()) in silence.reading
    assert "consumer protocol: 12 kept, silent for up to 0.01 s; classic cooperative: 12 kept" in over_time.reading
    assert plots({}) == ()
