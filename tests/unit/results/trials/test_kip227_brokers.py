"""Statements about brokers with known resource usage of their containers."""

from pathlib import Path
from typing import Any

import pytest

from aftershock.results.trials.claim import state_claims
from aftershock.results.trials.kip227 import REGISTRATION, followers_bytes, followers_cpu, threads_cpu
from aftershock.results.trials.part import STEADY_SLICE_US, Part
from aftershock.results.trials.statement import Word
from aftershock.tests.unit.results.trials import on_disk
from aftershock.tests.unit.results.trials.made import judge
from aftershock.tests.unit.results.trials.rows import part_of

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


@pytest.mark.parametrize(
    ("full_us", "word"), [(3000, "confirmed"), (1000, "undecided"), (500, "contradicted"), (0, "undecided")]
)
def test_cpu_of_the_request_threads(full_us: int, word: Word, tmp_path: Path) -> None:
    """A fetch with a session costs 1 ms; what the broker uses while both consumers stand is subtracted."""
    windows: dict[str, tuple[int, int]] = {}
    used = [0.0]
    fetches = {"session": [0.0], "full": [0.0]}
    for number in range(13 * 36):
        turn = ("session", "full", "none", None)[min(3, number % 36 // 12)] if number % 12 < 10 else None
        if number % 12 == 0:
            windows[f"{('session', 'full', 'none')[number % 36 // 12]}-{number // 36}"] = (number, number + 10)
        for arm, each in fetches.items():
            each.append(each[-1] + 20 * (turn in (arm, None)))
        noise = 1 + 0.01 * (number // 36 % 3)
        used.append(used[-1] + 5000 + 20 * noise * {"session": 1000, "full": full_us}.get(str(turn), 0))
    series = {
        f"client.fetches_{kind}/readers-{arm}-consume": fetches[arm]
        for kind, arm in (("incremental", "session"), ("full", "full"))
    }
    rows = [
        {"t_us": at * 1_000_000, "broker_id": 1, "name": name, "value": value}
        for name, values in {**series, "broker.request_cpu_us": used}.items()
        for at, value in enumerate(values)
    ]
    part = part_of(tmp_path, [], windows, samples=rows)
    result = judge(REGISTRATION, "cpu-1000", {"cpu-1000": part})
    assert word == result.word
    assert full_us == 0 or (12, pytest.approx(1000 / full_us, rel=0.01)) == (result.ours.n, result.ours.value)


def test_unsampled_cpu_leaves_no_figure(tmp_path: Path) -> None:
    """As where the brokers run on another host."""
    part = part_of(tmp_path, [], {"session-1": (0, 10), "full-1": (12, 22), "none-1": (24, 34)})
    assert threads_cpu(part).doubt.endswith("was not sampled")


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
