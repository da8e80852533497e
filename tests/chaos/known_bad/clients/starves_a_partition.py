"""Excludes a partition for good once a Produce to it was refused.

KIP-794 excludes partitions of late brokers from its draw; this client never includes them again (KAFKA-10888 is
about the effect of uneven partitions).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.kafka.rules.accumulator import RecordAccumulator
from aftershock.workloads.kafka.rules.partitioner import UniformSticky


def plant() -> None:
    draw, retry, shunned = UniformSticky._draw, RecordAccumulator.retry, []

    def retry_and_shun(self, batch, now_ms):
        shunned.append(batch.tp.partition)
        retry(self, batch, now_ms)

    def draw_another(self):
        return next(drawn for drawn in iter(lambda: draw(self), None) if drawn not in shunned[:1])

    put(RecordAccumulator, "retry", retry_and_shun)
    put(UniformSticky, "_draw", draw_another)


BAD = KnownBad("half of all Produce are refused", "slo/produce.gap-each-partition", "partitions", plant)
