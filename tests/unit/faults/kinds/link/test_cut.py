"""Cut: the right streams are cut, links do not answer during the fault, and connections work after the heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.targets.values import Toxic
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of

if TYPE_CHECKING:
    from aftershock.faults.runtime.record import Witness
    from aftershock.tests.unit.faults.conftest import Stage


LINK = '{id: gone, at: 1s, for: 6s, kind: cut, link: "client(a) -> broker(2)"}'
RACK = "{id: gone, at: 1s, for: 6s, kind: cut, rack: b}"
INNER = '{id: gone, at: 1s, for: 6s, kind: cut, link: "replication(a) -> broker"}'
OURS = "gone:client_a-k2:upstream"


def answers(stage: Stage) -> list[Witness]:
    return [witness for witness in stage.journal.witnesses("gone") if witness.unit == "answers"]


async def test_silence_at_both_ends_and_toxics_in_between(stage: Stage) -> None:
    """Two probes get no answer, the toxic is read back each second, and the `timeout` of 0 is removed at the heal."""
    seen: list[Toxic] = []
    await stage.play_with(3_300, lambda: seen.extend(stage.world.proxies["client_a-k2"].values()), LINK)
    assert seen == [Toxic(OURS, "timeout", "upstream", {"timeout": 0})]
    assert [(witness.observed, witness.n) for witness in answers(stage)] == [(0, 1), (0, 1)]
    read_backs = [witness for witness in stage.journal.witnesses("gone") if witness.unit == "toxics"]
    assert 5 <= len(read_backs) <= 8
    assert stage.all_ok("gone")
    assert stage.world.called("remove_toxic") == [("client_a-k2", OURS)]


async def test_a_rack_is_cut_on_every_channel_and_keeps_its_own(stage: Stage) -> None:
    """Four client links cross the rack's border and are probed; links of the rack's clients to its own broker
    are not cut.
    """
    await stage.play(RACK)
    links = stage.line("gone", "injected").targets.links
    assert {link for link in links if link.startswith("client")} == {
        "client_a-k2",
        "client_b-k1",
        "client_b-k3",
        "client_c-k2",
    }
    assert {link.partition("_")[0] for link in links} == {"client", "replication", "controller"}
    assert len(stage.world.called("add_toxic")) == 2 * len(links) == 2 * 12
    assert [(witness.observed, witness.n) for witness in answers(stage)] == [(0, 4), (0, 4)]
    assert stage.line("gone", "injected").targets.roles["crossing"] == {"orders": [0, 1, 2, 3, 4, 5]}


async def test_the_one_way_cuts_of_a_rack_add_up_to_the_two_way_cut(stage: Stage) -> None:
    """Each stream is in exactly one of the two one-way cuts, and every stream is in the two-way cut."""
    streams = []
    for ways in ("in", "out", "both"):
        stage.world.calls.clear()
        await stage.play(RACK.replace("rack: b", f"rack: b, ways: {ways}").replace("at: 1s", "at: 0s"))
        streams.append(set(stage.world.called("add_toxic")))
    into, out, both = streams
    assert into | out == both
    assert not into & out
    assert ("client_a-k2", "gone:client_a-k2:upstream") in into
    assert ("client_b-k1", "gone:client_b-k1:upstream") in out


@pytest.mark.parametrize("fault", [LINK, RACK])
async def test_toxic_deleted_from_outside(stage: Stage, fault: str) -> None:
    """The read-back fails and names the proxy, and the last probe is answered and fails."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k2"].clear, fault)
    failed = [witness for witness in stage.journal.witnesses("gone") if not witness.ok]
    assert {witness.unit for witness in failed} == {"toxics", "answers"}
    assert "client_a-k2" in failed[0].what
    assert stage.journal.states("gone")[-1] == "healed"


async def test_toxic_without_effect(stage: Stage) -> None:
    """A toxic that exists while requests are answered fails the probe."""
    stage.world._silent = lambda _link: False  # type: ignore[method-assign]
    await stage.play(LINK)
    assert [witness.ok for witness in answers(stage)] == [False, False]


