"""How well a topic's batches compress, so that a batch may take in more than ``batch.size`` before compression.

Kafka: ``CompressionRatioEstimator``. The estimate begins at 1; it follows a worse ratio at once (and by 0.05 at least),
a better one by 0.005 a batch. A batch keeps the estimate that it was opened with, and adds 5 % to be safe.
"""

SAFETY = 1.05
WORSE_STEP = 0.05
BETTER_STEP = 0.005


class CompressionRatios:
    """The estimates of one producer: compressed over uncompressed size, by topic."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, topic: str) -> float:
        """The present estimate."""
        return self._ratios.get(topic, 1.0)

    def observed(self, topic: str, ratio: float) -> None:
        """A batch came out at ``ratio``."""
        known = self.of(topic)
        step = known + WORSE_STEP if ratio > known else known - BETTER_STEP
        self._ratios[topic] = max(step, ratio)

    def too_large(self, topic: str) -> None:
        """A broker refused a batch as too large: hope for nothing again."""
        self._ratios[topic] = 1.0
