"""Several topics in one subscription, by name or by a pattern, and two workloads in one group."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.run.estimate import loads

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole

PLAN = """\
name: topics
topics:
  - {name: orders, partitions: 6, replication: 3}
  - {name: returns, partitions: 4, replication: 3}
workloads:
  - name: shop
    produce: {topics: [orders, returns], rate: 60/s}
    consume: {topics: [orders, returns], group: readers, members: 3}
"""
PATTERN = PLAN.replace("topics: [orders, returns], group", "pattern: PATTERN, group")


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("topics: [orders, returns], rate", "topic: orders, topics: [returns], rate", "7:14: `produce`: give either `topic` or `topics` to produce to"),
        ("topics: [orders, returns], rate", "rate", "7:14: `produce`: give either `topic` or `topics` to produce to"),
        ("topics: [orders, returns], rate", "topics: [], rate", "7:14: `produce`: give either `topic` or `topics` to produce to"),
        ("topics: [orders, returns], rate", "pattern: ord.*, rate", "7:15: unknown key `pattern`; known here: acks, deadline, idempotence, keys, linger, producers, rack, rate, record_size, topic, topics, transaction, value"),
        ("topics: [orders, returns], rate", "topics: [orders, retruns], rate", "7:32: the topic `retruns` is not among the plan's `topics`; did you mean `returns`?"),
        ("topics: [orders, returns], group", "topics: [orders, orders], group", "8:23: `topics`: `orders` is listed twice: remove one of the two"),
        ("topics: [orders, returns], group", "group", "8:14: `consume`: give one of `topic`, `topics` and `pattern` to consume from"),
        ("topics: [orders, returns], group", "topics: [orders], pattern: .*, group", "8:14: `consume`: give one of `topic`, `topics` and `pattern` to consume from"),
        ("topics: [orders, returns], group: readers, members: 3", "pattern: .*", "8:14: `consume`: `pattern` is a property of a group: add `group`"),
        ("topics: [orders, returns], group", "topics: [orders, 7], group", "8:32: `topics` must be text, got `7`: put it in quotes"),
        ("topics: [orders, returns], group", "pattern: order, group", "8:24: the pattern `order` matches none of the plan's topics (orders, returns): correct it, or add a topic that it matches"),
        ("topics: [orders, returns], group", "pattern: 'ord[er', group", "8:24: `pattern`: `ord[er` is not a regular expression (unterminated character set at its character 4): correct it"),
        ("topics: [orders, returns], group", "pattern: 'a{1,1001}', group", "8:24: `pattern`: Kafka's brokers can't read `a{1,1001}` (invalid repetition size: {1,1001}): correct it"),
        ("topics: [orders, returns], group", "pattern: '', group", "8:24: `pattern`: a pattern has 1 to 249 characters, got 0: shorten it, or list `topics`"),
    ],
)  # fmt: skip
def test_each_mistake_alone(wrong: str, right: str, said: str) -> None:
    """One mistake in a valid plan gives exactly one sentence, with its position."""
    assert wrong in PLAN
    with pytest.raises(PlanError) as raised:
        load_plan(PLAN.replace(wrong, right, 1))
    assert (f"plan.yaml:{said}",) == raised.value.problems


@pytest.mark.parametrize(
    ("pattern", "foreign"),
    [
        (r"(?i)ORD.*", "(?i"),  # a flag
        (r"ord(?=ers).*", "(?="),  # RE2 has no look-around
        (r"(?:ord|ret).*", "(?:"),  # POSIX has only plain groups
        (r"(o)\1.*", r"\1"),  # RE2 has no references to groups
        (r"orders\d*", r"\d"),  # POSIX has no such class
        (r".*+", "*+"),  # RE2 has no possessive quantifiers
        (r"o.*?", "*?"),
        (r"[\w]+", r"[\w]"),  # a backslash is itself in a set of POSIX
        (r"[a-z&&[^b]]+", "[a-z&&[^b]"),  # an intersection in Java
    ],
)
@pytest.mark.filterwarnings("ignore:Possible")  # Python warns of the last one
def test_a_pattern_that_not_all_clients_match_alike(pattern: str, foreign: str) -> None:
    """Brokers, Kafka's client, librdkafka and the run itself must subscribe to the same topics."""
    with pytest.raises(PlanError) as raised:
        load_plan(PATTERN.replace("PATTERN", f"'{pattern}'"))
    (problem,) = raised.value.problems
    assert f"`{foreign}` in `{pattern}` doesn't mean the same" in problem


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (".*", ["orders", "returns"]),
        ("ord.*", ["orders"]),
        ("orders|returns", ["orders", "returns"]),
        ("(ord|ret)(ers|urns)", ["orders", "returns"]),
        ("[a-p]+r[^x]{4}", ["orders"]),
        (r"returns\.?", ["returns"]),
        ("^orders$", ["orders"]),
        ("rders", None),  # whole names match
    ],
)
def test_the_topics_that_a_pattern_matches(pattern: str, names: list[str] | None) -> None:
    """The timeline lists the topics, so that the run knows which records are due."""
    text = PATTERN.replace("PATTERN", f"'{pattern}'")
    if names is None:
        with pytest.raises(PlanError, match="matches none of the plan's topics"):
            load_plan(text)
        return
    (workload,) = compile_checked(load_plan(text), seed=1).workloads
    expected = (pattern, names[0], names)
    assert expected == tuple(workload["consume"][name] for name in ("pattern", "topic", "topics"))


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "a*" * 80 + "b"])
def test_a_pattern_with_many_ways_to_match_a_name(pattern: str) -> None:
    """The time to match is linear in the length of the name, where backtracking would take years."""
    with pytest.raises(PlanError, match="matches none of the plan's topics"):
        load_plan(PATTERN.replace("PATTERN", f"'{pattern}'").replace("orders", "a" * 48))


