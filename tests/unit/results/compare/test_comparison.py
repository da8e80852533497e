"""Comparisons by blocks: of one run's arms, of two runs, and of SLOs with confidence."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.compare import runs
from aftershock.results.compare.blocks import BACK_OFF_US, Block, Measure, block_cuts, parse, stored
from aftershock.results.compare.comparison import Confident, Question, Row, confident, rows, worst
from aftershock.results.compare.runs import Options, arms_of, between
from aftershock.results.evidence.evidence import Evidence, Phase
from aftershock.results.model.check import Status
from aftershock.results.model.facts import Cut, Distribution, Facts, RecoveryCriterion, Slice
from aftershock.tests.noise import pairs
from aftershock.tests.stored_runs import documents, spoilt, write

P95 = Measure("produce.latency", 0.95, "fault")
WAVES = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0]
TWIN = [1.02, 1.08, 0.91, 1.04, 0.96, 1.0, 0.99, 1.01]
BASE = [40_000 * wave for wave in WAVES]
SAME = [40_000 * wave for wave in TWIN]


def blocks(values: Sequence[float | None], n: int = 600) -> dict[int, Block]:
    return {number: Block(value, n) for number, value in enumerate(values, 1)}


def row(ours: Sequence[float | None], theirs: Sequence[float | None], n: int = 600, **told: Any) -> Row:
    (answer,) = rows([Question(P95, blocks(ours, n), blocks(theirs, n), **told)])
    return answer


def test_four_verdicts() -> None:
    """The results are improved, regressed, equivalent and inconclusive; only inconclusive has no answer."""
    noisy = [value * factor for value, factor in zip(BASE, (1, 3, 0.3, 2, 0.5, 4, 0.2, 1.5), strict=True)]
    half, double, same, unsure = (
        row(ours, BASE) for ours in ([v / 2 for v in SAME], [v * 2 for v in SAME], SAME, noisy)
    )
    assert ["improved", "regressed", "equivalent", "inconclusive"] == [
        one.verdict for one in (half, double, same, unsure)
    ]
    assert half.ratio == pytest.approx(0.5, rel=0.02)
    assert (half.low or 1) < (half.ratio or 0) < (half.high or 0) < 1
    assert (40.0, 20.0) == (pytest.approx(half.theirs_ms, rel=0.02), pytest.approx(half.ours_ms, rel=0.02))
    assert unsure.next is not None
    assert unsure.next.startswith(("set blocks: ", "the metric is too noisy"))


def test_fewer_than_six_blocks_decide_nothing() -> None:
    """This holds for any difference in any direction; the reason names the setting to change."""
    for count in range(1, 6):
        answer = row([1.0] * count, [9.0] * count)
        assert ("inconclusive", "set blocks: 12 in the plan, at least 6, for an interval") == (
            answer.verdict,
            answer.next,
        )
        assert answer.ratio == pytest.approx(1 / 9)
        assert answer.why.endswith(f"0.111 times: {'one block' if count == 1 else f'{count} blocks'}, no interval")
        assert (answer.low, answer.high, answer.p) == (None, None, None)
    assert row([None], [9.0]).ratio is None
    assert "improved" == row([v / 9 for v in SAME[:6]], BASE[:6]).verdict


def test_too_few_records_in_a_block() -> None:
    """One block with too few records suffices: a p95 of 199 records is not used."""
    thin = blocks(SAME) | {3: Block(1.0, 199)}
    (answer,) = rows([Question(P95, thin, blocks(BASE))])
    assert ("inconclusive", "too few records in a block of the plan: 199 of 200") == (answer.verdict, answer.why)


def test_a_block_on_one_side_only() -> None:
    """The block is neither omitted nor filled in."""
    (answer,) = rows([Question(P95, blocks(SAME), blocks(BASE[:7]))])
    assert ("inconclusive", "block 8 of the plan has a value for only one of the clients") == (
        answer.verdict,
        answer.why,
    )


def test_censored_blocks_are_counted() -> None:
    """A censored block has no ratio: twelve equal signs of twelve decide, eleven do not; the row reports the number
    of signs. Eight equal signs would only decide if blocks were independent, and the row says so.
    """
    twelve = [*BASE, *BASE[:4]]
    sure, unsure = row([None, *[9e6] * 11], twelve), row([None, *[9e6] * 10, 1.0], twelve)
    assert ("regressed", 1, None, None) == (sure.verdict, sure.censored, sure.ratio, sure.ours_ms)
    assert "1 of 24 values are censored" in sure.why
    assert ("inconclusive", None) == (unsure.verdict, unsure.ratio)
    few = row([None, *[9e6] * 7], BASE)
    assert ("inconclusive", True) == (few.verdict, "8 blocks do not exclude that neighbours resemble each" in few.why)
    assert (few.next or "").endswith("or set blocks: 12")
    assert "inconclusive" == row([None] * 8, [None] * 8).verdict


def test_several_metrics_are_corrected_for_multiple_tests() -> None:
    """A difference that is significant alone is not among twelve (Holm); metrics that could not be tested count
    as well.
    """
    mild = [value * factor for value, factor in zip(BASE, (1.5, 1.9, 1.1, 1.6, 0.9, 1.8, 1.2, 1.5), strict=True)]
    one = Question(P95, blocks(mild), blocks(BASE))
    thin = Question(P95, blocks(BASE, 10), blocks(BASE, 10))
    assert "regressed" == rows([one])[0].verdict
    assert "inconclusive" == rows([one, *[thin] * 20])[0].verdict


def test_equivalence_takes_precedence_over_improvement() -> None:
    """A certain difference within the margin is equivalent; with a smaller margin it is an improvement."""
    question = Question(P95, blocks([value * 0.95 for value in BASE]), blocks(BASE))
    assert ["equivalent", "improved"] == [rows([question], margin)[0].verdict for margin in (1.25, 1.02)]


def test_false_alarms_of_a_whole_comparison() -> None:
    """300 comparisons of an arm with itself in three metrics find a difference in at most 5 % (3 sigma)."""
    rng, alarms = np.random.default_rng(2), 0
    for _ in range(300):
        questions = [Question(P95, blocks(ours), blocks(theirs)) for ours, theirs in (pairs(rng, 8) for _ in range(3))]
        alarms += bool({"improved", "regressed"} & {one.verdict for one in rows(questions)})
    assert alarms <= 300 * 0.05 + 3 * (300 * 0.05 * 0.95) ** 0.5


def test_the_result_is_that_of_the_worst_row() -> None:
    """One regression suffices; a comparison without rows is inconclusive."""
    made = [Row("m", verdict, 8, 0, "") for verdict in ("improved", "inconclusive", "regressed", "equivalent")]  # type: ignore[arg-type]
    assert ["regressed", "inconclusive", "equivalent", "inconclusive"] == [
        worst(made), worst(made[:2]), worst([made[0], made[3]]), worst([]),
    ]  # fmt: skip


CALM = RecoveryCriterion("", 0.99, 10, 3_000_000)


def test_a_recovery_by_the_definition_of_an_slo() -> None:
    """Only rows with the measure's definition count; a comparison without one keeps to the default."""
    row = {"fault": "kill-1", "client": "c", "n": 9, "recovered_us": 4_000_000}
    analysis = {
        "recoveries": [{**row, "recovered_us": 9_000_000}],
        "calms": [{**row, "q": 0.99, "factor": 10, "for_us": for_us} for for_us in (2_000_000, 3_000_000)],
    }
    steps = [{"id": "kill-1", "block": 1}]
    measure = parse("recovery (p99 <= 10 * steady for 3s)")
    assert {1: Block(4_000_000, 9)} == stored(analysis, steps, measure, "c")
    assert {1: Block(9_000_000, 9)} == stored(analysis, steps, parse("recovery"), "c")
    assert {} == stored(analysis, steps, parse("recovery (p99 <= 3 * steady for 3s)"), "c")


