"""KIP-227, the client's half: the effect of every response, row by row. For the requests see
test_fetch_session_requests.py.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

import pytest

from aftershock.workloads.kafka.rules.fetch_session import (
    EPOCH_MAX,
    FetchPartition,
    FetchRequestPlan,
    FetchSession,
    SessionEvent,
    SessionVerdict,
    next_epoch,
)
from aftershock.workloads.kafka.rules.values import TopicPartition

ORDERS, PAYMENTS = UUID(int=1), UUID(int=3)
A, B, C, D = (TopicPartition("orders", index) for index in range(4))
STRANGER = TopicPartition("strangers", 0)

Wanted = Mapping[TopicPartition, FetchPartition]


def at(offset: int) -> FetchPartition:
    return FetchPartition(ORDERS, offset, 1_048_576, leader_epoch=3)


WANTED = {A: at(0), B: at(0), C: at(0)}


def opened(wanted: Wanted = WANTED, session_id: int = 7) -> FetchSession:
    """Return a session granted by the broker, before its first incremental request."""
    session = FetchSession()
    session.build(wanted)
    verdict = session.on_response(error=0, session_id=session_id, partitions=list(wanted))
    assert verdict.accepted
    return session


def incremental(
    session: FetchSession, *partitions: TopicPartition, error: int = 0, session_id: int = 7
) -> SessionVerdict:
    return session.on_response(error=error, session_id=session_id, partitions=partitions)


def test_the_first_request_is_full_and_asks_for_a_session() -> None:
    """(0, 0): every partition, in the wanted order, in which the broker serves them."""
    session = FetchSession()
    plan = session.build({C: at(5), A: at(1), B: at(3)})
    assert (0, 0, True) == (plan.session_id, plan.epoch, plan.full)
    assert [(C, at(5)), (A, at(1)), (B, at(3))] == list(plan.send.items())
    assert () == plan.to_forget(16)


FULL_ANSWERS: dict[str, tuple[dict[str, object], SessionVerdict, tuple[int, int]]] = {
    "a session is granted": (
        {"session_id": 7, "partitions": (A, B, C)},
        SessionVerdict(True, SessionEvent.ESTABLISHED),
        (7, 1),
    ),
    "none is granted: the cache is full": (
        {"session_id": 0, "partitions": (C, B, A)},
        SessionVerdict(True, SessionEvent.REFUSED),
        (0, 0),
    ),
    "empty and throttled (KIP-219)": (
        {"session_id": 0, "partitions": (), "throttle_ms": 250},
        SessionVerdict(False),
        (0, 0),
    ),
    "empty without being throttled": (
        {"session_id": 0, "partitions": ()},
        SessionVerdict(False, problem="3 missing"),
        (0, 0),
    ),
    "a partition is missing, throttled or not": (
        {"session_id": 7, "partitions": (A, B), "throttle_ms": 250},
        SessionVerdict(False, problem="1 missing"),
        (0, 0),
    ),
    "a partition too many": (
        {"session_id": 7, "partitions": (A, B, C, D)},
        SessionVerdict(False, problem="1 extra"),
        (0, 0),
    ),
    "another partition instead": (
        {"session_id": 7, "partitions": (A, B, D)},
        SessionVerdict(False, problem="1 missing, 1 extra"),
        (0, 0),
    ),
    "a topic id that nobody asked for": (
        {"session_id": 7, "partitions": (A, B, C), "unknown_topic_ids": (PAYMENTS,)},
        SessionVerdict(False, problem="1 unknown"),
        (0, 0),
    ),
    "no such session, though none was named": (
        {"session_id": 0, "partitions": (), "error": 70},
        SessionVerdict(False),
        (0, 0),
    ),
    "a top-level error": (
        {"session_id": 0, "partitions": (), "error": 3},
        SessionVerdict(False),
        (0, 0),
    ),
}


@pytest.mark.parametrize(("answer", "verdict", "following"), FULL_ANSWERS.values(), ids=FULL_ANSWERS)
def test_answers_to_a_full_request(
    answer: dict[str, object], verdict: SessionVerdict, following: tuple[int, int]
) -> None:
    """Accepted records, events, and (id, epoch) of the next request."""
    session = FetchSession()
    session.build(WANTED)
    assert verdict == session.on_response(**({"error": 0} | answer))  # type: ignore[arg-type]
    assert following == (session.session_id, session.epoch)


INCREMENTAL_ANSWERS: dict[str, tuple[dict[str, object], SessionVerdict, tuple[int, int]]] = {
    "goes on": ({"session_id": 7, "partitions": (B,)}, SessionVerdict(True), (7, 2)),
    "nothing new": ({"session_id": 7, "partitions": ()}, SessionVerdict(True), (7, 2)),
    "throttled: an empty answer is an ordinary one": (
        {"session_id": 7, "partitions": (), "throttle_ms": 250},
        SessionVerdict(True),
        (7, 2),
    ),
    "closed by the broker": (
        {"session_id": 0, "partitions": (B,)},
        SessionVerdict(True, SessionEvent.CLOSED),
        (0, 0),
    ),
    "a partition that is not in the session": (
        {"session_id": 7, "partitions": (A, STRANGER)},
        SessionVerdict(False, SessionEvent.RESET, problem="1 extra"),
        (7, 0),
    ),
    "a topic id that is not in the session": (
        {"session_id": 7, "partitions": (A,), "unknown_topic_ids": (PAYMENTS,)},
        SessionVerdict(False, SessionEvent.RESET, problem="1 unknown"),
        (7, 0),
    ),
    "FETCH_SESSION_ID_NOT_FOUND": (
        {"error": 70, "session_id": 0, "partitions": ()},
        SessionVerdict(False, SessionEvent.LOST),
        (0, 0),
    ),
    "INVALID_FETCH_SESSION_EPOCH": (
        {"error": 71, "session_id": 7, "partitions": ()},
        SessionVerdict(False, SessionEvent.RESET),
        (7, 0),
    ),
    "FETCH_SESSION_TOPIC_ID_ERROR": (
        {"error": 106, "session_id": 0, "partitions": ()},
        SessionVerdict(False, SessionEvent.RESET, refresh_metadata=True),
        (7, 0),
    ),
    "any other error": (
        {"error": -1, "session_id": 0, "partitions": ()},
        SessionVerdict(False, SessionEvent.RESET),
        (7, 0),
    ),
}


@pytest.mark.parametrize(("answer", "verdict", "following"), INCREMENTAL_ANSWERS.values(), ids=INCREMENTAL_ANSWERS)
def test_answers_to_an_incremental_request(
    answer: dict[str, object], verdict: SessionVerdict, following: tuple[int, int]
) -> None:
    """Accepted records, events, and (id, epoch) of the next request."""
    session = opened()
    session.build(WANTED)
    assert verdict == session.on_response(**({"error": 0} | answer))  # type: ignore[arg-type]
    assert following == (session.session_id, session.epoch)


def test_a_failed_request_closes_the_session_and_asks_for_another() -> None:
    """No response: (id, 0), full again; all partitions of the session are returned, so that their leases are
    cleared.
    """
    session = opened()
    session.build({A: at(0), B: at(9)})
    assert (A, B) == session.on_failure()
    plan = session.build({B: at(9)})
    assert FetchRequestPlan(7, 0, {B: at(9)}) == plan


def test_failures_add_up_to_one_reset() -> None:
    """The session is named until a full request succeeds, and is counted as reset once."""
    session = opened()
    for _ in range(3):
        session.build(WANTED)
        session.on_failure()
    assert (7, 0) == (session.session_id, session.epoch)
    assert {
        "fetches_full": 3,
        "fetches_incremental": 1,
        "sessions_established": 1,
        "sessions_reset": 1,
    } == session.counts


@pytest.mark.parametrize(
    ("epoch", "following"), [(0, 1), (1, 2), (EPOCH_MAX - 1, EPOCH_MAX), (EPOCH_MAX, 1), (2**31 - 1, 1)]
)
def test_epochs_wrap_to_one(epoch: int, following: int) -> None:
    """After the largest 32-bit number comes 1: 0 would make the request a full one."""
    assert following == next_epoch(epoch)


def test_a_session_survives_the_wrap() -> None:
    """Requests stay incremental and name the same session."""
    session = opened()
    session.epoch = EPOCH_MAX
    assert (7, EPOCH_MAX, False) == _head(session.build(WANTED))
    incremental(session)
    assert (7, 1, False) == _head(session.build(WANTED))


def _head(plan: FetchRequestPlan) -> tuple[int, int, bool]:
    return plan.session_id, plan.epoch, plan.full


def test_closing_names_the_session_with_the_final_epoch() -> None:
    """(id, -1) without partitions; afterwards there is no session, and a second close sends no request."""
    session = opened()
    assert FetchRequestPlan(7, -1, {}) == session.close()
    assert session.close() is None
    assert {"fetches_full": 1, "sessions_established": 1, "sessions_closed": 1} == session.counts
    assert (0, 0, True) == _head(session.build(WANTED))


@pytest.mark.parametrize("begin", [lambda _: None, lambda session: session.build(WANTED)])
def test_closing_without_a_session_sends_nothing(begin: Callable[[FetchSession], object]) -> None:
    session = FetchSession()
    begin(session)
    assert session.close() is None


def test_closing_ends_a_session_that_was_to_be_reset() -> None:
    """After a failure the broker may still have the session."""
    session = opened()
    session.build(WANTED)
    session.on_failure()
    assert FetchRequestPlan(7, -1, {}) == session.close()


def test_a_response_with_another_session_id_is_accepted() -> None:
    """Kafka compares the id of an incremental response with 0 only; so does this client."""
    session = opened()
    session.build(WANTED)
    assert incremental(session, session_id=8).accepted
    assert (7, 2) == (session.session_id, session.epoch)


# ---- the switch


def history(session: FetchSession) -> None:
    """Run successful fetches, a failed one and one with a session error, for any session."""
    for step, wanted in enumerate([WANTED, WANTED, {A: at(5), B: at(0)}, WANTED, WANTED]):
        plan = session.build(wanted)
        if step == 2:
            session.on_failure()
        elif step == 3:
            session.on_response(error=0, session_id=9, partitions=(STRANGER,))
        else:
            session.on_response(error=0, session_id=7 if plan.epoch >= 0 else 0, partitions=list(plan.send))


def test_without_sessions_every_request_is_full() -> None:
    """The ablation sends (0, -1) with all partitions, and ignores every session id in responses."""
    session = FetchSession(enabled=False)
    for answered in (lambda: session.on_response(error=0, session_id=9, partitions=list(WANTED)), session.on_failure):
        plan = session.build(WANTED)
        assert (0, -1, True, WANTED) == (*_head(plan), plan.send)
        answered()
    assert session.close() is None


def test_the_switch_changes_session_counters_only() -> None:
    """Off: the same requests, all full, no session counted; all other counters are equal."""
    on, off = FetchSession(), FetchSession(enabled=False)
    history(on)
    history(off)
    assert {
        "fetches_full": 3,
        "fetches_incremental": 2,
        "sessions_established": 2,
        "sessions_reset": 1,
        "fetch_responses_discarded": 1,
    } == on.counts
    assert {"fetches_full": 5, "fetch_responses_discarded": 1} == off.counts
