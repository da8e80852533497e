"""Link selectors: the proxies and streams that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import FaultError
from aftershock.faults.targets import links

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client(a) -> broker", "client_a-k1:up client_a-k2:up client_a-k3:up"),
        ("client(a) -> broker(leader of orders/1)", "client_a-k2:up"),
        ("client(*) <-> broker(1)", "client_a-k1:down client_a-k1:up client_b-k1:down client_b-k1:up client_c-k1:down client_c-k1:up"),
        ("replication(a) -> broker", "replication_a-k2:up replication_a-k3:up"),
        ("controller(c)->broker(1)", "controller_c-k1:up"),
        ("rack(a) -> rack(b)", "controller_a-k2:up controller_b-k1:down replication_a-k2:up replication_b-k1:down"),
        (
            "rack(a) <-> rack(b)",
            "controller_a-k2:down controller_a-k2:up controller_b-k1:down controller_b-k1:up replication_a-k2:down replication_a-k2:up replication_b-k1:down replication_b-k1:up",
        ),
        (
            "rack(a) -> rack(*)",
            "controller_a-k2:up controller_a-k3:up controller_b-k1:down controller_c-k1:down replication_a-k2:up replication_a-k3:up replication_b-k1:down replication_c-k1:down",
        ),
    ],
)  # fmt: skip
async def test_resolved(stage: Stage, text: str, expected: str) -> None:
    """Every form of the grammar names exactly these streams; traffic from rack a to b includes the answers on b's links."""
    stretches = await links.resolve(text, stage.world, {})
    assert " ".join(f"{s.link.proxy}:{s.stream.removesuffix('stream')}" for s in stretches) == expected


async def test_both_ways_is_the_union_of_both_directions(stage: Stage) -> None:
    """`rack(a) <-> rack(b)` is the union of its two directions."""
    one = await links.resolve("rack(a) -> rack(b)", stage.world, {})
    other = await links.resolve("rack(b) -> rack(a)", stage.world, {})
    both = await links.resolve("rack(a) <-> rack(b)", stage.world, {})
    assert set(one) | set(other) == set(both)
    assert not set(one) & set(other)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("client(a)", "is not a link: write"),
        ("client(a) <- broker", "is not a link: write"),
        ("client(a) -> rack(b)", "is not a link: write"),
        ("client(a) -> broker(nobody)", "is not a role: write"),
        ("rack(a) -> rack(a)", "has no link to itself"),
        ("admin(a) -> broker", "is not a link: write"),
    ],
)
def test_no_link(text: str, why: str) -> None:
    """An invalid link is refused with a sentence; the harness's own links can't be named."""
    with pytest.raises(ValueError, match=why):
        links.parse(text)


async def test_brokers_of_one_rack(stage: Stage) -> None:
    """A role that resolves to a broker in the same rack has no link, and the message says why."""
    with pytest.raises(FaultError, match="nodes of one rack have no link between them"):
        await links.resolve("replication(a) -> broker(leader of orders/0)", stage.world, {})
