"""`for each` subject and `in every` slot: each is judged by itself, and the worst is what is told."""

from typing import Any

import pytest

from aftershock.results.checks.check import Check, Status
from aftershock.results.measure.facts import Distribution, Lag, Outage, Slice
from aftershock.tests.unit.results.checks.slo.stage import A, S, Stage, seen

PASS, FAIL, OPEN = Status.PASS, Status.FAIL, Status.INCONCLUSIVE
TEXT = "produce.latency p99 < 5ms in fault for each partition"


def partitions(*measured: tuple[int, int | None], unknown: int = 0, text: str = TEXT) -> Check:
    """The check of partitions 0, 1, … with (n, p99) each."""
    stage = Stage()
    slices = [Slice(f"orders/{number}", None, seen(n, us)) for number, (n, us) in enumerate(measured)]
    slices += [Slice("unknown", None, Distribution(unknown, unknown, None, {}))] if unknown else []
    stage.cut("produce.latency", "fault", *slices, each="partition")
    return stage.check(text)


def test_all_within_pass() -> None:
    """None broke it; the one nearest to the limit is named, with its own n."""
    check = partitions((1000, 4_000), (1200, 4_999), (1000, 1))
    assert (PASS, "arm=a orders/1", 1200, 4.999) == (check.status, check.subject, check.n, check.observed)
    assert check.why == "none of 3 partitions violate the SLO, worst orders/1: p99 in fault is 4.999 ms"


def test_one_over_fails() -> None:
    """One us over in one of three, which a good average hides."""
    check = partitions((1000, 1), (1000, 5_000), (1000, 1))
    assert (FAIL, "arm=a orders/1") == (check.status, check.subject)
    assert check.why.startswith("1 of 3 partitions violate the SLO, worst orders/1: ")


def test_of_two_over_the_worse_is_told() -> None:
    """A censored one is worse than any that is merely slow."""
    assert partitions((1000, 6_000), (1000, 7_000), (1000, 1)).subject == "arm=a orders/1"
    assert partitions((1000, 6_000), (1000, 7_000), (1000, None)).subject == "arm=a orders/2"


def test_the_least_fed_keeps_it_open() -> None:
    """All of those that can be judged are within, but one can't be: INCONCLUSIVE, and it is named."""
    check = partitions((1000, 1), (800, 1), (999, 1))
    assert (OPEN, "arm=a orders/1", 800) == (check.status, check.subject, check.n)
    assert check.next == "p99 needs 1000 records, saw 800 of orders/1: lengthen the fault to 13s or raise the rate"


def test_a_failure_counts_whatever_the_others_lack() -> None:
    """One with enough records fails, the others have next to none: FAIL."""
    check = partitions((3, 1), (1000, 5_000), (0, None))
    assert (FAIL, "arm=a orders/1") == (check.status, check.subject)


def test_a_partition_nobody_saw_does_not_vanish() -> None:
    """The topic has three partitions and two were seen: the third has a reading, of nothing."""
    check = partitions((1000, 1), (1000, 1))
    assert (OPEN, "arm=a orders/2", 0) == (check.status, check.subject, check.n)
    assert (check.why, check.next) == (
        "none of 3 partitions violate the SLO, fewest values in orders/2: no record was observed of orders/2",
        "add traffic for orders/2 in fault",
    )


def test_records_of_no_partition_may_be_of_any() -> None:
    """Four that failed before they had a partition: what would pass is left open; what fails, fails."""
    check = partitions((1000, 1), (1000, 1), (1000, 1), unknown=4)
    assert (OPEN, "find out from outcomes/ why they have no partition") == (check.status, check.next)
    assert check.why.endswith("4 records have no known partition, and may belong to any")
    assert partitions((1000, 1), (1000, 5_000), (1000, 1), unknown=4).status is FAIL


@pytest.mark.parametrize(
    ("text", "status"),
    [("produce.success >= 99%", PASS), ("produce.success >= 99.7%", OPEN), ("produce.budget(99%) <= 40%", PASS)],
)
def test_shares_are_held_against_the_worst_that_can_be(text: str, status: Status) -> None:
    """Were all four of one partition of 1000, it had 99.6 %: that decides of what passes."""
    every = [(1000, 1)] * 3
    assert partitions(*every, unknown=4, text=f"{text} in fault for each partition").status is status


