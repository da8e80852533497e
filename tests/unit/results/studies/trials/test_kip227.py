"""Statements about fetches of known cost, and about lost fetch sessions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftershock.results.model.check import Check, Status
from aftershock.results.studies.part import Part, steady_slices
from aftershock.results.studies.trials import kip227
from aftershock.results.studies.trials.kip227 import REGISTRATION, SIZES, bytes_per_fetch, largest, plots
from aftershock.tests.unit.results.studies.trials import on_disk
from aftershock.tests.unit.results.studies.trials.fetched import counted
from aftershock.tests.unit.results.studies.trials.made import decide, judge

Cost = Callable[[int], float]


def bytes_part(home: Path, full: Cost, changed: Cost) -> Part:
    samples = [
        sample
        for size in SIZES
        for arm, kind, cost in (("full", "full", full), ("session", "incremental", changed))
        for sample in counted(f"p{size}-{arm}-consume", kind, cost(size))
    ]
    return on_disk.part(home, metrics=samples)


def test_the_cost_of_a_fetch_excludes_records(tmp_path: Path) -> None:
    """The cost is requests and responses without records, per fetch; without fetches there is no figure."""
    part = on_disk.part(tmp_path, metrics=counted("w-a-consume", "full", 300.0, slices=7))
    result = bytes_per_fetch(part, "w/a", "full", steady_slices(part))
    assert [pytest.approx(300.0)] * 7 == result[:7]
    assert np.isnan(result[7])


def test_confirmed(tmp_path: Path) -> None:
    """70 B per partition in full and 0.7 B with one active in a hundred: three statements hold, over eight slices."""
    part = bytes_part(tmp_path, lambda size: 100 + 70 * size, lambda size: 100 + 0.7 * size)
    result = [judge(REGISTRATION, claim, {"bytes": part}) for claim in ("full-slope", "incremental-slope", "share")]
    assert ["confirmed"] * 3 == [each.word for each in result]
    assert [pytest.approx(70.0), pytest.approx(0.7), pytest.approx(800 / 70_100)] == [
        each.ours.value for each in result
    ]
    assert {8} == {each.ours.n for each in result}
    assert "80 fetches" in largest(part, "full").why


def test_not_seen(tmp_path: Path) -> None:
    """An incremental fetch still names a tenth of all partitions."""
    part = bytes_part(tmp_path, lambda size: 100 + 70 * size, lambda size: 100 + 7 * size)
    assert ["undecided"] * 2 == [
        judge(REGISTRATION, claim, {"bytes": part}).word for claim in ("incremental-slope", "share")
    ]


def test_contradicted(tmp_path: Path) -> None:
    """A session costs more than no session."""
    part = bytes_part(tmp_path, lambda size: 100 + 70 * size, lambda size: 200 + 71 * size)
    assert ["contradicted"] * 2 == [
        judge(REGISTRATION, claim, {"bytes": part}).word for claim in ("incremental-slope", "share")
    ]


@pytest.mark.parametrize(("session", "word"), [(2_200.0, "confirmed"), (1_000.0, "contradicted")])
def test_control(session: float, word: str, tmp_path: Path) -> None:
    """If all partitions are active a session must cost the same; a saving means that the measurement is wrong."""
    samples = counted("busy-full-consume", "full", 2_100.0)
    samples += counted("busy-session-consume", "incremental", session)
    assert word == judge(REGISTRATION, "no-gain", {"control": on_disk.part(tmp_path, metrics=samples)}).word


def test_plot(tmp_path: Path) -> None:
    """The plot has both lines, with their last values below; without the part there is no plot."""
    part = bytes_part(tmp_path, lambda size: 100 + 70 * size, lambda size: 100 + 0.7 * size)
    (drawn,) = plots({"bytes": part})
    assert "no session" in drawn.svg
    assert "no partition active" not in drawn.svg
    assert "full fetch: 3,600 to 70,100 bytes; incremental fetch: 135 to 800 bytes" in drawn.reading
    assert () == plots({})


# ---- sessions


def event(name: str, t_us: int, worker: str = "w", node: int = 1) -> dict[str, Any]:
    return {"event": f"session_{name}", "t_us": t_us, "worker": worker, "node_id": node, "session_id": 7}


def test_sessions_are_regained_after_a_loss(tmp_path: Path) -> None:
    """A full fetch of this client and broker is answered after each loss; the slowest is reported."""
    events = [
        event("established", 1),
        event("lost", 1_000_000),
        event("reset", 1_000_500, worker="another"),
        event("established", 1_020_000),
        event("lost", 3_000_000),
        event("refused", 3_400_000),
    ]
    result = kip227.regained(on_disk.part(tmp_path, faults={"stranger": [900_000]}, events=events), "stranger")
    assert (0, 400.0, 2) == (result.violations, result.ours.value, result.ours.n)


@pytest.mark.parametrize(
    "after", [[], [event("reset", 1_010_000)], [event("lost", 1_010_000)], [event("established", 2_010_000)]]
)
def test_sessions_are_not_regained(after: list[dict[str, Any]], tmp_path: Path) -> None:
    """No event follows, another error follows, or the answer takes longer than a fetch may."""
    events = [event("lost", 1_000_000), *after]
    part = on_disk.part(tmp_path, faults={"stranger": [0]}, events=events)
    assert 1 <= (kip227.regained(part, "stranger").violations or 0)


def test_losses_before_the_first_fault_do_not_count(tmp_path: Path) -> None:
    part = on_disk.part(tmp_path, faults={"back": [5]}, events=[event("lost", 1), event("established", 2)])
    assert 0 == kip227.regained(part, "back").ours.n


def on_the_wire(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**line, "event": f"wire_{line['event']}"} for line in events]


def test_sessions_on_the_wire_are_judged_alike(tmp_path: Path) -> None:
    """Events of the wire proxy have the same meaning; each source is judged by itself."""
    events = [*on_the_wire([event("lost", 1_000_000), event("established", 3_000_000)]), event("lost", 1_000_000)]
    part = on_disk.part(tmp_path, faults={"stranger": [0]}, events=[*events, event("established", 1_100_000)])
    assert (1, 0) == (
        kip227.regained(part, "stranger", "wire").violations,
        kip227.regained(part, "stranger").violations,
    )


@pytest.mark.parametrize(("lost_at", "hits"), [((1_100_000, 5_100_000), 2), ((1_100_000,), 1), ((9_000_000,), 0)])
def test_another_client_disrupts_a_session(tmp_path: Path, lost_at: tuple[int, ...], hits: int) -> None:
    """A close counts if the session of the consumer is gone within two seconds."""
    events = on_the_wire([event("lost", at_us) for at_us in lost_at])
    result = kip227.disrupted(
        on_disk.part(tmp_path, faults={"stranger": [1_000_000, 5_000_000]}, events=events), "stranger", "wire"
    )
    assert (hits, 2) == (result.violations, result.ours.n)


def test_costs_on_the_wire(tmp_path: Path) -> None:
    """Java's incremental fetches by the counters of the wire proxy, and librdkafka's, which all are full."""
    samples = [
        {**sample, "name": sample["name"].replace("client.", "wire.", 1)}
        for size in SIZES
        for arm, kind, cost in (("java", "incremental", 0.7), ("librdkafka", "full", 70.0))
        for sample in counted(f"p{size}-{arm}-consume", kind, 100 + cost * size)
    ]
    parts = {"clients": on_disk.part(tmp_path, metrics=samples)}
    claims = ("incremental-slope-java", "full-slope-librdkafka")
    assert ["confirmed"] * 2 == [judge(REGISTRATION, claim, parts).word for claim in claims]


RESTARTS: Mapping[str, list[int]] = {"stranger": [100, 1_100], "restart": [500, 1_500]}


def test_a_restart_costs_one_session(tmp_path: Path) -> None:
    """Sessions closed by other clients in between do not count."""
    lives = [event("lost", 110), event("established", 120), event("reset", 500), event("established", 900)]
    later = [{**live, "t_us": live["t_us"] + 1_000} for live in lives]
    once = on_disk.part(tmp_path / "once", faults=RESTARTS, events=[event("established", 1), *lives, *later])
    result = kip227.reopened(once, "restart")
    assert (0, 0, 2) == (result.violations, result.ours.value, result.ours.n)
    again = [event("established", 1), *lives, event("reset", 950), event("established", 960), *later]
    twice = on_disk.part(tmp_path / "twice", faults=RESTARTS, events=again)
    assert 1 == kip227.reopened(twice, "restart").violations


def test_restarts_without_witness_are_inconclusive(tmp_path: Path) -> None:
    """Events of clients do not replace the witness."""
    checks = [
        Check(f"witness/{fault}-{block}", "witness", "run", Status.INCONCLUSIVE, 0, 1, "", "undecided")
        for fault in RESTARTS
        for block in (1, 2)
    ]
    events = [event("lost", 110), event("established", 120)]
    part = on_disk.part(tmp_path, faults=RESTARTS, events=events, checks=checks)
    assert [0, 0] == [kip227.regained(part, "stranger").ours.n, kip227.reopened(part, "restart").ours.n]


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ([{"t_us": 1, "event": "fetch_sessions_left", "told": 9, "left": []}], "confirmed"),
        ([{"t_us": 1, "event": "fetch_sessions_left", "told": 9, "left": [[1, 7]]}], "contradicted"),
        ([{"t_us": 1, "event": "fetch_sessions_left", "told": 9, "left": None}], "undecided"),
        ([], "undecided"),
    ],
)
def test_sessions_left_on_brokers(told: list[dict[str, Any]], word: str, tmp_path: Path) -> None:
    """The brokers were asked about each session that was ever granted."""
    assert word == decide(REGISTRATION, "left-sessions", kip227.sessions_left(on_disk.part(tmp_path, events=told))).word
