"""Records responses of a real Kafka to the reference clients: ``python tests/contract/record_responses.py``.

Writes ``real_responses.json`` of the wire tests, which the fuzz test damages: for each API up to EACH responses of a
three-rack cluster while leaders move, base64 of the message behind its length.
"""

import asyncio
import json
import tempfile
from base64 import b64encode
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from aftershock.faults.sections.cluster import Cluster as ClusterPlan
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.launch import images_for, launch
from aftershock.harness.safety import ownership
from aftershock.tests.contract.load import new_topic, rotate_leaders
from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.committer import Committer, CommitterSettings
from aftershock.workloads.kafka.consumer.consumer import Consumer
from aftershock.workloads.kafka.consumer.shared import ConsumerSettings
from aftershock.workloads.kafka.producer.producer import Producer
from aftershock.workloads.kafka.rules.commits import Target
from aftershock.workloads.kafka.wire import codec

EACH = 6
TOPIC = "recorded"
TO = Path(__file__).parents[1] / "unit" / "workloads" / "kafka" / "wire" / "real_responses.json"


def recording() -> dict[type[Any], dict[bytes, None]]:
    """Return the list that collects each different response by its message type from now on."""
    heard: dict[type[Any], dict[bytes, None]] = defaultdict(dict)
    decode = codec.decode_response

    def decode_and_keep(kind: type[Any], message: Any, correlation_id: int) -> Any:
        heard[kind][bytes(message)] = None
        return decode(kind, message, correlation_id)

    codec.decode_response = decode_and_keep
    return heard


def _ignore_event(event: str, **details: object) -> None:
    pass


async def talk(cluster: Cluster) -> None:
    """Run a producer, a member of a group and a committer, before and after every leader has moved."""
    common = {"bootstrap.servers": cluster.bootstrap("b"), "client.rack": "b"}
    producer = Producer(parse(ProducerSettings, common), report=lambda _: None, on_event=_ignore_event)
    grouped = common | {"group.id": "recorded", "auto.offset.reset": "earliest"}
    consumer = Consumer(parse(ConsumerSettings, grouped), on_event=_ignore_event)
    committer = Committer(parse(CommitterSettings, common), report=lambda _: None, on_event=_ignore_event)
    await producer.start([TOPIC])
    await consumer.start([TOPIC])
    await consumer.subscribe([TOPIC], lambda _: None, lambda _: None)
    await committer.start([Target("alone", TOPIC, 0)])
    for round_ in range(3):
        for partition in range(3):
            await producer.send(TOPIC, b"value", partition=partition, token=round_)
        await producer.flush()
        committer.offer(Target("alone", TOPIC, 0), round_, token=round_)
        for _ in range(6):
            await consumer.poll(300)
        await consumer.commit()
        await asyncio.to_thread(rotate_leaders, cluster, TOPIC)
    await asyncio.gather(producer.close(2000), consumer.close(2000), committer.close(2000))


def main() -> None:
    client, spec = engine.connect(), ClusterSpec.of(ClusterPlan())
    with tempfile.TemporaryDirectory(prefix="record-") as home:
        run_id = Path(home).name.lower()
        try:
            with closing(launch(spec, run_id, Path(home), images_for(client, spec, print), print)) as cluster:
                new_topic(cluster, TOPIC, 3)
                heard = recording()
                asyncio.run(talk(cluster))
        finally:
            ownership.remove_run(client, run_id)
    kept = [
        {"type": f"{kind.__module__}.{kind.__name__}", "message": b64encode(message).decode()}
        for kind, messages in sorted(heard.items(), key=lambda entry: str(entry[0]))
        for message in sorted(messages, key=len)[-EACH:]
    ]
    TO.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{len(kept)} answers of {len(heard)} types")


if __name__ == "__main__":
    main()
