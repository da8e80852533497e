import pytest

from aftershock.workloads.kafka.rules.batch import CompressionRatios


@pytest.mark.parametrize(
    ("observed", "estimates"),
    [
        pytest.param([], 1.0, id="nothing is hoped for at first"),
        pytest.param([0.3], 0.995, id="a better ratio is followed by 0.005"),
        pytest.param([0.3, 0.3], 0.99, id="and again"),
        pytest.param([0.998], 0.998, id="but not beyond what was seen"),
        pytest.param([0.3, 1.2], 1.2, id="a worse one at once"),
        pytest.param([0.3, 1.0], 1.045, id="and by 0.05 at least"),
    ],
)
def test_estimate(observed: list[float], estimates: float) -> None:
    """CompressionRatioEstimator: quick to lose hope, slow to gain it."""
    ratios = CompressionRatios()
    for ratio in observed:
        ratios.observed("t", ratio)
    assert estimates == pytest.approx(ratios.of("t"))


def test_a_refusal_starts_again() -> None:
    """After a batch was too large for a broker, the next ones of its topic, and of no other, hope for nothing."""
    ratios = CompressionRatios()
    for topic in ("t", "u"):
        ratios.observed(topic, 0.3)
    ratios.too_large("t")
    assert (1.0, 0.995) == (ratios.of("t"), ratios.of("u"))
