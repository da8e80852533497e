"""SLOs with `for each` subject and `in every` slot: every subject and slot is judged, and the worst is reported."""

from dataclasses import replace
from typing import Any

import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import NO_OWNER, Distribution, Lag, Outage, Slice
from aftershock.tests.mutated_plans import cpu_limit
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage, client, latencies

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE
TEXT = "produce.latency p99 < 5ms in fault for each partition"


def partitions(*measured: tuple[int, int | None], unknown: int = 0, text: str = TEXT) -> Check:
    """Return the check of partitions 0, 1, … with (n, p99) each."""
    stage = Stage()
    slices = [Slice(f"orders/{number}", None, latencies(n, us)) for number, (n, us) in enumerate(measured)]
    slices += [Slice("unknown", None, Distribution(unknown, unknown, None, {}))] if unknown else []
    stage.cut("produce.latency", "fault", *slices, each="partition")
    return stage.check(text)


def test_all_within_pass() -> None:
    """The check names the partition nearest to the limit, with its own n."""
    check = partitions((1000, 4_000), (1200, 4_999), (1000, 1))
    assert (PASS, "arm=a orders/1", 1200, 4.999) == (check.status, check.subject, check.n, check.observed)
    assert check.why == "none of 3 partitions violate the SLO, worst orders/1: p99 in fault is 4.999 ms"


def test_one_subject_over_the_limit_fails() -> None:
    """One partition of three is 1 us over the limit; a good average does not hide it."""
    check = partitions((1000, 1), (1000, 5_000), (1000, 1))
    assert (FAIL, "arm=a orders/1") == (check.status, check.subject)
    assert check.why.startswith("1 of 3 partitions violate the SLO, worst orders/1: ")


def test_the_worst_failing_subject_is_reported() -> None:
    """A censored partition is worse than any slow partition."""
    assert partitions((1000, 6_000), (1000, 7_000), (1000, 1)).subject == "arm=a orders/1"
    assert partitions((1000, 6_000), (1000, 7_000), (1000, None)).subject == "arm=a orders/2"


def test_a_subject_with_too_few_samples_is_inconclusive() -> None:
    """All other partitions are within the limit, and the check names the partition with too few samples."""
    check = partitions((1000, 1), (800, 1), (999, 1))
    assert (OPEN, "arm=a orders/1", 800) == (check.status, check.subject, check.n)
    assert check.next == "p99 needs 1000 records, saw 800 of orders/1: lengthen the fault to 13s or raise the rate"


def test_a_failing_subject_outweighs_subjects_without_samples() -> None:
    """One partition with enough records exceeds the limit, and the others have almost no records: FAIL."""
    check = partitions((3, 1), (1000, 5_000), (0, None))
    assert (FAIL, "arm=a orders/1") == (check.status, check.subject)


def test_a_partition_without_records_is_judged() -> None:
    """The topic has three partitions and two have records: the third has a reading with n = 0."""
    check = partitions((1000, 1), (1000, 1))
    assert (OPEN, "arm=a orders/2", 0) == (check.status, check.subject, check.n)
    assert (check.why, check.next) == (
        "none of 3 partitions violate the SLO, fewest values in orders/2: no record was observed of orders/2",
        "add traffic for orders/2 in fault",
    )


def test_failures_without_partition_may_belong_to_any_partition() -> None:
    """Four records failed before they had a partition: a pass becomes INCONCLUSIVE, and a failure stays FAIL."""
    check = partitions((1000, 1), (1000, 1), (1000, 1), unknown=4)
    assert (OPEN, "find out why failed records in outcomes/ have no partition") == (check.status, check.next)
    assert check.why.endswith("4 failed records belong to an unknown partition, possibly to this one")
    assert partitions((1000, 1), (1000, 5_000), (1000, 1), unknown=4).status is FAIL


