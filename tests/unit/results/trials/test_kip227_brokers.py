"""Statements about brokers with known resource usage of their containers."""

from pathlib import Path
from typing import Any

import pytest

from aftershock.results.trials.claim import state_claims
from aftershock.results.trials.kip227 import REGISTRATION, cpu, followers_bytes, followers_cpu
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


def test_brokers_of_one_launch_are_one_unit(tmp_path: Path) -> None:
    """Three brokers with a tenth of the bytes share one launch, which decides nothing however clear the figure is."""
    parts = followed(tmp_path, samples(100, 110, 120), samples(1_000, 1_100, 1_200))
    result = [judge(parts).ours for judge in (followers_bytes, followers_cpu)]
    assert [(pytest.approx(0.1), None, 1)] * 2 == [(ours.value, ours.interval, ours.n) for ours in result]
    statement = next(
        entry
        for entry in state_claims(REGISTRATION.claims, {part.name: part for part in parts}, {})
        if entry.id == "followers-bytes"
    )
    assert ("undecided", True) == (statement.word, "1 launches of 1 registered are too few" in statement.why)


@pytest.mark.parametrize("session_samples", [[], samples(100, 100)])
def test_samples_of_one_run_only_are_inconclusive(session_samples: list[dict[str, Any]], tmp_path: Path) -> None:
    parts = followed(tmp_path, session_samples, samples(1, 2, 3))
    assert [None, None] == [judge(parts).ours.value for judge in (followers_bytes, followers_cpu)]
