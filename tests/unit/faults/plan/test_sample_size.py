"""SLOs without enough samples, or without any match in the plan."""

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


FAULTS = """\
  - {id: slow, at: 0s, for: 10s, kind: latency, link: client(a) -> broker, delay: 5ms}
  - {id: slower, at: 5s, for: 10s, kind: latency, link: client(a) -> broker, delay: 5ms}
  - {at: 30s, kind: reassign, topic: orders, rotate: 1}
"""


def problems_of(*slos: str, faults: str = FAULTS, frame: str = FRAME) -> list[str]:
    text = frame + faults + "slo:\n" + "".join(f'  - "{slo}"\n' for slo in slos)
    try:
        load_plan(text)
    except PlanError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    "slo",
    [
        "produce.latency p95 < 250ms in steady",
        "produce.latency p95 < 250ms in fault/slow",
        "produce.latency p98.8 < 250ms in fault",
        "produce.latency p99 < 250ms",
        "consume.latency p95 < 250ms in recovery for baseline",
        "produce.latency max < 9s in fault/reassign-1",
        "produce.success >= 99.9%",
        "produce.gap < 6s in warmup",
        "recovery < 5s after reassign-1",
        "lost == 0",
        "produce.latency p90 < 250ms in steady for each partition",
        "produce.latency p99 < 250ms for each producer",
        "produce.latency p80 < 250ms in every 1s of fault",
        "produce.latency p50 < 250ms in every 2s of fault for each partition",
        "produce.gap < 1s in every 5s of run",
        "produce.latency p95 in fault <= 2 * p95 in steady with 95% confidence",
        "produce.gap in fault <= 2 * p95 of produce.latency in steady",
        "consume.lag p50 < 5 in recovery",
        "consume.freshness max < 5s in fault/reassign-1",
        "produce.unavailable < 5s in fault for each partition",
        "produce.budget(99.9%) <= 50%",
        "recovery (p98 <= 3 * steady for 5s) < 5s after reassign-1",
        "co_owned == 0",
    ],
)
def test_enough_samples(slo: str) -> None:
    """At 60/s for 10 s of steady and 15 + 5 s of faults, these SLOs have enough samples."""
    assert problems_of(slo) == []