@pytest.mark.parametrize(
    ("text", "status"),
    [("produce.success >= 99%", PASS), ("produce.success >= 99.7%", OPEN), ("produce.budget(99%) <= 40%", PASS)],
)
def test_shares_count_failures_without_partition_in_the_worst_way(text: str, status: Status) -> None:
    """If all four failures belong to one partition of 1000 records, its share is 99.6 %, which decides whether the
    check passes.
    """
    every = [(1000, 1)] * 3
    assert partitions(*every, unknown=4, text=f"{text} in fault for each partition").status is status


def test_producers_without_records_are_judged() -> None:
    """The run lists the producers of an arm; racks and brokers change with the leaders, so only those with records
    count.
    """
    stage = Stage()
    assert stage.check("produce.latency p99 < 5ms for each producer").subject == "arm=a producer=0"
    stage.cut("produce.latency", "run", Slice("rack=b", None, latencies(1000, 1)), each="rack")
    assert stage.check("produce.latency p99 < 5ms for each rack").status is PASS


def test_stalls_of_one_partition_are_its_own() -> None:
    """A stall of the whole side counts for every partition."""
    text = "produce.unavailable < 3s in fault for each partition"
    stage = Stage(unavailable={("produce", A, "fault"): (Outage(1, 3 * S, S, 2), Outage(0, 2 * S, S, 2))})
    stage.latency(Distribution(100, 0, 1, {}))
    parts = [Slice(f"orders/{number}", None, Distribution(30, 0, 1, {})) for number in range(3)]
    stage.cut("produce.latency", "fault", *parts, each="partition")
    check = stage.check(text)
    assert (FAIL, "arm=a orders/1", 3.0) == (check.status, check.subject, check.observed)
    assert check.why.startswith("1 of 3 partitions violate the SLO")
    stage.unavailable["produce", A, "fault"] = (Outage(None, 3 * S, S, 2),)
    assert stage.check(text).why.startswith("3 of 3 partitions violate the SLO")


def test_a_partition_without_records_is_not_available() -> None:
    """A partition to which no record was due has no stall, and its availability is not observed either."""
    text = "produce.unavailable < 3s in fault for each partition"
    stage = Stage(unavailable={("produce", A, "fault"): ()})
    stage.latency(Distribution(60, 0, 1, {}))
    parts = [Slice(f"orders/{number}", None, Distribution(30, 0, 1, {})) for number in range(2)]
    stage.cut("produce.latency", "fault", *parts, each="partition")
    check = stage.check(text)
    assert (OPEN, "arm=a orders/2", 0) == (check.status, check.subject, check.n)
    stage.cut("produce.latency", "fault", *parts, Slice("orders/2", None, Distribution(1, 0, 1, {})), each="partition")
    assert stage.check(text).status is PASS


def test_a_client_that_reports_no_rack_is_inconclusive() -> None:
    """Every record has an unknown rack; the check explains what is missing instead of reporting no records."""
    stage = Stage()
    stage.cut("produce.latency", "fault", Slice("unknown", None, latencies(5000, 1)), each="rack")
    check = stage.check(TEXT.replace("partition", "rack"))
    assert (OPEN, 5000, "none of 5000 records has a known rack") == (check.status, check.n, check.why)
    assert check.next
    assert "client: reference" in check.next


SLOTS = "produce.latency p50 < 5ms in every 2s of fault"


def slots(*measured: tuple[int, int | None], text: str = SLOTS, **cut: Any) -> Check:
    """Return the check of slots from 20 s on, with (n, median) each."""
    stage = Stage()
    slices = [Slice("", 20 * S + number * 2 * S, latencies(n, us, 0.5)) for number, (n, us) in enumerate(measured)]
    stage.cut("produce.latency", "fault", *slices, every_us=2 * S, **cut)
    return stage.check(text)


def test_every_slot_is_judged() -> None:
    """One of five slots exceeds the limit by 1 us, and the check names its time; the whole window would hide it."""
    assert slots(*[(20, 4_999)] * 5).status is PASS
    check = slots((20, 1), (20, 1), (20, 5_000), (20, 1), (20, 1))
    assert (FAIL, "arm=a") == (check.status, check.subject)
    assert check.why == "1 of 5 slots violate the SLO, worst the 2s from 24.0 s: p50 in fault is 5 ms"


