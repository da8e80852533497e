"""Every kind on a real cluster: it bites, a client sees it, it heals; where it was not done, it proves nothing."""

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
from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.stand import Stand, Stands

HERE = Path(__file__).parent


def found() -> dict[str, list[Case]]:
    """The cases of all ``*_cases.py`` beside this file, by kind."""
    cases: dict[str, list[Case]] = {}
    for file in sorted(HERE.glob("*_cases.py")):
        for kind, shown in importlib.import_module(f"aftershock.tests.chaos.kinds.{file.stem}").CASES.items():
            cases.setdefault(kind, []).extend(shown)
    return cases


CASES = found()
# one kind of each family; the nightly shows all kinds and cases, each on its own sort of cluster
SMOKE = (
    "latency",
    "cut",
    "kill",
    "pause",
    "log_dir_offline",
    "reassign",
    "kill_client",
    "strip_hints",
)


def shown() -> list[Any]:
    """All cases, cluster by cluster; the first case of each kind of ``SMOKE`` also on the cluster of the smoke tier."""
    params = [
        (case.on, pytest.param(case, id=f"{kind}-{number}" if number else kind, marks=pytest.mark.nightly))
        for kind, cases in CASES.items()
        for number, case in enumerate(cases)
    ]
    params += [("smoke", pytest.param(replace(CASES[kind][0], on="smoke"), id=f"{kind}-smoke")) for kind in SMOKE]
    return [param for _, param in sorted(params, key=lambda param: param[0])]


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stands]:
    with closing(Stands(tmp_path_factory.mktemp)) as stands:
        yield stands


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_shown(kind: str) -> None:
    """A kind without a case that names it fails here, so nobody adds one that was never seen to bite and heal."""
    assert kind in {case.kind for case in CASES.get(kind, ())}


def test_every_family_is_in_the_smoke_tier() -> None:
    """So that a change which breaks one is seen before it lands."""
    assert {kind.family for kind in KINDS.values()} == {KINDS[kind].family for kind in SMOKE}


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", shown())
def test_it_bites_and_heals(stands: Stands, case: Case) -> None:
    """Not done, its witness gives no proof. Done, it proves itself, a client sees it, and it leaves nothing broken."""
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


def _is_undone(seen: Seen) -> bool:
    return any(line.entry.state == "healing" for line in seen.lines)


def _judged(seen: Seen) -> str:
    """What the verdict would say of its witness."""
    journal = [line.entry.as_json() for line in seen.lines]
    evidence: Any = SimpleNamespace(run={}, journal=journal)
    return witness(evidence, {"id": journal[0]["fault"]}).status
