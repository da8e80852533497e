"""The assignors and the bytes of their subscriptions beside Kafka's own classes, in one JVM.

Kafka reads the subscriptions as our clients encode them, and we decode the assignments that Kafka encodes. They must be
equal, but for the differences that the docstring of ``rules/assignors.py`` gives its reasons for.
"""

import base64
import json
import subprocess
from collections import Counter
from random import Random
from typing import Any, NamedTuple

import pytest

from aftershock.tests.clients.build import Missing, java_program
from aftershock.workloads.kafka.consumer.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from aftershock.workloads.kafka.rules.assignors import ASSIGNORS, Members, Subscription
from aftershock.workloads.kafka.rules.values import UNKNOWN, TopicPartition

RACKS = ("a", "b", "c")
TOPICS = ("t0", "t1", "t2", "t10", "u")


class Case(NamedTuple):
    assignor: str
    counts: dict[str, int]
    members: dict[str, Subscription]


def random_case(random: Random) -> Case:
    """Draw a group that has members with claims of earlier generations, some of them outdated or in conflict."""
    assignor = random.choice(sorted(ASSIGNORS))
    topics = random.sample(TOPICS, random.randint(1, len(TOPICS)))
    counts = {topic: random.randint(1, 9) for topic in topics if random.random() < 0.9}
    ids = [f"{random.choice(('member', 'consumer-g', 'x'))}-{number}" for number in range(random.randint(1, 9))]
    equal = random.random() < 0.6
    before = {name: Subscription(tuple(topics)) for name in random.sample(ids, random.randint(1, len(ids)))}
    owned = ASSIGNORS["sticky"](counts, before) if random.random() < 0.8 else {}
    claimed = [TopicPartition(topic, number) for topic in TOPICS for number in range(counts.get(topic, 9))]
    members = {}
    for name in ids:
        claims = [*owned.get(name, ()), *random.sample(claimed, random.choice((0, 0, 0, 1, 2)))]
        generation = random.choice((3, 3, 3, 2, 1, UNKNOWN)) if claims else UNKNOWN
        members[name] = Subscription(
            tuple(topics if equal else random.sample(topics, random.randint(1, len(topics)))),
            tuple(dict.fromkeys(claims)) if generation != UNKNOWN else (),
            generation,
            f"i{random.randint(0, 99)}-{name}" if random.random() < 0.3 else None,
            random.choice((*RACKS, "elsewhere", None)),
        )
    return Case(assignor, counts, members)


def encoded(case: Case, member: Subscription) -> bytes:
    """Return the bytes of a member; one of the eager ``sticky`` owns nothing and claims what it had before."""
    joining = member._replace(owned=()) if case.assignor == "sticky" else member
    return encode_subscription(case.assignor, joining, member.owned, member.generation)


def answers_of_kafka(cases: list[Case]) -> list[dict[str, Any]]:
    """Return the order of the members and their encoded assignments, by case."""
    try:
        command = java_program("java", "KafkaAssignors")
    except Missing as reason:
        pytest.skip(str(reason))
    lines = [
        {
            "assignor": case.assignor,
            "topics": case.counts,
            "racks": RACKS,
            "members": [
                {
                    "id": name,
                    "instance": member.instance_id,
                    "subscription": base64.b64encode(encoded(case, member)).decode(),
                }
                for name, member in case.members.items()
            ],
        }
        for case in cases
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    answers = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert len(cases) == len(answers)
    return [json.loads(answer) for answer in answers]


def has_former_subscriber(members: Members) -> bool:
    """Return True if a member had a partition, in an outdated generation, whose topic it doesn't subscribe to now."""
    latest = max(member.generation for member in members.values())
    return any(
        tp.topic not in member.topics
        for member in members.values()
        if member.generation < latest
        for tp in member.owned
    )


@pytest.mark.parametrize("count", [200, 10_000])
def test_kafka_assigns_alike(count: int) -> None:
    random = Random(count)  # noqa: S311  # no secret
    cases = [random_case(random) for _ in range(count)]
    compared: Counter[str] = Counter()
    for case, answer in zip(cases, answers_of_kafka(cases), strict=True):
        members = {
            name: decode_subscription(case.assignor, encoded(case, case.members[name]), case.members[name].instance_id)
            for name in answer["order"]
        }
        ours = ASSIGNORS[case.assignor](case.counts, members)
        contested: set[TopicPartition] = set()
        if "sticky" in case.assignor and len({frozenset(member.topics) for member in members.values()}) > 1:
            if has_former_subscriber(members):
                continue
            claims = Counter(tp for member in members.values() for tp in member.owned)
            contested = {tp for tp, claimers in claims.items() if claimers > 1}
        theirs = {name: decode_assignment(base64.b64decode(data)) for name, data in answer["assignment"].items()}
        expected, found = (
            {name: sorted(set(partitions) - contested) for name, partitions in assignment.items()}
            for assignment in (theirs, ours)
        )
        assert expected == found, f"{case.assignor} {case.counts}\n{members}\nKafka answers {answer}"
        compared[case.assignor] += 1
    assert min(compared[name] for name in ASSIGNORS) > count / 5
