"""Protocol faults: the right rule, witnesses that detect a missing effect, and a verified heal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aftershock.errors import FaultError, PlanError
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aftershock.faults.runtime.record import Witness
    from aftershock.tests.unit.faults.conftest import Stage


KINDS = {
    "delay_request": "api: Produce, delay: 500ms",
    "delay_response": "api: Fetch, delay: 500ms, serial: true",
    "drop_request": "api: Produce, connection: silent",
    "drop_response": "api: Produce",
    "duplicate_request": "api: Produce",
    "hold_request": "api: EndTxn, nth: 1, outcome: commit, until: {sent: 5}",
    "answer_error": "api: Produce, error: NOT_LEADER_OR_FOLLOWER",
    "throttle_response": "api: Produce, throttle_time: 3s",
    "hide_error": "api: OffsetCommit, error: UNKNOWN_MEMBER_ID",
    "close_mid_frame": "api: Metadata",
    "strip_hints": "hints: [current_leader, node_endpoints]",
    "falsify_hints": "hints: [preferred_replica, session_id], broker: leader of orders/1",
    "falsify_epochs": "topic: orders, epoch: absent",
    "cap_versions": "versions: {Fetch: 11, ConsumerGroupHeartbeat: none}",
}
UNSEEN = ("strip_hints", "falsify_hints", "hide_error", "hold_request")
"""Kinds that no probe shows: the proxy's counters are all there is."""


def fault(kind: str, words: str = "", seconds: int = 5) -> str:
    return f"{{id: bad, at: 0s, for: {seconds}s, kind: {kind}, {words or KINDS[kind]}}}"


def probed(stage: Stage) -> list[Witness]:
    return [witness for witness in stage.journal.witnesses("bad") if witness.unit not in ("requests", "rules")]


def counted(stage: Stage) -> list[float]:
    return [witness.observed for witness in stage.journal.witnesses("bad") if witness.unit == "requests"]


def rule_of(stage: Stage) -> dict[str, Any]:
    return dict(stage.line("bad", "intended").targets.roles["rule"])


@pytest.mark.parametrize("kind", KINDS)
async def test_the_rule_is_probed_counted_and_removed(stage: Stage, kind: str) -> None:
    """A probe shows the effect at both ends, matching requests are counted in between, and the rule is removed
    afterwards.
    """
    await stage.play(fault(kind))
    assert ["intended", "injected", "witnessed", "healing", "healed"] == stage.journal.states("bad")
    assert stage.all_ok("bad")
    assert (0 if kind in UNSEEN else 2) == len(probed(stage))
    assert counted(stage) == sorted(counted(stage))
    assert counted(stage)[-1] >= 4
    assert stage.world.healthy()
    assert ["bad"] == stage.world.called("remove_rule")
    assert kind == rule_of(stage)["do"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rehearsal_fails_its_witnesses(stage: Stage, kind: str) -> None:
    await stage.rehearse(fault(kind))
    assert stage.journal.witnesses("bad")
    assert not [witness for witness in stage.journal.witnesses("bad") if witness.ok and witness.n]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNSEEN])
async def test_a_rule_without_effect(stage: Stage, kind: str) -> None:
    """The proxy has the rule but does nothing, and the probes fail."""
    stage.world.ineffective = True
    await stage.play(fault(kind))
    assert [False, False] == [witness.ok for witness in probed(stage)]
    assert "healed" == stage.journal.states("bad")[-1]


@pytest.mark.parametrize("kind", UNSEEN)
async def test_a_rule_without_effect_that_no_probe_shows(stage: Stage, kind: str) -> None:
    """No request is counted, so the fault has no exposure, and the journal says so."""
    stage.world.ineffective = True
    await stage.play(fault(kind))
    assert {0} == set(counted(stage))


async def test_a_rule_taken_away_from_outside(stage: Stage) -> None:
    """A rule removed during the fault has no counters, and the last probe shows no effect."""
    await stage.play_with(2_300, stage.world.in_force.clear, fault("drop_response"))
    failed = [witness for witness in stage.journal.witnesses("bad") if not witness.ok]
    assert {"rules", "probes"} == {witness.unit for witness in failed}


async def test_unreadable_requests_fail_the_witness(stage: Stage) -> None:
    """Requests that match but pass unchanged, because the proxy can't read them, fail the witness."""
    await stage.play_with(2_300, lambda: stage.world.counted["bad"].update(untouched=3), fault("strip_hints"))
    failed = [witness for witness in stage.journal.witnesses("bad") if not witness.ok]
    assert failed
    assert "3 requests could not be decoded" in failed[0].what