@pytest.mark.parametrize(
    ("slo", "sentence"),
    [
        ("produce.latency p99 < 250ms in steady", "this SLO needs 1000 records in steady, and `baseline` at 60/s gives 600 there: make steady last 17s, or use a rate of 100/s"),
        ("produce.latency p99.9 < 250ms in fault", "this SLO needs 10000 records in fault, and `baseline` at 60/s gives 1200 there: make fault last 167s, or use a rate of 500/s"),
        ("produce.latency p99 < 250ms in fault/slow", "this SLO needs 1000 records in fault/slow, and `baseline` at 60/s gives 600 there: make fault/slow last 17s, or use a rate of 100/s"),
        ("produce.success >= 99.99%", "this SLO needs 10000 records in the run, and `baseline` at 60/s gives 3420 there: make the run last 167s, or use a rate of 176/s"),
        ("produce.latency p95 < 250ms in fault/slwo", "the plan has no fault `slwo`; did you mean `slow`?"),
        ("recovery < 5s after kill-1", "the plan has no fault `kill-1`; known here: reassign-1, slow, slower"),
        ("produce.latency p95 < 250ms for basline", "the plan has no arm `basline`; did you mean `baseline`?"),
        ("p95(baseline) <= 0.7 * p95(other) of produce.latency", "the plan has no arm `other`; known here: baseline"),
        ("produce.latency p95 < 250ms in steady for each partition", "this SLO needs 200 records of each partition in steady, and `baseline` at 60/s among 6 partitions gives 100 there: make steady last 20s, or use a rate of 120/s"),
        ("produce.latency p99 < 250ms in steady for each rack", "this SLO needs 1000 records of each rack in steady, and `baseline` at 60/s among 3 racks gives 200 there: make steady last 50s, or use a rate of 300/s"),
        ("produce.latency p99 < 250ms in steady for each producer", "this SLO needs 1000 records of each producer in steady, and `baseline` at 60/s gives 600 there: make steady last 17s, or use a rate of 100/s"),
        ("produce.latency p95 < 250ms in every 1s of fault", "this SLO needs 200 records in each 1s of fault, and `baseline` at 60/s gives 60 there: use slots of 4s, or use a rate of 200/s"),
        ("produce.latency p50 < 250ms in every 1s of fault for each partition", "this SLO needs 20 records of each partition in each 1s of fault, and `baseline` at 60/s among 6 partitions gives 10 there: use slots of 2s, or use a rate of 120/s"),
        ("produce.latency p50 < 9s in every 20s of fault/slow", "no slot of 20s fits into fault/slow, which lasts 10500ms at most: use shorter slots"),
        ("produce.latency p95 in fault <= 2 * p99 in steady", "this SLO needs 1000 records in steady, and `baseline` at 60/s gives 600 there: make steady last 17s, or use a rate of 100/s"),
        ("produce.latency p95 in fault <= 2 * p95 in fault/slwo", "the plan has no fault `slwo`; did you mean `slow`?"),
        ("produce.latency p95 in fault <= 2 * p95 for basline", "the plan has no arm `basline`; did you mean `baseline`?"),
        ("produce.latency p95 in fault <= 2 * p95 for baseline", "`baseline` is the only arm that produces, so there is no arm to compare with it: add an arm"),
        ("consume.lag p95 < 9 in steady", "this SLO needs 200 seconds in steady, which has 10: make steady last 200s"),
        ("stable_offset.lag p95 < 9s in steady for each partition", "this SLO needs 200 seconds of each partition in steady, which has 10: make steady last 200s"),
        ("consume.lag p50 < 9 in every 5s of run", "this SLO needs 20 seconds in each 5s of the run, which has 5: use slots of 20s"),
        ("produce.budget(99.99%) <= 50%", "this SLO needs 10000 records in the run, and `baseline` at 60/s gives 3420 there: make the run last 167s, or use a rate of 176/s"),
        ("recovery (p99 <= 2 * steady for 2s) < 5s after reassign-1", "this SLO needs 1000 records in steady, and `baseline` at 60/s gives 600 there: make steady last 17s, or use a rate of 100/s"),
        ("recovery (p95 <= 2 * steady for 60s) < 5s after reassign-1", "the recovered state must last 60s, and the load ends 17s after `reassign-1` begins: lengthen timing.recovery"),
        ("commit.lag max < 5", "invalid SLO at column 1: a metric expected, got 'commit.lag'; did you mean 'commit.gap'?"),
        ("produce.latency p95 < 250 in fault", "invalid SLO at column 23: '250' has no unit; write a time in us, ms, s, m or h, like 250ms"),
    ],
)  # fmt: skip
def test_too_few_samples(slo: str, sentence: str) -> None:
    """Too few samples or unknown names are refused, with a remedy."""
    assert problems_of(slo) == [f"plan.yaml:14:5: {sentence}"]


@pytest.mark.parametrize(
    ("slo", "refused"),
    [
        ("produce.latency p95 < 1s", True),
        ("produce.success >= 99%", True),
        ("produce.gap < 5s in steady for baseline", True),
        ("recovery < 5s after reassign-1", True),
        ("consume.latency p95 <= 2 * p95 of produce.latency", True),
        ("consume.latency p95 < 1s", False),
        ("consume.lag max < 9", False),
        ("lost == 0", False),
    ],
)
def test_slos_on_acknowledgements_that_never_come(slo: str, refused: bool) -> None:
    """With acks 0 no record is acknowledged; lag takes the offsets of the records from the log."""
    frame = FRAME.replace("produce: {topic: orders,", "produce: {topic: orders, acks: '0', idempotence: false,")
    assert frame != FRAME
    sentences = problems_of(slo, frame=frame)
    assert ["plan.yaml:14:5: no record of `baseline` is acknowledged with `acks: 0`" in text for text in sentences] == (
        [True] if refused else []
    )


def test_windows_without_faults() -> None:
    """A plan without faults has neither a fault window nor recovery."""
    problems = problems_of("produce.latency p95 < 1s in fault", "produce.gap < 1s in recovery", faults="  []\n")
    assert len(problems) == 2
    assert all("matches nothing" in problem for problem in problems)


