"""Scripts of answers: what a plan can say, the rule, and witnesses that name a script that is not used up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from aftershock.errors import PlanError
from aftershock.faults.kinds.protocol.answers import NEVER_WRITTEN, AnswerError
from aftershock.faults.plan.check import load_plan
from aftershock.tests.unit.faults.conftest import FRAME, timeline_of
from aftershock.workloads.load.spool import CERTAINLY_NOT_WRITTEN

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


LATE = "answers: [{error: REQUEST_TIMED_OUT, after: 2s, applied: true}, ok, {error: NOT_LEADER_OR_FOLLOWER, times: 3}]"
SCRIPTS = {
    "an error": f"api: Produce, {LATE}",
    "a delay": "api: Fetch, answers: [ok, {after: 3s}]",
    "a lost request": "api: TxnOffsetCommit, answers: [{lost: request}]",
    "a silent connection": "api: OffsetCommit, answers: [{lost: response, connection: silent}]",
    "a throttle time": "api: Produce, answers: [{throttle_time: 5s}, {ok: true, times: 2}, {error: NOT_COORDINATOR}]",
}
APIS = """
    Produce Fetch Metadata OffsetForLeaderEpoch ListOffsets FindCoordinator Heartbeat JoinGroup SyncGroup
    ConsumerGroupHeartbeat OffsetCommit OffsetFetch InitProducerId AddPartitionsToTxn AddOffsetsToTxn EndTxn
    TxnOffsetCommit
"""


def fault(words: str, seconds: int = 8) -> str:
    return f"{{id: bad, at: 0s, for: {seconds}s, kind: answer_error, {words}}}"


def rule_of(stage: Stage) -> dict[str, Any]:
    return dict(stage.line("bad", "intended").targets.roles["rule"])


@pytest.mark.parametrize("words", SCRIPTS.values(), ids=SCRIPTS)
async def test_a_script_is_probed_and_counted(stage: Stage, words: str) -> None:
    """A probe gets the first answer that is not the broker's own."""
    await stage.play(fault(words))
    assert stage.all_ok("bad")
    probes = [witness for witness in stage.journal.witnesses("bad") if witness.unit == "probes"]
    assert [1.0, 1.0] == [witness.observed for witness in probes]


@pytest.mark.parametrize("words", SCRIPTS.values(), ids=SCRIPTS)
async def test_a_script_without_effect(stage: Stage, words: str) -> None:
    stage.world.ineffective = True
    await stage.play(fault(words))
    probes = [witness for witness in stage.journal.witnesses("bad") if witness.unit == "probes"]
    assert [False, False] == [witness.ok for witness in probes]


async def test_the_rule_has_the_script(stage: Stage) -> None:
    """Repeated answers are written out, in the order of the plan."""
    await stage.play(fault(f"api: Produce, per: client, {LATE}"))
    leader = {"error": 6}
    late = {"error": 7, "applied": True, "after_ms": 2_000}
    assert [late, {}, leader, leader, leader] == [dict(answer) for answer in rule_of(stage)["answers"]]
    assert rule_of(stage)["per_client"]


@pytest.mark.parametrize(("times", "left", "asked"), [(3, "", 4), (40, "; the script is not used up", 41)])
async def test_a_script_that_is_not_used_up_is_named(stage: Stage, times: int, left: str, asked: int) -> None:
    """The last witness says how many answers were given, of how many, and whether some are left."""
    await stage.play(fault(f"api: Produce, {LATE.replace('times: 3', f'times: {times}')}"))
    last = stage.journal.witnesses("bad")[-1]
    assert re.fullmatch(rf"given answers of the script, to \d+ matching requests{left}", last.what)
    assert (asked, True) == (last.asked, last.ok)


