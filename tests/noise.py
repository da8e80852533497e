"""Measurements with realistic noise, on which tests measure rates of false alarms. Seeded.

As in the simulations that chose the statistics, a block is one fault, which stalls a contiguous stretch of records for
a random time. Two arms in one block share the machine, whose speed varies from block to block.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

RECORDS = 4000
STALLED = 40
Q = 0.999
_MACHINE, _OWN = 0.25, 0.05  # sigma of the logarithm: shared by a pair, and per arm
_BODY_US, _BODY_SIGMA = 6000.0, 0.3
_STALL_US = 300_000.0


def pairs(rng: Generator, blocks: int, ratio: float = 1.0) -> tuple[list[float], list[float]]:
    """Return the p99.9 of each block of two arms that share their blocks; the first arm is ``ratio`` times as slow."""
    ours, theirs = (np.quantile(side, Q, axis=1, method="inverted_cdf") for side in records(rng, blocks))
    return (ours * ratio).tolist(), theirs.tolist()


def records(rng: Generator, blocks: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return every record's latency, with a row per block, of two arms that share their blocks."""
    machine = np.exp(rng.normal(0, _MACHINE, blocks))
    return _records(rng, machine), _records(rng, machine)


def nights_apart(
    rng: Generator, blocks: int, between: float, ratio: float = 1.0, *, steady: bool = False
) -> tuple[list[float], list[float]]:
    """Return the blocks of one arm in two runs; each run's machine deviates by ``between`` (sigma).

    With ``steady``, values are p50 rather than p99.9, so blocks of a run hardly differ.
    """
    runs = np.exp(rng.normal(0, between, 2))
    machines = [run * np.exp(rng.normal(0, _MACHINE if not steady else _OWN, blocks)) for run in runs]
    q = 0.5 if steady else Q
    ours, theirs = (np.quantile(_records(rng, machine), q, axis=1, method="inverted_cdf") for machine in machines)
    return (ours * ratio).tolist(), theirs.tolist()


def nights(rng: Generator, length: int, shift_at: int | None = None, ratio: float = 1.0) -> NDArray[np.float64]:
    """Return a nightly series: lognormal (sigma 0.1) around 40 ms, with one outlier in thirty, times ``ratio``
    from a night on.
    """
    values = 40_000 * np.exp(rng.normal(0, 0.1, length))
    outliers = rng.random(length) < 0.03
    values[outliers] *= rng.uniform(1.5, 3, outliers.sum())
    if shift_at is not None:
        values[shift_at:] *= ratio
    return values


def _records(rng: Generator, machine: NDArray[np.float64]) -> NDArray[np.float64]:
    blocks = len(machine)
    body = _BODY_US * np.exp(rng.normal(0, _BODY_SIGMA, (blocks, RECORDS)))
    # the first record waits for the whole stall, the last record not at all
    lasted_us = rng.gamma(2.0, _STALL_US / 2, blocks)
    body[:, :STALLED] += lasted_us[:, None] * np.linspace(1, 0, STALLED)
    slower: NDArray[np.float64] = machine * np.exp(rng.normal(0, _OWN, blocks))
    return body * slower[:, None]