def test_producers_of_whom_nothing_came_are_named() -> None:
    """The run says who produces for an arm; racks and brokers come and go with the leaders, so only those seen do."""
    stage = Stage()
    assert stage.check("produce.latency p99 < 5ms for each producer").subject == "arm=a producer=0"
    stage.cut("produce.latency", "run", Slice("rack=b", None, seen(1000, 1)), each="rack")
    assert stage.check("produce.latency p99 < 5ms for each rack").status is PASS


def test_a_partition_stands_still_alone() -> None:
    """One partition's stalls are its own, and those of the whole side everybody's."""
    text = "produce.unavailable < 3s in fault for each partition"
    stage = Stage(unavailable={("produce", A, "fault"): (Outage(1, 3 * S, S, 2), Outage(0, 2 * S, S, 2))})
    stage.latency(Distribution(100, 0, 1, {}))
    check = stage.check(text)
    assert (FAIL, "arm=a orders/1", 3.0) == (check.status, check.subject, check.observed)
    assert check.why.startswith("1 of 3 partitions violate the SLO")
    stage.unavailable["produce", A, "fault"] = (Outage(None, 3 * S, S, 2),)
    assert stage.check(text).why.startswith("3 of 3 partitions violate the SLO")


def test_a_client_that_does_not_tell() -> None:
    """Every record is of an unknown rack: open, with what would do, and not as if there had been none."""
    stage = Stage()
    stage.cut("produce.latency", "fault", Slice("unknown", None, seen(5000, 1)), each="rack")
    check = stage.check(TEXT.replace("partition", "rack"))
    assert (OPEN, 5000, "none of 5000 records has a known rack") == (check.status, check.n, check.why)
    assert check.next
    assert "client: reference" in check.next


SLOTS = "produce.latency p50 < 5ms in every 2s of fault"


def slots(*measured: tuple[int, int | None], text: str = SLOTS, **cut: Any) -> Check:
    """The check of slots from 20 s on, with (n, median) each."""
    stage = Stage()
    slices = [Slice("", 20 * S + number * 2 * S, seen(n, us, 0.5)) for number, (n, us) in enumerate(measured)]
    stage.cut("produce.latency", "fault", *slices, every_us=2 * S, **cut)
    return stage.check(text)


def test_every_slot_is_judged() -> None:
    """One of five slots over by nothing fails it, and is named by its time; a dip that the whole window would hide."""
    assert slots(*[(20, 4_999)] * 5).status is PASS
    check = slots((20, 1), (20, 1), (20, 5_000), (20, 1), (20, 1))
    assert (FAIL, "arm=a") == (check.status, check.subject)
    assert check.why == "1 of 5 slots violate the SLO, worst the 2s from 24.0 s: p50 in fault is 5 ms"


def test_a_slot_with_too_few_keeps_it_open() -> None:
    """Nineteen of twenty in one slot; slots without a row at all are there too, with nothing in them."""
    check = slots((20, 1), (19, 1), (20, 1), (20, 1), (20, 1))
    assert (OPEN, 19) == (check.status, check.n)
    assert check.next == (
        "p50 needs 20 records, saw 19 of the 2s from 22.0 s: use slots of 3s or raise the rate"
    )  # fmt: skip
    assert slots((20, 1), (20, 1), (20, 1), (20, 1)).why.endswith("no record was observed in the 2s from 28.0 s")


def test_subjects_and_slots_together() -> None:
    """Each partition in each slot: the worst is named by both."""
    stage = Stage()
    every = [
        Slice(f"orders/{partition}", at * S, seen(20, 9_000 if (partition, at) == (1, 26) else 1, 0.5))
        for partition in range(3)
        for at in range(20, 30, 2)
    ]
    stage.cut("produce.latency", "fault", *every, each="partition", every_us=2 * S)
    check = stage.check(f"{SLOTS} for each partition")
    assert (FAIL, "arm=a orders/1") == (check.status, check.subject)
    assert check.why.startswith("1 of 15 slots violate the SLO, worst orders/1 in the 2s from 26.0 s: ")


def test_silence_through_a_slot_is_a_gap_of_what_was_due() -> None:
    """In a slot of 5 s nothing succeeded of 40 that were due; where nothing was due nothing is known."""
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


def test_slots_of_lag_are_of_its_seconds() -> None:
    """The most that waited in any five seconds."""
    stage = Stage(lag={A: tuple(Lag(at * S, 100 if at == 26 else 10, 1) for at in range(60))})
    check = stage.check("consume.lag max <= 99 in every 5s of fault")
    assert (FAIL, 5) == (check.status, check.n)
    assert check.why.startswith("1 of 2 slots violate the SLO, worst the 5s from 25.0 s")
