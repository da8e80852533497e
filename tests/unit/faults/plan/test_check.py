"""Every problem of a plan is reported at once, each with its position and a remedy."""

from collections.abc import Mapping
from typing import Any

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan import check, parsing
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.parsing import read_draft
from aftershock.faults.sections.document import Problem
from aftershock.faults.timeline.compile import compile_checked
from aftershock.results.slo import Slo
from aftershock.results.slo import parse as parse_slo
from aftershock.tests.unit.faults.conftest import FRAME

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole


TEN_MISTAKES = """\
name: ten-mistakes
cluster: {racks: {a: 1, b: 1, c: 1}, profil: fast}
topics:
  - {name: orders, partitions: 12, replication: 5}
  - {name: audit, partitions: 3, replication: 3, config: {min.insync.replicas: 4}}
workloads:
  - name: orders
    produce: {topic: odrers, rate: 0/s, rack: d}
    arms:
      risky: {client: confluent, settings: {plugin.library.paths: /tmp/evil.so}}
  - name: good
    produce: {topic: orders, rate: 60/s}
timing: {steady: 10s, fault: 2s}
faults:
  - {at: 0s, kind: kil, broker: 1}
  - {id: k, at: 1s, for: 8s, kind: kill, broker: 2}
  - {at: 4s, for: 8s, kind: pause, broker: 2}
  - {at: 20s, kind: kill, broker: leader of orders/99}
  - {at: 0s, for: 5s, kind: latency, link: "client(x) -> broker(7)", delay: 50, jiter: 3ms}
slo:
  - "produce.latncy p95 < 250ms"
  - "recovery < 5s after kk"
"""

EXPECTED_PROBLEMS = """\
plan.yaml:2:38: unknown key `profil`; did you mean `profile`?
plan.yaml:4:49: replication 5 exceeds the 3 brokers; lower it or add brokers
plan.yaml:5:80: min.insync.replicas 4 exceeds the topic's replication 3; lower it
plan.yaml:8:22: the topic `odrers` is not among the plan's `topics`; did you mean `orders`?
plan.yaml:8:36: a rate of 0/s sends nothing: give a rate above 0/s
plan.yaml:8:47: the cluster has no rack `d`; known here: a, b, c
plan.yaml:10:45: the client setting `plugin.library.paths` is refused because it loads code: remove it
plan.yaml:15:20: there is no fault of kind `kil`; did you mean `kill`? All kinds: `aftershock plan faults`
plan.yaml:17:5: this pause conflicts with `k`, which lasts until 9s on node 2: let the earlier fault end before the later fault begins
plan.yaml:18:5: a kill needs `for`: give its duration, like `for: 8s`
plan.yaml:18:35: the topic orders has no partition 99: its partitions are 0 to 11
plan.yaml:19:77: `delay`: 50 is not a duration: give a number with its unit: 50ms, 4s, 1.5s or 2m
plan.yaml:19:81: unknown key `jiter`; did you mean `jitter`?
plan.yaml:21:5: invalid SLO at column 1: a metric expected, got 'produce.latncy'; did you mean 'produce.latency'?
plan.yaml:22:5: this SLO matches no record, because the arm `risky` does not produce: give a workload a `produce`\
"""


def problems(text: str) -> list[str]:
    with pytest.raises(PlanError) as caught:
        load_plan(text)
    return list(caught.value.problems)


