"""Goes on with its producer id and epoch after it was fenced.

A producer that keeps them in a file, or that treats the error as one of the transaction, does so: no broker accepts
anything of it any more, and each transaction fails at once (Kafka's ``ProducerFencedException`` is fatal).
"""

from aftershock.tests.chaos.known_bad.catalogue import KnownBad, put
from aftershock.workloads.adapters.reference import ReferenceProducer
from aftershock.workloads.kafka.rules.transaction_manager import State


def plant() -> None:
    async def reopen_as_before(self):
        former = self._producer.transactions
        await self._producer.close(0)
        self._producer = await self._create()
        renewed = self._producer.transactions
        renewed._use(former.producer)
        renewed.version_2 = renewed.next_version_2 = former.version_2
        renewed.state = State.READY
        await self._producer.start([topic.name for topic in self._assignment.topics])

    put(ReferenceProducer, "reopen", reopen_as_before)


BAD = KnownBad(
    "an administrator fences the producer",
    "obligation/produce",
    "the longest stall within that time",
    plant,
)
