"""KIP-227, the client's half: content and order of incremental requests."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftershock.workloads.kafka.rules.fetch_session import FetchPartition, FetchRequestPlan, FetchSession
from aftershock.workloads.kafka.rules.values import TopicPartition

ORDERS, REORDERED, PAYMENTS = UUID(int=1), UUID(int=2), UUID(int=3)
A, B, C, D = (TopicPartition("orders", index) for index in range(4))

Wanted = Mapping[TopicPartition, FetchPartition]


def at(offset: int, topic_id: UUID | None = ORDERS) -> FetchPartition:
    return FetchPartition(topic_id, offset, 1_048_576, leader_epoch=3)


WANTED = {A: at(0), B: at(0), C: at(0)}


def opened(wanted: Wanted = WANTED) -> FetchSession:
    """Return a session granted by the broker, before its first incremental request."""
    session = FetchSession()
    session.build(wanted)
    assert session.on_response(error=0, session_id=7, partitions=list(wanted)).accepted
    return session


def answer(session: FetchSession) -> None:
    """Apply an empty response: the session continues."""
    assert session.on_response(error=0, session_id=7, partitions=()).accepted


def test_unchanged_partitions_are_left_out() -> None:
    """Equal values count as unchanged, although they are other objects."""
    session = opened()
    plan = session.build({A: at(0), B: at(0), C: at(0)})
    assert FetchRequestPlan(7, 1, {}) == plan
    assert [A, B, C] == list(session.partitions)


@pytest.mark.parametrize("changed", ["fetch_offset", "max_bytes", "leader_epoch"])
def test_any_change_is_sent(changed: str) -> None:
    """Every field of a partition counts as a change, and is remembered: the next request leaves it out again."""
    session = opened()
    wanted = WANTED | {B: at(0)._replace(**{changed: 11})}  # type: ignore[arg-type]
    assert {B: wanted[B]} == session.build(wanted).send
    answer(session)
    assert {} == session.build(wanted).send


def test_the_order_of_an_incremental_request() -> None:
    """New partitions come first, as wanted; then the changed ones, in session order. The session has the new ones
    last.
    """
    session = opened()
    new = TopicPartition("payments", 0)
    plan = session.build({new: at(0, PAYMENTS), C: at(4), D: at(0), B: at(0), A: at(1)})
    assert [new, D, A, C] == list(plan.send)
    assert [A, B, C, new, D] == list(session.partitions)


def test_dropped_partitions_are_forgotten() -> None:
    """Named once among the forgotten; wanted again, the partition is new, and last."""
    session = opened()
    assert ((B, ORDERS),) == session.build({A: at(0), C: at(0)}).to_forget(16)
    answer(session)
    plan = session.build(WANTED)
    assert ({B: at(0)}, ()) == (plan.send, plan.to_forget(16))
    assert [A, C, B] == list(session.partitions)


@pytest.mark.parametrize(
    ("version", "dropped"), [(12, ()), (13, ((A, ORDERS), (B, ORDERS))), (16, ((A, ORDERS), (B, ORDERS)))]
)
def test_a_topic_created_anew_replaces_its_old_id(version: int, dropped: tuple[object, ...]) -> None:
    """Same name, other id: sent under the new id, and the old one dropped, in versions with ids."""
    session = opened({A: at(5), B: at(5), C: at(0, None)._replace(topic_id=ORDERS)})
    plan = session.build({A: at(0, REORDERED), B: at(0, REORDERED), C: at(0)})
    assert ([A, B], dropped) == (list(plan.send), plan.to_forget(version))
    assert {ORDERS: "orders", REORDERED: "orders"} == session.topic_names


def test_a_topic_id_that_becomes_known_is_a_change_not_a_replacement() -> None:
    """There is no old id to drop; ids are used from then on."""
    session = opened({A: at(0, None)})
    plan = session.build({A: at(0)})
    assert ({A: at(0)}, (), True) == (plan.send, plan.replaced, plan.topic_ids)
    assert {ORDERS: "orders"} == session.topic_names


@pytest.mark.parametrize(
    ("first", "then", "usable"),
    [
        ({A: at(0)}, {A: at(1)}, True),
        ({A: at(0)}, {A: at(1), B: at(0, None)}, False),
        ({A: at(0), B: at(0, None)}, {A: at(0), B: at(0, None)}, False),
        ({A: at(0), B: at(0, None)}, {A: at(0)}, False),
        ({A: at(0), B: at(0)}, {A: at(0)}, True),
        ({}, {}, True),
    ],
)
def test_topic_ids_are_used_when_all_are_known(first: Wanted, then: Wanted, usable: bool) -> None:
    """One partition without an id, wanted or being dropped, keeps the whole request at names (version 12)."""
    session = opened(first)
    assert usable == session.build(then).topic_ids


def test_the_names_of_ids_follow_the_session() -> None:
    """Responses are read by these names: a topic's name stays as long as one of its partitions does."""
    payment = TopicPartition("payments", 0)
    session = opened({A: at(0), B: at(0), payment: at(0, PAYMENTS)})
    session.build({A: at(0), payment: at(0, PAYMENTS)})
    assert {ORDERS: "orders", PAYMENTS: "payments"} == session.topic_names
    answer(session)
    session.build({A: at(0)})
    assert {ORDERS: "orders"} == session.topic_names


# ---- against an independent model

IDS = {"orders": (ORDERS, REORDERED, None), "payments": (PAYMENTS, UUID(int=4), None)}
partitions = st.sampled_from([A, B, C, D, TopicPartition("payments", 0), TopicPartition("payments", 1)])


@st.composite
def wishes(draw: st.DrawFn) -> dict[TopicPartition, FetchPartition]:
    """Draw partitions in any order, each topic under its first id, its second or none."""
    wanted = draw(st.lists(partitions, unique=True))
    return {tp: at(draw(st.integers(0, 2)), draw(st.sampled_from(IDS[tp.topic]))) for tp in wanted}


def requeued(session: dict[TopicPartition, FetchPartition], wanted: Wanted) -> dict[TopicPartition, FetchPartition]:
    """Return the request of Kafka's builder: changed partitions move from the wanted list to its end, one by one."""
    queue = dict(wanted)
    for tp in list(session):
        new = queue.pop(tp, None)
        if new is None:
            del session[tp]
        elif new != session[tp]:
            session[tp] = queue[tp] = new
    session.update({tp: new for tp, new in queue.items() if tp not in session})
    return queue


@settings(max_examples=150, deadline=None)
@given(st.lists(wishes(), min_size=2, max_size=8))
def test_requests_equal_the_builder_that_requeues(wanted: list[dict[TopicPartition, FetchPartition]]) -> None:
    """Over any history of wanted partitions: the same partitions in the same order, and the same session."""
    session, model = opened(wanted[0]), dict(wanted[0])
    for wish in wanted[1:]:
        before = dict(model)
        plan = session.build(wish)
        answer(session)
        assert list(requeued(model, wish).items()) == list(plan.send.items())
        assert list(model.items()) == list(session.partitions.items())
        assert {tp: before[tp].topic_id for tp in before if tp not in wish} == dict(plan.forgotten)
        if plan.topic_ids:
            assert {asked.topic_id: tp.topic for tp, asked in wish.items()} == session.topic_names
