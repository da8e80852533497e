"""Every kind on a real cluster: it takes effect, a client observes it, and it heals; a rehearsal gives no proof."""

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.faults.kinds.registry import KINDS
from aftershock.results.checks.witness import witness
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.stand import Stand, Stands

HERE = Path(__file__).parent


def cases_by_kind() -> dict[str, list[Case]]:
    """Return the cases of all ``*_cases.py`` in this folder, by kind."""
    cases: dict[str, list[Case]] = {}
    for file in sorted(HERE.glob("*_cases.py")):
        for kind, kind_cases in importlib.import_module(f"aftershock.tests.chaos.kinds.{file.stem}").CASES.items():
            cases.setdefault(kind, []).extend(kind_cases)
    return cases


CASES = cases_by_kind()
# One kind of each family; the nightly runs all kinds and cases, each on its own type of cluster.
SMOKE = (
    "latency",
    "cut",
    "kill",
    "log_dir_offline",
    "clock_bump",
    "reassign",
    "kill_client",
    "strip_hints",
)


def cases_by_cluster() -> list[Any]:
    """Return all cases, by cluster; the first case of each kind of ``SMOKE`` also on the cluster of the smoke tier."""
    params = [
        (case.on, pytest.param(case, id=f"{kind}-{number}" if number else kind, marks=pytest.mark.nightly))
        for kind, cases in CASES.items()
        for number, case in enumerate(cases)
        if case.on != "pods"  # test_on_kubernetes.py
    ]
    params += [("smoke", pytest.param(replace(CASES[kind][0], on="smoke"), id=f"{kind}-smoke")) for kind in SMOKE]
    return [param for _, param in sorted(params, key=lambda param: param[0])]


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stands]:
    with closing(Stands(tmp_path_factory.mktemp)) as stands:
        yield stands


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_case(kind: str) -> None:
    """A kind without a case fails here, so that every kind's effect and heal are tested."""
    assert kind in {case.kind for case in CASES.get(kind, ())}


def test_every_family_is_in_the_smoke_tier() -> None:
    """So that a change which breaks a family is detected before it is merged."""
    assert {kind.family for kind in KINDS.values()} == {KINDS[kind].family for kind in SMOKE}


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", cases_by_cluster())
def test_the_fault_takes_effect_and_heals(stands: Stands, case: Case) -> None:
    takes_effect_and_heals(stands, case)


def takes_effect_and_heals(stands: Stands, case: Case) -> None:
    """In a rehearsal the witness gives no proof. After inject the witness proves the fault, a client observes it,
    and the heal restores everything.
    """
    with stands.on(case.on) as stand:
        before = asyncio.run(stand.broken())
        asyncio.run(_prepared_and_rehearsed(stand, case))
        seen = asyncio.run(stand.play(case))
        asyncio.run(stand.clear_up(case))
        stand.await_in_sync()

        undone = ["healing"] if _is_undone(seen) else []
        assert seen.states == ["intended", "injected", "witnessed", *undone, "healed"]
        assert [] == [told for told in seen.witnesses if not told.ok]
        assert "PASS" == _judged(seen)
        case.effect(seen)
        assert before == asyncio.run(stand.broken())


async def _prepared_and_rehearsed(stand: Stand, case: Case) -> None:
    await stand.prepare(case)
    sabotaged = await stand.rehearse(case)
    assert sabotaged.witnesses, "a rehearsal asks the witnesses as well"
    assert "INCONCLUSIVE" == _judged(sabotaged)


def _is_undone(seen: Observation) -> bool:
    return any(line.entry.state == "healing" for line in seen.lines)


def _judged(seen: Observation) -> str:
    """Return what the verdict would say of the witness."""
    journal = [line.entry.as_json() for line in seen.lines]
    evidence: Any = SimpleNamespace(run={}, journal=journal)
    return witness(evidence, {"id": journal[0]["fault"]}).status
