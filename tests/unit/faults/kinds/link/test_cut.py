"""Cut: the right streams, silence on every link that answered before, and connections that are back after the heal."""

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
    """Two probings without an answer, the toxic read back each second, and a `timeout` of 0 taken off in the end."""
    seen: list[Toxic] = []
    await stage.play_with(3_300, lambda: seen.extend(stage.world.proxies["client_a-k2"].values()), LINK)
    assert seen == [Toxic(OURS, "timeout", "upstream", {"timeout": 0})]
    assert [(witness.observed, witness.n) for witness in answers(stage)] == [(0, 1), (0, 1)]
    read_backs = [witness for witness in stage.journal.witnesses("gone") if witness.unit == "toxics"]
    assert 5 <= len(read_backs) <= 8
    assert stage.all_ok("gone")
    assert stage.world.called("remove_toxic") == [("client_a-k2", OURS)]


async def test_a_rack_is_cut_on_every_channel_and_keeps_its_own(stage: Stage) -> None:
    """Four client links cross the rack's border and are probed; its clients' way to its own broker is left alone."""
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


async def test_one_way_into_and_one_way_out_of_a_rack_are_both(stage: Stage) -> None:
    """Each stream is in exactly one of the two one-way cuts, and all are in the two-way one."""
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
async def test_toxic_deleted_by_somebody_else(stage: Stage, fault: str) -> None:
    """The read-back misses it and names the proxy, and the last probe is answered: both fail."""
    await stage.play_with(3_300, stage.world.proxies["client_a-k2"].clear, fault)
    failed = [witness for witness in stage.journal.witnesses("gone") if not witness.ok]
    assert {witness.unit for witness in failed} == {"toxics", "answers"}
    assert "client_a-k2" in failed[0].what
    assert stage.journal.states("gone")[-1] == "healed"


async def test_toxic_without_effect(stage: Stage) -> None:
    """A toxic that reads back well while requests are answered all the same fails the probe."""
    stage.world._silent = lambda _link: False  # type: ignore[method-assign]
    await stage.play(LINK)
    assert [witness.ok for witness in answers(stage)] == [False, False]


async def test_a_dead_broker_does_not_vouch(stage: Stage) -> None:
    """A link that hangs up because its broker was killed is left out: nothing was observed, and nothing is claimed."""
    await stage.play(LINK, "{id: dead, at: 3s, for: 6s, kind: kill, broker: 2}")
    assert answers(stage)[-1].n == 0
    assert "none can be probed" in answers(stage)[-1].what
    assert stage.world.healthy()


async def test_no_way_in(stage: Stage) -> None:
    """Links between brokers can't be probed here: the toxics read back are the witness, and it says so."""
    await stage.play(INNER)
    assert stage.all_ok("gone")
    assert [witness.n for witness in answers(stage)] == [0, 0]


async def test_healed_when_links_answer(stage: Stage) -> None:
    """A link that stays silent after the heal is a heal that failed; here it answers two seconds later."""
    silent = stage.world._silent
    stage.world._silent = lambda link: silent(link) or 1_000_000 < stage.clock.t_us < 9_000_000  # type: ignore[method-assign]
    await stage.play(LINK)
    assert stage.line("gone", "healing").t_us == 7_000_000
    assert stage.line("gone", "healed").t_us >= 9_000_000


async def test_overlapping_cuts_heal_each_only_itself(stage: Stage) -> None:
    """The first heal doesn't wait for links on which another cut still sits."""
    await stage.play(LINK, RACK.replace("gone", "longer").replace("at: 1s", "at: 2s").replace("6s", "12s"))
    assert stage.line("gone", "healed").t_us < 8_000_000
    assert stage.all_ok("longer")
    assert stage.world.healthy()


@pytest.mark.parametrize("at_ms", [1_050, 1_500, 5_000, 7_001])
async def test_cancelled_in_flight(stage: Stage, at_ms: int) -> None:
    """Half put on, in force or about to heal: whenever it is interrupted, no toxic stays."""
    add = stage.world.add_toxic

    async def slow(proxy: str, toxic: Toxic) -> None:
        await stage.clock.sleep_until_us(stage.clock.now_us() + 100_000)
        await add(proxy, toxic)

    stage.world.add_toxic = slow  # type: ignore[method-assign]
    await stage.interrupt(at_ms, RACK)
    assert stage.world.healthy()
    assert stage.journal.states("gone")[-1] == "healed"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{at: 0s, for: 8s, kind: cut}", "a cut needs either"),
        ('{at: 0s, for: 8s, kind: cut, rack: b, link: "client(a) -> broker"}', "a cut needs either"),
        ('{at: 0s, for: 8s, kind: cut, ways: in, link: "client(a) -> broker"}', "`ways` is for a rack"),
        ("{at: 0s, kind: cut, rack: b}", "a cut needs `for`"),
        ("{at: 0s, for: 8s, kind: cut, rack: z}", "the cluster has no rack `z`"),
        ('{at: 0s, for: 8s, kind: cut, link: "rack(a) -> rack(z)"}', "the cluster has no rack `z`"),
    ],
)
def test_refused_by_the_check(fault: str, said: str) -> None:
    """Half-said and impossible cuts are refused before anything starts."""
    with pytest.raises(PlanError, match=said):
        timeline_of(fault)


PARTED = "{id: gone, at: 1s, for: 6s, kind: cut, between: [[1, 2], [3]]}"
RING = "{id: gone, at: 1s, for: 6s, kind: cut, shape: ring}"
TWO_A_RACK = "cluster: {racks: {a: 2, b: 1, c: 1}}\n"


