"""Made-up measurements with realistic noise: what the rates of false alarms are measured on. Seeded.

The model of the simulations that chose our statistics: a block is one fault, which stalls one contiguous stretch of
records for a time of its own; two arms in one block share the machine, whose speed wanders from block to block.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

RECORDS = 4000
STALLED = 40
Q = 0.999
_MACHINE, _OWN = 0.25, 0.05  # sigma of the logarithm: shared by a pair, and each arm's own
_BODY_US, _BODY_SIGMA = 6000.0, 0.3
_STALL_US = 300_000.0


def pairs(rng: Generator, blocks: int, ratio: float = 1.0) -> tuple[list[float], list[float]]:
    """The p99.9 of each block of two arms that share their blocks; ours is ``ratio`` times as slow."""
    ours, theirs = (np.quantile(side, Q, axis=1, method="inverted_cdf") for side in records(rng, blocks))
    return (ours * ratio).tolist(), theirs.tolist()


def records(rng: Generator, blocks: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every record's latency, a row a block, of two arms that share their blocks."""
    machine = np.exp(rng.normal(0, _MACHINE, blocks))
    return _records(rng, machine), _records(rng, machine)


def nights_apart(
    rng: Generator, blocks: int, between: float, ratio: float = 1.0, *, steady: bool = False
) -> tuple[list[float], list[float]]:
    """The blocks of one arm in two runs, each of which has a machine ``between`` (sigma) off the usual.

    ``steady``: p50 rather than p99.9, so that blocks of one run hardly differ.
    """
    runs = np.exp(rng.normal(0, between, 2))
    machines = [run * np.exp(rng.normal(0, _MACHINE if not steady else _OWN, blocks)) for run in runs]
    q = 0.5 if steady else Q
    ours, theirs = (np.quantile(_records(rng, each), q, axis=1, method="inverted_cdf") for each in machines)
    return (ours * ratio).tolist(), theirs.tolist()


def nights(rng: Generator, length: int, shift_at: int | None = None, ratio: float = 1.0) -> NDArray[np.float64]:
    """A nightly series: lognormal (sigma 0.1) around 40 ms, one night in thirty far off, ``ratio`` from a night on."""
    values = 40_000 * np.exp(rng.normal(0, 0.1, length))
    outliers = rng.random(length) < 0.03
    values[outliers] *= rng.uniform(1.5, 3, outliers.sum())
    if shift_at is not None:
        values[shift_at:] *= ratio
    return values


def _records(rng: Generator, machine: NDArray[np.float64]) -> NDArray[np.float64]:
    blocks = len(machine)
    body = _BODY_US * np.exp(rng.normal(0, _BODY_SIGMA, (blocks, RECORDS)))
    # of a stall of so long, the first record waits all of it, the last one none
    lasted_us = rng.gamma(2.0, _STALL_US / 2, blocks)
    body[:, :STALLED] += lasted_us[:, None] * np.linspace(1, 0, STALLED)
    slower: NDArray[np.float64] = machine * np.exp(rng.normal(0, _OWN, blocks))
    return body * slower[:, None]