def test_golden() -> None:
    """More than ten mistakes in all parts of a plan are reported at once, in the order of the file, word for word."""
    assert "\n".join(problems(TEN_MISTAKES)) == EXPECTED_PROBLEMS


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("rate: 60/s", "rate: 0/s", "6:36: a rate of 0/s sends nothing: give a rate above 0/s"),
        ("rate: 60/s", "rate: 60", "6:36: `rate`: 60 is not a rate: give a number per second: 60/s or 0.5/s"),
        ("rate: 60/s", "rate: 60/s, acks: 1", "6:14: `produce`: idempotence needs acks: all, got 1; set idempotence: false or acks: all"),
        ("rate: 60/s", "rate: 60/s, deadline: 10m", "6:52: `deadline`: a deadline must be between 100ms and 5m: the run waits for the last record's deadline before it ends"),
        ("rate: 60/s", "rate: 60/s, rack: d", "6:48: the cluster has no rack `d`; known here: a, b, c"),
        ("rate: 60/s", "rate: 60/s, keys: true", "6:48: `keys` must be an integer, got `true`"),
        ("rate: 60/s", "rate: 60/s, record_size: {min: 2kB, max: 1kB}", "6:55: `record_size`: min 2000 is more than max 1000: swap the two values"),
        ("produce: {topic: orders, rate: 60/s}", "produce: {topic: orders, rate: 60/s}\n    commit: {groups: 9}", "7:13: `commit`: give either `rate` (open loop) or `in_flight` (closed loop) for commits"),
        ("produce: {topic: orders, rate: 60/s}", "produce: {topic: orders, rate: 60/s}\n    commit: {groups: 9, rate: 9/s, in_flight: 9}", "7:13: `commit`: give either `rate` (open loop) or `in_flight` (closed loop) for commits"),
        ("produce: {topic: orders, rate: 60/s}", "produce: {topic: orders, rate: 60/s}\n    commit: {groups: 9, in_flight: 10}", "7:13: `commit`: in_flight 10 exceeds groups 9, and a group has at most one commit in flight: add groups"),
        ("produce: {topic: orders, rate: 60/s}", "produce: {topic: orders, rate: 60/s}\n    commit: {groups: 9, in_flight: 9}", "7:36: `in_flight` needs `client: reference`, but the arm `baseline` has `client: confluent`: give a rate, or change the client"),
        ("produce: {topic: orders, rate: 60/s}", "produce: {topic: orders, rate: 60/s}\n    commit: {groups: 9, rate: 9/s, by_coordinator: true}", "7:52: `by_coordinator` needs offsets.topic.num.partitions, which maps groups to coordinators: set it in cluster.config"),
        ("group: readers", "members: 2", "7:14: `consume`: 2 members need a `group`, in which they share the partitions: add `group`"),
        ("group: readers", "group: readers, assignor: range", "7:14: `consume`: `assignor` depends on the group protocol: add `protocol: consumer` or `protocol: classic`"),
        ("group: readers", "group: readers, protocol: classic, assignor: uniform", "7:14: `consume`: the protocol classic has no assignor uniform; use range or roundrobin or sticky or cooperative-sticky"),
        ("group: readers", "group: readers, protocol: classic, assignor: sticky", "7:75: librdkafka, the client of arm `baseline`, has no assignor sticky; use cooperative-sticky or range"),
        ("group: readers", "group: readers, commit: {every: soon}", "7:62: `every`: commits can't be made every `soon`: write a time like 1s, `100 records`, or auto"),
        ("group: readers", "group: readers, racks: [a, z]", "7:57: the cluster has no rack `z`; known here: a, b, c"),
        ("group: readers", "group: readers, rack: a, racks: [b]", "7:14: `consume`: `rack` and `racks` exclude each other: keep one of them"),
        ("group: readers", "group: readers, from: start", "7:52: `from` must be 'earliest' or 'latest', got `start`"),
        ("topic: orders, group", "topic: ordres, group", "7:22: the topic `ordres` is not among the plan's `topics`; did you mean `orders`?"),
        ("partitions: 6", "partitions: 0", "3:32: `partitions` must be at least 1, got `0`"),
        ("partitions: 6, ", "", "3:5: the key `partitions` is missing here: add the key"),
        ("steady: 10s", "steady: 10s, warmup: {min: 9s, max: 1s}", "8:31: `warmup`: min is more than max: swap the two values"),
        ("name: test", "name: Test!", "1:7: `name` must match ^[a-z0-9][a-z0-9_.-]{0,39}$, got `Test!`"),
        ("name: test", "naem: test\nname: x", "1:1: unknown key `naem`; did you mean `name`?"),
        ("name: test", "name: x\ncluster: {racks: {a: 9, b: 1, c: 1}}", "2:18: `racks`: 11 brokers are too many for one host: use 9 at most"),
        ("name: test", "name: x\ncluster: {brokers: {4: {a.b: 1}}}", "2:10: `brokers` has settings for broker 4: the cluster's brokers are 1 to 3"),
        ("name: test", "name: x\ncluster: {racks: {A: 3}}", "2:19: this name must match ^[a-z][a-z0-9]{0,7}$, got `A`"),
        ("name: test", "name: x\ncluster: {controllers: 2}", "2:24: `controllers` must be 0, 1, 3 or 5, got `2`"),
        ("  []", "  - hello", "10:5: a fault needs a `kind`: `aftershock plan faults` lists the kinds"),
        ("  []", "  - {kind: kill, at: 0s, for: 0s, broker: 1}", "10:31: `for` must be greater than 0s, got `0s`"),
        ("  []", "  - {kind: kill_client, at: 0s, for: 8s, client: baseline member 2}", "10:50: there is no member 2 of the arm `baseline`, which has 1"),
        ("  []", "  - {kind: kill_client, at: 0s, for: 8s, client: member of baseline that owns orders/6}", "10:50: the topic orders has no partition 6: its partitions are 0 to 5"),
        ("  []", "  - {kind: elect, at: 0s, for: 1s, topic: orders}", "10:32: elect can't have `for`, because it can't be undone: remove `for`"),
        ("  []", "  - {kind: reassign, at: 0s, topic: orders}", "10:5: a reassign fault needs exactly one of `rotate: 1`, `swap`, `move` or `replace: {from: ROLE, to: ROLE}`, `replication: 2`"),
        ("  []", "  - {kind: reassign, at: 0s, topic: orders, rotate: 1, every: 1s}", "10:5: `every` repeats a rotation during the fault: it needs `rotate` and a longer `for`"),
        ("  []", "  - {kind: reassign, at: 0s, topic: orders, rotate: 3}", "10:53: 3 rotations of 3 replicas restore their order: use another number"),
        ("  []", "  - {kind: reassign, at: 0s, topic: orders, move: {from: 1, to: 1}}", "10:51: `from` and `to` are equal, so no replica would move: name two brokers"),
        ("  []", "  - {kind: reassign, at: 0s, topic: orders, move: {from: 1, to: 9}}", "10:65: the cluster has no node 9: its brokers are 1 to 3"),
        ("  []", "  - {kind: kill, at: 0s, for: 8s, broker: replica of orders/0 in rack z}", "10:43: the cluster has no rack `z`; known here: a, b, c"),
        ("  []", "  - {kind: kill, at: 0s, for: 8s, broker: coordinator of readers}", "10:43: no arm consumes in a group `readers` (a group is named <group>-<arm>); did you mean `readers-baseline`?"),
        ("  []", '  - {kind: latency, at: 0s, for: 8s, delay: 5ms, link: "replication(b) -> broker(2)"}', "10:56: broker 2 is in rack b itself, and nodes of one rack have no link between them: name another rack or broker"),
        ("  []", '  - {kind: latency, at: 0s, for: 8s, delay: 5ms, link: "rack(a) -> rack(z)"}', "10:56: the cluster has no rack `z`; known here: a, b, c"),
        ("  []", "  - {kind: latency, at: 0s, for: 8s, delay: 5ms, jitter: 6ms, link: client(a) -> broker}", "10:5: `jitter` of 6ms exceeds the lowest delay of 5ms; lower `jitter`"),
    ],
)  # fmt: skip
def test_each_mistake_alone(wrong: str, right: str, said: str) -> None:
    """One mistake in a valid plan gives exactly one sentence, with its position."""
    text = FRAME + "  []\n"
    assert wrong in text
    assert problems(text.replace(wrong, right, 1)) == [f"plan.yaml:{said}"]


