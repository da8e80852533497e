"""Statements about brokers with known resource usage of their containers."""

from pathlib import Path
from typing import Any

import pytest

from aftershock.results.trials.kip227 import cpu, followers_bytes, followers_cpu
from aftershock.results.trials.part import STEADY_SLICE_US, Part
from aftershock.tests.unit.results.trials import on_disk
from aftershock.tests.unit.results.trials.fetched import counted

BEGUN = 500


def samples(*used: int) -> list[dict[str, Any]]:
    """Return samples at both ends of four slices, of brokers with this usage per slice of CPU time and bytes."""
    ends = ((0, [BEGUN] * len(used)), (4 * STEADY_SLICE_US, [BEGUN + each for each in used]))
    return [
        {
            "event": "broker_used",
            "t_us": at_us,
            "brokers": {str(n): {"cpu_us": each, "sent_bytes": each} for n, each in enumerate(so_far)},
        }
        for at_us, so_far in ends
    ]


@pytest.mark.parametrize(("used_us", "value"), [(3_000_000, 0.5), (None, None)])
def test_cpu(used_us: int | None, value: float | None, tmp_path: Path) -> None:
    """CPU time is between two samples in steady, divided by the fetches; without samples there is no figure."""
    parts = {}
    for name, kind, factor in (("cpu-session", "incremental", 1), ("cpu-full", "full", 2)):
        events = samples(factor * used_us) if used_us else []
        metrics = counted("p1000-reader-consume", kind, 10.0)
        parts[name] = on_disk.part(tmp_path / name, metrics=metrics, events=events)
    assert value == cpu([*parts.values()]).ours.value


def followed(home: Path, session: list[dict[str, Any]], full: list[dict[str, Any]]) -> list[Part]:
    runs = {"followers-session": session, "followers-full": full}
    return [on_disk.part(home / name, events=events) for name, events in runs.items()]


@pytest.mark.parametrize(
    ("session", "full", "word"),
    [
        ((100, 110, 120), (1_000, 1_050, 1_300), "confirmed"),
        ((1_000, 1_050, 1_300), (100, 110, 120), "contradicted"),
        ((900, 1_100, 1_000), (1_000, 1_000, 1_000), "inconclusive"),
        ((100, 110), (1_000, 1_050), "inconclusive"),
    ],
)
def test_followers(session: tuple[int, ...], full: tuple[int, ...], word: str, tmp_path: Path) -> None:
    """Followers are compared broker by broker; two brokers decide nothing."""
    parts = followed(tmp_path, samples(*session), samples(*full))
    assert word == followers_bytes(parts).word
    assert len(session) == followers_bytes(parts).ours.n == followers_cpu(parts).ours.n


@pytest.mark.parametrize("session_samples", [[], samples(100, 100)])
def test_samples_of_one_run_only_are_inconclusive(session_samples: list[dict[str, Any]], tmp_path: Path) -> None:
    parts = followed(tmp_path, session_samples, samples(1, 2, 3))
    assert [None, None] == [judge(parts).ours.value for judge in (followers_bytes, followers_cpu)]
