"""The topology: names and ports that never collide, and no way between racks but through a proxy."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aftershock.harness.cluster.topology import Topology, topology

RACKS = st.lists(st.integers(1, 3), min_size=1, max_size=5).filter(lambda counts: sum(counts) <= 9)


def build(counts: list[int], controllers: int) -> Topology:
    return topology(dict(zip("abcde", counts, strict=False)), controllers)


def test_three_racks_get_the_proxy_names_of_the_design() -> None:
    """One broker a rack: a client link to each broker from each rack, inter-broker links only between racks."""
    names = {proxy.name for proxy in build([1, 1, 1], 0).proxies()}
    clients = {f"client_{rack}-k{node}" for rack in "abc" for node in (1, 2, 3)}
    between = {f"{kind}_{rack}-k{node}" for kind in ("replication", "controller") for rack, node in cross("abc")}
    ours = {f"{kind}-k{node}" for kind in ("admin", "quorum") for node in (1, 2, 3)}
    assert clients | between | ours == names


def cross(racks: str) -> list[tuple[str, int]]:
    return [(rack, node) for rack in racks for node, home in enumerate(racks, 1) if rack != home]


@given(RACKS, st.sampled_from([0, 1, 3, 5]))
def test_no_two_proxies_listen_on_one_address(counts: list[int], controllers: int) -> None:
    """Whatever the shape, (address, port) is unique, and a port on every address is used nowhere else."""
    listens = Counter((proxy.listen_rack, proxy.listen_port) for proxy in build(counts, controllers).proxies())
    everywhere = {port for rack, port in listens if rack is None}
    assert {1} == set(listens.values())
    assert not everywhere & {port for rack, port in listens if rack is not None}


@given(RACKS, st.sampled_from([0, 1, 3, 5]))
def test_toxiproxy_answers_for_exactly_the_nodes_of_other_racks(counts: list[int], controllers: int) -> None:
    """A node at home is reached directly; abroad its name is Toxiproxy's, on the port where its proxy listens."""
    laid_out = build(counts, controllers)
    for rack in laid_out.racks:
        proxied = {f"k{proxy.node}" for proxy in laid_out.proxies() if proxy.listen_rack == rack}
        assert proxied == set(laid_out.foreign_names(rack))


@given(RACKS)
def test_combined_voters_are_odd_and_spread(counts: list[int]) -> None:
    """At most five vote, an odd number, and no rack has two voters before every rack has one."""
    laid_out = build(counts, 0)
    voters = Counter(node.rack for node in laid_out.controllers)
    assert len(laid_out.controllers) % 2 == 1
    assert len(laid_out.controllers) <= 5
    if len(laid_out.controllers) >= len(laid_out.racks):
        assert set(laid_out.racks) == set(voters)


def test_isolated_controllers_store_no_topics() -> None:
    """Three isolated controllers: ids from 11, one a rack, and the brokers don't vote."""
    laid_out = build([1, 1, 1], 3)
    assert [(11, "a"), (12, "b"), (13, "c")] == [(node.id, node.rack) for node in laid_out.controllers]
    assert [1, 2, 3] == [node.id for node in laid_out.brokers]
