"""Model of KIP-794's trial without brokers: the producer's own rules, driven by a discrete-event simulation.

One producer sends records at a constant rate to three brokers that lead one partition each. A broker answers the
Produce requests of a connection one by one, ``rtt_ms`` after the request or the earlier answer; the slow broker, of
partition 0, needs ``delay_ms`` more. The accumulator, the partitioner and the order of the sender are those of the
reference producer (``ProducerRules``, ``Sender._send_ready``); no code of the partitioner is repeated here.
"""

from collections import Counter, deque
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import NamedTuple

from aftershock.workloads.kafka.client.settings import ProducerSettings, parse
from aftershock.workloads.kafka.producer.produce_request import ProducerRules
from aftershock.workloads.kafka.rules.accumulator import AppendResult
from aftershock.workloads.kafka.rules.batch import ProducerBatch
from aftershock.workloads.kafka.rules.metadata import MetadataResponse
from aftershock.workloads.kafka.rules.values import Leader, Node, PartitionMetadata, TopicMetadata
from aftershock.workloads.load.schedule import HEADER, pack

BROKERS = (1, 2, 3)
ACCEPTED = (AppendResult.JOINED, AppendResult.READY)


SLICE_MS = 20_000.0


class Prediction(NamedTuple):
    """The slow broker's percentage of the bytes and of the draws, and the number of draws.

    ``slices`` has its percentage of the records in each slice of ``SLICE_MS``, by the time at which they were due, and
    ``refused`` the percentage of records that found no room in the buffer.
    """

    bytes_percent: float
    draws_percent: float
    draws: int
    slices: tuple[float, ...]
    refused: tuple[float, ...]


class Simulation:
    def __init__(self, delay_ms: float, rtt_ms: float, settings: dict[str, object], seed: int) -> None:
        common = {"bootstrap.servers": "k:1", "linger.ms": 0, "enable.idempotence": False}
        self.settings = parse(ProducerSettings, {**common, **settings})
        self.rules = ProducerRules.of(self.settings, Random(seed))  # noqa: S311  # repeatable, not secret
        self.service_ms = {broker: rtt_ms + (delay_ms if broker == 1 else 0) for broker in BROKERS}
        self.idle_at_ms = dict.fromkeys(BROKERS, 0.0)
        self.in_flight = dict.fromkeys(BROKERS, 0)
        self.answers: list[tuple[float, int, int, list[ProducerBatch]]] = []
        self.blocked: deque[tuple[float, int]] = deque()
        self.bytes_of = [0] * len(BROKERS)
        self.records_of: dict[int, list[int]] = {}
        self.refused: Counter[int] = Counter()
        parts = tuple(PartitionMetadata(n, Leader(broker, 0), BROKERS, BROKERS, 0) for n, broker in enumerate(BROKERS))
        self.rules.metadata.want(["orders"])
        self.rules.metadata.request_sent()
        nodes = tuple(Node(broker, f"k{broker}", 9092, None) for broker in BROKERS)
        self.rules.metadata.update(MetadataResponse(nodes, (TopicMetadata("orders", None, parts, 0),)), 0)

    def run(self, rate_per_s: float, seconds: float) -> Prediction:
        """Simulate ``seconds`` of load, until the last record is acknowledged or refused."""
        interval_ms, number, count = 1000 / rate_per_s, 0, round(rate_per_s * seconds)
        while number < count or self.answers:
            due_ms = number * interval_ms if number < count else inf
            answer_ms = self.answers[0][0] if self.answers else inf
            # A record that waited too long for room is refused, as in ``Producer.send``.
            while self.blocked and self.blocked[0][0] + self.settings.max_block_ms <= min(due_ms, answer_ms):
                self.refused[int(self.blocked.popleft()[0] // SLICE_MS)] += 1
                self.rules.accumulator.waiting -= 1
            if due_ms <= answer_ms:
                if not self.append(number, due_ms):
                    self.blocked.append((due_ms, number))
                    self.rules.accumulator.waiting += 1
                number, now_ms = number + 1, due_ms
            else:
                now_ms, _, broker, batches = heappop(self.answers)
                self.in_flight[broker] -= 1
                for batch in batches:
                    self.rules.accumulator.unmute(batch)
                    self.rules.accumulator.unfinished.finish(batch)
                    self.bytes_of[batch.tp.partition] += batch.raw
                    for token in batch.tokens:
                        of_slice = self.records_of.setdefault(int(token * interval_ms // SLICE_MS), [0] * len(BROKERS))
                        of_slice[batch.tp.partition] += 1
                while self.blocked and self.append(self.blocked[0][1], now_ms):
                    self.blocked.popleft()
                    self.rules.accumulator.waiting -= 1
            self.send_ready(now_ms)
        draws = self.rules.counts
        share = 100 * draws["partition_draws_0"] / draws["partition_draws"]
        slices = tuple(100 * counts[0] / sum(counts) for _, counts in sorted(self.records_of.items()))
        total = 100 * self.bytes_of[0] / sum(self.bytes_of)
        per_slice = rate_per_s * SLICE_MS / 1000
        refused = tuple(100 * self.refused[number] / per_slice for number in range(len(slices)))
        return Prediction(total, share, draws["partition_draws"], slices, refused)

    def append(self, number: int, now_ms: float) -> bool:
        headers = ((HEADER, pack(0, number, 0)),)
        taken = self.rules.accumulator.append("orders", bytes(512), None, headers, None, number, round(now_ms), now_ms)
        return taken in ACCEPTED

    def send_ready(self, now_ms: float) -> None:
        accumulator, sent = self.rules.accumulator, True
        while sent and not accumulator.is_empty:
            sent = False
            for broker in accumulator.ready(now_ms).nodes:
                can_drain = self.in_flight[broker] < self.settings.max_in_flight_requests_per_connection
                self.rules.partitioner.node_ready(broker, now_ms, can_drain=can_drain)
                if can_drain and (batches := accumulator.drain(broker, now_ms)):
                    done_ms = max(now_ms, self.idle_at_ms[broker]) + self.service_ms[broker]
                    self.idle_at_ms[broker] = done_ms
                    self.in_flight[broker] += 1
                    heappush(self.answers, (done_ms, batches[0].tokens[0], broker, batches))
                    sent = True


def predict(
    partitioner: str, switch: str, delay_ms: float, *, seed: int = 1, rtt_ms: float = 3, seconds: float = 200
) -> Prediction:
    """Simulate an arm of the plan ``kips/794-series``."""
    settings: dict[str, object] = {"partitioner": partitioner, "switch": switch, "batch.size": 2048}
    settings |= {"buffer.memory": 8_388_608 if partitioner == "sticky" else 262_144, "max.block.ms": 1000}
    return Simulation(delay_ms, rtt_ms, settings, seed).run(160, seconds)
