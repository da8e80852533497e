"""Statements about brokers with known resource usage of their containers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftershock.results.studies.part import STEADY_SLICE_US, Part
from aftershock.results.studies.statement import Word
from aftershock.results.studies.trials.claim import Parts, state_claims
from aftershock.results.studies.trials.kip227 import FOLLOWERS, REGISTRATION, plots, threads_cpu
from aftershock.tests.unit.results.studies.trials import on_disk
from aftershock.tests.unit.results.studies.trials.made import judge, measure
from aftershock.tests.unit.results.studies.trials.rows import part_of

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


def with_turns(home: Path, session_us: int, full_us: int, kind: str = "incremental") -> Part:
    """Return 13 rounds in which a fetch costs so much CPU time, and the broker 5 ms a second besides.

    Fetches of the consumer with a session are of ``kind``, which is full if the session is switched off.
    """
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
        used.append(used[-1] + 5000 + 20 * noise * {"session": session_us, "full": full_us}.get(str(turn), 0))
    series = {
        f"client.fetches_{kind}/readers-{arm}-consume": fetches[arm]
        for kind, arm in ((kind, "session"), ("full", "full"))
    }
    rows = [
        {"t_us": at * 1_000_000, "broker_id": 1, "name": name, "value": value}
        for name, values in {**series, "broker.request_cpu_us": used}.items()
        for at, value in enumerate(values)
    ]
    return part_of(home, [], windows, samples=rows)


@pytest.mark.parametrize(
    ("full_us", "word"), [(3000, "confirmed"), (1000, "undecided"), (500, "contradicted"), (0, "undecided")]
)
def test_cpu_of_the_request_threads(full_us: int, word: Word, tmp_path: Path) -> None:
    """A fetch with a session costs 1 ms; what the broker uses while both consumers stand is subtracted."""
    result = judge(REGISTRATION, "cpu-1000", {"cpu-1000": with_turns(tmp_path, 1000, full_us)})
    assert word == result.word
    assert full_us == 0 or (12, pytest.approx(1000 / full_us, rel=0.01)) == (result.ours.n, result.ours.value)


def test_a_consumer_without_incremental_fetches_leaves_no_figure(tmp_path: Path) -> None:
    """As in a sabotaged trial, whose fetch session is switched off."""
    part = with_turns(tmp_path, 1000, 1000, "full")
    assert "in a turn the consumer 'session' made no incremental fetch" == threads_cpu(part).doubt


def test_cpu_by_partition(tmp_path: Path) -> None:
    """100 us a fetch, and 0.1 us a partition with a fetch session, 2 us without."""
    parts = {
        f"cpu-{size}": with_turns(tmp_path / str(size), 100 + size // 10, 100 + 2 * size) for size in (1000, 250, 50)
    }
    slopes = [measure(REGISTRATION, f"cpu-slope-{arm}", parts).ours for arm in ("session", "full")]
    (plot,) = plots(parts)
    assert "full fetch: 202 to 2,121 us; incremental fetch: 106 to 202 us" in plot.reading
    assert [(12, pytest.approx(100, rel=0.02)), (12, pytest.approx(2000, rel=0.02))] == [(s.n, s.value) for s in slopes]


def test_unsampled_cpu_leaves_no_figure(tmp_path: Path) -> None:
    """As where the brokers run on another host."""
    part = part_of(tmp_path, [], {"session-1": (0, 10), "full-1": (12, 22), "none-1": (24, 34)})
    assert threads_cpu(part).doubt.endswith("was not sampled")


def followed(home: Path, session: Sequence[int], full: Sequence[int]) -> Parts:
    """Return six pairs of launches, of three brokers with this usage each."""
    used = [use for pair in zip(session, full, strict=True) for use in pair]
    names = [name for pair in FOLLOWERS for name in pair]
    launches = [samples(each, each + 10, each - 10) if each else [] for each in used]
    return {name: on_disk.part(home / name, events=events) for name, events in zip(names, launches, strict=True)}


@pytest.mark.parametrize(
    ("session", "word"),
    [
        ([100, 120, 90, 110, 100, 95], "confirmed"),
        ([1_100, 930, 960, 1_060, 1_010, 970], "undecided"),  # KIP switched off
        ([2_000, 2_100, 1_900, 2_000, 2_050, 1_990], "contradicted"),
        ([100, 0, 90, 110, 100, 95], "undecided"),  # a launch without samples
    ],
)
def test_a_pair_of_launches_is_the_unit(session: list[int], word: Word, tmp_path: Path) -> None:
    """However many brokers a launch has; both figures are the geometric mean of the ratios of six pairs."""
    parts = followed(tmp_path, session, [1_000] * 6)
    assert word == judge(REGISTRATION, "followers-bytes", parts).word
    ours = measure(REGISTRATION, "followers-cpu", parts).ours
    assert 0 in session or (6, pytest.approx(float(np.exp(np.log(session).mean())) / 1_000)) == (ours.n, ours.value)


def test_five_pairs_decide_nothing(tmp_path: Path) -> None:
    parts = dict(list(followed(tmp_path, [100] * 6, [1_000] * 6).items())[:-1])
    (result,) = [s for s in state_claims(REGISTRATION.claims, parts, {}) if s.id == "followers-bytes"]
    assert ("undecided", True) == (result.word, "no run of its part followers-full-6" in result.why)
