"""What is told of services beside their checks: exits, work after the load, and evidence that is missing."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.checks.integrity import integrity_checks, integrity_results
from aftershock.results.evidence.evidence import Client, Evidence, Pipe
from aftershock.results.evidence.phases import Phase
from aftershock.results.evidence.services import notes_on_services, stood_still_until_us
from aftershock.results.measure.answers import longest
from aftershock.results.model.check import Status
from aftershock.results.model.facts import Facts, Finding, LongestGap
from aftershock.results.tables.dims import Scene
from aftershock.tests.unit.results.evidence_factory import S

# ruff: noqa: E501 -- a sentence that is expected is kept whole

SERVICE = Client(
    *("billing", "svc", (), ()),
    acks_all=True,
    acks="all",
    idempotent=True,
    from_latest=False,
    pipe=Pipe("orders", "billed", "biller", 2, "b", 1, 1, transactional=False),
)
OWN = {"workload": "billing", "arm": "svc", "op": "pipe", "worker": "billing-svc-pipe-1"}


def served(evidence: Evidence, *events: dict[str, Any]) -> Evidence:
    """Return a run with a service and these events of it; the load ends at 60 s."""
    workload = {"name": "billing", "produce": None, "consume": None, "arms": {"svc": {"client": "service"}}}
    timeline = evidence.timeline | {"workloads": [*evidence.timeline["workloads"], workload]}
    return replace(
        evidence,
        timeline=timeline,
        clients=(*evidence.clients, SERVICE),
        phases=(Phase("steady", None, 10 * S, 60 * S),),
        events=(*evidence.events, *(OWN | event for event in events)),
    )


def exited(at_s: int, status: int = 1, line: str = "no space") -> dict[str, Any]:
    return {"t_us": at_s * S, "event": "service_exited", "status": status, "lines": ["trace", line]}


def settled(at_s: int, still_s: int, left: int = 0, *, idle: bool = False) -> dict[str, Any]:
    positions = [["orders", 1, 400, 400 + left]] if left else []
    told = {"idle": idle, "still_us": still_s * S, "commits": True, "positions": positions}
    return {"t_us": at_s * S, "event": "pipe_settled", **told}


STARTED = {"t_us": 30 * S, "event": "service_started", "exits": 1}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ()),
        ([settled(62, 2)], ()),
        (
            [exited(20), STARTED],
            ('ended by itself once (exit status 1), first billing-svc-pipe-1 at 20.0 s; its last line was "no space"; it was started again',),
        ),
        (
            [exited(20), STARTED, exited(40, -9), STARTED, exited(50)],
            ("ended by itself 3 times (2 x exit status 1, signal 9), first billing-svc-pipe-1 at 20.0 s", "it was started again 2 times"),
        ),
        ([settled(92, 30, 12, idle=True)], ("stood still for 30.0 s, with 12 inputs that its group had not committed",)),
        ([settled(75, 2)], ("was done with the last inputs 13.0 s after the load",)),
        ([settled(360, 1, 7)], ("was still at work when the run ended, 7 inputs behind",)),
        (
            [{"t_us": 70 * S, "event": "service_killed", "after_us": 8 * S, "lines": []}],
            ("billing-svc-pipe-1 did not end within 8 s of SIGTERM, and was killed",),
        ),
    ],
)  # fmt: skip
def test_notes(evidence: Evidence, events: list[dict[str, Any]], said: tuple[str, ...]) -> None:
    notes = notes_on_services(served(evidence, *events))
    assert bool(notes) == bool(said)
    assert all(part in notes[0] for part in said)
    assert all(note.startswith("svc: ") for note in notes)


def gap(evidence: Evidence, *events: dict[str, Any], segments: dict[int | None, tuple[int, int, int]]) -> Any:
    """Return the longest gap of the service; ``segments`` has first, last success and longest gap, in s."""
    scene = Scene(served(evidence, *events))
    rows = [
        {"metric": "pipe.gap", "client": SERVICE.key, "segment": number, "n": 9}
        | dict(zip(("first_us", "last_us", "gap_us"), (at_s * S for at_s in row), strict=True))
        for number, row in segments.items()
    ]
    spread: Any = {("pipe.latency", SERVICE.key, "run"): None}
    return longest(rows, {}, scene, spread)["pipe.gap", SERVICE.key, "run"]


@pytest.mark.parametrize(
    ("events", "segments", "longest_s", "n"),
    [
        ([settled(62, 2)], {0: (10, 58, 3)}, 3, 9),  # its ends count
        ([settled(82, 2)], {0: (10, 50, 3), None: (78, 80, 1)}, 28, 9),  # it went on after the load
        ([settled(90, 2)], {0: (10, 58, 3), None: (61, 88, 25)}, 25, 9),  # and stood still then
        ([settled(90, 30, 5, idle=True)], {0: (10, 55, 3)}, 35, 9),  # until the end of the run
        ([settled(90, 10, 5, idle=True)], {0: (10, 59, 3), None: (65, 80, 4)}, 10, 9),
        ([settled(90, 80, 5, idle=True)], {}, 80, 0),  # from the beginning
        ([settled(92, 2)], {None: (78, 90, 5)}, 68, 0),
    ],
)
def test_a_gap_of_a_service_lasts_until_its_next_output(
    evidence: Evidence,
    events: list[dict[str, Any]],
    segments: dict[int | None, tuple[int, int, int]],
    longest_s: int,
    n: int,
) -> None:
    """Inputs wait beyond the end of the load, so the run's end does not end the gap."""
    assert LongestGap(n, longest_s * S) == gap(evidence, *events, segments=segments)


