"""SLO checks: recoveries, doubts, gates, check ids, and the measurements that SLOs request."""

from dataclasses import replace

import pytest

from aftershock.errors import EvidenceError
from aftershock.results.checks.doubts import HarnessCheck
from aftershock.results.checks.slo.checks import wanted
from aftershock.results.model.check import Check, Status, Verdict, from_json
from aftershock.results.model.facts import Cut, Recovered, RecoveryCriterion
from aftershock.results.report.verdict_formats import summary
from aftershock.tests.unit.results.checks.slo.stage import A, B, S, Stage, latencies

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE


@pytest.mark.parametrize(
    ("recovered_us", "observed_us", "status"),
    [
        (4_999_999, 20 * S, PASS),
        (5_000_000, 20 * S, FAIL),
        (None, 5_000_000, FAIL),
        (None, 4_999_999, OPEN),
    ],
)
def test_recovery_fails_only_after_enough_load(recovered_us: int | None, observed_us: int, status: Status) -> None:
    """A missing recovery fails only if the load went on for long enough afterwards."""
    stage = Stage(recoveries={("kill-1", A): Recovered(100, recovered_us, observed_us)})
    stage.latency(latencies(200, 1), "steady")
    check = stage.check("recovery < 5s after kill-1")
    assert (status, "fault/kill-1", 200) == (check.status, check.phase, check.n)


def test_a_recovery_with_own_terms_uses_its_own_measurement() -> None:
    """The default calm period is not used, and without a steady quantile the check is INCONCLUSIVE."""
    text = "recovery (p99 <= 3 * steady for 5s) < 5s after kill-1"
    usual = {("kill-1", A): Recovered(100, S, 20 * S)}
    assert Stage(recoveries=usual).check(text).status is OPEN
    own = {(RecoveryCriterion("kill-1", 0.99, 3.0, 5 * S), A): Recovered(100, S, 20 * S)}
    assert Stage(calms=own).check(text).status is PASS


def test_the_slowest_recovery_of_all_rounds_counts() -> None:
    """`after kill` means every round and block of the fault; faster recoveries do not hide a slow or missing one."""
    rounds = ["kill@1", "kill@2", "kill@3"]
    quick, slow, lost = Recovered(9, S, 20 * S), Recovered(9, 6 * S, 20 * S), Recovered(9, None, S)
    for third, status in ((quick, PASS), (slow, FAIL), (lost, OPEN)):
        recoveries = dict(zip(((fault, A) for fault in rounds), (quick, quick, third), strict=True))
        check = Stage(steps=rounds, recoveries=recoveries).check("recovery < 5s after kill")
        assert (status, check.why.startswith("none of 3" if status is not FAIL else "1 of 3")) == (check.status, True)
    assert "of kill@3" in check.why


def test_the_plans_advice_is_for_violations() -> None:
    """A violated SLO has the plan's own advice instead of the usual one; a kept SLO has none."""
    stage = Stage()
    stage.latency(latencies(1000, 10_000))
    stage.latency(latencies(1000, 10_000), client=B)
    texts = ("produce.latency p99 < 5ms in fault", "produce.latency p99 < 50ms in fault")
    checks = stage.checks(*texts, advice="raise linger")
    assert [(FAIL, "raise linger"), (FAIL, "raise linger"), (PASS, None), (PASS, None)] == [
        (check.status, check.next) for check in checks
    ]


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("produce.latency p99 < 1ms in fault/kill-1", True),
        ("produce.latency p99 < 1ms in fault", True),
        ("produce.latency p99 < 1ms", True),
        ("produce.latency p99 < 1ms in steady", False),
        ("produce.latency p99 in steady <= 2 * p99 in fault", True),
        ("recovery < 1s after kill-1", True),
    ],
)
def test_an_unproven_fault_makes_slos_of_its_window_inconclusive(text: str, reads: bool) -> None:
    """This also holds if the fault's window is only the window compared with."""
    check = Stage(unproven={"kill-1": "witness/kill-1: no"}).check(text)
    assert reads == check.why.startswith("fault kill-1 is unproven (witness/kill-1: no)")


def test_a_lagging_harness_makes_failures_inconclusive() -> None:
    """A lagging harness can only increase latencies, so an SLO that passes still passes."""
    late = Check("harness/generator", "harness", "run", OPEN, 1, 1, "ms", "late")
    stage = Stage(harness=[HarnessCheck(late)])
    stage.latency(latencies(1000, 5_000))
    assert [PASS, OPEN] == [stage.check(f"produce.latency p99 < {limit} in fault").status for limit in ("6ms", "5ms")]


def test_report_only_slos_do_not_affect_the_verdict() -> None:
    """An SLO with `gate: report` fails as a check, but the verdict is the worst of the other checks."""
    stage = Stage()
    stage.latency(latencies(1000, 5_000))
    stage.latency(latencies(1000, 5_000), client=B)
    watched = stage.checks("produce.latency p99 < 5ms in fault", gate=False)
    gating = stage.checks("produce.latency p99 < 6ms in fault")
    assert ([FAIL, FAIL], [False, False]) == ([each.status for each in watched], [each.gate for each in watched])
    verdict = Verdict("r", "p", 7, ("a", "b"), (*watched, *gating))
    assert (PASS, 0, tuple(gating)) == (verdict.status, verdict.exit_code, verdict.gating)
    assert replace(verdict, checks=tuple(watched)).status is OPEN


