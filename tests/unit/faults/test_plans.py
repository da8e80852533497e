"""The plans that ship with the package."""

from pathlib import Path

import pytest

from aftershock.errors import PlanError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find, names
from aftershock.faults.timeline.compile import compile_plan


def test_names() -> None:
    """These plans ship, and the parts of the KIP trials in addition."""
    assert {"broker-loss", "demo", "leader-rotation", "kips/951-move"} <= set(names())


MEANT = {
    "grey-failures": ["a pause of 2s is a grey failure"],
    "kips/227-threads": ["no workload produces to `idle`"],
    "zoo/sarama-partition-without-leader": [
        "no workload produces to `returns`",
        "the workloads `orders` and `notes` share a group",
    ],
    "kips/966-last-replica": ["keep 1 of 3 replicas, fewer than min.insync.replicas 2"],
}
"""Warnings about what a plan does on purpose."""


@pytest.mark.parametrize("name", names())
def test_valid_without_warnings(name: str) -> None:
    """Each plan is valid, named as its file, has a purpose, and gives no warning about what it does not mean."""
    checked = load_plan(find(name))
    assert checked.plan.name == Path(name).name
    assert checked.plan.why
    meant = MEANT.get(name, [])
    assert len(meant) == len(checked.warnings)
    assert all(words in warning for words, warning in zip(meant, checked.warnings, strict=True))
    compile_plan(checked.plan, 7, checked.source, checked.slo_positions)


def test_demo_is_about_a_minute() -> None:
    """The demo takes about a minute; its producers differ in `acks`, and in idempotence, which needs acks=all."""
    checked = load_plan(find("demo"))
    timeline = compile_plan(checked.plan, 7, checked.source, checked.slo_positions)
    assert timeline.timing.steady_ms + timeline.length_ms <= 48_000
    one, other = (workload["produce"] for workload in timeline.workloads)
    assert {"acks", "idempotence"} == {key for key in one if one[key] != other[key]}
    assert [arm["settings"] for workload in timeline.workloads for arm in workload["arms"].values()] == [
        {"socket.timeout.ms": 6000, "reconnect.backoff.max.ms": 1000}
    ] * 2


def test_a_path_takes_precedence_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLAN is a path, else a name; an unknown name gives an error with a suggestion."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("name: x")
    assert find("mine.yaml") == Path("mine.yaml")
    Path("demo").write_text("name: x")
    assert find("demo") == Path("demo")
    with pytest.raises(PlanError, match="did you mean `broker-loss`"):
        find("brokerloss")