@pytest.mark.parametrize(
    ("text", "measure"),
    [
        ("produce.latency p99.9 in fault/kill-1", Measure("produce.latency", 0.999, "fault/kill-1")),
        ("consume.latency  max", Measure("consume.latency", 1.0, "fault")),
        ("commit.gap", Measure("commit.gap")),
        ("recovery after kill-1", Measure("recovery", after="kill-1")),
        ("recovery", Measure("recovery")),
        ("recovery (p99 <= 10 * steady for 3s) after kill-1", Measure("recovery", after="kill-1", recovered=CALM)),
    ],
)
def test_measures_are_read(text: str, measure: Measure) -> None:
    """Every form parses, and its printed form parses to the same measure."""
    assert measure == parse(text) == parse(str(measure))


@pytest.mark.parametrize("text", ["", "p95", "produce.latency", "produce.latency p100", "produce.gap in fault", "lost"])
def test_invalid_measures_are_refused(text: str) -> None:
    """The error lists the valid forms."""
    with pytest.raises(AftershockError, match="can't be compared; write a metric like"):
        parse(text)


def test_arms_of_one_run(tmp_path: Path) -> None:
    """The stored documents suffice to compare every metric of an arm with that of the control."""
    p95 = {"kip951": [v / 4 for v in SAME], "baseline": BASE}
    recovered = {"kip951": [20_000.0] * 8, "baseline": [900_000 * wave for wave in WAVES]}
    (found,) = arms_of(write(tmp_path / "r1", documents(p95, recovered)))
    assert ("orders/kip951", "orders/baseline", "improved") == (found.ours, found.theirs, found.verdict)
    assert ["recovery", "produce.latency p95 in fault"] == [one.metric for one in found.rows]
    assert found.rows[0].ours_ms == pytest.approx(BACK_OFF_US / 1e3)
    assert found.rows[0].ratio == pytest.approx(1 / 9, rel=0.02)


