"""Many faults at once: leaders move, brokers refuse, forget, delay and disconnect, while records are sent."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.producing import Writer, writing, written

RECORDS = 600
PARTITIONS = 3
TROUBLES = [
    {"error": ErrorCode.not_leader_or_follower},
    {"error": ErrorCode.not_enough_replicas},
    {"error": ErrorCode.not_enough_replicas_after_append, "applied": True},
    {"error": ErrorCode.kafka_storage_error},
    {"answer": "close"},
    {"answer": "refuse"},
    {"answer": "none"},
    {"answer": "lost"},
    {"answer": "swapped"},
    {"cut_bytes": 11},
    {"delay_ms": 60},
    {"throttle_ms": 30},
]
"""Any of them may hit any attempt. Errors of the record itself are not among them: a broker has them for every attempt
of a batch or for none. One for the second attempt of a batch that was written makes Kafka's producer write it twice."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3) as cluster:
        yield cluster


async def make_trouble(cluster: ScriptedBroker, writer: Writer, random: Random) -> None:
    while True:
        await asyncio.sleep(random.uniform(0.005, 0.03))
        partition = random.randrange(PARTITIONS)
        what = random.random()
        if what < 0.3:
            unaware = random.sample([1, 2, 3], random.randrange(2))
            cluster.move_leader(writer.topic, partition, to=random.randint(1, 3), unaware=unaware)
        elif what < 0.4:
            cluster.publish()
        elif what < 0.5:
            cluster.close_connections(random.randint(1, 3))
        else:
            cluster.script("Produce", nth=random.randint(1, 4), **random.choice(TROUBLES))  # type: ignore[arg-type]


async def load(writer: Writer, random: Random) -> None:
    while writer.taken < RECORDS:
        for _ in range(random.randint(1, 10)):
            await writer.producer.send(
                writer.topic, b"%d" % writer.taken, partition=writer.taken % PARTITIONS, token=writer.taken
            )
            writer.taken += 1
        await asyncio.sleep(random.uniform(0, 0.02))


@pytest.mark.parametrize("seed", range(6))
async def test_outcomes_match_the_log(cluster: ScriptedBroker, seed: int) -> None:
    """Delivered records are in the log exactly once and in order, failed records are not; every record has an
    outcome.

    A record in doubt is in the log at most once. (Seeded, but the network has its own timing.)
    """
    random = Random(seed)  # noqa: S311  # no secret
    settings = {"linger_ms": random.choice([0, 2]), "request_timeout_ms": 150, "delivery_timeout_ms": 1500}
    async with writing(cluster, PARTITIONS, batch_size=random.choice([200, 16384]), **settings) as writer:
        trouble = asyncio.create_task(make_trouble(cluster, writer, random))
        await load(writer, random)
        trouble.cancel()
        cluster.publish()
        await writer.flush()
    cluster.clear()
    for partition in range(PARTITIONS):
        log = written(cluster, writer.topic, partition)
        ends = {token: each for token, each in writer.outcomes.items() if each.partition == partition}
        delivered = [token for token, each in ends.items() if each.error == 0]
        failed = {token for token, each in ends.items() if each.error and not each.in_doubt}
        assert set(delivered) <= set(log)
        assert set() == failed & set(log)
        assert sorted(delivered) == [token for token in log if token in set(delivered)]
        assert [] == [token for token, times in Counter(log).items() if times > 1]
    assert sum(each.error == 0 for each in writer.outcomes.values()) > RECORDS / 2
