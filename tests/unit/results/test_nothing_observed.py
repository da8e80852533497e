"""No check passes on something that was never observed: every SLO metric and integrity rule, client and condition.

The limits of the SLOs are so lenient that any measured value is within them. So a PASS without observations shows a
value that nobody measured, such as a lag filled with zeros.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from aftershock.results.checks.integrity import integrity_checks, integrity_results
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Facts
from aftershock.results.model.rules import RULES
from aftershock.results.slo import parse
from aftershock.results.slo.metrics import METRICS, OF_GROUPS
from aftershock.tests.unit.results.checks.slo.stage import Stage
from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.judging import Verdicts, judged_together
from aftershock.tests.unit.results.planted.world import Run, good_run, typed
from aftershock.tests.unit.results.planted.worlds import many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1_500
LENIENT = {
    "time": "<= 100000s",
    "records": "<= 100000000 records",
    "rebalances": "<= 100000",
    "partitions": "<= 100000",
    "restarts": "<= 100000",
    "errors": "<= 100000",
    "records/s": ">= 0.001/s",
}
WITHOUT = {
    "reference": (),
    "confluent": ("broker_id", "broker_rack"),
    "java": ("broker_id", "broker_rack", "leader_epoch", "high_watermark"),
    "exec": ("broker_id", "broker_rack", "leader_epoch", "high_watermark", "attempts"),
}
"""Columns that a client does not report, by client."""


def slo_texts(window: str) -> Iterator[str]:
    """Yield a lenient SLO on each metric in the window: as a whole, by partition, and in slots of time."""
    for name, metric in METRICS.items():
        head = f"{name}(50%)" if metric.has_target else name
        head += " max" if metric.has_aggregate else ""
        limit = LENIENT.get(metric.unit) or ("<= 100%" if metric.has_target else ">= 1%")
        yield f"{head} {limit} in {window}"
        if "partition" in metric.each and metric.source in ("gap", "stalls"):
            yield f"{head} {limit} in {window} for each partition"
        if metric.slots and metric.sampled:
            yield f"{head} {limit} in every 2s of {window}"
            if "member" in metric.each:
                yield f"{head} {limit} in {window} for each member"
    if window == "steady":
        yield "recovery < 1000s after kill-1"
        yield from (f"{rule} <= 100000" for rule in RULES)


@cache
def base_run() -> Run:
    """Return a run in which each client produces to, consumes from and commits offsets of a topic of its own."""
    run = many(good_run().copy("base"), COUNT)
    (workload,), (topic,), (planned,) = (
        run.documents["timeline"]["workloads"],
        run.documents["run"]["topics"],
        run.documents["timeline"]["topics"],
    )
    (assigned,) = [line for line in run.documents["events"] if line["arm"] == "baseline"]
    frames: dict[str, list[pd.DataFrame]] = {"produce": [], "consume": [], "log": []}
    workloads, topics, plans, producers, events = [], [], [], [], []
    for number, (client, columns) in enumerate(WITHOUT.items()):
        name, own = f"orders-{client}", {"topic": f"orders-{client}", "topic_id": client}
        arms = {"arms": {"a": {"client": client, "settings": {}}}}
        produce, consume = ({**workload[side], "topic": name} for side in ("produce", "consume"))
        workloads.append({"name": client, "produce": produce, "consume": {**consume, "group": "readers"}, **arms})
        commits = {"name": f"{client}-commits", "produce": None, "consume": None, **arms}
        workloads.append(commits | {"commit": {"topic": name, "groups": 3}})
        topics.append(topic | {"name": name, "topic_id": client})
        plans.append(planned | {"name": name})
        producers += [{"producer_id": number, "workload": client, "arm": "a"}]
        producers += [{"producer_id": number + 4, "workload": f"{client}-commits", "arm": "a"}]
        partitions = [[name, partition] for _, partition in assigned["partitions"]]
        events.append(assigned | {"arm": "a", "workload": client, "partitions": partitions})
        own |= {"workload": client, "arm": "a", "client": client, "producer_id": number}
        sent = run.frames["produce"].assign(**own, **dict.fromkeys(columns))
        of_commits = {"op": "commit", "workload": f"{client}-commits", "producer_id": number + 4, "group": "readers-1"}
        committed = sent.assign(**of_commits, leader_epoch=None)
        read = run.frames["consume"].assign(**own, **dict.fromkeys(columns), group="readers-a", member="member")
        frames["produce"] += [sent, committed]
        frames["consume"].append(read)
        frames["log"].append(
            run.frames["log"].assign(**{key: own[key] for key in ("topic", "topic_id", "producer_id")})
        )
    run.documents["timeline"] |= {"workloads": workloads, "topics": plans}
    run.documents["run"] |= {"topics": topics, "producers": producers, "values_compared": []}
    run.documents["events"] = events
    for line in run.documents["journal"]:
        line["targets"] = line["targets"] | {
            "topics": [row["name"] for row in topics] if line["targets"]["topics"] else []
        }
    run.slos(*slo_texts("steady"))
    for table, parts in frames.items():
        run.frames[table] = typed(
            "log" if table == "log" else "outcomes",
            pd.concat([part.astype(object) for part in parts], ignore_index=True),
        )
    return run


def _produced(run: Run) -> pd.Index:
    rows = run.frames["produce"]
    return rows.index[rows["op"] == "produce"]


def acks_0(run: Run) -> None:
    for workload in run.documents["timeline"]["workloads"]:
        if workload["produce"]:
            workload["produce"] |= {"acks": "0", "idempotence": False}
    run.set("produce", _produced(run), offset=None, leader_epoch=None)


def acks_0_and_no_log(run: Run) -> None:
    acks_0(run)
    run.frames["log"] = run.frames["log"][:0]


def no_offsets(run: Run) -> None:
    run.set("produce", _produced(run), offset=None)
    run.frames["log"] = run.frames["log"][:0]


def no_deliveries(run: Run) -> None:
    run.frames["consume"] = run.frames["consume"][:0]


def dead_clients(run: Run) -> None:
    """Fail every record and commit, as the runner does while a client is down."""
    down = {"status": "failed", "error": "CLIENT_DOWN", "sent_us": None, "done_us": None, "partition": None}
    run.set("produce", run.frames["produce"].index, offset=None, leader_epoch=None, **down)
    silent_clients(run, "consume", "log")


def silent_clients(run: Run, *tables: str) -> None:
    for name in tables or ("produce", "consume", "log"):
        run.frames[name] = run.frames[name][:0]


def empty_window(run: Run) -> None:
    """Remove every record that was intended in the recovery after the faults, which is then idle."""
    run.slos(*slo_texts("recovery"))
    for name in ("produce", "consume"):
        rows = run.frames[name]
        inside = rows["intended_us"].between(24 * S, 26 * S - 1) | rows["intended_us"].between(34 * S, 36 * S - 1)
        run.frames[name] = rows[~(inside | (rows["intended_us"] >= 39 * S))]


SENT = {name for name, metric in METRICS.items() if metric.side == "produce"} | {"recovery", "produce"}
READ = {name for name, metric in METRICS.items() if metric.side == "consume"}
LAG = {"consume.lag", "consume.freshness"}
OBSERVED = {
    name
    for name, metric in METRICS.items()
    if metric.source not in {*OF_GROUPS, "transaction", "stable", "restarts"} and metric.side != "pipe"
}
"""Metrics that the base run has values of: its groups have one member each, so they have no rebalances, its producers
have no transactions, no identity of a producer was read, and there is no service."""
CONDITIONS: dict[Callable[[Run], None], set[str]] = {
    acks_0: SENT,
    acks_0_and_no_log: SENT | LAG,
    no_offsets: LAG,
    no_deliveries: READ,
    dead_clients: {*METRICS, "recovery"},
    silent_clients: {*METRICS, *RULES, "recovery"},
    empty_window: {*METRICS},
}
"""What is not observed in each condition: metrics, ``recovery`` and integrity rules."""


@pytest.fixture(scope="module")
def verdicts(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    home = tmp_path_factory.mktemp("unobserved")
    homes = []
    for condition in (None, *CONDITIONS):
        name = condition.__name__ if condition else "observed"
        run = base_run().copy(name)
        if condition:
            condition(run)
        homes.append(run.write(home / name))
    return judged_together(spark, homes)


def _checks(verdicts: Verdicts, condition: str, client: str) -> list[Check]:
    """Return the checks of a client, of its commits and of the log."""
    mine = (f"workload={client} ", f"workload={client}-commits ", "log", "all arms")
    return [check for check in verdicts[condition] if f"{check.subject} ".startswith(mine)]


def _subject(check: Check) -> str:
    """Return the metric or rule of an SLO's check, or the integrity rule."""
    name = check.id.split("/", 1)[1]
    return next((metric for metric in METRICS if name.startswith(metric)), name.split("-")[0])