def test_three_arms_are_three_pairs(tmp_path: Path) -> None:
    """Every pair is compared, and the control is always second."""
    made = documents(dict.fromkeys(("kip951", "control", "eager"), BASE))
    found = arms_of(write(tmp_path / "r1", made))
    assert [("eager", "control"), ("kip951", "control"), ("kip951", "eager")] == [
        (one.ours.split("/")[1], one.theirs.split("/")[1]) for one in found
    ]


def test_a_block_without_its_fault_is_omitted(tmp_path: Path) -> None:
    """The block is omitted on both sides whatever its values, and the output reports the omission."""
    wild = [v / 4 for v in SAME]
    wild[2] = 9e9
    made = spoilt(documents({"kip951": wild, "baseline": BASE}), "witness/kill-1-3", "the broker never stopped")
    (found,) = arms_of(write(tmp_path / "r1", made))
    assert {7} == {one.blocks for one in found.rows}
    assert "improved" == found.verdict
    assert ("block 3 of r1 is left out, because of kill-1-3: the broker never stopped",) == found.notes


@pytest.mark.parametrize("spoil", ["harness", "unfinished"])
def test_doubtful_runs_are_inconclusive(tmp_path: Path, spoil: str) -> None:
    """A run with a doubtful harness or an incomplete run is inconclusive whatever was measured."""
    made = documents({"kip951": [v / 4 for v in SAME], "baseline": BASE})
    if spoil == "harness":
        made = spoilt(made, "harness/host", "the host was starved")
    else:
        made["run"] |= {"status": "failed", "why": "its runner died"}
    (found,) = arms_of(write(tmp_path / "r1", made))
    assert {"inconclusive"} == {one.verdict for one in found.rows}
    assert any(word in found.rows[0].why for word in ("starved", "runner died"))


def two_runs(tmp_path: Path, base: dict[str, Any], changed: dict[str, Any], **asked: Any) -> Any:
    paths = [write(tmp_path / name, made) for name, made in (("r1", base), ("r2", changed))]
    return between(paths[0], paths[1], Options(**asked))


def test_recoveries_of_different_definitions_are_not_compared(tmp_path: Path) -> None:
    base, changed = (documents({"baseline": BASE, "kip951": BASE}, run_id=run_id) for run_id in ("r1", "r2"))
    changed["analysis"]["recovery_definition"] = 2
    found = two_runs(tmp_path, base, changed)
    assert {"produce.latency p95 in fault"} == {row.metric for one in found for row in one.rows}
    note = "recovery is not compared: r1 was recorded before recovery was defined by the calm that lasts"
    assert note in found[0].notes


def test_two_runs_by_block(tmp_path: Path) -> None:
    """The same arms are compared before and after, with a caution; differences between the runs are listed."""
    base = documents({"baseline": BASE, "kip951": BASE})
    changed = documents({"baseline": SAME, "kip951": [v * 3 for v in SAME]}, run_id="r2")
    changed["run"]["versions"]["kafka"] = "4.4.0"
    found = two_runs(tmp_path, base, changed)
    assert [("orders/baseline in r2", "r1"), ("orders/kip951 in r2", "r1")] == [(one.ours, one.theirs) for one in found]
    assert "version of kafka: 4.3.1 in r1, 4.4.0 in r2" in found[0].notes
    assert (
        "a difference between hosts or nights looks like a difference between clients; use --control ARM"
        in found[0].notes
    )