@pytest.mark.parametrize("api", APIS.split())
@pytest.mark.parametrize("answer", ["error: REQUEST_TIMED_OUT", "after: 1s", "lost: request", "throttle_time: 1s"])
def test_the_answers_that_an_api_can_carry(api: str, answer: str) -> None:
    """All APIs that clients use have an error and a throttle time."""
    assert api == timeline_of(fault(f"api: {api}, answers: [{{{answer}}}]")).steps[0].parameters["api"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("api: Produce", "give either `error`, for each matching request, or `answers`, a script"),
        ("api: Produce, error: UNKNOWN_SERVER_ERROR, answers: [ok]", "give either `error`"),
        ("api: Produce, answers: [ok, ok]", "each answer of the script is `ok`"),
        ("api: Produce, answers: [{error: OOPS}]", "Kafka has no error `OOPS`"),
        ("api: Produce, answers: [{lost: request, error: NOT_COORDINATOR}]", "a lost request has no answer"),
        ("api: Produce, answers: [{applied: true}]", "`applied` needs an `error`"),
        ("api: Produce, answers: [{after: 1s, connection: silent}]", "`connection` is for a lost message"),
        ("api: Produce, answers: [{after: 1s, times: 0}]", "times"),
        ("api: Produce, answers: [{after: 1s, times: 999}, {after: 2s, times: 2}]", "1001 answers, and 1000"),
        ("api: Fetch, answers: [{error: NOT_LEADER_OR_FOLLOWER, applied: true}]", "nothing that could be hidden"),
        ("api: Produce, answers: [{error: FETCH_SESSION_ID_NOT_FOUND}]", "about a fetch session"),
        ("api: SaslHandshake, answers: [{throttle_time: 1s}]", "no response of the API SaslHandshake has a throttle"),
        ("api: Fetch, error: FETCH_SESSION_ID_NOT_FOUND, topic: orders, partition: 0", "remove `partition`"),
        ("api: DescribeConfigs, error: UNKNOWN_SERVER_ERROR, applied: true", "remove `applied`"),
        ("api: Produce, error: REQUEST_TIMED_OUT, per: broker", "per"),
        ("api: Produce, error: INVALID_RECORD, applied: true", "promises that the records are in no log"),
    ],
)
def test_impossible_answers_are_refused(words: str, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        timeline_of(fault(words))
    assert message in str(refused.value)


def test_errors_after_which_a_record_is_in_no_log() -> None:
    """The judge takes a record for certainly not written after the same errors."""
    names = {"MSG_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE", "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION"}  # librdkafka's
    judged = {KafkaError(code).name() for code in CERTAINLY_NOT_WRITTEN}
    assert {*NEVER_WRITTEN} == {names.get(name, name) for name in judged}


def test_the_place_of_an_impossible_answer() -> None:
    """The sentence names line and column of the answer, not only of the fault."""
    words = fault("api: Fetch, answers: [ok, {error: NOT_LEADER_OR_FOLLOWER, applied: true}]")
    with pytest.raises(PlanError) as refused:
        timeline_of(words)
    (line,) = [line for line in str(refused.value).splitlines() if "could be hidden" in line]
    assert int(line.split(":")[2]) > words.index("applied")


@pytest.mark.parametrize(("more", "warned"), [("", True), (", per: client", False), (", client: new", False)])
def test_arms_that_share_a_script_are_named(more: str, warned: bool) -> None:
    """The script would be used up by whichever arm is first, so the arms would not be comparable."""
    arms = "    arms: {old: {client: confluent}, new: {client: reference}}\ntiming:"
    plan = FRAME.replace("timing:", arms) + f"  - {fault(f'api: Produce, {LATE}{more}')}\n"
    assert warned == any("the 2 arms share one script" in warning for warning in load_plan(plan).warnings)


def test_parameters_survive_the_timeline() -> None:
    for words in SCRIPTS.values():
        step = timeline_of(fault(words)).steps[0]
        again = step.fault()
        assert isinstance(again, AnswerError)
        assert step.parameters == again.parameters()
