"""How long each kind takes from intent to effect, and to heal: each kind's first case, on a real cluster under load.

*In force* and *witnessed* are counted from the journal's ``intended``, *healed* from its ``healing``; a witness that
watches for a while before it speaks makes *witnessed* longer than the effect took. Run by hand: ``make bench``.
"""

import asyncio
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from aftershock.faults.plan.catalogue import save_measurements
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.stand import Stand, Stands
from aftershock.tests.chaos.kinds.test_every_kind import CASES


def shown() -> list[Case]:
    """Return each kind's first case, cluster by cluster."""
    return sorted((cases[0] for cases in CASES.values()), key=lambda case: case.on)


async def played(stand: Stand, case: Case) -> Observation:
    await stand.prepare(case)
    seen = await stand.play(case)
    await stand.clear_up(case)
    return seen


def row_of(case: Case, seen: Observation) -> list[str]:
    first_us = {line.entry.state: line.t_us for line in reversed(seen.lines)}
    proof_us = min(line.t_us for line in seen.lines if line.entry.witness and line.entry.witness.ok)
    intended_us = first_us["intended"]
    spans = [(intended_us, first_us["injected"]), (intended_us, proof_us)]
    spans += [(first_us["healing"], seen.at_us("healed"))] if "healing" in first_us else []
    told = [f"{(end_us - begin_us) / 1000:.0f} ms" for begin_us, end_us in spans]
    return [f"`{case.kind}`", *told, *["-"] * (3 - len(told))]


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        rows = list[list[str]]()
        with closing(Stands(lambda name: _made(Path(home) / name))) as stands:
            for case in shown():
                with stands.on(case.on) as stand:
                    rows.append(row_of(case, asyncio.run(played(stand, case))))
                    stand.await_in_sync()
                print(*rows[-1], sep="  ", flush=True)
    save_measurements("Every kind", ("kind", "in force", "witnessed", "healed"), sorted(rows))
    return 0


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
