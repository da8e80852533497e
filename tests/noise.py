"""Measurements with realistic noise, on which tests measure rates of false alarms. Seeded.

As in the simulations that chose the statistics, a block is one fault, which stalls a contiguous stretch of records for
a random time. Two arms in one block share the machine, whose speed varies from block to block.
"""

import math
from typing import Literal

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


Law = Literal["normal", "lognormal", "heavier"]


def dependent(
    rng: Generator, blocks: int, r: float, law: Law = "normal", ratio: float = 1.0
) -> tuple[list[float], list[float]]:
    """Return the values of two arms by block; each arm's values follow an autoregressive series with correlation ``r``.

    They are normal (with a deviation of 15 %), log-normal (sigma 1), or have tails heavier than that: logarithms whose
    innovations are log-normal.
    """
    ours, theirs = (_series(rng, blocks, r, skewed=law == "heavier") for _ in range(2))
    if law == "normal":
        ours, theirs = np.maximum(1 + 0.15 * ours, 0.05), np.maximum(1 + 0.15 * theirs, 0.05)
    else:
        ours, theirs = np.exp(ours), np.exp(theirs)
    return (40_000 * ratio * ours).tolist(), (40_000 * theirs).tolist()


def _series(rng: Generator, length: int, r: float, *, skewed: bool = False) -> NDArray[np.float64]:
    """Return a stationary autoregressive series of first order, with mean 0 and variance 1."""
    settle = 40
    innovations = rng.normal(size=settle + length)
    if skewed:
        innovations = (np.exp(innovations) - math.exp(0.5)) / math.sqrt(math.e * (math.e - 1))
    value, values = 0.0, np.empty(settle + length)
    for index, innovation in enumerate(innovations):
        values[index] = value = r * value + math.sqrt(1 - r * r) * innovation
    return values[settle:]


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


def nights(
    rng: Generator, length: int, shift_at: int | None = None, ratio: float = 1.0, r: float = 0.0
) -> NDArray[np.float64]:
    """Return a nightly series: lognormal (sigma 0.1) around 40 ms, with one outlier in thirty, times ``ratio``
    from a night on; ``r`` is the autocorrelation of the logarithms.
    """
    values = 40_000 * np.exp(0.1 * _series(rng, length, r) if r else rng.normal(0, 0.1, length))
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