def test_the_frame_is_a_good_plan() -> None:
    """The plan for these mistakes is valid without them."""
    checked = load_plan(FRAME + "  []\n")
    assert checked.warnings == ()
    assert checked.text == FRAME + "  []\n"


def test_a_setting_of_the_other_protocol() -> None:
    """In groups of the consumer protocol (KIP-848) brokers determine the session timeout."""
    text = FRAME.replace("group: readers", "group: readers, protocol: consumer") + "  []\n"
    arms = "    arms: {baseline: {settings: {session.timeout.ms: 6000}}}\ntiming:"
    (sentence,) = problems(text.replace("timing:", arms, 1))
    assert "brokers set `session.timeout.ms`: set `group.consumer.session.timeout.ms` in `cluster.config`" in sentence


def test_more_members_than_partitions() -> None:
    """A warning says how many stay idle."""
    checked = load_plan(FRAME.replace("group: readers", "group: readers, members: 8") + "  []\n")
    sentence = "8 members share 6 partitions, so 2 of them get none"
    assert [True] == [sentence in warning for warning in checked.warnings]


def test_single_rack() -> None:
    """With one rack and one broker, links between racks and `any broker except` are refused."""
    frame = FRAME.replace("name: test", "name: x\ncluster: {racks: {a: 1}}").replace("replication: 3", "replication: 1")
    text = frame.replace("min.insync.replicas: 2", "min.insync.replicas: 1") + (
        '  - {kind: latency, at: 0s, for: 8s, delay: 5ms, link: "rack(a) -> rack(*)"}\n'
        "  - {kind: kill, at: 0s, for: 8s, broker: any broker except 1}\n"
    )
    assert [problem.split(": ", 1)[1] for problem in problems(text)] == [
        "the cluster has one rack, and nodes of one rack have no link between them: add a rack",
        "the cluster has one broker, so `any broker except` matches no broker: name the broker, or add brokers",
    ]