def test_one_topic_stays_one_topic_in_the_timeline() -> None:
    """A plan with `topic` compiles as before, also one that lists one topic."""
    for section in ("topic: orders", "topics: [orders]"):
        (workload,) = compile_checked(load_plan(PLAN.replace("topics: [orders, returns]", section)), seed=1).workloads
        for op in ("produce", "consume"):
            assert ("orders", False, False) == (
                workload[op]["topic"],
                "topics" in workload[op],
                "pattern" in workload[op],
            )


def test_the_rate_is_shared_by_the_topics() -> None:
    """A reader of one of two topics gets half of the records, for sample sizes and for the host's load."""
    one = PLAN.replace("consume: {topics: [orders, returns]", "consume: {topic: orders")
    assert {"shop/baseline produce": 60.0, "shop/baseline consume": 30.0} == {
        load.name: load.rate_per_s for load in loads(compile_checked(load_plan(one), seed=1))
    }
    enough = "slo: ['consume.latency p90 < 1s in steady']\ntiming: {steady: 3s}\n"
    load_plan(PLAN + enough)
    with pytest.raises(PlanError, match=r"at 30/s gives 90"):
        load_plan(one + enough)
    each = "slo: ['consume.latency p90 < 1s in steady for each partition']\ntiming: {steady: 3s}\n"
    with pytest.raises(PlanError, match="among 10 partitions"):
        load_plan(PLAN + each)


SHARED = """\
  - name: back
    consume: {topic: returns, group: readers}
"""
ALONE = PLAN.replace("consume: {topics: [orders, returns]", "consume: {topic: orders")


def test_idle_members_are_counted_over_all_topics() -> None:
    """Ten partitions of two topics are enough for ten members."""
    assert () == load_plan(PLAN.replace("members: 3", "members: 10")).warnings
    (warning,) = load_plan(PLAN.replace("members: 3", "members: 11")).warnings
    assert "11 members share 10 partitions, so 1 of them get none" in warning


def test_two_workloads_in_one_group() -> None:
    """Different topics are allowed, and a warning says which records are due where."""
    (warning,) = load_plan(ALONE + SHARED).warnings
    assert warning.startswith("plan.yaml:10:38: the workloads `shop` and `back` share a group")
    assert "every record of orders is due at `shop`, every record of returns at `back`" in warning


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (PLAN + SHARED, "10:38: the workload `shop` also consumes returns in the group readers-baseline: give this workload a group of its own"),
        (ALONE + SHARED.replace("topic: returns", "pattern: .*"), "10:35: the workload `shop` also consumes orders in the group readers-baseline: give this workload a group of its own"),
        (ALONE + SHARED.replace("group: readers", "group: readers, from: latest"), "10:38: `from: latest` needs a group of one workload, whose start offsets are committed before its members join, and the workload `shop` is in the group readers-baseline too: use `from: earliest`, or another group"),
        (ALONE + SHARED.replace("group: readers", "group: readers, protocol: classic"), "10:57: the workload `shop` is in the same group and has another `protocol`: use the same one"),
    ],
)  # fmt: skip
def test_two_workloads_that_can_t_share_a_group(plan: str, said: str) -> None:
    """The same topic, start offsets that nobody could commit, and two protocols are refused."""
    with pytest.raises(PlanError) as raised:
        load_plan(plan)
    assert (f"plan.yaml:{said}",) == raised.value.problems
