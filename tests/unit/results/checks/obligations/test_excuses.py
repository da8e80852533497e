"""Stalls that a fault explains, and their twins that it does not. No records are made: the stalls are given."""

from typing import Any

import pytest

from aftershock.results.checks.doubts import NO_DOUBTS, Doubts, HarnessCheck
from aftershock.results.checks.progress import SHARE_MIN, obligation_checks
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Distribution, Facts, Stall
from aftershock.tests.unit.results.checks.obligations.plays import Fault, Play, S, lasting

DEFAULTS: dict[str, object] = {}
"""librdkafka's own settings: 60 s for an answer, 10 s between attempts to connect."""
AT_ONCE_S = 0.1
ALL_LINKS = tuple(f"client_a-k{node}" for node in (1, 2, 3))
ERROR = {"do": "answer_error", "api": "Produce", "error": 19}
SILENT = {"do": "drop_response", "api": "Produce", "connection": "silent", "nth": 1}
LATE_ERRORS = ({"error": 7, "after_ms": 4_000}, {"error": 6}, {}, {"lost": "response"})
"""A script of three answers that fail, one of them four seconds late."""


def judged(
    play: Play, start_s: float, end_s: float, waited_s: float | None = None, side: str = "produce", **doubts: Any
) -> Check:
    """Return the check of one side, in a run whose client as a whole and partition 0 stall between two times."""
    waited_us = round(S * (end_s - start_s if waited_s is None else waited_s))
    stalls = tuple(
        Stall(side, "w/base", place, round(start_s * S), round(end_s * S), waited_us=waited_us) for place in (None, 0)
    )
    known = {(f"{side}.latency", "w/base", "run"): Distribution(n=1000)}
    facts = Facts(distributions=known, stalls=stalls)
    checks = obligation_checks(play.evidence(), facts, Doubts(**doubts) if doubts else NO_DOUBTS)
    (check,) = (each for each in checks if each.id == f"obligation/{side}")
    return check


def tampered(start_s: float, end_s: float, **rule: object) -> Fault:
    return lasting("tamper", start_s, end_s, rule=ERROR | rule)


@pytest.mark.parametrize(
    ("fault", "stall"),
    [
        # a delay loses no request
        (lasting("late", 16, 24, links=ALL_LINKS, delay_ms=100), (24, 44)),
        (lasting("late", 16, 24, links=ALL_LINKS, delay_ms=100), (16, 24)),
        # a delay ends with the last answer that was on its way at the heal
        (lasting("late", 16, 24, links=ALL_LINKS, delay_ms=1_000), (23, 30.5)),
        # a closed connection costs no request time-out
        (lasting("refuse", 16, 24, links=ALL_LINKS), (24, 44)),
        (lasting("kill", 26, 34, brokers=(3,)), (26, 60)),
        (lasting("kill", 26, 90, brokers=(3,)), (26, 52)),
        # the heal of a silent link closes its connections, and a frozen node answers
        (lasting("cut", 16, 24, links=ALL_LINKS), (16, 37)),
        (lasting("pause", 16, 24, brokers=(3,)), (16, 45)),
        # what a protocol fault does ends with it, and one in two errors can't stop a client for half a minute
        (tampered(16, 24), (16, 44)),
        (tampered(16, 60, chances="01" * 8), (20, 55)),
        (tampered(16, 60, do="delay_response", delay_ms=500), (20, 30)),
        (tampered(16, 24, do="drop_response", connection="silent"), (16, 44)),
        # a script excuses its own answers, once, and after the fault only the last of them
        (tampered(16, 60, answers=LATE_ERRORS), (16, 42)),
        (tampered(16, 24, answers=LATE_ERRORS), (23, 41)),
        (tampered(16, 24, answers=LATE_ERRORS * 100), (23, 41)),
        (tampered(16, 60, answers=[{"after_ms": 4_000}] * 2), (16, 31)),
        (tampered(16, 60, do="throttle_response", throttle_ms=1_000), (20, 30)),
        # a client goes on without leader epochs, and without higher ones
        (tampered(16, 60, do="falsify_epochs", api=None, epoch="absent", epochs=[-1]), (20, 30)),
        (tampered(16, 60, do="falsify_epochs", api=None, epoch="frozen", epochs=[0]), (20, 30)),
        (tampered(16, 24, do="falsify_epochs", api=None, epoch="earlier", epochs=[0]), (24, 40)),
        # a client that starts needs an attempt for each dead bootstrap address
        (tampered(16, 60, do="lose_bootstrap", api=None, brokers=[1, 2]), (20, 45)),
        # a fault of another API, client or topic
        (tampered(16, 60, api="Fetch"), (20, 30)),
        (lasting("tamper", 16, 60, rule=ERROR, clients=("w-base-consume",)), (20, 30)),
        (lasting("tamper", 16, 60, rule=ERROR, topics=("other",)), (20, 30)),
        (lasting("tamper", 16, 60, rule=ERROR | {"partition": 9}, topics=("orders",)), (20, 30)),
        # of a fault of unknown effect, half a minute
        (lasting("mystery", 16, 24), (24, 61)),
    ],
)
def test_a_stall_that_its_fault_does_not_explain_fails(fault: Fault, stall: tuple[float, float]) -> None:
    """With librdkafka's own settings, which let it wait longest."""
    assert judged(Play([fault], settings=DEFAULTS), *stall).status is Status.FAIL