@pytest.mark.parametrize("sent", [0, 5])
async def test_held_requests_that_never_arrive_late_are_no_proof(stage: Stage, sent: int) -> None:
    """Requests were held, and at the end of the fault none had met what the plan asks for."""
    stage.world.late = False
    await stage.play(fault("hold_request", f"api: EndTxn, until: {{sent: {sent}}}"))
    *before, last = stage.journal.witnesses("bad")
    assert all(witness.ok and not witness.observed for witness in before)
    assert (False, 0) == (last.ok, last.observed)
    assert ("after its transaction" if sent == 0 else "a later transaction") in last.what


async def test_a_rule_that_stays_fails_the_heal(stage: Stage) -> None:
    """The undo returns and the rule is still there."""

    async def nothing(_name: str) -> None:
        return

    stage.world.remove_rule = nothing  # type: ignore[method-assign, assignment]
    with pytest.raises(FaultError, match="a probe still shows the fault"):
        await stage.play(fault("drop_response"))
    assert "failed" == stage.journal.states("bad")[-1]


async def test_a_cluster_without_wire_proxy(stage: Stage) -> None:
    """The step fails with a message before any change."""
    stage.world.no_proxy = True
    await stage.play(fault("drop_response"))
    assert ["failed"] == stage.journal.states("bad")
    assert [] == stage.world.called("add_rule")


async def test_no_broker_answers_behind_the_proxy(stage: Stage) -> None:
    """All brokers are cut off by another fault: the counters are the witness, and a missing probe does not fail."""
    stage.world.unreachable = True
    await stage.play(fault("drop_response"))
    assert stage.all_ok("bad")
    assert [] == probed(stage)


async def test_a_response_that_has_the_error_anyway(stage: Stage) -> None:
    """Such a probe is no evidence and is not repeated."""
    stage.world.ineffective = True
    plain = stage.world.probe_rule

    async def refused(*told: Any) -> Any:
        from dataclasses import replace  # noqa: PLC0415 -- for this one

        return replace(await plain(*told), errors=frozenset({6}))

    stage.world.probe_rule = refused  # type: ignore[method-assign]
    await stage.play(fault("answer_error"))
    assert [] == probed(stage)


async def test_scope_of_the_rule(stage: Stage) -> None:
    """Topic and id, partition, client ids of the arm's workers, and n-th request are in the rule and the targets."""
    words = "api: Produce, topic: orders, partition: 2, client: orders/baseline, op: produce, nth: 3"
    await stage.play(fault("drop_response", words))
    rule, targets = rule_of(stage), stage.line("bad", "intended").targets
    assert ("orders", 2, 3) == (rule["topic"], rule["partition"], rule["nth"])
    assert (await stage.world.topic_ids())["orders"] == rule["topic_id"]
    assert ("orders-baseline-produce",) == tuple(rule["clients"]) == targets.clients
    assert ("orders",) == targets.topics


async def test_a_client_id_outside_the_plan(stage: Stage) -> None:
    """A client that belongs to no arm is named by its id."""
    await stage.play(fault("drop_response", "api: Produce, client_id: my-app"))
    assert ("my-app",) == tuple(rule_of(stage)["clients"])


async def test_the_false_broker_is_a_role(stage: Stage) -> None:
    """The role is resolved at injection to the current leader."""
    await stage.play(fault("falsify_hints"))
    leader = (await stage.world.partitions(["orders"]))[1].leader
    assert leader == rule_of(stage)["broker"]
    assert 1 << 30 <= rule_of(stage)["session_id"] < 1 << 31


