"""Starts again, after it stood still, with the static id of another member, and whenever it is fenced.

Two pods with one `group.instance.id` do the same, since their supervisor restarts whoever meets FENCED_INSTANCE_ID:
each takes the partitions of the other, which goes on until its next commit or heartbeat.
"""

from confluent_kafka import Consumer, KafkaError

from aftershock.tests.chaos.known_bad.catalogue import OF_TWO_OWNERS, KnownBad, put
from aftershock.workloads.adapters.confluent import ConfluentConsumer
from aftershock.workloads.adapters.confluent_settings import consumer_config
from aftershock.workloads.load.schedule import US_PER_S

STOOD_STILL_US = 2 * US_PER_S


def plant() -> None:
    on_error, step = ConfluentConsumer._on_error, ConfluentConsumer.step

    def note(self, error):
        on_error(self, error)
        self._is_fenced = getattr(self, "_is_fenced", False) or error.code() == KafkaError.FENCED_INSTANCE_ID

    def step_or_start_again(self, wait_us):
        now_us = self._clock()
        stood_still = now_us - getattr(self, "_stepped_us", now_us) > STOOD_STILL_US
        self._stepped_us = now_us
        if stood_still or getattr(self, "_is_fenced", False):
            self._is_fenced = False
            first = f"{self._assignment.instance_id.rpartition('-')[0]}-1"
            self._assignment = self._assignment.model_copy(update={"instance_id": first})
            self._consumer.close()
            config = consumer_config(self._assignment) | self._callbacks | {"on_commit": self._on_commit}
            self._consumer = Consumer(config)
            self.prepare()
        step(self, wait_us)

    put(ConfluentConsumer, "_on_error", note)
    put(ConfluentConsumer, "step", step_or_start_again)


# each of the two resumes where the other has committed
ALSO = OF_TWO_OWNERS | {"integrity/skipped"}
BAD = KnownBad("a member stands still", "integrity/co_owned", "assignments", plant, ALSO)
