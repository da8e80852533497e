"""Plans with services: what is compiled, and each mistake with its remedy."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_checked

# ruff: noqa: E501 -- a sentence that is expected is kept whole

PLAN = """\
name: billing
topics:
  - {name: orders, partitions: 6, replication: 3}
  - {name: billed, partitions: 6, replication: 3}
workloads:
  - name: billing
    produce: {topic: orders, rate: 60/s, keys: 200}
    pipe: {from: orders, to: billed, group: biller}
    arms:
      ours: {client: service, command: [python3, billing.py]}
faults:
  - {kind: kill_client, client: ours, op: pipe, at: 2s, for: 2s}
slo: ["pipe_lost == 0", "pipe.latency p95 < 1s in steady"]
"""
SERVICE = "{client: service, command: [python3, billing.py]}"


def test_one_arm_keeps_the_names() -> None:
    timeline = compile_checked(load_plan(PLAN), 0)
    pipe = timeline.workloads[0]["pipe"]
    assert ({"ours": "billed"}, {"ours": "biller"}) == (pipe["to"], pipe["groups"])
    assert ["orders", "billed"] == [topic["name"] for topic in timeline.topics]
    assert {"message.timestamp.type": "LogAppendTime"} == timeline.topics[1]["config"]
    assert {} == timeline.topics[0]["config"]


def test_each_of_several_arms_has_its_own_output_topic_and_group() -> None:
    plan = PLAN.replace("    arms:\n", "    arms:\n      lib: {client: confluent}\n")
    timeline = compile_checked(load_plan(plan), 0)
    pipe = timeline.workloads[0]["pipe"]
    assert {"lib": "billed-lib", "ours": "billed-ours"} == pipe["to"]
    assert {"lib": "biller-lib", "ours": "biller-ours"} == pipe["groups"]
    assert ["orders", "billed-lib", "billed-ours"] == [topic["name"] for topic in timeline.topics]


@pytest.mark.parametrize(
    ("pipe", "outputs"),
    [
        ("", (1, 1)),
        (", fan_out: 3", (3, 3)),
        (", fan_out: 1..3", (1, 3)),
        (", filter: allowed", (0, 1)),
        (", filter: allowed, fan_out: 2..5", (0, 5)),
    ],
)
def test_outputs_of_an_input(pipe: str, outputs: tuple[int, int]) -> None:
    plan = load_plan(PLAN.replace("group: biller", f"group: biller{pipe}"))
    assert plan.plan.workloads[0].pipe
    assert outputs == plan.plan.workloads[0].pipe.outputs


def test_a_key_that_is_the_mark() -> None:
    plan = PLAN.replace(", keys: 200", "").replace("group: biller", "group: biller, mark: key")
    assert compile_checked(load_plan(plan), 0).workloads[0]["produce"]["mark_is_key"]


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("to: billed", "to: bills", "the topic `bills` is not among the plan's `topics`; did you mean `billed`?"),
        ("to: billed", "to: orders", "the pipe would read its own outputs: name another topic than orders"),
        (
            "from: orders",
            "from: billed",
            "no workload produces to billed, so the pipe has no input: add `produce: {topic: billed, rate: 60/s}`",
        ),
        ("group: biller", "group: biller, rack: z", "the cluster has no rack `z`; known here: a, b, c"),
        (
            "group: biller",
            "group: biller, mark: head",
            'an output names its input by `header`, `key`, or a JSON field like {value: "$.id"}',
        ),
        (
            "group: biller",
            "group: biller, mark: {value: id}",
            "`id` is not the path of a JSON field: write it like $.id or $.order.id",
        ),
        (
            "group: biller",
            "group: biller, mark: key",
            "with `mark: key` each record has its own key, and the workload `billing` has 200 keys: remove its `keys`",
        ),
        (
            "group: biller",
            "group: biller, mark: {value: $.id}",
            "the service copies the JSON field $.id, which records of the workload `billing` don't have: add it to their `value`",
        ),
        (
            "group: biller",
            "group: biller, fan_out: 3..1",
            "`3..1` is no number of outputs: write 1, 2, or a range like 1..3",
        ),
        ("group: biller", "group: biller, fan_out: 0", "`0` is no number of outputs"),
        (SERVICE, "{client: service}", "a service needs a `command`, like [python3, billing.py], or an `image`"),
        (
            SERVICE,
            "{client: exec, command: [a]}",
            "the client exec of the arm `ours` has no pipe: write `client: service`, or confluent or java or reference",
        ),
        (
            SERVICE,
            "{client: reference, settings: {session.timeout.ms: 6000}}",
            "the arm `ours` is in a group of the consumer protocol, in which brokers set `session.timeout.ms`",
        ),
        (
            SERVICE,
            "{client: confluent, env: {A: b}}",
            "`env` belongs to a service: write `client: service`, or remove it",
        ),
        (
            SERVICE,
            "{client: service, command: [a], settings: {acks: 1}}",
            "a service gets no `settings`: give it `env`, `command` or a `file`",
        ),
        (SERVICE, '{client: service, command: [a], ready: {log: "("}}', "`(` is not a regular expression"),
        (SERVICE, "{client: service, command: [a], ready: {http: 'http://example.com/'}}", "must match"),
        (SERVICE, "{client: service, command: [a], ready: {}}", "give either `log`, a pattern of a line, or `http`"),
        ("keys: 200", "keys: 200, value: {}", "a JSON value has 1 to 64 fields, got 0"),
        (
            "keys: 200",
            "keys: 200, value: {a: [1]}",
            "the field $.a must be a text, a number, true, false, or an object of such fields",
        ),
        ("keys: 200", "keys: 200, value: {a: {mark}}", 'to send the mark of each record, write "{mark}" in quotes'),
        (
            "keys: 200",
            "keys: 200, record_size: 9, value: {a: b}",
            "`value` is the whole value of a record, whose size follows from it: remove `record_size`",
        ),
        (
            "    arms:",
            "    consume: {topic: orders}\n    arms:",
            "`consume` and `pipe` exclude each other in one workload: give `consume` one of its own",
        ),
        (
            "    pipe: {from: orders, to: billed, group: biller}\n",
            "",
            "the arm `ours` is a service, which reads one topic and writes another",
        ),
        (
            "faults:",
            "  - {name: more, consume: {topic: billed}}\nfaults:",
            "the workload `more` consumes billed, which the harness reads as the outputs of the pipe: give one of them another topic",
        ),
        (
            "faults:",
            "  - {name: more, produce: {topic: billed, rate: 1/s}}\nfaults:",
            "the workload `more` produces to billed",
        ),
        (
            "faults:",
            "  - {name: more, produce: {topic: orders, rate: 1/s, value: {a: 1}}}\nfaults:",
            "the workload `billing` writes another `value` to orders: give both workloads the same",
        ),
        (
            "faults:",
            f"  - {{name: more, pipe: {{from: orders, to: billed, group: other}}, arms: {{more: {SERVICE}}}}}\nfaults:",
            "the workload `billing` writes to billed too: give each pipe its own topic",
        ),
        (
            "group: biller",
            "group: readers-baseline",
            "the workload `more` uses the group readers-baseline too: give the pipe its own",
        ),
        (
            "kill_client, client: ours, op: pipe",
            "churn, client: ours",
            "the groups of `billing` have one member and can't churn: raise `members`",
        ),
        (
            "kill_client, client: ours, op: pipe",
            "join, client: ours member 1",
            "`join` starts new members: name an arm",
        ),
        (
            SERVICE,
            SERVICE.replace("client: service", "client: confluent").replace(", command: [python3, billing.py]", ""),
            "the pipe of the arm `ours` reads in a group: add `group` to `pipe`",
        ),
        ("client: ours, op: pipe", "client: ours member 2", "there is no member 2 of the arm `ours`, which has 1"),
    ],
)
def test_mistakes(wrong: str, right: str, said: str) -> None:
    plan = PLAN.replace(wrong, right)
    if "confluent" in right and "env" not in right:
        plan = plan.replace(", group: biller", "")
    if "readers-baseline" in right:
        plan = plan.replace("faults:", "  - {name: more, consume: {topic: orders, group: readers}}\nfaults:")
    with pytest.raises(PlanError) as caught:
        load_plan(plan)
    assert said in "\n".join(caught.value.problems)


@pytest.mark.parametrize("kind", ["zombie", "join", "churn", "evict"])
def test_members_of_a_service_without_a_group(kind: str) -> None:
    """Nobody could tell whether they are members; what needs only the processes works."""
    plan = PLAN.replace(", group: biller", "")
    load_plan(plan.replace("kill_client, client: ours, op: pipe", "leave, client: ours"))
    with pytest.raises(PlanError) as caught:
        load_plan(plan.replace("kill_client, client: ours, op: pipe", f"{kind}, client: ours"))
    said = "the plan does not say in which group the processes of the service `ours` are: add `group` to its `pipe`"
    assert said in "\n".join(caught.value.problems)


@pytest.mark.parametrize("kind", ["zombie", "evict", "leave"])
def test_members_of_a_service_are_targets_of_their_operation(kind: str) -> None:
    load_plan(PLAN.replace("kill_client, client: ours, op: pipe", f"{kind}, client: ours, op: pipe"))


def test_a_zombie_of_a_pipe_of_ours_must_outlast_its_session() -> None:
    """That of a service is not known."""
    plan = PLAN.replace("kill_client, client: ours, op: pipe", "zombie, client: ours")
    load_plan(plan)
    ours = plan.replace(SERVICE, "{client: confluent, settings: {session.timeout.ms: 6000}}")
    with pytest.raises(PlanError, match="the group of `billing/ours` expels a paused consumer only after 6s"):
        load_plan(ours)


@pytest.mark.parametrize("client", ["ours", "ours member 1", "any member of ours", "billing/ours"])
@pytest.mark.parametrize("kind", ["kill_client", "pause_client", "leave"])
def test_processes_of_a_service_are_targets(kind: str, client: str) -> None:
    load_plan(PLAN.replace("kind: kill_client, client: ours, op: pipe", f"kind: {kind}, client: {client}"))


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ("leader of billed-ours/5", ""),
        ("coordinator of biller-lib", ""),
        (
            "leader of billed/0",
            "each arm writes a topic of its own, made after `billed`: name billed-lib or billed-ours",
        ),
        ("leader of billed-ours/6", "the topic billed-ours has no partition 6: its partitions are 0 to 5"),
        ("leader of billed-theirs/0", "the topic `billed-theirs` is not among the plan's `topics`"),
    ],
)
def test_faults_name_the_topics_and_groups_of_arms(broker: str, said: str) -> None:
    plan = PLAN.replace("    arms:\n", "    arms:\n      lib: {client: confluent}\n")
    plan = plan.replace("kind: kill_client, client: ours, op: pipe", f"kind: kill, broker: {broker}")
    if not said:
        load_plan(plan)
        return
    with pytest.raises(PlanError) as caught:
        load_plan(plan)
    assert said in "\n".join(caught.value.problems)


def test_a_service_without_kafkas_address_is_warned_about() -> None:
    """The address may be in any of the three places; a pipe of ours needs none."""
    (warning,) = load_plan(PLAN).warnings
    assert "the service `ours` is not given Kafka's address" in warning
    for given in ('env: {K: "{bootstrap}"}', 'file: "kafka = {bootstrap}"', 'command: [a, "--kafka={bootstrap}"]'):
        arm = given if "command" in given else f"command: [a], {given}"
        assert () == load_plan(PLAN.replace(SERVICE, f"{{client: service, {arm}}}")).warnings
    ours = load_plan(PLAN.replace(SERVICE, "{client: confluent}")).warnings
    assert not any("Kafka's address" in warning for warning in ours)
