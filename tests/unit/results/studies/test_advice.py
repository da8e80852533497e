"""Advice for late clients: who gets it, what it names, and what a trial of it saved."""

from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.results.studies.audit import LEVERS, advice_of, advised, cells_of
from aftershock.results.studies.part import Part
from aftershock.tests.unit.results.studies.test_audit import CALM, GOOD, SLOW, S, run

TIMES_S = {
    "librdkafka": [3.0, 3.1, 3.0, 3.2, 3.1, 3.0],
    "java": [9.9, 10.1, 10.2, 9.8, 10.0, 10.3],
    "java-advised": [3.9, 4.0, 4.1, 4.0, 3.9, 4.2],
    "other": [9.0] * 6,
    "close": [9.6] * 6,
}
ARMS = {
    "librdkafka": {"client": "confluent"},
    "java": {"client": "java"},
    "java-advised": {"client": "java", "settings": {"request.timeout.ms": 5000}},
    "other": {"client": "exec", "command": ["./other"]},
    "close": {"client": "exec", "command": ["./close"]},
}


def late(home: Path, *names: str, settings: dict[str, str] | None = None) -> Part:
    """Return a run of a vanished host with the clients ``names``, each with its times of recovery."""
    made = run(home, GOOD)
    calms = [
        {"fault": f"crash-{n}", "client": f"orders/{name}", "n": 9, "recovered_us": round(at * S), **CALM}
        for name in names
        for n, at in enumerate(TIMES_S[name], 1)
    ]
    record = {"producer_id": 0, "seq": 1841, "topic": "orders", "partition": 3, "intended_us": 0, "done_us": 9_900_000}
    slowest = [{"op": "produce", "client": "orders/java", "records": [{**record, "done_us": None}, record]}]
    arms = {name: dict(ARMS[name]) for name in names}
    arms["java"]["settings"] = settings or {}
    timeline = {**made.run.timeline, "workloads": [{**made.run.timeline["workloads"][0], "arms": arms}]}
    analysis = {**made.run.analysis, "calms": calms, "slowest": slowest}
    return replace(made, run=replace(made.run, analysis=analysis, timeline=timeline))


def test_a_late_client_gets_the_settings_that_bound_its_wait(tmp_path: Path) -> None:
    """The fastest client gets none, nor does a client whose settings are unknown."""
    part = late(tmp_path, "librdkafka", "java", "other")
    (advice,) = advice_of("host-vanishes", part, cells_of("host-vanishes", part))
    assert ("java", "librdkafka", pytest.approx(7.0)) == (advice.client, advice.behind, advice.late_s)
    assert ["request.timeout.ms", "socket.connection.setup.timeout.ms"] == [lever.setting for lever in advice.levers]
    assert "java, host vanishes: recovers 7.0 s later than librdkafka (record 0:1841 of orders/3 took 9.9 s)." in (
        advice.text
    )
    assert "socket.connection.setup.timeout.ms=1000 (default 10000) bounds the wait for a connection" in advice.text
    assert advice.text.endswith("Not tried; --try-advice does.")


def test_settings_that_are_set_and_scenarios_without_levers(tmp_path: Path) -> None:
    part = late(tmp_path, "librdkafka", "java", settings={"request.timeout.ms": "9000"})
    (advice,) = advice_of("host-vanishes", part, cells_of("host-vanishes", part))
    assert ["socket.connection.setup.timeout.ms"] == [lever.setting for lever in advice.levers]
    assert [] == advice_of("leaders-moved", part, cells_of("leaders-moved", part))


def test_a_single_client_gets_advice_if_it_is_marked_slow(tmp_path: Path) -> None:
    part = late(tmp_path, "java")
    assert [] == advice_of("host-vanishes", part, cells_of("host-vanishes", part))
    cells = [replace(cell, mark="slow") for cell in cells_of("host-vanishes", part)]
    (advice,) = advice_of("host-vanishes", part, cells)
    assert "java, host vanishes: recovers late (" in advice.text
    assert SLOW.arm == advice.client


def test_advice_names_a_faster_client_only_if_it_is_a_second_faster(tmp_path: Path) -> None:
    part = late(tmp_path, "java", "close")
    cells = [replace(cell, mark="slow") for cell in cells_of("host-vanishes", part)]
    (advice,) = advice_of("host-vanishes", part, cells)
    assert ("close", pytest.approx(0.45)) == (advice.behind, advice.late_s)
    assert "java, host vanishes: recovers late (" in advice.text


def test_what_tried_advice_saves(tmp_path: Path) -> None:
    """The saved time is that of both arms in the same repetitions; the advised arm itself gets no advice."""
    part = late(tmp_path, "librdkafka", "java", "java-advised")
    (advice,) = advice_of("host-vanishes", part, cells_of("host-vanishes", part))
    assert "Tried: saves 6.1 s (5.8 to 6.1, n = 6)." == advice.tried
    part.run.analysis["calms"][-1]["recovered_us"] = 11 * S
    (advice,) = advice_of("host-vanishes", part, cells_of("host-vanishes", part))
    assert advice.tried.startswith("Tried: makes no difference that shows, 6.0 s (-0.7 to 6.1")


def test_an_advised_arm() -> None:
    """A setting of the user wins; a program has no settings that we know."""
    made = advised({"client": "java", "settings": {"request.timeout.ms": "9000"}})
    assert made is not None
    assert {"request.timeout.ms": "9000", "socket.connection.setup.timeout.ms": "1000"} == made["settings"]
    assert advised({"client": "exec", "command": ["./other"]}) is None
    assert {"confluent-kafka-javascript", "confluent", "java", "librdkafka", "rdkafka", "reference"} == {*LEVERS}
