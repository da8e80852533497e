"""The loop of a consumer: whatever happens, see what is due now, start it, and sleep until something else is."""

from collections import Counter

from aftershock.workloads.reference.fetch_routes import FetchRoutes
from aftershock.workloads.reference.fetcher import Fetcher
from aftershock.workloads.reference.offsets import Offsets
from aftershock.workloads.reference.shared import Shared
from aftershock.workloads.reference.sparing import Sparing
from aftershock.workloads.reference.wake import Wake


class FetchLoop:
    """Metadata, lookups, validations and fetches of one consumer. ``wake`` when its positions or its buffer changed."""

    def __init__(self, shared: Shared) -> None:
        self.wake = Wake()
        self.offsets = Offsets(shared)
        self._shared = shared
        tell = Sparing(shared.tell, shared.clock_ms)
        self._fetcher = Fetcher(shared, FetchRoutes(shared.replicas, shared.metadata, shared.positions, tell))

    @property
    def counts(self) -> Counter[str]:
        """The counters of all rules that the loop drives."""
        shared = self._shared
        rules = (shared.replicas, shared.metadata, shared.discovery, shared.positions)
        return sum((rule.counts for rule in rules), self._fetcher.counts)

    async def run(self) -> None:
        """For ever; UnsupportedError when a broker can't be fetched from at all."""
        while True:
            metadata_ms = self._shared.brokers.refresh_if_due()
            now_ms = self._shared.clock_ms()
            fetch_ms = self._fetcher.step(now_ms)
            await self.wake.wait(min(metadata_ms, fetch_ms, self.offsets.step(now_ms)))

    async def end_sessions(self) -> None:
        """Tell the brokers that their sessions are over; ``run`` must have ended."""
        self._fetcher.abandon()
        await self._fetcher.end_sessions()

    async def close(self) -> None:
        """End what is under way."""
        self._fetcher.abandon()
        await self.offsets.close()
