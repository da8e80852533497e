"""Config: settings are changed, read back and restored; settings that Kafka refuses are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aftershock.errors import AdminError, PlanError
from aftershock.faults.kinds.kafka.config import resize_refusal
from aftershock.tests.unit.faults.conftest import timeline_of

if TYPE_CHECKING:
    from aftershock.tests.unit.faults.conftest import Stage


THREADS = "{id: few, at: 1s, for: 4s, kind: config, broker: 1, set: {num.io.threads: 4}}"
MIN_ISR = "{id: few, at: 1s, for: 4s, kind: config, topic: orders, set: {min.insync.replicas: 3}}"
QUOTA = "{id: few, at: 1s, for: 4s, kind: config, client_id: orders-a-produce, set: {producer_byte_rate: 1000}}"


@pytest.mark.parametrize(
    ("fault", "of", "before", "during"),
    [
        (THREADS, ("broker", "1"), {}, {"num.io.threads": "4"}),
        (MIN_ISR, ("topic", "orders"), {"min.insync.replicas": "2"}, {"min.insync.replicas": "3"}),
        (QUOTA, ("client", "orders-a-produce"), {}, {"producer_byte_rate": "1000"}),
    ],
)
async def test_in_force_and_back(stage: Stage, fault: str, of: tuple, before: dict, during: dict) -> None:  # type: ignore[type-arg]
    """The dynamic value is changed during the fault, read back each second, and restored or removed afterwards."""
    seen = []
    await stage.play_with(3_000, lambda: seen.append(dict(stage.world.dynamic[of])), fault)
    assert [during] == seen
    assert before == stage.world.dynamic[of]
    assert stage.all_ok("few")
    assert len(stage.journal.witnesses("few")) >= 4
    assert stage.journal.states("few") == ["intended", "injected", "witnessed", "healing", "healed"]


async def test_a_rehearsal_changes_nothing(stage: Stage) -> None:
    """All witnesses of the rehearsal fail."""
    await stage.rehearse(THREADS)
    assert stage.world.called("alter_config") == []
    assert {False} == {witness.ok for witness in stage.journal.witnesses("few")}


async def test_changed_back_from_outside(stage: Stage) -> None:
    """A setting that is removed during the fault fails a witness."""
    own = stage.world.dynamic.setdefault(("broker", "1"), {})
    await stage.play_with(2_500, own.clear, THREADS)
    assert [True, True, False, False, False] == [witness.ok for witness in stage.journal.witnesses("few")]


async def test_a_refused_restore_fails_the_heal(stage: Stage) -> None:
    """Kafka refuses the previous value; the error has Kafka's reason."""
    refusal = AdminError("Kafka refused to change the configuration of 1: not now", "INVALID_REQUEST")
    with pytest.raises(Exception, match=r"could not be healed: after 30 s still: .*not now"):
        await stage.play_with(3_000, lambda: stage.world.broken.update(alter_config=refusal), THREADS)
    assert stage.journal.states("few")[-1] == "failed"


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("num.partitions: 4", "has no broker setting `num.partitions`"),
        ("auto.create.topics.enable: true", "only when a node starts"),
    ],
)
async def test_refused_at_injection(stage: Stage, parameters: str, sentence: str) -> None:
    """Unknown and read-only settings are refused at injection."""
    await stage.play(THREADS.replace("num.io.threads: 4", parameters))
    assert sentence in str(stage.line("few", "failed").why)
    assert stage.world.called("alter_config") == []


@pytest.mark.parametrize(
    ("now", "wanted", "ok"),
    [("8", "4", True), ("8", "16", True), ("8", "3", False), ("8", "17", False), ("3", "1", False), ("3", "2", True)],
)
def test_thread_pools_change_by_half_to_double(now: str, wanted: str, ok: bool) -> None:
    """Kafka rounds half down, so a change is allowed only if its undo is also a single step."""
    assert ok == (resize_refusal("num.network.threads", now, wanted) is None)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("{at: 1s, for: 4s, kind: config, broker: 1, set: {num.io.threads: 3}}", "use 4 to 16"),
        ("{at: 1s, for: 4s, kind: config, client_id: x, set: {rate: 3}}", "a client has no quota `rate`"),
        ("{at: 1s, for: 4s, kind: config, set: {num.io.threads: 4}}", "needs exactly one"),
        ("{at: 1s, for: 4s, kind: config, broker: 1, topic: orders, set: {a: 4}}", "needs exactly one"),
    ],
)
def test_refused_in_a_plan(fault: str, sentence: str) -> None:
    """The check refuses faults that can't work in the plan."""
    with pytest.raises(PlanError, match=sentence):
        timeline_of(fault)


def test_who_must_meet_it() -> None:
    """Traffic to the broker, the topic or of the client, whichever it is."""
    assert ["brokers", "topics", "clients"] == [timeline_of(each).steps[0].met_by for each in (THREADS, MIN_ISR, QUOTA)]