def test_two_runs_without_a_control_decide_nothing(tmp_path: Path) -> None:
    """A run that is certainly slower, faster or alike is inconclusive, with its figures; a control gives the words."""
    base = documents({"baseline": BASE, "kip951": BASE, "same": BASE})
    changed = documents({"baseline": SAME, "kip951": [v * 3 for v in SAME], "same": SAME}, run_id="r2")
    alone = two_runs(tmp_path, base, changed)
    assert ({"inconclusive"}, 2) == (
        {one.verdict for comparison in alone for one in comparison.rows},
        runs.exit_code(alone),
    )
    slower = alone[1].rows[1]
    assert (3.0, True) == (pytest.approx(slower.ratio, rel=0.02), (slower.low or 0) > 1)
    assert "which two nights or hosts may explain (by blocks alone: regressed)" in slower.why
    assert (slower.next or "").startswith("give --control ARM")
    beside = between(tmp_path / "r1", tmp_path / "r2", Options(control="baseline"))
    assert (["regressed", "equivalent"], 1) == ([one.verdict for one in beside], runs.exit_code(beside))


def test_a_control_cancels_the_difference_between_nights(tmp_path: Path) -> None:
    """A night that is twice as slow for both arms is no change of an arm relative to the control."""
    base = documents({"baseline": BASE, "kip951": [v / 2 for v in BASE]})
    changed = documents({"baseline": [v * 2 for v in BASE], "kip951": SAME}, run_id="r2")
    (found,) = two_runs(tmp_path, base, changed, control="baseline")
    assert ("orders/kip951 in r2", "equivalent") == (found.ours, found.verdict)
    assert "all values are divided by those of baseline, so an effect on both arms is not visible" in found.notes


def test_different_numbers_of_blocks_are_not_paired(tmp_path: Path) -> None:
    """Eight and six blocks are two groups (Welch), without a sign-flip test."""
    base, changed = documents({"baseline": BASE}), documents({"baseline": [v * 3 for v in SAME[:6]]}, run_id="r2")
    (found,) = two_runs(tmp_path, base, changed)
    assert ("inconclusive", 6, None) == (found.verdict, found.rows[0].blocks, found.rows[0].p_flip)
    assert "by blocks alone: regressed" in found.rows[0].why


def test_runs_without_blocks_decide_nothing(tmp_path: Path) -> None:
    """Two ordinary runs are shown with their values, and the output names what would allow a decision."""
    made = documents({"baseline": BASE[:1]})
    made["timeline"]["steps"] = [{"id": "kill-1", "kind": "kill", "at_ms": 0}]
    made["analysis"]["recoveries"][0]["fault"] = "kill-1"
    (found,) = two_runs(tmp_path, made, deepcopy(made))
    assert {("inconclusive", "set blocks: 12 in the plan, at least 6, for an interval")} == {
        (one.verdict, one.next) for one in found.rows
    }
    assert [1000.0, 30.0] == [one.ours_ms for one in found.rows]


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        (("timeline", "name"), "other", "the plans are rotation and other"),
        (("timeline", "timing", "steady_ms"), 5000, "timing: steady_ms was 10000 and is 5000"),
        (("timeline", "cluster", "profile"), "production", "cluster: profile was fast and is production"),
        (("timeline", "topics"), [], "the plans have different topics"),
        (("timeline", "workloads", 0, "produce", "rate_per_s"), 90.0, "the plans have different loads"),
        (("timeline", "steps", 2, "kind"), "pause", "the plans have different faults"),
        (("run", "rehearse"), True, "one run is a rehearsal, in which nothing was injected"),
    ],
)
def test_runs_of_different_plans_are_refused(tmp_path: Path, part: tuple[Any, ...], value: Any, says: str) -> None:
    """The error names the difference."""
    base, changed = documents({"baseline": BASE}), documents({"baseline": BASE}, run_id="r2")
    *path, last = part
    inner: Any = changed
    for step in path:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(EvidenceError, match="can't be compared with r1") as caught:
        two_runs(tmp_path, base, changed)
    assert says in str(caught.value)


def test_damaged_documents(tmp_path: Path) -> None:
    """A run that was not judged and a run with foreign documents are named, with a remedy."""
    made = documents({"baseline": BASE})
    home = write(tmp_path / "r1", made)
    (home / "verdict.json").unlink()
    with pytest.raises(EvidenceError, match="judge the run first: aftershock verdict"):
        arms_of(home)
    del made["analysis"]["recoveries"]
    with pytest.raises(EvidenceError, match=r"'recoveries' is missing; judge the run again"):
        arms_of(write(tmp_path / "r2", made))


def test_equal_ratios_have_no_interval_of_no_width(tmp_path: Path) -> None:
    """Eight equal ratios print as such, also in an SLO; ratios that differ have their interval."""
    home = write(tmp_path / "r1", documents({"kip951": BASE, "baseline": BASE}))
    text = runs.text(arms_of(home))
    assert (0, 2) == (text.count("1 .. 1"), text.count("equivalent   1.000  all equal"))
    assert "the ratio is 1, all equal (8 blocks)" == sure(BASE, BASE, 1.0).why
    assert "confidence from" in sure(SAME, BASE, 1.0).why