def test_a_slot_with_too_few_samples_is_inconclusive() -> None:
    """One slot has 19 of 20 required samples; slots without rows are judged with n = 0."""
    check = slots((20, 1), (19, 1), (20, 1), (20, 1), (20, 1))
    assert (OPEN, 19) == (check.status, check.n)
    assert check.next == (
        "p50 needs 20 records, saw 19 of the 2s from 22.0 s: use slots of 3s or raise the rate"
    )  # fmt: skip
    assert slots((20, 1), (20, 1), (20, 1), (20, 1)).why.endswith("no record was observed in the 2s from 28.0 s")


def test_subjects_and_slots_together() -> None:
    """Each partition is judged in each slot, and the check names the worst partition and slot."""
    stage = Stage()
    every = [
        Slice(f"orders/{partition}", at * S, latencies(20, 9_000 if (partition, at) == (1, 26) else 1, 0.5))
        for partition in range(3)
        for at in range(20, 30, 2)
    ]
    stage.cut("produce.latency", "fault", *every, each="partition", every_us=2 * S)
    check = stage.check(f"{SLOTS} for each partition")
    assert (FAIL, "arm=a orders/1") == (check.status, check.subject)
    assert check.why.startswith("1 of 15 slots violate the SLO, worst orders/1 in the 2s from 26.0 s: ")


def test_a_slot_without_success_is_a_gap_of_its_due_records() -> None:
    """In a slot of 5 s none of 40 due records succeeded; a slot without due records is INCONCLUSIVE."""
    text = "produce.gap < 3s in every 5s of fault"
    for due, status in ((40, FAIL), (0, OPEN)):
        stage = Stage()
        quick = Distribution(40, 0, 100_000, {})
        silent = Distribution(0, 0, 5 * S, {})
        stage.cut("produce.gap", "fault", Slice("", 20 * S, quick), Slice("", 25 * S, silent), every_us=5 * S)
        wanted = [Slice("", 20 * S, quick), Slice("", 25 * S, Distribution(due, due, None, {}))]
        stage.cut("produce.latency", "fault", *wanted, every_us=5 * S)
        check = stage.check(text)
        assert (status, due) == (check.status, check.n)


def test_slots_of_lag_use_the_seconds_within() -> None:
    """The value is the maximum of waiting records in any five seconds."""
    stage = Stage(lag={A: tuple(Lag(at * S, 100 if at == 26 else 10, 1) for at in range(60))})
    check = stage.check("consume.lag max <= 99 in every 5s of fault")
    assert (FAIL, 5) == (check.status, check.n)
    assert check.why.startswith("1 of 2 slots violate the SLO, worst the 5s from 25.0 s")


def test_slots_of_hours_name_the_hour_of_the_worst() -> None:
    """Of the 24 complete hours after warm-up the 14th is too slow, and the fifth has the highest lag."""
    stage = Stage(end_s=24 * 3600 + 100)
    slices = [Slice("", (10 + 3600 * hour) * S, latencies(20, 5_000 + (hour == 13), 0.5)) for hour in range(24)]
    stage.cut("produce.latency", "run", *slices, every_us=3600 * S)
    check = stage.check("produce.latency p50 <= 5ms in every 1h of run")
    assert (FAIL, "slo/produce.latency-p50-every-3600s-of-run") == (check.status, check.id)
    assert check.why.startswith("1 of 24 slots violate the SLO, worst the 1h from 13:00:10.0: ")
    stage = Stage(
        end_s=24 * 3600 + 100,
        lag={A: tuple(Lag(at * S, 100 if at == 5 * 3600 else 10, 1) for at in range(24 * 3600 + 101))},
    )
    check = stage.check("consume.lag max <= 99 in every 1h of run")
    assert (FAIL, 3600) == (check.status, check.n)
    assert check.why.startswith("1 of 24 slots violate the SLO, worst the 1h from 4:00:10.0: ")