def test_the_compiler_draws_the_chances() -> None:
    """There is a draw per request with about the requested share of hits and at least one, equal for equal seeds."""
    words = fault("drop_response", "api: Produce, probability: 0.2")
    one, same, other = (timeline_of(words, seed=seed).steps[0].draws["chances"] for seed in (7, 7, 8))
    assert one == same != other
    assert 140 <= one.count("1") <= 270
    rare = fault("drop_response", "api: Produce, probability: 0.000001")
    assert 1 == timeline_of(rare).steps[0].draws["chances"].count("1")


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("drop_response", "api: Prodcue", "Kafka has no API `Prodcue`; did you mean `Produce`?"),
        ("drop_response", "delay: 3s", "`api` is missing here"),
        ("answer_error", "api: Produce, error: NOT_LEADER", "Kafka has no error `NOT_LEADER`"),
        ("hide_error", "api: Produce, error: NONE", "Kafka has no error `NONE`"),
        ("throttle_response", "api: SaslHandshake, throttle_time: 1s", "has a throttle time"),
        ("throttle_response", "api: Produce, throttle_time: 0s", "throttle_time"),
        ("close_mid_frame", "api: Produce, after_bytes: -1", "after_bytes"),
        ("falsify_epochs", "epoch: absent", "`topic` is missing here"),
        ("falsify_epochs", "topic: orders, epoch: lower", "epoch"),
        ("falsify_epochs", "topic: orders, epoch: absent, by: 2", "remove `by`"),
        ("falsify_epochs", "topic: orders, epoch: frozen, nth: 2", "remove `nth`"),
        ("falsify_epochs", "topic: orders, epoch: frozen, api: Metadata", "api"),
        ("drop_response", "api: Produce, partition: 1", "`partition` needs a `topic`"),
        ("drop_response", "api: Produce, op: produce", "`op` needs a `client`"),
        ("drop_response", "api: Produce, nth: 1, probability: 0.5", "exclude each other"),
        ("drop_response", "api: Produce, client: baseline, client_id: x", "exclude each other"),
        ("drop_response", "api: Produce, client: nobody", "nobody"),
        ("drop_response", "api: Produce, topic: ordres", "the topic `ordres` is not among"),
        ("drop_response", "api: Produce, topic: orders, partition: 6", "has no partition 6: use 0 to 5"),
        ("drop_response", "api: Heartbeat, topic: orders", "requests of the API Heartbeat name no topic"),
        ("cap_versions", "versions: {Fetch: 3}, topic: orders", "requests of the API ApiVersions name no topic"),
        ("falsify_hints", "hints: [current_leader]", "the hint current_leader needs the id of a wrong broker"),
        ("falsify_hints", "hints: [session_id], broker: 1", "contains no broker to change"),
        ("strip_hints", "hints: []", "needs 1 or more"),
        ("cap_versions", "versions: {}", "give `versions`, like {Fetch: 12}, or `transaction_version: 1`"),
        ("cap_versions", "transaction_version: 2", "transaction_version"),
        ("cap_versions", "versions: {EndTxn: 3}, transaction_version: 1", "caps EndTxn already"),
        ("hold_request", "api: Fetch, until: {sent: 1}", "api"),
        ("hold_request", "api: EndTxn", "`until` is missing here"),
        ("hold_request", "api: EndTxn, until: {sent: -1}", "`sent` must be at least 0"),
        ("hold_request", "api: Produce, until: {sent: 1}, outcome: commit", "remove `outcome`"),
    ],
)
def test_invalid_rules_are_refused(kind: str, words: str, message: str) -> None:
    """The plan check refuses each with a remedy."""
    with pytest.raises(PlanError) as refused:
        timeline_of(fault(kind, words))
    assert message in str(refused.value)


def test_parameters_survive_the_timeline() -> None:
    """`none` among the versions and a tuple of hints read back from the timeline's JSON."""
    for words in (*KINDS.items(), ("cap_versions", "transaction_version: 1")):
        step = timeline_of(fault(*words)).steps[0]
        assert step.parameters == step.fault().parameters()


async def test_the_version_of_transactions_is_capped_as_a_whole(stage: Stage) -> None:
    """The three requests and the feature, which a probe is offered at most in the caps."""
    await stage.play(fault("cap_versions", "transaction_version: 1"))
    assert stage.all_ok("bad")
    assert {"Produce": 11, "TxnOffsetCommit": 4, "EndTxn": 4} == rule_of(stage)["versions"]
    assert {"transaction.version": 1} == rule_of(stage)["features"]
    assert [4, 4] == [witness.asked for witness in probed(stage)]


async def test_a_feature_that_is_not_capped(stage: Stage) -> None:
    """The API versions alone are no proof."""
    add = stage.world.add_rule

    async def without_features(rule: Mapping[str, Any]) -> None:
        await add({key: value for key, value in rule.items() if key != "features"})

    stage.world.add_rule = without_features  # type: ignore[method-assign]
    await stage.play(fault("cap_versions", "transaction_version: 1"))
    assert [(False, 3), (False, 3)] == [(witness.ok, witness.observed) for witness in probed(stage)]
