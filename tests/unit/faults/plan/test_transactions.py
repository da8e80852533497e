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


@pytest.mark.parametrize(("promise", "is_warned"), [("", True), (", transactional: true", False)])
def test_a_service_that_promises_exactly_once_checks_aborts(promise: str, is_warned: bool) -> None:
    plan = PLAN.replace("topics:\n", "topics:\n  - {name: billed, partitions: 3, replication: 3}\n")
    plan = plan.replace(
        "consume: {topic: orders, isolation: read_committed}",
        f"pipe: {{from: orders, to: billed, group: biller{promise}}}",
    )
    assert is_warned == ("no consumer reads these topics" in "\n".join(load_plan(plan).warnings))


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


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kind: kill, for: 5s, broker: transaction coordinator of orders-mine-produce", ""),
        ("kind: kill, for: 5s, broker: any broker except transaction coordinator of orders-mine-produce", ""),
        ('kind: cut, for: 5s, link: "client(a) -> broker(transaction coordinator of orders-mine-produce)"', ""),
        ("kind: move_transaction_coordinator, transactional_id: orders-mine-produce, for: 5s", ""),
        ("kind: fence_producer, transactional_id: orders-mine-produce", ""),
        ("kind: abort_transaction, topic: orders, partition: 2", ""),
        (
            "kind: kill, for: 5s, broker: transaction coordinator of orders-mine-prodce",
            ":11:43: no producer has the transactional id `orders-mine-prodce` (the name of its process); did you mean",
        ),
        (
            'kind: cut, for: 5s, link: "client(a) -> broker(transaction coordinator of nobody)"',
            "no producer has the transactional id `nobody`",
        ),
        ("kind: fence_producer, transactional_id: nobody", "no producer has the transactional id `nobody`"),
        ("kind: fence_producer, transactional_id: orders-mine-produce, for: 3s", "fence_producer can't have `for`"),
        ("kind: move_transaction_coordinator, transactional_id: no", "no producer has the transactional id `no`"),
        ("kind: abort_transaction, topic: orders, partition: 3", "the topic orders has no partition 3"),
        ("kind: abort_transaction, topic: ordres, partition: 0", "the topic `ordres` is not among"),
    ],
)
def test_faults_on_transactions(fault: str, words: str) -> None:
    said = answer("slo:", f"cluster: {{config: {{}}}}\nfaults:\n  - {{at: 0s, {fault}}}\nslo:")
    assert words in said
    assert said.startswith("error: ") == bool(words)


def test_no_workload_with_transactions() -> None:
    plan = PLAN.replace(", transaction: {records: 20, abort: 10%, timeout: 20s}", "")
    with pytest.raises(PlanError, match="no workload uses transactions: add `transaction` to a `produce`"):
        load_plan(plan.replace("slo:", "faults: [{kind: fence_producer, at: 0s, transactional_id: x}]\nslo:"))


PIPES = """\
name: pipes
topics: [{name: orders, partitions: 3, replication: 3}, {name: billed, partitions: 3, replication: 3}]
workloads:
  - name: billing
    produce: {topic: orders, rate: 60/s}
    pipe: {from: orders, to: billed, group: biller, MEMBERS, transactional: true}
    arms:
      one: {client: service, command: [./one], env: {TRANSACTIONAL_ID: "ONE"}}
      two: {client: service, command: [./two, "--transactional-id=TWO"]}
slo: ["pipe_lost == 0"]
"""


@pytest.mark.parametrize(
    ("members", "one", "two", "words"),
    [
        (1, "a", "b", None),
        (2, "{member}", "{member}", None),
        (1, "billing", "billing", ":9:12: the arm `billing/one` has the transactional id billing too"),
        (2, "a", "{member}", ":8:12: billing-one-pipe-1 and billing-one-pipe-2 share the transactional id a"),
    ],
)
def test_shared_transactional_ids(members: int, one: str, two: str, words: str | None) -> None:
    """Two processes with one id fence each other in turn."""
    plan = PIPES.replace("MEMBERS", f"members: {members}").replace("ONE", one).replace("TWO", two)
    if words is None:
        load_plan(plan)
    else:
        with pytest.raises(PlanError) as refused:
            load_plan(plan)
        assert words in str(refused.value)
        assert "such as {member}" in str(refused.value)


@pytest.mark.parametrize(
    ("joins", "number", "known"),
    [
        ("{at: 1s, kind: join, client: ours, members: 2, for: 3s}", 3, True),
        ("{at: 1s, kind: join, client: ours, members: 2, for: 3s}", 4, False),
        ("{at: 1s, kind: join, client: other}", 2, False),
        ("{at: 0s, choose: [{fault: {kind: join, client: ours}}, {fault: {kind: stop, broker: 1, for: 2s}}]}", 2, True),
    ],
)
def test_an_id_of_a_process_that_only_a_join_starts(joins: str, number: int, known: bool) -> None:
    """It has a coordinator before the process runs; an arm with one process that others join numbers them all."""
    plan = PIPES.replace("MEMBERS", "members: 1").partition("      one:")[0]
    plan += "      ours: {client: confluent}\n      other: {client: confluent}\n"
    role = f"{{at: 20s, kind: kill, for: 3s, broker: transaction coordinator of billing-ours-pipe-{number}}}"
    plan += f"faults: [{joins}, {role}]\n"
    if known:
        load_plan(plan)
    else:
        with pytest.raises(PlanError, match=f"no producer has the transactional id `billing-ours-pipe-{number}`"):
            load_plan(plan)


def test_the_timeout_of_a_pipe() -> None:
    """That of a pipe of ours is a setting of its arm."""
    plan = PIPES.replace("MEMBERS", "members: 1").partition("      one:")[0]
    plan += "      ours: {client: confluent, settings: {transaction.timeout.ms: TIMEOUT}}\n"
    load_plan(plan.replace("TIMEOUT", "900000"))
    with pytest.raises(PlanError, match=r"a transaction's timeout of 1000s exceeds the brokers' transaction.max"):
        load_plan(plan.replace("TIMEOUT", "1000000"))


@pytest.mark.parametrize(
    ("client", "cluster", "caps", "is_mixed"),
    [
        ("reference", "", "versions: {EndTxn: 4}", True),
        ("reference", "", "versions: {Produce: 11, Fetch: 12}", True),
        ("reference", "", "versions: {Produce: 11, TxnOffsetCommit: 4, EndTxn: 4}", True),
        ("reference", "", "versions: {Fetch: 12}", False),
        ("reference", "", "versions: {Produce: 12}", False),
        ("reference", "", "transaction_version: 1", False),
        ("reference", "cluster: {features: {transaction.version: 1}}\n", "versions: {EndTxn: 4}", False),
        ("confluent", "", "versions: {EndTxn: 4}", False),
    ],
)
def test_caps_that_mix_versions_of_the_transactions(client: str, cluster: str, caps: str, is_mixed: bool) -> None:
    plan = PLAN.replace("client: confluent", f"client: {client}")
    fault = f"{cluster}faults: [{{kind: cap_versions, at: 0s, for: 5s, {caps}}}]\nslo:"
    warnings = [
        warning for warning in load_plan(plan.replace("slo:", fault)).warnings if "transaction_version" in warning
    ]
    assert is_mixed == bool(warnings)