def test_a_run_that_outlasts_the_standstill(evidence: Evidence) -> None:
    behind, done = (served(evidence, settled(90, 30, left)) for left in (5, 0))
    assert {SERVICE.key: 90 * S} == stood_still_until_us(behind)
    assert {} == stood_still_until_us(done)


RULES = ("pipe_lost", "pipe_duplicate", "pipe_order")


def statuses(evidence: Evidence, *findings: Finding) -> dict[str, tuple[Status, str, str | None]]:
    of_pipe = [Finding(rule, "pipe", SERVICE.key, 100, 0) for rule in RULES]
    of_pipe += [Finding("pipe_unmarked", "pipe", SERVICE.key, 100, 0)]
    known = {(one.rule, one.side, one.client): one for one in (*of_pipe, *findings)}
    run = served(evidence)
    checks = integrity_checks(run, integrity_results(run, Facts(findings=known)))
    return {
        check.id.removeprefix("integrity/"): (check.status, check.why, check.next)
        for check in checks
        if check.arm == "svc"
    }


@pytest.mark.parametrize("place", ["billed/2", "orders/1"])
def test_a_log_that_lacks_outputs_or_inputs(evidence: Evidence, place: str) -> None:
    """What is missing there is not lost, and no rule about the pipe passes."""
    lost = Finding("pipe_lost", "pipe", SERVICE.key, 100, 7)
    assert Status.FAIL is statuses(evidence, lost)["pipe_lost"][0]
    found = statuses(evidence, lost, Finding("unlogged", "replica", place, 1, 1))
    assert dict.fromkeys(RULES, Status.INCONCLUSIVE) == {rule: found[rule][0] for rule in RULES}
    assert all(f"log/ ends before all replicas of {place}" in found[rule][1] for rule in RULES)


def test_a_log_that_lacks_records_of_another_topic(evidence: Evidence) -> None:
    found = statuses(evidence, Finding("unlogged", "replica", "others/2", 1, 1))
    assert dict.fromkeys(RULES, Status.PASS) == {rule: found[rule][0] for rule in RULES}


def test_outputs_that_are_there_twice_fail_although_others_are_missing(evidence: Evidence) -> None:
    twice = Finding("pipe_duplicate", "pipe", SERVICE.key, 100, 1)
    found = statuses(evidence, twice, Finding("unlogged", "replica", "billed/2", 1, 1))
    assert Status.FAIL is found["pipe_duplicate"][0]


@pytest.mark.parametrize(
    ("outputs", "why", "to_do"),
    [
        (90, "none of the 90 outputs names an input in billed; the first is 3:17", "choose a `mark` that it copies"),
        (0, "there is no output in billed; the first is 3:17", "does the service read orders and write billed?"),
    ],
)
def test_outputs_that_name_no_input(evidence: Evidence, outputs: int, why: str, to_do: str) -> None:
    lost = Finding("pipe_lost", "pipe", SERVICE.key, 100, 100, ((3, 17),))
    unmarked = Finding("pipe_unmarked", "pipe", SERVICE.key, outputs, outputs)
    found = statuses(evidence, lost, unmarked)["pipe_lost"]
    assert Status.INCONCLUSIVE is found[0]
    assert why in found[1]
    assert to_do in str(found[2])
