"""Run that a campaign needs, and the digest by which a stored run of it is recognised."""

import hashlib
import json
from dataclasses import dataclass

from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.model import dump
from aftershock.faults.plans import find


@dataclass(frozen=True)
class Planned:
    """Run of a campaign: a bundled plan that ``aftershock run`` accepts, with changes as for ``--set``.

    ``around_s`` is the duration of the run from launch to verdict, without its blocks (repetitions of the plan's
    faults), and ``block_s`` the duration of a block. ``blocks`` is the number of blocks, None for a plan without
    blocks. ``off`` are the changes that sabotage the run: they switch off what the campaign tests.
    """

    name: str
    plan: str
    around_s: float
    changes: tuple[str, ...] = ()
    blocks: int | None = None
    block_s: float = 0.0
    kafka: str | None = None
    off: tuple[str, ...] = ()

    @property
    def takes_s(self) -> float:
        return self.around_s + self.block_s * (self.blocks or 0)

    @property
    def settings(self) -> tuple[str, ...]:
        return self.changes if self.blocks is None else (*self.changes, f"blocks={self.blocks}")


def digest(planned: Planned, seed: int) -> str:
    """Return a hash of a run's seed, Kafka version and plan without the plan's number of blocks.

    The order of keys counts, because clients send in the order of the plan's arms, and racks number the brokers.
    """
    plan = dump(load_plan(find(planned.plan), planned.changes).plan)
    document = {**plan, "blocks": None, "why": None, "seed": seed, "kafka": planned.kafka}
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]