def test_no_client_on_that_side() -> None:
    """An SLO of consumers matches nothing in a plan that only produces, nor does an SLO of an arm that only
    produces.
    """
    produce_only = FRAME.replace("    consume: {topic: orders, group: readers}\n", "")
    assert "no workload consumes:" in problems_of("consume.gap < 1s", frame=produce_only)[0]
    other = FRAME.replace("timing:", "  - {name: r, consume: {topic: orders}, arms: {reader: {}}}\ntiming:")
    assert "the arm `reader` does not produce" in problems_of("produce.gap < 1s for reader", frame=other)[0]
    assert problems_of("consume.latency p98 < 1s in steady for reader", frame=other) == []


def test_consumers_read_the_records_of_all_arms() -> None:
    """Two producing arms at 60/s give each consuming arm 120/s: enough for p99 in ten seconds."""
    two = FRAME.replace("timing:", "    arms: {one: {}, two: {}}\ntiming:")
    assert problems_of("consume.latency p99 < 1s in steady", frame=two) == []
    assert len(problems_of("produce.latency p99 < 1s in steady", frame=two)) == 1


def test_commits_are_fed_by_the_commits_of_an_arm() -> None:
    """Commits are the samples of commit SLOs only; without commits such an SLO matches nothing."""
    commits = "  - {name: positions, commit: {groups: 5, rate: 30/s}, arms: {ours: {}}}\ntiming:"
    frame = FRAME.replace("timing:", commits)
    fed = ("commit.latency p95 < 100ms in steady", "commit.success >= 99% for ours", "commit.gap < 5s in fault/slow")
    assert problems_of(*fed, frame=frame) == []
    (thin,) = problems_of("commit.service p99 < 100ms in steady", frame=frame)
    assert "needs 1000 records in steady, and `ours` at 30/s gives 300 there" in thin
    (idle,) = problems_of("commit.latency p50 < 1s for baseline", frame=frame)
    assert "the arm `baseline` does not commit:" in idle
    (nobody,) = problems_of("commit.gap < 1s")
    assert "no workload commits:" in nobody
    assert "the arm `ours` does not produce:" in problems_of("produce.gap < 1s for ours", frame=frame)[0]


def test_a_closed_loop_has_no_known_rate() -> None:
    """The rate of a closed loop is unknown, so no SLO is refused for too few samples."""
    commits = "  - {name: p, commit: {groups: 5, in_flight: 5}, arms: {ours: {client: reference}}}\ntiming:"
    assert (
        problems_of("commit.latency p99.9 < 1s in steady for each broker", frame=FRAME.replace("timing:", commits))
        == []
    )


def test_judged_although_a_fault_is_misspelt() -> None:
    """An SLO that names a fault of unknown kind is not reported as well."""
    problems = problems_of(
        "recovery < 5s after kill-1", "produce.latency p95 < 1s in fault", faults="  - {kind: kil, at: 0s}\n"
    )
    assert len(problems) == 1
    assert "no fault of kind `kil`" in problems[0]


REFERENCE = FRAME.replace("timing:", "    arms: {baseline: {client: reference}}\ntiming:")


@pytest.mark.parametrize(
    "slo",
    [
        "produce.latency p95 < 250ms in steady for each rack",
        "consume.latency p95 < 250ms in steady for each broker",
        "produce.latency p99 < 250ms in fault/slow for each epoch",
    ],
)
def test_subjects_that_only_some_clients_tell(slo: str) -> None:
    """librdkafka does not report a record's broker, so such an SLO is refused before the run."""
    assert problems_of(slo, frame=REFERENCE) == []
    (problem,) = problems_of(slo)
    assert "the confluent client of arm `baseline` does not report the" in problem
    assert "use `client: reference`" in problem


def test_keys_lead_to_few_partitions() -> None:
    """Two keys reach at most two of six partitions, so the others have no samples."""
    keyed = FRAME.replace("rate: 60/s", "rate: 600/s, keys: 2")
    (problem,) = problems_of("produce.latency p90 < 1s in steady for each partition", frame=keyed)
    assert "2 keys reach at most 2 of the 6 partitions of orders" in problem
    assert problems_of("produce.latency p90 < 1s in steady", frame=keyed) == []