def test_a_day_of_slots_of_a_second_takes_a_pass_over_the_lags() -> None:
    """86 000 slots of 86 000 seconds: comparing each with each would take an hour."""
    day = 24 * 3600
    stage = Stage(end_s=day, lag={A: tuple(Lag(at * S, 1, 1) for at in range(day + 1))})
    with cpu_limit():
        check = stage.check("consume.lag max <= 99 in every 1s of run")
    assert check.status is PASS


GROUP = replace(client("a"), members=3)
CONSUMERS = GROUP.workers("consume")


def grouped(*members: dict[int, int] | None, unowned: dict[int, int] | None = None) -> Stage:
    """Return a group of three whose members have this lag, in records and in seconds, by second of the run."""
    lags = dict(zip(CONSUMERS, members, strict=False)) | {NO_OWNER: unowned}
    seconds = {
        (A, member): tuple(Lag(at * S, value, value * S) for at, value in lag.items())
        for member, lag in lags.items()
        if lag is not None
    }
    return Stage(clients=(GROUP,), member_lag=seconds)


IDLE, BUSY = dict.fromkeys(range(21, 31), 1), dict.fromkeys(range(21, 31), 5)


def test_the_worst_member_of_a_group_is_named() -> None:
    """One member far behind fails, though the other members, and so the group's average, are within the limit."""
    stage = grouped(BUSY, BUSY | {25: 900}, IDLE)
    check = stage.check("consume.lag max <= 99 records in fault for each member")
    assert (FAIL, "arm=a member=2", 900, 10) == (check.status, check.subject, check.observed, check.n)
    assert check.why == (
        "1 of 3 members violate the SLO, worst member=2: max in fault is 900 records; "
        "member=1: 5 records, member=2: 900 records, member=3: 1 records"
    )
    assert stage.check("consume.lag max <= 900 records in fault for each member").status is PASS
    fresh = stage.check("consume.freshness max < 1m in fault for each member")
    assert (FAIL, "member=2: 900000 ms") == (fresh.status, fresh.why.split(", ")[-2])


def test_the_lag_of_members_in_slots() -> None:
    """The check names the member and the time; a member that owned nothing in a slot has no value there."""
    stage = grouped(BUSY | {28: 100}, {21: 99}, None)
    check = stage.check("consume.lag max <= 99 records in every 2s of fault for each member")
    assert (FAIL, 6) == (check.status, int(check.why.split(" of ")[1].split()[0]))
    assert "worst member=1 in the 2s from 26.0 s" in check.why
    assert check.why.endswith("member=1: 100 records, member=2: 99 records")


def test_a_member_needs_enough_seconds() -> None:
    """A p50 needs 20 seconds of each member that owned partitions; another member's failure still counts."""
    long = dict.fromkeys(range(11, 41), 1)
    check = grouped(long, IDLE).check("consume.lag p50 <= 9 records for each member")
    assert (OPEN, "arm=a member=2", 10) == (check.status, check.subject, check.n)
    failed = grouped(dict.fromkeys(long, 10), IDLE).check("consume.lag p50 <= 9 records for each member")
    assert (FAIL, "arm=a member=1") == (failed.status, failed.subject)


@pytest.mark.parametrize("slot", ["", "every 2s of "])
def test_members_of_whom_nothing_is_known_do_not_pass(slot: str) -> None:
    """No member has a second, or a slot has none of any member, or only partitions without an owner lag."""
    text = f"consume.lag max <= 99 records in {slot}fault for each member"
    assert grouped().check(text).status is OPEN
    partly = {at: lag for at, lag in IDLE.items() if at < 25}
    assert (OPEN if slot else PASS) is grouped(partly).check(text).status
    nobody = grouped(unowned={25: 3}).check(text)
    assert (OPEN, "none of 1 seconds has a known member") == (nobody.status, nobody.why)
    some = grouped(IDLE, unowned={25: 3, 26: 0}).check(text)
    assert some.status is OPEN
    assert "in 1 seconds, partitions with lag had no owner" in some.why
    assert grouped(BUSY | {25: 900}, unowned={25: 3}).check(text).status is FAIL
    assert grouped(IDLE, unowned={25: 0, 35: 3}).check(text).status is PASS