async def test_a_link_of_a_dead_broker_is_left_out(stage: Stage) -> None:
    """A link that closes because its broker was killed is no evidence for the cut."""
    await stage.play(LINK, "{id: dead, at: 3s, for: 6s, kind: kill, broker: 2}")
    assert answers(stage)[-1].n == 0
    assert "the list of its toxics or rules is the only evidence" in answers(stage)[-1].what
    assert stage.world.healthy()


async def test_links_between_brokers_are_witnessed_by_their_toxics(stage: Stage) -> None:
    """Links between brokers can't be probed here, and the witness says so."""
    await stage.play(INNER)
    assert stage.all_ok("gone")
    assert [witness.n for witness in answers(stage)] == [0, 0]


async def test_healed_when_links_answer(stage: Stage) -> None:
    """A link that stays silent fails the heal; here the link answers two seconds after the heal."""
    silent = stage.world._silent
    stage.world._silent = lambda link: silent(link) or 1_000_000 < stage.clock.t_us < 9_000_000  # type: ignore[method-assign]
    await stage.play(LINK)
    assert stage.line("gone", "healing").t_us == 7_000_000
    assert stage.line("gone", "healed").t_us >= 9_000_000


async def test_overlapping_cuts_heal_separately(stage: Stage) -> None:
    """The first heal doesn't wait for links that another cut still affects."""
    await stage.play(LINK, RACK.replace("gone", "longer").replace("at: 1s", "at: 2s").replace("6s", "12s"))
    assert stage.line("gone", "healed").t_us < 8_000_000
    assert stage.all_ok("longer")
    assert stage.world.healthy()


@pytest.mark.parametrize("at_ms", [1_050, 1_500, 5_000, 7_001])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """A cut interrupted during injection, hold or heal leaves no toxic."""
    add = stage.world.add_toxic

    async def slow(proxy: str, toxic: Toxic) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 100_000)
        await add(proxy, toxic)

    stage.world.add_toxic = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, RACK)
    assert stage.world.healthy()
    assert stage.journal.states("gone")[-1] == "healed"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{at: 0s, for: 8s, kind: cut}", "a cut needs either"),
        ('{at: 0s, for: 8s, kind: cut, rack: b, link: "client(a) -> broker"}', "a cut needs either"),
        ('{at: 0s, for: 8s, kind: cut, ways: in, link: "client(a) -> broker"}', "`ways` only applies to `rack`"),
        ("{at: 0s, kind: cut, rack: b}", "a cut needs `for`"),
        ("{at: 0s, for: 8s, kind: cut, rack: z}", "the cluster has no rack `z`"),
        ('{at: 0s, for: 8s, kind: cut, link: "rack(a) -> rack(z)"}', "the cluster has no rack `z`"),
    ],
)
def test_refused_by_the_check(fault: str, message: str) -> None:
    """Incomplete and impossible cuts are refused before anything starts."""
    with pytest.raises(PlanError, match=message):
        timeline_of(fault)


PARTED = "{id: gone, at: 1s, for: 6s, kind: cut, between: [[1, 2], [3]]}"
RING = "{id: gone, at: 1s, for: 6s, kind: cut, shape: ring}"
TWO_A_RACK = "cluster: {racks: {a: 2, b: 1, c: 1}}\n"


def cut_streams(stage: Stage) -> set[tuple[str, str]]:
    """Return the streams that were cut: proxy and stream."""
    return {(proxy, name.rpartition(":")[2]) for proxy, name in stage.world.called("add_toxic")}  # type: ignore[misc]


async def test_groups_of_nodes_are_cut_only_from_each_other(stage: Stage) -> None:
    """Links between nodes 1, 2 and node 3 are cut; links of clients, and between 1 and 2, are not."""
    await stage.play(PARTED)
    assert {proxy for proxy, _ in cut_streams(stage)} == {
        f"{channel}_{way}" for channel in ("replication", "controller") for way in ("a-k3", "b-k3", "c-k1", "c-k2")
    }
    assert 2 * 8 == len(cut_streams(stage))
    assert stage.all_ok("gone")
    assert "1, 2 | 3" == stage.line("gone", "injected").targets.roles["asked"]
    assert stage.world.healthy()


