"""Plans with transactions: what is refused, what is warned about, and what reaches the timeline."""

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan

PLAN = """\
name: transactions
topics:
  - {name: orders, partitions: 3, replication: 3}
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, transaction: {records: 20, abort: 10%, timeout: 20s}}
    consume: {topic: orders, isolation: read_committed}
    arms: {mine: {client: confluent}}
slo: ["lost == 0"]
"""


def answer(old: str, new: str) -> str:
    """Return the errors of the changed plan, or its warnings."""
    assert old in PLAN
    try:
        return "\n".join(f"warning: {warning}" for warning in load_plan(PLAN.replace(old, new, 1)).warnings)
    except PlanError as error:
        return "\n".join(f"error: {problem}" for problem in error.problems)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rate: 60/s,", "rate: 60/s, idempotence: false,", "`transaction` needs an idempotent producer"),
        (
            "client: confluent",
            "client: java, settings: {num-records: 100}",
            "give `produce` one `topic`, one producer, no `keys` and no `transaction`",
        ),
        (
            "timeout: 20s",
            "timeout: 20m",
            "a transaction's timeout of 1200s exceeds the brokers' transaction.max.timeout.ms",
        ),
        ("timeout: 20s", "timeout: 10ms", "timeout"),
        ("abort: 10%", "abort: 0.1", "0.1 is not a percentage"),
        ("records: 20", "records: 0", "records"),
        ("timeout: 20s", "on_commit_timeout: wait", "on_commit_timeout"),
        (
            "client: confluent",
            "client: confluent, settings: {transactional.id: x}",
            "has a key of its own in a plan: use `transaction` under `produce`",
        ),
        (
            "client: confluent",
            "client: confluent, settings: {isolation.level: read_committed}",
            "has a key of its own in a plan: use `isolation` under `consume`",
        ),
        (
            "client: confluent",
            "client: reference, settings: {transaction.timeout.ms: 5000}",
            "`timeout` under `transaction` sets `transaction.timeout.ms` already",
        ),
        ("isolation: read_committed", "isolation: serializable", "isolation"),
    ],
)
def test_mistakes(old: str, new: str, words: str) -> None:
    said = answer(old, new)
    assert said.startswith("error: ")
    assert words in said


def test_aborts_that_nobody_checks_are_warned_about() -> None:
    assert "no consumer reads these topics with `isolation: read_committed`" in answer(
        ", isolation: read_committed", ""
    )
    assert "read_committed" in answer("read_committed", "read_uncommitted")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: transactions", "name: same"),
        ("client: confluent", "client: java"),
        ("client: confluent", "client: exec, command: [cat]"),
        ("abort: 10%, ", ""),
        ("timeout: 20s", "timeout: 15m"),
        ("name: transactions", "name: longer\ncluster: {config: {transaction.max.timeout.ms: 3600000}}"),
    ],
)
def test_harmless_plans(old: str, new: str) -> None:
    assert answer(old, new) == ""


def test_the_timeline_has_the_settings() -> None:
    checked = load_plan(PLAN)
    (workload,) = compile_plan(checked.plan, 7, checked.source, checked.slo_positions).workloads
    expected = {"records": 20, "abort": 0.1, "timeout_ms": 20_000, "on_commit_timeout": "retry"}
    assert expected == workload["produce"]["transaction"]
    assert workload["consume"]["isolation"] == "read_committed"
