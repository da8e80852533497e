"""The watchdog's attempts to heal: repeated until nothing is left, with growing pauses and a limit."""

import errno
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import EngineError, FaultError
from aftershock.harness.cluster import engine
from aftershock.harness.lifecycle import heal, watchdog
from aftershock.harness.lifecycle.watchdog import LIMIT_S, clean_up, guard, retry

GONE = "999999999:1"  # no such process


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


def test_attempts_are_repeated_until_nothing_is_left() -> None:
    """After an engine without answer, a failed undo and a bug: pauses double from one second to a minute."""
    clock, said = Clock(), list[str]()
    results: list[Any] = [EngineError("no engine"), FaultError("not healed"), KeyError("x"), *[False] * 6, True]

    def attempt() -> bool:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return bool(result)

    assert retry(attempt, said.append, now_s=lambda: clock.now_s, sleep=clock.sleep)
    assert [] == results
    assert [1, 2, 4, 8, 16, 32, 60, 60, 60] == clock.pauses
    assert ["no engine", "not healed", "'x'"] == [line.partition("repeated: ")[2] for line in said]


def test_attempts_end_at_a_limit_that_is_logged() -> None:
    """Hours later; the log names the command."""
    clock, said = Clock(), list[str]()
    assert not retry(lambda: False, said.append, now_s=lambda: clock.now_s, sleep=clock.sleep)
    assert LIMIT_S <= clock.now_s < LIMIT_S + 120
    assert ["giving up after 12 hours; heal what is left with: aftershock heal"] == said


class Engine:
    """An engine that answers after some attempts, and a run whose fault can't be healed before the third."""

    def __init__(self, dead_for: int) -> None:
        self.dead_for, self.heals, self.closed = dead_for, 0, 0

    def connect(self) -> "Engine":
        self.dead_for -= 1
        if self.dead_for >= 0:
            raise EngineError("no Docker engine answers")
        return self

    def close(self) -> None:
        self.closed += 1

    def heal(self, *_: Any, **__: Any) -> heal.Healing:
        self.heals += 1
        return heal.Healing([], ["run: the fault pause-1 could not be healed"] if self.heals < 3 else [])


def test_an_engine_that_died_with_the_runner_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole watchdog of a dead owner: two connections and two heals fail, and a full disk swallows its log."""
    docker, clock = Engine(dead_for=2), Clock()
    monkeypatch.setattr(engine, "connect", docker.connect)
    monkeypatch.setattr(heal, "has_remains", lambda *_: docker.heals < 3)
    monkeypatch.setattr(heal, "heal", docker.heal)
    monkeypatch.setattr(watchdog, "GRACE_S", 0.0)
    monkeypatch.setattr(watchdog, "retry", lambda *both: retry(*both, now_s=lambda: clock.now_s, sleep=clock.sleep))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    guard(GONE, "run", tmp_path)
    assert (3, 3, [1, 2, 4, 8]) == (docker.heals, docker.closed, clock.pauses)


def test_a_run_without_remains_is_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Engine(dead_for=0)
    monkeypatch.setattr(engine, "connect", docker.connect)
    monkeypatch.setattr(heal, "has_remains", lambda *_: False)
    assert clean_up("run", tmp_path, print)
    assert (0, 1) == (docker.heals, docker.closed)