@pytest.mark.parametrize("client", WITHOUT)
def test_the_slos_pass_if_everything_is_observed(verdicts: Verdicts, client: str) -> None:
    """Otherwise the other tests could not fail."""
    passed = {_subject(c) for c in _checks(verdicts, "observed", client) if c.kind == "slo" and c.status is Status.PASS}
    assert passed >= OBSERVED | {"recovery", "duplicate", "phantom"}
    assert not passed & METRICS.keys() - OBSERVED


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.__name__)
@pytest.mark.parametrize("client", WITHOUT)
def test_nothing_observed_is_never_a_pass(verdicts: Verdicts, client: str, condition: Callable[[Run], None]) -> None:
    unobserved = CONDITIONS[condition]
    checks = [c for c in _checks(verdicts, condition.__name__, client) if c.kind in ("slo", "integrity", "obligation")]
    judged = {_subject(check) for check in checks}
    assert judged >= unobserved - {*RULES}
    wrong = [check for check in checks if check.status is Status.PASS and _subject(check) in unobserved]
    assert [] == [(check.id, check.subject, check.n, check.why) for check in wrong]
    assert [] == [check.id for check in checks if check.status is not Status.PASS and not check.next]


@pytest.mark.parametrize("client", WITHOUT)
def test_what_is_observed_still_passes(verdicts: Verdicts, client: str) -> None:
    """The log gives the offsets that a producer with acks=0 is not told; deliveries are observed in any case."""
    for condition in (acks_0, no_offsets):
        passed = {_subject(c) for c in _checks(verdicts, condition.__name__, client) if c.status is Status.PASS}
        assert passed >= OBSERVED - CONDITIONS[condition]


@pytest.mark.parametrize("text", [text for window in ("run", "fault") for text in slo_texts(window)])
def test_an_slo_without_any_measurement_is_inconclusive(text: str) -> None:
    """The pure half: no table of measurements has an entry."""
    checks = Stage().checks(text)
    assert checks
    assert {Status.INCONCLUSIVE} == {check.status for check in checks}
    assert all(check.next for check in checks), str(parse(text))


@pytest.mark.parametrize("rule", RULES)
def test_an_integrity_rule_without_any_row_is_inconclusive_or_not_judged(rule: str) -> None:
    evidence = Stage().evidence()
    evidence.timeline["workloads"] = [{"name": "orders", "arms": {"a": None, "b": None}, "consume": {"group": "g"}}]
    checks = integrity_checks(evidence, integrity_results(evidence, Facts()))
    assert {check.status for check in checks if check.id == f"integrity/{rule}"} <= {Status.INCONCLUSIVE}