async def test_groups_may_be_given_by_racks(stage: Stage) -> None:
    """Racks a and b are cut from c, where each rack has one node."""
    await stage.play(PARTED)
    by_ids = cut_streams(stage)
    stage.world.calls.clear()
    await stage.play(PARTED.replace("[[1, 2], [3]]", "[[a, b], [c]]"))
    assert by_ids == cut_streams(stage)


async def test_one_way_between_groups(stage: Stage) -> None:
    """Data from 1 and 2 to 3 flows upstream on the links of a and b into 3, and downstream on links of c into a
    and b.
    """
    streams = []
    for ways in ("in", "out", "both"):
        stage.world.calls.clear()
        await stage.play(PARTED.replace("[[1, 2], [3]]", f"[[1, 2], [3]], ways: {ways}").replace("at: 1s", "at: 0s"))
        streams.append(cut_streams(stage))
    into, out, both = streams
    assert {("replication_a-k3", "upstream"), ("replication_c-k1", "downstream")} <= out
    assert {("replication_a-k3", "downstream"), ("replication_c-k1", "upstream")} <= into
    assert into | out == both
    assert not into & out


async def test_a_ring_on_three_racks_is_one_way(stage: Stage) -> None:
    """Each rack receives from one other rack: half of all streams are cut, in the compiler's order."""
    await stage.play(RING)
    order = stage.line("gone", "injected").targets.roles["asked"].removeprefix("ring ").split(" > ")
    homes = dict(zip("abc", (1, 2, 3), strict=True))
    for first, second in zip(order, (*order[1:], order[0]), strict=True):
        assert (f"replication_{second}-k{homes[first]}", "upstream") in cut_streams(stage)
        assert (f"replication_{first}-k{homes[second]}", "upstream") not in cut_streams(stage)
    assert 12 == len(cut_streams(stage))
    assert stage.world.healthy()


def test_the_compiler_draws_the_order_of_a_ring() -> None:
    """Equal seeds give equal orders; many seeds give several orders."""
    orders = [timeline_of(RING, seed=seed).steps[0].draws["order"] for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert 3 == len({*orders})


async def test_a_drawn_minority(stage: Stage) -> None:
    """One of three racks is cut both ways from the other two."""
    await stage.play(RING.replace("ring", "minority"))
    few, _, many = stage.line("gone", "injected").targets.roles["asked"].partition(" | ")
    assert {"1", "2", "3"} == {few, *many.split(", ")}
    assert 16 == len(cut_streams(stage))
    assert stage.all_ok("gone")


@pytest.mark.parametrize("fault", [PARTED, RING])
async def test_a_rehearsal_of_groups_fails_its_witnesses(stage: Stage, fault: str) -> None:
    """The read-back misses toxics that a rehearsal does not add."""
    await stage.rehearse(fault)
    assert not any(witness.ok for witness in stage.journal.witnesses("gone") if witness.unit == "toxics")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("between: [[1, 2]]", "needs two or more groups"),
        ("between: [[1], []]", "needs two or more groups"),
        ("between: [[1], [b]]", "node ids or racks, not both"),
        ("between: [[1, 2], [2, 3]]", "`2` is in `between` twice"),
        ("between: [[1], [7]]", "no node or rack `7`"),
        ("between: [[1], [2], [3]], ways: in", "`ways` only applies to `rack` or to two groups"),
        ("shape: ring, ways: in", "`ways` only applies to `rack` or to two groups"),
        ("shape: ring, rack: b", "a cut needs either"),
    ],
)
def test_groups_refused_by_the_check(words: str, message: str) -> None:
    """Invalid groups and groups of unknown nodes are refused."""
    with pytest.raises(PlanError, match=message):
        timeline_of(f"{{at: 0s, for: 8s, kind: cut, {words}}}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("between: [[1], [2]]", "nodes 1 and 2 share rack a, and nodes of one rack have no link between them"),
        ("between: [[1], [3]]", "nodes 1 and 2 are both in rack a and use the same link to node 3"),
        ("shape: ring", "the same number of brokers in each rack"),
    ],
)
def test_nodes_of_one_rack_cannot_be_separated(words: str, message: str) -> None:
    """Nodes of one rack have no link between them, and one of them alone can't be cut off."""
    with pytest.raises(PlanError, match=message):
        load_plan(f"{FRAME}  - {{at: 0s, for: 8s, kind: cut, {words}}}\n{TWO_A_RACK}")