def test_text_markdown_and_document(tmp_path: Path) -> None:
    """The text has 80 columns, names can't break the Markdown table, the document has every number, and exit
    codes agree.
    """
    made = documents({"kip951": [v * 3 for v in SAME], "baseline": BASE}, n=100)
    found = arms_of(write(tmp_path / "r1", made))
    text = runs.text(found)
    assert "regressed: orders/kip951 against orders/baseline" == text.splitlines()[0]
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "produce.latency p95 in fault: too few records in a block of the plan: 100 of 200" in " ".join(text.split())
    assert f"| regressed | {found[0].rows[0].ratio:.3f} |" in runs.markdown(found)
    document = json.loads(json.dumps(runs.document(found)))
    assert ("regressed", 3.0) == (document["comparisons"][0]["verdict"], pytest.approx(document["comparisons"][0]["rows"][0]["ratio"], rel=0.02))  # fmt: skip # noqa: E501
    assert (1, 2) == (runs.exit_code(found), runs.exit_code(()))


CUT = Cut("produce.latency", "fault", each="block")
CLIENTS = ("orders/kip951", "orders/baseline")


def slices(values: Sequence[float | None], n: int = 600) -> tuple[Slice, ...]:
    seen = [Distribution(n, 0, 9, {0.95: None if value is None else int(value)}) for value in values]
    return tuple(Slice(f"block={number}", None, one) for number, one in enumerate(seen, 1))


def sure(ours: Sequence[float | None], theirs: Sequence[float | None], factor: float, op: str = "<=") -> Confident:
    cuts = {(CUT, client): slices(values) for client, values in zip(CLIENTS, (ours, theirs), strict=True)}
    return confident(Facts(cuts=cuts), CUT, CLIENTS, 0.95, op, factor)


def test_an_slo_with_confidence() -> None:
    """PASS if the whole interval is within the limit, FAIL if none of it is, else INCONCLUSIVE; so with five blocks."""
    half = [value / 2 for value in SAME]
    assert [Status.PASS, Status.FAIL, Status.INCONCLUSIVE] == [sure(half, BASE, f).status for f in (0.7, 0.3, 0.5)]
    assert Status.FAIL == sure(half, BASE, 0.5, "<").status or sure(half, BASE, 0.5, "<").next is not None
    few = sure(half[:5], BASE[:5], 0.7)
    assert (Status.INCONCLUSIVE, "set blocks: 12 in the plan, at least 6, for an interval") == (
        few.status,
        few.next,
    )


def test_an_slo_with_confidence_and_censored_blocks() -> None:
    """Censored blocks have no ratio; the signs relative to the factor decide if all of twelve are equal."""
    twelve = [*BASE, *BASE[:4]]
    slow = sure([None, *[9e6] * 11], twelve, 0.7)
    assert (Status.FAIL, 1, None) == (slow.status, slow.censored, slow.ratio)
    quick = sure([value / 2 for value in twelve], [None, *twelve[1:]], 0.7)
    assert Status.PASS == quick.status
    few = sure([None, *[9e6] * 7], BASE, 0.7)
    assert (Status.INCONCLUSIVE, True) == (few.status, "8 blocks do not exclude" in few.why)
    assert Status.INCONCLUSIVE == sure([None] * 8, [None] * 8, 0.7).status


def test_the_interval_has_its_nominal_coverage() -> None:
    """In 300 runs of an arm that is exactly 0.7 times the other, `< 0.7` passes in about 2.5 % and fails in
    about 2.5 %.
    """
    rng = np.random.default_rng(4)
    found = [sure(*pairs(rng, 8, 0.7), 0.7, "<").status for _ in range(300)]
    for status in (Status.PASS, Status.FAIL):
        assert found.count(status) <= 300 * 0.025 + 3 * (300 * 0.025 * 0.975) ** 0.5


def test_cuts_by_block_exist_only_in_runs_with_blocks(evidence: Evidence) -> None:
    """There is a cut per side that the clients have and per fault, if there are several."""
    assert () == block_cuts(evidence)
    phases = tuple(Phase("fault", f"{e}-1", 1, 2, 1, e) for e in ("kill-1", "turn"))
    cuts = block_cuts(replace(evidence, phases=phases))
    assert {"produce.latency", "consume.latency", "produce.gap", "consume.gap"} == {cut.metric for cut in cuts}
    assert {"fault", "recovery", "fault/kill-1", "fault/turn", "run"} == {cut.window for cut in cuts}
    assert {"block"} == {cut.each for cut in cuts}