@pytest.mark.parametrize(
    ("fault", "stall"),
    [
        (lasting("late", 16, 24, links=ALL_LINKS, delay_ms=1_000), (16, 30)),
        (lasting("late", 16, 24, links=ALL_LINKS, delay_ms=1_000), (23, 29.5)),
        (lasting("refuse", 16, 24, links=ALL_LINKS), (16, 38)),
        (lasting("kill", 26, 34, brokers=(3,)), (26, 39)),
        # an attempt to connect that began while the address disappeared
        (lasting("kill", 26, 90, brokers=(3,)), (26, 43)),
        # no answer from the frozen leader until the request times out, or until the heal
        (lasting("pause", 16, 90, brokers=(3,)), (16, 88)),
        (lasting("cut", 16, 60, links=ALL_LINKS), (16, 64)),
        # a host that vanished closes nothing, not even when it is back
        (lasting("kill", 26, 34, brokers=(3,), silence="beyond heal"), (26, 100)),
        (tampered(16, 24), (16, 29)),
        (tampered(16, 60, chances="01" * 8), (20, 40)),
        (tampered(16, 60, do="delay_response", delay_ms=2_000), (20, 28)),
        (tampered(16, 60, do="delay_response", delay_ms=90_000), (20, 59)),
        (tampered(16, 60, do="drop_response", connection="silent", nth=1), (16, 80)),
        # a silent connection carries the other partitions of its broker, too
        (lasting("half", 16, 60, rule=SILENT | {"partition": 9}, topics=("orders",)), (16, 70)),
        (tampered(16, 60, answers=LATE_ERRORS), (16, 26)),
        (tampered(16, 60, answers=[{"after_ms": 4_000}] * 2), (16, 28)),
        (tampered(16, 60, answers=[{"lost": "response", "connection": "silent"}]), (16, 80)),
        (tampered(16, 60, do="throttle_response", throttle_ms=2_000), (20, 28)),
        (tampered(16, 60, do="lose_bootstrap", api=None, brokers=[1, 2]), (20, 27)),
        (tampered(16, 60, do="lose_bootstrap", api=None, brokers=[1], connection="silent"), (20, 59)),
        # lower epochs than it knows, a client ignores
        (tampered(16, 60, do="falsify_epochs", api=None, epoch="earlier", epochs=[0]), (20, 59)),
        (lasting("mystery", 16, 24), (16, 57)),
    ],
)
def test_a_stall_that_its_fault_explains_does_not_fail(fault: Fault, stall: tuple[float, float]) -> None:
    assert judged(Play([fault], settings=DEFAULTS), *stall).status is not Status.FAIL


@pytest.mark.parametrize(("settings_ms", "failed"), [(60_000, False), (10_000, True)])
def test_a_frozen_leader_excuses_the_request_timeout_of_this_client(settings_ms: int, failed: bool) -> None:
    """The same hang of 30 s, of a client that waits for an answer for a minute, and of one that waits for 10 s."""
    frozen = Play(
        [lasting("pause", 16, 90, brokers=(3,), controller=False)], settings={"socket.timeout.ms": settings_ms}
    )
    assert failed == (judged(frozen, 16, 46).status is Status.FAIL)


def test_every_record_that_fails_at_once_after_the_heal_fails_the_check() -> None:
    """A back-off excuses records that wait for it. The twins: records that wait, and failures while the broker is away
    and too few replicas are left, or no controller can be elected.
    """
    back = Play([lasting("kill", 26, 34, brokers=(3,))], settings=DEFAULTS, end_s=50)
    assert judged(back, 36, 50, AT_ONCE_S).status is Status.FAIL
    assert "no record waited for more than 0.1 s" in judged(back, 36, 50, AT_ONCE_S).why
    assert judged(back, 36, 46).status is not Status.FAIL

    down = Play([lasting("kill", 26, 34, brokers=(2, 3))], settings=DEFAULTS, end_s=50)
    assert judged(down, 26.5, 34, AT_ONCE_S).status is not Status.FAIL
    assert judged(down, 26.5, 44, AT_ONCE_S).status is Status.FAIL


