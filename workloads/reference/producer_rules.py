"""The rules of one producer, put together."""

import random
from collections import Counter
from typing import NamedTuple, Self

from aftershock.workloads.reference.settings import ProducerSettings
from aftershock.workloads.rules.accumulator import Accumulator, Limits
from aftershock.workloads.rules.backoff import Backoff
from aftershock.workloads.rules.idempotence import Idempotence
from aftershock.workloads.rules.leader_discovery import LeaderDiscovery
from aftershock.workloads.rules.metadata import Metadata
from aftershock.workloads.rules.partitioner import Partitioner


class ProducerRules(NamedTuple):
    """``idempotence`` is None where it is switched off; ``backoff`` is that of retries."""

    backoff: Backoff
    metadata: Metadata
    discovery: LeaderDiscovery
    partitioner: Partitioner
    idempotence: Idempotence | None
    accumulator: Accumulator

    @classmethod
    def of(cls, settings: ProducerSettings, draw: random.Random) -> Self:
        """As the settings have them; all randomness comes from ``draw``.

        Partitions have a stream of their own: how often a back-off was looked at, which time decides, moves no record.
        """
        partitions = random.Random(draw.getrandbits(64))  # noqa: S311  # spreads load; nothing secret
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, draw)
        metadata = Metadata(max_age_ms=settings.metadata_max_age_ms, backoff=backoff)
        discovery = LeaderDiscovery(metadata, settings.leader_discovery, backoff)
        partitioner = Partitioner(
            settings.partitioner,
            batch_size=settings.batch_size,
            random=partitions,
            ignore_keys=settings.partitioner_ignore_keys,
            rack_aware=settings.partitioner_rack_aware,
            availability_timeout_ms=settings.partitioner_availability_timeout_ms,
        )
        idempotence = Idempotence() if settings.enable_idempotence else None
        limits = Limits(**{name: getattr(settings, name) for name in Limits._fields})
        accumulator = Accumulator(
            limits, metadata=metadata, discovery=discovery, partitioner=partitioner, idempotence=idempotence
        )
        return cls(backoff, metadata, discovery, partitioner, idempotence, accumulator)

    @property
    def counts(self) -> Counter[str]:
        """What all of them have counted so far."""
        own = self.metadata.counts + self.discovery.counts + self.partitioner.counts
        return own if self.idempotence is None else own + self.idempotence.counts