GROUPED = """\
name: grouped
topics: [{name: orders, partitions: 2, replication: 1}, {name: others, partitions: 2, replication: 1}]
workloads:
  - {name: first, consume: {topic: orders, group: readers}, arms: {one: {}, two: {}}}
  - {name: second, consume: {topic: %s}, arms: {two: {}}}
"""


def test_a_group_of_two_workloads() -> None:
    """Two workloads share a group only if topic, group and arm name are equal."""
    (problem,) = problems(GROUPED % "orders, group: readers")
    assert problem.endswith(
        ":5:52: the workload `first` also consumes orders in the group readers-two: give this workload a group of its own"
    )
    for other in ("others, group: readers", "orders, group: mine", "orders"):
        load_plan(GROUPED % other)


def test_names_used_twice() -> None:
    """Topics, workloads and fault ids (generated ones included) are unique."""
    text = (
        FRAME.replace("workloads:", "  - {name: orders, partitions: 1, replication: 1}\nworkloads:").replace(
            "min.insync.replicas: 2", ""
        )
        + "  - {id: kill-2, kind: kill, at: 0s, for: 8s, broker: 1}\n  - {kind: kill, at: 0s, for: 8s, broker: 2}\n"
    )
    assert [problem.split(": ", 1)[1] for problem in problems(text)] == [
        "the topic `orders` is defined twice: rename one of the two",
        "the fault id `kill-2` is defined twice: rename one of the two",
    ]


def test_a_plan_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks, warnings and compiler share one draft: each SLO is parsed once, and the plan is read once."""
    parsed: list[str] = []
    read: list[object] = []

    def count_parse(text: str) -> Slo:
        parsed.append(text)
        return parse_slo(text)

    def count_read(data: Mapping[str, Any]) -> tuple[parsing.Draft, list[Problem]]:
        read.append(data)
        return read_draft(data)

    monkeypatch.setattr(parsing, "parse_slo", count_parse)
    monkeypatch.setattr(parsing, "read_draft", count_read)
    monkeypatch.setattr(check, "read_draft", count_read)
    faults = (
        "  - {at: 0s, choose: [{fault: {for: 8s, kind: kill, broker: 1}}, {fault: {for: 8s, kind: kill, broker: 2}}]}\n"
    )
    checked = load_plan(FRAME + faults + "slo: ['lost == 0', 'produce.gap < 1s']\n")
    timeline = compile_checked(checked, 7)
    assert ["lost == 0", "produce.gap < 1s"] == [objective.text for objective in timeline.slo] == parsed
    assert 1 == len(read)
