"""Recording of last stable offsets and high watermarks, as samples of ``metrics/``.

Each broker is asked for the partitions that it leads, in a task of its own. A partition whose leader does not answer
has no samples of that time, so a judge can tell it from one whose last stable offset stands still.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from types import TracebackType

from aftershock.errors import AftershockError
from aftershock.faults.targets.values import BrokerId
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.admin import Admin
from aftershock.harness.kafka.replicas import stable_offsets_led_by
from aftershock.harness.run.polling import Poll, PollingRecorder
from aftershock.harness.run.recording import Sample, in_thread
from aftershock.harness.safety.rundir import RunClock
from aftershock.names import OFFSETS_TOPIC
from aftershock.results.evidence.transactions import END, STABLE, timeouts_ms


def recorded_topics(timeline: Timeline) -> list[str]:
    """Return the topics with transactions; on an attached cluster without those of Kafka's coordinators."""
    topics = sorted(timeouts_ms(timeline.workloads))
    return [name for name in topics if name != OFFSETS_TOPIC or "attach" not in timeline.cluster]


class StableOffsetRecorder(PollingRecorder):
    """Async context manager that samples the offsets of ``topics`` during its block, and a last time at its end.

    ``keep`` receives the samples, in the event loop.
    """

    def __init__(
        self, cluster: Target, topics: Sequence[str], clock: RunClock, keep: Callable[[Sequence[Sample]], None]
    ) -> None:
        super().__init__(cluster, clock)
        self._topics, self._keep = topics, keep

    def lanes(self) -> Sequence[Iterator[Poll]]:
        brokers = self._cluster.admin.addresses if self._topics else ()
        return [repeat(partial(self._sample, broker=broker)) for broker in brokers]

    def polled(self, result: Sequence[Sample], /) -> None:
        self._keep(result)

    def _sample(self, admin: Admin, broker: BrokerId) -> list[Sample]:
        try:
            found = stable_offsets_led_by(admin, broker, self._topics)
        except AftershockError:  # it may be down
            return []
        t_us = self._clock.now_us()
        return [
            Sample(t_us, broker, f"{name}/{topic}/{number}", value)
            for (topic, number), offsets in found.items()
            for name, value in zip((STABLE, END), offsets, strict=True)
        ]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if error is None and self._topics:
            admin = self._cluster.admin
            last = [await in_thread(self._sample, admin, broker) for broker in admin.addresses]
            self._keep([*chain.from_iterable(last)])
