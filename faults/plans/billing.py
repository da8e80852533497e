"""A small service: reads orders, writes a bill for each, and commits only when its bills are acknowledged.

It knows nothing of Aftershock: `KAFKA` is the address of the cluster, and an order and its bill have the same `id`.
The plan `billing.yaml` beside it puts it under test, as `docs/SERVICE.md` explains.
"""

import json
import os
import signal
import sys
import threading

from confluent_kafka import Consumer, KafkaException, Producer

stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
kafka = os.environ["KAFKA"]
consumer = Consumer(
    {
        "bootstrap.servers": kafka,
        "group.id": os.environ.get("GROUP", "biller"),
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": int(os.environ.get("SESSION_MS", "45000")),
    }
)
producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
consumer.subscribe([os.environ.get("ORDERS", "orders")])
sys.stdout.write("started\n")
sys.stdout.flush()

while not stopping.is_set():
    orders = [message for message in consumer.consume(100, timeout=0.1) if message.error() is None]
    if not orders:
        continue
    for message in orders:
        order = json.loads(message.value() or b"{}")
        bill = {"id": order["id"], "cents": 100 * order["amount"]}
        producer.produce(os.environ.get("BILLED", "billed"), key=message.key(), value=json.dumps(bill))
    if producer.flush(60):
        raise SystemExit("bills were not acknowledged for a minute; the next process bills these orders again")
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        sys.stderr.write(f"commit refused, another process bills these orders again: {error}\n")
consumer.close()