def test_records_of_a_program_that_fail_at_once_after_a_protocol_fault_fail_the_check() -> None:
    """Its settings are unknown, and none explains that; while each request is refused, the failures are explained."""
    play = Play([tampered(16, 24)], settings=DEFAULTS, client="exec")
    assert judged(play, 24, 60, AT_ONCE_S).status is Status.FAIL
    assert judged(play, 16, 24, AT_ONCE_S).status is not Status.FAIL


def test_a_program_may_declare_its_settings() -> None:
    """Under Kafka's or librdkafka's name; otherwise the longest default applies, and only to silent faults."""
    silent = Fault("kill", 26, 26, 34, 34, brokers=(3,), silence="beyond heal")
    for settings, failed in (({}, False), ({"request.timeout.ms": 5_000}, True), ({"socket.timeout.ms": 5_000}, True)):
        assert failed == (judged(Play([silent], settings=settings, client="exec"), 34, 75).status is Status.FAIL)
    refused = lasting("refuse", 26, 34, links=ALL_LINKS)
    assert judged(Play([refused], settings={}, client="exec"), 34, 75).status is Status.FAIL


def test_a_consumer_that_stands_still_in_the_drain_fails() -> None:
    """After the load, nothing is in force. It has more time, because the harness reads from the same brokers."""
    assert judged(Play(end_s=50), 48, 62, side="consume").status is not Status.FAIL
    assert judged(Play(end_s=50), 48, 80, side="consume").status is Status.FAIL
    assert judged(Play(end_s=50), 48, 60).status is Status.FAIL


def test_a_fault_that_was_not_undone_excuses_the_drain_too() -> None:
    kept = Play([Fault("kill", 20, 20, 30, 40, brokers=(2, 3), failed=True)], end_s=50)
    assert judged(kept, 20, 90, side="consume").status is not Status.FAIL


def doubtful(name: str, lanes: tuple[tuple[str, str], ...] | None, *, of_latency: bool = False) -> HarnessCheck:
    check = Check(name, "harness", "run", Status.INCONCLUSIVE, 1, 1, "", "in doubt")
    return HarnessCheck(check, lanes, of_latency)


def test_a_client_that_stands_still_does_not_excuse_itself() -> None:
    """A warm-up that does not settle and a generator that falls behind may be its own fault; a starved host, or rows
    that are missing, are not. A client that was still starting, and then worked, is excused.
    """
    own = (("produce", "w/base"),)
    warmup = doubtful("harness/warmup", None, of_latency=True)
    generator, load = doubtful("harness/generator", own), doubtful("harness/load", own)
    unsettled = Play(warmup={"settled": False})
    assert judged(unsettled, 2, 130, side="consume", harness=(warmup,)).status is Status.FAIL
    assert judged(unsettled, 2, 30, side="consume", harness=(warmup,)).status is not Status.FAIL
    assert judged(Play(), 2, 30, side="consume").status is Status.FAIL
    assert judged(Play(), 20, 60, harness=(generator,)).status is Status.FAIL
    assert judged(Play(), 20, 60, harness=(load,)).status is not Status.FAIL
    assert judged(Play(), 20, 60, harness=(doubtful("harness/host", None),)).status is not Status.FAIL


@pytest.mark.parametrize("strict", [False, True])
def test_too_short_a_time_is_not_passed(strict: bool) -> None:
    """A check that judged little says so, with what would change it; it affects the run only in a strict verdict."""
    lost = Play([lasting("mystery", 20, 110)], settings=DEFAULTS)
    facts = Facts(distributions={("produce.latency", "w/base", "run"): Distribution(n=1000)})
    check = obligation_checks(lost.evidence(), facts, Doubts(strict=strict))[0]
    assert (Status.INCONCLUSIVE, strict) == (check.status, check.gate)
    assert check.share is not None
    assert check.share < SHARE_MIN
    assert check.why.startswith("judged for 8 % of the time after warm-up, where 40 % are needed; ")
    assert check.next == "lengthen timing.steady or timing.recovery by 155 s in all"

    whole = obligation_checks(Play().evidence(), facts, Doubts(strict=strict))[0]
    assert (Status.PASS, True, 1.0) == (whole.status, whole.gate, whole.share)
    assert "progress was required for 100 % of the time after warm-up (120.0 of 120.0 s)" in whole.why
