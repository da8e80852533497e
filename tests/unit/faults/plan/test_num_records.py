"""The setting ``num-records``, with which Kafka's ProducerPerformance drives the load of a Java client."""

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan

PLAN = """
name: test
topics:
  - {{name: orders, partitions: 6, replication: 3}}
workloads:
  - name: orders
    produce: {{topic: orders, rate: 60/s{produce}}}
    arms: {{perf: {{client: {client}, settings: {{num-records: {number}}}}}}}
faults: []
"""


def plan(produce: str = "", client: str = "java", number: str = "600") -> str:
    return PLAN.format(produce=produce, client=client, number=number)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (plan(", keys: 5"), "give `produce` one `topic`, one producer, no `keys` and no `transaction`"),
        (plan(", producers: 2"), "give `produce` one `topic`, one producer, no `keys` and no `transaction`"),
        (plan(", record_size: {min: 1, max: 9}"), "sends records of one size: give `record_size` one value"),
        (plan(number="many"), "`num-records` is the number of records to send, got 'many'"),
        (plan(number="0"), "`num-records` is the number of records to send, got 0"),
        (plan(client="confluent"), "`num-records` is not a librdkafka setting"),
        (
            plan().replace("produce: {topic: orders, rate: 60/s}", "consume: {topic: orders}"),
            "give `produce` one `topic`",
        ),
    ],
)
def test_what_the_tool_can_not_do_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(text)
    assert said in "\n".join(caught.value.problems)


def test_what_the_tool_can_do_is_accepted() -> None:
    (workload,) = load_plan(plan(", record_size: 1000")).plan.workloads
    assert {"num-records": 600} == workload.arms["perf"].settings