def put_on(stage: Stage) -> set[tuple[str, str]]:
    """The streams that were cut: proxy and stream."""
    return {(proxy, name.rpartition(":")[2]) for proxy, name in stage.world.called("add_toxic")}  # type: ignore[misc]


async def test_groups_of_nodes_are_cut_from_each_other_alone(stage: Stage) -> None:
    """All that flows between 1, 2 and 3 and nothing else; clients, and 1 with 2, keep their links."""
    await stage.play(PARTED)
    assert {proxy for proxy, _ in put_on(stage)} == {
        f"{channel}_{way}" for channel in ("replication", "controller") for way in ("a-k3", "b-k3", "c-k1", "c-k2")
    }
    assert 2 * 8 == len(put_on(stage))
    assert stage.all_ok("gone")
    assert "1, 2 | 3" == stage.line("gone", "injected").targets.roles["asked"]
    assert stage.world.healthy()


async def test_groups_by_racks_are_the_same(stage: Stage) -> None:
    """Racks a and b against c, where each rack has one node."""
    await stage.play(PARTED)
    by_ids = put_on(stage)
    stage.world.calls.clear()
    await stage.play(PARTED.replace("[[1, 2], [3]]", "[[a, b], [c]]"))
    assert by_ids == put_on(stage)


async def test_one_way_between_groups(stage: Stage) -> None:
    """Out: what 1 and 2 send to 3 goes upstream over a's and b's links into 3, and downstream over c's into them."""
    streams = []
    for ways in ("in", "out", "both"):
        stage.world.calls.clear()
        await stage.play(PARTED.replace("[[1, 2], [3]]", f"[[1, 2], [3]], ways: {ways}").replace("at: 1s", "at: 0s"))
        streams.append(put_on(stage))
    into, out, both = streams
    assert {("replication_a-k3", "upstream"), ("replication_c-k1", "downstream")} <= out
    assert {("replication_a-k3", "downstream"), ("replication_c-k1", "upstream")} <= into
    assert into | out == both
    assert not into & out


async def test_a_ring_on_three_racks_is_one_way(stage: Stage) -> None:
    """Each rack hears one other: half of all streams between them are cut, and the order is the compiler's."""
    await stage.play(RING)
    order = stage.line("gone", "injected").targets.roles["asked"].removeprefix("ring ").split(" > ")
    homes = dict(zip("abc", (1, 2, 3), strict=True))
    for first, second in zip(order, (*order[1:], order[0]), strict=True):
        assert (f"replication_{second}-k{homes[first]}", "upstream") in put_on(stage)
        assert (f"replication_{first}-k{homes[second]}", "upstream") not in put_on(stage)
    assert 12 == len(put_on(stage))
    assert stage.world.healthy()


def test_what_is_random_is_drawn_by_the_compiler() -> None:
    """One seed, one order; many seeds, several."""
    orders = [timeline_of(RING, seed=seed).steps[0].draws["order"] for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert 3 == len({*orders})


async def test_a_drawn_minority(stage: Stage) -> None:
    """Of three racks one, cut both ways from the other two."""
    await stage.play(RING.replace("ring", "minority"))
    few, _, many = stage.line("gone", "injected").targets.roles["asked"].partition(" | ")
    assert {"1", "2", "3"} == {few, *many.split(", ")}
    assert 16 == len(put_on(stage))
    assert stage.all_ok("gone")


@pytest.mark.parametrize("fault", [PARTED, RING])
async def test_groups_not_cut_are_no_proof(stage: Stage, fault: str) -> None:
    """In a rehearsal the toxics that nobody put on are missed."""
    await stage.rehearse(fault)
    assert not any(witness.ok for witness in stage.journal.witnesses("gone") if witness.unit == "toxics")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("between: [[1, 2]]", "needs two groups or more"),
        ("between: [[1], []]", "needs two groups or more"),
        ("between: [[1], [b]]", "node ids or racks, not both"),
        ("between: [[1, 2], [2, 3]]", "`2` is in `between` twice"),
        ("between: [[1], [7]]", "no node or rack `7`"),
        ("between: [[1], [2], [3]], ways: in", "`ways` is for a rack or for two groups"),
        ("shape: ring, ways: in", "`ways` is for a rack or for two groups"),
        ("shape: ring, rack: b", "a cut needs either"),
    ],
)
def test_groups_refused_by_the_check(words: str, said: str) -> None:
    """Groups that are none, or of nodes that aren't there."""
    with pytest.raises(PlanError, match=said):
        timeline_of(f"{{at: 0s, for: 8s, kind: cut, {words}}}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("between: [[1], [2]]", "nodes 1 and 2 share rack a, and nodes of one rack have no link between them"),
        ("between: [[1], [3]]", "nodes 1 and 2 share rack a, and so the link to node 3"),
        ("shape: ring", "as many brokers in each rack"),
    ],
)
def test_nodes_of_one_rack_have_no_link(words: str, said: str) -> None:
    """Whoever shares a rack can't be cut from each other, nor one of them alone from anybody: refused at once."""
    with pytest.raises(PlanError, match=said):
        load_plan(f"{FRAME}  - {{at: 0s, for: 8s, kind: cut, {words}}}\n{TWO_A_RACK}")


@pytest.mark.parametrize("cluster", [TWO_A_RACK, "cluster: {controllers: 3}\n"])
def test_a_rack_as_a_whole_can_be_grouped(cluster: str) -> None:
    """The same cluster, its two brokers of rack a together; and brokers alone where controllers are isolated."""
    load_plan(f"{FRAME}  - {{at: 0s, for: 8s, kind: cut, between: [[1, 2], [3]]}}\n{cluster}")
