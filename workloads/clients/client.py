"""What a worker asks of any client, whichever library is inside."""

from typing import Any, Protocol

from aftershock.workloads.orders import Order


class Client(Protocol):
    """One producer or consumer. It owns no thread: everything happens in ``step``, which never waits for long."""

    def prepare(self) -> None:
        """Come to where the first record can be sent or read. Tries until it can: whoever asked has a deadline."""

    def obey(self, order: Order) -> None:
        """Take an order. What comes of it, if anything, is told by ``answer``."""

    def step(self, wait_us: int) -> None:
        """Do what is due, or wait for something to do, at most about ``wait_us``."""

    def answer(self) -> dict[str, Any] | None:
        """Once, when the last order has been carried out: what to tell about it."""

    def progress(self) -> dict[str, Any]:
        """Counts so far and latencies since the last call, as ``tally.Tally.progress`` has them."""

    def counters(self) -> dict[str, int]:
        """The closing counts."""

    def close(self) -> None:
        """Leave in good order, as far as the cluster lets us."""
