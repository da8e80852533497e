"""Repetition of a run: only if the host, and nothing else, left it undecided."""

from dataclasses import replace

import pytest

from aftershock.harness.pytest.verdicts import host_starved
from aftershock.results.model.check import Check, Status, Verdict


def check(name: str, status: Status = Status.PASS, why: str = "seen", n: int = 500) -> Check:
    return Check(name, name.split("/", 1)[0], "all", status, n, 20, "ms", why)


def verdict(*checks: Check) -> Verdict:
    good = (check("slo/produce.gap"), check("integrity/lost"), check("witness/kill-1"))
    return Verdict("run-1", "demo", 7, ("only",), (*good, *checks))


OPEN = Status.INCONCLUSIVE
HOST = check("harness/host", OPEN, "the host was starved: 20 % of ticks late")
DOUBTED = "harness/host: the host was starved; measured: p50 is 30 ms"


@pytest.mark.parametrize(
    "checks",
    [
        (HOST,),
        (check("harness/generator", OPEN, "the load generator lagged its own schedule"),),
        (
            HOST,
            check("slo/produce.latency-p50", OPEN, DOUBTED),
            check("compare/produce.latency-p50-a-b", OPEN, DOUBTED),
        ),
        (HOST, check("harness/warmup", OPEN, "latency did not settle")),
        (HOST, replace(check("slo/produce.gap-2", Status.FAIL), gate=False)),
    ],
    ids=["host", "generator", "what the host left open", "nor did it settle", "what is only watched failed"],
)
def test_a_starved_run_is_repeated(checks: tuple[Check, ...]) -> None:
    """Host checks, generator checks, and checks that are inconclusive because of them."""
    assert host_starved(verdict(*checks))


@pytest.mark.parametrize(
    "checks",
    [
        (),
        (HOST, check("slo/produce.gap-2", Status.FAIL)),
        (HOST, check("integrity/lost", OPEN, "nothing was read")),
        (HOST, check("slo/lost", OPEN, "no record was seen")),
        (HOST, check("witness/kill-2", OPEN, "the container ran on")),
        (HOST, check("slo/recovery-kill-2", OPEN, "kill-2 is unproven; measured: calm after 1 s")),
        (check("harness/warmup", OPEN, "latency did not settle"),),
        (check("harness/host", OPEN, "the host was watched for too short a time", n=3),),
        (HOST, check("harness/complete", OPEN, "the run is interrupted")),
    ],
    ids=[
        "passed",
        "fail",
        "integrity",
        "count",
        "witness",
        "unproven",
        "warm-up alone",
        "hardly watched",
        "unfinished",
    ],
)
def test_other_verdicts_are_not_repeated(checks: tuple[Check, ...]) -> None:
    """For a FAIL, an open count or a fault without witness a repetition would only draw another result."""
    assert not host_starved(verdict(*checks))