@pytest.mark.parametrize("cluster", [TWO_A_RACK, "cluster: {controllers: 3}\n"])
def test_a_rack_as_a_whole_can_be_grouped(cluster: str) -> None:
    """The two brokers of rack a may be in one group; with isolated controllers, brokers alone may be grouped."""
    load_plan(f"{FRAME}  - {{at: 0s, for: 8s, kind: cut, between: [[1, 2], [3]]}}\n{cluster}")


ATTACHED = "cluster: {attach: {bootstrap: 'k:1', containers: {1: one, 2: two, 3: three}}}"


@pytest.fixture
def contained(stage: Stage) -> Stage:
    """The stage of an attached cluster, whose brokers run in containers."""
    stage.world.contain()
    stage.frame = stage.frame.replace("topics:", f"{ATTACHED}\ntopics:", 1)
    return stage


ALONE = "{id: gone, at: 1s, for: 6s, kind: cut, broker: 1}"
APART = "{id: gone, at: 1s, for: 6s, kind: cut, between: [[1], [2, 3]]}"


async def test_a_container_is_cut_off_from_everything(contained: Stage) -> None:
    """The links of broker 1 are silent, the rules and what they dropped are seen, and the heal removes the rules."""
    await contained.play(ALONE)
    assert contained.world.called("isolate") == [("gone", 1)]
    assert [] == contained.world.called("add_toxic")
    assert [(witness.observed, witness.n) for witness in answers(contained)] == [(0, 5), (0, 5)]
    assert {"reads", "packets", "answers"} == {witness.unit for witness in contained.journal.witnesses("gone")}
    assert contained.all_ok("gone")
    assert ({}, "healed") == (contained.world.packet_rules, contained.journal.states("gone")[-1])


async def test_containers_are_cut_off_from_each_other_and_not_from_clients(contained: Stage) -> None:
    await contained.play(APART)
    ((_, streams, change),) = contained.world.called("change_packets")
    pairs = {("1", "2"), ("1", "3"), ("2", "1"), ("3", "1")}
    assert {(f"replication_k{source}-k{target}", "upstream") for source, target in pairs} == {*streams}
    assert ("drop", 1.0) == (change.action, change.share)
    assert [(witness.observed, witness.n) for witness in answers(contained)] == [(0, 4), (0, 4)]


async def test_one_way_between_containers(contained: Stage) -> None:
    """Only what broker 1 sends is dropped."""
    await contained.play(APART.replace("between", "ways: out, between"))
    ((_, streams, _),) = contained.world.called("change_packets")
    assert {"replication_k1-k2", "replication_k1-k3"} == {name for name, _ in streams}


@pytest.mark.parametrize("fault", [ALONE, APART])
async def test_rules_that_vanish_from_a_container_fail_the_witness(contained: Stage, fault: str) -> None:
    """As after a restart of the container by somebody else: no rule is left, and the links answer."""
    await contained.play_with(3_300, contained.world.packet_rules.clear, fault)
    assert {"reads", "answers", "packets"} == {w.unit for w in contained.journal.witnesses("gone") if not w.ok}


async def test_a_rehearsed_cut_of_a_container_fails_its_witnesses(contained: Stage) -> None:
    await contained.rehearse(ALONE)
    assert not any(witness.ok for witness in contained.journal.witnesses("gone"))


def test_only_a_container_is_cut_off_by_itself() -> None:
    """In a launched cluster, nodes of a rack share their links; `plan check` says what to use."""
    with pytest.raises(PlanError, match="only a container of an attached cluster can be cut off by itself"):
        load_plan(f"{FRAME}  - {ALONE}\n")


async def test_an_unnamed_container_is_not_separated(contained: Stage) -> None:
    """A pair of which one container is unknown has no link."""
    links = [link for link in contained.world.links() if 3 not in (link.broker, link.source)]
    contained.world.links = lambda: links
    await contained.play(APART)
    assert "the containers of nodes 1 and 3 are not both named" in str(contained.line("gone", "failed").why)
