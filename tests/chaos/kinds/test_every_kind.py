"""Every kind of the catalogue on a real cluster: it bites, a client sees it, it heals; and not done, it proves nothing."""

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aftershock.faults.kinds import KINDS
from aftershock.results.witness import witness
from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.stand import Stand, standing

HERE = Path(__file__).parent


def found() -> dict[str, list[Case]]:
    """The cases of all ``*_cases.py`` beside this file, by kind."""
    cases: dict[str, list[Case]] = {}
    for file in sorted(HERE.glob("*_cases.py")):
        for kind, shown in importlib.import_module(f"aftershock.tests.chaos.kinds.{file.stem}").CASES.items():
            cases.setdefault(kind, []).extend(shown)
    return cases


CASES = found()


def shown() -> Iterator[Any]:
    for kind, cases in CASES.items():
        for number, case in enumerate(cases):
            marks = [pytest.mark.nightly] if case.nightly else []
            yield pytest.param(case.on, case, id=f"{kind}-{number}" if number else kind, marks=[*marks])


@pytest.fixture(scope="module")
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with standing(request.param, tmp_path_factory.mktemp(f"kinds-{request.param}")) as stand:
        yield stand


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_shown(kind: str) -> None:
    """A kind without a case that names it fails here, so nobody adds one that was never seen to bite and heal."""
    assert kind in {case.kind for case in CASES.get(kind, ())}


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("stand", "case"), [*shown()], indirect=["stand"])
def test_it_bites_and_heals(stand: Stand, case: Case) -> None:
    """Not done, its witness gives no proof. Done, it proves itself, a client sees it, and it leaves nothing broken."""
    asyncio.run(_prepared_and_rehearsed(stand, case))
    before = asyncio.run(stand.broken())
    seen = asyncio.run(stand.play(case))
    stand.await_in_sync()

    assert seen.states == ["intended", "injected", "witnessed", *(["healing"] if _is_undone(seen) else []), "healed"]
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
