"""Sentences about the events of a consumer group's members, and their place in the chapter of a fault."""

from typing import Any

import pytest

from aftershock.results.explain.chapter import notable
from aftershock.results.explain.events import event

Line = dict[str, Any]


def line(name: str, number: int | None = 2, at_s: float = 1, **details: Any) -> Line:
    worker = "orders-mine-consume" + ("" if number is None else f"-{number}")
    common = {"t_us": round(at_s * 1e6), "workload": "orders", "arm": "mine", "op": "consume", "worker": worker}
    return common | {"event": name} | details


LOST = [["orders", number] for number in range(6)]


@pytest.mark.parametrize(
    ("happened", "sentence"),
    [
        (
            line("rebalance_started", epoch=5, reason="a new assignment"),
            "member 2 began to rebalance at epoch 5: a new assignment",
        ),
        (line("rebalance_started", epoch=-1, reason=""), "member 2 began to rebalance"),
        (
            line("group_joined", epoch=6, leader=True, protocol="classic", assignor="sticky"),
            "member 2 joined the group at epoch 6, as its leader (classic protocol, assignor sticky)",
        ),
        (
            line("group_joined", None, epoch=6, leader=False, protocol="consumer", assignor=None),
            "joined the group at epoch 6 (consumer protocol)",
        ),
        (
            line("member_fenced", error="FENCED_MEMBER_EPOCH", member_id="x", epoch=6),
            "member 2 was excluded from the group at epoch 6: FENCED_MEMBER_EPOCH",
        ),
        (
            line("poll_timeout", member_id="x", epoch=6),
            "member 2 left the group at epoch 6, because it did not poll for max.poll.interval.ms",
        ),
        (
            line("partitions_lost", 11, partitions=LOST, member_id="x"),
            "member 11 lost orders/0, orders/1, orders/2, orders/3 and 2 more, which another member may own already",
        ),
        (line("member_fenced"), "member 2 was excluded from the group"),
        (line("partitions_lost"), "member 2 lost its partitions, which another member may own already"),
        ({"event": "group_joined"}, "joined the group"),
        (line("node_disconnected", node_id=3, why="reset"), "lost its connection to node 3: reset"),
        (line("node_disconnected", node_id=3, count=2, since_us=1), "lost its connection to node 3"),
    ],
)
def test_the_sentence_of_an_event(happened: Line, sentence: str) -> None:
    """A missing field is left out; the only consumer of an arm has no number."""
    assert sentence == event(happened)


def test_a_chapter_tells_what_happened_to_the_members() -> None:
    """The first event of each kind, with the number of further ones and of the members; no kind is told twice."""
    events = [
        line("partitions_lost", 3, 2, partitions=[["orders", 1]]),
        line("member_fenced", 3, 2.1, error="UNKNOWN_MEMBER_ID", epoch=4),
        line("rebalance_started", 1, 2.2, epoch=5, reason="a new assignment"),
        line("rebalance_started", 2, 2.3, epoch=5, reason="a new assignment"),
        line("group_joined", 3, 2.4, epoch=6),
        line("group_joined", 3, 2.5, epoch=7),
    ]
    told = [moment.text for moment in sorted(notable(events, "arm=mine consume"))]
    assert told == [
        "first error: member 3 lost orders/1, which another member may own already",
        "member 3 was excluded from the group at epoch 4: UNKNOWN_MEMBER_ID",
        "member 1 began to rebalance at epoch 5: a new assignment (2 times by 2 members, the last at 2.300 s)",
        "member 3 joined the group at epoch 6 (2 times, the last at 2.500 s)",
    ]
