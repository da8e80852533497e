"""Suspect intervals of the load generator: which there are, whom they concern, and what becomes of a check."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.checks.doubts import SUSPECTS_MAX, Doubts, HarnessCheck, left_out, settled, suspects_of
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts
from aftershock.results.slo import Side
from aftershock.tests.unit.results.checks.slo.stage import A, B, S, Stage, client

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE
CLIENTS = (client("a"), client("b"))


def stalled(start_us: int, late_us: int, arm: str | None = "a", op: str = "produce", **more: Any) -> dict[str, Any]:
    who = {"workload": "orders", "arm": arm, "op": op, "worker": f"orders-{arm}-{op}"} if arm else {"arm": None}
    times = {"t_us": start_us, "since_us": start_us, "until_us": start_us + 50_000 + late_us, "late_us": late_us}
    return {"event": "stalled"} | who | times | {"suspended_us": 0, "stepped_us": 0, "stolen": 0.0} | more


def run_with(*events: dict[str, Any], journal: tuple[dict[str, Any], ...] = ()) -> Evidence:
    return replace(Stage().evidence(), events=events, journal=journal)


@pytest.mark.parametrize(
    ("event", "cause", "key"),
    [
        (stalled(15 * S, 900_000), "the process was stopped or got no CPU", A),
        (stalled(15 * S, 900_000, arm=None), "the process was stopped or got no CPU", None),
        (stalled(15 * S, 0, suspended_us=60 * S), "the host was suspended", None),
        (stalled(15 * S, 900_000, stepped_us=-900_000), "the virtual machine was paused", None),
        (stalled(15 * S, 900_000, stolen=0.1), "the virtual machine was paused", None),
        (stalled(15 * S, 900_000, stolen=0.09), "the process was stopped or got no CPU", A),
    ],
)
def test_a_stall_has_a_cause_and_concerns_a_client_or_all(event: dict[str, Any], cause: str, key: str | None) -> None:
    (suspect,) = suspects_of(run_with(event))
    assert (cause, key) == (suspect.cause, suspect.client)
    assert suspect.stalled_us == max(event["late_us"], event["suspended_us"])


def test_a_stall_concerns_its_client_and_the_readers_of_its_records() -> None:
    """A client needs as long as it stood still to catch up; a fault of the plan is no suspect."""
    span = ((15 * S, 15 * S + 1_850_000),)
    times = left_out(run_with(stalled(15 * S, 900_000)))
    assert times == {("produce", A): span, ("consume", A): span, ("consume", B): span}
    assert left_out(run_with(stalled(15 * S, 900_000, op="consume"))) == {("consume", A): span}
    assert len(left_out(run_with(stalled(15 * S, 900_000, arm=None)))) == 6
    undo = {"verb": "resume_clients", "args": {}}
    targets = {"clients": ["orders-a-produce"]}
    line = {"fault": "kill-1", "state": "injecting", "t_us": 15 * S, "targets": targets, "undo": undo}
    journal = (line, line | {"state": "healed", "t_us": 16 * S})
    assert left_out(run_with(stalled(15 * S, 900_000), journal=journal)) == {}
    assert left_out(run_with(stalled(17 * S, 900_000), journal=journal)) != {}


def test_of_very_many_stalls_the_longest_count() -> None:
    events = [stalled(index * 100_000, 50_000 + index) for index in range(SUSPECTS_MAX + 10)]
    assert [one.stalled_us for one in suspects_of(run_with(*events))] == [50_010 + n for n in range(SUSPECTS_MAX)]


CHECK = Check(id="slo/x", kind="slo", subject="a", status=FAIL, n=9, minimum=1, unit="ms", why="it was slow")
SLOW = (HarnessCheck(replace(CHECK, id="harness/host", status=OPEN, why="it starved")),)


@pytest.mark.parametrize(
    ("late_us", "status", "again", "doubts", "expected", "why"),
    [
        (900_000, FAIL, OPEN, {}, OPEN, "orders-a-produce stood still for 0.90 s from 15.0 s (the process was stopped"),
        (900_000, FAIL, PASS, {}, OPEN, "orders-a-produce stood still for 0.90 s from 15.0 s (the process was stopped"),
        (900_000, FAIL, FAIL, {}, FAIL, "it was slow; the same without suspect times"),
        (900_000, FAIL, FAIL, {"harness": SLOW}, FAIL, "it was slow; the same without suspect times"),
        (
            900_000,
            FAIL,
            FAIL,
            {"harness": SLOW, "harness_again": SLOW},
            OPEN,
            "harness/host: it starved; measured: it was",
        ),
        (900_000, FAIL, None, {}, OPEN, "orders-a-produce stood still"),
        (0, FAIL, None, {}, FAIL, "it was slow"),
        (0, FAIL, None, {"harness": SLOW}, OPEN, "harness/host: it starved; measured: it was"),
        (900_000, PASS, None, {}, OPEN, "orders-a-produce stood still for 0.90 s from 15.0 s (the process was stopped"),
        (449_999, PASS, None, {}, PASS, "it was slow"),
        (900_000, OPEN, None, {}, OPEN, "it was slow"),
    ],
)
def test_a_check_fails_only_if_it_also_fails_without_suspect_times(
    late_us: int, status: Status, again: Status | None, doubts: dict[str, Any], expected: Status, why: str
) -> None:
    """The steady phase lasts 10 s, of which 5 % are 0.5 s; a stall includes the period of the timer, 50 ms."""
    evidence = run_with(stalled(15 * S, late_us))
    facts = None if again is None else Facts()
    doubt = Doubts(suspects=suspects_of(evidence), again=facts, **doubts)
    check = replace(CHECK, status=status)
    second = replace(CHECK, status=again or FAIL)
    result = settled(check, lambda _: second, evidence, doubt, [("produce", CLIENTS[0])], ("steady",))
    assert result.status is expected
    assert result.why.startswith(why)


LAGGED = replace(CHECK, id="harness/generator", status=OPEN, why="it lagged")


@pytest.mark.parametrize(
    ("lane", "arm", "lanes", "drift", "expected"),
    [
        ("produce", 0, (("produce", A),), False, OPEN),
        ("produce", 1, (("produce", A),), False, FAIL),  # another client
        ("consume", 1, (("produce", A),), False, OPEN),  # a reader of its records
        ("produce", 0, (("consume", A),), False, FAIL),  # another side
        ("produce", 1, None, False, OPEN),  # the host
        ("produce", 0, (("produce", A),), True, FAIL),  # no latency, so a drift of latencies is no reason
    ],
)
def test_a_check_of_the_harness_concerns_its_client_and_the_readers(
    lane: Side, arm: int, lanes: tuple[tuple[str, str], ...] | None, drift: bool, expected: Status
) -> None:
    doubts = Doubts(harness=[HarnessCheck(LAGGED, lanes, of_latency=drift)])
    evidence, own = run_with(), [(lane, CLIENTS[arm])]
    check = settled(CHECK, lambda _: CHECK, evidence, doubts, own, ("steady",))
    assert check.status is expected
    assert (check.why == "harness/generator: it lagged; measured: it was slow") == (expected is OPEN)
    of_latency = settled(CHECK, lambda _: CHECK, evidence, doubts, own, ("steady",), of_latency=True)
    assert of_latency.status is (OPEN if drift else expected)


def test_stalls_of_others_and_outside_the_window_do_not_matter() -> None:
    evidence = run_with(stalled(15 * S, 2 * S))
    doubt = Doubts(suspects=suspects_of(evidence))
    for arm, window, expected in ((0, "steady", OPEN), (1, "steady", PASS), (0, "recovery", PASS)):
        lanes = [("produce", CLIENTS[arm])]
        check = settled(replace(CHECK, status=PASS), lambda _: CHECK, evidence, doubt, lanes, (window,))  # type: ignore[arg-type]
        assert check.status is expected