def test_equal_check_ids_are_numbered() -> None:
    """The second check of the same id and subject gets a number; checks are identified by id and subject."""
    texts = ("produce.latency p95 < 50ms in steady", "produce.latency p95 < 1ms in steady")
    ids = [check.id for check in Stage().checks(*texts)]
    assert ids == ["slo/produce.latency-p95-steady"] * 2 + ["slo/produce.latency-p95-steady-2"] * 2


def test_slos_request_their_measurements_once() -> None:
    """Every quantile, band, cut and calm period is requested once; default measurements are not requested."""
    evidence = Stage(steps=["kill@1", "kill@2"]).evidence(
        "produce.latency p99.9 < 1s",
        "produce.latency p50 in fault <= 2 * p90 in steady for each rack with 99% confidence",
        "produce.success >= 99% for each partition",
        "produce.gap < 5s in every 10s of run",
        "consume.lag max < 5 in recovery",
        "produce.unavailable < 5s for each partition",
        "p99(a) <= 0.5 * p99(b) of produce.latency in fault with 90% confidence",
        "recovery (p90 <= 2.5 * steady for 1s) < 5s after kill",
        "lost == 0",
    )
    asked = wanted(evidence)
    assert (0.5, 0.9, 0.99, 0.999) == asked.qs
    assert (0.9, 0.95, 0.99) == asked.confidences
    assert set(asked.cuts) == {
        Cut("produce.latency", "fault", "rack"),
        Cut("produce.latency", "steady", "rack"),
        Cut("produce.latency", "run", "partition"),
        Cut("produce.gap", "run", None, 10 * S),
        Cut("produce.latency", "run", None, 10 * S),
        Cut("produce.latency", "fault", "block"),
    }
    assert asked.recoveries == tuple(RecoveryCriterion(fault, 0.9, 2.5, S) for fault in ("kill@1", "kill@2"))


def test_an_invalid_slo_in_a_timeline_is_an_evidence_error() -> None:
    """The error names the timeline file before any measurement."""
    with pytest.raises(EvidenceError, match=r"timeline\.json: an SLO can't be parsed"):
        wanted(Stage().evidence("produce.latency p95 < 5"))


LASTING = Recovered(
    100, 6_400_000, 12 * S, definition=2, limit_us=100_000, heal_us=6 * S, first_calm_us=1_200_000, slow_after=14
)


def test_a_recovery_is_told_with_its_heal_first_calm_and_limit() -> None:
    """A client that was normal only after the heal is a finding, although the SLO holds."""
    check = Stage(recoveries={("kill-1", A): LASTING}).check("recovery < 8s after kill-1")
    assert (check.status, check.observed) == (PASS, 6.4)
    assert check.why == (
        "normal again 6.400 s after inject (not before the heal, 0.400 s after it); first calm 1.200 s; 14 slow "
        "records after it; slow is over 100 ms"
    )
    assert check.finding == check.why
    assert from_json(verdict_of(check).to_json()).checks == (check,)
    printed = " ".join(summary(verdict_of(check)).split())
    assert "Finding: a recovery-kill-1: normal again 6.400 s after inject (not before the heal" in printed


def test_a_recovery_before_the_heal_is_no_finding() -> None:
    """Neither is one from a fault that does not last, or of a run of an older version, whose text says so."""
    for recovered, text in (
        (replace(LASTING, heal_us=7 * S), "normal again 6.400 s after inject (before the heal); first calm"),
        (replace(LASTING, heal_us=None), "normal again 6.400 s after inject; first calm"),
        (
            Recovered(100, 6_400_000, 12 * S),
            "recovered 6.400 s after inject (the first calm, as recovery was defined",
        ),
    ):
        check = Stage(recoveries={("kill-1", A): recovered}).check("recovery < 8s after kill-1")
        assert (check.status, check.finding) == (PASS, "")
        assert check.why.startswith(text)
        assert "finding" not in check.to_json()


@pytest.mark.parametrize(
    ("recovered_us", "heal_us", "before_heal"),
    [
        (6 * S, 6 * S, True),
        (6 * S + 1, 6 * S, False),
        (None, 12 * S, False),
        (None, 12 * S + 1, None),
        (6 * S, None, None),
    ],
)
def test_whether_a_client_needed_the_heal(
    recovered_us: int | None, heal_us: int | None, before_heal: bool | None
) -> None:
    """Of a client that was not normal again in the 12 s observed, nothing is known if the heal began later."""
    assert replace(LASTING, recovered_us=recovered_us, heal_us=heal_us).before_heal is before_heal


def test_the_rounds_that_needed_the_heal_are_counted() -> None:
    rounds = ("kill@1", "kill@2", "kill@3")
    values = (LASTING, replace(LASTING, heal_us=7 * S), replace(LASTING, recovered_us=7 * S))
    recoveries = dict(zip(((fault, A) for fault in rounds), values, strict=True))
    check = Stage(steps=rounds, recoveries=recoveries).check("recovery < 8s after kill")
    assert check.finding.startswith(
        "2 of 3 recoveries came only after the heal; the slowest: normal again 7.000 s after"
    )


def verdict_of(check: Check) -> Verdict:
    return Verdict("r1", "plan", 1, ("a",), (check,))