def test_arms_are_compared_with_confidence_by_blocks() -> None:
    """A comparison with confidence needs several blocks, since one fault is one event."""
    two = FRAME.replace("timing:", "    arms: {one: {}, two: {}}\ntiming:")
    slo = "p95(one) <= 0.7 * p95(two) of produce.latency in fault with 95% confidence"
    (problem,) = problems_of(slo, frame=two)
    assert "needs 6 blocks (repetitions of the plan's faults), and the plan has 1: set `blocks: 12`" in problem
    assert problems_of(slo, frame=two.replace("faults:", "blocks: 6\nfaults:")) == []
    assert problems_of(slo.removesuffix(" with 95% confidence"), frame=two) == []


def test_a_name_means_every_block() -> None:
    """With blocks, a fault's id includes all of its rounds; a single round can be named, too."""
    blocks = FRAME.replace("faults:", "blocks: 6\nfaults:")
    enough = "produce.latency p99 < 1s in fault/slow"
    assert (
        problems_of(enough, "produce.latency p95 < 1s in fault/slow-3", "recovery < 5s after slow", frame=blocks) == []
    )
    assert "no fault `slow-7`" in problems_of("produce.gap < 1s in fault/slow-7", frame=blocks)[0]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{slo: 'produce.latency p99 < 1s in steady', gate: report}", "this SLO needs 1000 records in steady"),
        ("{slo: 'lost = 0'}", "invalid SLO at column 6"),
    ],
)
def test_report_only_slos_are_checked_as_well(entry: str, why: str) -> None:
    """An SLO without effect on the verdict must still be valid and have enough samples."""
    with pytest.raises(PlanError, match=rf"^plan\.yaml:14:5: {why}"):
        load_plan(FRAME + FAULTS + f"slo:\n  - {entry}\n")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{slo: lost == 0, gate: reprot}", "14:28: `gate` must be 'verdict' or 'report', got `reprot`"),
        ("{slo: lost == 0, gat: report}", "14:22: unknown key `gat`; did you mean `gate`?"),
        ("{gate: report}", "14:5: the key `slo` is missing"),
        ("7", "14:5: an SLO must be a line of text: put the SLO in quotes"),
    ],
)
def test_an_invalid_entry(entry: str, sentence: str) -> None:
    """An SLO is a line of text, or such a line with its gate; anything else is refused at its position."""
    with pytest.raises(PlanError) as refused:
        load_plan(FRAME + FAULTS + f"slo:\n  - {entry}\n")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("slo", "sentence"),
    [
        ("produce.gap < 30s in fault", "this SLO can't fail: fault lasts "),
        ("produce.gap < 6s in every 5s of run", "this SLO can't fail: every 5s of run lasts 5s at most"),
        ("consume.unavailable < 20s in steady", "this SLO can't fail: steady lasts 10s at most"),
        ("recovery < 16s after reassign-1", "this SLO can't fail: the load ends 17s after `reassign-1` begins"),
        ("recovery < 4s after slow", "this SLO can't fail: `slower` begins 5s after `slow` begins"),
        ("produce.latency p50 < 1s for each rack", "`for each rack` has no effect"),
    ],
)
def test_slos_that_cannot_fail_give_a_warning(slo: str, sentence: str) -> None:
    """A limit beyond the observed time, or a division among one subject, gives a warning."""
    one_rack = REFERENCE.replace("timing:", "cluster: {racks: {a: 3}}\ntiming:") if "rack" in slo else FRAME
    (warning,) = load_plan(one_rack + FAULTS + f'slo: ["{slo}"]\n').warnings
    assert sentence in warning


def test_slos_that_can_fail_give_no_warning() -> None:
    """A limit within the observed time gives no warning."""
    slos = [
        "produce.gap < 5s in every 5s of run",
        "consume.unavailable < 10s in steady",
        "recovery < 15s after reassign-1",
        "recovery < 3s after slow",
        "recovery (p95 <= 2 * steady for 5500ms) < 20s after slow",
    ]
    assert load_plan(FRAME + FAULTS + f"slo: {slos}\n").warnings == ()
